// The page in which the client's scenarios run; the test in this folder bundles it.
import { startGateway, type Gateway } from "../test/gateway.ts";
import { runScenario, type Scenario } from "../test/interpreter.ts";

let shared: Promise<Gateway> | undefined;

/** Runs a scenario and says what went wrong, "" if nothing did. The rig that serves this page starts the gateways. */
async function run(scenario: Scenario): Promise<string> {
  try {
    if (!scenario.gateway) {
      await runScenario(scenario, await (shared ??= startGateway(location.origin)));
      return "";
    }
    const own = await startGateway(location.origin, scenario.gateway);
    try {
      await runScenario(scenario, own);
    } finally {
      await own.do("stop");
    }
    return "";
  } catch (error) {
    return String((error as Error).stack ?? error);
  }
}

Object.assign(globalThis, { run });
