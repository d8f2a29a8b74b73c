import type { Terminal as Xterm } from "@xterm/xterm";
import { sizeOf, timesOf, type Cast, type CastMark } from "./cast";
import { Signal } from "./signal";

/** How much is written to xterm.js at a time: it drops input beyond 50 MB, and a seek must not freeze the page. */
const piece = 128 << 10;

// Plays a recording into an xterm.js. It keeps the position and the next event. Times are in ms, with pauses cut.
export class Tape {
  readonly moved = new Signal<void>(); // the position or `playing` has changed
  readonly sized = new Signal<void>();
  playing = false;
  speed = 1;

  private times: number[];
  private next = 0; // the first event that has not happened
  private from = 0; // the position…
  private since = 0; // …at this time, while playing
  private timer = 0;
  private drawing = 0; // counts seeks: an older one stops when a newer one begins

  constructor(
    private readonly term: Xterm,
    private readonly cast: Cast,
    pause: number,
  ) {
    this.times = timesOf(cast, pause);
  }

  get length(): number {
    return this.times.at(-1) ?? 0;
  }

  get position(): number {
    return this.playing ? Math.min(this.length, this.from + (performance.now() - this.since) * this.speed) : this.from;
  }

  get over(): boolean {
    return this.next >= this.cast.events.length;
  }

  markTime(mark: CastMark): number {
    return this.times[mark.index] ?? 0;
  }

  /** The mark at or before the position. */
  get mark(): CastMark | undefined {
    return this.cast.marks.findLast((mark) => mark.index < this.next);
  }

  play(): void {
    if (this.playing) return;
    if (this.over) void this.seek(0);
    this.playing = true;
    this.since = performance.now();
    this.tick();
  }

  stop(): void {
    this.from = this.position;
    this.playing = false;
    clearTimeout(this.timer);
    this.moved.emit();
  }

  setSpeed(speed: number): void {
    this.from = this.position;
    this.since = performance.now();
    this.speed = speed;
    if (this.playing) this.tick();
  }

  /** Cuts pauses to this many ms and stays at the same event. */
  setPause(pause: number): void {
    this.times = timesOf(this.cast, pause);
    this.from = this.times[this.next - 1] ?? 0;
    this.since = performance.now();
    if (this.playing) this.tick();
    else this.moved.emit();
  }

  /** Shows the state at a time. */
  async seek(to: number): Promise<void> {
    to = Math.max(0, Math.min(to, this.length));
    let end = this.times.findIndex((at) => at > to);
    if (end < 0) end = this.times.length;
    await this.go(end, to);
  }

  /** Goes to the next or the previous mark; from the middle of a command, the previous mark is its own beginning. */
  async toMark(by: 1 | -1): Promise<void> {
    const { marks } = this.cast;
    const here = this.position;
    const to = by > 0 ? marks.find((mark) => mark.index >= this.next) : (marks.findLast((mark) => mark.index < this.next && this.markTime(mark) < here - 500) ?? undefined);
    if (to) await this.go(to.index + 1, this.markTime(to));
    else await this.seek(by > 0 ? this.length : 0);
  }

  /** Goes forward by one output without playing. */
  async step(): Promise<void> {
    this.stop();
    let end = this.next;
    while (end < this.cast.events.length && this.cast.events[end]!.code !== "o") end++;
    if (end < this.cast.events.length) await this.go(end + 1, this.times[end]!);
  }

  private async go(end: number, position: number): Promise<void> {
    const mine = ++this.drawing;
    clearTimeout(this.timer);
    this.from = position;
    this.since = performance.now();
    if (end < this.next) {
      this.next = 0;
      this.term.reset();
      this.resize(this.cast.cols, this.cast.rows);
    }
    this.moved.emit();
    while (this.next < end) {
      await this.write(end);
      if (mine !== this.drawing) return;
    }
    this.since = performance.now();
    if (this.playing) this.tick();
    else this.moved.emit();
  }

  /** Applies the next events before end, at most one piece of them. */
  private write(end: number): Promise<void> {
    let text = "";
    for (; this.next < end && text.length < piece; this.next++) {
      const event = this.cast.events[this.next]!;
      if (event.code === "o") text += event.data;
      if (event.code !== "r") continue;
      const size = sizeOf(event);
      if (!size) continue;
      if (text) break; // the text before it belongs to the size before it
      this.resize(size.cols, size.rows);
    }
    return new Promise((drawn) => this.term.write(text, drawn));
  }

  private resize(cols: number, rows: number): void {
    if (cols === this.term.cols && rows === this.term.rows) return;
    this.term.resize(cols, rows);
    this.sized.emit();
  }

  /** Applies the events that are due, and runs again when more are. */
  private tick(): void {
    clearTimeout(this.timer);
    const here = this.position;
    let end = this.next;
    while (end < this.times.length && this.times[end]! <= here) end++;
    if (end > this.next) return void this.go(end, here);
    if (this.over) return this.stop();
    const wait = (this.times[this.next]! - here) / this.speed;
    this.timer = setTimeout(() => this.tick(), Math.min(wait, 100)); // the seek bar moves meanwhile
    this.moved.emit();
  }

  close(): void {
    this.drawing++;
    clearTimeout(this.timer);
  }
}
