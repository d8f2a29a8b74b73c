import type { Signal } from "./signal";

// The content of a tab: a terminal, a session's activity, or the pool.
export interface View {
  readonly key: string; // the address of the view, as in location.hash: no two tabs have the same
  readonly element: HTMLElement;
  readonly changed: Signal<void>; // its label or mark is another
  readonly icon: "terminal" | "activity" | "pool" | "record";
  label(): string;
  /** A sign that something happened that the person has not seen, or none. */
  mark(): "" | "bell" | "done" | "failed";
  show(): void; // it is in sight now
  hide(): void;
  focus(): void;
  close(): void; // for good
}
