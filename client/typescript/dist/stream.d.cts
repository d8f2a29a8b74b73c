import type { Connection } from "./connection.cjs";
import { type Chunk } from "./frame.cjs";
import type { Follower, Link, Sink } from "./link.cjs";
import type * as wire from "./wire.gen.cjs";
/** What a reader of a stream gets: a piece of output, a gap in it, or another event; the last one is the exit. */
export type Item = {
    kind: "chunk";
    chunk: Chunk;
} | {
    kind: "gap";
    from: number;
    to: number;
} | {
    kind: "event";
    name: string;
    data: Record<string, unknown>;
};
/** What differs between the streams of commands, processes and terminals. */
export interface Source {
    /** The last event of the stream. */
    exit: "exec.exit" | "process.exit" | "term.exit";
    /** Opens the stream with its window, or attaches at its offset, on this link; the sink gets it. Answers with its stream_id. */
    open(stream: Stream, link: Link, sink: Sink): Promise<string>;
    /** Asks for no more of it. */
    detach(link: Link): void;
    /** Input that was sent in a frame on this link was not taken. */
    refused?(link: Link, refused: wire.InputRefused): void;
}
/** How much output comes before its reader is done with it. */
export interface Flow {
    /** How many bytes may be on their way to this client or wait in it, 1 MiB by default. */
    windowBytes?: number | undefined;
    /** The reader is done with output when it takes it, or (`manual`) when `acknowledge` is called, as an emulator does that draws later. */
    acknowledge?: "auto" | "manual" | undefined;
}
/**
 * The output of one command, process or terminal, and its exit, over as many connections as necessary: every byte once and in order, or a gap.
 *
 * Output waits here for its reader. The server sends at most a window beyond what the reader has taken, so an idle reader costs no more memory.
 */
export declare class Stream {
    private readonly connection;
    private readonly source;
    /** Everything before it was taken by the reader. */
    offset: number;
    /** Fulfilled with the data of the exit when it comes, though output before it may wait; rejected when no exit will come. */
    readonly exited: Promise<Record<string, unknown>>;
    readonly windowBytes: number;
    private readonly position;
    private items;
    private held;
    private readonly manual;
    private acknowledged;
    private ended;
    private failure;
    private attached;
    private opening;
    private accepted;
    private unread;
    private wake;
    private readonly exit;
    constructor(connection: Connection, source: Source, offset?: number, flow?: Flow);
    /** Everything before it has come. */
    get received(): number;
    /** Opens the stream and returns when the server has accepted it. A link that is lost meanwhile is no failure. */
    open(): Promise<void>;
    private attach;
    /** The next item; undefined after the exit. It waits for one. */
    next(signal?: AbortSignal): Promise<Item | undefined>;
    /** Opens the stream and hands its output to a follower until it ends. */
    deliver(to: Follower): Promise<void>;
    /** Nobody will read for now: output beyond half of the window is dropped, and is a gap for a later reader. */
    leaveUnread(): void;
    /** Leaves the stream: no more output is wanted, and a reader that waits gets the reason. What it is of goes on. */
    leave(reason?: unknown): void;
    private take;
    /** Tells the server that everything before an offset is done, a quarter of the window at a time. */
    acknowledge(offset: number): void;
    /** Attaches again after a loss, but not before the reader has taken most of what is here. If nobody reads, old output gives way to new. */
    private resume;
    private sinkOf;
    private chunk;
    private gap;
    /** Gives the reader an event at its place in the output. */
    event(name: string, data: Record<string, unknown>): void;
    private push;
    /** Drops the oldest output until half of the window is free. */
    private shed;
    private fail;
    private end;
}
