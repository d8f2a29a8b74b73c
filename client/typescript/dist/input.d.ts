import type * as wire from "./wire.gen.js";
/** Far below the size of a frame and of the server's buffer for a program that does not read. */
export declare const pieceBytes: number;
/** The params of a request with input, without what it is for. */
export interface Piece {
    data: string;
    encoding?: "base64";
    eof?: boolean;
    offset?: number;
}
/**
 * The input of a command, process or terminal: one piece after the other, each when the server has room for it. A piece has its offset if the end of the input
 * is known. One whose answer was lost is sent again then, and the offset shows what of it was taken.
 */
export declare class Input {
    /** Sends what `piece` returns, which is asked each time that it is sent. */
    private readonly send;
    /** How much input the server has; undefined: unknown. */
    end?: number | undefined;
    private last;
    private unfinished;
    private offsets;
    constructor(
    /** Sends what `piece` returns, which is asked each time that it is sent. */
    send: (piece: () => Piece) => Promise<Partial<wire.InputTaken>>, 
    /** How much input the server has; undefined: unknown. */
    end?: number | undefined);
    /** Writes after everything that was written before. With `eof` nothing may follow. */
    write(data: string | Uint8Array, eof?: boolean): Promise<void>;
    /** Does something after everything that was asked of it before. */
    queue(job: () => Promise<void>): Promise<void>;
    /** Nothing is being written, or waits for its turn. */
    get idle(): boolean;
    /** Ends the input. It does not matter if it has ended already, as after the end of what reads it. */
    close(): Promise<void>;
    private pieces;
    /** Sends a piece: again while the server has no room for it, and again until it is known what became of it. */
    private give;
}
