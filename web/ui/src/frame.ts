import type { StreamName, WireChunk } from "./wire";

// A piece of output, from a binary frame or from JSON (PROTOCOL.md, Events and streams).
export interface Chunk {
  offset: number; // bytes of the stream before this piece
  stream: StreamName;
  bytes: Uint8Array;
  replay: boolean;
  snapshot: boolean; // a terminal's screen, drawn for us: these are not bytes of the stream, which continues at offset
}

const kinds: Record<number, StreamName> = { 1: "stdout", 2: "stderr", 3: "tty" };
const replayFlag = 0x10;
const snapshotFlag = 0x20;

/** Reads a binary frame: kind, uvarint stream number, uvarint offset, raw bytes. */
export function readFrame(buffer: ArrayBuffer): { no: number; chunk: Chunk } | undefined {
  const all = new Uint8Array(buffer);
  let at = 0;
  const uvarint = (): number => {
    let value = 0;
    for (let scale = 1; at < all.length; scale *= 128) {
      const byte = all[at++]!;
      value += (byte & 0x7f) * scale; // not shifts: an offset may exceed 32 bits
      if (byte < 0x80) return value;
    }
    return NaN;
  };
  const kind = all[at++] ?? 0;
  const stream = kinds[kind & ~(replayFlag | snapshotFlag)];
  const no = uvarint();
  const offset = uvarint();
  if (!stream || Number.isNaN(offset)) return undefined;
  return { no, chunk: { offset, stream, bytes: all.subarray(at), replay: (kind & replayFlag) !== 0, snapshot: (kind & snapshotFlag) !== 0 } };
}

const encoder = new TextEncoder();

/** Reads the same out of JSON. */
export function readChunk(data: WireChunk & { replay?: boolean; snapshot?: boolean }): Chunk {
  const bytes = data.encoding === "base64" ? fromBase64(data.data) : encoder.encode(data.data);
  return { offset: data.offset, stream: data.stream, bytes, replay: data.replay ?? false, snapshot: data.snapshot ?? false };
}

function fromBase64(text: string): Uint8Array {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

/** The offset after a piece. */
export function endOf(chunk: Chunk): number {
  return chunk.snapshot ? chunk.offset : chunk.offset + chunk.bytes.length;
}

/** The new part of a piece for a reader that has everything before offset next, so that no byte is used twice. */
export function beyond(chunk: Chunk, next: number): Chunk | undefined {
  if (chunk.snapshot) return chunk;
  const end = endOf(chunk);
  if (end <= next) return undefined;
  if (chunk.offset >= next) return chunk;
  return { ...chunk, offset: next, bytes: chunk.bytes.subarray(next - chunk.offset) };
}
