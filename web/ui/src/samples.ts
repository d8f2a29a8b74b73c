import { at } from "./at";
import type { Connection } from "./connection";
import { guestToken } from "./guest";
import { parse, quantile, sum, label, type Scrape } from "./prometheus";
import { Signal } from "./signal";
import type { Stats } from "./wire";

/** One sample of the pool: its state, and what happened since the previous sample. */
export interface Sample {
  at: number; // epoch ms
  creating: number;
  idle: number;
  running: number;
  ok?: number; // commands per second, by their end
  failed?: number;
  p50?: number; // ms
  p95?: number;
}

/** The counters since the gateway's start. */
export interface Totals {
  reaped: [reason: string, n: number][];
  ended: [reason: string, n: number][];
  acts: [what: string, n: number][];
}

const every = 2000;
const kept = 450; // a quarter of an hour

// Reads /metrics every other second for as long as the page is open, so that the pool view can show the past. If /metrics has
// a listener of its own, it uses system.stats, which has less.
export class Samples {
  readonly changed = new Signal<void>();
  samples: Sample[] = [];
  stats: Stats | undefined;
  totals: Totals | undefined;
  private before: { at: number; scrape: Scrape } | undefined;

  constructor(private readonly connection: Connection) {
    if (guestToken) return; // guests may not see the pool
    setInterval(() => void this.look(), every);
    connection.status.on((status) => status.kind === "up" && void this.look());
  }

  private async look(): Promise<void> {
    if (!this.connection.up) return;
    try {
      const [stats, scrape] = await Promise.all([this.connection.call("system.stats", {}), scrapeMetrics()]);
      this.stats = stats;
      const at = Date.now();
      const sample: Sample = { at, creating: stats.by_state.CREATING ?? 0, idle: stats.by_state.IDLE ?? 0, running: stats.by_state.RUNNING ?? 0 };
      if (scrape) {
        this.compare(sample, scrape, at);
        this.totals = totals(scrape);
      }
      this.before = scrape && { at, scrape };
      this.samples.push(sample);
      if (this.samples.length > kept) this.samples.shift();
      this.changed.emit();
    } catch {
      // without a connection the plots get a hole
    }
  }

  private compare(sample: Sample, scrape: Scrape, at: number): void {
    if (!this.before) return;
    const { scrape: old, at: then } = this.before;
    const seconds = (at - then) / 1000;
    const grown = (good: boolean) => {
      const those = (labels: string) => (label(labels, "outcome") === "ok") === good;
      return sum(scrape, "trl_execs_total", those) - sum(old, "trl_execs_total", those);
    };
    if (grown(true) < 0 || seconds <= 0) return; // the counters of another gateway began at 0
    sample.ok = grown(true) / seconds;
    sample.failed = grown(false) / seconds;
    const ms = (q: number) => {
      const s = quantile(old, scrape, "trl_exec_duration_seconds", q);
      return s === undefined ? undefined : s * 1000;
    };
    sample.p50 = ms(0.5);
    sample.p95 = ms(0.95);
  }
}

async function scrapeMetrics(): Promise<Scrape | undefined> {
  const answer = await fetch(at("metrics"));
  return answer.ok ? parse(await answer.text()) : undefined;
}

function totals(scrape: Scrape): Totals {
  const by = (name: string, key: string): [string, number][] =>
    [...scrape].filter(([series]) => series.startsWith(`${name}{`)).map(([series, value]): [string, number] => [label(series, key).replaceAll("_", " "), value]);
  return {
    reaped: by("trl_sessions_reaped_total", "reason"),
    ended: by("trl_sessions_ended_total", "reason"),
    acts: [
      ["Orphans killed", sum(scrape, "trl_orphans_killed_total")],
      ["Zombies reaped", sum(scrape, "trl_zombies_reaped_total")],
      ["TERM was not enough", sum(scrape, "trl_kill_escalations_total")],
      ["KILL was not enough", sum(scrape, "trl_kill_failed_total")],
      ["Shells restored", sum(scrape, "trl_shell_restores_total")],
      ["Slow clients dropped", sum(scrape, "trl_slow_clients_dropped_total")],
      ["Gateway crashes", sum(scrape, "trl_gateway_crashes_total")],
    ],
  };
}
