import { nodeLost, restarted, type Connection, type Status } from "./connection";
import { button, fill, h, say } from "./dom";
import { duration, plural } from "./format";

// The banner says that the connection is lost, counts the seconds, and then reports the result: the connection is restored, or something is lost.
export class Banner {
  readonly element = h("div", { class: "banner", attr: { hidden: true } });
  private readonly text = h("span", { class: "banner-text", attr: { role: "status" } });
  private readonly clock = h("span", { class: "banner-clock", attr: { "aria-hidden": "true" } });
  private readonly losses: string[] = []; // what this disconnect has cost
  private unsent: "" | "did not arrive" | "may not have arrived" = ""; // what happened to input during this disconnect
  private timer = 0;
  private settle = 0;
  private settling = false; // streams attach again: more losses may be reported

  constructor(private readonly connection: Connection) {
    const again = button("Try now", () => connection.retry(), { class: "small banner-again" });
    const away = button("Dismiss", () => (this.element.hidden = true), { class: "small banner-away" });
    fill(this.element, this.text, this.clock, again, away);
    connection.status.on((status) => this.show(status));
    connection.quiet.on((ms) => this.showQuiet(ms));
    connection.lostEpoch.on(() => this.lost("the gateway was restarted and its sessions are gone"));
  }

  /** Notes a loss. The banner reports it when the connection is up. */
  lost(why: string): void {
    if (!this.losses.includes(why)) this.losses.push(why);
    if (this.connection.up && !this.settling) this.conclude();
  }

  /** Input was refused during the disconnect, or was lost with the connection; in the latter case nobody knows whether it arrived. */
  untyped(sent: boolean): void {
    if (this.unsent !== "did not arrive") this.unsent = sent ? "may not have arrived" : "did not arrive";
    if (this.connection.up && !this.settling) this.conclude(); // the terminal was attached late
  }

  /** Says that no answer comes while the connection still counts as up; ms is 0 when an answer has come. */
  private showQuiet(ms: number): void {
    if (ms) {
      clearTimeout(this.settle);
      this.element.hidden = false;
      this.element.dataset.kind = "quiet";
      say(this.text, "No answer from the gateway. What you type may not arrive.");
      say(this.clock, duration(Math.floor(ms / 1000) * 1000));
    } else if (this.element.dataset.kind === "quiet") this.element.hidden = true;
  }

  private show(status: Status): void {
    clearInterval(this.timer);
    clearTimeout(this.settle);
    this.settling = false;
    switch (status.kind) {
      case "connecting":
        return;
      case "down":
        this.element.hidden = false;
        this.element.dataset.kind = "down";
        say(this.text, `Connection lost: ${status.why}.${[restarted, nodeLost].includes(status.why) ? "" : " Sessions go on."}`);
        this.timer = setInterval(() => this.count(status), 200);
        this.count(status);
        return;
      case "over":
        this.element.hidden = false;
        this.element.dataset.kind = "over";
        say(this.text, `Connection lost because ${status.why}.`);
        say(this.clock, "");
        return;
      case "up":
        if (status.away === 0) {
          this.element.hidden = true;
          return;
        }
        // Streams attach again now. Shortly afterwards the losses are known.
        this.settling = true;
        this.settle = setTimeout(() => this.conclude(status.away), 300);
    }
  }

  private count(status: Status & { kind: "down" }): void {
    const wait = Math.max(0, Math.ceil((status.retryAt - Date.now()) / 1000));
    say(this.clock, `${duration(Math.floor((Date.now() - status.since) / 1000) * 1000)} · attempt ${status.attempt}${wait > 0 ? ` in ${wait} s` : " now"}`);
  }

  private conclude(away = 0): void {
    clearTimeout(this.settle);
    this.settling = false;
    this.element.hidden = false;
    const bad = this.losses.length > 0 || this.unsent !== "";
    this.element.dataset.kind = bad ? "lost" : "restored";
    const words = [`Connection restored${away ? ` after ${duration(away)}` : ""}`];
    if (this.losses.length) words.push(`, but something was lost because ${this.losses.join("; ")}.`);
    else words.push(this.unsent ? ". No output was missed." : ". Nothing was missed.");
    if (this.unsent) words.push(` What you typed meanwhile ${this.unsent}.`);
    say(this.text, words.join(""));
    say(this.clock, "");
    this.settle = setTimeout(() => (this.element.hidden = true), bad ? 20_000 : 4000);
    this.losses.length = 0;
    this.unsent = "";
  }
}

/** The text for a gap. */
export function gapWords(from: number, to: number): string {
  return `${plural(to - from, "byte")} of output are no longer kept`;
}
