import type { Signal } from "./signal";

// The content of a tab: a terminal, a session's activity, or the pool.
export interface View {
  readonly key: string; // the address of the view in location.hash; each tab has another
  readonly element: HTMLElement;
  readonly changed: Signal<void>; // the label or mark has changed
  readonly icon: "terminal" | "activity" | "pool" | "record";
  label(): string;
  /** A sign for an event that the person has not seen, or "". */
  mark(): "" | "bell" | "done" | "failed";
  show(): void; // the view is visible now
  hide(): void;
  focus(): void;
  close(): void; // for good
}
