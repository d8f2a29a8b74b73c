import { spawn, spawnSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { createInterface } from "node:readline";
import { tmpdir } from "node:os";
import { join } from "node:path";
import process from "node:process";

/** The program of internal/clientrig, which starts gateways for tests and does to them what they are asked for. */
export interface Rig {
  url: string;
  stop(): Promise<void>;
}

export async function startRig(): Promise<Rig> {
  const dir = mkdtempSync(join(tmpdir(), "trl-ts-"));
  let program = process.env.TRL_TEST_RIG;
  if (!program) {
    program = join(dir, "clientrig");
    const root = join(import.meta.dirname, "../../..");
    const built = spawnSync("go", ["build", "-buildvcs=false", "-o", program, "./internal/clientrig"], { cwd: root, stdio: ["ignore", "inherit", "inherit"] });
    if (built.status !== 0) throw new Error("the rig was not built");
  }
  const rig = spawn(program, { cwd: import.meta.dirname, stdio: ["pipe", "pipe", "inherit"] });
  const exited = new Promise<void>((resolve) => rig.on("exit", () => resolve()));
  const lines = createInterface({ input: rig.stdout });
  const url = await new Promise<string>((resolve, reject) => {
    lines.once("line", resolve);
    rig.once("exit", () => reject(new Error("the rig ended")));
  });
  return {
    url,
    stop: async () => {
      rig.stdin.end();
      await exited;
      rmSync(dir, { recursive: true, force: true });
    },
  };
}
