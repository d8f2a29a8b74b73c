/** Writes a frame with input for the stream of a terminal: kind, uvarint stream number, uvarint offset, raw bytes. */
export declare function inputFrame(no: number, offset: number, bytes: Uint8Array): Uint8Array<ArrayBuffer>;
