import { Signal } from "./signal";

// The person's settings, kept in this browser.
export interface Settings {
  theme: "system" | "light" | "dark";
  fontSize: number; // CSS pixels
  scrollback: number; // lines
  copyOnSelect: boolean;
  warnPaste: boolean; // also where the program takes bracketed paste
  notify: boolean;
  webgl: boolean; // draw with the graphics card where there is one
  screenReader: boolean;
  record: boolean; // record the terminals that this page opens
}

const defaults: Settings = {
  theme: "system",
  fontSize: 13,
  scrollback: 20_000, // about 20 MB at 80 columns
  copyOnSelect: true,
  warnPaste: true,
  notify: false,
  webgl: true,
  screenReader: false,
  record: false,
};

export const fontSizes = { least: 8, most: 32 };

const key = "trl.settings";

export const settings: Settings = { ...defaults, ...read() };
export const settingsChanged = new Signal<Settings>();

function read(): Partial<Settings> {
  try {
    return JSON.parse(localStorage.getItem(key) ?? "{}") as Partial<Settings>;
  } catch {
    return {}; // not our text, or no storage at all: use the defaults
  }
}

export function choose(change: Partial<Settings>): void {
  Object.assign(settings, change);
  settings.fontSize = Math.min(fontSizes.most, Math.max(fontSizes.least, settings.fontSize));
  try {
    localStorage.setItem(key, JSON.stringify(settings));
  } catch {
    // no storage: the choice lasts as long as the page
  }
  settingsChanged.emit(settings);
}

addEventListener("storage", (event) => {
  if (event.key !== key) return; // another tab has stored something else
  Object.assign(settings, defaults, read());
  settingsChanged.emit(settings);
});
