import type { Follower } from "./link.ts";
import type * as wire from "./wire.gen.ts";

/** A piece of a stream, from a binary frame or from JSON. */
export interface Chunk {
  /** Bytes of the stream before this piece, stdout and stderr counted together. */
  offset: number;
  stream: "stdout" | "stderr" | "tty";
  bytes: Uint8Array;
  /** It is from before the attach. */
  replay: boolean;
  /** A terminal's screen, drawn for this client: these are no bytes of the stream, which continues at `offset`. */
  snapshot: boolean;
}

const kinds = ["", "stdout", "stderr", "tty"] as const;
const replayFlag = 0x10;
const snapshotFlag = 0x20;

/** Reads a binary frame: kind, uvarint stream number, uvarint offset, raw bytes. */
export function readFrame(buffer: ArrayBuffer): { no: number; chunk: Chunk } | undefined {
  const all = new Uint8Array(buffer);
  let at = 1;
  const uvarint = (): number => {
    let value = 0;
    for (let scale = 1; at < all.length; scale *= 128) {
      const byte = all[at++]!;
      value += (byte & 0x7f) * scale; // no shifts: an offset may exceed 32 bits
      if (byte < 0x80) return value;
    }
    return NaN;
  };
  const kind = all[0] ?? 0;
  const stream = kinds[kind & 0x0f];
  const no = uvarint();
  const offset = uvarint();
  if (!stream || Number.isNaN(offset)) return undefined;
  return { no, chunk: { offset, stream, bytes: all.subarray(at), replay: (kind & replayFlag) !== 0, snapshot: (kind & snapshotFlag) !== 0 } };
}

/** Reads the same out of JSON. */
export function readChunk(data: wire.Chunk & { replay?: boolean; snapshot?: boolean }): Chunk {
  const { offset, stream, replay = false, snapshot = false } = data;
  return { offset, stream, bytes: decodeBytes(data.data, data.encoding), replay, snapshot };
}

/** The part of a piece that a reader who has everything before `next` does not have yet. */
export function beyond(chunk: Chunk, next: number): Chunk | undefined {
  if (chunk.snapshot || chunk.offset >= next) return chunk;
  if (chunk.offset + chunk.bytes.length <= next) return undefined;
  return { ...chunk, offset: next, bytes: chunk.bytes.subarray(next - chunk.offset) };
}

/** The offset after a piece. */
export function endOf(chunk: Chunk): number {
  return chunk.snapshot ? chunk.offset : chunk.offset + chunk.bytes.length;
}

/** How far a reader has got in a stream, so that it gets each byte once, whatever another connection repeats. */
export class Position {
  /** Everything before it has come, or is missing. */
  constructor(public next = 0) {}

  /** The new part of a piece, if it has one. */
  take(chunk: Chunk): Chunk | undefined {
    const rest = beyond(chunk, this.next);
    if (rest) this.next = endOf(rest);
    return rest;
  }

  /** The new part of a gap, if it has one. */
  skip(from: number, to: number): wire.GapRange | undefined {
    if (to <= this.next) return undefined;
    const rest = { from: Math.max(from, this.next), to };
    this.next = to;
    return rest;
  }

  /** A follower that hands on what is new. */
  filter(to: Follower): Follower {
    return {
      chunk: (chunk) => {
        const rest = this.take(chunk);
        if (rest) to.chunk(rest);
      },
      gap: (from, end) => {
        const rest = this.skip(from, end);
        if (rest) to.gap(rest.from, rest.to);
      },
    };
  }
}

/** Several pieces as one. */
export function concat(pieces: Uint8Array[]): Uint8Array {
  const all = new Uint8Array(pieces.reduce((sum, { length }) => sum + length, 0));
  let at = 0;
  for (const piece of pieces) {
    all.set(piece, at);
    at += piece.length;
  }
  return all;
}

const encoder = new TextEncoder();

export function toBytes(data: string | Uint8Array): Uint8Array {
  return typeof data === "string" ? encoder.encode(data) : data;
}

export function decodeBytes(text: string, encoding?: string): Uint8Array {
  if (encoding !== "base64") return toBytes(text);
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

export function toBase64(bytes: Uint8Array): string {
  let binary = "";
  for (let i = 0; i < bytes.length; i += 0x8000) binary += String.fromCharCode(...bytes.subarray(i, i + 0x8000));
  return btoa(binary);
}

const strictText = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
/** Above this size it matters that JSON writes a control character in six bytes: a request has a bound. */
const smallText = 128 << 10;

/** Bytes as the wire wants them: text if they are, else base64. */
export function encodeBytes(bytes: Uint8Array): { data: string; encoding?: "base64" } {
  try {
    const data = strictText.decode(bytes);
    if (bytes.length <= smallText || JSON.stringify(data).length <= 1.5 * bytes.length) return { data };
  } catch {} // it is no text
  return { data: toBase64(bytes), encoding: "base64" };
}
