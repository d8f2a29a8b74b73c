import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import process from "node:process";
import { after, before, describe, test } from "node:test";
import { promisify } from "node:util";
import { startGateway, type Gateway } from "./gateway.ts";
import { startRig, type Rig } from "./rig.ts";

const page = readFileSync(new URL("../../../docs/clients/typescript.md", import.meta.url), "utf8");
const blocks = [...page.matchAll(/```ts\n(.*?)```\n```text\n(.*?)```\n/gs)].map(([, code, output]) => ({ code: patient(code!), output: output! }));

/** Makes the pauses and the time limits longer than a busy machine stands still: output that a reader finds together is one piece. */
function patient(code: string): string {
  return code.replaceAll("sleep 0.1", "sleep 3").replaceAll("timeout: 200 }", "timeout: 4_000 }");
}

// Each example of docs/clients/typescript.md runs as a program of its own, and prints what the page says.
describe("docs", () => {
  const dir = mkdtempSync(join(import.meta.dirname, ".docs-"));
  let rig: Rig;
  let gateway: Gateway;
  before(async () => {
    rig = await startRig();
    gateway = await startGateway(rig.url);
  });
  after(async () => {
    rmSync(dir, { recursive: true });
    await rig.stop();
  });

  test("each example has its output", () => {
    assert.equal(blocks.length, page.match(/```ts\n/g)?.length);
    assert.ok(blocks.length > 10);
  });
  blocks.forEach(({ code, output }, i) => {
    const runs = !code.includes("await using") || !/^v22\./.test(process.version) || "Bun" in globalThis || "Deno" in globalThis;
    test(`${i}: ${code.trim().split("\n")[0]}`, { skip: !runs }, async () => {
      const file = join(dir, `${i}.ts`);
      writeFileSync(file, program(code));
      const args = "Deno" in globalThis ? ["run", "--allow-all", "--no-check", file] : [file];
      const env = { ...process.env, TRL_URL: gateway.url, TRL_TOKEN: gateway.tokens.user, NODE_NO_WARNINGS: "1" };
      const { stdout } = await promisify(execFile)(process.execPath, args, { env, timeout: 60_000 });
      assert.equal(stdout, output);
    });
  });
});

/** An example as a program: the later ones have the sandbox of the first. */
function program(code: string): string {
  const imports = [...code.matchAll(/^import .*$/gm)].map(([line]) => line);
  const rest = code.replace(/^import .*$/gm, "");
  const whole = code.includes("const sandbox = await connect")
    ? code
    : `import { connect } from "@trl/client";\n${imports.join("\n")}
const sandbox = await connect({ url: process.env.TRL_URL!, token: process.env.TRL_TOKEN! });\n${rest}\nawait sandbox.close();\n`;
  return `import process from "node:process";\n${whole}`.replaceAll('"@trl/client"', '"../../dist/index.js"');
}
