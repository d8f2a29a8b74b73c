import type { Terminal as Xterm } from "@xterm/xterm";

// Feed writes output into xterm.js. While xterm.js parses a piece, Feed knows whether the piece is a replay. The queries in a replay (where is the
// cursor, what are you) have had their answer. A second answer would be typed into the program that runs now (PROTOCOL.md, Terminals).
export class Feed {
  private readonly replays: boolean[] = []; // one for each piece that was written and not parsed yet

  constructor(private readonly term: Xterm) {
    const mute = () => this.replaying;
    const { parser } = term;
    for (const id of [
      { final: "c" }, { prefix: ">", final: "c" }, { prefix: "=", final: "c" }, // what are you
      { final: "n" }, { prefix: "?", final: "n" }, // where is the cursor, are you well
      { intermediates: "$", final: "p" }, { prefix: "?", intermediates: "$", final: "p" }, // is this mode on
      { prefix: ">", final: "q" }, { prefix: "?", final: "u" }, { final: "t" }, // version, keyboard, window
    ]) {
      parser.registerCsiHandler(id, mute);
    }
    for (const code of [4, 10, 11, 12]) parser.registerOscHandler(code, (data) => mute() && data.includes("?")); // what colour
    for (const id of [{ intermediates: "$", final: "q" }, { intermediates: "+", final: "q" }]) parser.registerDcsHandler(id, mute);
    parser.registerOscHandler(52, (data) => mute() || data.endsWith("?")); // the first time the clipboard got the text; no program may read the clipboard
  }

  get replaying(): boolean {
    return this.replays[0] ?? false;
  }

  write(bytes: Uint8Array, replay: boolean, parsed: () => void): void {
    this.replays.push(replay);
    this.term.write(bytes, () => {
      this.replays.shift();
      parsed();
    });
  }

  /** Calls reached when xterm.js has parsed everything that was written so far. */
  then(reached: () => void): void {
    this.term.write("", reached);
  }

  /**
   * Reports a gap between the output before it and the output after it. It cancels the sequence that the gap may have cut, leaves modes
   * that would hide the words, and moves the lines on the screen to the scrollback, because the next output may clear the screen.
   */
  gap(words: string, reached: () => void): void {
    this.replays.push(false);
    this.term.write("\x18\x1b7\x1b[?1049l\x1b7\x1b[?6l\x1b[r\x1b8\x1b[m", reached);
    this.term.write(`\r\n\x1b[2m[${words}]\x1b[m\r${"\n".repeat(this.term.rows)}\x1b[H`, () => this.replays.shift());
  }
}
