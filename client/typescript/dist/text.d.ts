/**
 * Decodes the channels of one stream. Pieces of output may end in the middle of a character: its beginning waits for the next piece of the same
 * channel.
 */
export declare class Text {
    private readonly decoders;
    /** The text of these bytes, as far as it is complete. */
    add(channel: string, bytes: Uint8Array): string;
    /** What is left of a channel when nothing follows: U+FFFD for a character that was cut off. */
    end(channel: string): string;
}
/** The text of bytes that are all there. */
export declare function textOf(bytes: Uint8Array): string;
