// Runs the scenarios of client/testdata/scenarios.json; the README beside them says what the steps mean. It needs nothing of Node, so that it runs in
// browsers, too.
import * as trl from "../dist/index.js";
import type { Gateway, GatewayOptions } from "./gateway.ts";

export interface Scenario {
  name: string;
  gateway?: GatewayOptions;
  slow?: boolean;
  needs?: string[];
  steps: Step[];
}

type Step = Record<string, unknown> & { do: string };
type Values = Record<string, unknown>;

/** How long a step may take. */
const patience = 150_000;

export async function runScenario(scenario: Scenario, gateway: Gateway): Promise<void> {
  const run = new Run(gateway);
  try {
    run.values.client = await run.connect({ do: "connect" });
    run.values.s = await (run.values.client as trl.Sandbox).createSession();
    run.sessions.push(run.values.s as trl.Session);
    await run.steps(scenario.steps, run.values);
  } finally {
    await run.end();
  }
}

class Run {
  readonly values: Values = {};
  readonly sessions: trl.Session[] = [];
  private readonly clients: trl.Sandbox[] = [];

  private readonly gateway: Gateway;

  constructor(gateway: Gateway) {
    this.gateway = gateway;
  }

  async end(): Promise<void> {
    await Promise.all(this.sessions.map((session) => session.destroy({ force: true }).catch(() => {})));
    await Promise.all(this.clients.map((client) => client.close()));
  }

  async steps(steps: Step[], values: Values): Promise<void> {
    for (const step of steps) await within(this.step(step, values), JSON.stringify(step));
  }

  private async step(raw: Step, values: Values): Promise<void> {
    const step = raw.do === "repeat" ? raw : (filled(raw, values) as Step);
    if (step.meanwhile) {
      const abort = new AbortController();
      const outcome = this.carryOut({ ...step, signal: abort.signal }, values);
      outcome.catch(() => {});
      values[step.as as string] = new Meanwhile(outcome, abort);
      return;
    }
    let result: unknown;
    try {
      result = await this.carryOut(step, values);
    } catch (error) {
      if (!("error" in step) || error instanceof Mismatch) throw error;
      compare(describe(error), step.error, "error");
      return;
    }
    if ("error" in step) throw new Mismatch(`${JSON.stringify(step)} did not fail: ${JSON.stringify(result)}`);
    if (step.as) values[step.as as string] = result;
    if ("expect" in step) compare(result, step.expect, step.do);
  }

  private async carryOut(step: Step, values: Values): Promise<unknown> {
    const of = values[step.of as string];
    const signal = step.signal as AbortSignal | undefined;
    switch (step.do) {
      case "connect":
        return this.connect(step);
      case "session":
        return this.keep(await this.client(step, values).createSession(sessionOptions(step)));
      case "session_with_terminal": {
        const { session, terminal } = await this.client(step, values).createSessionWithTerminal(sessionOptions(step), terminalOptions(step));
        values[step.terminal as string] = new Reading(terminal);
        return this.keep(session);
      }
      case "get_session":
        return this.client(step, values).getSession(step.name as string);
      case "move":
        return (of as trl.Session).move(step.node as string);
      case "destroy":
        return (of as trl.Session).destroy();
      case "exec":
        return plain(await this.session(step, values).exec(step.command as string, { ...execOptions(step), signal }));
      case "stream":
        return new Reading(this.session(step, values).execStream(step.command as string, { ...execOptions(step), signal }));
      case "read":
        return (of as Reading).read(step.until as Until);
      case "count":
        return (of as Reading).count();
      case "write":
        return write(of instanceof Reading ? of.of as trl.Command : (of as trl.Process), step);
      case "kill":
        return of instanceof Reading ? (of.of as trl.Command).kill(step.signal as unknown as string) : (of as trl.Process).kill();
      case "process":
        return this.session(step, values).startProcess(step.command as string, { stdin: step.stdin as "open" });
      case "wait_for_port":
        return (of as trl.Process).waitForPort(Number(step.port), { mode: step.mode as "http", path: step.path as string, timeout: ms(step.timeout_s), signal });
      case "wait_for_log": {
        const pattern = step.pattern === undefined ? (step.text as string) : new RegExp(step.pattern as string);
        const { line, match } = await (of as trl.Process).waitForLog(pattern, { timeout: ms(step.timeout_s), signal });
        return { line, groups: match?.slice(1) ?? [] };
      }
      case "wait_for_exit": {
        const exit = await (of as trl.Process).waitForExit({ timeout: ms(step.timeout_s), signal });
        return { exit_code: exit.exitCode, signal: exit.signal, timed_out: exit.timedOut };
      }
      case "logs": {
        const { stdout, stderr, nextOffset } = await (of as trl.Process).getLogs();
        return { stdout, stderr, next_offset: nextOffset };
      }
      case "follow":
        return new Reading((of as trl.Process).streamLogs({ since: step.since as number }), step.since as number | undefined);
      case "terminal":
        return new Reading(await this.session(step, values).openTerminal(terminalOptions(step)));
      case "resize":
        return ((of as Reading).of as trl.Terminal).resize(step.cols as number, step.rows as number);
      case "snapshot": {
        const screen = await ((of as Reading).of as trl.Terminal).snapshot();
        return { ...screen, text: screen.lines.join("\n") };
      }
      case "call":
        return this.client(step, values).call(step.method as keyof trl.wire.Methods, (step.params ?? {}) as never);
      case "direct":
        return this.direct(step.command as string);
      case "rig":
        return this.gateway.do(step.action as string);
      case "await":
        return (of as Meanwhile).outcome;
      case "abort":
        return (of as Meanwhile).abort.abort(new DOMException("aborted by the test", "AbortError"));
      case "repeat":
        return this.repeat(step, values);
      case "eventually":
        return eventually(() => this.step(step.step as Step, values));
      case "sleep":
        return sleep(1000 * (step.seconds as number));
    }
    throw new Mismatch(`no such operation: ${step.do}`);
  }

  async connect(step: Step): Promise<trl.Sandbox> {
    const token = (step.token as string | undefined) ?? "user";
    const client = await trl.connect({ url: this.gateway.url, token: this.gateway.tokens[token] ?? token, session: step.session as string, patience: ms(step.patience_s) });
    this.clients.push(client);
    return client;
  }

  /** Beside the proxy, over a connection of its own. */
  private async direct(command: string): Promise<unknown> {
    const client = await trl.connect({ url: this.gateway.direct, token: this.gateway.tokens.user });
    try {
      const session = await client.createSession();
      try {
        return plain(await session.exec(command));
      } finally {
        await session.destroy();
      }
    } finally {
      await client.close();
    }
  }

  private async repeat(step: Step, values: Values): Promise<void> {
    const turn = (i: number) => this.steps(step.steps as Step[], Object.assign(Object.create(values) as Values, { i }));
    const turns = Array.from({ length: step.times as number }, (_, i) => i);
    if (step.parallel) await Promise.all(turns.map(turn));
    else for (const i of turns) await turn(i);
  }

  private client(step: Step, values: Values): trl.Sandbox {
    return values[(step.client as string | undefined) ?? "client"] as trl.Sandbox;
  }

  private session(step: Step, values: Values): trl.Session {
    return values[(step.in as string | undefined) ?? "s"] as trl.Session;
  }

  private keep(session: trl.Session): trl.Session {
    this.sessions.push(session);
    return session;
  }
}

class Meanwhile {
  readonly outcome: Promise<unknown>;
  readonly abort: AbortController;

  constructor(outcome: Promise<unknown>, abort: AbortController) {
    this.outcome = outcome;
    this.abort = abort;
  }
}

type Until = "end" | { bytes?: number; more?: number; text?: string };

/** The output of a command, log or terminal, as far as it was read. */
class Reading {
  readonly of: unknown;
  private readonly events: AsyncIterator<Record<string, unknown> & { type?: string }>;
  private readonly decoders: Record<string, TextDecoder> = {};
  private readonly text: Record<string, string> = { stdout: "", stderr: "" };
  private readonly raw: Uint8Array[] = [];
  private readonly gaps: { from: number; to: number }[] = [];
  private bytes = 0;
  private ended = false;
  private exit: Record<string, unknown> = {};
  private offset: number;

  constructor(of: trl.Command | trl.Terminal | AsyncIterable<trl.LogEvent>, offset = 0) {
    this.of = of;
    this.offset = offset;
    const events = of instanceof trl.Command ? of.bytes() : of;
    this.events = events[Symbol.asyncIterator]() as unknown as typeof this.events;
  }

  get id(): Promise<string> | string {
    return (this.of as trl.Command | trl.Terminal).id;
  }

  async read(until: Until): Promise<unknown> {
    const from = this.bytes;
    const enough = () =>
      until !== "end" &&
      (until.bytes === undefined || this.bytes >= until.bytes) &&
      (until.more === undefined || this.bytes >= from + until.more) &&
      (until.text === undefined || this.text.stdout!.includes(until.text));
    while (!enough()) {
      if (this.ended) throw new Mismatch(`the end came before ${JSON.stringify(until)}: ${JSON.stringify(this.text)}`);
      if (!(await this.take(true)) && until === "end") break;
    }
    const stdout = concat(this.raw);
    return {
      stdout: this.text.stdout, stderr: this.text.stderr, stdout_base64: base64(stdout), stdout_sha256: await sha256(stdout),
      bytes: this.bytes, offset: this.offset, gaps: this.gaps, ended: this.ended, ...this.exit,
    };
  }

  async count(): Promise<unknown> {
    while (await this.take(false));
    return { bytes: this.bytes, gaps: this.gaps, ...this.exit };
  }

  private async take(keep: boolean): Promise<boolean> {
    const { value: event, done } = await this.events.next();
    if (done) {
      this.ended = true;
      if (this.of instanceof trl.Command) {
        const { exitCode, signal } = await this.of.result();
        this.exit = { exit_code: exitCode, signal };
      }
      return false;
    }
    const gap = (event.type === "gap" ? event : event.gap) as { from: number; to: number } | undefined;
    if (gap) {
      this.gaps.push({ from: gap.from, to: gap.to });
      this.offset = gap.to;
    } else if (event.type === "exit") {
      this.exit = { exit_code: event.exitCode, signal: event.signal };
    } else if (event.bytes || typeof event.data === "string") {
      const bytes = (event.bytes as Uint8Array | undefined) ?? new TextEncoder().encode(event.data as string);
      if (!event.snapshot) this.bytes += bytes.length;
      this.offset = (event.offset as number) + (event.snapshot ? 0 : bytes.length);
      const channel = (event.stream as string | undefined) ?? (event.type === "stderr" ? "stderr" : "stdout");
      if (!keep) return true;
      if (channel === "stdout") this.raw.push(bytes);
      this.text[channel] += (this.decoders[channel] ??= new TextDecoder()).decode(bytes, { stream: true });
    }
    return true;
  }
}

async function write(to: { write(data: string | Uint8Array): Promise<void>; closeStdin?(): Promise<void> }, step: Step): Promise<void> {
  const data = step.data as string;
  const times = (step.times as number | undefined) ?? 1;
  const batch = Math.max(1, Math.floor((1 << 20) / data.length)); // not all of 10 MiB in one string
  for (let left = times; left > 0; left -= batch) await to.write(data.repeat(Math.min(batch, left)));
  if (step.eof) await to.closeStdin!();
}

function sessionOptions(step: Step): trl.SessionOptions {
  return { name: step.name as string, cwd: step.working_dir as string, env: step.env as trl.Env };
}

function terminalOptions(step: Step): trl.TerminalOptions {
  return { cols: step.cols as number, rows: step.rows as number, cmd: step.command as string };
}

function execOptions(step: Step): trl.ExecOptions {
  return {
    cwd: step.working_dir as string,
    env: step.env as trl.Env,
    timeout: ms(step.timeout_s),
    stdin: step.stdin_base64 === undefined ? (step.stdin as string) : Uint8Array.from(atob(step.stdin_base64 as string), (c) => c.charCodeAt(0)),
    whenBusy: step.when_busy as "reject",
    check: step.check as boolean,
  };
}

const ms = (seconds: unknown) => (seconds === undefined ? undefined : 1000 * Number(seconds));

/** A result with the names of the wire. */
function plain(r: trl.ExecResult): unknown {
  const { stdout, stderr } = r.bytes();
  return {
    exit_code: r.exitCode, stdout: r.stdout, stderr: r.stderr, stdout_base64: base64(stdout), stderr_base64: base64(stderr), signal: r.signal,
    timed_out: r.timedOut, cancelled: r.cancelled, truncated: r.truncated, working_dir: r.cwd,
  };
}

const kinds: [new (...args: never[]) => Error, string][] = [
  [trl.AuthError, "auth"], [trl.ForbiddenError, "forbidden"], [trl.InvalidParamsError, "invalid_params"], [trl.SessionNotFoundError, "session_not_found"],
  [trl.SessionExistsError, "session_exists"], [trl.SessionBusyError, "session_busy"], [trl.SessionTerminatedError, "session_terminated"],
  [trl.LimitError, "limit"], [trl.NotFoundError, "not_found"], [trl.OutcomeUnknownError, "outcome_unknown"], [trl.TrlError, "refused"],
  [trl.ConnectionLostError, "connection_lost"], [trl.CommandError, "command_failed"], [trl.ProcessReadyTimeoutError, "not_ready"],
  [trl.ProcessExitedBeforeReadyError, "exited_before_ready"], [trl.ClosedError, "closed"],
];

function describe(error: unknown): Record<string, unknown> {
  const e = error as Error & { code?: string; field?: string; exitCode?: number; stdout?: string };
  const kind = e.name === "AbortError" ? "aborted" : (kinds.find(([cls]) => error instanceof cls)?.[1] ?? "unexpected");
  return { kind, code: e.code, field: e.field, exit_code: e.exitCode, stdout: e.stdout, text: String(e.stack ?? e) };
}

/** What was expected did not come. */
class Mismatch extends Error {}

function compare(got: unknown, want: unknown, at: string): void {
  const fail = () => {
    throw new Mismatch(`${at}: got ${short(got)}, want ${short(want)}`);
  };
  if (at === "error.kind" && Array.isArray(want)) {
    if (!want.includes(got)) fail();
    return;
  }
  if (Array.isArray(want)) {
    if (!Array.isArray(got) || got.length !== want.length) return fail();
    want.forEach((w, i) => compare((got as unknown[])[i], w, `${at}.${i}`));
    return;
  }
  if (typeof want !== "object" || want === null) {
    if (got !== want) fail();
    return;
  }
  const [[name, value] = ["", undefined]] = Object.entries(want);
  switch (name) {
    case "$at_least":
      return (got as number) >= (value as number) ? undefined : fail();
    case "$at_most":
      return (got as number) <= (value as number) ? undefined : fail();
    case "$length":
      return (got as unknown[] | undefined)?.length === value ? undefined : fail();
    case "$matches":
      return new RegExp(value as string).test(String(got)) ? undefined : fail();
  }
  for (const [field, w] of Object.entries(want)) {
    try {
      compare((got as Record<string, unknown> | undefined)?.[field], w, `${at}.${field}`);
    } catch (error) {
      if (at === "error") throw new Mismatch(`${(error as Error).message}\n${String((got as Record<string, unknown>).text)}`);
      throw error;
    }
  }
}

const short = (value: unknown) => (JSON.stringify(value) ?? "nothing").slice(0, 1000);

/** A step with its references replaced. */
function filled(value: unknown, values: Values): unknown {
  if (typeof value === "string") return value.replace(/\$\{([^}]*)\}/g, (_, path: string) => String(path.split(".").reduce((v, key) => (v as Values)?.[key], values as unknown)));
  if (Array.isArray(value)) return value.map((v) => filled(v, values));
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([key, v]) => [key, key === "steps" ? v : filled(v, values)]));
}

async function within<T>(promise: Promise<T>, what: string): Promise<T> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const late = new Promise<never>((_, reject) => (timer = setTimeout(() => reject(new Mismatch(`no end: ${what}`)), what.includes('"steps"') ? 5 * patience : patience)));
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}

async function eventually(step: () => Promise<void>): Promise<void> {
  for (const end = performance.now() + patience; ; await sleep(20)) {
    try {
      return await step();
    } catch (error) {
      if (performance.now() > end) throw error;
    }
  }
}

const sleep = (ms: number) => new Promise<void>((resolve) => setTimeout(resolve, ms));

function concat(pieces: Uint8Array[]): Uint8Array<ArrayBuffer> {
  const all = new Uint8Array(pieces.reduce((n, p) => n + p.length, 0));
  let at = 0;
  for (const piece of pieces) {
    all.set(piece, at);
    at += piece.length;
  }
  return all;
}

function base64(bytes: Uint8Array): string {
  let binary = "";
  for (let i = 0; i < bytes.length; i += 0x8000) binary += String.fromCharCode(...bytes.subarray(i, i + 0x8000));
  return btoa(binary);
}

async function sha256(bytes: Uint8Array<ArrayBuffer>): Promise<string> {
  if (!globalThis.crypto?.subtle) return "";
  return Array.from(new Uint8Array(await crypto.subtle.digest("SHA-256", bytes)), (b) => b.toString(16).padStart(2, "0")).join("");
}
