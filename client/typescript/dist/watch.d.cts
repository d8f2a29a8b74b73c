import type { Use } from "./command.cjs";
import type { Connection } from "./connection.cjs";
import type * as wire from "./wire.gen.cjs";
/** The events that a watched session sends, but for output. */
type Watched = Exclude<keyof wire.Events, "exec.output" | "process.output" | "term.output" | "stream.started" | "stream.gap" | "server.shutdown" | "term.control" | "term.command" | "term.resized">;
export type SessionEvent = {
    [E in Watched]: {
        type: E;
        data: wire.Events[E];
    };
}[Watched]
/** Events are missing here: the connection was lost, or they were not read in time. The data are of the session as it is now. */
 | {
    type: "missed";
    data: wire.SessionInfo;
};
/**
 * Subscribes to a session, again after each lost connection, until the iteration ends. It has a connection of its own: on a shared one the server sends
 * exec.exit after the output of that command, which may wait for its reader.
 */
export declare function watch(parent: Connection, use: Use, signal?: AbortSignal): AsyncGenerator<SessionEvent, void>;
export {};
