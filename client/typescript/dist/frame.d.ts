import type { Follower } from "./link.js";
import type * as wire from "./wire.gen.js";
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
/** Reads a binary frame: kind, uvarint stream number, uvarint offset, raw bytes. */
export declare function readFrame(buffer: ArrayBuffer): {
    no: number;
    chunk: Chunk;
} | undefined;
/** Reads the same out of JSON. */
export declare function readChunk(data: wire.Chunk & {
    replay?: boolean;
    snapshot?: boolean;
}): Chunk;
/** The part of a piece that a reader who has everything before `next` does not have yet. */
export declare function beyond(chunk: Chunk, next: number): Chunk | undefined;
/** The offset after a piece. */
export declare function endOf(chunk: Chunk): number;
/** How far a reader has got in a stream, so that it gets each byte once, whatever another connection repeats. */
export declare class Position {
    next: number;
    /** Everything before it has come, or is missing. */
    constructor(next?: number);
    /** The new part of a piece, if it has one. */
    take(chunk: Chunk): Chunk | undefined;
    /** The new part of a gap, if it has one. */
    skip(from: number, to: number): wire.GapRange | undefined;
    /** A follower that hands on what is new. */
    filter(to: Follower): Follower;
}
/** Several pieces as one. */
export declare function concat(pieces: Uint8Array[]): Uint8Array;
export declare function toBytes(data: string | Uint8Array): Uint8Array;
export declare function decodeBytes(text: string, encoding?: string): Uint8Array;
export declare function toBase64(bytes: Uint8Array): string;
/** Bytes as the wire wants them: text if they are, else base64. */
export declare function encodeBytes(bytes: Uint8Array): {
    data: string;
    encoding?: "base64";
};
