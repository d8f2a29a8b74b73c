import { duration, firstLine } from "./format";
import { settings } from "./settings";

/** Commands shorter than this are not worth a notification. */
const worth = 10_000;

/** Reports the end of a command while the page is hidden: in the window's title, and as a notification if the settings say so. */
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

/** Has the browser ask the person for the permission. */
export async function mayNotify(): Promise<boolean> {
  if (!("Notification" in window)) return false;
  return Notification.permission === "granted" || (await Notification.requestPermission()) === "granted";
}
