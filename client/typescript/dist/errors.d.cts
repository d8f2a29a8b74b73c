import type * as wire from "./wire.gen.cjs";
import type { ExecResult } from "./exec.cjs";
/** The server refused a request. A command that fails is no error: it is a result with its exit code. */
export declare class TrlError extends Error {
    /** What went wrong, for programs. A later server may have codes that this client does not know. */
    readonly code: wire.Code | (string & {});
    readonly details: Readonly<Record<string, unknown>>;
    /** The method that was refused. */
    readonly method?: string | undefined;
    readonly name: string;
    constructor(message: string, 
    /** What went wrong, for programs. A later server may have codes that this client does not know. */
    code: wire.Code | (string & {}), details?: Readonly<Record<string, unknown>>, 
    /** The method that was refused. */
    method?: string | undefined);
    /** The same request may succeed later. */
    get retryable(): boolean;
}
/** The credential is missing, wrong, revoked or expired. */
export declare class AuthError extends TrlError {
    readonly name = "AuthError";
}
/** The principal's role, or the share link that it came with, does not allow this. */
export declare class ForbiddenError extends TrlError {
    readonly name = "ForbiddenError";
}
export declare class InvalidParamsError extends TrlError {
    readonly name = "InvalidParamsError";
    /** The parameter, by its name on the wire. */
    get field(): string;
}
export declare class SessionNotFoundError extends TrlError {
    readonly name = "SessionNotFoundError";
}
export declare class SessionExistsError extends TrlError {
    readonly name = "SessionExistsError";
}
/** A command runs in the session, and `whenBusy` is `reject`; or the session's queue is full. */
export declare class SessionBusyError extends TrlError {
    readonly name = "SessionBusyError";
    /** The command that runs. */
    get execId(): string | undefined;
}
/** The session has ended, or was lost when the server was started anew. */
export declare class SessionTerminatedError extends TrlError {
    readonly name = "SessionTerminatedError";
    get reason(): string;
}
/** A bound of the session or the server was reached. */
export declare class LimitError extends TrlError {
    readonly name = "LimitError";
    get limit(): string;
}
/** There is no such command, process, terminal, stream, share link or recording. */
export declare class NotFoundError extends TrlError {
    readonly name = "NotFoundError";
}
/** The connection was lost, and could not be made again or did not bring the answer. */
export declare class ConnectionLostError extends Error {
    /** `unknown`: the server may have carried out the request. `unsent`: it never got it. */
    readonly outcome: "unknown" | "unsent";
    readonly name = "ConnectionLostError";
    constructor(message: string, 
    /** `unknown`: the server may have carried out the request. `unsent`: it never got it. */
    outcome: "unknown" | "unsent", options?: ErrorOptions);
}
/** What a loss means for a request that was sent over an earlier connection: the server may have carried it out. */
export declare function afterSending(error: unknown): unknown;
/** `close` was called. */
export declare class ClosedError extends Error {
    readonly name = "ClosedError";
    constructor(message?: string);
}
/** A command failed that was run with `check: true`. It has every field of the result. */
export declare class CommandError extends Error {
    readonly result: ExecResult;
    readonly name = "CommandError";
    constructor(result: ExecResult);
}
export interface CommandError extends Pick<ExecResult, "success" | "exitCode" | "stdout" | "stderr" | "command" | "duration" | "timedOut"> {
}
/** The command began, and the server cannot say how it ended. */
export declare class OutcomeUnknownError extends TrlError {
    readonly name = "OutcomeUnknownError";
}
/** The time of a wait for a process is over. The process goes on. */
export declare class ProcessReadyTimeoutError extends Error {
    readonly processId: string;
    readonly timeout: number;
    readonly name = "ProcessReadyTimeoutError";
    constructor(processId: string, condition: string, timeout: number);
}
/** The process ended before what was waited for. */
export declare class ProcessExitedBeforeReadyError extends Error {
    readonly processId: string;
    readonly exitCode: number | undefined;
    /** Its last output. */
    readonly tail: string;
    readonly name = "ProcessExitedBeforeReadyError";
    constructor(processId: string, condition: string, exitCode: number | undefined, 
    /** Its last output. */
    tail: string);
}
/** The server's error as an exception of the class for its code. */
export declare function refusal(e: wire.Error, method?: string): TrlError;
