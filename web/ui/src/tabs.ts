import { button, fill, h } from "./dom";
import { icon } from "./icons";
import { Signal } from "./signal";
import type { View } from "./view";

interface Tab {
  view: View;
  item: HTMLElement;
  select: HTMLButtonElement;
}

// The open views, one of them in sight. Which ones they are is kept for a reload, in this browser tab alone.
export class Tabs {
  readonly bar = h("div", { class: "tabs", attr: { role: "tablist", "aria-label": "open views" } });
  readonly stage: HTMLElement;
  readonly selected = new Signal<View | undefined>();
  readonly changed = new Signal<void>(); // something in one of the views
  private readonly tabs: Tab[] = [];
  private shown: Tab | undefined;

  constructor(private readonly empty: HTMLElement) {
    this.stage = h("main", { class: "stage", attr: { id: "stage" } }, empty);
  }

  get current(): View | undefined {
    return this.shown?.view;
  }

  get views(): View[] {
    return this.tabs.map((tab) => tab.view);
  }

  find(key: string): View | undefined {
    return this.tabs.find((tab) => tab.view.key === key)?.view;
  }

  open(view: View, focus = true): void {
    if (!this.find(view.key)) this.add(view);
    this.select(view, focus);
  }

  select(view: View, focus = true): void {
    const tab = this.tabs.find((t) => t.view === view);
    if (!tab) return;
    if (this.shown !== tab) {
      this.shown?.view.hide();
      this.shown = tab;
      fill(this.stage, view.element);
      view.show();
    }
    this.draw();
    tab.item.scrollIntoView({ block: "nearest", inline: "nearest" });
    this.selected.emit(view);
    if (focus) view.focus();
  }

  step(by: 1 | -1): void {
    const at = this.tabs.findIndex((tab) => tab === this.shown);
    const next = this.tabs[(at + by + this.tabs.length) % this.tabs.length];
    if (next) this.select(next.view);
  }

  close(view: View, focus = true): void {
    const at = this.tabs.findIndex((tab) => tab.view === view);
    if (at < 0) return;
    const [tab] = this.tabs.splice(at, 1);
    tab!.item.remove();
    view.hide();
    view.close();
    if (this.shown !== tab) return this.draw();
    this.shown = undefined;
    const next = this.tabs[Math.min(at, this.tabs.length - 1)];
    if (next) return this.select(next.view, focus);
    fill(this.stage, this.empty);
    this.draw();
    this.selected.emit(undefined);
  }

  private add(view: View): void {
    const select = h("button", {
      class: "tab-select",
      attr: { type: "button", role: "tab", "aria-controls": "stage" },
      on: {
        click: () => this.select(view),
        auxclick: (event) => event.button === 1 && this.close(view),
        keydown: (event) => {
          if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
            this.step(event.key === "ArrowLeft" ? -1 : 1);
            this.shown?.select.focus();
          } else if (event.key === "Delete") this.close(view);
          else return;
          event.preventDefault();
        },
      },
    });
    const item = h("div", { class: "tab", attr: { role: "presentation" } }, select);
    // Not reachable by Tab: inside a tablist there are tabs only. Delete closes by keyboard.
    const close = button("Close this view", () => this.close(view), { icon: icon("close"), class: "icon tab-close" });
    close.tabIndex = -1;
    close.setAttribute("aria-hidden", "true");
    item.append(close);
    const tab = { view, item, select };
    this.tabs.push(tab);
    this.bar.append(item);
    view.changed.on(() => {
      this.draw();
      this.changed.emit();
    });
  }

  private draw(): void {
    for (const { view, item, select } of this.tabs) {
      const on = this.shown?.view === view;
      item.classList.toggle("on", on);
      select.setAttribute("aria-selected", String(on));
      select.tabIndex = on ? 0 : -1;
      const mark = on ? "" : view.mark();
      item.dataset.mark = mark;
      const said = `${view.icon} ${view.label()} ${mark}`;
      if (select.dataset.said === said) continue;
      select.dataset.said = said;
      fill(select, icon(view.icon), h("span", { class: "tab-label" }, view.label()), mark && h("span", { class: "tab-mark" }, h("span", { class: "sr" }, markWords[mark])));
      if (on) item.scrollIntoView({ block: "nearest", inline: "nearest" }); // it may be wider now
    }
  }
}

const markWords = { bell: "rang", done: "done", failed: "failed" };
