const inputKind = 4;

/** Writes a frame with input for the stream of a terminal: kind, uvarint stream number, uvarint offset, raw bytes. */
export function inputFrame(no: number, offset: number, bytes: Uint8Array): Uint8Array<ArrayBuffer> {
  const head = [inputKind];
  for (let value of [no, offset]) {
    for (; value >= 0x80; value = Math.floor(value / 128)) head.push((value % 128) | 0x80); // no shifts, an offset may exceed 32 bits
    head.push(value);
  }
  const frame = new Uint8Array(head.length + bytes.length);
  frame.set(head);
  frame.set(bytes, head.length);
  return frame;
}
