import type { Terminal as Xterm } from "@xterm/xterm";

const slack = 8; // px: a finger that has moved less taps or presses
const pressTime = 500; // ms until a finger that rests selects
const restTime = 80; // ms: a finger that rested before it left causes no momentum
const friction = 0.996; // of the speed that is left after each ms
const leastSpeed = 0.03; // px per ms
const edgeEvery = 60; // ms between two lines, while a selection is dragged beyond the edge
const separators = /[\s()[\]{}'"`,;<>|]/;

interface Cell {
  col: number;
  row: number; // of the buffer
}

interface Hooks {
  /** Whether full-screen programs get the finger's movement. */
  types(): boolean;
  selected(): void;
}

// A finger on a terminal: dragging scrolls, with momentum; holding selects a word, and dragging then extends the selection. The browser
// turns taps into clicks. xterm.js 6 has none of this.
export class Touch {
  private last: { x: number; y: number; at: number } | undefined; // of the first finger
  private moved = false;
  private speed = 0; // px per ms, positive downwards
  private rest = 0; // px that are less than a line
  private press = 0;
  private frame = 0;
  private edge = 0;
  private anchor: [Cell, Cell] | undefined; // the word where a selection began, while it is made

  /** scroller is the element that scrolls if the terminal is larger than its place. */
  constructor(
    private readonly term: Xterm,
    private readonly screen: HTMLElement,
    private readonly scroller: HTMLElement,
    private readonly hooks: Hooks,
  ) {
    screen.addEventListener("touchstart", (event) => this.start(event), { passive: true });
    screen.addEventListener("touchmove", (event) => this.move(event), { passive: false });
    screen.addEventListener("touchend", (event) => this.end(event), { passive: false });
    screen.addEventListener("touchcancel", () => this.stop());
    screen.addEventListener("contextmenu", (event) => this.anchor && event.preventDefault());
  }

  /** Ends momentum and scrolling selections. */
  stop(): void {
    clearTimeout(this.press);
    clearInterval(this.edge);
    cancelAnimationFrame(this.frame);
    this.edge = this.frame = this.press = 0;
    this.last = this.anchor = undefined;
  }

  private start(event: TouchEvent): void {
    this.stop();
    if (event.touches.length !== 1) return; // the browser handles two fingers
    const { clientX: x, clientY: y } = event.touches[0]!;
    this.last = { x, y, at: event.timeStamp };
    this.moved = false;
    this.speed = this.rest = 0;
    this.press = setTimeout(() => this.pick(x, y), pressTime);
  }

  private move(event: TouchEvent): void {
    const { last } = this;
    if (!last || event.touches.length !== 1) return this.stop();
    const { clientX: x, clientY: y } = event.touches[0]!;
    if (this.anchor) {
      if (event.cancelable) event.preventDefault();
      this.extend(x, y);
      return;
    }
    if (!this.moved && Math.hypot(x - last.x, y - last.y) < slack) return;
    this.moved = true;
    clearTimeout(this.press);
    if (event.cancelable) event.preventDefault();
    const took = Math.max(1, event.timeStamp - last.at);
    this.speed = 0.6 * ((y - last.y) / took) + 0.4 * this.speed;
    this.scroller.scrollLeft -= x - last.x;
    this.scroll(y - last.y, x, y);
    this.last = { x, y, at: event.timeStamp };
  }

  private end(event: TouchEvent): void {
    const { last, anchor } = this;
    const { speed, moved } = this;
    this.stop();
    if (anchor) {
      event.preventDefault(); // no click: it would end the selection
      this.hooks.selected();
    } else if (moved && last) {
      event.preventDefault();
      const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
      if (!calm && !this.programs() && event.timeStamp - last.at < restTime) this.glide(speed, performance.now());
    }
  }

  /** Scrolls on at the finger's speed, which decreases. */
  private glide(speed: number, then: number): void {
    this.frame = requestAnimationFrame((now) => {
      this.frame = 0;
      const took = Math.max(0, now - then);
      const left = speed * friction ** took;
      if (Math.abs(left) >= leastSpeed && this.scroll(left * took, 0, 0)) this.glide(left, now);
    });
  }

  /** Whether the program in the terminal gets the movement, like that of a wheel. */
  private programs(): boolean {
    return this.term.buffer.active.type === "alternate" || this.term.modes.mouseTrackingMode !== "none";
  }

  /** Scrolls by this many pixels, and returns whether anything can move in that direction. */
  private scroll(by: number, x: number, y: number): boolean {
    const before = this.scroller.scrollTop;
    this.scroller.scrollTop -= by; // if the terminal is larger than its place, the place scrolls first
    this.rest += by + (this.scroller.scrollTop - before);
    const { height } = this.cell();
    const lines = height ? Math.trunc(this.rest / height) : 0;
    if (!lines) return true;
    this.rest -= lines * height;
    if (this.programs()) {
      if (this.hooks.types()) this.wheel(-lines, x, y);
      return true;
    }
    const { viewportY } = this.term.buffer.active;
    this.term.scrollLines(-lines);
    return this.term.buffer.active.viewportY !== viewportY;
  }

  /** Turns a wheel over the terminal: xterm.js makes of it what the program wants, mouse reports or arrows. */
  private wheel(lines: number, clientX: number, clientY: number): void {
    for (let n = Math.abs(lines); n > 0; n--) {
      this.term.element?.dispatchEvent(new WheelEvent("wheel", { deltaY: Math.sign(lines), deltaMode: WheelEvent.DOM_DELTA_LINE, clientX, clientY, bubbles: true, cancelable: true }));
    }
  }

  private grid(): DOMRect {
    return (this.screen.querySelector(".xterm-screen") ?? this.screen).getBoundingClientRect();
  }

  private cell(): { width: number; height: number } {
    const { width, height } = this.grid();
    return { width: width / this.term.cols, height: height / this.term.rows };
  }

  private cellAt(x: number, y: number): Cell {
    const grid = this.grid();
    const { width, height } = this.cell();
    const within = (n: number, most: number) => Math.max(0, Math.min(most - 1, Math.floor(n)));
    return {
      col: within((x - grid.left) / width, this.term.cols),
      row: within((y - grid.top) / height, this.term.rows) + this.term.buffer.active.viewportY,
    };
  }

  /** Selects the word under a resting finger. */
  private pick(x: number, y: number): void {
    this.anchor = this.wordAt(this.cellAt(x, y));
    this.select(...this.anchor);
    navigator.vibrate?.(10);
  }

  private wordAt({ col, row }: Cell): [Cell, Cell] {
    const line = this.term.buffer.active.getLine(row);
    const inWord = (at: number) => {
      const cell = line?.getCell(at);
      return !!cell && (cell.getWidth() === 0 || !(separators.test(cell.getChars()) || cell.getChars() === ""));
    };
    let from = col;
    let to = col;
    if (inWord(col)) {
      while (from > 0 && inWord(from - 1)) from--;
      while (to + 1 < this.term.cols && inWord(to + 1)) to++;
    }
    return [{ col: from, row }, { col: to, row }];
  }

  /** Extends the selection from its first word to the finger. Beyond the edge it scrolls. */
  private extend(x: number, y: number): void {
    const { top, bottom } = this.scroller.getBoundingClientRect();
    clearInterval(this.edge);
    if (y < top || y > bottom) {
      this.edge = setInterval(() => {
        this.term.scrollLines(y < top ? -1 : 1);
        this.reach(x, y);
      }, edgeEvery);
    }
    this.reach(x, y);
  }

  private reach(x: number, y: number): void {
    const [from, to] = this.anchor!;
    const here = this.cellAt(x, y);
    this.select(before(here, from) ? here : from, before(to, here) ? here : to);
  }

  private select(from: Cell, to: Cell): void {
    this.term.select(from.col, from.row, (to.row - from.row) * this.term.cols + to.col - from.col + 1);
  }
}

function before(a: Cell, b: Cell): boolean {
  return a.row < b.row || (a.row === b.row && a.col < b.col);
}
