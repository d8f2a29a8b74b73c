import { h } from "./dom";
import { show } from "./dialog";

export interface Shortcut {
  chord: string; // Ctrl+Shift+F; on a Mac Cmd+Shift+F works too
  does: string;
  run(): void;
}

// Every shortcut of the page is Ctrl+Shift and a key, which shells and editors hardly use. The page never binds a plain control key such as Ctrl+R,
// Ctrl+W or Ctrl+T: these belong to the terminal, or to the browser.
export class Keys {
  private readonly byChord = new Map<string, Shortcut>();

  constructor(private readonly shortcuts: Shortcut[]) {
    for (const shortcut of shortcuts) this.byChord.set(shortcut.chord, shortcut);
    addEventListener("keydown", (event) => this.press(event), { capture: true }); // before xterm.js gets the key
  }

  help(): void {
    const rows = [
      ...this.shortcuts.map(({ chord, does }) => [chord, does] as const),
      ["Ctrl+Shift+V", "Paste; several lines are shown first"] as const,
      ["Ctrl+click", "Open a link"] as const,
      ["Shift+PageUp, Shift+PageDown", "Scroll"] as const,
      ["←, →, Delete", "On a tab: previous tab, next tab, close the tab"] as const,
    ];
    show(
      "Keys",
      h("table", { class: "keys" }, h("tbody", {}, ...rows.map(([chord, does]) => h("tr", {}, h("th", { attr: { scope: "row" } }, ...kbd(chord)), h("td", {}, does))))),
      h("p", { class: "muted" }, "Everything else goes to the program in the terminal: Ctrl+C, Ctrl+R, Ctrl+W and Tab too. Ctrl+Shift+L leaves the terminal by keyboard."),
    );
  }

  private press(event: KeyboardEvent): void {
    if (!(event.ctrlKey || event.metaKey) || !event.shiftKey || event.altKey || document.querySelector("dialog[open]")) return;
    const shortcut = this.byChord.get(`Ctrl+Shift+${nameOf(event)}`);
    if (!shortcut) return;
    event.preventDefault();
    event.stopPropagation();
    shortcut.run();
  }
}

/** The name of a key. For letters and digits it depends on the place on the keyboard, not on Shift or the layout. */
function nameOf(event: KeyboardEvent): string {
  const arrows: Record<string, string> = { ArrowUp: "↑", ArrowDown: "↓", ArrowLeft: "←", ArrowRight: "→" };
  if (arrows[event.key]) return arrows[event.key]!;
  if (/^[a-z]$/i.test(event.key)) return event.key.toUpperCase();
  const code = /^(?:Key|Digit)(.)$/.exec(event.code)?.[1];
  return code ?? event.key;
}

function kbd(chord: string): (HTMLElement | string)[] {
  return chord.split(/([+,] ?)/).map((part) => (/^[+,] ?$/.test(part) ? part : h("kbd", {}, part)));
}
