import { h } from "./dom";

// Short messages at the edge of the page, such as "copied 3 lines". Screen readers announce them.
const region = h("div", { class: "notices", attr: { role: "status", "aria-live": "polite" } });

export const noticeRegion = region;

export function notice(text: string, kind: "" | "bad" = "", stay = 4000): void {
  for (const old of region.children) if (old.textContent === text) old.remove();
  const item = h("div", { class: `notice ${kind}` }, text);
  region.append(item);
  setTimeout(() => item.remove(), stay);
}

/** The text of a refusal for people. */
export function complain(doing: string, error: unknown): void {
  notice(`${doing}: ${error instanceof Error ? error.message : String(error)}`, "bad", 8000);
}
