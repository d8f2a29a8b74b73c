import type { IClipboardProvider } from "@xterm/addon-clipboard";
import { h } from "./dom";
import { plural } from "./format";
import { notice } from "./notice";

// This module only writes. The content of the clipboard belongs to the person: the page reads it when the browser passes it on a paste, never because
// a program in the terminal asks.

/** Copies text. A notice says so unless quiet is set. */
export async function copy(text: string, quiet = false): Promise<void> {
  if (!text) return;
  try {
    if (navigator.clipboard) await navigator.clipboard.writeText(text);
    else copyByHand(text);
  } catch {
    notice("The browser does not let this page write to the clipboard.", "bad");
    return;
  }
  if (!quiet) notice(`Copied ${plural(text.split("\n").length, "line")}.`);
}

/** Pages without TLS from other machines have no clipboard API. The old command of browsers works there. */
function copyByHand(text: string): void {
  const before = document.activeElement;
  const area = h("textarea", { class: "sr", attr: { "aria-hidden": "true" } });
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
  if (before instanceof HTMLElement) before.focus();
}

const mostByProgram = 1 << 20;

/** Handles OSC 52: a program may write text to the clipboard, visibly. A query gets no answer. */
export const programsClipboard: IClipboardProvider = {
  readText: () => Promise.resolve(""),
  async writeText(selection, text) {
    if (selection !== "c" && selection !== ("" as typeof selection)) return;
    if (!text || text.length > mostByProgram || !document.hasFocus()) return;
    await copy(text, true);
    notice(`The program in the terminal copied ${plural(text.length, "character")}.`);
  },
};
