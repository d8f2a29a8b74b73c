import { ClipboardAddon } from "@xterm/addon-clipboard";
import { FitAddon } from "@xterm/addon-fit";
import { SearchAddon } from "@xterm/addon-search";
import { SerializeAddon } from "@xterm/addon-serialize";
import { UnicodeGraphemesAddon } from "@xterm/addon-unicode-graphemes";
import { WebLinksAddon } from "@xterm/addon-web-links";
import { WebglAddon } from "@xterm/addon-webgl";
import { Terminal as Xterm } from "@xterm/xterm";
import { gapWords } from "./banner";
import { ConnectionLostError, type Terminal as Client } from "./client";
import { copy, programsClipboard } from "./clipboard";
import type { Connection } from "./connection";
import { button, fill, h, say } from "./dom";
import { exitMark } from "./exit";
import { Feed } from "./feed";
import { Find } from "./find";
import { duration, firstLine } from "./format";
import { icon } from "./icons";
import { Keybar } from "./keybar";
import { blockWords, endingOf, Marks, textBetween, type Block } from "./marks";
import { nodeTitle } from "./nodes";
import { notice } from "./notice";
import { commandEnded } from "./notify";
import { askPaste, checkPaste } from "./paste";
import { save } from "./save";
import type { Sessions } from "./sessions";
import { settings, settingsChanged } from "./settings";
import { Signal } from "./signal";
import { Terminal, type Place, type Size } from "./terminal";
import { mono, searchTheme, terminalTheme, themeChanged } from "./theme";
import { Touch } from "./touch";
import type { View } from "./view";
import { viewerName } from "./viewers";

/** ms: the time between two marks says nothing about a shorter command. */
const blink = 100;
const resizePause = 60; // ms: while a window is dragged its size changes at every frame, and the program should draw once
const leastFont = 7; // px: nobody can read smaller letters; a watching window scrolls instead

// One visible terminal: xterm.js, its input and output, and the bar above it.
export class Pane implements View {
  readonly key: string;
  readonly icon = "terminal";
  readonly changed = new Signal<void>();
  readonly element: HTMLElement;
  readonly xterm: Xterm;
  readonly marks: Marks;
  readonly terminal: Terminal;

  private readonly feed: Feed;
  private readonly fit = new FitAddon();
  private readonly serialize = new SerializeAddon();
  private readonly find: Find;
  private readonly keybar: Keybar;
  private readonly touch: Touch;
  private readonly screen = h("div", { class: "screen" });
  private readonly scroller = h("div", { class: "screen-scroll" }, this.screen);
  private readonly readout = h("div", { class: "readout" });
  private readonly overlay = h("div", { class: "pane-note", attr: { role: "status", hidden: true } });
  private readonly size = h("span", { class: "pane-size num" });
  private readonly node = h("span", { class: "badge node-name", attr: { hidden: true } });
  private readonly rec = h("span", { class: "rec", title: "This terminal is being recorded: what it shows, not what you type", attr: { role: "status" } });
  private readonly ends: (() => void)[] = [];
  private readonly watcher: ResizeObserver;
  private webgl: WebglAddon | undefined;
  private opened = false;
  private visible = false;
  private sizing = 0;
  private follows = true; // the cursor's row is kept in sight
  private kept = 0; // the scroll position that keepCursor has set
  private ended = "";
  private unseen: ReturnType<View["mark"]> = "";
  private title = "";

  constructor(
    private readonly connection: Connection,
    private readonly sessions: Sessions,
    readonly session: string,
    readonly term: string,
    place: Place,
    fresh: { opened: Client; size: Size } | undefined, // a terminal that this page has just opened
    private readonly asks: { reveal(view: View): void; lost(why: string): void; untyped(sent: boolean): void; another(): void; session(): void; mayType(): boolean; mayOwn(): boolean },
  ) {
    this.key = `term/${session}/${term}`;
    this.xterm = new Xterm({
      ...fresh?.size,
      allowProposedApi: true, // for decorations and unicode versions
      logLevel: "off", // wrong output of a program is not an error of the page
      fontFamily: mono,
      fontSize: settings.fontSize,
      lineHeight: 1.15,
      scrollback: settings.scrollback,
      screenReaderMode: settings.screenReader,
      theme: terminalTheme(),
      minimumContrastRatio: 4.5,
      macOptionIsMeta: true,
      overviewRuler: { width: 12 },
      linkHandler: {
        activate: (event, uri) => follow(event, uri),
        hover: (_, uri) => (this.screen.title = uri), // the text of such a link may show another address
        leave: () => (this.screen.title = ""),
        allowNonHttpProtocols: false,
      },
    });
    const search = new SearchAddon({ highlightLimit: 2000 });
    for (const addon of [
      this.fit, this.serialize, search, new UnicodeGraphemesAddon(),
      new WebLinksAddon((event, uri) => follow(event, uri)),
      new ClipboardAddon(undefined, programsClipboard),
    ]) {
      this.xterm.loadAddon(addon);
    }
    this.xterm.unicode.activeVersion = "15-graphemes";
    this.feed = new Feed(this.xterm); // after the addons: xterm.js asks the latest handler first
    this.marks = new Marks(this.xterm, () => this.feed.replaying);
    this.find = new Find(search, (open) => {
      this.recolour();
      if (!open) this.focus();
    });
    this.terminal = new Terminal(connection, term, place);
    this.keybar = new Keybar((data) => this.pressKey(data), () => this.xterm.modes.applicationCursorKeysMode, {
      Copy: () => (this.xterm.hasSelection() ? void copy(this.xterm.getSelection()) : notice("Nothing is selected: hold a word to select it.")),
      Paste: () => void this.pasteFromClipboard(),
    });
    this.touch = new Touch(this.xterm, this.screen, this.scroller, {
      types: () => this.terminal.mode === "control",
      selected: () => settings.copyOnSelect && void copy(this.xterm.getSelection()),
    });
    this.element = h(
      "section",
      { class: "pane", attr: { "aria-label": "terminal" } },
      h("div", { class: "pane-bar" }, this.readout, this.rec, this.node, this.size, this.tools()),
      this.overlay,
      h("div", { class: "screen-frame" }, this.scroller, this.find.element),
      this.keybar.element,
    );
    this.wire();
    this.watcher = new ResizeObserver(() => this.measureSoon());
    this.draw();
    if (fresh) this.terminal.begin(fresh.opened);
  }

  label(): string {
    const name = this.sessions.nameOf(this.session);
    return this.title && !this.title.includes("@") ? `${name}: ${this.title}` : name; // a shell's user@host title says less than the name
  }

  mark(): ReturnType<View["mark"]> {
    return this.unseen;
  }

  show(): void {
    this.visible = true;
    this.unseen = "";
    if (!this.opened) this.open();
    this.watcher.observe(this.screen);
    this.measure(); // the program gets this size when the terminal is attached
    this.terminal.begin();
    this.loadWebgl();
  }

  hide(): void {
    this.visible = false;
    this.touch.stop();
    this.watcher.disconnect();
    this.webgl?.dispose(); // a page gets only some 16 contexts
    this.webgl = undefined;
  }

  focus(): void {
    this.xterm.focus();
  }

  close(): void {
    for (const end of this.ends) end();
    this.marks.close();
    this.terminal.detach();
    this.xterm.dispose();
  }

  // --- called by shortcuts ---

  copySelection(): void {
    if (this.xterm.hasSelection()) void copy(this.xterm.getSelection());
  }

  copyOutput(): void {
    const block = this.marks.current;
    const text = block && this.marks.output(block);
    if (text) void copy(text);
    else notice("There is no command output to copy.");
  }

  search(): void {
    this.find.open(this.xterm.getSelection());
  }

  /** The whole scrollback of the terminal, as text or with its colours. */
  download(colours: boolean): void {
    const name = `${this.sessions.nameOf(this.session)}-${new Date().toISOString().slice(0, 19).replaceAll(":", "")}`;
    if (colours) save(`${name}.ansi`, this.serialize.serialize({ excludeAltBuffer: true, excludeModes: true }));
    else save(`${name}.txt`, this.text() + "\n");
  }

  text(): string {
    return textBetween(this.xterm, 0, this.xterm.buffer.normal.length);
  }

  async takeOver(): Promise<void> {
    await this.terminal.takeOver(this.room());
    if (this.terminal.mode === "view") notice("You may only watch this terminal.", "bad");
    this.measure();
    this.focus();
  }

  // --- the rest is between xterm.js, the gateway's terminal and the bar ---

  private tools(): HTMLElement {
    const keys = { up: "Ctrl+Shift+↑", down: "Ctrl+Shift+↓", copy: "Ctrl+Shift+Y", find: "Ctrl+Shift+F" };
    const save = button("Download the scrollback", () => {}, { icon: icon("download"), hint: "Download the scrollback (with Shift: with colours)" });
    save.addEventListener("click", (event) => this.download(event.shiftKey));
    return h(
      "div",
      { class: "pane-tools", attr: { role: "toolbar", "aria-label": "terminal tools" } },
      button("Previous command", () => this.marks.jump(-1), { icon: icon("up"), hint: `Previous command (${keys.up})` }),
      button("Next command", () => this.marks.jump(1), { icon: icon("down"), hint: `Next command (${keys.down})` }),
      button("Copy output", () => this.copyOutput(), { icon: icon("copy"), hint: `Copy the command's output (${keys.copy})` }),
      button("Search", () => this.search(), { icon: icon("search"), hint: `Search (${keys.find})` }),
      save,
    );
  }

  private open(): void {
    this.opened = true;
    this.xterm.open(this.screen);
    this.xterm.textarea?.setAttribute("aria-label", "terminal input; Ctrl+Shift+L leaves it");
  }

  private loadWebgl(): void {
    if (this.webgl || settings.screenReader || !settings.webgl) return;
    try {
      const webgl = new WebglAddon();
      webgl.onContextLoss(() => {
        webgl.dispose(); // xterm.js draws with elements again
        if (this.webgl === webgl) this.webgl = undefined;
      });
      this.xterm.loadAddon(webgl);
      this.webgl = webgl;
    } catch {
      this.webgl = undefined; // without WebGL2 xterm.js draws with elements
    }
  }

  private wire(): void {
    const { terminal, xterm } = this;
    xterm.onData((data) => this.send(this.keybar.apply(data)));
    xterm.onBinary((data) => terminal.input(Uint8Array.from(data, (char) => char.charCodeAt(0))));
    xterm.onBell(() => this.feed.replaying || this.attention("bell"));
    xterm.onTitleChange((title) => {
      this.title = title;
      this.changed.emit();
    });
    xterm.onSelectionChange(() => {
      if (settings.copyOnSelect && xterm.hasSelection() && this.dragged) void copy(xterm.getSelection(), true);
    });
    xterm.onRender(() => this.keepCursor());
    xterm.attachCustomWheelEventHandler(() => terminal.mode === "control" || xterm.buffer.active.type === "normal"); // the wheel in a full-screen program is only for the client in control
    this.scroller.addEventListener("scroll", () => {
      if (Math.abs(this.scroller.scrollTop - this.kept) >= 1) this.follows = this.cursorBeyond() === 0; // the person has scrolled
    });
    this.screen.addEventListener("mousedown", () => (this.dragged = true));
    this.screen.addEventListener("paste", (event) => void this.paste(event), { capture: true });

    this.ends.push(
      terminal.chunk.on(({ bytes, replay, end }) => this.feed.write(bytes, replay, () => terminal.drawn(end))),
      terminal.gap.on(({ from, to, away }) => {
        this.feed.gap(gapWords(from, to), () => this.marks.unmarkedEnd());
        if (away) this.asks.lost(gapWords(from, to));
      }),
      terminal.resized.on((size) => {
        this.setSize(size);
        if (terminal.mode === "view") this.measure();
      }),
      terminal.modeChanged.on(() => {
        this.draw();
        this.measure(); // in control the size is ours to set
        this.changed.emit();
      }),
      terminal.viewersChanged.on(() => {
        this.draw();
        this.changed.emit();
      }),
      terminal.exited.on(({ exitCode, signal }) => this.over(signal ? `ended by ${signal}` : `ended with exit ${exitCode ?? "?"}`, exitCode)),
      terminal.lost.on((why) => {
        this.over(why);
        if (terminal.attached) this.asks.lost(why); // a terminal that was never attached is no loss
      }),
      terminal.refused.on((error) => {
        const sent = error instanceof ConnectionLostError && error.outcome === "unknown";
        notice(`What you typed ${sent ? "may not have arrived" : "did not arrive"}: ${error.message}`, "bad");
        if (error instanceof ConnectionLostError) this.asks.untyped(sent);
      }),
      this.marks.changed.on(() => {
        this.draw();
        this.changed.emit();
      }),
      this.marks.finished.on((block) => this.finished(block)),
      this.sessions.changed.on(() => {
        this.drawRec();
        this.drawNode();
        this.drawNote();
        this.changed.emit();
      }),
      themeChanged.on(() => this.recolour()),
      settingsChanged.on(() => this.restyle()),
    );
  }

  private dragged = false;

  private send(data: string): void {
    this.dragged = false;
    if (this.terminal.mode === "view") return this.nudge();
    this.terminal.input(data);
  }

  private async paste(event: ClipboardEvent): Promise<void> {
    event.preventDefault();
    event.stopPropagation();
    await this.pasteText(event.clipboardData?.getData("text/plain") ?? "");
  }

  /** Presses a key of the row. Page Up and Page Down scroll the scrollback; a full-screen program gets them. */
  private pressKey(data: string): void {
    const pages = { "\x1b[5~": -1, "\x1b[6~": 1 }[data];
    if (pages && this.xterm.buffer.active.type === "normal") this.xterm.scrollPages(pages);
    else this.send(data);
  }

  /** Pastes without a keyboard: the clipboard if the browser gives it, else text that the person enters in a dialog. */
  private async pasteFromClipboard(): Promise<void> {
    if (this.terminal.mode === "view") return this.nudge();
    const text = await navigator.clipboard?.readText().catch(() => undefined);
    await this.pasteText(text ?? (await askPaste()) ?? "");
  }

  private async pasteText(text: string): Promise<void> {
    if (!text) return;
    const fit = await checkPaste(text, this.xterm.modes.bracketedPasteMode);
    if (fit !== undefined) this.xterm.paste(fit);
    this.focus();
  }

  private finished(block: Block): void {
    if (!this.visible) this.attention(block.exit ? "failed" : "done");
    if (block.took !== undefined) commandEnded(block.command, block.took, blockWords(block), this.sessions.nameOf(this.session), () => this.asks.reveal(this));
  }

  private attention(mark: ReturnType<View["mark"]>): void {
    if (this.visible && !document.hidden) return;
    this.unseen = mark;
    this.changed.emit();
  }

  private restyle(): void {
    Object.assign(this.xterm.options, { scrollback: settings.scrollback, screenReaderMode: settings.screenReader });
    if (settings.screenReader || !settings.webgl) {
      this.webgl?.dispose();
      this.webgl = undefined;
    } else if (this.visible) this.loadWebgl();
    this.measureSoon();
  }

  private recolour(): void {
    this.xterm.options.theme = this.find.opened ? searchTheme() : terminalTheme();
  }

  private measureSoon(): void {
    clearTimeout(this.sizing);
    this.sizing = setTimeout(() => this.measure(), resizePause);
  }

  /** In control, makes the terminal as large as its place. Else it makes the letters so small that the terminal fits. */
  private measure(): void {
    if (!this.visible || !this.opened) return;
    const size = this.room();
    if (!size) return;
    if (this.terminal.mode === "view") return this.shrink(size);
    this.setSize(size);
    this.terminal.resize(size);
  }

  /** The size that fits the place with the chosen font size; undefined while the place has no size. */
  private room(): Size | undefined {
    this.xterm.options.fontSize = settings.fontSize;
    const size = this.fit.proposeDimensions();
    return size && size.cols > 1 && size.rows > 1 ? size : undefined;
  }

  /** Makes the letters small enough for another window's size, or leaves it to scroll. */
  private shrink(room: Size): void {
    const { cols, rows, options } = this.xterm;
    const part = Math.min(1, room.cols / cols, room.rows / rows);
    for (let size = Math.ceil(settings.fontSize * part * 2) / 2; ; size -= 0.5) { // a cell is whole pixels high, so the computed size may be too large
      options.fontSize = Math.max(Math.min(leastFont, settings.fontSize), size);
      const fits = this.fit.proposeDimensions();
      if (!fits || size <= leastFont || (fits.cols >= cols && fits.rows >= rows)) break;
    }
    // xterm.js scrolls by pixels and reads the height of a line only when lines come or go. It has no interface to have it read again.
    const { _core } = this.xterm as unknown as { _core?: { _viewport?: { _latestYDisp?: number; queueSync(): void } } };
    if (_core?._viewport) _core._viewport._latestYDisp = undefined; // as after a change of buffers
    _core?._viewport?.queueSync();
    this.keepCursor();
  }

  /** Scrolls to the cursor's row, until the person scrolls away from it. */
  private keepCursor(): void {
    if (this.terminal.mode !== "view" || !this.follows) return;
    this.scroller.scrollTop += this.cursorBeyond();
    this.kept = this.scroller.scrollTop;
  }

  /** How far the cursor's row is below what is in sight, or (negative) above it. */
  private cursorBeyond(): number {
    const grid = this.screen.querySelector(".xterm-screen")?.getBoundingClientRect();
    if (!grid || this.scroller.scrollHeight <= this.scroller.clientHeight) return 0;
    const row = grid.height / this.xterm.rows;
    const above = grid.top + row * this.xterm.buffer.active.cursorY - this.scroller.getBoundingClientRect().top;
    return Math.min(0, Math.floor(above)) || Math.max(0, Math.ceil(above + row - this.scroller.clientHeight));
  }

  private setSize(size: Size): void {
    if (size.cols !== this.xterm.cols || size.rows !== this.xterm.rows) this.xterm.resize(size.cols, size.rows);
    say(this.size, `${size.cols}×${size.rows}`);
  }

  private over(why: string, code?: number): void {
    this.ended = why;
    this.feed.then(() => this.marks.unmarkedEnd(code)); // the command that ended the shell, or ended with it
    this.draw();
    this.changed.emit();
  }

  private nudge(): void {
    this.overlay.classList.remove("nudge");
    void this.overlay.offsetWidth; // restarts the animation
    this.overlay.classList.add("nudge");
  }

  /** Shows whether the terminal is being recorded. The list of sessions says when a recording has ended. */
  private drawRec(): void {
    const on = this.terminal.recorded && !this.terminal.over && this.sessions.get(this.session)?.recording !== 0;
    if (on === (this.rec.childElementCount > 0)) return;
    fill(this.rec, on && h("span", { class: "rec-dot", attr: { "aria-hidden": "true" } }), on && h("span", {}, "recorded"));
  }

  /** Shows on which node of a cluster the session is. */
  private drawNode(): void {
    const session = this.sessions.get(this.session);
    const silent = !!session && this.sessions.isSilent(session);
    this.node.hidden = !session?.node;
    this.node.title = session ? nodeTitle(session, silent) : "";
    this.node.classList.toggle("silent", silent);
    say(this.node, `${session?.node ?? ""}${silent ? " does not answer" : ""}`);
  }

  /** Says why typing is not possible here, and what the person can do about it. */
  private drawNote(): void {
    const over = !this.ended && this.connection.now.kind === "over" && this.connection.now;
    const view = this.terminal.mode === "view" && !this.ended;
    this.overlay.hidden = !view && !this.ended && !over;
    if (over) this.note(`No longer connected: ${over.why}. This is the last output of the terminal.`, false);
    else if (view) this.drawViewOnly();
    else if (this.ended) this.drawEnded();
  }

  private drawViewOnly(): void {
    const by = this.terminal.controller;
    const may = this.asks.mayType();
    const words = by ? `View only: ${viewerName(by)} types in another window.` : may ? "View only: nobody types here now." : "View only.";
    this.note(words, may && { label: "Take over", act: () => void this.takeOver() });
  }

  private drawEnded(): void {
    const session = this.sessions.get(this.session);
    const here = !!session && session.state !== "TERMINATED"; // a terminal can be opened there
    const offer = here
      ? this.asks.mayType() && { label: "New terminal", act: () => this.asks.another() }
      : this.sessions.loaded && this.asks.mayOwn() && { label: "New session", act: () => this.asks.session() };
    const why = session?.state === "TERMINATED" && this.ended.startsWith("ended by") ? "ended with its session" : this.ended;
    this.note(`This terminal ${why.startsWith("ended") ? "has " : "is closed: "}${why}.`, offer);
  }

  private note(words: string, offer: false | { label: string; act: () => void }): void {
    const said = `${words}|${offer && offer.label}`;
    if (this.overlay.dataset.said === said) return; // the button keeps its focus
    this.overlay.dataset.said = said;
    fill(this.overlay, words, offer && button(offer.label, offer.act));
  }

  private draw(): void {
    this.drawRec();
    this.drawNode();
    this.drawNote();
    this.element.classList.toggle("view-only", this.terminal.mode === "view");
    this.xterm.options.cursorStyle = this.terminal.mode === "view" && !this.ended ? "underline" : "block";

    const block = this.marks.running ?? this.marks.current;
    if (!block) {
      fill(this.readout, h("span", { class: "muted" }, "Commands appear here as they run."));
      return;
    }
    fill(
      this.readout,
      block.ended ? exitMark(endingOf(block)) : h("span", { class: "exit running" }, "running"),
      h("code", { title: block.command }, firstLine(block.command)),
      block.took !== undefined && block.took >= blink && h("span", { class: "num muted" }, duration(block.took)),
    );
  }
}

/** Opens a link on a Ctrl+click, a Cmd+click or a tap. A plain click selects text. */
function follow(event: MouseEvent, uri: string): void {
  const finger = event instanceof PointerEvent && event.pointerType === "touch";
  if (!event.ctrlKey && !event.metaKey && !finger) {
    notice("Ctrl+click opens the link.");
    return;
  }
  if (/^https?:\/\//i.test(uri)) window.open(uri, "_blank", "noopener,noreferrer");
}
