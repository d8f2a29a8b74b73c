import { h } from "./dom";

/** Hands text to the browser as a file. */
export function save(name: string, text: string): void {
  const url = URL.createObjectURL(new Blob([text], { type: "text/plain" }));
  h("a", { attr: { href: url, download: name } }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000); // the download has begun by then
}
