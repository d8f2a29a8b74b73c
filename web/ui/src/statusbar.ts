import type { Connection } from "./connection";
import { fill, h, say } from "./dom";
import { Viewers } from "./viewers";
import type { Capabilities } from "./wire";

const good = 100; // ms: typing feels immediate
const fair = 300;

// The line at the bottom: our principal, the other clients, and the round-trip time to the gateway.
export class StatusBar {
  readonly element: HTMLElement;
  readonly viewers = new Viewers();
  private readonly who = h("span");
  private readonly latency = h("span", { class: "latency num" });
  private readonly dot = h("span", { class: "dot" });
  private capabilities: Capabilities | undefined;

  constructor(private readonly connection: Connection) {
    const words = h("span", {}, "connecting");
    fill(this.latency, this.dot, words);
    this.element = h("footer", { class: "statusbar" }, this.who, h("span", { class: "status-right" }, this.viewers.element, this.latency));
    connection.latency.on((ms) => {
      this.latency.dataset.level = ms < good ? "good" : ms < fair ? "fair" : "poor";
      this.latency.title = "round trip to the gateway";
      say(words, ms < 10 ? `${ms.toFixed(1)} ms` : `${Math.round(ms)} ms`);
    });
    connection.nodeChanged.on(() => this.draw());
    connection.quiet.on((ms) => {
      if (!ms) return;
      this.latency.dataset.level = "off";
      say(words, "no answer");
    });
    connection.status.on((status) => {
      if (status.kind === "up") return;
      this.latency.dataset.level = "off";
      say(words, status.kind === "connecting" ? "connecting" : "offline");
    });
  }

  introduce(capabilities: Capabilities): void {
    this.capabilities = capabilities;
    this.draw();
  }

  private draw(): void {
    if (!this.capabilities) return;
    const { version, principal, isolation } = this.capabilities;
    const { node, degraded } = this.connection;
    const guest = principal?.share && `guest of ${principal.subject} (${principal.share.mode === "control" ? "may type" : "may watch"})`;
    const words = [guest ?? (principal && `${principal.subject} (${principal.role})`), `trl ${version}`, isolation.tier && `isolation: ${isolation.tier}`, node && `node ${node}`, degraded && "the cluster's directory does not answer"];
    say(this.who, words.filter(Boolean).join(" · "));
  }
}
