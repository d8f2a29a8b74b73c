// A build bot: it runs a build, prints its output as it comes, and ends it when somebody types "cancel".
//
// A lost connection costs nothing: the client resumes at the byte after the last one. The build outlives the bot, too: started again, the bot finds
// the build and goes on after the last line that it printed.
import { Buffer } from "node:buffer";
import { readFileSync, rmSync, writeFileSync } from "node:fs";
import process from "node:process";
import { createInterface } from "node:readline";
import { connect, SessionTerminatedError, type Process } from "@trl/client";

const [command = "make", cwd] = process.argv.slice(2);
const stateFile = "build-bot.json"; // what a bot that is started again has to know
interface Progress {
  id: string;
  printed: number; // bytes of output, in whole lines
}

const sandbox = await connect({ url: process.env.TRL_URL!, token: process.env.TRL_TOKEN! });
const session = await sandbox.createSession({ name: "build-bot", ifExists: "return" });
const { build, progress } = (await resume()) ?? (await begin());

let cancelled = false;
const orders = createInterface({ input: process.stdin });
orders.on("line", (line) => {
  if (line.trim() !== "cancel") return;
  cancelled = true;
  build.kill().catch(console.error); // it returns when nothing of the build is left
});

let rest = "";
for await (const event of build.streamLogs({ since: progress.printed })) {
  if (event.type === "gap") {
    console.log(`[${event.to - event.from} bytes of output were dropped]`);
    progress.printed = event.to;
    rest = "";
  } else if (event.type === "stdout") {
    const lines = (rest + event.data).split("\n");
    rest = lines.pop()!;
    for (const line of lines) {
      console.log(`| ${line}`);
      progress.printed += Buffer.byteLength(line) + 1;
    }
    save(progress);
  }
}
if (rest) console.log(`| ${rest}`);
const { exitCode } = await build.waitForExit();
console.log(cancelled ? "cancelled" : `exit code ${exitCode}`);
rmSync(stateFile);
orders.close();
await sandbox.close();
process.exitCode = cancelled ? 130 : exitCode;

async function begin(): Promise<{ build: Process; progress: Progress }> {
  const build = await session.startProcess(`exec 2>&1; ${command}`, { cwd });
  const progress = { id: build.id, printed: 0 };
  save(progress);
  console.log(`build ${build.id} has begun`);
  return { build, progress };
}

/** The build of the bot before us, if the gateway still has it. */
async function resume(): Promise<{ build: Process; progress: Progress } | undefined> {
  let progress: Progress;
  try {
    progress = JSON.parse(readFileSync(stateFile, "utf8")) as Progress;
  } catch {
    return undefined; // there was none
  }
  const build = await session.getProcess(progress.id).catch((error) => {
    if (error instanceof SessionTerminatedError) return null; // it ended with its gateway
    throw error;
  });
  if (!build) return undefined;
  console.log(`build ${build.id} goes on at byte ${progress.printed}`);
  return { build, progress };
}

function save(progress: Progress): void {
  writeFileSync(stateFile, JSON.stringify(progress));
}
