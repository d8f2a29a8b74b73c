import { type Env } from "./exec.js";
import type * as wire from "./wire.gen.js";
export interface TerminalOptions {
    cols: number;
    rows: number;
    /** What to run instead of the session's interactive shell. */
    cmd?: string | undefined;
    cwd?: string | undefined;
    env?: Env | undefined;
    record?: boolean | undefined;
}
export interface AttachOptions {
    /** `control`: to type, and to say the size; `view`: to watch. */
    mode?: "control" | "view" | undefined;
    /** Of this client's window, in control. */
    cols?: number | undefined;
    rows?: number | undefined;
}
export type TermEvent = 
/** Output. With `snapshot` it draws the screen as it is, after an attach or a lost connection. To output with `replay` an emulator must not answer. */
{
    type: "data";
    bytes: Uint8Array;
    offset: number;
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
} | {
    type: "exit";
    exitCode?: number;
    signal?: string;
};
export type TermSnapshot = wire.TermSnapshot;
/** One client of a terminal. It comes back with the terminal's screen after a lost connection, and in control if it was and nobody took over. */
export declare class Terminal implements AsyncIterable<TermEvent> {
    private readonly connection;
    private wanted;
    private termId;
    private claim;
    private now;
    private size;
    private readonly stream;
    private readonly input;
    private iterated;
    private constructor();
    get id(): string;
    /** Whether this client may type now. */
    get mode(): "control" | "view";
    [Symbol.asyncIterator](): AsyncIterator<TermEvent, void>;
    private events;
    /** Types. It waits while nothing in the terminal reads. */
    write(data: string | Uint8Array): Promise<void>;
    resize(cols: number, rows: number): Promise<void>;
    /** Takes control from the client that has it. The screen comes again. */
    takeOver(): Promise<void>;
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
