import { readFileSync } from "node:fs";
import process from "node:process";
import { after, before, describe, test } from "node:test";
import { startGateway, type Gateway } from "./gateway.ts";
import { runScenario, type Scenario } from "./interpreter.ts";
import { startRig, type Rig } from "./rig.ts";

const { scenarios } = JSON.parse(readFileSync(new URL("../../testdata/scenarios.json", import.meta.url), "utf8")) as { scenarios: Scenario[] };
const only = process.env.TRL_SCENARIO; // part of a name

describe("scenarios", () => {
  let rig: Rig;
  let shared: Gateway;
  before(async () => {
    rig = await startRig();
    shared = await startGateway(rig.url);
  });
  after(() => rig.stop());

  for (const scenario of scenarios) {
    if (only && !scenario.name.includes(only)) continue;
    test(scenario.name, async () => {
      if (!scenario.gateway) return runScenario(scenario, shared);
      const own = await startGateway(rig.url, scenario.gateway);
      try {
        await runScenario(scenario, own);
      } finally {
        await own.do("stop");
      }
    });
  }
});
