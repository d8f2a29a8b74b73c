import { pause } from "./abort.ts";
import { ConnectionLostError, TrlError } from "./errors.ts";
import { encodeBytes, toBytes } from "./frame.ts";
import type * as wire from "./wire.gen.ts";

/** Far below the size of a frame and of the server's buffer for a program that does not read. */
export const pieceBytes = 64 << 10;

/** The params of a request with input, without what it is for. */
export interface Piece {
  data: string;
  encoding?: "base64";
  eof?: boolean;
  offset?: number;
}

/**
 * The input of a command, process or terminal: one piece after the other, each when the server has room for it. A piece has its offset if the end of the input
 * is known. One whose answer was lost is sent again then, and the offset shows what of it was taken.
 */
export class Input {
  private last: Promise<void> = Promise.resolve();
  private unfinished = 0;
  private offsets = true; // an older server knows none

  constructor(
    /** Sends what `piece` returns, which is asked each time that it is sent. */
    private readonly send: (piece: () => Piece) => Promise<Partial<wire.InputTaken>>,
    /** How much input the server has; undefined: unknown. */
    public end?: number,
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
      await this.give(bytes.subarray(at, at + pieceBytes), eof && at + pieceBytes >= bytes.length);
    }
  }

  /** Sends a piece: again while the server has no room for it, and again until it is known what became of it. */
  private async give(bytes: Uint8Array, eof: boolean): Promise<void> {
    let lost: ConnectionLostError | undefined; // the connection was lost with the answer to these bytes
    let offset: number | undefined;
    for (let wait = 2; ; ) {
      try {
        const answer = await this.send(() => {
          if (!lost && this.offsets) offset = this.end;
          return { ...encodeBytes(bytes), ...(eof && { eof }), ...(offset !== undefined && { offset }) };
        });
        this.end = answer.input_offset;
        return;
      } catch (error) {
        if (offset !== undefined && error instanceof ConnectionLostError && error.outcome === "unknown") {
          lost = error;
          continue;
        }
        if (error instanceof TrlError && isFull(error)) {
          await pause(wait);
          wait = Math.min(2 * wait, 200);
          continue;
        }
        if (offset !== undefined && !lost && error instanceof TrlError && error.code === "INVALID_PARAMS" && error.details.field === "offset") {
          this.offsets = false;
          offset = undefined;
          continue;
        }
        if (offset === undefined || !(error instanceof TrlError) || error.code !== "OFFSET_MISMATCH") {
          if (lost) this.end = undefined;
          throw lost && error instanceof ConnectionLostError ? lost : error; // there is no connection any more
        }
        const end = Number(error.details.input_offset);
        const taken = end - offset;
        this.end = end;
        if (!lost && taken === 0) throw error;
        if (lost) {
          if (taken <= 0 || taken > bytes.length) throw lost; // somebody else has given input, too
          if (taken === bytes.length && !eof) return;
          bytes = bytes.subarray(taken);
          lost = undefined;
        }
      }
    }
  }
}

/** That there is no room passes by itself. */
function isFull(error: TrlError): boolean {
  return error.code === "RATE_LIMITED" || (error.code === "LIMIT_EXCEEDED" && error.details.limit === "stdin");
}
