import type * as wire from "./wire.gen.ts";

/** Keeps the beginning and the end of what is written to it, as the server does for exec.run. */
export class Collector {
  private readonly pieces: Uint8Array[] = []; // the beginning, then the end
  private head = 0; // bytes of the beginning
  private headPieces = 0;
  private tail = 0; // bytes of the end
  private dropped = 0;

  /** At most `most` bytes are kept. */
  constructor(public most: number) {}

  add(bytes: Uint8Array): void {
    const half = Math.floor(this.most / 2);
    if (this.head < half) {
      const first = bytes.slice(0, half - this.head); // a copy: the frame's buffer may be larger
      this.pieces.push(first);
      this.head += first.length;
      this.headPieces = this.pieces.length;
      bytes = bytes.subarray(first.length);
    }
    if (bytes.length === 0) return;
    this.pieces.push(bytes.slice());
    this.tail += bytes.length;
    while (this.tail > this.most - half) {
      const oldest = this.pieces[this.headPieces]!;
      const excess = Math.min(this.tail - (this.most - half), oldest.length);
      if (excess === oldest.length) this.pieces.splice(this.headPieces, 1);
      else this.pieces[this.headPieces] = oldest.subarray(excess);
      this.tail -= excess;
      this.dropped += excess;
    }
  }

  /** What is missing between beginning and end. */
  get omitted(): wire.Omitted | undefined {
    return this.dropped > 0 ? { at: this.head, bytes: this.dropped } : undefined;
  }

  bytes(): Uint8Array {
    const all = new Uint8Array(this.head + this.tail);
    let at = 0;
    for (const piece of this.pieces) {
      all.set(piece, at);
      at += piece.length;
    }
    return all;
  }
}
