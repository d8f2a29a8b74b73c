import { TrlError, type ConnectionLostError } from "./errors.cjs";
import { type Env } from "./exec.cjs";
import { type Flow } from "./stream.cjs";
import type * as wire from "./wire.gen.cjs";
/** How the output comes. The echo of a Ctrl-C may come a whole window later. */
export interface TerminalReading extends Flow {
    /** After an attach or a lost connection comes the screen, or (`true`) every byte that is kept, and then the screen if bytes before it are gone. */
    history?: boolean | undefined;
}
export interface TerminalOptions extends TerminalReading {
    cols: number;
    rows: number;
    /** What to run instead of the session's interactive shell. */
    cmd?: string | undefined;
    cwd?: string | undefined;
    env?: Env | undefined;
    record?: boolean | undefined;
}
export interface AttachOptions extends TerminalReading {
    /** `control`: to type, and to say the size; `view`: to watch. */
    mode?: "control" | "view" | undefined;
    /** Of this client's window, in control. */
    cols?: number | undefined;
    rows?: number | undefined;
    /** The `claim` of an earlier Terminal, such as that of a page before its reload: in control, unless another client asked for it later. */
    claim?: number | undefined;
    /** With `history`: the first byte that is wanted, the oldest one that is kept by default. */
    since?: number | undefined;
}
export type TermEvent = 
/** The server sends the output from `offset` on: at first, after a lost connection and after takeOver. */
{
    type: "attached";
    mode: "control" | "view";
    cols: number;
    rows: number;
    offset: number;
    recordingId?: string;
}
/**
 * Output. With `snapshot` it draws the screen as it is, after an attach or a lost connection. To output with `replay` an emulator must not answer. The output
 * goes on at `end`.
 */
 | {
    type: "data";
    bytes: Uint8Array;
    offset: number;
    end: number;
    replay: boolean;
    snapshot: boolean;
} | {
    type: "resized";
    cols: number;
    rows: number;
}
/** Control has come to us, or has gone to another client. */
 | {
    type: "control";
    mode: "control" | "view";
    by?: wire.TermViewer;
}
/** Another client has come or gone, or control has changed: who is attached now. */
 | {
    type: "viewers";
    viewers: wire.TermViewer[];
}
/** A command of the interactive shell has ended. */
 | {
    type: "command";
    command?: string;
    exitCode?: number;
    durationMs?: number;
} | {
    type: "gap";
    from: number;
    to: number;
}
/** Input was not taken that `type` had sent: the server refused it, or it may have been lost with a connection. Other such input behind it is lost, too. */
 | {
    type: "refused";
    error: TrlError | ConnectionLostError;
} | {
    type: "exit";
    exitCode?: number;
    signal?: string;
};
export type TermSnapshot = wire.TermSnapshot;
/**
 * One client of a terminal. After a lost connection it comes back with the terminal's screen or with the bytes that it missed, and in control if it was and
 * nobody took over.
 */
export declare class Terminal implements AsyncIterable<TermEvent> {
    private readonly connection;
    private readonly o;
    /** Which of the `viewers` this client is. */
    viewerId: string;
    /** When this client asked for control, for another attach: undefined if it only watches. */
    claim: number | undefined;
    private termId;
    private now;
    private wanted;
    private size;
    private readonly stream;
    private readonly input;
    private iterated;
    private constructor();
    get id(): string;
    /** Whether this client may type now. */
    get mode(): "control" | "view";
    /** The offset after the last byte that was read. */
    get offset(): number;
    [Symbol.asyncIterator](): AsyncIterator<TermEvent, void>;
    private events;
    /** With `acknowledge: "manual"`: all output before an offset, such as the `end` of a `data` event, is done. */
    acknowledge(offset: number): void;
    /** Types. It waits while nothing in the terminal reads. */
    write(data: string | Uint8Array): Promise<void>;
    /**
     * Types keys without waiting until the terminal has taken them, so each costs no answer. The event `refused` tells what was not taken. Without a connection
     * keys go in a request over the next one, and the first ones after a refusal go in a request, too; an older server gets nothing else. The promise is
     * rejected if such a request fails. Text of more than 64 KiB is written.
     */
    type(data: string | Uint8Array): Promise<void>;
    resize(cols: number, rows: number): Promise<void>;
    /** Takes control from the client that has it, for a window of this size. The screen comes again, unless `history` is on. */
    takeOver(size?: {
        cols: number;
        rows: number;
    } | undefined): Promise<void>;
    /** The screen as lines of text, with the cursor. */
    snapshot(): Promise<TermSnapshot>;
    /** Ends the terminal and everything that was started in it. */
    close(): Promise<void>;
    /** Leaves the terminal, which goes on. */
    detach(): void;
    private attachParams;
    private became;
    private eventOf;
}
