"""OpenAI Agents: the executor of a `ShellTool` whose commands run in one session, one after the other.

    tool = ShellTool(executor=shell_executor(session))

What one command leaves (directory, variables, functions) is there for the next one."""

from __future__ import annotations

from typing import Awaitable, Callable

from agents import ShellCallOutcome, ShellCommandOutput, ShellCommandRequest, ShellResult

from ..aio import Session


def shell_executor(session: Session) -> Callable[[ShellCommandRequest], Awaitable[ShellResult]]:
    async def execute(request: ShellCommandRequest) -> ShellResult:
        action = request.data.action
        timeout = None if action.timeout_ms is None else action.timeout_ms / 1000
        outputs = []
        for command in action.commands:
            result = await session.exec(command, timeout=timeout)
            if result.timed_out:
                outcome = ShellCallOutcome(type="timeout")
            else:
                outcome = ShellCallOutcome(type="exit", exit_code=result.exit_code)
            output = ShellCommandOutput(stdout=result.stdout, stderr=result.stderr, outcome=outcome, command=command)
            outputs.append(output)
            if result.timed_out:
                break  # later commands may rely on this one
        return ShellResult(output=outputs, max_output_length=action.max_output_length)

    return execute
