// The client of trl for TypeScript and JavaScript: browsers, Node 22 and later, Bun, Deno. docs/clients/typescript.md shows its use.
export { connect, Sandbox, type ConnectOptions, type EventName, type SessionOptions } from "./sandbox.ts";
export { Session, type SessionInfo } from "./session.ts";
export type { ConnectionState } from "./connection.ts";
export type { Env, ExecOptions, ExecResult } from "./exec.ts";
export { Command, type ExecEvent, type OutputPiece, type StreamOptions } from "./command.ts";
export { Process, type LogEvent, type ProcessExit, type ProcessOptions, type ProcessStatus, type WaitOptions } from "./process.ts";
export { Terminal, type AttachOptions, type TermEvent, type TerminalOptions, type TerminalReading, type TermSnapshot } from "./terminal.ts";
export { shell, type ShellAction, type ShellResult } from "./shell.ts";
export type { SessionEvent } from "./watch.ts";
export * from "./errors.ts";
export type * as wire from "./wire.gen.ts";
