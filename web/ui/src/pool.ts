import { fill, h } from "./dom";
import { bytes, count, duration } from "./format";
import { Plot } from "./plot";
import type { Samples } from "./samples";
import { Signal } from "./signal";
import type { View } from "./view";

// The whole pool: how full, busy and fast it is, and the work of the reaper.
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
  private off: (() => void) | undefined;

  constructor(private readonly samples: Samples) {
    this.element = h(
      "section",
      { class: "pool", attr: { "aria-label": "pool", tabindex: 0 } },
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
    this.off = this.samples.changed.on(() => this.draw());
    this.draw();
  }

  hide(): void {
    this.off?.();
  }

  focus(): void {
    this.element.focus();
  }

  close(): void {
    this.off?.();
  }

  private draw(): void {
    const { samples, stats, totals } = this.samples;
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
        ["Up", duration(stats.uptime_s * 1000)],
      ];
      fill(this.tiles, ...tiles.map(([name, value]) => h("div", { class: "tile" }, h("dt", {}, name), h("dd", { class: "num" }, value))));
    }
    const times = samples.map((s) => s.at);
    const pick = (key: "creating" | "idle" | "running" | "ok" | "failed" | "p50" | "p95") => samples.map((s) => s[key]);
    this.sessions.draw(times, [
      { name: "running", kind: "c1", values: pick("running") },
      { name: "idle", kind: "c2", values: pick("idle") },
      { name: "starting", kind: "c3", values: pick("creating") },
    ]);
    this.rate.draw(times, [
      { name: "ok", kind: "c1", values: pick("ok") },
      { name: "not ok", kind: "c4", values: pick("failed") },
    ]);
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
