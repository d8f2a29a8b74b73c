import type { Session } from "./session.cjs";
/** What OpenAI's Agents SDK asks its shell tool for. */
export interface ShellAction {
    commands: string[];
    timeoutMs?: number | undefined;
    maxOutputLength?: number | undefined;
}
export interface ShellResult {
    /** One of each command that ran. */
    output: {
        stdout: string;
        stderr: string;
        outcome: {
            type: "exit";
            exitCode: number | null;
        } | {
            type: "timeout";
        };
    }[];
    maxOutputLength?: number;
}
/** A session as the `shell` of OpenAI's Agents SDK: commands run in turn in the same shell, and none follows one that ran out of time. */
export declare function shell(session: Session): {
    run(action: ShellAction): Promise<ShellResult>;
};
