import { h } from "./dom";

export interface Ending {
  exit_code?: number;
  signal?: string;
  timed_out?: boolean;
  timeout_kind?: string;
  cancelled?: boolean;
  oom_killed?: boolean;
  error?: { message: string };
}

export function wentWell(end: Ending): boolean {
  return end.exit_code === 0 && !end.timed_out && !end.cancelled && !end.error;
}

/** Why a command ended, in two words at most. */
export function exitWords(end: Ending): string {
  if (end.error) return "unknown result";
  if (end.cancelled) return "cancelled";
  if (end.timed_out) return end.timeout_kind === "no_output" ? "silent too long" : "timed out";
  if (end.oom_killed) return "out of memory";
  if (end.signal) return end.signal;
  return `exit ${end.exit_code ?? "?"}`;
}

/** The mark of an ended command: a colour, a sign and words. */
export function exitMark(end: Ending): HTMLElement {
  const well = wentWell(end);
  return h("span", { class: `exit ${well ? "well" : "ill"}` }, h("span", { attr: { "aria-hidden": "true" } }, well ? "✓ " : "✗ "), exitWords(end));
}
