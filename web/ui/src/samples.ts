import { at } from "./at";
import { TrlError } from "./client";
import type { Connection } from "./connection";
import { guestToken } from "./guest";
import { parse, quantile, sum, label, type Scrape } from "./prometheus";
import { Signal } from "./signal";
import type { Stats } from "./wire";

/** One sample of a pool: its state, and what happened since the previous sample. */
export interface Sample {
  at: number; // epoch ms
  creating: number;
  idle: number;
  running: number;
  ok?: number; // commands per second, by their end
  failed?: number;
  ran?: number; // commands per second, however they ended; of nodes whose /metrics are not ours to read
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

/** What is known of one pool. */
export interface History {
  samples: Sample[];
  why?: string; // why the latest request was refused
  stats?: Stats;
  totals?: Totals | undefined;
  before?: { at: number; stats: Stats; scrape: Scrape | undefined };
}

// Reads the statistics every other second for as long as the page is open, so that the pool view can show the past: of one pool, or in a cluster of all
// nodes or the chosen one. /metrics tells more, but of the node that answers alone. If /metrics has a listener of its own, system.stats is all there is.
export class Samples {
  readonly changed = new Signal<void>();
  private readonly histories = new Map<string, History>();
  node = ""; // the chosen node; "": all
  shown: History;

  constructor(private readonly connection: Connection) {
    this.shown = this.history("");
    if (guestToken) return; // guests may not see the pool
    setInterval(() => void this.look(), every);
    connection.status.on((status) => status.kind === "up" && void this.look());
    connection.nodeChanged.on(() => this.histories.forEach((history) => delete history.before)); // the counters are of another gateway
  }

  /** Shows another node; "": all. */
  choose(node: string): void {
    this.node = node;
    this.shown = this.history(node);
    this.changed.emit();
    void this.look();
  }

  get samples(): Sample[] {
    return this.shown.samples;
  }

  set samples(samples: Sample[]) {
    this.shown.samples = samples;
  }

  /** Whether the numbers of /metrics belong to what is shown: those of the node that answers. */
  get measured(): boolean {
    return this.node === this.connection.node;
  }

  private history(node: string): History {
    let history = this.histories.get(node);
    if (!history) this.histories.set(node, (history = { samples: [] }));
    return history;
  }

  private async look(): Promise<void> {
    if (!this.connection.up) return;
    const { node, shown: history } = this;
    try {
      const [stats, scrape] = await Promise.all([this.connection.call("system.stats", node ? { node } : {}), this.measured ? scrapeMetrics() : undefined]);
      Object.assign(history, { stats, why: undefined });
      const at = Date.now();
      const sample: Sample = { at, creating: stats.by_state.CREATING ?? 0, idle: stats.by_state.IDLE ?? 0, running: stats.by_state.RUNNING ?? 0 };
      const { before } = history;
      const seconds = before ? (at - before.at) / 1000 : 0;
      history.totals = scrape && totals(scrape);
      if (scrape && before?.scrape) compare(sample, before.scrape, scrape, seconds);
      else if (before && seconds > 0) count(sample, before.stats, stats, seconds);
      history.before = { at, stats, scrape };
      history.samples.push(sample);
      if (history.samples.length > kept) history.samples.shift();
    } catch (error) {
      if (error instanceof TrlError) history.why = error.message;
      // without a connection, or while the node cannot be reached, the plots get a hole
    }
    if (history === this.shown) this.changed.emit();
  }
}

/** Puts into a sample what the counters of /metrics tell of the seconds since the previous one. */
function compare(sample: Sample, old: Scrape, scrape: Scrape, seconds: number): void {
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

/** The same from system.stats. A node that did not answer one of the two times would count as commands that ran, or the reverse. */
function count(sample: Sample, old: Stats, stats: Stats, seconds: number): void {
  const ran = stats.total_commands_run - old.total_commands_run;
  if (ran >= 0 && !old.partial && !stats.partial) sample.ran = ran / seconds;
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
