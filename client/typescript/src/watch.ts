import { until } from "./abort.ts";
import type { Use } from "./command.ts";
import type { Connection } from "./connection.ts";
import { SessionTerminatedError } from "./errors.ts";
import type * as wire from "./wire.gen.ts";

/** The events that a watched session sends, but for output. */
type Watched = Exclude<keyof wire.Events, "exec.output" | "process.output" | "term.output" | "stream.started" | "stream.gap" | "server.shutdown" | "term.control" | "term.command" | "term.resized">;

export type SessionEvent =
  | { [E in Watched]: { type: E; data: wire.Events[E] } }[Watched]
  /** Events are missing here: the connection was lost, or they were not read in time. The data are of the session as it is now. */
  | { type: "missed"; data: wire.SessionInfo };

const names: Watched[] = [
  "session.state", "session.expiring", "exec.started", "exec.exit", "process.started", "process.exit", "term.opened", "term.viewers", "term.exit",
];

/** How many events may wait for the program; later ones are missing. */
const mostEvents = 1024;

/**
 * Subscribes to a session, again after each lost connection, until the iteration ends. It has a connection of its own: on a shared one the server sends
 * exec.exit after the output of that command, which may wait for its reader.
 */
export async function* watch(parent: Connection, use: Use, signal?: AbortSignal): AsyncGenerator<SessionEvent, void> {
  signal?.throwIfAborted();
  const events: (SessionEvent | undefined)[] = []; // undefined: some are missing here
  const add = (event?: SessionEvent) => {
    if (events.length < mostEvents) events.push(event);
    else if (events.at(-1)) events.push(undefined);
    wake();
  };
  let wake = () => {};
  let failure: { error: unknown } | undefined;
  let sessionId = "";
  let subscribing = true;
  const subscribe = () => connection.call("session.watch", { session_id: sessionId });
  const connection = parent.sibling(({ kind }) => {
    if (kind === "up" || subscribing) return;
    subscribing = true;
    subscribe()
      .then(
        () => add(),
        (error: unknown) => {
          if (error instanceof SessionTerminatedError) add(); // it ended meanwhile: session.info tells
          else failure = { error };
          wake();
        },
      )
      .finally(() => (subscribing = false));
  });
  for (const type of names) {
    connection.on(type, (data) => {
      if ((data as { session_id?: string }).session_id !== sessionId) return;
      const { from, to } = data as Partial<wire.SessionState>;
      add(type === "session.state" && from === to ? undefined : ({ type, data } as SessionEvent)); // the server says so when we did not read its events
    });
  }
  try {
    await until(
      signal,
      use((id) => {
        sessionId = id;
        return subscribe();
      }),
    );
    subscribing = false;
    for (;;) {
      if (events.length > 0) {
        const event: SessionEvent = events.shift() ?? { type: "missed", data: await until(signal, connection.call("session.info", { session_id: sessionId })) };
        yield event;
        const state = event.type === "session.state" ? event.data.to : event.type === "missed" ? event.data.state : "";
        if (state === "TERMINATED") return;
      } else if (failure) throw failure.error;
      else await until(signal, new Promise<void>((resolve) => (wake = resolve)));
    }
  } finally {
    void parent.drop(connection);
  }
}
