import { at } from "./at";
import { UnicodeGraphemesAddon } from "@xterm/addon-unicode-graphemes";
import { Terminal as Xterm } from "@xterm/xterm";
import { clock, parseCast, type Cast } from "./cast";
import type { Connection } from "./connection";
import { button, fill, h, say } from "./dom";
import { exitMark } from "./exit";
import { firstLine } from "./format";
import { icon } from "./icons";
import { complain } from "./notice";
import { settings, settingsChanged } from "./settings";
import { Signal } from "./signal";
import { Tape } from "./tape";
import { mono, terminalTheme, themeChanged } from "./theme";
import type { Recording } from "./wire";
import type { View } from "./view";

const longPause = 2000; // ms: skipping pauses cuts them to this
const jump = 5000; // ms: an arrow key moves by this
const speeds = [0.5, 1, 2, 4, 8];

/** Where a recording is downloaded. */
export function addressOf(recording: string, format = ""): string {
  return at(`v1/recordings/${encodeURIComponent(recording)}${format && `?format=${format}`}`);
}

// Plays one recording. Queries of the recorded program get no answer, because no program would read it.
export class Player implements View {
  readonly key: string;
  readonly icon = "record";
  readonly changed = new Signal<void>();
  readonly element: HTMLElement;
  readonly xterm: Xterm;
  tape: Tape | undefined;

  private info: Recording | undefined;
  private cast: Cast | undefined;
  private opened = false;
  private skips = true;
  private readonly ends: (() => void)[] = [];
  private readonly screen = h("div", { class: "player-screen" });
  private readonly frame = h("div", { class: "player-frame", attr: { tabindex: 0, role: "group", "aria-label": "what was recorded" } }, this.screen);
  private readonly readout = h("div", { class: "readout" });
  private readonly say = h("span", { class: "sr", attr: { role: "status" } });
  private readonly toggle = button("Play", () => this.playOrStop(), { icon: icon("play"), hint: "Play (Space)" });
  private readonly bar = h("input", { class: "player-bar", attr: { type: "range", min: 0, max: 0, step: 100, value: 0, "aria-label": "position" } });
  private readonly ticks = h("div", { class: "player-ticks", attr: { "aria-hidden": "true" } });
  private readonly time = h("span", { class: "num player-time" });
  private readonly speed = h("select", { attr: { "aria-label": "speed" } }, ...speeds.map((x) => h("option", { attr: { value: x, selected: x === 1 } }, `${x}×`)));
  private readonly marks = h("select", { class: "player-marks", attr: { "aria-label": "go to a command" } });
  private readonly watcher = new ResizeObserver(() => this.fit());

  constructor(
    private readonly connection: Connection,
    readonly recording: string,
  ) {
    this.key = `play/${recording}`;
    this.xterm = new Xterm({
      allowProposedApi: true, // unicode versions
      logLevel: "off",
      disableStdin: true, fontFamily: mono, fontSize: settings.fontSize, lineHeight: 1.15, scrollback: settings.scrollback,
      screenReaderMode: settings.screenReader, theme: terminalTheme(), minimumContrastRatio: 4.5,
    });
    this.xterm.loadAddon(new UnicodeGraphemesAddon());
    this.xterm.unicode.activeVersion = "15-graphemes";
    const pauses = h("input", { attr: { type: "checkbox", checked: this.skips } });
    pauses.addEventListener("change", () => {
      this.skips = pauses.checked;
      this.tape?.setPause(this.pause);
      this.mark();
      this.drawMarks();
    });
    this.speed.addEventListener("change", () => this.tape?.setSpeed(Number(this.speed.value)));
    this.bar.addEventListener("input", () => void this.tape?.seek(Number(this.bar.value)));
    this.marks.addEventListener("change", () => {
      const mark = this.cast?.marks[Number(this.marks.value)];
      if (mark && this.tape) void this.tape.seek(this.tape.markTime(mark));
      this.marks.value = "";
    });
    this.element = h(
      "section",
      { class: "player", attr: { "aria-label": "recording" }, on: { keydown: (event) => this.press(event) } },
      h("div", { class: "pane-bar" }, this.readout, h("div", { class: "pane-tools" }, ...downloads(recording))),
      this.frame,
      h(
        "div",
        { class: "player-controls", attr: { role: "toolbar", "aria-label": "player" } },
        this.toggle,
        button("Previous mark", () => void this.tape?.toMark(-1), { icon: icon("up"), hint: "Previous mark ([)" }),
        button("Next mark", () => void this.tape?.toMark(1), { icon: icon("down"), hint: "Next mark (])" }),
        h("div", { class: "player-track" }, this.bar, this.ticks),
        this.time, this.speed, h("label", { class: "check" }, pauses, "Skip pauses"), this.marks,
      ),
      this.say,
    );
    this.ends.push(
      themeChanged.on(() => (this.xterm.options.theme = terminalTheme())),
      settingsChanged.on(() => (this.xterm.options.screenReaderMode = settings.screenReader)),
    );
    if (connection.up) void this.load();
    const off = connection.status.on((status) => status.kind === "up" && !this.cast && void this.load());
    this.ends.push(off);
  }

  label(): string {
    return this.info?.session || (this.info ? firstLine(this.info.command ?? "") : "") || "Recording";
  }

  mark(): "" {
    return "";
  }

  show(): void {
    if (!this.opened) {
      this.opened = true;
      this.xterm.open(this.screen);
    }
    this.watcher.observe(this.frame);
    this.fit();
  }

  hide(): void {
    this.watcher.disconnect();
    this.tape?.stop();
  }

  focus(): void {
    this.frame.focus();
  }

  close(): void {
    for (const end of this.ends) end();
    this.tape?.close();
    this.xterm.dispose();
  }

  private get pause(): number {
    return this.skips ? longPause : Infinity;
  }

  private async load(): Promise<void> {
    const at = this.tape?.position ?? 0;
    try {
      this.info = await this.connection.call("recording.info", { recording_id: this.recording });
      const answer = await fetch(addressOf(this.recording));
      if (!answer.ok) throw new Error(await answer.text());
      this.cast = parseCast(await answer.text());
    } catch (error) {
      fill(this.readout, h("span", { class: "exit ill" }, "This recording cannot be shown."));
      return complain("Recording", error);
    }
    this.tape?.close();
    this.xterm.reset();
    this.xterm.resize(this.cast.cols, this.cast.rows);
    this.tape = new Tape(this.xterm, this.cast, this.pause);
    this.tape.setSpeed(Number(this.speed.value));
    this.tape.moved.on(() => this.draw());
    this.tape.sized.on(() => this.fit());
    this.drawMarks();
    this.drawInfo();
    this.fit();
    this.changed.emit();
    await this.tape.seek(at);
  }

  private playOrStop(): void {
    if (!this.tape) return;
    if (this.tape.playing) this.tape.stop();
    else this.tape.play();
    say(this.say, this.tape.playing ? "playing" : `stopped at ${clock(this.tape.position)}`);
  }

  private press(event: KeyboardEvent): void {
    const { tape } = this;
    const on = event.target as HTMLElement;
    if (!tape || event.ctrlKey || event.metaKey || event.altKey || on instanceof HTMLSelectElement) return;
    if (event.key === " " && (on instanceof HTMLButtonElement || (on instanceof HTMLInputElement && on.type === "checkbox") || on instanceof HTMLAnchorElement)) return; // they handle the key themselves
    switch (event.key) {
      case " ": this.playOrStop(); break;
      case "ArrowLeft": void tape.seek(tape.position - jump); break;
      case "ArrowRight": void tape.seek(tape.position + jump); break;
      case "Home": void tape.seek(0); break;
      case "End": void tape.seek(tape.length); break;
      case "[": void tape.toMark(-1); break;
      case "]": void tape.toMark(1); break;
      case ".": void tape.step(); break;
      default: return;
    }
    event.preventDefault();
  }

  private draw(): void {
    const { tape } = this;
    if (!tape) return;
    const label = tape.playing ? "Stop" : "Play";
    if (this.toggle.getAttribute("aria-label") !== label) {
      this.toggle.setAttribute("aria-label", label);
      this.toggle.title = `${label} (Space)`;
      fill(this.toggle, icon(tape.playing ? "stop" : "play"));
    }
    const words = `${clock(tape.position)} / ${clock(tape.length)}`;
    say(this.time, words);
    this.bar.max = String(Math.max(1, Math.ceil(tape.length)));
    this.bar.value = String(tape.over && !tape.playing ? this.bar.max : Math.round(tape.position));
    this.bar.setAttribute("aria-valuetext", `${clock(tape.position)} of ${clock(tape.length)}${tape.mark ? `, ${firstLine(tape.mark.label)}` : ""}`);
  }

  private drawMarks(): void {
    const { cast, tape } = this;
    if (!cast || !tape) return;
    const length = Math.max(1, tape.length);
    fill(this.ticks, ...cast.marks.slice(0, 1000).map((mark) => {
      const tick = h("span", { class: mark.label.startsWith("trl: ") ? "ours" : "" });
      tick.style.left = `${(100 * tape.markTime(mark)) / length}%`;
      return tick;
    }));
    fill(
      this.marks,
      h("option", { attr: { value: "", selected: true } }, cast.marks.length ? `Commands (${cast.marks.length})` : "No commands"),
      ...cast.marks.map((mark, n) => h("option", { attr: { value: n } }, `${clock(tape.markTime(mark))}  ${firstLine(mark.label).slice(0, 80) || "(a command)"}`)),
    );
    this.marks.disabled = cast.marks.length === 0;
  }

  private drawInfo(): void {
    const { info } = this;
    if (!info) return;
    fill(
      this.readout,
      info.state === "recording"
        ? h("span", { class: "rec" }, h("span", { class: "rec-dot", attr: { "aria-hidden": "true" } }), "being recorded")
        : info.exit_code !== undefined ? exitMark({ exit_code: info.exit_code }) : info.reason !== "exit" && h("span", { class: "exit ill" }, endWords(info)),
      h("code", { title: info.command ?? "" }, firstLine(info.command ?? "") || "terminal"),
      h("span", { class: "muted" }, new Date(info.started_at).toLocaleString()),
      info.state === "recording" && button("Load what came since", () => void this.load(), { class: "small" }),
    );
  }

  /** Makes the text as large as the space allows, or lets it scroll. */
  private fit(): void {
    const drawn = this.element.querySelector<HTMLElement>(".xterm-screen");
    if (!this.opened || !drawn || !drawn.clientWidth || !this.frame.clientWidth) return;
    const now = this.xterm.options.fontSize ?? settings.fontSize;
    const room = Math.min((this.frame.clientWidth - 40) / drawn.clientWidth, (this.frame.clientHeight - 28) / drawn.clientHeight);
    const size = Math.max(7, Math.min(settings.fontSize + 3, Math.floor(now * room * 2) / 2));
    if (size !== now) this.xterm.options.fontSize = size;
  }
}

/** Why a recording ended before its terminal or command. */
export function endWords(recording: Recording): string {
  switch (recording.reason) {
    case "full": return "ended: too large";
    case "no_room": return "ended: no space";
    case "failed": return "ended: write error";
    case "lost": return "ended with its gateway";
    default: return "ended";
  }
}

/** The links by which a recording is downloaded. */
export function downloads(recording: string): HTMLElement[] {
  return ["v3", "v2"].map((format) =>
    h("a", { class: "button small", title: `Download as asciicast ${format}`, attr: { href: addressOf(recording, format), download: "" } }, h("span", { class: "sr" }, "Download as asciicast "), `↓ ${format}`));
}
