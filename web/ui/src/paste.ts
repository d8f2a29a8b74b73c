import { ask } from "./dialog";
import { h } from "./dom";
import { plural } from "./format";
import { choose, settings } from "./settings";

/**
 * Prepares text for pasting; undefined if the person cancels. Several lines may be several commands, so they are shown first.
 * bracketed: the program accepts a paste as one piece of text.
 */
export async function checkPaste(text: string, bracketed: boolean): Promise<string | undefined> {
  // The end of a bracketed paste inside the paste would let the rest of it run. Other controls except tab and newline are removed, too.
  const clean = text.replace(/\r\n?/g, "\n").replace(/[\x00-\x08\x0b-\x1f\x7f\x80-\x9f]/g, "");
  const lines = clean.replace(/\n$/, "").split("\n");
  const several = clean.includes("\n");
  if (!several || (bracketed && !settings.warnPaste)) return clean;

  const shown = lines.slice(0, 12).map((line) => (line.length > 200 ? `${line.slice(0, 200)}…` : line));
  if (lines.length > 12) shown.push(`… ${plural(lines.length - 12, "more line")}`);
  const hush = h("input", { attr: { type: "checkbox", id: "paste-hush" } });
  const answer = await ask({
    title: lines.length > 1 ? `Paste ${plural(lines.length, "line")}?` : "Paste a line with its newline?",
    body: [
      h("p", {}, bracketed ? "The program accepts this as one piece of text; it runs when you press Enter." : "The program reads this as if you typed it: a shell runs each line at once."),
      h("pre", { class: "paste-preview", attr: { tabindex: 0, "aria-label": "text to paste" } }, shown.join("\n")),
      bracketed && h("label", { class: "check" }, hush, "Do not ask again where the program takes a paste as one piece"),
    ],
    yes: "Paste",
    also: lines.length > 1 ? "Paste as one line" : "Without the newline",
  });
  if (!answer) return undefined;
  if (hush.checked) choose({ warnPaste: false });
  return answer === "also" ? lines.map((line) => line.trim()).join(" ") : clean;
}

/** Asks for the text if the browser does not let the page read the clipboard. */
export async function askPaste(): Promise<string | undefined> {
  const area = h("textarea", { attr: { rows: 5, id: "paste-here", spellcheck: "false", autocapitalize: "off", autocomplete: "off", autofocus: true } });
  const answer = ask({ title: "Paste", body: [h("label", { attr: { for: "paste-here" } }, "The browser does not let this page read the clipboard. Paste here:"), area], yes: "Paste" });
  area.focus();
  return (await answer) ? area.value : undefined;
}
