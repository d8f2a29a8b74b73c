import { until } from "./abort.ts";
import type { Connection } from "./connection.ts";
import { Position, readChunk } from "./frame.ts";
import { Stream, type Item } from "./stream.ts";
import { windowBytes } from "./window.ts";

/** The most of one answer of process.logs. */
const pageBytes = 256 << 10;

/** The output of a process from an offset on. With `skip` the process does not wait for a slow reader. */
export function processOutput(connection: Connection, processId: string, since: number, onSlow: "block" | "skip"): Stream {
  const logs = { process_id: processId, follow: true, max_bytes: pageBytes, on_slow: onSlow } as const;
  return new Stream(
    connection,
    {
      exit: "process.exit",
      open: async (stream, link, sink) => (await link.call("process.logs", { ...logs, offset: stream.received, window_bytes: stream.windowBytes }, sink).answer).stream_id!,
      detach: (link) => link.send("process.detach", { process_id: processId }),
    },
    since,
  );
}

/**
 * The output of one process for all of its readers in this client: the server sends a stream once per connection. A reader that is far behind holds
 * nobody up; it asks for what it missed.
 */
export class LogHub {
  private readonly readers = new Set<LogReader>();
  private stream: Stream | undefined;
  /** Everything before it has been given to the readers. */
  following = 0;
  /** How the stream ended. */
  over: { exit: Record<string, unknown> } | { error: unknown } | undefined;
  private ending = false;
  private wake: (() => void) | undefined;

  constructor(
    readonly connection: Connection,
    readonly processId: string,
    private readonly unused: () => void,
  ) {}

  /** A reader from an offset on. */
  read(since: number): LogReader {
    const reader = new LogReader(this, since);
    this.readers.add(reader);
    if (!this.stream) {
      this.following = since;
      void this.follow((this.stream = processOutput(this.connection, this.processId, since, "block")));
    }
    return reader;
  }

  /** The process is being ended, which needs room for its last output: from now on no reader holds it up. One that is behind asks for what it missed. */
  letGo(ending = true): void {
    this.ending = ending;
    this.roomMade();
  }

  /** A reader can take more. */
  roomMade(): void {
    this.wake?.();
  }

  leave(reader: LogReader): void {
    if (!this.readers.delete(reader)) return;
    this.roomMade();
    if (this.readers.size > 0) return;
    this.stream?.leave();
    this.unused();
  }

  private async follow(stream: Stream): Promise<void> {
    try {
      await stream.open();
      for (let item = await stream.next(); item; item = await stream.next()) {
        this.following = stream.offset;
        if (item.kind === "event") this.over = { exit: item.data };
        for (const reader of this.readers) reader.offer(item);
        while (this.mustWait()) await new Promise<void>((resolve) => (this.wake = resolve));
      }
    } catch (error) {
      this.over = { error };
    }
    for (const reader of this.readers) reader.wakeUp();
  }

  /** One of the readers must keep up, the others need not. */
  private mustWait(): boolean {
    if (this.ending || this.readers.size === 0) return false;
    for (const reader of this.readers) if (reader.hasRoom) return false;
    return true;
  }
}

/** How many items may wait for a reader; more, or more than a window of bytes, and it asks for them later. */
const mostItems = 4096;

/** One reader of a process's output. */
export class LogReader {
  private items: Item[] = [];
  private held = 0;
  /** It has not been given everything, and asks for what is between its position and what the hub gives now. */
  private behind = true;
  private wake: (() => void) | undefined;
  private left = false;
  private ended = false;
  private readonly position: Position; // of what was read

  constructor(
    private readonly hub: LogHub,
    since: number,
  ) {
    this.position = new Position(since);
  }

  /** The next item, undefined after the exit. */
  async next(signal?: AbortSignal): Promise<Item | undefined> {
    for (;;) {
      if (this.left || this.ended) return undefined;
      const item = this.items.shift();
      if (item?.kind === "chunk") {
        this.held -= item.chunk.bytes.length;
        const chunk = this.position.take(item.chunk);
        this.makeRoom();
        if (!chunk) continue;
        return { kind: "chunk", chunk };
      }
      if (item?.kind === "gap") {
        const gap = this.position.skip(item.from, item.to);
        if (!gap) continue;
        return { kind: "gap", ...gap };
      }
      if (item) return item;
      if (this.behind && this.position.next < this.hub.following) {
        await until(signal, this.page());
      } else if (this.behind) {
        this.behind = false;
        this.makeRoom();
      } else if (this.hub.over) {
        if ("error" in this.hub.over) throw this.hub.over.error;
        this.ended = true;
        return { kind: "event", name: "process.exit", data: this.hub.over.exit };
      } else {
        await until(signal, new Promise<void>((resolve) => (this.wake = resolve)));
      }
    }
  }

  /** Takes what the hub has, unless too much waits already. */
  offer(item: Item): void {
    if (item.kind === "chunk" && !this.behind) {
      this.items.push(item);
      this.held += item.chunk.bytes.length;
    } else if (item.kind === "gap" && !this.behind) {
      this.items.push(item);
    }
    if (this.held > windowBytes || this.items.length > mostItems) {
      this.items = [];
      this.held = 0;
      this.behind = true;
    }
    this.wakeUp();
  }

  wakeUp(): void {
    this.wake?.();
  }

  /** It has read what it was given, or nearly. */
  get hasRoom(): boolean {
    return this.held <= windowBytes / 4 && this.items.length <= mostItems / 4 && !this.behind;
  }

  private makeRoom(): void {
    if (this.hasRoom) this.hub.roomMade();
  }

  leave(): void {
    this.left = true;
    this.wakeUp();
    this.hub.leave(this);
  }

  private async page(): Promise<void> {
    const logs = await this.hub.connection.call("process.logs", { process_id: this.hub.processId, offset: this.position.next, max_bytes: pageBytes });
    if (logs.gap) this.items.push({ kind: "gap", from: logs.gap.from, to: logs.gap.to });
    for (const chunk of logs.chunks) {
      const read = readChunk(chunk);
      this.items.push({ kind: "chunk", chunk: read });
      this.held += read.bytes.length;
    }
  }
}
