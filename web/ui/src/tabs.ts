import { button, fill, h, say } from "./dom";
import { icon } from "./icons";
import { Signal } from "./signal";
import type { View } from "./view";

interface Tab {
  view: View;
  item: HTMLElement;
  select: HTMLButtonElement;
}

// The open views, one of them visible. This browser tab keeps the list of them for a reload.
export class Tabs {
  readonly bar = h("div", { class: "tabs", attr: { role: "tablist", "aria-label": "open views" } });
  readonly all: HTMLElement; // a button for the list of all tabs, shown while they do not fit
  private readonly list = h("ul", { class: "tab-list", attr: { id: "tab-list", popover: "auto", role: "list", "aria-label": "all open views" } });
  private readonly count = h("button", { class: "tab-all", title: "All open views", attr: { type: "button", popovertarget: "tab-list", hidden: true } });
  readonly stage: HTMLElement;
  readonly selected = new Signal<View | undefined>();
  readonly changed = new Signal<void>(); // the label or mark of a view has changed
  private readonly tabs: Tab[] = [];
  private shown: Tab | undefined;

  constructor(private readonly empty: HTMLElement) {
    this.stage = h("main", { class: "stage", attr: { id: "stage" } }, empty);
    this.all = h("span", { class: "tab-more" }, this.count, this.list);
    this.bar.addEventListener("wheel", (event) => {
      if (event.deltaX || event.ctrlKey || event.shiftKey) return; // the browser scrolls or zooms
      this.bar.scrollLeft += event.deltaY * (event.deltaMode === WheelEvent.DOM_DELTA_LINE ? 16 : 1);
    }, { passive: true });
    this.bar.addEventListener("scroll", () => this.drawMore(), { passive: true });
    new ResizeObserver(() => {
      this.reveal();
      this.drawMore();
    }).observe(this.bar);
    this.list.addEventListener("beforetoggle", () => this.drawList());
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
    this.add(view);
    this.select(view, focus);
  }

  /** Adds a tab without showing it. */
  add(view: View): void {
    if (!this.find(view.key)) this.append(view);
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
    this.reveal();
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
    this.drawMore();
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

  private append(view: View): void {
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
    // The Tab key does not reach this button, because a tablist contains only tabs. The Delete key closes a tab.
    const close = button("Close this view", () => this.close(view), { icon: icon("close"), class: "icon tab-close" });
    close.tabIndex = -1;
    close.setAttribute("aria-hidden", "true");
    item.append(close);
    const tab = { view, item, select };
    this.tabs.push(tab);
    this.bar.append(item);
    this.draw();
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
      if (on) this.reveal(); // it may be wider now
    }
    this.drawMore();
  }

  private reveal(): void {
    this.shown?.item.scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  /** Shows on which sides there are more tabs than fit, and how many there are. */
  private drawMore(): void {
    const { scrollLeft, clientWidth, scrollWidth } = this.bar;
    this.bar.classList.toggle("more-before", scrollLeft > 1);
    this.bar.classList.toggle("more-after", scrollLeft + clientWidth < scrollWidth - 1);
    this.count.hidden = this.tabs.length < 2 || scrollWidth <= clientWidth + (this.count.hidden ? 0 : this.count.offsetWidth);
    say(this.count, `${this.tabs.length} ▾`);
    this.count.setAttribute("aria-label", `all ${this.tabs.length} open views`);
  }

  private drawList(): void {
    fill(this.list, ...this.tabs.map(({ view }) => {
      const pick = button(view.label(), () => {
        this.list.hidePopover();
        this.select(view);
      });
      pick.prepend(icon(view.icon));
      if (this.shown?.view === view) pick.setAttribute("aria-current", "true");
      return h("li", {}, pick);
    }));
  }
}

const markWords = { bell: "rang", done: "done", failed: "failed" };
