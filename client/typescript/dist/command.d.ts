import type { Connection } from "./connection.js";
import { type ExecOptions, type ExecResult } from "./exec.js";
import { Stream } from "./stream.js";
export type ExecEvent = {
    type: "start";
    command: string;
    execId: string;
    timestamp: string;
} | {
    type: "stdout" | "stderr";
    data: string;
    offset: number;
    timestamp: string;
} | {
    type: "gap";
    from: number;
    to: number;
    timestamp: string;
} | {
    type: "complete";
    exitCode: number;
    result: ExecResult;
    timestamp: string;
};
/** A piece of output as bytes, or a gap: bytes that are gone. */
export type OutputPiece = {
    stream: "stdout" | "stderr";
    offset: number;
    bytes: Uint8Array;
    gap?: undefined;
} | {
    gap: {
        from: number;
        to: number;
    };
};
export interface StreamOptions extends Omit<ExecOptions, "stdin"> {
    /** `open`: for write and closeStdin. */
    stdin?: string | Uint8Array | "open" | undefined;
}
/** More input than this goes in pieces. */
export declare const largestStdin: number;
/** Calls a function with the id of a session, for one request. */
export type Use = <T>(ask: (sessionId: string) => Promise<T>) => Promise<T>;
/**
 * A command whose output comes as it is written. Iterate over it for events, or over `bytes()`, once; or ask for its `result()`. To break out of the
 * iteration leaves the command running.
 */
export declare class Command implements AsyncIterable<ExecEvent> {
    private readonly connection;
    private readonly o;
    /** The command's id, when the server has accepted it. */
    readonly id: Promise<string>;
    private readonly stream;
    private readonly input;
    private readonly text;
    private execId;
    private request;
    private claimed;
    private readonly output;
    private gaps;
    private readonly outcome;
    private cancelling;
    private inputFailure;
    /** The offset after the last byte that was read. */
    get offset(): number;
    /** The exit code, when the command has ended. Whoever asks for it, and does not read, lets old output go. */
    get exitCode(): Promise<number>;
    /** Waits for the end. It reads the output, unless somebody iterates, and keeps of each stream at most `maxBytes`. */
    result(o?: {
        maxBytes?: number;
    }): Promise<ExecResult>;
    [Symbol.asyncIterator](): AsyncIterator<ExecEvent, void>;
    /** The output as bytes. */
    bytes(): AsyncIterable<OutputPiece>;
    /**
     * Ends the command: TERM, and KILL after a grace; and returns when it has ended. What nobody reads meanwhile gives way. With a signal it sends only
     * that.
     */
    kill(signal?: string): Promise<void>;
    /** Writes to a command that was started with `stdin: "open"`. It waits while the command does not read. */
    write(data: string | Uint8Array): Promise<void>;
    closeStdin(): Promise<void>;
    /** Stops reading. The command goes on. */
    detach(): void;
    private claim;
    private events;
    private pieces;
    /** Everything that comes, and the exit as the last; it also keeps the output for the result. */
    private items;
    /** Nobody reads any more. */
    private left;
    private finish;
    /** Ends the command, waits for its end, but not for ever, and has the reader get the signal's reason. */
    private readonly onAbort;
    /** A command may end before it has read everything. Otherwise it got a part of its input, or a part twice, and must not go on. */
    private readonly onInputFailure;
    private sendCancel;
}
/** The output of a command that was started, from an offset on. With `skip` the command does not wait for a slow reader. */
export declare function commandOutput(connection: Connection, execId: string, since: number, onSlow: "block" | "skip"): Stream;
/** The result, or a CommandError for a failure that is to be thrown. */
export declare function checked(result: ExecResult, check: boolean | undefined): ExecResult;
