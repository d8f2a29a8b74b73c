import { duration, firstLine } from "./format";
import { settings } from "./settings";

/** Commands shorter than this are not worth a notification. */
const worth = 10_000;

/** Tells a person who looks elsewhere that a command has ended: in the window's title, and as a notification where they asked for those. */
export function commandEnded(command: string, took: number, ending: string, where: string, open: () => void): void {
  if (!document.hidden || took < worth) return;
  document.title = `✓ ${firstLine(command)} · ${ending}`;
  if (!settings.notify || !("Notification" in window) || Notification.permission !== "granted") return;
  const said = new Notification(`${firstLine(command) || "command"}: ${ending}`, { body: `after ${duration(took)}, in ${where}`, tag: `trl ${where}` });
  said.onclick = () => {
    window.focus();
    open();
    said.close();
  };
}

/** Asks the browser, which asks the person. */
export async function mayNotify(): Promise<boolean> {
  if (!("Notification" in window)) return false;
  return Notification.permission === "granted" || (await Notification.requestPermission()) === "granted";
}
