import { ConnectionLostError, Position, TrlError, type Chunk } from "./client";
import type { Connection } from "./connection";
import { Signal } from "./signal";
import type { TermOpened, TermViewer } from "./wire";

export type Mode = "control" | "view";

/** How a page attaches to a terminal: to type or to watch, and when it asked to type (protocol: claim). */
export interface Place {
  mode: Mode;
  claim?: number;
}

export interface Size {
  cols: number;
  rows: number;
}

/**
 * How many bytes may be on their way to us before we acknowledge that they are drawn. xterm.js draws some 10 MB per second, so
 * a Ctrl-C waits for a few frames only.
 */
export const windowBytes = 256 << 10;
const ackEvery = windowBytes / 4;
/** How much of a paste goes into one message; a message that is too big would end the connection. */
const pieceLength = 64 << 10;
const pastePatience = 10_000; // ms

// The gateway's end of one terminal, as this page knows it. It is attached at an offset while the connection is up. After a disconnect it
// continues with the next byte, in control or not as before, unless another client took over meanwhile. Input without a connection is refused, because nobody should type blindly.
export class Terminal {
  readonly chunk = new Signal<Chunk>();
  readonly gap = new Signal<{ from: number; to: number; away: boolean }>(); // away: output from a time when this page was not attached
  readonly resized = new Signal<Size>(); // the terminal's size, whoever has set it
  readonly modeChanged = new Signal<Mode>();
  readonly viewersChanged = new Signal<void>();
  readonly exited = new Signal<{ exit_code?: number; signal?: string }>();
  readonly lost = new Signal<string>(); // attaching is no longer possible, and why
  /** Input did not arrive; or nobody knows, because the connection was lost behind it. */
  readonly refused = new Signal<TrlError | ConnectionLostError>();

  mode: Mode;
  claim = 0; // when it asked for control; 0: not, or it does not know yet
  viewers: TermViewer[] = []; // who is there
  over = false;
  /** It was being recorded when we attached. */
  recorded = false;
  private position: Position | undefined; // of what has been given out; undefined before the first attach
  private viewerId = "";
  private wants: Mode;
  private streamId: string | undefined;
  private from = 0; // where this attachment began
  private acked = 0;
  private wanted: Size | undefined;
  private actual: Size | undefined;
  private half = ""; // of a character beyond the first 65,536, whose other half has not been typed yet
  private told: Size | undefined; // what the gateway has from us on this connection
  private telling = 0; // resizes without an answer yet
  private pasting: Promise<void> | undefined;
  private begun = false; // a restored tab that has not been shown yet is not attached
  private attaching = false;
  private unfollow: (() => void) | undefined;
  private readonly ends: (() => void)[];

  constructor(
    private readonly connection: Connection,
    readonly id: string,
    { mode, claim }: Place,
  ) {
    this.mode = this.wants = mode;
    this.claim = claim ?? 0;
    const mine = <D extends { term_id: string }>(then: (data: D) => void) => (data: D) => data.term_id === id && then(data);
    this.ends = [
      connection.status.on((status) => {
        if (status.kind === "up" && this.begun) void this.attach();
        else this.told = undefined;
      }),
      connection.on("term.exit", mine((exit) => {
        if (this.over) return;
        this.over = true;
        this.exited.emit(exit);
      })),
      connection.on("term.resized", mine((size) => {
        this.actual = size;
        if (this.telling === 0) this.resized.emit(size); // else it may be one that our own resize follows
      })),
      connection.on("term.viewers", mine(({ attached }) => {
        this.viewers = attached ?? [];
        this.viewersChanged.emit();
      })),
      connection.on("term.control", mine(({ mode }) => {
        this.told = undefined;
        this.become(mode);
      })),
    ];
  }

  /** Uses a terminal that this page has just opened and that is therefore attached. */
  adopt(opened: TermOpened, size: Size): void {
    this.begun = true;
    this.recorded = !!opened.recording_id;
    this.position = new Position();
    this.told = this.actual = size;
    this.claim = opened.claim;
    this.viewerId = opened.viewer_id;
    this.listen(opened.stream_id);
  }

  /** Attaches for the first time, when the terminal becomes visible. */
  begin(): void {
    if (this.begun) return;
    this.begun = true;
    void this.attach();
  }

  /** It has been attached at some time. */
  get attached(): boolean {
    return this.position !== undefined;
  }

  /** The client that types, if it is another one. */
  get controller(): TermViewer | undefined {
    return this.viewers.find((viewer) => viewer.mode === "control" && !this.isUs(viewer));
  }

  isUs(viewer: TermViewer): boolean {
    return viewer.viewer_id === this.viewerId;
  }

  /** The mode and claim for coming back. */
  get place(): Place {
    return { mode: this.wants, ...(this.claim && { claim: this.claim }) };
  }

  /** Takes control, with a window of this size. */
  takeOver(size: Size | undefined): Promise<void> {
    this.wanted = size;
    this.wants = "control";
    this.claim = 0;
    return this.attach();
  }

  /** Requests the stream from the current offset, in the previous mode. */
  async attach(): Promise<void> {
    if (!this.connection.up || this.over || this.attaching) return;
    this.attaching = true;
    try {
      const control = this.wants === "control";
      const opened = await this.connection.call("term.attach", {
        term_id: this.id, mode: this.wants, history: true, window_bytes: windowBytes,
        ...(this.position && { offset: this.position.next }), ...(control && this.claim && { claim: this.claim }), ...(control && this.wanted),
      });
      this.recorded = !!opened.recording_id;
      this.listen(opened.stream_id);
      this.from = this.acked = opened.offset;
      this.position ??= new Position(opened.offset);
      this.claim = opened.claim ?? 0;
      this.viewerId = opened.viewer_id;
      this.told = undefined;
      this.actual = { cols: opened.cols, rows: opened.rows };
      this.become(opened.mode);
      if (this.mode === "control" && this.wanted) this.tellSize();
      else this.resized.emit(this.actual);
    } catch (error) {
      if (!(error instanceof TrlError)) return; // up comes again
      if (error.code === "FORBIDDEN" && this.wants === "control") {
        this.wants = "view";
        this.become("view");
        this.attaching = false;
        return this.attach();
      }
      this.over = true;
      this.lost.emit(lostWords(error));
    } finally {
      this.attaching = false;
    }
  }

  /** Everything before offset is drawn. */
  drawn(offset: number): void {
    if (offset - this.acked >= ackEvery) this.ack(offset);
  }

  input(data: string, encoding?: "base64"): void {
    if (this.mode === "view" || this.over) return;
    if (!encoding) {
      if (/^[\udc00-\udfff]/.test(data)) data = this.half + data;
      this.half = /[\ud800-\udbff]$/.exec(data)?.[0] ?? "";
      data = data.slice(0, data.length - this.half.length);
      if (!data) return;
    }
    if (!this.pasting && data.length <= pieceLength) {
      void this.typed(data, encoding);
      return;
    }
    const pasting = this.paste(data, encoding, this.pasting).then(() => {
      if (this.pasting === pasting) this.pasting = undefined;
    });
    this.pasting = pasting;
  }

  /** Sends text in pieces, one after the other, until one is refused. Input that is typed meanwhile comes after it. */
  private async paste(data: string, encoding: "base64" | undefined, before: Promise<void> | undefined): Promise<void> {
    await before;
    for (const piece of pieces(data)) if (!(await this.typed(piece, encoding, pastePatience))) return;
  }

  /** Sends one message. If the program has not read earlier input yet, it waits for up to this many ms. */
  private async typed(data: string, encoding?: "base64", patience = 0): Promise<boolean> {
    for (let end = Date.now() + patience; ; await pause(50)) {
      try {
        await this.connection.call("term.input", { term_id: this.id, data, ...(encoding && { encoding }) });
        return true;
      } catch (error) {
        if (error instanceof TrlError && error.details.limit === "stdin" && Date.now() < end) continue;
        this.refused.emit(error as TrlError | ConnectionLostError);
        return false;
      }
    }
  }

  /** Sets the size of our window, which is also the terminal's while we are in control. */
  resize(size: Size): void {
    this.wanted = size;
    this.tellSize();
  }

  /** Stops listening; the terminal lives on. */
  detach(): void {
    for (const end of this.ends) end();
    this.unfollow?.();
    if (this.connection.up && !this.over) this.connection.call("term.detach", { term_id: this.id }).catch(() => {}); // if it fails, the connection is gone, and so is the attachment
  }

  private become(mode: Mode): void {
    if (this.mode === mode) return;
    this.mode = mode;
    this.modeChanged.emit(mode);
  }

  private tellSize(): void {
    const size = this.wanted;
    if (!size || this.mode !== "control" || this.over || !this.connection.up) return;
    if (same(size, this.told) && same(size, this.actual)) return;
    this.told = this.actual = size;
    this.telling++;
    this.connection
      .call("term.resize", { term_id: this.id, ...size })
      .catch(() => (this.told = undefined))
      .finally(() => this.telling--);
  }

  private ack(offset: number): void {
    this.acked = offset;
    if (this.connection.up && this.streamId) this.connection.call("stream.ack", { stream_id: this.streamId, offset }).catch(() => {}); // the next attach says it
  }

  private listen(streamId: string): void {
    if (this.streamId === streamId) return;
    this.unfollow?.();
    this.streamId = streamId;
    this.unfollow = this.connection.follow(streamId, {
      chunk: (chunk) => {
        const fresh = this.position?.take(chunk);
        if (fresh) this.chunk.emit(fresh);
      },
      gap: (from, to) => {
        if (this.position?.skip(from, to)) this.gap.emit({ from, to, away: from === this.from });
        this.ack(to); // what is not there need not be drawn
      },
    });
  }
}

function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

/** Cuts text after newlines if there are any: the gateway refuses a line that is too long for the terminal if it sees all of it. */
function* pieces(text: string): Generator<string> {
  while (text.length > pieceLength) {
    let end = Math.max(text.lastIndexOf("\r", pieceLength - 1), text.lastIndexOf("\n", pieceLength - 1)) + 1 || pieceLength;
    if (/[\ud800-\udbff]/.test(text[end - 1]!)) end--;
    yield text.slice(0, end);
    text = text.slice(end);
  }
  yield text;
}

function same(a: Size, b: Size | undefined): boolean {
  return a.cols === b?.cols && a.rows === b.rows;
}

function lostWords(error: TrlError): string {
  switch (error.code) {
    case "SESSION_LOST":
      return "the gateway was restarted and its sessions are gone";
    case "TERM_NOT_FOUND":
    case "SESSION_NOT_FOUND":
    case "STREAM_NOT_FOUND":
      return "the terminal has ended and is no longer kept";
    default:
      return error.message;
  }
}
