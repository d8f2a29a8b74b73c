import { ask } from "./dialog";
import type { Connection } from "./connection";
import { button, fill, h } from "./dom";
import { age, bytes, firstLine } from "./format";
import { icon } from "./icons";
import { complain } from "./notice";
import { downloads, endWords } from "./player";
import { clock } from "./cast";
import { shortId, type Sessions } from "./sessions";
import { Signal } from "./signal";
import type { Recording } from "./wire";
import type { View } from "./view";

const every = 3000; // sizes grow, recordings end

// The recordings of a session or, without one, of the principal. The latest comes first.
export class Recordings implements View {
  readonly key: string;
  readonly icon = "record";
  readonly changed = new Signal<void>();
  readonly element: HTMLElement;
  private readonly rows = h("tbody");
  private readonly table: HTMLElement;
  private readonly empty = h("p", { class: "empty", attr: { hidden: true } });
  private timer = 0;
  private stopListening = () => {};
  private drawn = "";

  constructor(
    private readonly connection: Connection,
    private readonly sessions: Sessions,
    readonly session: string, // "": of all
    private readonly play: (recording: string) => void,
    private readonly mayChange: () => boolean,
  ) {
    this.key = session ? `recordings/${session}` : "recordings";
    this.table = h(
      "table",
      { class: "recordings" },
      h("thead", {}, h("tr", {}, ...["Session", "What", "When", "Length", "Size", "State", ""].map((word) => h("th", { attr: { scope: "col" } }, word || h("span", { class: "sr" }, "Actions"))))),
      this.rows,
    );
    this.element = h("section", { class: "pool", attr: { "aria-label": "recordings", tabindex: 0 } }, this.table, this.empty);
  }

  label(): string {
    return this.session ? `Recordings: ${this.sessions.nameOf(this.session)}` : "Recordings";
  }

  mark(): "" {
    return "";
  }

  show(): void {
    this.timer = setInterval(() => void this.refresh(), every);
    this.stopListening = this.connection.status.on((status) => status.kind === "up" && this.refresh());
    void this.refresh();
  }

  hide(): void {
    clearInterval(this.timer);
    this.stopListening();
  }

  focus(): void {
    this.element.focus();
  }

  close(): void {
    this.hide();
  }

  private async refresh(): Promise<void> {
    if (!this.connection.up) return;
    try {
      const { recordings } = await this.connection.call("recording.list", this.session ? { session_id: this.session } : {});
      this.draw(recordings.reverse());
    } catch {
      // without a connection the last list stays
    }
  }

  private draw(list: Recording[]): void {
    this.table.hidden = list.length === 0;
    this.empty.hidden = list.length > 0;
    if (!this.empty.hidden) {
      fill(this.empty, "No recordings. Terminals and commands are recorded if the server's policy, the session, or your settings for terminals that you open here say so.");
    }
    const said = JSON.stringify(list.map((r) => [r.recording_id, r.state, r.size_bytes, age(r.started_at), this.mayChange()]));
    if (said === this.drawn || (this.rows.contains(document.activeElement) && said.length === this.drawn.length)) return; // the focus stays where it is
    this.drawn = said;
    fill(this.rows, ...list.map((r) => this.row(r)));
  }

  private row(r: Recording): HTMLElement {
    const what = r.command ? h("code", { title: r.command }, firstLine(r.command)) : "terminal";
    const play = button("Play", () => this.play(r.recording_id), { class: "small" });
    play.setAttribute("aria-label", `Play the recording of ${r.session || shortId(r.session_id)}, ${age(r.started_at)}`);
    return h(
      "tr",
      { attr: { "data-recording": r.recording_id } },
      h("td", {}, r.session || shortId(r.session_id)),
      h("td", { class: "recordings-what" }, what),
      h("td", { class: "num", title: new Date(r.started_at).toLocaleString() }, age(r.started_at)),
      h("td", { class: "num" }, clock(r.duration_ms)),
      h("td", { class: "num" }, bytes(r.size_bytes)),
      h("td", {}, r.state === "recording" ? h("span", { class: "rec" }, h("span", { class: "rec-dot", attr: { "aria-hidden": "true" } }), "recording") : r.exit_code !== undefined ? `exit ${r.exit_code}` : endWords(r)),
      h("td", { class: "recordings-tools" }, play, ...downloads(r.recording_id), this.mayChange() && button("Remove the recording", () => void this.remove(r), { icon: icon("trash") })),
    );
  }

  private async remove(r: Recording): Promise<void> {
    const words = r.state === "recording" ? "It is still in progress and ends now. The terminal or command goes on." : "You cannot undo this.";
    if ((await ask({ title: "Remove this recording?", body: [h("p", {}, words)], yes: "Remove", danger: true })) !== "yes") return;
    try {
      await this.connection.call("recording.delete", { recording_id: r.recording_id });
    } catch (error) {
      complain("Remove", error);
    }
    await this.refresh();
  }
}
