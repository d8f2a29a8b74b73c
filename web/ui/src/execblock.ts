import { commandOutput, Position, TrlError, type Stream } from "./client";
import type { Connection } from "./connection";
import { button, fill, h, say } from "./dom";
import { exitMark, wentWell } from "./exit";
import { bytes, duration } from "./format";
import { icon } from "./icons";
import { complain } from "./notice";
import { copy } from "./clipboard";
import { Output } from "./output";
import type { ExecExit } from "./wire";

// One command of a session: its text, its output, its result.
export class ExecBlock {
  readonly element: HTMLElement;
  ended: ExecExit | undefined;
  began = Date.now();
  private readonly output = new Output();
  private readonly status = h("span", { class: "block-status" });
  private readonly notes = h("div", { class: "block-notes" });
  private readonly cancelButton: HTMLButtonElement;
  private readonly unfollow: () => void;
  private readonly position = new Position();
  private stream: Stream | undefined; // of an ended command

  constructor(
    private readonly connection: Connection,
    readonly id: string,
    streamId: string,
    command: string,
  ) {
    this.cancelButton = button("Cancel", () => void this.cancel(), { class: "danger small" });
    const fold = button("Fold or unfold the output", () => this.fold(), { icon: icon("chevron"), class: "icon fold" });
    fold.setAttribute("aria-expanded", "true");
    this.element = h(
      "article",
      { class: "block", attr: { "aria-label": `command ${command.split("\n", 1)[0]}` } },
      h(
        "header",
        { class: "block-head" },
        fold,
        h("code", { class: "block-command" }, command),
        this.status,
        button("Copy output", () => void copy(this.output.element.textContent ?? ""), { icon: icon("copy") }),
        this.cancelButton,
      ),
      this.output.element,
      this.notes,
    );
    this.unfollow = connection.client.follow(streamId, this.position.filter(this.output));
  }

  /** Requests the output of an ended command. The session's watch brings that of a running one. */
  async load(): Promise<void> {
    if (this.stream || !this.ended) return;
    this.unfollow(); // the stream brings output that is on its way, too
    this.stream = commandOutput(this.connection.client, this.id, this.position.next, "skip");
    try {
      await this.stream.deliver(this.position.filter(this.output));
    } catch (error) {
      if (!(error instanceof TrlError)) this.stream = undefined;
    }
  }

  end(exit: ExecExit): void {
    this.ended = exit;
    this.element.classList.toggle("ill", !wentWell(exit));
    fill(this.status, exitMark(exit), h("span", { class: "num muted" }, duration(exit.duration_ms)));
    this.cancelButton.hidden = true;
    const notes = [
      exit.queued_ms >= 100 && `waited ${duration(exit.queued_ms)} for its turn`,
      exit.shell_restored && "the shell ended and was restored",
      exit.state_lost?.length && `lost: ${exit.state_lost.join(", ")}`,
      exit.limit_hit && `limit reached: ${exit.limit_hit}`,
      exit.background?.length && `left running: ${exit.background.join(", ")}`,
      exit.error && exit.error.message,
      exit.stdout_bytes + exit.stderr_bytes > 1 << 16 && `${bytes(exit.stdout_bytes + exit.stderr_bytes)} of output`,
    ];
    say(this.notes, notes.filter(Boolean).join(" · "));
  }

  tick(): void {
    if (this.ended) return;
    const words = duration(Math.max(0, Math.floor((Date.now() - this.began) / 1000) * 1000));
    if (this.status.dataset.words === words) return;
    this.status.dataset.words = words;
    fill(this.status, h("span", { class: "exit running" }, "running"), h("span", { class: "num muted" }, words));
  }

  /** Only a person who has taken over may cancel. */
  unlock(open: boolean): void {
    this.cancelButton.disabled = !open;
    this.cancelButton.title = open ? "TERM to everything that it started, then KILL after 5 s" : "Take over to cancel";
  }

  close(): void {
    this.unfollow();
    this.stream?.leave();
  }

  private fold(): void {
    const folded = this.element.classList.toggle("folded");
    this.element.querySelector(".fold")?.setAttribute("aria-expanded", String(!folded));
  }

  private async cancel(): Promise<void> {
    this.cancelButton.disabled = true;
    try {
      await this.connection.call("exec.cancel", { exec_id: this.id });
    } catch (error) {
      complain("Cancel", error);
    }
    this.cancelButton.disabled = false;
  }
}
