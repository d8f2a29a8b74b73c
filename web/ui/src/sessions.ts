import { TrlError } from "./client";
import type { Connection } from "./connection";
import { Signal } from "./signal";
import type { SessionInfo } from "./wire";

const every = 2000; // a person sees a change within two seconds; the list is small

// The principal's sessions as the gateway lists them, requested repeatedly while the page is visible.
export class Sessions {
  readonly changed = new Signal<void>();
  list: SessionInfo[] = [];
  loaded = false;
  only = ""; // the node whose sessions the list shows; "": all
  silent: string[] = []; // the nodes that did not answer: their sessions are listed as they were
  private readonly names = new Map<string, string>(); // by id, of all sessions seen so far, including those that are gone
  private asking = false;
  private again = false;
  private closed = false; // a guest of one terminal sees no sessions

  constructor(private readonly connection: Connection) {
    connection.status.on((status) => status.kind === "up" && this.refresh());
    connection.on("session.state", () => this.refresh()); // an event comes only for sessions that a view watches
    setInterval(() => document.visibilityState === "visible" && this.refresh(), every);
  }

  get(id: string): SessionInfo | undefined {
    return this.list.find((s) => s.session_id === id);
  }

  /** The name of a session, even if the session is gone. */
  nameOf(id: string): string {
    const session = this.get(id);
    return session ? nameOf(session) : (this.names.get(id) ?? (this.closed ? "shared terminal" : shortId(id)));
  }

  /** Keeps a name that was known before the page was loaded. */
  remember(id: string, name: string): void {
    if (!this.names.has(id)) this.names.set(id, name);
  }

  /** Whether the session's node did not answer, so that nobody knows what the session does now. */
  isSilent(session: SessionInfo): boolean {
    return session.node !== undefined && this.silent.includes(session.node);
  }

  get live(): SessionInfo[] {
    return this.list.filter((s) => s.state !== "TERMINATED");
  }

  async refresh(): Promise<void> {
    if (!this.connection.up || this.closed) return;
    if (this.asking) {
      this.again = true;
      return;
    }
    this.asking = true;
    try {
      const lists = await Promise.all([this.connection.call("session.list", {}), this.connection.call("session.list", { state: "TERMINATED" })]);
      const listed = lists.flatMap(({ sessions }) => sessions);
      this.silent = [...new Set(lists.flatMap(({ partial = [] }) => partial))].sort();
      const ids = new Set(listed.map((s) => s.session_id));
      const unheard = this.list.filter((s) => this.isSilent(s) && !ids.has(s.session_id));
      this.list = [...listed, ...unheard].sort((a, b) => Number(a.state === "TERMINATED") - Number(b.state === "TERMINATED") || Date.parse(a.created_at) - Date.parse(b.created_at));
      for (const session of this.list) this.names.set(session.session_id, nameOf(session));
      this.loaded = true;
      this.changed.emit();
    } catch (error) {
      this.closed = error instanceof TrlError && error.code === "FORBIDDEN";
      // Without a connection the last list stays.
    } finally {
      this.asking = false;
    }
    if (this.again) {
      this.again = false;
      await this.refresh();
    }
  }
}

/** A session's name, or the part of its id that distinguishes it from others. */
export function nameOf(session: { name?: string; session_id: string }): string {
  return session.name ? visible(session.name) : shortId(session.session_id);
}

/** The end of an id: all ids of one gateway begin alike. */
export function shortId(id: string): string {
  return `${id.slice(0, 2)}…${id.slice(-6)}`;
}

/** Shows characters that reorder text as their codes: names from before the gateway refused them may contain some. */
function visible(name: string): string {
  return name.replace(/[\u202a-\u202e\u2066-\u2069]/g, (c) => `<U+${c.charCodeAt(0).toString(16).toUpperCase()}>`);
}
