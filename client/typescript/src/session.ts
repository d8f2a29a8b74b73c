import { pause } from "./abort.ts";
import { checked, Command, largestStdin, type StreamOptions, type Use } from "./command.ts";
import type { Connection } from "./connection.ts";
import { execParams, outputOf, resultOf, seconds, wireEnv, type Env, type ExecOptions, type ExecResult } from "./exec.ts";
import { toBytes } from "./frame.ts";
import type { Link } from "./link.ts";
import type { LogHub } from "./loghub.ts";
import { kill, Process, type ProcessOptions } from "./process.ts";
import { commandLine, quote } from "./quote.ts";
import { Terminal, type AttachOptions, type TerminalOptions } from "./terminal.ts";
import { NotFoundError } from "./errors.ts";
import { watch, type SessionEvent } from "./watch.ts";
import type * as wire from "./wire.gen.ts";

export type SessionInfo = wire.SessionInfo;

/** A persistent shell: directory, variables and functions stay from one command to the next. */
export class Session implements AsyncDisposable {
  #id: string;
  #name: string | undefined;

  /** @internal */
  constructor(
    protected readonly connection: Connection,
    protected readonly hubs: Map<string, LogHub>,
    id: string,
    name?: string,
  ) {
    this.#id = id;
    this.#name = name;
  }

  get id(): string {
    return this.#id;
  }

  get name(): string | undefined {
    return this.#name;
  }

  /**
   * Runs a command and returns its result; a command that fails is a result, too. If the connection is lost meanwhile it is made again, and the command
   * still runs once. A list of words is quoted for the shell.
   */
  async exec(command: string | readonly string[], o: ExecOptions = {}): Promise<ExecResult> {
    o.signal?.throwIfAborted();
    if (o.onOutput || (o.stdin !== undefined && o.stdin.length > largestStdin / 3 && toBytes(o.stdin).length > largestStdin)) return this.follow(command, o);
    const params: wire.ExecRun = {
      ...execParams("", command, o),
      max_output_bytes: o.maxOutputBytes,
      clean: o.clean,
    };
    const r = await this.use((session_id) => {
      params.session_id = session_id;
      return o.signal ? this.endedBy(o.signal, params) : this.connection.call("exec.run", params);
    });
    return checked(resultOf(params.command, r, outputOf(r)), o.check);
  }

  /** Starts a command and returns at once. Iterate over it for its output as it comes. */
  execStream(command: string | readonly string[], o: StreamOptions = {}): Command {
    return new Command(this.connection, this.use, command, o);
  }

  /** Starts a background process from the session's present state. */
  startProcess(command: string | readonly string[], o: ProcessOptions = {}): Promise<Process> {
    return this.use((id) => Process.start(this.connection, this.hubs, id, commandLine(command), o));
  }

  async listProcesses(): Promise<Process[]> {
    const { processes } = await this.use((session_id) => this.connection.call("process.list", { session_id }));
    return processes.map((info) => new Process(this.connection, this.hubs, info));
  }

  async getProcess(id: string): Promise<Process | null> {
    try {
      return new Process(this.connection, this.hubs, await this.connection.call("process.info", { process_id: id }));
    } catch (error) {
      if (error instanceof NotFoundError) return null;
      throw error;
    }
  }

  async killProcess(id: string, signal?: string): Promise<void> {
    await kill(this.connection, this.hubs, id, signal);
  }

  /** Ends every process that runs; it answers how many. */
  async killAllProcesses(): Promise<number> {
    const running = (await this.listProcesses()).filter((p) => p.status === "running");
    await Promise.all(running.map((p) => p.kill()));
    return running.length;
  }

  openTerminal(o: TerminalOptions): Promise<Terminal> {
    return this.use((id) => Terminal.open(this.connection, id, o).opened);
  }

  attachTerminal(id: string, o: AttachOptions = {}): Promise<Terminal> {
    return Terminal.attach(this.connection, id, o).opened;
  }

  /** Sets and unsets exported variables of the shell. */
  async setEnvVars(env: Env): Promise<void> {
    const lines = Object.entries(wireEnv(env)!).map(([name, value]) => {
      if (!/^[A-Za-z_]\w*$/.test(name)) throw new TypeError(`${name} is no name of a variable`);
      return value === null ? `unset ${name}` : `export ${name}=${quote(value)}`;
    });
    if (lines.length > 0) await this.exec(lines.join("\n"), { check: true });
  }

  info(): Promise<SessionInfo> {
    return this.use((session_id) => this.connection.call("session.info", { session_id }));
  }

  /**
   * Everything that happens in the session, as long as somebody iterates. After a lost connection it goes on. Where events are missing, because they
   * happened meanwhile or were not read in time, it says `missed`.
   */
  watch(o: { signal?: AbortSignal } = {}): AsyncIterable<SessionEvent> {
    return watch(this.connection, this.use, o.signal);
  }

  /** Replaces the shell by a fresh one; processes end. */
  async reset(): Promise<void> {
    await this.use((session_id) => this.connection.call("session.reset", { session_id }));
  }

  async rename(name: string): Promise<void> {
    await this.use((session_id) => this.connection.call("session.rename", { session_id, name }));
    this.#name = name;
  }

  /** Moves the session to another node of the cluster, while nothing runs in it. Returns what the new node could not take of its state. */
  async move(node: string): Promise<string[]> {
    return (await this.use((session_id) => this.connection.call("session.move", { session_id, node }))).state_lost ?? [];
  }

  /** Changes what createSession has set. `labels` take the place of all earlier ones. */
  async update(o: { labels?: Record<string, string>; commandTimeoutMs?: number; idleTimeoutMs?: number }): Promise<void> {
    const { labels, commandTimeoutMs, idleTimeoutMs } = o;
    const changes = { labels, timeout_s: seconds(commandTimeoutMs), idle_timeout_s: seconds(idleTimeoutMs) };
    await this.use((session_id) => this.connection.call("session.update", { session_id, ...changes }));
  }

  /** Ends the session and returns when all its processes are gone. */
  async destroy(o: { force?: boolean } = {}): Promise<void> {
    await this.use((session_id) => this.connection.call("session.destroy", { session_id, ...(o.force && { force: true }) }));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.destroy();
  }

  /** Calls a function with the session's id, for one request. */
  protected readonly use: Use = (ask) => ask(this.#id);

  protected identify(id: string, name: string | undefined): void {
    this.#id = id;
    this.#name = name;
  }

  /** An exec.run that ends when the signal aborts. */
  private async endedBy(signal: AbortSignal, params: wire.ExecRun): Promise<wire.ExecResult> {
    const canceller = new Canceller(signal);
    try {
      const answer = this.connection.call("exec.run", params, { signal: canceller.unsent.signal, sent: canceller.sent });
      const r = await Promise.race([answer, canceller.late]);
      if (signal.aborted) throw signal.reason;
      return r;
    } finally {
      canceller.done();
    }
  }

  private async follow(command: string | readonly string[], o: ExecOptions): Promise<ExecResult> {
    const { onOutput, ...rest } = o;
    if (o.clean) throw new TypeError("clean works only on a whole result: not with onOutput or a large stdin");
    const running = this.execStream(command, rest);
    if (!onOutput) return running.result();
    for await (const event of running) {
      if (event.type !== "stdout" && event.type !== "stderr") continue;
      try {
        onOutput(event.type, event.data);
      } catch (error) {
        await running.kill().catch(() => {}); // nobody would hear of its end
        throw error;
      }
    }
    return running.result();
  }
}

/** How long an aborted command may take to end: the server's grace between TERM and KILL, and a second. */
const endingTime = 6_000;

/** Ends an exec.run when a signal aborts, over as many connections as its request needs. */
class Canceller {
  /** Aborted if the request was not sent: nothing has to be ended. */
  readonly unsent = new AbortController();
  /** Rejected with the signal's reason if the command takes too long to end. */
  readonly late: Promise<never>;
  private request: { link: Link; id: number } | undefined;
  private readonly over = new AbortController();
  private reject!: (reason: unknown) => void;

  constructor(private readonly signal: AbortSignal) {
    this.late = new Promise((_, reject) => (this.reject = reject));
    this.late.catch(() => {});
    signal.addEventListener("abort", this.abort);
  }

  readonly sent = (link: Link, id: number): void => {
    this.request = { link, id };
    if (this.signal.aborted) this.cancel();
  };

  done(): void {
    this.signal.removeEventListener("abort", this.abort);
    this.over.abort();
  }

  private readonly abort = (): void => {
    const { reason } = this.signal;
    if (!this.request) {
      this.unsent.abort(reason);
      return;
    }
    this.cancel();
    void pause(endingTime, this.over.signal).then(() => this.reject(reason));
  };

  private cancel(): void {
    const { link, id } = this.request!;
    if (!link.loss) link.send("exec.cancel", { request_id: id });
  }
}
