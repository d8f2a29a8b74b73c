import type * as wire from "./wire.gen.cjs";
/** Variables to set. null unsets one, undefined is skipped. */
export type Env = Record<string, string | null | undefined>;
export interface ExecOptions {
    /** For this command only. */
    cwd?: string | undefined;
    /** For this command only. */
    env?: Env | undefined;
    /** ms; then TERM, and KILL after a grace. 0: none. */
    timeout?: number | undefined;
    /** ms without output; then the command is ended. */
    noOutputTimeout?: number | undefined;
    stdin?: string | Uint8Array | undefined;
    /** Ends the command, and the promise rejects with the signal's reason. */
    signal?: AbortSignal | undefined;
    /** The most that is returned of each stream; beginning and end are kept. 1 MiB by default. */
    maxOutputBytes?: number | undefined;
    /** Text as a terminal would have shown it: without escape sequences. Not with onOutput. */
    clean?: boolean | undefined;
    /** While another command runs: wait for the turn, or throw SessionBusyError. */
    whenBusy?: "queue" | "reject" | undefined;
    /** Throw CommandError if the command fails. */
    check?: boolean | undefined;
    /** A name for this request, under which the server runs it only once; by default a random one. */
    requestKey?: string | undefined;
    /** Gets the output as it comes. */
    onOutput?: ((stream: "stdout" | "stderr", data: string) => void) | undefined;
    record?: boolean | undefined;
}
export interface ExecResult {
    /** The exit code is 0. */
    success: boolean;
    /** 128+N if signal N ended it. */
    exitCode: number;
    stdout: string;
    stderr: string;
    command: string;
    /** ms */
    duration: number;
    /** When the result came, as an ISO 8601 string. */
    timestamp: string;
    sessionId: string;
    execId: string;
    /** The shell's directory afterwards. */
    cwd: string;
    /** The signal that ended it, without SIG. */
    signal?: string;
    timedOut: boolean;
    timeoutKind?: string;
    cancelled: boolean;
    /** Some output is missing: `omitted` says where. */
    truncated: boolean;
    omitted?: wire.OmittedStreams;
    /** The command ended the shell, and its state was restored in another one. */
    shellRestored: boolean;
    oomKilled?: boolean;
    limitHit?: string;
    /** Process ids that the command left running. */
    background: number[];
    /** The output as it was, also where it is not UTF-8. */
    bytes(): {
        stdout: Uint8Array;
        stderr: Uint8Array;
    };
}
/** A random name for a request. */
export declare function newKey(): string;
export declare function seconds(ms: number | undefined): number | undefined;
export declare function wireEnv(env: Env | undefined): Record<string, string | null> | undefined;
/** The params of exec.run and exec.stream that are the same; JSON leaves out what is undefined. */
export declare function execParams(sessionId: string, command: string | readonly string[], o: ExecOptions): {
    session_id: string;
    command: string;
    working_dir: string | undefined;
    env: Record<string, string | null> | undefined;
    timeout_s: number | undefined;
    no_output_timeout_s: number | undefined;
    stdin: string | undefined;
    stdin_encoding: "base64" | undefined;
    when_busy: "queue" | "reject" | undefined;
    request_key: string;
    record: boolean | undefined;
};
/** What a command wrote, as text or as bytes, as it is returned. */
export interface Output {
    stdout: string | Uint8Array;
    stderr: string | Uint8Array;
    truncated: boolean;
    omitted?: wire.OmittedStreams | undefined;
}
/** A result from the wire's account of the end. It is an error if the server does not know the end, or if the command never ran. */
export declare function resultOf(command: string, exit: wire.ExecExit, output: Output): ExecResult;
export declare function outputOf(r: wire.ExecResult): Output;
