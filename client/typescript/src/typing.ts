import type { Connection } from "./connection.ts";
import { ConnectionLostError, refusal, TrlError } from "./errors.ts";
import { concat, encodeBytes, toBytes } from "./frame.ts";
import { Input, pieceBytes, type Piece } from "./input.ts";
import type { Link, Sink } from "./link.ts";
import type * as wire from "./wire.gen.ts";

/** How much input that was sent in frames is kept, to be sent again if it is refused. */
const keptBytes = 64 << 10;

/** Where input goes in frames. */
interface Attached {
  link: Link;
  sink: Sink;
  streamId: string;
}

/** Keys that wait until frames can be sent: as one, when it is their turn. */
interface Waiting {
  /** They are for this one alone, so that none is typed behind others that were lost. Without a connection: for the next one. */
  link: Link | undefined;
  pieces: Uint8Array[];
  size: number;
  typed: Promise<void>;
}

/**
 * The input of one terminal: what is written, in requests, and what is typed, in frames without an answer.
 *
 * Frames are sent while the server has told where they begin and no request of ours is in flight. After one that is refused come no more, and the server
 * refuses those that were on their way, until a request is answered. It says where frames go on.
 */
export class Typing {
  private readonly input: Input;
  private at: Attached | undefined;
  private next: number | undefined; // the offset of the next frame; undefined: none can be sent
  private kept: { offset: number; bytes: Uint8Array }[] = []; // the latest frames that the server may not have taken
  private keptSize = 0;
  private heard = 0; // how much input the server has said that it has
  private paused = 0; // attaches on their way, other than that of a new link
  private refusing = false; // the server refuses frames, and one of its refusals has come
  private again: { link: Link; bytes: Uint8Array } | undefined; // the input of refused frames
  private waiting: Waiting | undefined;

  constructor(
    private readonly connection: Connection,
    private readonly termId: () => string,
    /** Tells that input which was sent in frames was not taken. */
    private readonly tell: (error: TrlError | ConnectionLostError) => void,
    inputEnd: number | undefined,
  ) {
    this.input = new Input((piece) => this.request(piece), inputEnd);
  }

  /** Writes in requests, after everything that was typed. */
  write(data: string | Uint8Array): Promise<void> {
    this.waiting = undefined; // keys that are typed now come after it
    return this.input.write(data);
  }

  /** Sends text in one request on the connection of now, after everything that was typed. It does not wait for room. */
  send(data: string | Uint8Array): Promise<void> {
    const bytes = toBytes(data);
    const link = this.connection.current;
    if (!link) return Promise.reject(new ConnectionLostError("not connected", "unsent"));
    this.waiting = undefined;
    return this.input.queue(async () => {
      await this.settle();
      await this.ask(link, bytes);
    });
  }

  /** Sends keys, in a frame if possible. */
  type(data: string | Uint8Array): Promise<void> {
    const bytes = typeof data === "string" ? toBytes(data) : data.slice(); // it is kept
    if (bytes.length > pieceBytes) return this.write(bytes);
    if (this.input.idle && this.sendFrame(bytes)) return Promise.resolve();
    const link = this.connection.current;
    let { waiting } = this;
    if (waiting && waiting.link === link && waiting.size + bytes.length <= pieceBytes) {
      waiting.pieces.push(bytes);
      waiting.size += bytes.length;
    } else {
      const pieces = [bytes];
      const typed = this.input.queue(() => {
        if (this.waiting === waiting) this.waiting = undefined;
        return this.typeNow(link, pieces);
      });
      this.waiting = waiting = { link, pieces, size: bytes.length, typed };
    }
    return waiting.typed;
  }

  /** Frames can be sent on this link, from offset on if the server takes any. */
  attached(at: Attached, offset: number | undefined): void {
    this.at = at;
    if (offset !== undefined) this.arrived(offset);
    this.forget();
    if (offset !== undefined) this.input.end = offset = Math.max(offset, this.heard); // the answer to a request may have come before
    this.next = offset;
    this.refusing = false;
  }

  /** Tells whether the frames of a lost link did not all arrive before anything else of ours: the server had so much input. */
  private arrived(end: number): void {
    const last = this.kept.at(-1);
    if (last && end < last.offset + last.bytes.length) this.tell(new ConnectionLostError("the connection was lost before all input had arrived", "unknown"));
  }

  /** The terminal is being attached anew on its link: its stream gets another number, so no frame can be sent until resume. */
  pause(): void {
    this.paused++;
    this.next = undefined;
  }

  /** Goes on after pause. The link and the offset are those of the new attach, if the server has answered it. */
  resume(link?: Link, offset?: number): void {
    this.paused--;
    if (this.at?.link === link && offset !== undefined && !this.refusing) this.next = Math.max(this.next ?? 0, offset);
  }

  /** A frame was refused, and so are those behind it. */
  refused(link: Link, { offset, error }: wire.InputRefused): void {
    if (this.at?.link !== link || this.refusing) return;
    this.refusing = true;
    this.next = this.input.end = undefined;
    const first = this.kept.findIndex((piece) => piece.offset === offset);
    const lost = first < 0 ? [] : this.kept.slice(first);
    this.forget();
    if (error.code !== "OFFSET_MISMATCH" || lost.length === 0) {
      this.tell(refusal(error, "term.input"));
      return;
    }
    this.again = { link, bytes: concat(lost.map(({ bytes }) => bytes)) }; // somebody else has typed meanwhile
    void this.input.queue(() => this.sendAgain());
  }

  private sendFrame(bytes: Uint8Array): boolean {
    const { at, next } = this;
    if (!at || next === undefined || this.paused > 0 || !at.link.sendInput(at.streamId, at.sink, next, bytes)) return false;
    this.next = this.input.end = next + bytes.length;
    this.kept.push({ offset: next, bytes });
    this.keptSize += bytes.length;
    while (this.keptSize > keptBytes) this.keptSize -= this.kept.shift()!.bytes.length;
    return true;
  }

  private forget(): void {
    this.kept = [];
    this.keptSize = 0;
  }

  private async typeNow(link: Link | undefined, pieces: Uint8Array[]): Promise<void> {
    await this.sendAgain();
    link ??= await this.connection.connected();
    const bytes = concat(pieces);
    if (this.at?.link === link && this.sendFrame(bytes)) return;
    if (!link.loss) await this.settle(); // frames before may be refused yet, or were lost with another link
    await this.ask(link, bytes);
  }

  /** Sends input in a request on this link. */
  private async ask(link: Link, bytes: Uint8Array): Promise<void> {
    this.next = this.input.end = undefined;
    const node = this.connection.nodeWait();
    for (;;) {
      try {
        const taken = await link.call("term.input", { term_id: this.termId(), ...encodeBytes(bytes) }).answer;
        this.taken(link, taken);
        return;
      } catch (error) {
        if (!(await node.passes(error))) throw error;
      }
    }
  }

  /** Sends a piece of what is written. */
  private async request(piece: () => Piece): Promise<wire.InputTaken> {
    await this.settle();
    this.next = undefined;
    let link: Link | undefined;
    const taken = await this.connection.call("term.input", () => ({ term_id: this.termId(), ...piece() }), { sent: (now) => (link = now) });
    this.taken(link, taken);
    return taken;
  }

  /**
   * Returns when all frames were taken, or sent again. The answer to an empty request comes after all refusals. If the link was lost, the answer to one over
   * the next link says what has arrived; the terminal may be attached there later.
   */
  private async settle(): Promise<void> {
    while (this.at && this.kept.length > 0) {
      const last = this.kept.at(-1);
      const lost = this.at.link.loss !== undefined;
      const link = lost ? await this.connection.connected() : this.at.link;
      try {
        await this.ask(link, new Uint8Array());
      } catch {
        if (link.loss) continue;
        if (lost) break; // the next request meets the same error, if it lasts
      }
      if (lost && this.kept.at(-1) === last && this.input.end !== undefined) this.arrived(this.input.end);
      this.forget();
    }
    await this.sendAgain();
  }

  private async sendAgain(): Promise<void> {
    const { again } = this;
    if (!again) return;
    this.again = undefined;
    try {
      await this.ask(again.link, again.bytes);
    } catch (error) {
      this.tell(error as TrlError | ConnectionLostError);
    }
  }

  /** A request with input was answered. An older server does not say where frames begin. */
  private taken(link: Link | undefined, { input_offset: offset }: Partial<wire.InputTaken>): void {
    this.input.end = offset;
    this.heard = Math.max(this.heard, offset ?? 0);
    if (this.at?.link !== link) return;
    this.refusing = false;
    this.next = offset;
  }
}
