import { h } from "./dom";

/** The text that each key sends. A key with an empty text modifies the next key; the page handles a key without a text. */
const keys: [label: string, name: string, data?: string][] = [
  ["Esc", "Escape", "\x1b"],
  ["Tab", "Tab", "\t"],
  ["Ctrl", "Control, for the next key", ""],
  ["Alt", "Alt, for the next key", ""],
  ["←", "Left", "\x1b[D"],
  ["↓", "Down", "\x1b[B"],
  ["↑", "Up", "\x1b[A"],
  ["→", "Right", "\x1b[C"],
  ["Paste", "Paste"],
  ["PgUp", "Page up", "\x1b[5~"],
  ["PgDn", "Page down", "\x1b[6~"],
  ["Copy", "Copy the selection"],
  ["|", "Pipe", "|"],
  ["/", "Slash", "/"],
  ["-", "Dash", "-"],
  ["~", "Tilde", "~"],
  ["Home", "Home", "\x1b[H"],
  ["End", "End", "\x1b[F"],
];

// A row with the keys that phones lack, above their keyboard. style/ shows it on touch screens.
export class Keybar {
  readonly element = h("div", { class: "keybar", attr: { role: "toolbar", "aria-label": "keys" } });
  private readonly held = new Map<string, HTMLButtonElement>();

  /** send gets the text of a key. The text of an arrow depends on the cursor mode of the program, which the terminal knows. act handles Copy and Paste. */
  constructor(send: (data: string) => void, applicationCursor: () => boolean, act: Record<"Copy" | "Paste", () => void>) {
    for (const [label, name, data] of keys) {
      const key = h("button", {
        attr: { type: "button", "aria-label": name, "aria-pressed": data === "" ? "false" : null },
        on: {
          pointerdown: (event) => event.preventDefault(), // the terminal keeps the focus and the phone shows its keyboard
          click: () => {
            if (data === undefined) return act[label as keyof typeof act]();
            if (data === "") return this.hold(label);
            send(this.apply(applicationCursor() ? data.replace(/^\x1b\[([A-DHF])$/, "\x1bO$1") : data));
          },
        },
      }, label);
      if (data === "") this.held.set(label, key);
      this.element.append(key);
    }
  }

  /** Applies Ctrl and Alt, if they are active, to the next input. */
  apply(data: string): string {
    if (this.down("Ctrl") && data.length === 1) {
      const code = data.toUpperCase().charCodeAt(0);
      if (code >= 0x40 && code <= 0x5f) data = String.fromCharCode(code & 0x1f);
    }
    if (this.down("Alt")) data = `\x1b${data}`;
    for (const key of this.held.values()) key.setAttribute("aria-pressed", "false");
    return data;
  }

  private hold(label: string): void {
    this.held.get(label)?.setAttribute("aria-pressed", String(!this.down(label)));
  }

  private down(label: string): boolean {
    return this.held.get(label)?.getAttribute("aria-pressed") === "true";
  }
}
