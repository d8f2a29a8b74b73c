import type { Connection } from "./connection.js";
/** Far below the size of a frame and of the server's buffer for a program that does not read. */
export declare const pieceBytes: number;
/** Writes to a command, process or terminal: one piece after the other, each when the server has room for it. */
export declare class Input {
    private readonly connection;
    private readonly send;
    private last;
    private unfinished;
    constructor(connection: Connection, send: (piece: {
        data: string;
        encoding?: "base64";
        eof?: boolean;
    }) => Promise<unknown>);
    /** Writes after everything that was written before. With `eof` nothing may follow. */
    write(data: string | Uint8Array, eof?: boolean): Promise<void>;
    /** Does something after everything that was asked of it before. */
    queue(job: () => Promise<void>): Promise<void>;
    /** Nothing is being written, or waits for its turn. */
    get idle(): boolean;
    /** Ends the input. It does not matter if it has ended already, as after the end of what reads it. */
    close(): Promise<void>;
    private pieces;
    private whenRoom;
}
