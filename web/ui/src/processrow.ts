import { Position, processOutput, type Stream } from "./client";
import type { Connection } from "./connection";
import { button, fill, h } from "./dom";
import { exitMark } from "./exit";
import { age, bytes } from "./format";
import { complain } from "./notice";
import { Output } from "./output";
import type { ProcessInfo } from "./wire";

// One background process of a session, with its log on request.
export class ProcessRow {
  readonly element: HTMLLIElement;
  private readonly facts = h("div", { class: "process-facts" });
  private readonly kill: HTMLButtonElement;
  private readonly logs: HTMLButtonElement;
  private output: Output | undefined;
  private position = new Position();
  private stream: Stream | undefined; // of the log, unless it failed

  constructor(
    private readonly connection: Connection,
    private info: ProcessInfo,
  ) {
    this.kill = button("End", () => void this.end(), { class: "danger small" });
    this.logs = button("Log", () => void this.toggle(), { class: "small" });
    this.logs.setAttribute("aria-expanded", "false");
    this.element = h(
      "li",
      { class: "process" },
      h("div", { class: "process-head" }, h("code", { title: info.command }, info.name || info.command), this.logs, this.kill),
      this.facts,
    );
    this.update(info);
  }

  update(info: ProcessInfo): void {
    this.info = info;
    const running = info.state === "running";
    this.element.dataset.state = info.state;
    this.kill.hidden = !running;
    fill(
      this.facts,
      running ? h("span", { class: "exit running" }, "running") : exitMark(info),
      ...(info.ports ?? []).map((port) => h("span", { class: "port", title: `It listens on port ${port}.` }, `:${port}`)),
      h("span", { class: "muted num" }, ` pid ${info.pid} · ${age(info.started_at)} · ${bytes(info.output_bytes)}`),
    );
  }

  unlock(open: boolean): void {
    this.kill.disabled = !open;
    this.kill.title = open ? "TERM to the whole tree, then KILL after 5 s" : "Take over to end it";
  }

  /** Continues an open log that ended when the connection was given up. */
  async resume(): Promise<void> {
    if (this.output && !this.stream) await this.read();
  }

  close(): void {
    this.stream?.leave();
    this.stream = undefined;
  }

  private async toggle(): Promise<void> {
    this.logs.setAttribute("aria-expanded", String(!this.output));
    if (this.output) {
      this.close();
      this.output.element.remove();
      this.output = undefined;
      return;
    }
    this.output = new Output();
    this.position = new Position();
    this.element.append(this.output.element);
    await this.read();
  }

  private async read(): Promise<void> {
    const stream = (this.stream = processOutput(this.connection.client, this.info.process_id, this.position.next, "skip"));
    try {
      await stream.deliver(this.position.filter(this.output!));
    } catch (error) {
      if (this.stream !== stream) return; // the log was closed
      this.stream = undefined;
      if (this.connection.up) complain("Log", error);
    }
  }

  private async end(): Promise<void> {
    this.kill.disabled = true;
    try {
      this.update(await this.connection.call("process.kill", { process_id: this.info.process_id }));
    } catch (error) {
      complain("End", error);
    }
    this.kill.disabled = false;
  }
}
