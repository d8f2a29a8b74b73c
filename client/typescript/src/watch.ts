import { until } from "./abort.ts";
import type { Connection } from "./connection.ts";
import type * as wire from "./wire.gen.ts";

/** The events that a watched session sends, but for output. */
type Watched = Exclude<keyof wire.Events, "exec.output" | "process.output" | "term.output" | "stream.started" | "stream.gap" | "server.shutdown" | "term.control" | "term.command" | "term.resized">;

export type SessionEvent = { [E in Watched]: { type: E; data: wire.Events[E] } }[Watched];

const names: Watched[] = [
  "session.state", "session.expiring", "exec.started", "exec.exit", "process.started", "process.exit", "term.opened", "term.viewers", "term.exit",
];

const watchers = new WeakMap<Connection, Map<string, number>>();

/** Subscribes to a session, again after each lost connection, until the iteration ends. */
export async function* watch(connection: Connection, sessionId: string, signal?: AbortSignal): AsyncGenerator<SessionEvent, void> {
  signal?.throwIfAborted();
  const events: SessionEvent[] = [];
  let wake: (() => void) | undefined;
  let failure: unknown;
  const stops = names.map((type) =>
    connection.on(type, (data) => {
      if ((data as { session_id?: string }).session_id !== sessionId) return;
      events.push({ type, data } as SessionEvent);
      wake?.();
    }),
  );
  const counts = countsOf(connection);
  counts.set(sessionId, (counts.get(sessionId) ?? 0) + 1);
  stops.push(
    connection.onReturn(() => {
      connection.call("session.watch", { session_id: sessionId }).catch((error: unknown) => {
        failure = error;
        wake?.();
      });
    }),
  );
  try {
    await until(signal, connection.call("session.watch", { session_id: sessionId }));
    for (;;) {
      const event = events.shift();
      if (event) {
        yield event;
        if (event.type === "session.state" && event.data.to === "TERMINATED") return;
      } else if (failure) throw failure;
      else await until(signal, new Promise<void>((resolve) => (wake = resolve)));
    }
  } finally {
    for (const stop of stops) stop();
    const left = counts.get(sessionId)! - 1;
    counts.set(sessionId, left);
    if (left === 0) connection.current?.send("session.unwatch", { session_id: sessionId });
  }
}

function countsOf(connection: Connection): Map<string, number> {
  let counts = watchers.get(connection);
  if (!counts) watchers.set(connection, (counts = new Map()));
  return counts;
}
