/**
 * Decodes the channels of one stream. Pieces of output may end in the middle of a character: its beginning waits for the next piece of the same
 * channel.
 */
export class Text {
  private readonly decoders = new Map<string, TextDecoder>();

  /** The text of these bytes, as far as it is complete. */
  add(channel: string, bytes: Uint8Array): string {
    let decoder = this.decoders.get(channel);
    if (!decoder) this.decoders.set(channel, (decoder = new TextDecoder("utf-8", { ignoreBOM: true })));
    return decoder.decode(bytes, { stream: true });
  }

  /** What is left of a channel when nothing follows: U+FFFD for a character that was cut off. */
  end(channel: string): string {
    const rest = this.decoders.get(channel)?.decode() ?? "";
    this.decoders.delete(channel);
    return rest;
  }
}

const wholeText = new TextDecoder("utf-8", { ignoreBOM: true });

/** The text of bytes that are all there. */
export function textOf(bytes: Uint8Array): string {
  return wholeText.decode(bytes);
}
