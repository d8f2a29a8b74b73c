import type { Session } from "./session.ts";

/** What OpenAI's Agents SDK asks its shell tool for. */
export interface ShellAction {
  commands: string[];
  timeoutMs?: number | undefined;
  maxOutputLength?: number | undefined;
}

export interface ShellResult {
  /** One of each command that ran. */
  output: { stdout: string; stderr: string; outcome: { type: "exit"; exitCode: number | null } | { type: "timeout" } }[];
  maxOutputLength?: number;
}

/** A session as the `shell` of OpenAI's Agents SDK: commands run in turn in the same shell, and none follows one that ran out of time. */
export function shell(session: Session): { run(action: ShellAction): Promise<ShellResult> } {
  return {
    async run({ commands, timeoutMs, maxOutputLength }) {
      const output: ShellResult["output"] = [];
      for (const command of commands) {
        const { stdout, stderr, exitCode, timedOut } = await session.exec(command, { timeout: timeoutMs });
        output.push({ stdout, stderr, outcome: timedOut ? { type: "timeout" } : { type: "exit", exitCode } });
        if (timedOut) break;
      }
      return { output, ...(maxOutputLength !== undefined && { maxOutputLength }) };
    },
  };
}
