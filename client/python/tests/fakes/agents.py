"""The shell tool of OpenAI Agents."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class ShellCallOutcome:
    type: str
    exit_code: int | None = None


@dataclass
class ShellCommandOutput:
    stdout: str = ""
    stderr: str = ""
    outcome: ShellCallOutcome = field(default_factory=lambda: ShellCallOutcome("exit"))
    command: str | None = None
    provider_data: dict[str, Any] | None = None


@dataclass
class ShellResult:
    output: list[ShellCommandOutput]
    max_output_length: int | None = None
    provider_data: dict[str, Any] | None = None


@dataclass
class ShellActionRequest:
    commands: list[str]
    timeout_ms: int | None = None
    max_output_length: int | None = None


@dataclass
class ShellCallData:
    call_id: str
    action: ShellActionRequest
    status: str | None = None
    raw: Any | None = None


@dataclass
class ShellCommandRequest:
    ctx_wrapper: Any
    data: ShellCallData
