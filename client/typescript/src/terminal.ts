import type { Connection } from "./connection.ts";
import { TrlError, type ConnectionLostError } from "./errors.ts";
import { newKey, wireEnv, type Env } from "./exec.ts";
import { endOf } from "./frame.ts";
import type { Link, Sink } from "./link.ts";
import { Stream, type Flow } from "./stream.ts";
import { Typing } from "./typing.ts";
import type * as wire from "./wire.gen.ts";

/** How the output comes. The echo of a Ctrl-C may come a whole window later. */
export interface TerminalReading extends Flow {
  /** After an attach or a lost connection comes the screen, or (`true`) every byte that is kept, and then the screen if bytes before it are gone. */
  history?: boolean | undefined;
}

export interface TerminalOptions extends TerminalReading {
  cols: number;
  rows: number;
  /** What to run instead of the session's interactive shell. */
  cmd?: string | undefined;
  cwd?: string | undefined;
  env?: Env | undefined;
  record?: boolean | undefined;
}

export interface AttachOptions extends TerminalReading {
  /** `control`: to type, and to say the size; `view`: to watch. */
  mode?: "control" | "view" | undefined;
  /** Of this client's window, in control. */
  cols?: number | undefined;
  rows?: number | undefined;
  /** The `claim` of an earlier Terminal, such as that of a page before its reload: in control, unless another client asked for it later. */
  claim?: number | undefined;
  /** With `history`: the first byte that is wanted, the oldest one that is kept by default. */
  since?: number | undefined;
}

export type TermEvent =
  /** The server sends the output from `offset` on: at first, after a lost connection and after takeOver. */
  | { type: "attached"; mode: "control" | "view"; cols: number; rows: number; offset: number; recordingId?: string }
  /**
   * Output. With `snapshot` it draws the screen as it is, after an attach or a lost connection. To output with `replay` an emulator must not answer. The output
   * goes on at `end`.
   */
  | { type: "data"; bytes: Uint8Array; offset: number; end: number; replay: boolean; snapshot: boolean }
  | { type: "resized"; cols: number; rows: number }
  /** Control has come to us, or has gone to another client. */
  | { type: "control"; mode: "control" | "view"; by?: wire.TermViewer }
  /** Another client has come or gone, or control has changed: who is attached now. */
  | { type: "viewers"; viewers: wire.TermViewer[] }
  /** A command of the interactive shell has ended. */
  | { type: "command"; command?: string; exitCode?: number; durationMs?: number }
  | { type: "gap"; from: number; to: number }
  /** Input was not taken that `type` had sent: the server refused it, or it may have been lost with a connection. Other such input behind it is lost, too. */
  | { type: "refused"; error: TrlError | ConnectionLostError }
  | { type: "exit"; exitCode?: number; signal?: string };

export type TermSnapshot = wire.TermSnapshot;

function firstOf(o: TerminalOptions): wire.FirstTerminal {
  return {
    cols: o.cols,
    rows: o.rows,
    ...(o.cmd !== undefined && { command: o.cmd }),
    ...(o.cwd !== undefined && { working_dir: o.cwd }),
    ...(o.env && { env: wireEnv(o.env)! }),
    ...(o.record && { record: true }),
  };
}

/**
 * One client of a terminal. After a lost connection it comes back with the terminal's screen or with the bytes that it missed, and in control if it was and
 * nobody took over.
 */
export class Terminal implements AsyncIterable<TermEvent> {
  /** Which of the `viewers` this client is. */
  viewerId = "";
  /** When this client asked for control, for another attach: undefined if it only watches. */
  claim: number | undefined;

  private termId = "";
  private now: "control" | "view";
  private wanted: "control" | "view";
  private size: { cols: number; rows: number } | undefined;
  private readonly stream: Stream;
  private readonly input: Typing;
  private iterated = false;
  /** Fulfilled when the server has opened it or attached this client. @internal */
  readonly opened: Promise<this>;

  private constructor(
    private readonly connection: Connection,
    private readonly o: AttachOptions,
    open: { term_id: string } | ((link: Link, windowBytes: number, sink: Sink) => Promise<wire.TermOpened>),
  ) {
    this.now = this.wanted = o.mode ?? "control";
    this.claim = o.claim;
    if (o.cols && o.rows) this.size = { cols: o.cols, rows: o.rows };
    if ("term_id" in open) this.termId = open.term_id;
    this.stream = new Stream(
      connection,
      {
        exit: "term.exit",
        open: async (stream, link, sink) => {
          if (this.termId) {
            const attached = await link.call("term.attach", this.attachParams(), sink).answer;
            const { now } = this;
            this.became(attached, link, sink);
            if (attached.mode !== now) sink.event("term.control", { ...attached }); // it changed while we were away
            return attached.stream_id;
          }
          const opened = await (open as Exclude<typeof open, { term_id: string }>)(link, stream.windowBytes, sink);
          this.termId = opened.term_id;
          this.became({ ...opened, mode: "control", offset: 0, ...this.size! }, link, sink);
          return opened.stream_id;
        },
        detach: (link) => link.send("term.detach", { term_id: this.termId }),
        refused: (link, refused) => this.input.refused(link, refused),
      },
      o.since,
      o,
    );
    this.input = new Typing(connection, () => this.termId, (error) => this.stream.event("refused", { error }), "term_id" in open ? undefined : 0);
    this.opened = this.stream.open().then(() => this);
    this.opened.catch(() => {}); // the reader gets the same error
  }

  /** @internal */
  static open(connection: Connection, sessionId: string, o: TerminalOptions): Terminal {
    const params = { session_id: sessionId, request_key: newKey(), ...firstOf(o) };
    return new Terminal(connection, { ...o, since: 0 }, (link, window_bytes, sink) => link.call("term.open", { ...params, window_bytes }, sink).answer);
  }

  /** Opens a terminal in a session that the same request makes or finds. @internal */
  static create(connection: Connection, session: wire.SessionCreate, o: TerminalOptions, made: (session: wire.SessionCreated) => void): Terminal {
    return new Terminal(connection, { ...o, since: 0 }, async (link, window_bytes, sink) => {
      const answer = await link.call("session.create", { ...session, terminal: { ...firstOf(o), window_bytes } }, sink).answer;
      made(answer);
      return answer.terminal!;
    });
  }

  /** @internal */
  static attach(connection: Connection, id: string, o: AttachOptions): Terminal {
    return new Terminal(connection, o, { term_id: id });
  }

  get id(): string {
    return this.termId;
  }

  /** Whether this client may type now. */
  get mode(): "control" | "view" {
    return this.now;
  }

  /** The offset after the last byte that was read. */
  get offset(): number {
    return this.stream.offset;
  }

  [Symbol.asyncIterator](): AsyncIterator<TermEvent, void> {
    if (this.iterated) throw new TypeError("a terminal's output can be read once; attachTerminal gives another reader");
    this.iterated = true;
    return this.events();
  }

  private async *events(): AsyncGenerator<TermEvent, void> {
    try {
      for (let item = await this.stream.next(); item; item = await this.stream.next()) {
        if (item.kind === "chunk") {
          const { bytes, offset, replay, snapshot } = item.chunk;
          yield { type: "data", bytes, offset, end: endOf(item.chunk), replay, snapshot };
        } else if (item.kind === "gap") {
          yield { type: "gap", from: item.from, to: item.to };
        } else {
          const event = this.eventOf(item.name, item.data);
          if (event) yield event;
        }
      }
    } finally {
      this.stream.leave();
    }
  }

  /** With `acknowledge: "manual"`: all output before an offset, such as the `end` of a `data` event, is done. */
  acknowledge(offset: number): void {
    this.stream.acknowledge(offset);
  }

  /** Types. It waits while nothing in the terminal reads. */
  write(data: string | Uint8Array): Promise<void> {
    return this.input.write(data);
  }

  /**
   * Types keys without waiting until the terminal has taken them, so each costs no answer. The event `refused` tells what was not taken. Without a connection
   * keys go in a request over the next one, and the first ones after a refusal go in a request, too; an older server gets nothing else. The promise is
   * rejected if such a request fails. Text of more than 64 KiB is written.
   */
  type(data: string | Uint8Array): Promise<void> {
    return this.input.type(data);
  }

  /** Types in one request, without waiting for a connection or for room. @internal */
  send(data: string | Uint8Array): Promise<void> {
    return this.input.send(data);
  }

  async resize(cols: number, rows: number): Promise<void> {
    this.size = { cols, rows };
    await this.connection.call("term.resize", { term_id: this.termId, cols, rows });
  }

  /** Takes control from the client that has it, for a window of this size. The screen comes again, unless `history` is on. */
  async takeOver(size = this.size): Promise<void> {
    const { wanted, claim } = this;
    this.size = size;
    this.wanted = "control"; // also after a connection that is lost meanwhile
    this.claim = undefined;
    let link: Link | undefined;
    this.input.pause();
    try {
      const attached = await this.connection.call("term.attach", () => this.attachParams(), { sent: (now) => (link = now) });
      this.input.resume(link, attached.input_offset);
      this.became(attached);
    } catch (error) {
      this.input.resume();
      this.wanted = wanted;
      this.claim = claim;
      throw error;
    }
  }

  /** The screen as lines of text, with the cursor. */
  snapshot(): Promise<TermSnapshot> {
    return this.connection.call("term.snapshot", { term_id: this.termId });
  }

  /** Ends the terminal and everything that was started in it. */
  async close(): Promise<void> {
    await this.connection.call("term.close", { term_id: this.termId });
  }

  /** Leaves the terminal, which goes on. */
  detach(): void {
    this.stream.leave();
  }

  private attachParams(): wire.TermAttach {
    const offset = this.stream.received || this.o.since; // nothing has come: from the oldest byte on
    const from = this.o.history ? { history: true, ...(offset !== undefined && { offset }) } : { snapshot: true };
    const mine = this.wanted === "control" ? { ...this.size, ...(this.claim !== undefined && { claim: this.claim }) } : {};
    return { term_id: this.termId, mode: this.wanted, window_bytes: this.stream.windowBytes, ...from, ...mine };
  }

  private became(attached: Pick<wire.TermAttached, "claim" | "mode" | "viewer_id" | "cols" | "rows" | "offset" | "recording_id" | "stream_id" | "input_offset">, link?: Link, sink?: Sink): void {
    this.claim = attached.claim;
    this.now = attached.mode;
    this.viewerId = attached.viewer_id;
    this.stream.event("attached", attached);
    if (link && sink) this.input.attached({ link, sink, streamId: attached.stream_id }, attached.input_offset);
  }

  private eventOf(name: string, data: Record<string, unknown>): TermEvent | undefined {
    switch (name) {
      case "attached": {
        const { mode, cols, rows, offset, recording_id: recordingId } = data as unknown as wire.TermAttached;
        return { type: "attached", mode, cols, rows, offset, ...(recordingId !== undefined && { recordingId }) };
      }
      case "refused":
        return { type: "refused", error: data.error as TrlError | ConnectionLostError };
      case "term.viewers":
        return { type: "viewers", viewers: (data as unknown as wire.TermViewers).attached ?? [] };
      case "term.resized": {
        const { cols, rows } = data as unknown as wire.TermResized;
        return { type: "resized", cols, rows };
      }
      case "term.control": {
        const { mode, by } = data as unknown as wire.TermControl;
        this.now = mode;
        return { type: "control", mode, ...(by && { by }) };
      }
      case "term.command": {
        const { command, exit_code: exitCode, duration_ms: durationMs } = data as unknown as wire.TermCommand;
        return { type: "command", ...(command !== undefined && { command }), ...(exitCode !== undefined && { exitCode }), ...(durationMs !== undefined && { durationMs }) };
      }
      case "term.exit": {
        const { exit_code: exitCode, signal } = data as unknown as wire.TermInfo;
        return { type: "exit", ...(exitCode !== undefined && { exitCode }), ...(signal && { signal }) };
      }
    }
    return undefined;
  }
}

/** Makes or finds a session and opens a terminal in it, in one request; an older server gets two. @internal */
export async function createWithTerminal(connection: Connection, session: wire.SessionCreate, o: TerminalOptions): Promise<{ made: wire.Session; terminal: Terminal }> {
  const keyed = { request_key: newKey(), ...session };
  let made!: wire.Session;
  try {
    const terminal = await Terminal.create(connection, keyed, o, (answer) => (made = answer)).opened;
    return { made, terminal };
  } catch (error) {
    if (!(error instanceof TrlError && error.code === "INVALID_PARAMS" && error.details.field === "terminal")) throw error;
  }
  made = await connection.call("session.create", keyed);
  return { made, terminal: await Terminal.open(connection, made.session_id, o).opened };
}
