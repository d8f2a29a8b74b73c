import { TrlError } from "./client";
import type { Connection } from "./connection";
import { button, fill, h, say } from "./dom";
import { ExecBlock } from "./execblock";
import { age, bytes, plural } from "./format";
import { icon } from "./icons";
import { nodeTitle, pairs } from "./nodes";
import { complain } from "./notice";
import { ProcessRow } from "./processrow";
import type { Sessions } from "./sessions";
import { Signal } from "./signal";
import type { ExecEntry, ProcessInfo } from "./wire";
import type { View } from "./view";

const every = 2500; // ms: the queue, ports and log sizes change without an event
const kept = 200; // blocks on the page; the gateway also forgets older ones

// The activity of a session that a program drives: its commands as blocks, its queue, its processes. The view only watches until the person takes
// over.
export class Agent implements View {
  readonly key: string;
  readonly icon = "activity";
  readonly changed = new Signal<void>();
  readonly element: HTMLElement;

  private readonly blocks = new Map<string, ExecBlock>();
  private readonly entered = new Map<string, ExecBlock>(); // blocks of commands that were entered here, until exec.started: their output may come first
  private readonly processes = new Map<string, ProcessRow>();
  private readonly content = h("div", { class: "blocks" });
  private readonly list = h("div", { class: "blocks-scroll", attr: { role: "log", "aria-live": "off", "aria-label": "commands", tabindex: 0 } }, this.content);
  private readonly empty = h("p", { class: "empty" }, "No commands yet. What a program runs in this session appears here as it happens.");
  private readonly facts = h("dl", { class: "facts" });
  private readonly queue = h("ol", { class: "queue", attr: { role: "list" } });
  private readonly processList = h("ul", { class: "processes", attr: { role: "list" } });
  private readonly background = h("p", { class: "muted" });
  private readonly state = h("span", { class: "agent-state", attr: { role: "status" } });
  private readonly terminal: HTMLButtonElement;
  private readonly take: HTMLButtonElement;
  private readonly prompt: HTMLFormElement;
  private readonly input = h("textarea", { attr: { rows: 1, "aria-label": "command to run in this session", placeholder: "Run a command in this session", spellcheck: "false", autocapitalize: "off", autocomplete: "off" } });
  private readonly ends: (() => void)[] = [];
  private readonly seen: IntersectionObserver;
  private timer = 0;
  private clock = 0;
  private takenOver = false;
  private atEnd = true; // the list is scrolled to its end and follows it
  private placed = 0; // the scroll position that keepEnd has set
  private over = false;
  private begun = false; // the view has been shown: a restored tab watches nothing before that

  constructor(
    private readonly connection: Connection,
    private readonly sessions: Sessions,
    readonly session: string,
    private readonly mayChange: () => boolean,
    private readonly openTerminal: () => void,
  ) {
    this.key = `activity/${session}`;
    this.terminal = button("Open a terminal", () => this.openTerminal(), { icon: icon("terminal") });
    this.take = button("Take over", () => this.setTakenOver(!this.takenOver));
    this.prompt = h("form", { class: "prompt", attr: { hidden: true } }, h("span", { attr: { "aria-hidden": "true" } }, "$"), this.input, h("button", { class: "primary", attr: { type: "submit" } }, "Run"));
    this.element = h(
      "section",
      { class: "agent", attr: { "aria-label": "activity" } },
      h("div", { class: "pane-bar" }, this.state, h("div", { class: "pane-tools" }, this.terminal, this.take)),
      h(
        "div",
        { class: "agent-body" },
        h("div", { class: "agent-main" }, this.empty, this.list, this.prompt),
        h(
          "aside",
          { class: "agent-side", attr: { "aria-label": "about the session" } },
          h("h3", {}, "Session"), this.facts,
          h("h3", {}, "Queue"), this.queue,
          h("h3", {}, "Processes"), this.processList, this.background,
        ),
      ),
    );
    // The output of an ended command is requested when its block becomes visible.
    this.seen = new IntersectionObserver((entries) => {
      for (const entry of entries) if (entry.isIntersecting) void this.blocks.get((entry.target as HTMLElement).dataset.exec ?? "")?.load();
    });
    const sizes = new ResizeObserver(() => this.keepEnd());
    sizes.observe(this.content);
    sizes.observe(this.list); // the prompt takes some of its room
    this.list.addEventListener("scroll", () => {
      const { scrollTop, clientHeight, scrollHeight } = this.list;
      if (Math.abs(scrollTop - this.placed) >= 1) this.atEnd = scrollTop + clientHeight >= scrollHeight - 24; // the person has scrolled
    });
    this.wire();
    this.unlock();
  }

  label(): string {
    return this.sessions.nameOf(this.session);
  }

  mark(): "" {
    return "";
  }

  show(): void {
    this.timer = setInterval(() => void this.refresh(), every);
    this.clock = setInterval(() => this.blocks.forEach((block) => block.tick()), 1000);
    if (this.begun) void this.refresh();
    else void this.start();
    this.draw();
    this.keepEnd();
  }

  hide(): void {
    clearInterval(this.timer);
    clearInterval(this.clock);
  }

  focus(): void {
    if (this.takenOver) this.input.focus();
    else this.list.focus();
  }

  close(): void {
    this.hide();
    this.seen.disconnect();
    for (const end of this.ends) end();
    for (const block of [...this.blocks.values(), ...this.entered.values()]) block.close();
    for (const row of this.processes.values()) row.close();
    if (this.connection.up) this.connection.call("session.unwatch", { session_id: this.session }).catch(() => {}); // the session may have ended
  }

  private wire(): void {
    const { connection } = this;
    const mine = <D extends { session_id: string }>(then: (data: D) => void) => (data: D) => data.session_id === this.session && then(data);
    this.ends.push(
      connection.status.on((status) => status.kind === "up" && this.begun && void this.start()),
      connection.on("exec.started", mine((data) => {
        this.block({ ...data, state: "running", queued_at: data.at, started_at: data.at });
        void this.refresh();
      })),
      connection.on("exec.exit", mine((exit) => (this.blocks.get(exit.exec_id) ?? this.entered.get(exit.exec_id))?.end(exit))),
      connection.on("process.started", mine(() => void this.refresh())),
      connection.on("process.exit", mine(() => void this.refresh())),
      this.sessions.changed.on(() => this.draw()),
    );
    this.prompt.addEventListener("submit", (event) => {
      event.preventDefault();
      void this.run();
    });
    this.input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey) return;
      event.preventDefault();
      void this.run();
    });
  }

  /** Starts to watch, and starts again after a lost connection. The lists show what happened meanwhile. */
  private async start(): Promise<void> {
    this.begun = true;
    if (!this.connection.up) return;
    try {
      // The lists are requested first: the watch sends the earlier output of the running command, which needs its block.
      await this.refresh();
      await this.connection.call("session.watch", { session_id: this.session });
      await this.refresh();
      for (const row of this.processes.values()) void row.resume();
    } catch (error) {
      if (error instanceof TrlError && error.code === "SESSION_TERMINATED") this.over = true;
      else if (error instanceof TrlError) {
        this.over = true;
        say(this.empty, error.code === "SESSION_LOST" ? `This session is gone: ${this.connection.node ? "its node has ended or was restarted" : "the gateway was restarted"}.` : "This session has ended, and its data is no longer kept.");
      }
    }
    this.draw();
  }

  private async refresh(): Promise<void> {
    if (!this.connection.up) return;
    const session_id = this.session;
    try {
      const [{ execs }, { processes, background }] = await Promise.all([
        this.connection.call("exec.list", { session_id }),
        this.connection.call("process.list", { session_id }),
      ]);
      for (const entry of execs) if (entry.state !== "queued") this.block(entry);
      this.drawQueue(execs.filter((entry) => entry.state === "queued"));
      for (const info of processes) this.process(info);
      if (!processes.length) fill(this.processList, h("li", { class: "muted" }, "None."));
      else this.processList.querySelector(":scope > .muted")?.remove();
      say(this.background, background?.length ? `Left running by commands: pid ${background.join(", ")}` : "");
    } catch {
      // The session has ended, or there is no connection: the present content stays.
    }
  }

  private block(entry: ExecEntry): void {
    let block = this.blocks.get(entry.exec_id);
    if (!block) {
      block = this.entered.get(entry.exec_id) ?? new ExecBlock(this.connection, entry.exec_id, entry.stream_id, entry.command);
      this.entered.delete(entry.exec_id);
      block.began = Date.parse(entry.started_at ?? entry.queued_at);
      block.tick();
      block.element.dataset.exec = entry.exec_id;
      block.unlock(this.takenOver);
      this.blocks.set(entry.exec_id, block);
      this.content.append(block.element);
      this.empty.hidden = true;
      this.shorten();
    }
    if (entry.exit && !block.ended) {
      block.end(entry.exit);
      this.seen.observe(block.element);
    }
  }

  private keepEnd(): void {
    if (!this.atEnd) return;
    this.list.scrollTop = this.list.scrollHeight;
    this.placed = this.list.scrollTop;
  }

  private shorten(): void {
    for (const [id, block] of this.blocks) {
      if (this.blocks.size <= kept) return;
      block.close();
      block.element.remove();
      this.blocks.delete(id);
    }
  }

  private process(info: ProcessInfo): void {
    let row = this.processes.get(info.process_id);
    if (!row) {
      row = new ProcessRow(this.connection, info);
      row.unlock(this.takenOver);
      this.processes.set(info.process_id, row);
      this.processList.append(row.element);
    }
    row.update(info);
  }

  private drawQueue(waiting: ExecEntry[]): void {
    const words = waiting.map((entry) => entry.exec_id).join() + this.takenOver;
    if (this.queue.dataset.words === words) return;
    this.queue.dataset.words = words;
    if (!waiting.length) return fill(this.queue, h("li", { class: "muted" }, "Empty."));
    fill(
      this.queue,
      ...waiting.map((entry) => {
        const drop = button("Cancel", () => this.connection.call("exec.cancel", { exec_id: entry.exec_id }).then(() => this.refresh(), (error) => complain("Cancel", error)), { class: "danger small" });
        drop.disabled = !this.takenOver;
        return h("li", {}, h("code", { title: entry.command }, entry.command), drop);
      }),
    );
  }

  private draw(): void {
    this.changed.emit();
    const s = this.sessions.get(this.session);
    this.terminal.hidden = !s || s.state === "TERMINATED" || (!s.terminals && !this.mayChange()); // a viewer cannot open one
    if (!s) return;
    this.over ||= s.state === "TERMINATED";
    const busy = s.state === "IDLE" && !!s.in_terminals?.length;
    const words = { CREATING: "starting", IDLE: busy ? "running in a terminal" : "idle", RUNNING: "running", TERMINATED: `ended: ${(s.reason ?? "").replaceAll("_", " ")}` };
    this.state.dataset.state = busy ? "RUNNING" : s.state;
    const said = `${words[s.state]}|${s.node}|${this.takenOver}`;
    if (this.state.dataset.words !== said) {
      this.state.dataset.words = said;
      fill(this.state, h("span", { class: "dot" }), h("strong", {}, this.label()), h("span", {}, words[s.state]), s.node && h("span", { class: "badge node-name", title: nodeTitle(s) }, s.node), h("span", { class: "badge" }, this.takenOver ? "you can act here" : "read-only"));
    }
    this.take.hidden = this.over || !this.mayChange();
    const facts: [string, string][] = [
      ["Node", s.node ?? ""],
      ["Where", pairs(s.where).join(" ")],
      ["Directory", s.working_dir],
      ["Shell", s.shell],
      ["Owner", s.owner ?? ""],
      ["Age", age(s.created_at)],
      ["Commands", `${s.commands_run}`],
      ["Memory", s.memory_bytes ? bytes(s.memory_bytes) + (s.limits.memory_bytes ? ` of ${bytes(s.limits.memory_bytes)}` : "") : ""],
      ["Environment", plural(s.env_count, "variable")],
      ["Labels", pairs(s.labels).join(" ")],
      ["Id", s.session_id],
    ];
    const table = JSON.stringify(facts);
    if (this.facts.dataset.words === table) return;
    this.facts.dataset.words = table;
    fill(this.facts, ...facts.filter(([, value]) => value).flatMap(([name, value]) => [h("dt", {}, name), h("dd", { title: value }, value)]));
  }

  private setTakenOver(on: boolean): void {
    this.takenOver = on;
    this.unlock();
    this.draw();
    void this.refresh();
    this.focus();
  }

  private unlock(): void {
    say(this.take, this.takenOver ? "Hand back" : "Take over");
    this.take.setAttribute("aria-pressed", String(this.takenOver));
    this.prompt.hidden = !this.takenOver;
    for (const block of this.blocks.values()) block.unlock(this.takenOver);
    for (const row of this.processes.values()) row.unlock(this.takenOver);
  }

  private async run(): Promise<void> {
    const command = this.input.value;
    if (!command.trim()) return;
    this.input.value = "";
    this.atEnd = true; // the person wants to see the command
    this.keepEnd();
    try {
      const { exec_id = "", stream_id } = await this.connection.call("exec.stream", { session_id: this.session, command });
      if (!this.blocks.has(exec_id)) this.entered.set(exec_id, new ExecBlock(this.connection, exec_id, stream_id, command));
    } catch (error) {
      this.input.value = command;
      complain("Run", error);
    }
  }
}
