import type { IDecoration, IMarker, Terminal as Xterm } from "@xterm/xterm";
import { exitWords, type Ending } from "./exit";
import { duration } from "./format";
import { Signal } from "./signal";
import { themeChanged } from "./theme";

/** How many commands of a terminal are remembered. It is bounded because xterm.js looks at every marker for each line that scrolls out. */
const most = 1000;

/** One command in a terminal, as the shell's marks report it (OSC 133 and 633: prompt A, command B, output C, end D). */
export interface Block {
  prompt: IMarker;
  from?: IMarker; // the first line of its output
  to?: IMarker; // the line after the last
  column: number; // where the command's text begins on the prompt's last line
  commandAt?: IMarker;
  command: string;
  began?: number; // epoch ms; absent if it was replayed, because the time is then unknown
  took?: number;
  exit?: number;
  ended: boolean;
  decoration?: IDecoration;
}

// The commands of one terminal, with marks beside the prompts and in the scroll bar.
export class Marks {
  readonly changed = new Signal<void>();
  readonly finished = new Signal<Block>(); // not for replayed commands
  readonly picked = new Signal<Block>();
  blocks: Block[] = [];
  private selected: Block | undefined;
  private readonly stale = new Set<Block>(); // their decorations are out of date
  private readonly end: () => void;
  /** The nonce in the shell's marks. The first mark comes from the shell; other programs that print marks do not know the nonce. */
  private word: string | undefined;

  constructor(
    private readonly term: Xterm,
    private readonly replaying: () => boolean,
  ) {
    const mark = (data: string): boolean => {
      this.mark(data);
      return true;
    };
    term.parser.registerOscHandler(133, mark);
    term.parser.registerOscHandler(633, mark);
    this.end = themeChanged.on(() => this.blocks.forEach((block) => this.decorate(block)));
  }

  close(): void {
    this.end();
  }

  /** The block that shortcuts use: the selected one, else the last one with output. */
  get current(): Block | undefined {
    return this.selected ?? this.blocks.findLast((block) => block.from);
  }

  get running(): Block | undefined {
    const last = this.blocks.at(-1);
    return last?.from && !last.ended ? last : undefined;
  }

  /** Scrolls to the command before or after the one at the top of the screen, and picks it. */
  jump(by: 1 | -1): void {
    const { buffer } = this.term;
    if (buffer.active.type === "alternate") return;
    const at = this.selected ? this.selected.prompt.line : by < 0 ? buffer.normal.baseY + buffer.normal.cursorY : buffer.normal.viewportY;
    const ran = this.blocks.filter((block) => block.from && !block.prompt.isDisposed);
    const to = by < 0 ? ran.findLast((block) => block.prompt.line < at) : ran.find((block) => block.prompt.line > at);
    if (!to) {
      if (by > 0) {
        this.pick(undefined);
        this.term.scrollToBottom();
      }
      return;
    }
    this.pick(to);
    this.term.scrollToLine(Math.max(0, to.prompt.line - 1));
  }

  pick(block: Block | undefined): void {
    const before = this.selected;
    this.selected = block;
    if (before) this.decorate(before);
    if (block) {
      this.decorate(block);
      this.picked.emit(block);
    }
    this.changed.emit();
  }

  /** The output of a command as text. */
  output(block: Block): string {
    if (!block.from || block.from.isDisposed) return "";
    const { normal } = this.term.buffer;
    const end = block.to && !block.to.isDisposed ? block.to.line : normal.baseY + normal.cursorY + 1;
    return textBetween(this.term, block.from.line, end);
  }

  /** Ends the running command: its mark is missing because its shell ended, or because output is missing. */
  unmarkedEnd(code?: number): void {
    if (this.running) this.ends(this.running, code?.toString());
  }

  private mark(data: string): void {
    if (this.term.buffer.active.type === "alternate") return; // such marks come from a full-screen program, for example one that plays a recording
    const [kind, ...rest] = data.split(";");
    const word = kind === "E" ? rest[1] : rest.find((part) => part.startsWith("aid="))?.slice(4);
    this.word ??= word;
    if (word !== this.word) return;
    const last = this.blocks.at(-1);
    switch (kind) {
      case "A":
        this.promptBegins();
        return;
      case "B":
        if (last && !last.from) {
          last.column = this.term.buffer.normal.cursorX;
          last.commandAt?.dispose();
          last.commandAt = this.term.registerMarker(0);
        }
        return;
      case "E": // 633: the command's text, with ; \ and controls as \xHH
        if (last) last.command = (rest[0] ?? "").replace(/\\(\\|x[0-9a-fA-F]{2})/g, (_, code: string) => (code === "\\" ? code : String.fromCharCode(parseInt(code.slice(1), 16))));
        return;
      case "C":
        if (last && !last.from) this.outputBegins(last);
        return;
      case "D":
        if (last && !last.ended) this.ends(last, rest[0]);
    }
  }

  private promptBegins(): void {
    const last = this.blocks.at(-1);
    if (last && !last.from) { // Enter at an empty prompt, or a prompt that was drawn again
      this.blocks.pop();
      forget(last);
    }
    if (this.blocks.length >= most) forget(this.blocks[0]!);
    const prompt = this.term.registerMarker(0);
    const block: Block = { prompt, column: 0, command: "", ended: false };
    prompt.onDispose(() => this.gone(block));
    this.blocks.push(block);
  }

  /** Forgets a block whose prompt has left the buffer. The last block stays until the next one begins, because its command may not have ended. */
  private gone(block: Block): void {
    if (block === this.blocks.at(-1) || block === this.blocks.findLast((b) => b.from)) return;
    const at = this.blocks.indexOf(block);
    if (at >= 0) this.blocks.splice(at, 1);
    if (this.selected === block) this.pick(undefined);
  }

  private outputBegins(block: Block): void {
    block.from = this.term.registerMarker(0);
    const before = this.blocks.at(-2);
    if (before?.prompt.isDisposed) this.gone(before);
    if (!block.command && block.commandAt && !block.commandAt.isDisposed) {
      block.command = textBetween(this.term, block.commandAt.line, block.from.line, block.column).trim();
    }
    if (!this.replaying()) block.began = Date.now();
    this.redraw(block);
  }

  private ends(block: Block, code: string | undefined): void {
    block.ended = true;
    if (!block.from) return;
    block.to = this.term.registerMarker(this.term.buffer.normal.cursorX > 0 ? 1 : 0);
    this.redraw(block);
    if (!code) return;
    block.exit = Number(code);
    if (block.began === undefined) return;
    block.took = Date.now() - block.began;
    this.finished.emit(block);
  }

  /** Decorates all stale blocks at once, because one piece of output may have thousands of marks. */
  private redraw(block: Block): void {
    if (this.stale.size === 0) {
      queueMicrotask(() => {
        const blocks = [...this.stale];
        this.stale.clear();
        blocks.forEach((b) => this.decorate(b));
        this.changed.emit();
      });
    }
    this.stale.add(block);
  }

  private decorate(block: Block): void {
    if (!block.from) return; // no command has run at this prompt
    block.decoration?.dispose();
    if (block.prompt.isDisposed) return;
    const kind = !block.ended ? "running" : block.exit === 0 ? "well" : "ill";
    const css = getComputedStyle(document.documentElement);
    const decoration = this.term.registerDecoration({
      marker: block.prompt,
      width: 1,
      overviewRulerOptions: kind === "ill" ? { color: css.getPropertyValue("--ruler-ill").trim() || "#b3261e", position: "right" } : undefined,
    });
    if (!decoration) return;
    block.decoration = decoration;
    decoration.onRender((element) => {
      element.className = `${element.className.replace(/ ?command-mark.*/, "")} command-mark ${kind}${this.selected === block ? " picked" : ""}`;
      element.title = blockWords(block);
      element.onclick = () => this.pick(this.selected === block ? undefined : block);
    });
  }
}

function forget(block: Block): void {
  for (const marker of [block.commandAt, block.from, block.to, block.prompt]) marker?.dispose();
}

/** The result of an ended command, if the terminal reported it. */
export function endingOf(block: Block): Ending {
  return block.exit === undefined ? { error: { message: "nobody saw its end" } } : { exit_code: block.exit };
}

/** exit 2 · 1.3 s */
export function blockWords(block: Block): string {
  const words = [block.ended ? exitWords(endingOf(block)) : "running"];
  if (block.took !== undefined) words.push(duration(block.took));
  return words.join(" · ");
}

/** The text of some lines of the scrollback, wrapped ones joined. */
export function textBetween(term: Xterm, from: number, to: number, column = 0): string {
  const lines: string[] = [];
  const { normal } = term.buffer;
  for (let y = from; y < to; y++) {
    const line = normal.getLine(y);
    if (!line) break;
    const wrapsOn = normal.getLine(y + 1)?.isWrapped ?? false;
    const text = line.translateToString(!wrapsOn, y === from ? column : 0);
    if (line.isWrapped && lines.length > 0) lines[lines.length - 1] += text;
    else lines.push(text);
  }
  return lines.join("\n").replace(/\n+$/, "");
}
