import type { ISearchOptions, SearchAddon } from "@xterm/addon-search";
import { button, h, say } from "./dom";
import { icon } from "./icons";
import { matchColours } from "./theme";

// The search box of a terminal.
export class Find {
  readonly element: HTMLElement;
  private readonly input = h("input", { attr: { type: "search", "aria-label": "search in the scrollback", placeholder: "Search", spellcheck: "false", autocomplete: "off" } });
  private readonly count = h("span", { class: "find-count", attr: { role: "status" } });
  private readonly exact = toggle("Aa", "Match case");
  private readonly regex = toggle(".*", "Regular expression");

  constructor(
    private readonly search: SearchAddon,
    private readonly toggled: (open: boolean) => void,
  ) {
    this.element = h(
      "div",
      { class: "find", attr: { hidden: true, role: "search" } },
      this.input,
      this.count,
      this.exact,
      this.regex,
      button("Previous match", () => this.go(-1), { icon: icon("up"), hint: "Previous match (Enter)" }),
      button("Next match", () => this.go(1), { icon: icon("down"), hint: "Next match (Shift+Enter)" }),
      button("Close search", () => this.close(), { icon: icon("close") }),
    );
    this.input.addEventListener("input", () => this.go(-1, true));
    for (const t of [this.exact, this.regex]) t.addEventListener("click", () => this.go(-1, true));
    this.element.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.close();
      else if (event.key === "Enter" && event.target === this.input) this.go(event.shiftKey ? 1 : -1);
      else return;
      event.preventDefault();
    });
    search.onDidChangeResults(({ resultIndex, resultCount }) => {
      say(this.count, !this.input.value ? "" : resultCount === 0 ? "none" : resultIndex < 0 ? `${resultCount}+` : `${resultIndex + 1} of ${resultCount}`);
    });
  }

  open(selected: string): void {
    this.element.hidden = false;
    this.toggled(true);
    if (selected && !selected.includes("\n")) this.input.value = selected;
    this.input.focus();
    this.input.select();
    if (this.input.value) this.go(-1, true);
  }

  get opened(): boolean {
    return !this.element.hidden;
  }

  close(): void {
    if (this.element.hidden) return;
    this.element.hidden = true;
    this.search.clearDecorations();
    this.toggled(false);
  }

  /** Most people search for something that scrolled away, so Enter goes up. */
  private go(by: 1 | -1, incremental = false): void {
    const options: ISearchOptions = { caseSensitive: pressed(this.exact), regex: pressed(this.regex), decorations: matchColours(), incremental: incremental && by > 0 };
    try {
      if (!this.input.value) {
        this.search.clearDecorations();
        say(this.count, "");
      } else if (by > 0) this.search.findNext(this.input.value, options);
      else this.search.findPrevious(this.input.value, options);
    } catch {
      say(this.count, "not a regular expression"); // the person has typed only a part of one
    }
  }
}

function toggle(label: string, hint: string): HTMLButtonElement {
  const b = h("button", { class: "toggle", title: hint, attr: { type: "button", "aria-pressed": "false", "aria-label": hint } }, label);
  b.addEventListener("click", () => b.setAttribute("aria-pressed", String(!pressed(b))));
  return b;
}

const pressed = (b: HTMLButtonElement) => b.getAttribute("aria-pressed") === "true";
