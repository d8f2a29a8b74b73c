import { button, fill, h, say } from "./dom";
import { bytes, count, duration } from "./format";
import { icon } from "./icons";
import { nodeLabels, nodeState, type Nodes } from "./nodes";
import type { Place } from "./place";
import { Plot } from "./plot";
import type { Sample, Samples } from "./samples";
import { Signal } from "./signal";
import type { View } from "./view";
import type { Node } from "./wire";

const every = 2000; // ms between two requests for the nodes
const maxRows = 100; // nodes in the table

// The whole pool: how full, busy and fast it is, and the work of the reaper. In a cluster it has the nodes, and shows the pool of one of them or of all.
export class Pool implements View {
  readonly key = "pool";
  readonly icon = "pool";
  readonly changed = new Signal<void>();
  readonly element: HTMLElement;
  private readonly tiles = h("dl", { class: "tiles" });
  private readonly sessions = new Plot({ title: "Sessions by state", least: 2, format: count, stacked: true });
  private readonly rate = new Plot({ title: "Commands per second", least: 1, format: (v) => count(v), spans: true });
  private readonly latency = new Plot({ title: "Duration of a command", least: 10, format: duration, spans: true });
  private readonly reaper = h("div", { class: "tables" });
  private readonly rows = h("tbody");
  private readonly note = h("p", { class: "pool-note", attr: { role: "status", hidden: true } });
  private readonly nodeTable = h(
    "table",
    { class: "nodes", attr: { "aria-label": "nodes of the cluster" } },
    h("thead", {}, h("tr", {}, ...["Node", "State", "Sessions", "Load", "Labels", "Version", ""].map((word) => h("th", { attr: { scope: "col" } }, word || h("span", { class: "sr" }, "Actions"))))),
    this.rows,
  );
  private ends: (() => void)[] = [];

  constructor(
    private readonly samples: Samples,
    private readonly nodes: Nodes,
    private readonly create: (place: Place) => void,
    private readonly mayOwn: () => boolean,
  ) {
    this.element = h(
      "section",
      { class: "pool", attr: { "aria-label": "pool", tabindex: 0 } },
      this.nodeTable,
      this.note,
      this.tiles,
      h("div", { class: "plots" }, this.sessions.element, this.rate.element, this.latency.element),
      this.reaper,
    );
  }

  label(): string {
    return "Pool";
  }

  mark(): "" {
    return "";
  }

  show(): void {
    const timer = setInterval(() => document.visibilityState === "visible" && this.nodes.clustered && void this.nodes.refresh(), every);
    this.ends = [this.samples.changed.on(() => this.draw()), this.nodes.changed.on(() => this.drawNodes()), () => clearInterval(timer)];
    this.draw();
    void this.nodes.refresh();
  }

  hide(): void {
    for (const end of this.ends) end();
  }

  focus(): void {
    this.element.focus();
  }

  close(): void {
    this.hide();
  }

  /** The nodes, and for all of them together the first row. The button of a row chooses what the rest of the view shows. */
  private drawNodes(): void {
    const { list, clustered } = this.nodes;
    this.nodeTable.hidden = !clustered;
    if (this.samples.node && (!clustered || (list.length && !list.some(({ node }) => node === this.samples.node)))) this.samples.choose(""); // it is gone
    const silent = this.samples.node ? [] : (this.samples.shown.stats?.partial ?? []);
    const said = JSON.stringify([list, silent, this.samples.node, this.mayOwn()]);
    if (this.rows.dataset.said === said) return;
    this.rows.dataset.said = said;
    const focused = this.rows.contains(document.activeElement) ? (document.activeElement as HTMLElement).dataset.focus : undefined;
    const sum = (of: "active_sessions" | "max_sessions") => list.reduce((total, node) => total + node[of], 0);
    const shown = this.mostTelling(list, silent);
    fill(
      this.rows,
      h("tr", {}, this.choice("", "All nodes"), h("td", {}, ""), h("td", { class: "num nodes-all" }, `${sum("active_sessions")} / ${sum("max_sessions")}`), ...["", "", "", ""].map(() => h("td"))),
      ...shown.map((node) => this.row(node, silent.includes(node.node))),
      shown.length < list.length && h("tr", {}, h("td", { class: "muted nodes-more", attr: { colspan: 7 } }, `${list.length - shown.length} more. \`trl nodes\` lists all.`)),
    );
    if (focused) this.rows.querySelector<HTMLElement>(`[data-focus="${CSS.escape(focused)}"]`)?.focus();
  }

  /** At most maxRows of the nodes, in the order of the list: the one that answers and the chosen one, those that take no sessions, and some of the others. */
  private mostTelling(list: readonly Node[], silent: readonly string[]): readonly Node[] {
    if (list.length <= maxRows) return list;
    const rank = (node: Node) => (node.self || node.node === this.samples.node ? 0 : nodeState(node) !== "ready" || silent.includes(node.node) ? 1 : 2);
    const kept = new Set(list.toSorted((a, b) => rank(a) - rank(b)).slice(0, maxRows)); // the sort keeps the order by name
    return list.filter((node) => kept.has(node));
  }

  private row(node: Node, silent: boolean): HTMLElement {
    const state = silent && !node.unreachable ? "does not answer" : nodeState(node);
    const make = button(`New session on ${node.node}`, () => this.create({ node: node.node }), { icon: icon("plus") });
    make.dataset.focus = `create ${node.node}`;
    make.disabled = state !== "ready";
    return h(
      "tr",
      {},
      this.choice(node.node, node.node, node.self),
      h("td", { class: `node-state ${state === "ready" ? "well" : silent || node.unreachable ? "ill" : "warn"}`, title: node.unreachable ?? "" }, state),
      h("td", { class: "num" }, `${node.active_sessions} / ${node.max_sessions}`),
      h("td", { class: "num node-load" }, (node.load ?? 0).toFixed(2)),
      h("td", { class: "node-labels" }, nodeLabels(node).join(" ")),
      h("td", { class: "muted" }, node.version),
      h("td", { class: "node-make" }, this.mayOwn() && make),
    );
  }

  private choice(node: string, words: string, self = false): HTMLElement {
    const on = this.samples.node === node;
    const choose = button(words, () => {
      this.samples.choose(node);
      this.draw();
    }, { class: "small", hint: `Show the pool of ${node || "all nodes"}` });
    choose.setAttribute("aria-pressed", String(on));
    choose.dataset.focus = `choose ${node}`;
    return h("th", { attr: { scope: "row" } }, choose, self && h("span", { class: "muted" }, " answers here"));
  }

  /** Says what of the numbers is missing, or not of all nodes. */
  private drawNote(): void {
    const { shown, node, measured } = this.samples;
    const silent = node ? [] : (shown.stats?.partial ?? []);
    const words = [
      this.nodes.degraded && "The cluster's directory does not answer. The nodes are shown as they were known, and new names cannot be claimed.",
      shown.why && `${shown.why}. The numbers are old.`,
      silent.length > 0 && `Without ${new Intl.ListFormat("en").format(silent)}, which did not answer.`,
      this.nodes.clustered && !measured && `Results and durations of commands, and what the reaper did, are shown for ${this.nodes.self || "this node"} alone, which answers here.`,
    ].filter(Boolean);
    this.note.hidden = words.length === 0;
    say(this.note, words.join(" "));
  }

  private draw(): void {
    this.drawNodes();
    this.drawNote();
    const { samples, shown: { stats, totals }, measured, node } = this.samples;
    const one = !this.nodes.clustered || node !== "";
    if (stats) {
      const tiles: [string, string][] = [
        ["Sessions", `${stats.active_sessions} / ${stats.max_sessions}`],
        ["Running", count(stats.running)],
        ["Queued", count(stats.queued)],
        ["Processes", count(stats.processes)],
        ["Terminals", count(stats.terminals)],
        ["Warm shells", count(stats.warm_shells)],
        ["Commands", count(stats.total_commands_run)],
        ["Memory", bytes(stats.memory_rss_bytes)],
        ...(one ? [["Up", duration(stats.uptime_s * 1000)] as [string, string]] : []),
      ];
      fill(this.tiles, ...tiles.map(([name, value]) => h("div", { class: "tile" }, h("dt", {}, name), h("dd", { class: "num" }, value))));
    }
    const times = samples.map((s) => s.at);
    const pick = (key: Exclude<keyof Sample, "at">) => samples.map((s) => s[key]);
    this.sessions.draw(times, [
      { name: "running", kind: "c1", values: pick("running") },
      { name: "idle", kind: "c2", values: pick("idle") },
      { name: "starting", kind: "c3", values: pick("creating") },
    ]);
    this.rate.draw(times, measured
      ? [{ name: "ok", kind: "c1", values: pick("ok") }, { name: "not ok", kind: "c4", values: pick("failed") }]
      : [{ name: "ended", kind: "c1", values: pick("ran") }]);
    this.latency.element.hidden = this.reaper.hidden = !measured;
    if (!measured) return;
    this.latency.draw(times, [
      { name: "median", kind: "c1", values: pick("p50") },
      { name: "95 %", kind: "c3", values: pick("p95") },
    ]);
    if (!totals) {
      fill(this.reaper, h("p", { class: "muted" }, "/metrics has a listener of its own here: rates, times and the reaper's counts are there."));
      return;
    }
    fill(
      this.reaper,
      table("Sessions that the reaper ended", totals.reaped, "The reaper has ended no sessions."),
      table("Ended sessions, by reason", totals.ended, "No sessions have ended."),
      table("Cleaning up", totals.acts, ""),
    );
  }
}

function table(title: string, rows: [string, number][], empty: string): HTMLElement {
  const body = rows.length
    ? h("table", {}, h("tbody", {}, ...rows.map(([name, n]) => h("tr", {}, h("th", { attr: { scope: "row" } }, name), h("td", { class: n ? "num" : "num muted" }, count(n))))))
    : h("p", { class: "muted" }, empty);
  return h("section", { class: "table" }, h("h3", {}, title), body);
}
