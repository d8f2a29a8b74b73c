import { fill, h, say } from "./dom";
import { plural } from "./format";
import type { Terminal } from "./terminal";
import type { TermViewer } from "./wire";

export function viewerName(viewer: TermViewer): string {
  return viewer.via ? `“${viewer.via}”` : viewer.subject;
}

// The other clients of the visible terminal: their number and, on request, their names.
export class Viewers {
  readonly element: HTMLElement;
  private readonly count = h("button", { class: "viewers-count", attr: { type: "button", popovertarget: "viewers", hidden: true } });
  private readonly list = h("ul", { class: "viewers", attr: { id: "viewers", popover: "auto", "aria-label": "who is at this terminal" } });

  constructor() {
    this.element = h("span", {}, this.count, this.list);
  }

  /** Shows the viewers of a terminal. Without a connection they are unknown. */
  show(terminal: Terminal | undefined, connected: boolean): void {
    const viewers = connected && terminal && !terminal.over ? terminal.viewers : [];
    this.count.hidden = viewers.length < 2; // a single viewer needs no count
    say(this.count, `${plural(viewers.length, "viewer")} here`);
    const words = viewers.map((viewer) => {
      const us = terminal!.isUs(viewer) ? " (you)" : "";
      return `${viewerName(viewer)}${us}: ${viewer.mode === "control" ? "types" : "watches"}, since ${new Date(viewer.since).toLocaleTimeString()}`;
    });
    const said = words.join("\n");
    if (this.count.title === said) return;
    this.count.title = said;
    fill(this.list, ...words.map((line) => h("li", {}, line)));
  }
}
