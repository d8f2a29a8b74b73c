import { ConnectionLostError, createWithTerminal, ForbiddenError, pause, Terminal as Client, TrlError, type TermEvent } from "./client";
import type { Connection } from "./connection";
import { Signal } from "./signal";
import type { Methods, TermViewer } from "./wire";

export type Mode = "control" | "view";

/** How a page attaches to a terminal: to type or to watch, and when it asked to type (protocol: claim). */
export interface Place {
  mode: Mode;
  claim?: number | undefined;
}

export interface Size {
  cols: number;
  rows: number;
}

type Event<T extends TermEvent["type"]> = Extract<TermEvent, { type: T }>;

/** xterm.js draws some 10 MB per second, so a Ctrl-C waits for a few frames only. */
const reading = { history: true, windowBytes: 256 << 10, acknowledge: "manual" } as const;
/** More than that at a time is pasted, and not typed in keys. */
const keyLength = 4096;
/** How much of a paste goes into one message; a message that is too big would end the connection. */
const pieceLength = 64 << 10;
const pastePatience = 10_000; // ms

/** Opens a terminal, if there is a connection now. */
export async function openTerminal(connection: Connection, session: string, o: Size & { record: boolean }): Promise<Client> {
  if (!connection.up) throw new ConnectionLostError("not connected", "unsent");
  return Client.open(connection.client, session, { ...o, ...reading }).opened;
}

/** Makes a session and opens a terminal in it, if there is a connection now. */
export async function createSession(connection: Connection, session: Methods["session.create"][0], o: Size & { record: boolean }): Promise<{ made: Methods["session.create"][1]; terminal: Client }> {
  if (!connection.up) throw new ConnectionLostError("not connected", "unsent");
  return createWithTerminal(connection.client, session, { ...o, ...reading });
}

// One terminal as this page uses it. The client attaches to it over each connection. Input without a connection is refused, because nobody should type
// without seeing the result.
export class Terminal {
  readonly chunk = new Signal<Event<"data">>();
  readonly gap = new Signal<{ from: number; to: number; away: boolean }>(); // away: the output came while this page was not attached
  readonly resized = new Signal<Size>(); // the terminal's size, whoever has set it
  readonly modeChanged = new Signal<Mode>();
  readonly viewersChanged = new Signal<void>();
  readonly exited = new Signal<Event<"exit">>();
  readonly lost = new Signal<string>(); // why the terminal can no longer be attached
  /** Input did not arrive, or the connection was lost before its answer. */
  readonly refused = new Signal<TrlError | ConnectionLostError>();

  mode: Mode;
  viewers: TermViewer[] = []; // the attached clients
  over = false;
  /** A recording was in progress when we attached. */
  recorded = false;
  /** The terminal was attached at some time. */
  attached = false;
  private client: Client | undefined;
  private from = 0; // the offset at which the latest attach began
  private wanted: Size | undefined;
  private actual: Size | undefined; // the terminal's size, if we know it
  private half = ""; // the first half of a surrogate pair whose second half has not been typed yet
  private telling = 0; // resizes without an answer yet
  private pasting: Promise<void> | undefined;
  private begun = false; // the tab has been shown: a restored tab is not attached before that
  private reading = false;
  private readonly unlisten: () => void;

  constructor(
    private readonly connection: Connection,
    readonly id: string,
    readonly place: Place, // for coming back
  ) {
    this.mode = place.mode;
    this.unlisten = connection.status.on(({ kind }) => kind === "up" && void this.read());
  }

  /** Attaches for the first time when the terminal becomes visible, or uses the terminal that this page has just opened. */
  begin(opened?: Client): void {
    if (this.begun) return;
    this.begun = true;
    void this.read(opened);
  }

  /** The client that types, if it is another one. */
  get controller(): TermViewer | undefined {
    return this.viewers.find((viewer) => viewer.mode === "control" && !this.isUs(viewer));
  }

  isUs(viewer: TermViewer): boolean {
    return viewer.viewer_id === this.client?.viewerId;
  }

  /** Takes control, with a window of this size. */
  async takeOver(size: Size | undefined): Promise<void> {
    if (this.over) return;
    this.wanted = size;
    Object.assign(this.place, { mode: "control", claim: undefined });
    try {
      await this.client?.takeOver(size);
    } catch (error) {
      if (error instanceof ForbiddenError) this.place.mode = "view";
    }
    if (this.client) this.become(this.client.mode);
  }

  /** Everything before offset is drawn. */
  drawn(offset: number): void {
    this.client?.acknowledge(offset);
  }

  /** Types. Bytes are what is no text, as some mouse reports are. */
  input(data: string | Uint8Array): void {
    const { client } = this;
    if (this.mode === "view" || this.over) return;
    if (!client || !this.connection.up) return this.refused.emit(new ConnectionLostError("not connected", "unsent"));
    if (typeof data === "string") {
      if (/^[\udc00-\udfff]/.test(data)) data = this.half + data;
      this.half = /[\ud800-\udbff]$/.exec(data)?.[0] ?? "";
      data = data.slice(0, data.length - this.half.length);
      if (!data) return;
    }
    if (!this.pasting && data.length <= keyLength) {
      client.type(data).catch((error: Error) => this.refused.emit(error as TrlError | ConnectionLostError));
      return;
    }
    const pasting = this.paste(client, data, this.pasting).then(() => {
      if (this.pasting === pasting) this.pasting = undefined;
    });
    this.pasting = pasting;
  }

  /** Sends text in pieces, one after the other, until one is refused. Input that is typed meanwhile comes after it. */
  private async paste(client: Client, data: string | Uint8Array, before: Promise<void> | undefined): Promise<void> {
    await before;
    try {
      for (const piece of typeof data === "string" ? pieces(data) : [data]) await sendPiece(client, piece);
    } catch (error) {
      this.refused.emit(error as TrlError | ConnectionLostError);
    }
  }

  /** Sets the size of our window, which is also the terminal's while we are in control. */
  resize(size: Size): void {
    this.wanted = size;
    this.tellSize();
  }

  /** Detaches. The terminal goes on. */
  detach(): void {
    this.unlisten();
    this.over = true;
    this.client?.detach();
  }

  /** Shows what comes, over all connections, until the terminal's end. */
  private async read(opened?: Client): Promise<void> {
    if (!this.begun || this.reading || this.over || (!this.connection.up && !opened)) return;
    this.reading = true;
    const client = (this.client = opened ?? this.attach());
    try {
      for await (const event of client) this.show(event, client);
    } catch (error) {
      this.reading = false;
      this.failed(error as Error);
    }
  }

  private attach(): Client {
    return Client.attach(this.connection.client, this.id, { ...this.place, ...this.wanted, since: this.client?.offset || undefined, ...reading });
  }

  private failed(error: Error): void {
    if (this.over || this.connection.now.kind === "over") return; // read() begins again when a retry succeeds
    if (error instanceof ConnectionLostError) {
      void this.read();
    } else if (error instanceof ForbiddenError && this.place.mode === "control") {
      this.place.mode = "view";
      this.become("view");
      void this.read();
    } else {
      this.over = true;
      this.lost.emit(lostWords(error, this.connection.node !== ""));
    }
  }

  private show(event: TermEvent, { claim }: Client): void {
    switch (event.type) {
      case "attached":
        this.attached = true;
        this.from = event.offset;
        this.recorded = event.recordingId !== undefined;
        this.place.claim = claim;
        this.actual = event;
        this.become(event.mode);
        if (this.mode === "control" && this.wanted) this.tellSize();
        else this.resized.emit(event);
        return;
      case "data":
        return this.chunk.emit(event);
      case "gap":
        return this.gap.emit({ ...event, away: event.from === this.from });
      case "resized":
        this.actual = event;
        if (this.telling === 0) this.resized.emit(event); // else our own resize, which follows, decides
        return;
      case "viewers":
        this.viewers = event.viewers;
        return this.viewersChanged.emit();
      case "control":
        this.actual = undefined; // the server applies our last size now
        return this.become(event.mode);
      case "refused":
        return this.refused.emit(event.error);
      case "exit":
        this.over = true;
        this.exited.emit(event);
    }
  }

  private become(mode: Mode): void {
    if (this.mode === mode) return;
    this.mode = mode;
    this.modeChanged.emit(mode);
  }

  private tellSize(): void {
    const size = this.wanted;
    if (!size || !this.client || this.mode !== "control" || this.over || !this.connection.up) return;
    if (same(size, this.actual)) return;
    this.actual = size;
    this.telling++;
    this.client
      .resize(size.cols, size.rows)
      .catch(() => (this.actual = undefined))
      .finally(() => this.telling--);
  }
}

/** Cuts text after newlines if there are any: the gateway refuses a piece with a whole line that is too long for the terminal. */
function* pieces(text: string): Generator<string> {
  while (text.length > pieceLength) {
    let end = Math.max(text.lastIndexOf("\r", pieceLength - 1), text.lastIndexOf("\n", pieceLength - 1)) + 1 || pieceLength;
    if (/[\ud800-\udbff]/.test(text[end - 1]!)) end--;
    yield text.slice(0, end);
    text = text.slice(end);
  }
  yield text;
}

/** Sends a piece of a paste. If the program has not read earlier input yet, it waits. */
async function sendPiece(client: Client, piece: string | Uint8Array): Promise<void> {
  for (const end = Date.now() + pastePatience; ; await pause(50)) {
    try {
      return await client.send(piece);
    } catch (error) {
      if (!(error instanceof TrlError && error.details.limit === "stdin" && Date.now() < end)) throw error;
    }
  }
}

function same(a: Size, b: Size | undefined): boolean {
  return a.cols === b?.cols && a.rows === b.rows;
}

function lostWords(error: Error, clustered: boolean): string {
  switch (error instanceof TrlError && error.code) {
    case "SESSION_LOST":
      return clustered ? "its node has ended or was restarted, and the sessions there are gone" : "the gateway was restarted and its sessions are gone";
    case "TERM_NOT_FOUND":
    case "SESSION_NOT_FOUND":
    case "STREAM_NOT_FOUND":
      return "the terminal has ended and is no longer kept";
    default:
      return error.message;
  }
}
