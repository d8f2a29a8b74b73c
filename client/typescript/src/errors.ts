import type * as wire from "./wire.gen.ts";
import type { ExecResult } from "./exec.ts";

/** The server refused a request. A command that fails is no error: it is a result with its exit code. */
export class TrlError extends Error {
  override readonly name: string = "TrlError";
  constructor(
    message: string,
    /** What went wrong, for programs. A later server may have codes that this client does not know. */
    readonly code: wire.Code | (string & {}),
    readonly details: Readonly<Record<string, unknown>> = {},
    /** The method that was refused. */
    readonly method?: string,
  ) {
    super(message);
  }

  /** The same request may succeed later. */
  get retryable(): boolean {
    switch (this.code) {
      case "RATE_LIMITED":
      case "SHUTTING_DOWN":
      case "SESSION_BUSY":
      case "NODE_UNREACHABLE":
      case "DIRECTORY_UNAVAILABLE":
        return true;
      case "LIMIT_EXCEEDED":
        return this.details.limit === "stdin" || this.details.limit === "connections";
      default:
        return false;
    }
  }
}

/** The credential is missing, wrong, revoked or expired. */
export class AuthError extends TrlError {
  override readonly name = "AuthError";
}

/** The principal's role, or the share link that it came with, does not allow this. */
export class ForbiddenError extends TrlError {
  override readonly name = "ForbiddenError";
}

export class InvalidParamsError extends TrlError {
  override readonly name = "InvalidParamsError";
  /** The parameter, by its name on the wire. */
  get field(): string {
    return String(this.details.field ?? "");
  }
}

export class SessionNotFoundError extends TrlError {
  override readonly name = "SessionNotFoundError";
}

export class SessionExistsError extends TrlError {
  override readonly name = "SessionExistsError";
}

/** A command runs in the session, and `whenBusy` is `reject`; or the session's queue is full. */
export class SessionBusyError extends TrlError {
  override readonly name = "SessionBusyError";
  /** The command that runs. */
  get execId(): string | undefined {
    return this.details.exec_id as string | undefined;
  }
}

/** The session has ended, or was lost when the server was started anew. */
export class SessionTerminatedError extends TrlError {
  override readonly name = "SessionTerminatedError";
  get reason(): string {
    return String(this.details.reason ?? (this.code === "SESSION_LOST" ? "lost" : ""));
  }
}

/** A bound of the session or the server was reached. */
export class LimitError extends TrlError {
  override readonly name = "LimitError";
  get limit(): string {
    return String(this.details.limit ?? "");
  }
}

/** There is no such command, process, terminal, stream, share link or recording. */
export class NotFoundError extends TrlError {
  override readonly name = "NotFoundError";
}

/** The connection was lost, and could not be made again or did not bring the answer. */
export class ConnectionLostError extends Error {
  override readonly name = "ConnectionLostError";
  constructor(
    message: string,
    /** `unknown`: the server may have carried out the request. `unsent`: it never got it. */
    readonly outcome: "unknown" | "unsent",
    options?: ErrorOptions,
  ) {
    super(message, options);
  }
}

/** What a loss means for a request that was sent over an earlier connection: the server may have carried it out. */
export function afterSending(error: unknown): unknown {
  if (!(error instanceof ConnectionLostError || error instanceof TrlError)) return error;
  return new ConnectionLostError(error.message, "unknown", { cause: error });
}

/** `close` was called. */
export class ClosedError extends Error {
  override readonly name = "ClosedError";
  constructor(message = "the client is closed") {
    super(message);
  }
}

/** A command failed that was run with `check: true`. It has every field of the result. */
export class CommandError extends Error {
  override readonly name = "CommandError";
  constructor(readonly result: ExecResult) {
    super(`${result.command}: ${result.signal ? `ended by ${result.signal}` : `exit code ${result.exitCode}`}${result.timedOut ? " after its time limit" : ""}`);
    const { success, exitCode, stdout, stderr, command, duration, timedOut } = result;
    Object.assign(this, { success, exitCode, stdout, stderr, command, duration, timedOut });
  }
}
export interface CommandError extends Pick<ExecResult, "success" | "exitCode" | "stdout" | "stderr" | "command" | "duration" | "timedOut"> {}

/** The command began, and the server cannot say how it ended. */
export class OutcomeUnknownError extends TrlError {
  override readonly name = "OutcomeUnknownError";
}

/** The time of a wait for a process is over. The process goes on. */
export class ProcessReadyTimeoutError extends Error {
  override readonly name = "ProcessReadyTimeoutError";
  constructor(readonly processId: string, condition: string, readonly timeout: number) {
    super(`${condition}: not within ${timeout} ms`);
  }
}

/** The process ended before what was waited for. */
export class ProcessExitedBeforeReadyError extends Error {
  override readonly name = "ProcessExitedBeforeReadyError";
  constructor(
    readonly processId: string,
    condition: string,
    readonly exitCode: number | undefined,
    /** Its last output. */
    readonly tail: string,
  ) {
    super(`${condition}: the process ended before, with exit code ${exitCode ?? "unknown"}${tail && `\n${tail}`}`);
  }
}

type Refusal = new (message: string, code: string, details?: Record<string, unknown>, method?: string) => TrlError;

const classes: Record<string, Refusal> = {
  AUTH_FAILED: AuthError,
  FORBIDDEN: ForbiddenError,
  INVALID_PARAMS: InvalidParamsError,
  SESSION_NOT_FOUND: SessionNotFoundError,
  SESSION_EXISTS: SessionExistsError,
  SESSION_BUSY: SessionBusyError,
  SESSION_TERMINATED: SessionTerminatedError,
  SESSION_LOST: SessionTerminatedError,
  LIMIT_EXCEEDED: LimitError,
  MAX_SESSIONS_REACHED: LimitError,
  EXEC_NOT_FOUND: NotFoundError,
  PROCESS_NOT_FOUND: NotFoundError,
  TERM_NOT_FOUND: NotFoundError,
  STREAM_NOT_FOUND: NotFoundError,
  SHARE_NOT_FOUND: NotFoundError,
  RECORDING_NOT_FOUND: NotFoundError,
};

/** The server's error as an exception of the class for its code. */
export function refusal(e: wire.Error, method?: string): TrlError {
  return new (classes[e.code] ?? TrlError)(e.message, e.code, e.details ?? {}, method);
}
