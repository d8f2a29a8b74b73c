import assert from "node:assert/strict";
import { spawn, type ChildProcess } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import process from "node:process";
import { after, afterEach, before, describe, test } from "node:test";
import { connect, type Sandbox } from "../dist/index.js";
import { startGateway, type Gateway } from "./gateway.ts";
import { startRig, type Rig } from "./rig.ts";

/** A build bot that runs. */
interface Bot {
  program: ChildProcess;
  output: string;
  exited: Promise<number | null>;
}

// examples/ts-build-bot, as a program of its own.
describe("the build bot", () => {
  const dir = mkdtempSync(join(import.meta.dirname, ".docs-"));
  const bots: Bot[] = [];
  let rig: Rig;
  let gateway: Gateway;
  let sandbox: Sandbox;
  before(async () => {
    rig = await startRig();
    gateway = await startGateway(rig.url);
    sandbox = await connect({ url: gateway.direct, token: gateway.tokens.user! });
    const text = readFileSync(new URL("../../../examples/ts-build-bot/bot.ts", import.meta.url), "utf8");
    writeFileSync(join(dir, "bot.ts"), text.replaceAll('"@trl/client"', '"../../dist/index.js"'));
  });
  after(async () => {
    await sandbox.close();
    await rig.stop();
    rmSync(dir, { recursive: true });
  });
  afterEach(async () => {
    for (const bot of bots.splice(0)) {
      bot.program.kill("SIGKILL");
      await bot.exited;
    }
    rmSync(join(gateway.home, "go"), { force: true });
  });

  function start(command: string): Bot {
    const args = "Deno" in globalThis ? ["run", "--allow-all", "--no-check", "bot.ts"] : ["bot.ts"];
    const env = { ...process.env, TRL_URL: gateway.url, TRL_TOKEN: gateway.tokens.user!, NODE_NO_WARNINGS: "1" };
    const program = spawn(process.execPath, [...args, command, gateway.home], { cwd: dir, env, stdio: ["pipe", "pipe", "inherit"] });
    const bot: Bot = { program, output: "", exited: new Promise((resolve) => program.on("close", (code) => resolve(code))) };
    program.stdout!.setEncoding("utf8").on("data", (text: string) => (bot.output += text));
    bots.push(bot);
    return bot;
  }

  const build = "seq 1 20; until [ -e go ]; do sleep 0.05; done; seq 21 40 >&2; printf 'the end'; exit 3";
  const half = "1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n11\n12\n13\n14\n15\n16\n17\n18\n19\n20\n".length;
  const printed = () => {
    try {
      return (JSON.parse(readFileSync(join(dir, "build-bot.json"), "utf8")) as { printed: number }).printed;
    } catch {
      return -1; // not there, or being written
    }
  };
  const allLines = Array.from({ length: 40 }, (_, i) => String(i + 1));
  const linesOf = (output: string) => [...output.matchAll(/^\| (.*)$/gm)].map(([, line]) => line);

  test("prints each line once over a cut", async () => {
    const bot = start(build);
    await until(() => printed() === half);
    await gateway.do("cut");
    writeFileSync(join(gateway.home, "go"), "");
    await until(async () => (await (await sandbox.getSession("build-bot")).listProcesses()).every((p) => p.status !== "running"));
    await gateway.do("mend");
    assert.equal(await bot.exited, 3);
    assert.deepEqual(linesOf(bot.output), [...allLines, "the end"]);
    assert.match(bot.output, /\nexit code 3\n$/);
  });

  test("goes on where a killed one stopped", async () => {
    const first = start(build);
    await until(() => printed() === half);
    first.program.kill("SIGKILL");
    await first.exited;
    const second = start("echo another build");
    await until(() => second.output.includes(`goes on at byte ${half}\n`));
    writeFileSync(join(gateway.home, "go"), "");
    assert.equal(await second.exited, 3);
    assert.deepEqual(linesOf(first.output + second.output), [...allLines, "the end"]);
  });

  test("ends the build when it is told to", async () => {
    const bot = start("sleep 600 & echo compiling; sleep 600");
    await until(() => bot.output.includes("| compiling\n"));
    bot.program.stdin!.write("cancel\n");
    assert.equal(await bot.exited, 130);
    assert.match(bot.output, /\ncancelled\n$/);
    const { processes } = await sandbox.call("process.list", { session: "build-bot" });
    assert.ok(processes.every((p) => p.state !== "running"));
  });
});

async function until(ok: () => boolean | Promise<boolean>): Promise<void> {
  for (const end = Date.now() + 60_000; !(await ok()); ) {
    assert.ok(Date.now() < end, "not in time");
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}
