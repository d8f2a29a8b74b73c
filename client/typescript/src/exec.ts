import { decodeBytes, encodeBytes, toBase64, toBytes } from "./frame.ts";
import { OutcomeUnknownError, refusal } from "./errors.ts";
import { commandLine } from "./quote.ts";
import { textOf } from "./text.ts";
import type * as wire from "./wire.gen.ts";

/** Variables to set. null unsets one, undefined is skipped. */
export type Env = Record<string, string | null | undefined>;

export interface ExecOptions {
  /** For this command only. */
  cwd?: string | undefined;
  /** For this command only. */
  env?: Env | undefined;
  /** ms; then TERM, and KILL after a grace. 0: none. */
  timeout?: number | undefined;
  /** ms without output; then the command is ended. */
  noOutputTimeout?: number | undefined;
  stdin?: string | Uint8Array | undefined;
  /** Ends the command, and the promise rejects with the signal's reason. */
  signal?: AbortSignal | undefined;
  /** The most that is returned of each stream; beginning and end are kept. 1 MiB by default. */
  maxOutputBytes?: number | undefined;
  /** Text as a terminal would have shown it: without escape sequences. Not with onOutput. */
  clean?: boolean | undefined;
  /** While another command runs: wait for the turn, or throw SessionBusyError. */
  whenBusy?: "queue" | "reject" | undefined;
  /** Throw CommandError if the command fails. */
  check?: boolean | undefined;
  /** A name for this request, under which the server runs it only once; by default a random one. */
  requestKey?: string | undefined;
  /** Gets the output as it comes. */
  onOutput?: ((stream: "stdout" | "stderr", data: string) => void) | undefined;
  record?: boolean | undefined;
}

export interface ExecResult {
  /** The exit code is 0. */
  success: boolean;
  /** 128+N if signal N ended it. */
  exitCode: number;
  stdout: string;
  stderr: string;
  command: string;
  /** ms */
  duration: number;
  /** When the result came, as an ISO 8601 string. */
  timestamp: string;
  sessionId: string;
  execId: string;
  /** The shell's directory afterwards. */
  cwd: string;
  /** The signal that ended it, without SIG. */
  signal?: string;
  timedOut: boolean;
  timeoutKind?: string;
  cancelled: boolean;
  /** Some output is missing: `omitted` says where. */
  truncated: boolean;
  omitted?: wire.OmittedStreams;
  /** The command ended the shell, and its state was restored in another one. */
  shellRestored: boolean;
  oomKilled?: boolean;
  limitHit?: string;
  /** Process ids that the command left running. */
  background: number[];
  /** The output as it was, also where it is not UTF-8. */
  bytes(): { stdout: Uint8Array; stderr: Uint8Array };
}

/** A random name for a request. */
export function newKey(): string {
  if (crypto.randomUUID) return crypto.randomUUID(); // the fastest; a browser has it only for pages that came over https
  return toBase64(crypto.getRandomValues(new Uint8Array(18)));
}

export function seconds(ms: number | undefined): number | undefined {
  return ms === undefined ? undefined : ms / 1000;
}

export function wireEnv(env: Env | undefined): Record<string, string | null> | undefined {
  if (!env) return undefined;
  const set: Record<string, string | null> = {};
  for (const [name, value] of Object.entries(env)) if (value !== undefined) set[name] = value;
  return set;
}

/** The params of exec.run and exec.stream that are the same; JSON leaves out what is undefined. */
export function execParams(sessionId: string, command: string | readonly string[], o: ExecOptions) {
  const stdin = o.stdin === undefined ? undefined : encodeBytes(toBytes(o.stdin));
  return {
    session_id: sessionId,
    command: commandLine(command),
    working_dir: o.cwd,
    env: wireEnv(o.env),
    timeout_s: seconds(o.timeout),
    no_output_timeout_s: seconds(o.noOutputTimeout),
    stdin: stdin?.data,
    stdin_encoding: stdin?.encoding,
    when_busy: o.whenBusy,
    request_key: o.requestKey ?? newKey(),
    record: o.record,
  };
}

/** What a command wrote, as text or as bytes, as it is returned. */
export interface Output {
  stdout: string | Uint8Array;
  stderr: string | Uint8Array;
  truncated: boolean;
  omitted?: wire.OmittedStreams | undefined;
}

/** A result from the wire's account of the end. It is an error if the server does not know the end, or if the command never ran. */
export function resultOf(command: string, exit: wire.ExecExit, output: Output): ExecResult {
  if (exit.exit_code === undefined && exit.error) {
    const { code, message, details } = exit.error;
    if (code !== "INTERNAL_ERROR" && code !== "SESSION_LOST") throw refusal(exit.error);
    throw new OutcomeUnknownError(message, code, { ...details, exec_id: exit.exec_id });
  }
  const { stdout, stderr } = output;
  const result: ExecResult = {
    success: exit.exit_code === 0,
    exitCode: exit.exit_code ?? -1,
    stdout: typeof stdout === "string" ? stdout : textOf(stdout),
    stderr: typeof stderr === "string" ? stderr : textOf(stderr),
    command,
    duration: exit.duration_ms,
    timestamp: new Date().toISOString(),
    sessionId: exit.session_id,
    execId: exit.exec_id,
    cwd: exit.working_dir,
    timedOut: exit.timed_out,
    cancelled: exit.cancelled,
    truncated: output.truncated,
    shellRestored: exit.shell_restored,
    background: exit.background ?? [],
    bytes: () => ({ stdout: toBytes(stdout), stderr: toBytes(stderr) }),
  };
  if (exit.signal) result.signal = exit.signal;
  if (exit.timeout_kind) result.timeoutKind = exit.timeout_kind;
  if (output.omitted) result.omitted = output.omitted;
  if (exit.oom_killed) result.oomKilled = true;
  if (exit.limit_hit) result.limitHit = exit.limit_hit;
  return result;
}

export function outputOf(r: wire.ExecResult): Output {
  const output = (text: string, encoding: string) => (encoding === "utf-8" ? text : decodeBytes(text, encoding));
  return { stdout: output(r.stdout, r.stdout_encoding), stderr: output(r.stderr, r.stderr_encoding), truncated: r.truncated, omitted: r.omitted };
}
