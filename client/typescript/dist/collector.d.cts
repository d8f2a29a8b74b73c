import type * as wire from "./wire.gen.cjs";
/** Keeps the beginning and the end of what is written to it, as the server does for exec.run. */
export declare class Collector {
    most: number;
    private readonly head;
    private readonly tail;
    private dropped;
    /** At most `most` bytes are kept. */
    constructor(most: number);
    add(bytes: Uint8Array): void;
    /** What is missing between beginning and end. */
    get omitted(): wire.Omitted | undefined;
    bytes(): Uint8Array;
    private get tailRoom();
    private cut;
}
