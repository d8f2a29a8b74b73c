import type { Connection } from "./connection.js";
import { Stream, type Item } from "./stream.js";
/** The output of a process from an offset on. With `skip` the process does not wait for a slow reader. */
export declare function processOutput(connection: Connection, processId: string, since: number, onSlow: "block" | "skip"): Stream;
/**
 * The output of one process for all of its readers in this client: the server sends a stream once per connection. A reader that is far behind holds
 * nobody up; it asks for what it missed.
 */
export declare class LogHub {
    readonly connection: Connection;
    readonly processId: string;
    private readonly unused;
    private readonly readers;
    private stream;
    /** Everything before it has been given to the readers. */
    following: number;
    /** How the stream ended. */
    over: {
        exit: Record<string, unknown>;
    } | {
        error: unknown;
    } | undefined;
    private ending;
    private wake;
    constructor(connection: Connection, processId: string, unused: () => void);
    /** A reader from an offset on. */
    read(since: number): LogReader;
    /** The process is being ended, which needs room for its last output: from now on no reader holds it up. One that is behind asks for what it missed. */
    letGo(ending?: boolean): void;
    /** A reader can take more. */
    roomMade(): void;
    leave(reader: LogReader): void;
    private follow;
    /** One of the readers must keep up, the others need not. */
    private mustWait;
}
/** One reader of a process's output. */
export declare class LogReader {
    private readonly hub;
    private items;
    private held;
    /** It has not been given everything, and asks for what is between its position and what the hub gives now. */
    private behind;
    private wake;
    private left;
    private ended;
    private readonly position;
    constructor(hub: LogHub, since: number);
    /** The next item, undefined after the exit. */
    next(signal?: AbortSignal): Promise<Item | undefined>;
    /** Takes what the hub has, unless too much waits already. */
    offer(item: Item): void;
    wakeUp(): void;
    /** It has read what it was given, or nearly. */
    get hasRoom(): boolean;
    private makeRoom;
    leave(): void;
    private page;
}
