import { copy } from "./clipboard";
import type { Connection } from "./connection";
import { show } from "./dialog";
import { button, fill, h, say } from "./dom";
import { plural } from "./format";
import { complain } from "./notice";
import type { Share } from "./wire";

const lives: [words: string, seconds: number][] = [["an hour", 3600], ["a day", 24 * 3600], ["a week", 7 * 24 * 3600], ["30 days", 30 * 24 * 3600]];

/** The links to a session and its terminals: the existing ones, and a form for another. */
export function showShares(connection: Connection, session: string, name: string, term?: string): void {
  const list = h("ul", { class: "shares", attr: { role: "list" } });
  const made = h("p", { class: "share-made", attr: { role: "status" } });
  let madeId = ""; // the id of the share whose link is shown

  const draw = async () => {
    try {
      const { shares } = await connection.call("share.list", { session_id: session });
      fill(list, ...(shares.length ? shares.map((share) => row(share)) : [h("li", { class: "muted" }, "No links.")]));
    } catch (error) {
      complain("Links", error);
    }
  };
  const row = (share: Share) =>
    h(
      "li",
      { class: "share" },
      h("span", { class: "share-name" }, share.name || "unnamed"),
      h("span", { class: "badge" }, share.mode === "control" ? "may type" : "view only"),
      h("span", { class: "muted" }, `${share.term_id ? "one terminal" : "whole session"} · until ${new Date(share.expires_at).toLocaleString()} · ${plural(share.clients, "guest")}`),
      button("Revoke", () => void revoke(share.share_id), { class: "danger small" }),
    );
  const revoke = async (id: string) => {
    try {
      await connection.call("share.revoke", { share_id: id });
      if (id === madeId) fill(made);
    } catch (error) {
      complain("Revoke", error);
    }
    await draw();
  };

  const label = h("input", { attr: { id: "share-name", autocomplete: "off", spellcheck: "false", maxlength: 100, placeholder: "who it is for" } });
  const what = select("share-what", [...(term ? [["terminal", "this terminal"] as const] : []), ["session", "the whole session"] as const]);
  const mode = select("share-mode", [["view", "watch"], ["control", "type and run commands, too"]]);
  const life = select("share-life", lives.map(([words, seconds]) => [String(seconds), words] as const), String(24 * 3600));
  const make = button("Make a link", () => void create(), { class: "primary" });
  const create = async () => {
    try {
      const link = await connection.call("share.create", {
        ...(what.value === "terminal" ? { term_id: term! } : { session_id: session }),
        mode: mode.value as "control" | "view", expires_in_s: Number(life.value), ...(label.value.trim() && { name: label.value.trim() }),
      });
      const address = location.origin + link.path;
      madeId = link.share_id;
      const text = h("input", { class: "share-link", attr: { readonly: true, value: address, "aria-label": "the link" } });
      fill(made, "Whoever has this link can use it. It is shown only once.", text, button("Copy", () => void copy(address)));
      text.select();
      label.value = "";
      await draw();
    } catch (error) {
      complain("Share", error);
    }
  };
  void draw();
  show(
    `Share ${name}`,
    list,
    h(
      "div",
      { class: "prefs" },
      h("label", { attr: { for: "share-what" } }, "Opens"), what,
      h("label", { attr: { for: "share-mode" } }, "Guests may"), mode,
      h("label", { attr: { for: "share-life" } }, "For"), life,
      h("label", { attr: { for: "share-name" } }, "Name"), label,
    ),
    h("div", {}, make),
    made,
  );
}

function select(id: string, options: (readonly [value: string, words: string])[], chosen?: string): HTMLSelectElement {
  const element = h("select", { attr: { id } }, ...options.map(([value, words]) => h("option", { attr: { value } }, words)));
  if (chosen) element.value = chosen;
  return element;
}

/** What a guest's page says about its link. */
export function introduceGuest(at: HTMLElement, share: Share): void {
  say(at, `${share.mode === "control" ? "You are a guest and may type" : "You are a guest and may watch"}, until ${new Date(share.expires_at).toLocaleString()}.`);
  at.hidden = false;
}
