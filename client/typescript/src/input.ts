import { pause } from "./abort.ts";
import type { Connection } from "./connection.ts";
import { TrlError } from "./errors.ts";
import { encodeBytes, toBytes } from "./frame.ts";

/** Far below the size of a frame and of the server's buffer for a program that does not read. */
export const pieceBytes = 64 << 10;

/** Writes to a command, process or terminal: one piece after the other, each when the server has room for it. */
export class Input {
  private last: Promise<void> = Promise.resolve();
  private unfinished = 0;

  constructor(
    private readonly connection: Connection,
    private readonly send: (piece: { data: string; encoding?: "base64"; eof?: boolean }) => Promise<unknown>,
  ) {}

  /** Writes after everything that was written before. With `eof` nothing may follow. */
  write(data: string | Uint8Array, eof = false): Promise<void> {
    const bytes = toBytes(data);
    return this.queue(() => this.pieces(bytes, eof));
  }

  /** Does something after everything that was asked of it before. */
  queue(job: () => Promise<void>): Promise<void> {
    this.unfinished++;
    const done = this.last.then(job).finally(() => this.unfinished--);
    this.last = done.catch(() => {});
    return done;
  }

  /** Nothing is being written, or waits for its turn. */
  get idle(): boolean {
    return this.unfinished === 0;
  }

  /** Ends the input. It does not matter if it has ended already, as after the end of what reads it. */
  async close(): Promise<void> {
    try {
      await this.write("", true);
    } catch (error) {
      if (!(error instanceof TrlError) || error.code !== "STDIN_CLOSED") throw error;
    }
  }

  private async pieces(bytes: Uint8Array, eof: boolean): Promise<void> {
    for (let at = 0; at === 0 || at < bytes.length; at += pieceBytes) {
      const last = at + pieceBytes >= bytes.length;
      const piece = encodeBytes(bytes.subarray(at, at + pieceBytes));
      await this.whenRoom(() => this.send(eof && last ? { ...piece, eof } : piece));
    }
  }

  private async whenRoom(send: () => Promise<unknown>): Promise<void> {
    for (let wait = 2; ; wait = Math.min(2 * wait, 200)) {
      await this.connection.connected(); // a piece that was not sent may wait for the next connection
      try {
        await send();
        return;
      } catch (error) {
        const full = error instanceof TrlError && (error.code === "RATE_LIMITED" || (error.code === "LIMIT_EXCEEDED" && error.details.limit === "stdin"));
        if (!full) throw error;
      }
      await pause(wait);
    }
  }
}
