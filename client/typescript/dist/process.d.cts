import type { Connection } from "./connection.cjs";
import { type Env } from "./exec.cjs";
import { LogHub } from "./loghub.cjs";
import type * as wire from "./wire.gen.cjs";
export type ProcessStatus = "running" | "completed" | "failed" | "killed";
export interface ProcessOptions {
    cwd?: string | undefined;
    env?: Env | undefined;
    /** ms; then the process is ended. */
    timeout?: number | undefined;
    /** A label for people. */
    name?: string | undefined;
    /** `open`: for write and closeStdin. */
    stdin?: "none" | "open" | undefined;
    /** Of the start only: it does not end a process that has been started. */
    signal?: AbortSignal | undefined;
    onOutput?: ((stream: "stdout" | "stderr", data: string) => void) | undefined;
    onExit?: ((code: number | null) => void) | undefined;
}
export type LogEvent = {
    type: "stdout" | "stderr";
    data: string;
    offset: number;
} | {
    type: "gap";
    from: number;
    to: number;
    data?: undefined;
} | {
    type: "exit";
    exitCode: number | null;
    data?: undefined;
};
export interface ProcessExit {
    exitCode: number;
    signal?: string;
    timedOut: boolean;
}
export interface WaitOptions {
    /** ms */
    timeout?: number | undefined;
    /** Ends the wait, not the process. */
    signal?: AbortSignal | undefined;
}
/** A background process. What its fields say is as of the last answer; `refresh` asks again. */
export declare class Process {
    private readonly connection;
    private readonly hubs;
    private info;
    private readonly input;
    get id(): string;
    get pid(): number;
    get command(): string;
    get startTime(): Date;
    get endTime(): Date | undefined;
    get exitCode(): number | undefined;
    get status(): ProcessStatus;
    refresh(): Promise<this>;
    getStatus(): Promise<ProcessStatus>;
    /** The TCP ports on which it, or what it has started, listens now. */
    ports(): Promise<number[]>;
    /** Ends the process and everything that it has started: TERM, five seconds, KILL; and returns when it is gone. With a signal it sends only that. */
    kill(signal?: string): Promise<void>;
    /** The output that there is now. */
    getLogs(): Promise<{
        stdout: string;
        stderr: string;
        nextOffset: number;
        gap?: {
            from: number;
            to: number;
        };
    }>;
    /** The output from an offset on, as it comes, and then the exit. To break out of it leaves the process running. */
    streamLogs(o?: {
        since?: number;
        signal?: AbortSignal;
    }): AsyncGenerator<LogEvent, void>;
    /** Waits until a port accepts connections, or answers HTTP. */
    waitForPort(port: number, o?: WaitOptions & {
        mode?: "tcp" | "http";
        path?: string;
        host?: string;
    }): Promise<void>;
    /** Waits until a line of the output contains a text or matches an expression. Lines from before count. */
    waitForLog(pattern: string | RegExp, o?: number | (WaitOptions & {
        stream?: "stdout" | "stderr" | "both";
    })): Promise<{
        line: string;
        match?: RegExpMatchArray;
    }>;
    /** Waits until the process has ended. */
    waitForExit(o?: number | WaitOptions): Promise<ProcessExit>;
    /** Writes to a process that was started with `stdin: "open"`. It waits while the process does not read. */
    write(data: string | Uint8Array): Promise<void>;
    closeStdin(): Promise<void>;
    private reader;
    /** Waits for a condition at the server. */
    private wait;
    private report;
}
/** Ends a process, or sends it a signal. */
export declare function kill(connection: Connection, hubs: Map<string, LogHub>, process_id: string, signal: string | undefined): Promise<wire.ProcessInfo>;
