import type { Connection } from "./connection.ts";
import { newKey, wireEnv, type Env } from "./exec.ts";
import { Input } from "./input.ts";
import { Stream } from "./stream.ts";
import { windowBytes } from "./window.ts";
import type * as wire from "./wire.gen.ts";

export interface TerminalOptions {
  cols: number;
  rows: number;
  /** What to run instead of the session's interactive shell. */
  cmd?: string | undefined;
  cwd?: string | undefined;
  env?: Env | undefined;
  record?: boolean | undefined;
}

export interface AttachOptions {
  /** `control`: to type, and to say the size; `view`: to watch. */
  mode?: "control" | "view" | undefined;
  /** Of this client's window, in control. */
  cols?: number | undefined;
  rows?: number | undefined;
}

export type TermEvent =
  /** Output. With `snapshot` it draws the screen as it is, after an attach or a lost connection. To output with `replay` an emulator must not answer. */
  | { type: "data"; bytes: Uint8Array; offset: number; replay: boolean; snapshot: boolean }
  | { type: "resized"; cols: number; rows: number }
  /** Control has come to us, or has gone to another client. */
  | { type: "control"; mode: "control" | "view"; by?: wire.TermViewer }
  /** A command of the interactive shell has ended. */
  | { type: "command"; command?: string; exitCode?: number; durationMs?: number }
  | { type: "gap"; from: number; to: number }
  | { type: "exit"; exitCode?: number; signal?: string };

export type TermSnapshot = wire.TermSnapshot;

/** One client of a terminal. It comes back with the terminal's screen after a lost connection, and in control if it was and nobody took over. */
export class Terminal implements AsyncIterable<TermEvent> {
  private termId = "";
  private claim = 0;
  private now: "control" | "view";
  private size: { cols: number; rows: number } | undefined;
  private readonly stream: Stream;
  private readonly input: Input;
  private iterated = false;

  private constructor(
    private readonly connection: Connection,
    private wanted: "control" | "view",
    open: wire.TermOpen | { term_id: string },
    size: { cols: number; rows: number } | undefined,
  ) {
    this.now = wanted;
    this.size = size;
    if ("term_id" in open) this.termId = open.term_id;
    this.stream = new Stream(connection, {
      exit: "term.exit",
      open: async (_, link, sink) => {
        if (this.termId) {
          const attached = await link.call("term.attach", this.attachParams(this.claim), sink).answer;
          const { now } = this;
          this.became(attached);
          if (attached.mode !== now) sink.event("term.control", { ...attached }); // it changed while we were away
          return attached.stream_id;
        }
        const opened = await link.call("term.open", open as wire.TermOpen, sink).answer;
        this.termId = opened.term_id;
        this.claim = opened.claim;
        return opened.stream_id;
      },
      detach: (link) => link.send("term.detach", { term_id: this.termId }),
    });
    this.input = new Input(connection, (piece) => connection.call("term.input", { term_id: this.termId, ...piece }));
  }

  /** @internal */
  static async open(connection: Connection, sessionId: string, o: TerminalOptions): Promise<Terminal> {
    const params: wire.TermOpen = {
      session_id: sessionId,
      cols: o.cols,
      rows: o.rows,
      window_bytes: windowBytes,
      request_key: newKey(),
      ...(o.cmd !== undefined && { command: o.cmd }),
      ...(o.cwd !== undefined && { working_dir: o.cwd }),
      ...(o.env && { env: wireEnv(o.env)! }),
      ...(o.record && { record: true }),
    };
    const terminal = new Terminal(connection, "control", params, { cols: o.cols, rows: o.rows });
    await terminal.stream.open();
    return terminal;
  }

  /** @internal */
  static async attach(connection: Connection, id: string, o: AttachOptions): Promise<Terminal> {
    const size = o.cols && o.rows ? { cols: o.cols, rows: o.rows } : undefined;
    const terminal = new Terminal(connection, o.mode ?? "control", { term_id: id }, size);
    await terminal.stream.open();
    return terminal;
  }

  get id(): string {
    return this.termId;
  }

  /** Whether this client may type now. */
  get mode(): "control" | "view" {
    return this.now;
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
          yield { type: "data", bytes, offset, replay, snapshot };
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

  /** Types. It waits while nothing in the terminal reads. */
  write(data: string | Uint8Array): Promise<void> {
    return this.input.write(data);
  }

  async resize(cols: number, rows: number): Promise<void> {
    this.size = { cols, rows };
    await this.connection.call("term.resize", { term_id: this.termId, cols, rows });
  }

  /** Takes control from the client that has it. The screen comes again. */
  async takeOver(): Promise<void> {
    this.became(await this.connection.call("term.attach", this.attachParams(0, "control")));
    this.wanted = "control";
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

  private attachParams(claim: number, mode = this.wanted): wire.TermAttach {
    const mine = mode === "control" ? { ...this.size, ...(claim && { claim }) } : {};
    return { term_id: this.termId, mode, snapshot: true, window_bytes: windowBytes, ...mine };
  }

  private became(attached: wire.TermAttached): void {
    this.claim = attached.claim ?? 0;
    this.now = attached.mode;
  }

  private eventOf(name: string, data: Record<string, unknown>): TermEvent | undefined {
    switch (name) {
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
