import type { Connection } from "./connection.ts";
import { ProcessExitedBeforeReadyError, ProcessReadyTimeoutError } from "./errors.ts";
import { newKey, seconds, wireEnv, type Env } from "./exec.ts";
import { Input } from "./input.ts";
import { LogHub, type LogReader } from "./loghub.ts";
import { readChunk } from "./frame.ts";
import type { Item } from "./stream.ts";
import { Text } from "./text.ts";
import type * as wire from "./wire.gen.ts";

export type ProcessStatus = "running" | "completed" | "failed" | "killed";

export interface ProcessOptions {
  cwd?: string | undefined;
  env?: Env | undefined;
  /** ms; then the process is ended. */
  timeout?: number | undefined;
  /** A label for people. */
  name?: string | undefined;
  /** `open`: for write and closeStdin. */
  stdin?: "none" | "open" | undefined;
  /** Of the start only: it does not end a process that has been started. */
  signal?: AbortSignal | undefined;
  onOutput?: ((stream: "stdout" | "stderr", data: string) => void) | undefined;
  onExit?: ((code: number | null) => void) | undefined;
}

export type LogEvent =
  | { type: "stdout" | "stderr"; data: string; offset: number }
  | { type: "gap"; from: number; to: number; data?: undefined }
  | { type: "exit"; exitCode: number | null; data?: undefined };

export interface ProcessExit {
  exitCode: number;
  signal?: string;
  timedOut: boolean;
}

export interface WaitOptions {
  /** ms */
  timeout?: number | undefined;
  /** Ends the wait, not the process. */
  signal?: AbortSignal | undefined;
}

/** One wait at the server: a wait that is given up leaves nothing behind for longer. */
const slice = 30_000;
/** A wait may take so much longer than its time, so that the server's answer comes first. It matters when there is no connection. */
const grace = 1_000;
/** A line that has no end yet counts when nothing more has come for this time. */
const lineSettles = 100;

/** A background process. What its fields say is as of the last answer; `refresh` asks again. */
export class Process {
  private readonly input: Input;

  /** @internal */
  constructor(
    private readonly connection: Connection,
    private readonly hubs: Map<string, LogHub>,
    private info: wire.ProcessInfo,
    inputEnd?: number,
  ) {
    this.input = new Input((piece) => connection.call("process.input", () => ({ process_id: this.id, ...piece() })), inputEnd);
  }

  /** @internal */
  static async start(connection: Connection, hubs: Map<string, LogHub>, sessionId: string, command: string, o: ProcessOptions): Promise<Process> {
    const params: wire.ProcessStart = {
      session_id: sessionId,
      command,
      request_key: newKey(),
      ...(o.cwd !== undefined && { working_dir: o.cwd }),
      ...(o.env && { env: wireEnv(o.env)! }),
      ...(o.timeout !== undefined && { timeout_s: seconds(o.timeout)! }),
      ...(o.name !== undefined && { name: o.name }),
      ...(o.stdin && { stdin: o.stdin }),
    };
    const { process_id } = await connection.call("process.start", params, { signal: o.signal });
    const started = new Process(connection, hubs, await connection.call("process.info", { process_id }), 0);
    if (o.onOutput || o.onExit) void started.report(o);
    return started;
  }

  get id(): string {
    return this.info.process_id;
  }
  get pid(): number {
    return this.info.pid;
  }
  get command(): string {
    return this.info.command;
  }
  get startTime(): Date {
    return new Date(this.info.started_at);
  }
  get endTime(): Date | undefined {
    return this.info.ended_at === undefined ? undefined : new Date(this.info.ended_at);
  }
  get exitCode(): number | undefined {
    return this.info.exit_code;
  }
  get status(): ProcessStatus {
    if (this.info.state === "running") return "running";
    if (this.info.signal) return "killed";
    return this.info.exit_code === 0 ? "completed" : "failed";
  }

  async refresh(): Promise<this> {
    this.info = await this.connection.call("process.info", { process_id: this.id });
    return this;
  }

  async getStatus(): Promise<ProcessStatus> {
    return (await this.refresh()).status;
  }

  /** The TCP ports on which it, or what it has started, listens now. */
  async ports(): Promise<number[]> {
    return (await this.refresh()).info.ports ?? [];
  }

  /** Ends the process and everything that it has started: TERM, five seconds, KILL; and returns when it is gone. With a signal it sends only that. */
  async kill(signal?: string): Promise<void> {
    const info = await kill(this.connection, this.hubs, this.id, signal);
    if (signal === undefined) this.info = info;
  }

  /** The output that there is now. */
  async getLogs(): Promise<{ stdout: string; stderr: string; nextOffset: number; gap?: { from: number; to: number } }> {
    const text = new Text();
    const all = { stdout: "", stderr: "" };
    let offset = 0;
    let gap: wire.GapRange | undefined;
    const { output_bytes: end } = (await this.refresh()).info; // it may print faster than we ask
    for (;;) {
      const logs = await this.connection.call("process.logs", { process_id: this.id, offset });
      for (const chunk of logs.chunks) {
        const { stream, bytes } = readChunk(chunk);
        if (stream !== "tty") all[stream] += text.add(stream, bytes);
      }
      if (logs.gap) gap = { from: gap?.from ?? logs.gap.from, to: logs.gap.to };
      offset = logs.next_offset;
      if (offset >= end || logs.eof || logs.chunks.length === 0) break;
    }
    all.stdout += text.end("stdout");
    all.stderr += text.end("stderr");
    return { ...all, nextOffset: offset, ...(gap && { gap }) };
  }

  /** The output from an offset on, as it comes, and then the exit. To break out of it leaves the process running. */
  async *streamLogs(o: { since?: number; signal?: AbortSignal } = {}): AsyncGenerator<LogEvent, void> {
    o.signal?.throwIfAborted();
    const reader = this.reader(o.since ?? 0);
    const text = new Text();
    let offset = o.since ?? 0;
    const rest = function* (): Generator<LogEvent> {
      for (const type of ["stdout", "stderr"] as const) {
        const data = text.end(type);
        if (data) yield { type, data, offset };
      }
    };
    try {
      for (let item = await reader.next(o.signal); item; item = await reader.next(o.signal)) {
        if (item.kind === "chunk") {
          const type = item.chunk.stream === "stderr" ? "stderr" : "stdout";
          const data = text.add(type, item.chunk.bytes);
          offset = item.chunk.offset + item.chunk.bytes.length;
          if (data) yield { type, data, offset: item.chunk.offset };
          continue;
        }
        yield* rest();
        if (item.kind === "gap") {
          yield { type: "gap", from: item.from, to: item.to };
          continue;
        }
        this.info = item.data as unknown as wire.ProcessInfo;
        yield { type: "exit", exitCode: this.info.exit_code ?? null };
      }
    } finally {
      reader.leave();
    }
  }

  /** Waits until a port accepts connections, or answers HTTP. */
  async waitForPort(port: number, o: WaitOptions & { mode?: "tcp" | "http"; path?: string; host?: string } = {}): Promise<void> {
    const host = o.host ?? "127.0.0.1";
    const url = `http://${host.includes(":") ? `[${host}]` : host}:${port}/${(o.path ?? "/").replace(/^\//, "")}`;
    const condition: wire.Until = o.mode === "http" ? { http: url } : { port, ...(o.host !== undefined && { host: o.host }) };
    await this.wait(condition, `port ${port}`, o);
  }

  /** Waits until a line of the output contains a text or matches an expression. Lines from before count. */
  async waitForLog(
    pattern: string | RegExp,
    o: number | (WaitOptions & { stream?: "stdout" | "stderr" | "both" }) = {},
  ): Promise<{ line: string; match?: RegExpMatchArray }> {
    const { timeout, signal, stream = "both" } = typeof o === "number" ? { timeout: o } : o;
    signal?.throwIfAborted();
    const over = new AbortController();
    const timer = timeout === undefined ? undefined : setTimeout(() => over.abort(new ProcessReadyTimeoutError(this.id, `output ${pattern}`, timeout)), timeout);
    const ended = signal ? AbortSignal.any([signal, over.signal]) : over.signal;
    const reader = this.reader(0);
    try {
      const lines = new Lines(pattern);
      for (;;) {
        const item = await lines.next(ended, reader);
        if (item?.kind === "chunk" && (stream === "both" || item.chunk.stream === stream)) lines.add(item.chunk.stream, item.chunk.bytes);
        const exited = item?.kind === "event";
        const found = lines.take(exited || item === undefined);
        if (found) return found;
        if (exited) throw new ProcessExitedBeforeReadyError(this.id, `output ${pattern}`, (await this.refresh()).exitCode, lines.tail);
      }
    } finally {
      clearTimeout(timer);
      reader.leave();
    }
  }

  /** Waits until the process has ended. */
  async waitForExit(o: number | WaitOptions = {}): Promise<ProcessExit> {
    await this.wait({ exit: true }, "the end", typeof o === "number" ? { timeout: o } : o);
    await this.refresh();
    return { exitCode: this.info.exit_code ?? -1, ...(this.info.signal && { signal: this.info.signal }), timedOut: this.info.timed_out ?? false };
  }

  /** Writes to a process that was started with `stdin: "open"`. It waits while the process does not read. */
  write(data: string | Uint8Array): Promise<void> {
    return this.input.write(data);
  }

  closeStdin(): Promise<void> {
    return this.input.close();
  }

  private reader(since: number): LogReader {
    let hub = this.hubs.get(this.id);
    if (!hub) this.hubs.set(this.id, (hub = new LogHub(this.connection, this.id, () => this.hubs.delete(this.id))));
    return hub.read(since);
  }

  /** Waits for a condition at the server. */
  private async wait(condition: wire.Until, name: string, o: WaitOptions): Promise<void> {
    o.signal?.throwIfAborted();
    const { timeout = Infinity } = o;
    const end = performance.now() + timeout;
    const over = new AbortController();
    const timer = timeout < Infinity ? setTimeout(() => over.abort(new ProcessReadyTimeoutError(this.id, name, timeout)), timeout + grace) : undefined;
    const signal = o.signal ? AbortSignal.any([o.signal, over.signal]) : over.signal;
    try {
      for (;;) {
        const params = () => ({ process_id: this.id, until: condition, timeout_s: Math.max(0.001, Math.min(end - performance.now(), slice) / 1000) });
        const r = await this.connection.call("process.wait", params, { signal });
        if (r.met) return;
        if (r.exit_code !== undefined || r.signal) throw new ProcessExitedBeforeReadyError(this.id, name, r.exit_code, r.tail ?? "");
        if (performance.now() >= end) throw new ProcessReadyTimeoutError(this.id, name, timeout);
      }
    } finally {
      clearTimeout(timer);
    }
  }

  private async report(o: ProcessOptions): Promise<void> {
    try {
      for await (const event of this.streamLogs()) {
        if (event.type === "stdout" || event.type === "stderr") o.onOutput?.(event.type, event.data);
        else if (event.type === "exit") o.onExit?.(event.exitCode);
      }
    } catch {
      o.onExit?.(null); // nobody can say any more
    }
  }
}

/** Ends a process, or sends it a signal. */
export async function kill(connection: Connection, hubs: Map<string, LogHub>, process_id: string, signal: string | undefined): Promise<wire.ProcessInfo> {
  if (signal !== undefined) return connection.call("process.kill", { process_id, signal });
  const hub = hubs.get(process_id);
  hub?.letGo();
  try {
    return await connection.call("process.kill", { process_id });
  } catch (error) {
    hub?.letGo(false);
    throw error;
  }
}

/** A longer line is looked at in pieces. */
const longestLine = 1 << 20;

/** Looks for a text or an expression in the lines of an output. */
class Lines {
  private readonly text = new Text();
  private readonly open: Record<string, string> = {}; // by channel: a line that has no end yet
  private readonly whole: string[] = [];
  private changed = false; // an open line since it was looked at
  private readonly pattern: string | RegExp;

  constructor(pattern: string | RegExp) {
    this.pattern = typeof pattern === "string" ? pattern : new RegExp(pattern, pattern.flags.replace(/[gy]/g, ""));
  }

  add(channel: string, bytes: Uint8Array): void {
    const lines = ((this.open[channel] ?? "") + this.text.add(channel, bytes)).split("\n");
    this.open[channel] = lines.pop()!;
    for (const line of lines) this.whole.push(line);
    if (this.open[channel].length > longestLine) {
      this.whole.push(this.open[channel]);
      this.open[channel] = "";
    }
    this.changed = true;
  }

  /** The next item; undefined if there is an open line and nothing comes. */
  async next(signal: AbortSignal, reader: LogReader): Promise<Item | undefined> {
    if (!this.changed) return reader.next(signal);
    const quiet = new AbortController();
    const timer = setTimeout(() => quiet.abort(quiet), lineSettles);
    try {
      return await reader.next(AbortSignal.any([signal, quiet.signal]));
    } catch (error) {
      if (error === quiet) return undefined;
      throw error;
    } finally {
      clearTimeout(timer);
    }
  }

  /** The first line that fits; of the open ones only if nothing more comes. */
  take(settled: boolean): { line: string; match?: RegExpMatchArray } | undefined {
    const lines = this.whole.splice(0);
    if (settled) {
      lines.push(...Object.values(this.open));
      this.changed = false;
    }
    for (const line of lines) {
      this.tail = `${this.tail}${line}\n`.slice(-2000);
      if (typeof this.pattern === "string") {
        if (line.includes(this.pattern)) return { line };
      } else {
        const match = line.match(this.pattern);
        if (match) return { line, match };
      }
    }
    return undefined;
  }

  /** The last lines that were looked at. */
  tail = "";
}
