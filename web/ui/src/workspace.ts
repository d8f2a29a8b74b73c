import { Agent } from "./agent";
import type { Banner } from "./banner";
import type { Terminal as Client } from "./client";
import type { Connection } from "./connection";
import { ask, askText } from "./dialog";
import { h } from "./dom";
import { guestToken } from "./guest";
import type { Nodes } from "./nodes";
import { complain } from "./notice";
import { Pane } from "./pane";
import { askPlace, type Place as NodePlace } from "./place";
import { Player } from "./player";
import { Pool } from "./pool";
import { Recordings } from "./recordings";
import type { Samples } from "./samples";
import { nameOf, type Sessions } from "./sessions";
import { settings } from "./settings";
import { showShares } from "./share";
import { mono } from "./theme";
import type { Tabs } from "./tabs";
import { createSession, openTerminal, type Place, type Size } from "./terminal";
import type { View } from "./view";
import type { Capabilities, SessionInfo, Share } from "./wire";

const storeKey = "trl.tabs";

/** The data of a tab that is kept for a reload. */
interface Remembered {
  key: string;
  place?: Place; // of a terminal
  name?: string; // of its session, which may be gone after the reload
}

// The actions of a person on sessions, and the open views. A reload restores the views.
export class Workspace {
  capabilities: Capabilities | undefined;
  private restoring = false;

  constructor(
    private readonly connection: Connection,
    private readonly sessions: Sessions,
    private readonly samples: Samples,
    private readonly nodes: Nodes,
    private readonly tabs: Tabs,
    private readonly banner: Banner,
  ) {
    tabs.selected.on((view) => {
      history.replaceState(null, "", view ? `#/${view.key}` : location.pathname);
      this.remember();
    });
    addEventListener("hashchange", () => this.openAddress(location.hash.slice(2)));
    addEventListener("pagehide", () => this.remember());
  }

  /** A client that may only read, or nothing any more, is not offered more. The gateway refuses it anyway. */
  get mayChange(): boolean {
    return this.capabilities !== undefined && this.capabilities.principal?.role !== "viewer" && this.connection.now.kind !== "over";
  }

  /** A guest may at most work in the shared session: only the owner makes, renames, shares and ends sessions. */
  get mayOwn(): boolean {
    return this.mayChange && !guestToken;
  }

  /** Whether new terminals are recorded. */
  private get records(): boolean {
    return settings.record && !!this.capabilities?.record;
  }

  /** Opens the target of a share link, unless a reload has. */
  async welcome(share: Share): Promise<void> {
    if (this.tabs.views.length > 0) return;
    if (!share.term_id) return this.openTerminal(share.session_id);
    const { terminals } = await this.connection.call("term.list", { session_id: share.session_id });
    const taken = terminals.some((terminal) => terminal.viewers > 0);
    this.openPane(share.session_id, share.term_id, { mode: taken || !this.mayChange ? "view" : "control" });
  }

  share(session: SessionInfo): void {
    const { current } = this.tabs;
    showShares(this.connection, session.session_id, nameOf(session), current instanceof Pane && current.session === session.session_id && !current.terminal.over ? current.term : undefined);
  }

  /** Makes a session, in a cluster where there is room or on the wanted node, and shows its terminal. */
  async createSession(place: NodePlace = {}): Promise<void> {
    const shells = this.capabilities?.shells ?? [];
    const bash = shells.find((shell) => shell.split("/").pop() === "bash"); // people want their line editing; programs say what they want
    const taken = new Set(this.sessions.live.map((s) => s.name));
    let n = 1;
    while (taken.has(`web-${n}`)) n++;
    try {
      const size = this.roomFor();
      const { made, terminal } = await createSession(this.connection, { name: `web-${n}`, ...(bash && { shell: bash }), ...place }, { ...size, record: this.records });
      if (this.sessions.only !== made.node) this.sessions.only = ""; // the list shows the new session
      this.sessions.remember(made.session_id, made.name ?? "");
      this.openPane(made.session_id, terminal.id, { mode: "control" }, { opened: terminal, size });
      await this.sessions.refresh();
    } catch (error) {
      complain("New session", error);
    }
  }

  async createSessionOn(): Promise<void> {
    const place = await askPlace(this.nodes);
    if (place) await this.createSession(place);
  }

  /** Shows the session's terminal: the one that is open here, else one that runs, else a new one. */
  async openTerminal(session: string): Promise<void> {
    const open = this.tabs.views.find((view) => view instanceof Pane && view.session === session && !view.terminal.over);
    if (open) return this.tabs.select(open);
    try {
      const { terminals } = await this.connection.call("term.list", { session_id: session });
      const running = terminals.find((terminal) => terminal.state === "running");
      if (running) {
        this.openPane(session, running.term_id, { mode: running.viewers > 0 || !this.mayChange ? "view" : "control" }); // who types there goes on typing
      } else if (this.mayChange) await this.newTerminal(session);
      else this.openActivity(session);
    } catch (error) {
      complain("Terminal", error);
      this.openActivity(session);
    }
  }

  async newTerminal(session: string): Promise<void> {
    try {
      const size = this.roomFor();
      const opened = await openTerminal(this.connection, session, { ...size, record: this.records });
      this.openPane(session, opened.id, { mode: "control" }, { opened, size });
    } catch (error) {
      complain("Terminal", error);
    }
  }

  openActivity(session: string): void {
    this.put(this.tabs.find(`activity/${session}`) ?? new Agent(this.connection, this.sessions, session, () => this.mayChange, () => void this.openTerminal(session)));
  }

  openPool(): void {
    this.put(this.tabs.find("pool") ?? new Pool(this.samples, this.nodes, (place) => void this.createSession(place), () => this.mayOwn));
  }

  /** The recordings of a session, or all. */
  openRecordings(session = ""): void {
    const view = new Recordings(this.connection, this.sessions, session, (recording) => this.openPlayer(recording), () => this.mayChange);
    this.put(this.tabs.find(view.key) ?? view);
  }

  openPlayer(recording: string): void {
    this.put(this.tabs.find(`play/${recording}`) ?? new Player(this.connection, recording));
  }

  async rename(session: SessionInfo): Promise<void> {
    const name = await askText("Rename session", "Name", session.name ?? "", "Rename");
    if (!name || name === session.name) return;
    try {
      await this.connection.call("session.rename", { session_id: session.session_id, name });
    } catch (error) {
      complain("Rename", error);
    }
    await this.sessions.refresh();
  }

  async destroy(session: SessionInfo): Promise<void> {
    const runs = session.current_exec ?? session.in_terminals?.[0];
    const busy = runs ? h("p", {}, "It is running ", h("code", {}, runs.command), ".") : h("p", {}, "Its shell and everything that it started will end.");
    if ((await ask({ title: `End session ${nameOf(session)}?`, body: [busy], yes: "End session", danger: true })) !== "yes") return;
    try {
      await this.connection.call("session.destroy", { session_id: session.session_id });
    } catch (error) {
      complain("End session", error);
    }
    await this.sessions.refresh();
  }

  /** Opens the views from before the reload, and the view in the address. */
  restore(): void {
    this.restoring = true;
    const address = location.hash.slice(2);
    for (const { key, place, name } of this.remembered()) {
      const session = sessionOf(key);
      if (session && name) this.sessions.remember(session, name);
      this.openAddress(key, place);
    }
    this.restoring = false;
    if (address) this.openAddress(address);
    else if (this.tabs.views.length > 0) this.tabs.select(this.tabs.views[0]!);
  }

  private openAddress(key: string, place: Place = { mode: "view" }): void {
    const open = this.tabs.find(key);
    if (open) return this.tabs.select(open);
    const [kind, session, term] = key.split("/");
    if (kind === "pool") this.openPool();
    else if (kind === "recordings") this.openRecordings(session);
    else if (kind === "play" && session) this.openPlayer(session);
    else if (kind === "activity" && session) this.openActivity(session);
    else if (kind === "term" && session && term) this.openPane(session, term, place);
  }

  /** Shows a view; while tabs are being restored it adds the tab alone. */
  private put(view: View): void {
    if (this.restoring) this.tabs.add(view);
    else this.tabs.open(view);
  }

  private openPane(session: string, term: string, place: Place, fresh?: { opened: Client; size: Size }): void {
    const key = `term/${session}/${term}`;
    const pane = this.tabs.find(key) ?? new Pane(this.connection, this.sessions, session, term, place, fresh, {
      reveal: (view: View) => this.tabs.select(view),
      lost: (why: string) => this.banner.lost(why),
      untyped: (sent: boolean) => this.banner.untyped(sent),
      mayType: () => this.mayChange,
      mayOwn: () => this.mayOwn,
      another: () => this.mayChange && void this.newTerminal(session),
      session: () => void this.createSession(),
    });
    this.put(pane);
  }

  private remember(): void {
    if (this.restoring) return;
    const open: Remembered[] = this.tabs.views.map((view) => {
      const session = sessionOf(view.key);
      return { key: view.key, ...(view instanceof Pane && { place: view.terminal.place }), ...(session && { name: this.sessions.nameOf(session) }) };
    });
    try {
      sessionStorage.setItem(storeKey, JSON.stringify(open));
    } catch {
      // no storage: a reload begins empty
    }
  }

  private remembered(): Remembered[] {
    try {
      return JSON.parse(sessionStorage.getItem(storeKey) ?? "[]") as Remembered[];
    } catch {
      return [];
    }
  }

  /** The size that a terminal on the stage will have, so that its program starts with its final size. */
  private roomFor(): Size {
    const open = this.tabs.views.find((view): view is Pane => view instanceof Pane && view.terminal.mode === "control");
    if (open && open.xterm.cols > 2) return { cols: open.xterm.cols, rows: open.xterm.rows };
    const probe = h("span", { class: "probe" }, "W".repeat(50));
    probe.style.font = `${settings.fontSize}px ${mono}`;
    document.body.append(probe);
    const box = probe.getBoundingClientRect();
    probe.remove();
    const stage = this.tabs.stage;
    return {
      cols: Math.max(20, Math.floor((stage.clientWidth - 34) / (box.width / 50))),
      rows: Math.max(5, Math.floor((stage.clientHeight - 46) / (box.height * 1.15))),
    };
  }
}

/** The session that a view's address names, if it names one. */
function sessionOf(key: string): string | undefined {
  const [kind, session] = key.split("/");
  return kind === "term" || kind === "activity" ? session : undefined;
}
