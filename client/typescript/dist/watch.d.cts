import type { Connection } from "./connection.cjs";
import type * as wire from "./wire.gen.cjs";
/** The events that a watched session sends, but for output. */
type Watched = Exclude<keyof wire.Events, "exec.output" | "process.output" | "term.output" | "stream.started" | "stream.gap" | "server.shutdown" | "term.control" | "term.command" | "term.resized">;
export type SessionEvent = {
    [E in Watched]: {
        type: E;
        data: wire.Events[E];
    };
}[Watched];
/** Subscribes to a session, again after each lost connection, until the iteration ends. */
export declare function watch(connection: Connection, sessionId: string, signal?: AbortSignal): AsyncGenerator<SessionEvent, void>;
export {};
