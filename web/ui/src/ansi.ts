// Plain text of the output of commands. Commands run with TERM=dumb, but some write escape sequences nevertheless.

/** Removes escape sequences from a text that comes in pieces. A sequence that a piece cuts waits for the next piece. */
export class Plain {
  private rest = "";
  private readonly decoder = new TextDecoder(); // bytes that are not UTF-8 become U+FFFD, as in a terminal

  take(bytes: Uint8Array): string {
    const text = this.rest + this.decoder.decode(bytes, { stream: true });
    const cut = /\x1b(?:\[[0-?]{0,4096}[ -/]{0,4096}|\][^\x07\x1b]{0,4096}|[PX^_][^\x1b]{0,4096})?$|\r$/.exec(text);
    this.rest = cut ? cut[0] : "";
    const lines = (cut ? text.slice(0, cut.index) : text)
      .replace(/\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[PX^_][^\x1b]*\x1b\\|\x1b[ -/]*[0-~]/g, "")
      .split("\n");
    return lines.map((line, at) => lastState(line, at < lines.length - 1)).join("\n").replace(/[\x00-\x08\x0b-\x1f\x7f]/g, "");
  }
}

/** The final text of a line: the last state of a progress bar. A regular expression would take time quadratic in the line's length. */
function lastState(line: string, ended: boolean): string {
  let end = line.length;
  while (ended && line[end - 1] === "\r") end--;
  return line.slice(line.lastIndexOf("\r", end - 2) + 1, end);
}
