// What the page uses of the TypeScript client.
export { pause } from "../../../client/typescript/src/abort.ts";
export { commandOutput } from "../../../client/typescript/src/command.ts";
export { Connection, type ConnectionState } from "../../../client/typescript/src/connection.ts";
export { ConnectionLostError, AuthError, ForbiddenError, TrlError } from "../../../client/typescript/src/errors.ts";
export { Position, type Chunk } from "../../../client/typescript/src/frame.ts";
export type { Follower } from "../../../client/typescript/src/link.ts";
export { processOutput } from "../../../client/typescript/src/loghub.ts";
export type { Stream } from "../../../client/typescript/src/stream.ts";
export { createWithTerminal, Terminal, type TermEvent } from "../../../client/typescript/src/terminal.ts";
