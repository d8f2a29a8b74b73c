import type { ITheme } from "@xterm/xterm";
import { settings, settingsChanged } from "./settings";
import { Signal } from "./signal";

// The theme is light or dark, as the system says or as the person has chosen. This file has the colours of the terminal; style/ has those of the page.

const system = matchMedia("(prefers-color-scheme: dark)");

export const themeChanged = new Signal<void>();

export function dark(): boolean {
  return settings.theme === "system" ? system.matches : settings.theme === "dark";
}

export function applyTheme(): void {
  const apply = () => {
    document.documentElement.dataset.theme = settings.theme;
    themeChanged.emit();
  };
  settingsChanged.on(apply);
  system.addEventListener("change", apply);
  apply();
}

export const mono = 'ui-monospace, "SF Mono", "Cascadia Mono", "JetBrains Mono", Menlo, Consolas, "DejaVu Sans Mono", "Liberation Mono", monospace';

/** The colours of matches, and of the current match. */
export function matchColours() {
  return dark()
    ? { matchBackground: "#5a4a12", matchOverviewRuler: "#c9a227", activeMatchBackground: "#a87f12", activeMatchColorOverviewRuler: "#ffd65c" }
    : { matchBackground: "#fff0b3", matchOverviewRuler: "#b98a00", activeMatchBackground: "#ffd24d", activeMatchColorOverviewRuler: "#7a5600" };
}

/** The colours during a search: xterm.js selects the current match, which hides its colour. */
export function searchTheme(): ITheme {
  const { activeMatchBackground } = matchColours();
  return { ...terminalTheme(), selectionBackground: activeMatchBackground, selectionInactiveBackground: activeMatchBackground };
}

/** Sixteen colours. Each has a contrast of at least 4.5:1 to the background, except the two that are meant to be close to the background. */
export function terminalTheme(): ITheme {
  return dark()
    ? {
        background: "#15171a", foreground: "#d6dae0", cursor: "#7ab8ff", cursorAccent: "#15171a",
        selectionBackground: "#2f4a6b", selectionInactiveBackground: "#2a3442",
        black: "#2b2f36", red: "#f2777a", green: "#8ccf7e", yellow: "#e5c76b",
        blue: "#7ab8ff", magenta: "#d699f0", cyan: "#6fd0d6", white: "#d6dae0",
        brightBlack: "#868e9b", brightRed: "#ff9ea0", brightGreen: "#a8e29c", brightYellow: "#f4dc91",
        brightBlue: "#a3cfff", brightMagenta: "#e6bdf8", brightCyan: "#98e4e8", brightWhite: "#ffffff",
        scrollbarSliderBackground: "#ffffff22", scrollbarSliderHoverBackground: "#ffffff3a", scrollbarSliderActiveBackground: "#ffffff50",
        overviewRulerBorder: "#15171a",
      }
    : {
        background: "#ffffff", foreground: "#1f2328", cursor: "#0a5dc2", cursorAccent: "#ffffff",
        selectionBackground: "#bcd9fb", selectionInactiveBackground: "#dfe5ec",
        black: "#1f2328", red: "#b3261e", green: "#1a6b2a", yellow: "#7a5600",
        blue: "#0a5dc2", magenta: "#8430a8", cyan: "#0b6a73", white: "#5b636d",
        brightBlack: "#6a727d", brightRed: "#cf2f26", brightGreen: "#217a33", brightYellow: "#8a6200",
        brightBlue: "#1d6fd8", brightMagenta: "#9a3fc0", brightCyan: "#0d7882", brightWhite: "#3b4249",
        scrollbarSliderBackground: "#00000022", scrollbarSliderHoverBackground: "#0000003a", scrollbarSliderActiveBackground: "#00000050",
        overviewRulerBorder: "#ffffff",
      };
}
