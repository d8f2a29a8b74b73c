import { pause } from "./abort.ts";
import { Collector } from "./collector.ts";
import type { Connection } from "./connection.ts";
import { ClosedError, CommandError, TrlError } from "./errors.ts";
import { execParams, resultOf, type ExecOptions, type ExecResult } from "./exec.ts";
import { toBytes, type Chunk } from "./frame.ts";
import { Input } from "./input.ts";
import type { Link, Sink } from "./link.ts";
import { Stream, type Item } from "./stream.ts";
import { Text } from "./text.ts";
import { windowBytes } from "./window.ts";
import type * as wire from "./wire.gen.ts";

export type ExecEvent =
  | { type: "start"; command: string; execId: string; timestamp: string }
  | { type: "stdout" | "stderr"; data: string; offset: number; timestamp: string }
  | { type: "gap"; from: number; to: number; timestamp: string }
  | { type: "complete"; exitCode: number; result: ExecResult; timestamp: string };

/** A piece of output as bytes, or a gap: bytes that are gone. */
export type OutputPiece = { stream: "stdout" | "stderr"; offset: number; bytes: Uint8Array; gap?: undefined } | { gap: { from: number; to: number } };

export interface StreamOptions extends Omit<ExecOptions, "stdin"> {
  /** `open`: for write and closeStdin. */
  stdin?: string | Uint8Array | "open" | undefined;
}

/** How long an aborted command may take to end: the server's grace between TERM and KILL, and a second. */
const endingTime = 6_000;
/** More input than this goes in pieces. */
export const largestStdin = 1 << 20;

/** Calls a function with the id of a session, for one request. */
export type Use = <T>(ask: (sessionId: string) => Promise<T>) => Promise<T>;

/**
 * A command whose output comes as it is written. Iterate over it for events, or over `bytes()`, once; or ask for its `result()`. To break out of the
 * iteration leaves the command running.
 */
export class Command implements AsyncIterable<ExecEvent> {
  /** The command's id, when the server has accepted it. */
  readonly id: Promise<string>;

  private readonly stream: Stream;
  private readonly input: Input;
  private readonly text: string;
  private execId = "";
  private request: { link: Link; id: number } | undefined; // the exec.stream in flight
  private claimed = false;
  private readonly output: { stdout: Collector; stderr: Collector };
  private gaps = false;
  private readonly outcome = Promise.withResolvers<ExecResult>();
  private cancelling: Promise<void> | undefined;
  private inputFailure: unknown; // why the command did not get all of its input

  /** @internal */
  constructor(
    private readonly connection: Connection,
    use: Use,
    command: string | readonly string[],
    private readonly o: StreamOptions = {},
  ) {
    const { stdin, ...rest } = o;
    const data = stdin === undefined || stdin === "open" ? undefined : toBytes(stdin);
    const inPieces = data !== undefined && data.length > largestStdin;
    const params: wire.ExecStream = {
      ...execParams("", command, inPieces || data === undefined ? rest : { ...rest, stdin: data }),
      interactive_stdin: inPieces || stdin === "open",
      on_slow: "block",
      window_bytes: windowBytes,
    };
    this.text = params.command;
    const most = o.maxOutputBytes ?? 1 << 20;
    this.output = { stdout: new Collector(most), stderr: new Collector(most) };
    this.outcome.promise.catch(() => {}); // not everybody asks for it
    this.stream = new Stream(connection, {
      exit: "exec.exit",
      open: async (stream, link, sink) => {
        if (this.execId) {
          return attach(link, sink, this.execId, stream.received, "block");
        }
        const { id, answer } = link.call("exec.stream", params, sink);
        this.request = { link, id };
        if (this.cancelling) this.sendCancel();
        const opened = await answer;
        this.execId = opened.exec_id ?? "";
        return opened.stream_id;
      },
      detach: (link) => link.send("exec.detach", { exec_id: this.execId }),
    });
    this.input = new Input(async (piece) => {
      const exec_id = await this.id;
      return connection.call("exec.input", () => ({ exec_id, ...piece() }));
    }, 0);
    if (o.signal?.aborted) {
      this.stream.leave(o.signal.reason);
      this.id = Promise.reject(o.signal.reason);
    } else {
      o.signal?.addEventListener("abort", this.onAbort, { once: true });
      this.stream.exited.catch(() => {}).finally(() => o.signal?.removeEventListener("abort", this.onAbort));
      this.id = use(async (sessionId) => {
        params.session_id = sessionId;
        await this.stream.open();
        return this.execId;
      });
      this.id.catch((error: unknown) => this.stream.leave(error)); // it may not have come as far as the stream
    }
    this.id.catch(() => {}); // whoever reads gets the same error
    if (inPieces) this.input.write(data, true).catch(this.onInputFailure);
  }

  /** The offset after the last byte that was read. */
  get offset(): number {
    return this.stream.offset;
  }

  /** The exit code, when the command has ended. Whoever asks for it, and does not read, lets old output go. */
  get exitCode(): Promise<number> {
    if (!this.claimed) this.stream.leaveUnread();
    return this.stream.exited.then((exit) => resultOf(this.text, exit as unknown as wire.ExecExit, { stdout: none, stderr: none, truncated: true }).exitCode);
  }

  /** Waits for the end. It reads the output, unless somebody iterates, and keeps of each stream at most `maxBytes`. */
  async result(o: { maxBytes?: number } = {}): Promise<ExecResult> {
    if (!this.claimed) {
      if (o.maxBytes !== undefined) this.output.stdout.most = this.output.stderr.most = o.maxBytes;
      this.claim();
      for await (const _ of this.items());
    }
    return this.outcome.promise;
  }

  [Symbol.asyncIterator](): AsyncIterator<ExecEvent, void> {
    this.claim();
    return this.events();
  }

  /** The output as bytes. */
  bytes(): AsyncIterable<OutputPiece> {
    this.claim();
    return this.pieces();
  }

  /**
   * Ends the command: TERM, and KILL after a grace; and returns when it has ended. What nobody reads meanwhile gives way. With a signal it sends only
   * that.
   */
  async kill(signal?: string): Promise<void> {
    const exec_id = await this.id;
    if (signal !== undefined) {
      await this.connection.call("exec.cancel", { exec_id, signal });
      return;
    }
    this.stream.leaveUnread(); // a command has ended only when its last output has found room
    await this.connection.call("exec.cancel", { exec_id });
  }

  /** Writes to a command that was started with `stdin: "open"`. It waits while the command does not read. */
  write(data: string | Uint8Array): Promise<void> {
    return this.input.write(data);
  }

  closeStdin(): Promise<void> {
    return this.input.close();
  }

  /** Stops reading. The command goes on. */
  detach(): void {
    this.stream.leave();
  }

  private claim(): void {
    if (this.claimed) throw new TypeError("a command's output can be read once");
    this.claimed = true;
  }

  private async *events(): AsyncGenerator<ExecEvent, void> {
    const text = new Text();
    try {
      yield { type: "start", command: this.text, execId: await this.id, timestamp: now() };
      for await (const item of this.items()) {
        if (item.kind === "chunk") {
          const type = channelOf(item.chunk);
          const data = text.add(type, item.chunk.bytes);
          if (data) yield { type, data, offset: item.chunk.offset, timestamp: now() };
        } else {
          for (const type of ["stdout", "stderr"] as const) {
            const data = text.end(type); // a character that was cut off
            if (data) yield { type, data, offset: this.offset, timestamp: now() };
          }
          if (item.kind === "gap") yield { type: "gap", from: item.from, to: item.to, timestamp: now() };
        }
      }
      const result = await this.outcome.promise;
      yield { type: "complete", exitCode: result.exitCode, result, timestamp: now() };
    } catch (error) {
      this.outcome.reject(error);
      throw error;
    } finally {
      this.left();
    }
  }

  private async *pieces(): AsyncGenerator<OutputPiece, void> {
    for await (const item of this.items()) {
      if (item.kind === "gap") yield { gap: { from: item.from, to: item.to } };
      else if (item.kind === "chunk") yield { stream: channelOf(item.chunk), offset: item.chunk.offset, bytes: item.chunk.bytes };
    }
  }

  /** Everything that comes, and the exit as the last; it also keeps the output for the result. */
  private async *items(): AsyncGenerator<Item, void> {
    try {
      for (let item = await this.stream.next(); item; item = await this.stream.next()) {
        if (item.kind === "chunk") this.output[channelOf(item.chunk)].add(item.chunk.bytes);
        else if (item.kind === "gap") this.gaps = true;
        else if (item.name === "exec.exit") this.finish(item.data as unknown as wire.ExecExit);
        yield item;
      }
      await this.outcome.promise; // a failed check, or an unknown outcome
    } catch (error) {
      this.outcome.reject(error);
      throw error;
    } finally {
      this.left();
    }
  }

  /** Nobody reads any more. */
  private left(): void {
    this.stream.leave();
    this.outcome.reject(new ClosedError("the command's output was left"));
  }

  private finish(exit: wire.ExecExit): void {
    if (this.cancelling) throw this.o.signal!.reason;
    if (this.inputFailure) throw this.inputFailure;
    const { stdout, stderr } = this.output;
    const omitted = stdout.omitted || stderr.omitted ? { ...(stdout.omitted && { stdout: stdout.omitted }), ...(stderr.omitted && { stderr: stderr.omitted }) } : undefined;
    const truncated = this.gaps || omitted !== undefined;
    this.outcome.resolve(checked(resultOf(this.text, exit, { stdout: stdout.bytes(), stderr: stderr.bytes(), truncated, omitted }), this.o.check));
  }

  /** Ends the command, waits for its end, but not for ever, and has the reader get the signal's reason. */
  private readonly onAbort = (): void => {
    const { reason } = this.o.signal!;
    this.stream.leaveUnread();
    this.sendCancel();
    const over = new AbortController();
    const exited = this.stream.exited.catch(() => {}).finally(() => over.abort());
    this.cancelling = Promise.race([exited, pause(endingTime, over.signal)]).then(() => this.stream.leave(reason));
  };

  /** A command may end before it has read everything. Otherwise it got a part of its input, or a part twice, and must not go on. */
  private readonly onInputFailure = async (error: unknown): Promise<void> => {
    if (error instanceof TrlError && (error.code === "STDIN_CLOSED" || error.code === "EXEC_NOT_FOUND")) return;
    this.inputFailure = error;
    await this.kill().catch(() => {}); // a connection that cannot be made again ends the stream, too
    this.stream.leave(error);
  };

  private sendCancel(): void {
    if (this.execId) {
      this.connection.call("exec.cancel", { exec_id: this.execId }).catch(() => {});
    } else if (this.request && !this.request.link.loss) {
      this.request.link.send("exec.cancel", { request_id: this.request.id });
    } else if (!this.request) {
      this.stream.leave(this.o.signal?.reason); // nothing was sent
    }
  }
}

/** Attaches to a command that was started. Answers with its stream_id. */
async function attach(link: Link, sink: Sink, execId: string, offset: number, onSlow: "block" | "skip"): Promise<string> {
  return (await link.call("exec.attach", { exec_id: execId, offset, on_slow: onSlow, window_bytes: windowBytes }, sink).answer).stream_id;
}

/** The output of a command that was started, from an offset on. With `skip` the command does not wait for a slow reader. */
export function commandOutput(connection: Connection, execId: string, since: number, onSlow: "block" | "skip"): Stream {
  return new Stream(
    connection,
    {
      exit: "exec.exit",
      open: (stream, link, sink) => attach(link, sink, execId, stream.received, onSlow),
      detach: (link) => link.send("exec.detach", { exec_id: execId }),
    },
    since,
  );
}

const channelOf = (chunk: Chunk) => (chunk.stream === "stderr" ? "stderr" : "stdout");

/** The result, or a CommandError for a failure that is to be thrown. */
export function checked(result: ExecResult, check: boolean | undefined): ExecResult {
  if (check && !result.success) throw new CommandError(result);
  return result;
}

const none = new Uint8Array();
const now = () => new Date().toISOString();
