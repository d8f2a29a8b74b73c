// Reads the text format of /metrics into numbers by series; the key is name{labels} as written there.
export type Scrape = Map<string, number>;

export function parse(text: string): Scrape {
  const scrape: Scrape = new Map();
  for (const line of text.split("\n")) {
    if (!line.startsWith("trl_") && !line.startsWith("process_")) continue;
    const at = line.lastIndexOf(" ");
    const value = Number(line.slice(at + 1).replace("+Inf", "Infinity"));
    if (!Number.isNaN(value)) scrape.set(line.slice(0, at), value);
  }
  return scrape;
}

/** The sum over all series of a name, or those with a label value. */
export function sum(scrape: Scrape, name: string, where: (labels: string) => boolean = () => true): number {
  let total = 0;
  for (const [series, value] of scrape) {
    if (series === name || (series.startsWith(`${name}{`) && where(series.slice(name.length)))) total += value;
  }
  return total;
}

export function label(labels: string, name: string): string {
  return new RegExp(`[{,]${name}="([^"]*)"`).exec(labels)?.[1] ?? "";
}

/** The q-quantile of the values that a histogram counted between two scrapes; undefined if it counted none. */
export function quantile(before: Scrape, after: Scrape, name: string, q: number): number | undefined {
  const buckets = new Map<number, number>(); // le → count, all labels together
  for (const [series, value] of after) {
    if (!series.startsWith(`${name}_bucket{`)) continue;
    const le = label(series, "le");
    const bound = le === "+Inf" ? Infinity : Number(le);
    buckets.set(bound, (buckets.get(bound) ?? 0) + value - (before.get(series) ?? 0));
  }
  const sorted = [...buckets].sort(([a], [b]) => a - b);
  const total = sorted.at(-1)?.[1] ?? 0;
  if (total <= 0) return undefined;
  const rank = q * total;
  let lower = 0;
  let below = 0;
  for (const [bound, count] of sorted) {
    if (count >= rank) {
      if (bound === Infinity) return lower;
      return lower + ((bound - lower) * (rank - below)) / Math.max(1, count - below); // linear inside a bucket, as Prometheus does
    }
    lower = bound;
    below = count;
  }
  return lower;
}
