// The messages of the protocol, under the names that the page has for them. Their types are generated from the Go types.
import type * as wire from "../../../client/typescript/src/wire.gen";

export type {
  Capabilities, ExecEntry, ExecExit, ProcessInfo, Recording, SessionInfo, Share, Stats, TermOpened, TermViewer,
} from "../../../client/typescript/src/wire.gen";
export type WireChunk = wire.Chunk;
export type StreamName = wire.Chunk["stream"];

/** Every method: its params and the data of its success. */
export type Methods = { [M in keyof wire.Methods]: [wire.Methods[M]["params"], wire.Methods[M]["result"]] };

/** Every event. Output comes as Chunk (frame.ts) instead, whichever framing brought it. */
export type Events = wire.Events;

/** The error of a refused request, or OFFLINE if the answer will never come. */
export class Refusal extends Error {
  constructor(
    readonly code: string,
    message: string,
    readonly details: Record<string, unknown> = {},
  ) {
    super(message);
  }
}
