import { Plain } from "./ansi";
import { h } from "./dom";
import { bytes } from "./format";
import type { Chunk, Follower } from "./client";

/** How much output of one command is shown at its beginning and at its end; more text makes the page slow. */
const head = 32 << 10;
const tail = 96 << 10;

interface Piece {
  text: string;
  ill: boolean; // stderr
}

// The output of a command or process as it arrives. stderr has its own colour; a long output is cut in the middle. The page draws it once per frame,
// however many pieces have come.
export class Output implements Follower {
  readonly element = h("pre", { class: "output", attr: { tabindex: 0, "aria-label": "output" } });
  private readonly first = h("span");
  private readonly cut = h("span", { class: "output-cut", attr: { hidden: true } });
  private readonly last = h("span");
  private readonly plain = { stdout: new Plain(), stderr: new Plain(), tty: new Plain() };
  private fresh: Piece[] = [];
  private headLength = 0;
  private tailLength = 0;
  private omitted = 0;
  private frame = 0;

  constructor() {
    this.element.append(this.first, this.cut, this.last);
  }

  chunk(chunk: Chunk): void {
    this.push(this.plain[chunk.stream].take(chunk.bytes), chunk.stream === "stderr");
  }

  gap(from: number, to: number): void {
    this.omitted += to - from;
    this.push(`\n[${bytes(to - from)} no longer kept]\n`, false);
  }

  private push(text: string, ill: boolean): void {
    if (!text) return;
    const before = this.fresh.at(-1);
    if (before && before.ill === ill) before.text += text;
    else this.fresh.push({ text, ill });
    // A hidden tab gets no frames. Output that will be cut is not kept meanwhile.
    if (before && before.text.length > 4 * tail) before.text = this.trim(before.text);
    if (!this.frame) this.frame = requestAnimationFrame(() => this.draw());
  }

  private trim(text: string): string {
    if (this.headLength < head) return text;
    this.omitted += text.length - tail;
    return text.slice(-tail);
  }

  private draw(): void {
    this.frame = 0;
    const { element } = this;
    const follows = element.scrollTop + element.clientHeight >= element.scrollHeight - 8;
    for (const { text, ill } of this.fresh) {
      let rest = text;
      if (this.headLength < head) {
        const part = rest.slice(0, head - this.headLength);
        this.headLength += part.length;
        append(this.first, part, ill);
        rest = rest.slice(part.length);
      }
      if (rest.length > tail) {
        this.omitted += rest.length - tail;
        rest = rest.slice(-tail);
      }
      if (!rest) continue;
      this.tailLength += rest.length;
      append(this.last, rest, ill);
    }
    this.fresh = [];
    while (this.tailLength > tail && this.last.firstChild) this.shorten(this.tailLength - tail);
    this.cut.hidden = this.omitted === 0;
    this.cut.textContent = `\n… ${bytes(this.omitted)} not shown …\n`;
    if (follows) element.scrollTop = element.scrollHeight;
  }

  private shorten(by: number): void {
    const oldest = this.last.firstChild as HTMLElement;
    const text = oldest.textContent ?? "";
    const drop = Math.min(by, text.length);
    if (drop === text.length) oldest.remove();
    else oldest.textContent = text.slice(drop);
    this.tailLength -= drop;
    this.omitted += drop;
  }
}

function append(to: HTMLElement, text: string, ill: boolean): void {
  const before = to.lastElementChild;
  const kind = ill ? "stderr" : "stdout";
  if (before?.className === kind && (before.textContent?.length ?? 0) < 16384) before.append(text);
  else to.append(h("span", { class: kind }, text));
}
