import { h, type Child } from "./dom";

// Questions in a <dialog>. The browser keeps the focus inside and restores it afterwards; Escape answers no.

interface Question {
  title: string;
  body?: Child[];
  yes: string;
  danger?: boolean;
  also?: string; // the label of a second way to say yes
}

/** Resolves to "yes", "also" or "" (no). */
export function ask(question: Question): Promise<"yes" | "also" | ""> {
  const before = document.activeElement;
  const dialog = h(
    "dialog",
    { class: "dialog", attr: { "aria-labelledby": "dialog-title" } },
    h(
      "form",
      { attr: { method: "dialog" } },
      h("h2", { attr: { id: "dialog-title" } }, question.title),
      ...(question.body ?? []),
      h(
        "div",
        { class: "dialog-answers" },
        h("button", { attr: { value: "" } }, "Cancel"),
        question.also && h("button", { attr: { value: "also" } }, question.also),
        h("button", { class: question.danger ? "danger" : "primary", attr: { value: "yes", autofocus: true } }, question.yes),
      ),
    ),
  );
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      if (before instanceof HTMLElement) before.focus();
      resolve(dialog.returnValue as "yes" | "also" | "");
    });
  });
}

/** Asks for a line of text; undefined if the person cancels. */
export async function askText(title: string, label: string, value: string, yes: string): Promise<string | undefined> {
  const input = h("input", { attr: { value, id: "dialog-text", autocomplete: "off", spellcheck: "false", autofocus: true } });
  const form = ask({ title, yes, body: [h("label", { attr: { for: "dialog-text" } }, label), input] });
  input.select();
  // Enter would press the form's first button, which is Cancel; here it means yes.
  input.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    input.closest("dialog")?.close("yes");
  });
  return (await form) === "yes" ? input.value.trim() : undefined;
}

/** A dialog that only shows something. */
export function show(title: string, ...body: Child[]): void {
  const before = document.activeElement;
  const dialog = h(
    "dialog",
    { class: "dialog wide", attr: { "aria-labelledby": "dialog-title" } },
    h("form", { attr: { method: "dialog" } }, h("h2", { attr: { id: "dialog-title" } }, title), ...body, h("div", { class: "dialog-answers" }, h("button", { class: "primary", attr: { autofocus: true } }, "Close"))),
  );
  dialog.addEventListener("close", () => {
    dialog.remove();
    if (before instanceof HTMLElement) before.focus();
  });
  document.body.append(dialog);
  dialog.showModal();
}
