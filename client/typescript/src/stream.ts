import { until } from "./abort.ts";
import type { Connection } from "./connection.ts";
import { afterSending, ClosedError, ConnectionLostError } from "./errors.ts";
import { endOf, Position, readChunk, type Chunk } from "./frame.ts";
import type { Follower, Link, Sink } from "./link.ts";
import { windowBytes } from "./window.ts";
import type * as wire from "./wire.gen.ts";

/** What a reader of a stream gets: a piece of output, a gap in it, or another event; the last one is the exit. */
export type Item =
  | { kind: "chunk"; chunk: Chunk }
  | { kind: "gap"; from: number; to: number }
  | { kind: "event"; name: string; data: Record<string, unknown> };

/** What differs between the streams of commands, processes and terminals. */
export interface Source {
  /** The last event of the stream. */
  exit: "exec.exit" | "process.exit" | "term.exit";
  /** Opens the stream with its window, or attaches at its offset, on this link; the sink gets it. Answers with its stream_id. */
  open(stream: Stream, link: Link, sink: Sink): Promise<string>;
  /** Asks for no more of it. */
  detach(link: Link): void;
  /** Input that was sent in a frame on this link was not taken. */
  refused?(link: Link, refused: wire.InputRefused): void;
}

/** Once so many items wait for a reader, small pieces of output are put together: an object for each byte would take far more than a window. */
const fewItems = 64;
const smallPiece = 4096;

/** Two pieces as one, if they are small and follow each other. */
function joined(last: Item | undefined, { offset, stream, bytes, replay, snapshot }: Chunk): Item | undefined {
  if (last?.kind !== "chunk" || snapshot || last.chunk.snapshot) return undefined;
  const before = last.chunk;
  if (before.stream !== stream || before.replay !== replay || endOf(before) !== offset || before.bytes.length + bytes.length > smallPiece) return undefined;
  const both = new Uint8Array(before.bytes.length + bytes.length);
  both.set(before.bytes);
  both.set(bytes, before.bytes.length);
  return { kind: "chunk", chunk: { ...before, bytes: both } };
}

/** How much output comes before its reader is done with it. */
export interface Flow {
  /** How many bytes may be on their way to this client or wait in it, 1 MiB by default. */
  windowBytes?: number | undefined;
  /** The reader is done with output when it takes it, or (`manual`) when `acknowledge` is called, as an emulator does that draws later. */
  acknowledge?: "auto" | "manual" | undefined;
}

/**
 * The output of one command, process or terminal, and its exit, over as many connections as necessary: every byte once and in order, or a gap.
 *
 * Output waits here for its reader. The server sends at most a window beyond what the reader has taken, so an idle reader costs no more memory.
 */
export class Stream {
  /** Everything before it was taken by the reader. */
  offset = 0;
  /** Fulfilled with the data of the exit when it comes, though output before it may wait; rejected when no exit will come. */
  readonly exited: Promise<Record<string, unknown>>;
  readonly windowBytes: number;

  private readonly position: Position; // of what has come
  private items: Item[] = [];
  private held = 0; // bytes in items
  private readonly manual: boolean;
  private acknowledged = 0;
  private ended = false; // the exit has come, or failure is set
  private failure: unknown;
  private attached: { link: Link; sink: Sink; streamId: string } | undefined; // what brings the stream now
  private opening = false;
  private accepted = false; // the server has answered a request for it
  private unread = false; // nobody reads: old output gives way
  private wake: (() => void) | undefined;
  private readonly exit = Promise.withResolvers<Record<string, unknown>>();

  constructor(
    private readonly connection: Connection,
    private readonly source: Source,
    offset = 0,
    flow: Flow = {},
  ) {
    this.position = new Position(offset);
    this.offset = offset;
    this.windowBytes = flow.windowBytes ?? windowBytes;
    this.manual = flow.acknowledge === "manual";
    this.exited = this.exit.promise;
    this.exited.catch(() => {}); // not everybody asks for it
  }

  /** Everything before it has come. */
  get received(): number {
    return this.position.next;
  }

  /** Opens the stream and returns when the server has accepted it. A link that is lost meanwhile is no failure. */
  async open(): Promise<void> {
    this.opening = true;
    try {
      await this.attach();
    } catch (error) {
      this.fail(error);
      throw error;
    } finally {
      this.opening = false;
    }
    this.resume(); // if the link was lost at once
  }

  private async attach(): Promise<void> {
    const node = this.connection.nodeWait();
    for (let asked: string | undefined; ; ) { // the epoch of the server that may have begun what the stream is of
      let link: Link;
      try {
        link = this.connection.current ?? (await this.connection.connected());
      } catch (error) {
        throw asked === undefined ? error : afterSending(error);
      }
      if (this.ended) throw this.failure ?? new ClosedError("the stream was left");
      const { epoch } = this.connection;
      if (asked !== undefined && asked !== epoch) throw new ConnectionLostError("the server was started anew before it answered", "unknown");
      const sink = this.sinkOf(link);
      try {
        const from = this.received;
        const streamId = await this.source.open(this, link, sink);
        this.accepted = true;
        if (this.failure) {
          link.leave(streamId, sink, () => this.source.detach(link)); // it was left while the answer was on its way
        } else if (!this.ended && !link.loss) {
          this.attached = { link, sink, streamId };
          this.acknowledged = from;
          if (!this.manual) this.acknowledge(this.offset);
        }
        return;
      } catch (error) {
        if (await node.passes(error)) continue;
        if (!(error instanceof ConnectionLostError)) throw error;
        if (error.outcome === "unknown" && !this.accepted) asked = epoch;
      }
    }
  }

  /** The next item; undefined after the exit. It waits for one. */
  async next(signal?: AbortSignal): Promise<Item | undefined> {
    this.unread = false;
    for (;;) {
      const item = this.items.shift();
      if (item) {
        this.take(item);
        return item;
      }
      if (this.failure) throw this.failure;
      if (this.ended) return undefined;
      await until(signal, new Promise<void>((resolve) => (this.wake = resolve)));
    }
  }

  /** Opens the stream and hands its output to a follower until it ends. */
  async deliver(to: Follower): Promise<void> {
    await this.open();
    for (let item = await this.next(); item; item = await this.next()) {
      if (item.kind === "chunk") to.chunk(item.chunk);
      else if (item.kind === "gap") to.gap(item.from, item.to);
    }
  }

  /** Nobody will read for now: output beyond half of the window is dropped, and is a gap for a later reader. */
  leaveUnread(): void {
    this.unread = true;
    this.shed();
    this.resume();
  }

  /** Leaves the stream: no more output is wanted, and a reader that waits gets the reason. What it is of goes on. */
  leave(reason: unknown = new ClosedError("the stream was left")): void {
    if (this.ended) return;
    if (this.attached) {
      const { link, sink, streamId } = this.attached;
      link.leave(streamId, sink, () => this.source.detach(link));
    }
    this.fail(reason);
  }

  private take(item: Item): void {
    if (item.kind === "chunk") {
      this.offset = Math.max(this.offset, endOf(item.chunk));
      this.held -= item.chunk.bytes.length;
    } else if (item.kind === "gap") {
      this.offset = Math.max(this.offset, item.to);
    }
    if (!this.manual || item.kind === "gap") this.acknowledge(this.offset);
    this.resume();
  }

  /** Tells the server that everything before an offset is done, a quarter of the window at a time. */
  acknowledge(offset: number): void {
    if (!this.attached || offset - this.acknowledged < this.windowBytes / 4) return;
    this.acknowledged = offset;
    this.attached.link.send("stream.ack", { stream_id: this.attached.streamId, offset });
  }

  /** Attaches again after a loss, but not before the reader has taken most of what is here. If nobody reads, old output gives way to new. */
  private resume(): void {
    if (this.ended || this.opening || this.attached || (this.held > this.windowBytes / 4 && !this.unread)) return;
    this.open().catch(() => {}); // the reader gets the failure
  }

  private sinkOf(link: Link): Sink {
    return {
      opened: ({ gap, chunks }) => {
        if (gap) this.gap((gap as wire.GapRange).from, (gap as wire.GapRange).to); // process.logs answers with what is there
        for (const chunk of (chunks as wire.Chunk[] | undefined) ?? []) this.chunk(readChunk(chunk));
      },
      chunk: (chunk) => this.chunk(chunk),
      gap: (from, to) => this.gap(from, to),
      event: (name, data) => {
        if (name === "input.refused") this.source.refused?.(link, data as unknown as wire.InputRefused);
        else this.event(name, data);
      },
      lost: () => {
        if (this.attached?.link !== link) return;
        this.attached = undefined;
        this.resume();
      },
      displaced: () => {
        if (this.attached?.link === link) this.fail(new ClosedError("another reader of this client has taken over the stream"));
      },
    };
  }

  private chunk(chunk: Chunk): void {
    const rest = this.position.take(chunk);
    if (!rest) return; // it came over the last link
    this.held += rest.bytes.length;
    const both = this.items.length < fewItems || this.ended ? undefined : joined(this.items.at(-1), rest);
    if (both) this.items[this.items.length - 1] = both;
    else this.push({ kind: "chunk", chunk: rest });
    if (this.unread) this.shed();
  }

  private gap(from: number, to: number): void {
    const rest = this.position.skip(from, to);
    if (!rest) return;
    this.push({ kind: "gap", ...rest });
    if (this.unread) this.shed();
  }

  /** Gives the reader an event at its place in the output. */
  event(name: string, data: Record<string, unknown>): void {
    this.push({ kind: "event", name, data });
    if (name !== this.source.exit) return;
    this.end();
    this.exit.resolve(data);
  }

  private push(item: Item): void {
    if (this.ended) return;
    this.items.push(item);
    this.wake?.();
  }

  /** Drops the oldest output until half of the window is free. */
  private shed(): void {
    if (this.held <= this.windowBytes / 2) return;
    const kept: Item[] = [];
    let from: number | undefined;
    let to = this.offset;
    while (this.items.length > 0 && this.held > this.windowBytes / 2) {
      const item = this.items.shift()!;
      if (item.kind === "event") {
        kept.push(item);
        continue;
      }
      from ??= item.kind === "gap" ? item.from : item.chunk.offset;
      to = item.kind === "gap" ? item.to : endOf(item.chunk);
      if (item.kind === "chunk") this.held -= item.chunk.bytes.length;
    }
    this.items.unshift(...kept, { kind: "gap", from: from ?? to, to });
    this.offset = to; // as if it had been read
    this.acknowledge(to);
    this.resume();
  }

  private fail(error: unknown): void {
    if (this.ended) return;
    this.failure = error;
    this.end();
    this.exit.reject(error);
    this.wake?.();
  }

  private end(): void {
    this.ended = true;
    this.attached = undefined;
  }
}
