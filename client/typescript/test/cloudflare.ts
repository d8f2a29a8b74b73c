// Compiled only: where the names are those of Cloudflare's Sandbox SDK 0.12, a program that was written for it gets what it expects.
import type * as cloudflare from "@cloudflare/sandbox";
import type * as trl from "../dist/index.js";

/** What an ExecutionSession of theirs has and a Session has, too. */
type Shared = "id" | "exec" | "startProcess" | "listProcesses" | "getProcess" | "killProcess" | "killAllProcesses" | "setEnvVars";

export const session = (s: trl.Session): Pick<cloudflare.ExecutionSession, Shared> => s;
export const sandbox = (s: trl.Sandbox): Pick<cloudflare.ISandbox, Exclude<Shared, "id">> => s;
export const process = (p: trl.Process): cloudflare.Process => p;
export const result = (r: trl.ExecResult): cloudflare.ExecResult => r;

// Their options may be passed. Those that there are not here have no effect: stream, onComplete and onError of exec, and the ids of startProcess.
export const execOptions = (o: Pick<cloudflare.ExecOptions, "timeout" | "env" | "cwd" | "onOutput" | "signal">): trl.ExecOptions => o;
export const processOptions = (o: Pick<cloudflare.ProcessOptions, "timeout" | "env" | "cwd" | "onOutput" | "onExit">): trl.ProcessOptions => o;
export const portOptions = (o: Pick<cloudflare.WaitForPortOptions, "mode" | "path" | "timeout">): Parameters<trl.Process["waitForPort"]>[1] => o;
export const sessionOptions = (o: Pick<cloudflare.SessionOptions, "name" | "env" | "cwd">): trl.SessionOptions => o;

// They hand out streams of server-sent events, which their users parse; here a command is iterable itself. What the events have in common:
type Events = Extract<trl.ExecEvent, { type: cloudflare.ExecEvent["type"] }>;
export const execEvent = (e: Events): cloudflare.ExecEvent => e;
