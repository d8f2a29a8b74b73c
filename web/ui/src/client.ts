// What the page uses of the TypeScript client.
export { Connection, type ConnectionState } from "../../../client/typescript/src/connection.ts";
export { ConnectionLostError, AuthError, TrlError } from "../../../client/typescript/src/errors.ts";
export { endOf, Position, readChunk, type Chunk } from "../../../client/typescript/src/frame.ts";
export type { Follower } from "../../../client/typescript/src/link.ts";
