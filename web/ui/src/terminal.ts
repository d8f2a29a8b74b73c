import type { Connection } from "./connection";
import { beyond, type Chunk } from "./frame";
import { Signal } from "./signal";
import { Refusal } from "./wire";

export type Mode = "control" | "view";

export interface Size {
  cols: number;
  rows: number;
}

// The gateway's end of one terminal, as this page knows it: attached where the connection is up, at an offset, so that after a loss it
// goes on with the next byte. What is typed while there is no connection is refused: typing blind helps nobody.
export class Terminal {
  readonly chunk = new Signal<Chunk>();
  readonly gap = new Signal<{ from: number; to: number }>();
  readonly resized = new Signal<Size>(); // by another client, which has control
  readonly modeChanged = new Signal<Mode>();
  readonly exited = new Signal<{ exit_code?: number; signal?: string }>();
  readonly lost = new Signal<string>(); // it cannot be attached to any more, and why
  readonly refused = new Signal<string>(); // input did not arrive

  mode: Mode;
  over = false;
  /** Everything before it has been given out. */
  next: number | undefined;
  private streamId: string | undefined;
  private wanted: Size | undefined;
  private sent = ""; // the size that the gateway has from us on this connection
  private unfollow: (() => void) | undefined;
  private readonly ends: (() => void)[];
  private attaching = false;

  constructor(
    private readonly connection: Connection,
    readonly id: string,
    mode: Mode,
  ) {
    this.mode = mode;
    const mine = <D extends { term_id: string }>(then: (data: D) => void) => (data: D) => data.term_id === id && then(data);
    this.ends = [
      connection.status.on((status) => {
        if (status.kind === "up") void this.attach();
        else this.sent = "";
      }),
      connection.on("term.exit", mine((exit) => {
        this.over = true;
        this.exited.emit(exit);
      })),
      connection.on("term.resized", mine((size) => this.resized.emit(size))),
    ];
  }

  /** Asks for the stream from where we are, in the mode we want. */
  async attach(mode = this.mode): Promise<void> {
    if (!this.connection.up || this.over || this.attaching) return;
    this.attaching = true;
    try {
      const opened = await this.connection.call("term.attach", { term_id: this.id, mode, ...(this.next === undefined ? {} : { offset: this.next }) });
      this.listen(opened.stream_id);
      if (this.mode !== mode) {
        this.mode = mode;
        this.modeChanged.emit(mode);
      }
      this.sent = "";
      if (mode === "control") this.tellSize();
      else if (opened.cols && opened.rows) this.resized.emit({ cols: opened.cols, rows: opened.rows });
    } catch (error) {
      if (!(error instanceof Refusal) || error.code === "OFFLINE") return; // up comes again
      if (error.code === "FORBIDDEN" && mode === "control") {
        this.attaching = false;
        this.mode = "view";
        this.modeChanged.emit("view");
        return this.attach("view");
      }
      this.over = true;
      this.lost.emit(lostWords(error));
    } finally {
      this.attaching = false;
    }
  }

  /** Somebody else has taken control. */
  yield(): void {
    if (this.mode === "view") return;
    this.mode = "view";
    this.modeChanged.emit("view");
  }

  input(data: string, encoding?: "base64"): void {
    if (this.mode === "view" || this.over) return;
    this.connection.call("term.input", { term_id: this.id, data, ...(encoding && { encoding }) }).catch((error: Refusal) => this.refused.emit(error.message));
  }

  resize(size: Size): void {
    this.wanted = size;
    this.tellSize();
  }

  /** Stops listening; the terminal lives on. */
  detach(): void {
    for (const end of this.ends) end();
    this.unfollow?.();
    if (this.connection.up && !this.over) this.connection.call("term.detach", { term_id: this.id }).catch(() => {}); // if it fails the connection is gone, and so are we
  }

  private tellSize(): void {
    const size = this.wanted;
    if (!size || this.mode !== "control" || this.over || !this.connection.up) return;
    const words = `${size.cols}×${size.rows}`;
    if (words === this.sent) return;
    this.sent = words;
    this.connection.call("term.resize", { term_id: this.id, ...size }).catch(() => (this.sent = ""));
  }

  private listen(streamId: string): void {
    if (this.streamId === streamId) return;
    this.unfollow?.();
    this.streamId = streamId;
    this.unfollow = this.connection.follow(streamId, {
      chunk: (chunk) => {
        const fresh = beyond(chunk, this.next ?? 0);
        if (!fresh) return;
        this.next = fresh.offset + fresh.bytes.length;
        this.chunk.emit(fresh);
      },
      gap: (from, to) => {
        if (to <= (this.next ?? 0)) return;
        // On the first attach there is nothing to miss yet: what is older than the kept part was never on this screen.
        if (this.next !== undefined) this.gap.emit({ from, to });
        this.next = to;
      },
    });
  }
}

function lostWords(error: Refusal): string {
  switch (error.code) {
    case "SESSION_LOST":
      return "the gateway was started anew and its sessions are gone";
    case "TERM_NOT_FOUND":
    case "SESSION_NOT_FOUND":
    case "STREAM_NOT_FOUND":
      return "the terminal has ended and is no longer kept";
    default:
      return error.message;
  }
}
