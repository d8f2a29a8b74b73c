// The messages of the protocol under the page's names. Their types are generated from the Go types.
import type * as wire from "../../../client/typescript/src/wire.gen";

export type {
  Capabilities, ExecEntry, ExecExit, Node, ProcessInfo, Recording, SessionInfo, Share, Stats, TermViewer,
} from "../../../client/typescript/src/wire.gen";
/** Every method: its params and the data of its success. */
export type Methods = { [M in keyof wire.Methods]: [wire.Methods[M]["params"], wire.Methods[M]["result"]] };

/** Every event. Output goes to followers instead. */
export type Events = wire.Events;
