import { button, fill, h, say, type Child } from "./dom";
import { exitMark } from "./exit";
import { age, bytes, duration, firstLine } from "./format";
import { icon } from "./icons";
import { blockWords, endingOf, type Block } from "./marks";
import type { Nodes } from "./nodes";
import { nameOf, type Sessions } from "./sessions";
import type { SessionInfo } from "./wire";

export interface SidebarActions {
  create(): void;
  createOn(): void; // asks on which node
  terminal(session: SessionInfo): void;
  activity(session: SessionInfo): void;
  recordings(session: SessionInfo): void;
  rename(session: SessionInfo): void;
  destroy(session: SessionInfo): void;
  share(session: SessionInfo): void;
  /** The latest command in a terminal of the session that is open here. Such commands are not execs, and the gateway's list does not have them. */
  block(session: SessionInfo): Block | undefined;
}

const stateWords: Record<SessionInfo["state"], string> = { CREATING: "starting", IDLE: "idle", RUNNING: "running", TERMINATED: "ended" };

// The list of sessions. A session keeps its row's element while it lives, so that the focus stays.
export class Sidebar {
  readonly list = h("ul", { class: "sessions", attr: { role: "list" } });
  readonly element: HTMLElement;
  private readonly body: HTMLElement;
  private readonly rows = new Map<string, Row>();
  private readonly empty = h("p", { class: "empty" });
  private readonly heading = h("h2", {}, "Sessions");
  private readonly count = h("span", { class: "count" });
  private readonly filter = h("select", { class: "node-filter", attr: { "aria-label": "Sessions of which node", hidden: true } });
  private readonly silent = h("p", { class: "silent-nodes", attr: { role: "status", hidden: true } });

  constructor(
    private readonly sessions: Sessions,
    private readonly nodes: Nodes,
    private readonly actions: SidebarActions,
    mayChange: () => boolean,
  ) {
    const create = button("New session", () => actions.create(), { icon: icon("plus"), hint: "New session (Ctrl+Shift+Enter)" });
    const createOn = button("New session on a node", () => actions.createOn(), { icon: icon("nodes") });
    createOn.hidden = true;
    this.body = h("div", { class: "sidebar-body" }, this.list, this.empty);
    create.hidden = true; // until the capabilities are known
    this.element = h(
      "nav",
      { class: "sidebar", attr: { id: "sidebar", "aria-label": "sessions" } },
      h("div", { class: "sidebar-head" }, this.heading, this.count, h("span", { class: "sidebar-tools" }, create, createOn)),
      this.filter,
      this.silent,
      this.body,
    );
    const draw = () => {
      create.hidden = !mayChange();
      createOn.hidden = !mayChange() || !nodes.clustered;
      this.draw(mayChange());
    };
    sessions.changed.on(draw);
    nodes.changed.on(draw);
    this.filter.addEventListener("change", () => {
      sessions.only = this.filter.value;
      draw();
    });
    setInterval(() => this.tick(), 1000);
  }

  focus(): void {
    const row = this.list.querySelector<HTMLButtonElement>(".session.on .session-open") ?? this.list.querySelector<HTMLButtonElement>(".session-open");
    (row ?? this.element.querySelector<HTMLButtonElement>("button"))?.focus();
  }

  /** Shows to which session the visible view belongs. */
  select(id: string | undefined): void {
    for (const [session, row] of this.rows) if (row.select(session === id)) this.reveal(row.element);
  }

  /** Scrolls the list as little as it takes to show a row. */
  private reveal(row: HTMLElement): void {
    const { body } = this;
    body.scrollTop = Math.min(Math.max(body.scrollTop, row.offsetTop + row.offsetHeight - body.clientHeight), row.offsetTop);
  }

  private draw(mayChange: boolean): void {
    const seen = new Set<string>();
    const inOrder: HTMLElement[] = [];
    this.drawFilter();
    const { only, silent } = this.sessions;
    for (const session of this.sessions.list) {
      if (only && session.node !== only) continue;
      seen.add(session.session_id);
      let row = this.rows.get(session.session_id);
      if (!row) this.rows.set(session.session_id, (row = new Row(session, this.actions)));
      row.update(session, mayChange, this.sessions.isSilent(session));
      inOrder.push(row.element);
    }
    for (const [id, row] of this.rows) {
      if (seen.has(id)) continue;
      row.element.remove();
      this.rows.delete(id);
    }
    inOrder.forEach((element, at) => {
      if (this.list.children[at] !== element) this.list.insertBefore(element, this.list.children[at] ?? null);
    });
    const live = this.sessions.live.filter((session) => !only || session.node === only).length;
    say(this.count, live ? String(live) : "");
    this.silent.hidden = silent.length === 0;
    say(this.silent, silent.length ? `${list(silent)} ${silent.length === 1 ? "does" : "do"} not answer. The sessions there are shown as they were.` : "");
    this.empty.hidden = inOrder.length > 0;
    if (!this.empty.hidden) {
      fill(this.empty, only ? `No sessions on ${only}.` : "No sessions. They appear here when you open one, or when a program does over the API.");
    }
  }

  /** Offers the nodes of a cluster. A node that is gone, and whose sessions are, is not shown any longer. */
  private drawFilter(): void {
    const { nodes, sessions } = this;
    const names = nodes.clustered ? [...new Set([...nodes.list.map(({ node }) => node), ...sessions.list.flatMap(({ node }) => node ?? [])])].sort() : [];
    if (!names.includes(sessions.only)) sessions.only = "";
    this.filter.hidden = names.length < 2;
    const words = names.map((name) => [name, `${name} · ${sessions.live.filter(({ node }) => node === name).length}`]);
    const said = JSON.stringify(words);
    if (this.filter.dataset.words !== said) {
      this.filter.dataset.words = said;
      fill(this.filter, ...[["", "All nodes"], ...words].map(([value, text]) => h("option", { attr: { value } }, text)));
    }
    this.filter.value = sessions.only;
  }

  /** Draws a change that the gateway's list does not have. */
  tick(): void {
    for (const row of this.rows.values()) row.tick();
  }
}

/** n1, n2 and n3 */
function list(names: string[]): string {
  return new Intl.ListFormat("en").format(names);
}

class Row {
  readonly element: HTMLLIElement;
  private session: SessionInfo;
  private silent = false;
  private readonly dot = h("span", { class: "dot" });
  private readonly name = h("span", { class: "session-name" });
  private readonly rec = h("span", { class: "rec", title: "being recorded", attr: { hidden: true } }, h("span", { class: "rec-dot", attr: { "aria-hidden": "true" } }), h("span", { class: "sr" }, "being recorded"));
  private readonly age = h("span", { class: "session-age" });
  private readonly doing = h("span", { class: "session-doing" });
  private readonly facts = h("span", { class: "session-facts" });
  private readonly open: HTMLButtonElement;
  private readonly change: HTMLButtonElement[];

  constructor(session: SessionInfo, private readonly actions: SidebarActions) {
    this.session = session;
    this.open = h(
      "button",
      { class: "session-open", attr: { type: "button" }, on: { click: () => (this.session.state === "TERMINATED" ? actions.activity(this.session) : actions.terminal(this.session)) } },
      h("span", { class: "session-line" }, this.dot, this.name, this.rec, this.age),
      h("span", { class: "session-line" }, this.doing),
      h("span", { class: "session-line" }, this.facts),
    );
    this.change = [
      button("Share", () => actions.share(this.session), { icon: icon("share") }),
      button("Rename", () => actions.rename(this.session), { icon: icon("pencil") }),
      button("End session", () => actions.destroy(this.session), { icon: icon("trash") }),
    ];
    this.element = h(
      "li",
      { class: "session" },
      this.open,
      h("div", { class: "session-buttons" }, button("Activity", () => actions.activity(this.session), { icon: icon("activity") }), button("Recordings", () => actions.recordings(this.session), { icon: icon("record") }), ...this.change),
    );
  }

  /** Marks the row, or not; tells whether it is marked now and was not before. */
  select(on: boolean): boolean {
    const fresh = on && !this.element.classList.contains("on");
    this.element.classList.toggle("on", on);
    if (on) this.open.setAttribute("aria-current", "true");
    else this.open.removeAttribute("aria-current");
    return fresh;
  }

  update(session: SessionInfo, mayChange: boolean, silent: boolean): void {
    this.session = session;
    this.silent = silent;
    this.element.classList.toggle("silent", silent);
    this.element.dataset.state = session.state;
    say(this.name, nameOf(session));
    this.rec.hidden = !session.recording;
    for (const b of this.change) b.hidden = !mayChange || session.state === "TERMINATED";
    this.tick();
  }

  tick(): void {
    const s = this.session;
    const [inTerminal] = s.in_terminals ?? [];
    const busy = s.current_exec || this.silent ? undefined : this.ofTerminal(s);
    this.element.classList.toggle("busy", busy ?? !!inTerminal);
    this.dot.title = s.state === "IDLE" && (busy || inTerminal) ? "running in a terminal" : stateWords[s.state];
    say(this.age, age(s.created_at));
    this.age.title = `since ${new Date(s.created_at).toLocaleString()}`;
    if (busy !== undefined) {
      // ofTerminal has shown the command
    } else if (this.silent) {
      this.doing.title = "";
      this.put(this.doing, `silent ${s.node}`, () => [`${s.node} does not answer`]);
    } else if (s.current_exec ?? inTerminal) {
      const { command, started_at } = (s.current_exec ?? inTerminal)!;
      const ran = started_at ? duration(Math.max(0, Math.floor((Date.now() - Date.parse(started_at)) / 1000) * 1000)) : "";
      this.doing.title = command;
      this.put(this.doing, `${command}|${ran}`, () => [h("code", {}, firstLine(command)), ran && h("span", { class: "num" }, ran)]);
    } else if (s.state === "TERMINATED") {
      this.put(this.doing, `ended ${s.reason}`, () => [`ended: ${(s.reason ?? "").replaceAll("_", " ")}`]);
    } else if (s.last_exec) {
      const last = s.last_exec;
      this.doing.title = last.command;
      this.put(this.doing, `${last.exec_id}`, () => [exitMark(last), h("code", {}, firstLine(last.command)), h("span", { class: "num" }, duration(last.duration_ms))]);
    } else {
      this.put(this.doing, s.state, () => [stateWords[s.state]]);
    }
    const facts = [
      s.node ?? "",
      s.shell.split("/").pop(),
      s.memory_bytes ? bytes(s.memory_bytes) : "",
      s.queue_length ? `${s.queue_length} queued` : "",
      s.processes ? `${s.processes} proc` : "",
      s.terminals ? `${s.terminals} term` : "",
      s.owner ?? "",
    ];
    say(this.facts, facts.filter(Boolean).join(" · "));
  }

  /** Reports the latest command in a terminal that is open here, and whether it runs; undefined if there is none, or another terminal is busy. */
  private ofTerminal(s: SessionInfo): boolean | undefined {
    const block = s.state === "TERMINATED" ? undefined : this.actions.block(s);
    if (!block || !block.command || (block.ended && s.in_terminals?.some(({ command }) => command !== block.command))) return undefined;
    const ran = block.took ?? (block.began && !block.ended ? Math.floor((Date.now() - block.began) / 1000) * 1000 : undefined);
    this.doing.title = block.command;
    this.put(this.doing, `${block.command} ${blockWords(block)} ${ran}`, () => [
      block.ended && exitMark(endingOf(block)),
      h("code", {}, firstLine(block.command)),
      ran !== undefined && ran >= 100 && h("span", { class: "num" }, duration(ran)),
    ]);
    return !block.ended;
  }

  /** Makes new elements only when the words are new. */
  private put(at: HTMLElement, words: string, make: () => Child[]): void {
    if (at.dataset.words === words) return;
    at.dataset.words = words;
    fill(at, ...make());
  }
}
