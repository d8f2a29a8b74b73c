import { fill, h, svg } from "./dom";
import { duration } from "./format";

export interface Line {
  name: string;
  kind: string; // class of its colour
  values: (number | undefined)[]; // undefined: a hole
}

interface Options {
  title: string;
  least: number; // the scale reaches at least to this
  format(value: number): string;
  stacked?: boolean;
  /** A value describes the time since the previous point, not a moment: it is drawn over all of that time. */
  spans?: boolean;
}

const width = 480;
const height = 120;
const left = 44; // room for the scale
const bottom = 16;

// A small plot over time: lines or stacked areas, a scale with round numbers, and the values under the pointer.
export class Plot {
  readonly element: HTMLElement;
  private readonly drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "plot-drawing", role: "img", preserveAspectRatio: "none" });
  private readonly legend = h("div", { class: "plot-legend" });
  private readonly scale = h("div", { class: "plot-scale", attr: { "aria-hidden": "true" } });
  private readonly time = h("div", { class: "plot-time", attr: { "aria-hidden": "true" } });
  private readonly cursor = svg("line", { y1: 0, y2: height - bottom, class: "plot-cursor" });
  private lines: Line[] = [];
  private times: number[] = [];
  private pointed: number | undefined;

  constructor(private readonly options: Options) {
    this.element = h("figure", { class: "plot" }, h("figcaption", {}, h("strong", {}, options.title), this.legend), h("div", { class: "plot-frame" }, this.scale, this.drawing as unknown as HTMLElement, this.time));
    this.drawing.addEventListener("pointermove", (event) => this.point(event as PointerEvent));
    this.drawing.addEventListener("pointerleave", () => {
      this.pointed = undefined;
      this.drawLegend();
    });
  }

  draw(times: number[], lines: Line[]): void {
    this.times = times;
    this.lines = lines;
    const most = nice(Math.max(this.options.least, ...times.map((_, at) => (this.options.stacked ? lines.reduce((sum, line) => sum + (line.values[at] ?? 0), 0) : Math.max(0, ...lines.map((line) => line.values[at] ?? 0))))));
    const y = (value: number) => (height - bottom) * (1 - value / most);
    const shapes: SVGElement[] = [0, 0.5, 1].map((part) => svg("line", { x1: left, x2: width, y1: y(most * part), y2: y(most * part), class: "plot-grid" }));
    const floor = times.map(() => 0);
    for (const line of lines) {
      if (this.options.stacked && !line.values.some(Boolean)) continue; // a line of zeros would draw an edge on top of the others
      const tops = line.values.map((value, at) => (value === undefined ? undefined : this.options.stacked ? floor[at]! + value : value));
      for (const run of runs(tops)) {
        const points = run.flatMap((at) => {
          const point = (x: number) => `${x.toFixed(1)},${y(tops[at]!).toFixed(1)}`;
          return this.options.spans && at > 0 ? [point(this.x(at - 1)), point(this.x(at))] : [point(this.x(at))];
        });
        if (this.options.stacked) {
          const back = [...run].reverse().map((at) => `${this.x(at).toFixed(1)},${y(floor[at]!).toFixed(1)}`);
          shapes.push(svg("polygon", { points: [...points, ...back].join(" "), class: `area ${line.kind}` }));
        }
        const single = points.length === 1; // a value between holes is a dot
        if (single) points.push(points[0]!);
        shapes.push(svg("polyline", { points: points.join(" "), class: `line ${line.kind}${single ? " single" : ""}` }));
      }
      if (this.options.stacked) tops.forEach((top, at) => (floor[at] = top ?? floor[at]!));
    }
    this.drawing.replaceChildren(...shapes, this.cursor);
    fill(this.scale, ...[most, most / 2, 0].map((value) => h("span", {}, value ? this.options.format(value) : "0"))); // zero needs no unit
    const span = times.length > 1 ? times.at(-1)! - times[0]! : 0;
    fill(this.time, h("span", {}, span ? `${duration(span)} ago` : ""), h("span", {}, "now"));
    this.drawLegend();
  }

  private x(at: number): number {
    const first = this.times[0]!;
    const span = Math.max(1, this.times.at(-1)! - first);
    return left + ((this.times[at]! - first) / span) * (width - left);
  }

  private point(event: PointerEvent): void {
    const box = this.drawing.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * width;
    let nearest = 0;
    this.times.forEach((_, at) => {
      if (Math.abs(this.x(at) - x) < Math.abs(this.x(nearest) - x)) nearest = at;
    });
    this.pointed = this.times.length ? nearest : undefined;
    this.drawLegend();
  }

  private drawLegend(): void {
    const at = this.pointed ?? this.times.length - 1;
    this.cursor.classList.toggle("on", this.pointed !== undefined);
    if (this.pointed !== undefined) {
      this.cursor.setAttribute("x1", String(this.x(at)));
      this.cursor.setAttribute("x2", String(this.x(at)));
    }
    const words = this.lines.map((line) => `${line.name} ${line.values[at] === undefined ? "–" : this.options.format(line.values[at]!)}`);
    fill(this.legend, ...this.lines.map((line, n) => h("span", { class: `key ${line.kind}` }, words[n]!)));
    const ago = this.pointed === undefined ? "" : `${duration(Date.now() - this.times[at]!)} ago`;
    if (ago) this.legend.prepend(h("span", { class: "muted" }, ago));
    this.drawing.setAttribute("aria-label", `${this.options.title}: now ${words.join(", ")}`);
  }
}

/** The runs of indexes that have values. */
function runs(values: (number | undefined)[]): number[][] {
  const all: number[][] = [];
  let run: number[] = [];
  values.forEach((value, at) => {
    if (value !== undefined) run.push(at);
    else if (run.length) {
      all.push(run);
      run = [];
    }
  });
  if (run.length) all.push(run);
  return all;
}

/** The smallest of 1, 2, 4, 5, 10 times a power of ten that is at least v: half of it is a round number, too. */
function nice(v: number): number {
  const power = 10 ** Math.floor(Math.log10(v));
  for (const step of [1, 2, 4, 5, 10]) if (v <= step * power * 1.0001) return step * power;
  return 10 * power;
}

