import { type ConnectionOptions } from "./connection.js";
import type { Use } from "./command.js";
import { type Env } from "./exec.js";
import { Session, type SessionInfo } from "./session.js";
import { type Terminal, type TerminalOptions } from "./terminal.js";
import type * as wire from "./wire.gen.js";
export interface ConnectOptions extends ConnectionOptions {
    /** The name of the session in which the sandbox's own commands run; it is made if it is not there. "default" by default. */
    session?: string | undefined;
    /** Of the first dial only. */
    signal?: AbortSignal | undefined;
}
export interface SessionOptions {
    /** Unique among the principal's live sessions. */
    name?: string | undefined;
    cwd?: string | undefined;
    env?: Env | undefined;
    /** A path, or a name such as bash or zsh. */
    shell?: string | undefined;
    /** ms; for each command that has no time limit of its own. */
    commandTimeoutMs?: number | undefined;
    /** ms without anything happening; then the session ends. */
    idleTimeoutMs?: number | undefined;
    /** What to do if a live session has this name. */
    ifExists?: "error" | "return" | undefined;
    /** What happens to the session when this connection is gone. */
    onDisconnect?: "keep" | "destroy" | undefined;
    limits?: wire.Limits | undefined;
    labels?: Record<string, string> | undefined;
    record?: wire.SessionCreate["record"];
}
/** Connects to a gateway. Close it in the end: `await using sandbox = await connect(…)` does. */
export declare function connect(o: ConnectOptions): Promise<Sandbox>;
/** A gateway, and a session of its own for commands. If that session ends, the request that hears of it fails, and the next one makes another session. */
export declare class Sandbox extends Session {
    private readonly wanted;
    private gone;
    private finding;
    protected readonly use: Use;
    private find;
    createSession(o?: SessionOptions): Promise<Session>;
    /** createSession and openTerminal in one request. If the terminal cannot be opened, no session is made. */
    createSessionWithTerminal(o: SessionOptions, terminal: TerminalOptions): Promise<{
        session: Session;
        terminal: Terminal;
    }>;
    /** A session that is there, by its name or its id. */
    getSession(nameOrId: string): Promise<Session>;
    listSessions(o?: {
        label?: string;
        state?: SessionInfo["state"];
        all?: boolean;
    }): Promise<SessionInfo[]>;
    deleteSession(nameOrId: string, o?: {
        force?: boolean;
    }): Promise<void>;
    /** Sends any request of the protocol. It is repeated after a lost connection only if that does no harm. */
    call<M extends keyof wire.Methods>(method: M, params: wire.Methods[M]["params"], o?: {
        signal?: AbortSignal;
    }): Promise<wire.Methods[M]["result"]>;
    /** Calls a listener for every event of this name that is not output. The function that it returns ends that. */
    on<E extends EventName>(event: E, listener: (data: wire.Events[E]) => void): () => void;
    /** Closes the connection. Sessions, commands, processes and terminals go on. */
    close(): Promise<void>;
    [Symbol.asyncDispose](): Promise<void>;
}
export type EventName = Exclude<keyof wire.Events, "exec.output" | "process.output" | "term.output" | "stream.started" | "stream.gap">;
