import { Command, type StreamOptions, type Use } from "./command.js";
import type { Connection } from "./connection.js";
import { type Env, type ExecOptions, type ExecResult } from "./exec.js";
import type { LogHub } from "./loghub.js";
import { Process, type ProcessOptions } from "./process.js";
import { Terminal, type AttachOptions, type TerminalOptions } from "./terminal.js";
import { type SessionEvent } from "./watch.js";
import type * as wire from "./wire.gen.js";
export type SessionInfo = wire.SessionInfo;
/** A persistent shell: directory, variables and functions stay from one command to the next. */
export declare class Session implements AsyncDisposable {
    #private;
    protected readonly connection: Connection;
    protected readonly hubs: Map<string, LogHub>;
    get id(): string;
    get name(): string | undefined;
    /**
     * Runs a command and returns its result; a command that fails is a result, too. If the connection is lost meanwhile it is made again, and the command
     * still runs once. A list of words is quoted for the shell.
     */
    exec(command: string | readonly string[], o?: ExecOptions): Promise<ExecResult>;
    /** Starts a command and returns at once. Iterate over it for its output as it comes. */
    execStream(command: string | readonly string[], o?: StreamOptions): Command;
    /** Starts a background process from the session's present state. */
    startProcess(command: string | readonly string[], o?: ProcessOptions): Promise<Process>;
    listProcesses(): Promise<Process[]>;
    getProcess(id: string): Promise<Process | null>;
    killProcess(id: string, signal?: string): Promise<void>;
    /** Ends every process that runs; it answers how many. */
    killAllProcesses(): Promise<number>;
    openTerminal(o: TerminalOptions): Promise<Terminal>;
    attachTerminal(id: string, o?: AttachOptions): Promise<Terminal>;
    /** Sets and unsets exported variables of the shell. */
    setEnvVars(env: Env): Promise<void>;
    info(): Promise<SessionInfo>;
    /**
     * Everything that happens in the session, as long as somebody iterates. After a lost connection it goes on. Where events are missing, because they
     * happened meanwhile or were not read in time, it says `missed`.
     */
    watch(o?: {
        signal?: AbortSignal;
    }): AsyncIterable<SessionEvent>;
    /** Replaces the shell by a fresh one; processes end. */
    reset(): Promise<void>;
    rename(name: string): Promise<void>;
    /** Moves the session to another node of the cluster, while nothing runs in it. Returns what the new node could not take of its state. */
    move(node: string): Promise<string[]>;
    /** Changes what createSession has set. `labels` take the place of all earlier ones. */
    update(o: {
        labels?: Record<string, string>;
        commandTimeoutMs?: number;
        idleTimeoutMs?: number;
    }): Promise<void>;
    /** Ends the session and returns when all its processes are gone. */
    destroy(o?: {
        force?: boolean;
    }): Promise<void>;
    [Symbol.asyncDispose](): Promise<void>;
    /** Calls a function with the session's id, for one request. */
    protected readonly use: Use;
    protected identify(id: string, name: string | undefined): void;
    /** An exec.run that ends when the signal aborts. */
    private endedBy;
    private follow;
}
