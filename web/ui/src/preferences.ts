import { at } from "./at";
import { show } from "./dialog";
import { button, h } from "./dom";
import { guestToken } from "./guest";
import { mayNotify } from "./notify";
import { complain, notice } from "./notice";
import { choose, fontSizes, settings, type Settings } from "./settings";

/** The dialog for settings. A change applies at once. */
export function showPreferences(): void {
  const theme = h("select", { attr: { id: "pref-theme" }, on: { change: () => choose({ theme: theme.value as Settings["theme"] }) } }, ...(["system", "light", "dark"] as const).map((value) => h("option", { attr: { value, selected: settings.theme === value } }, { system: "as the system", light: "light", dark: "dark" }[value])));
  const size = number("pref-size", settings.fontSize, fontSizes.least, fontSizes.most, (fontSize) => choose({ fontSize }));
  const lines = number("pref-lines", settings.scrollback, 100, 1_000_000, (scrollback) => choose({ scrollback }));
  const notifies = check("Notify when a command over 10 s ends while the page is hidden", settings.notify, async (box) => {
    const notify = box.checked && (await mayNotify());
    if (box.checked && !notify) notice("The browser does not let this page send notifications.", "bad");
    box.checked = notify;
    choose({ notify });
  });
  show(
    "Settings",
    h("div", { class: "prefs" }, h("label", { attr: { for: "pref-theme" } }, "Theme"), theme, h("label", { attr: { for: "pref-size" } }, "Font size"), size, h("label", { attr: { for: "pref-lines" } }, "Lines of scrollback"), lines),
    check("Selecting copies", settings.copyOnSelect, (box) => choose({ copyOnSelect: box.checked })),
    check("Show several lines before they are pasted, even if the program accepts a paste as one piece", settings.warnPaste, (box) => choose({ warnPaste: box.checked })),
    notifies,
    check("Record the terminals that I open here: their output, not my input", settings.record, (box) => choose({ record: box.checked })),
    check("Draw terminals with the graphics card", settings.webgl, (box) => choose({ webgl: box.checked })),
    check("Screen reader: the terminal's lines as text, read aloud as they appear", settings.screenReader, (box) => choose({ screenReader: box.checked })),
    h("p", { class: "muted" }, "Kept in this browser."),
    !guestToken && h("div", {}, button("Log out", () => void logOut())),
  );
}

/** Ends this browser's login, in all its tabs. */
async function logOut(): Promise<void> {
  try {
    const answer = await fetch(at("logout"), { method: "POST", redirect: "manual" });
    if (answer.status >= 400) throw new Error(await answer.text()); // its node cannot be told
    localStorage.removeItem("trl.at");
    location.assign("/login");
  } catch (error) {
    complain("Log out", error);
  }
}

function number(id: string, value: number, min: number, max: number, then: (n: number) => void): HTMLInputElement {
  const input = h("input", { attr: { id, type: "number", value, min, max } });
  input.addEventListener("change", () => input.checkValidity() && input.value && then(Number(input.value)));
  return input;
}

function check(text: string, on: boolean, then: (box: HTMLInputElement) => void): HTMLLabelElement {
  const box = h("input", { attr: { type: "checkbox", checked: on } });
  box.addEventListener("change", () => then(box));
  return h("label", { class: "check" }, box, text);
}
