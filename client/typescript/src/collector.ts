import type * as wire from "./wire.gen.ts";

/** Bytes that grow at the end and are cut at the beginning. */
class Buffer {
  length = 0;
  private bytes = new Uint8Array(0);

  add(more: Uint8Array): void {
    const length = this.length + more.length;
    if (length > this.bytes.length) {
      const larger = new Uint8Array(Math.max(length, 2 * this.bytes.length));
      larger.set(this.all);
      this.bytes = larger;
    }
    this.bytes.set(more, this.length);
    this.length = length;
  }

  /** Keeps the last bytes only. */
  cut(most: number): void {
    this.bytes.copyWithin(0, this.length - most, this.length);
    this.length = most;
  }

  get all(): Uint8Array {
    return this.bytes.subarray(0, this.length);
  }
}

/** Keeps the beginning and the end of what is written to it, as the server does for exec.run. */
export class Collector {
  private readonly head = new Buffer();
  private readonly tail = new Buffer();
  private dropped = 0;

  /** At most `most` bytes are kept. */
  constructor(public most: number) {}

  add(bytes: Uint8Array): void {
    const room = Math.max(0, Math.floor(this.most / 2) - this.head.length);
    if (room > 0) this.head.add(bytes.subarray(0, room));
    if (bytes.length <= room) return;
    this.tail.add(bytes.subarray(room));
    if (this.tail.length > 2 * this.tailRoom) this.cut(); // only then: to move the end for every piece would cost too much
  }

  /** What is missing between beginning and end. */
  get omitted(): wire.Omitted | undefined {
    this.cut();
    return this.dropped > 0 ? { at: this.head.length, bytes: this.dropped } : undefined;
  }

  bytes(): Uint8Array {
    this.cut();
    const all = new Uint8Array(this.head.length + this.tail.length);
    all.set(this.head.all);
    all.set(this.tail.all, this.head.length);
    return all;
  }

  private get tailRoom(): number {
    return this.most - Math.floor(this.most / 2);
  }

  private cut(): void {
    const excess = this.tail.length - this.tailRoom;
    if (excess <= 0) return;
    this.tail.cut(this.tailRoom);
    this.dropped += excess;
  }
}
