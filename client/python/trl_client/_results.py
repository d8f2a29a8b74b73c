"""What commands and waits return."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from typing import Any, Mapping

from ._wire import OmittedStreams
from .errors import CommandError, OutcomeUnknownError, from_wire


@dataclass(frozen=True)
class ExecResult:
    """How a command ended, with its output."""

    command: str
    exit_code: int  # 128+N if signal N ended it
    stdout_bytes: bytes
    stderr_bytes: bytes
    duration: float  # seconds
    exec_id: str
    session_id: str
    cwd: str  # the shell's directory afterwards
    signal: str | None = None  # without SIG
    timed_out: bool = False
    timeout_kind: str | None = None  # "hard" or "no_output"
    cancelled: bool = False
    truncated: bool = False  # some output is missing; `omitted` says where, if it is known
    omitted: OmittedStreams | None = None
    shell_restored: bool = False  # the command ended the shell, and another one has its state
    oom_killed: bool = False
    limit_hit: str | None = None
    background: tuple[int, ...] = ()  # process ids that the command left running

    @property
    def ok(self) -> bool:
        return self.exit_code == 0

    @property
    def stdout(self) -> str:
        return self.stdout_bytes.decode(errors="replace")

    @property
    def stderr(self) -> str:
        return self.stderr_bytes.decode(errors="replace")

    def check(self) -> ExecResult:
        """This result, or a CommandError if the command failed."""
        if not self.ok:
            raise CommandError(self)
        return self

    @classmethod
    def from_exit(
        cls, command: str, end: Mapping[str, Any], stdout: bytes, stderr: bytes, truncated: bool
    ) -> ExecResult:
        """The result for an `ExecExit` or `ExecResult` of the wire."""
        if "exit_code" not in end:
            error = from_wire(end.get("error", {}))
            raise OutcomeUnknownError(error.message or "the result is unknown", code=error.code, details=error.details)
        return cls(
            command=command,
            exit_code=end["exit_code"],
            stdout_bytes=stdout,
            stderr_bytes=stderr,
            duration=end["duration_ms"] / 1000,
            exec_id=end["exec_id"],
            session_id=end["session_id"],
            cwd=end["working_dir"],
            signal=end.get("signal"),
            timed_out=end["timed_out"],
            timeout_kind=end.get("timeout_kind"),
            cancelled=end["cancelled"],
            truncated=truncated,
            omitted=end.get("omitted"),
            shell_restored=end["shell_restored"],
            oom_killed=end.get("oom_killed", False),
            limit_hit=end.get("limit_hit"),
            background=tuple(end.get("background", ())),
        )

    @classmethod
    def from_answer(cls, command: str, answer: Mapping[str, Any]) -> ExecResult:
        """The result for the answer to exec.run."""
        stdout = decode(answer["stdout"], answer["stdout_encoding"])
        stderr = decode(answer["stderr"], answer["stderr_encoding"])
        return cls.from_exit(command, answer, stdout, stderr, answer["truncated"])


@dataclass(frozen=True)
class ProcessExit:
    """How a process ended."""

    exit_code: int | None  # 128+N if signal N ended it
    signal: str | None = None
    timed_out: bool = False


@dataclass(frozen=True)
class Logs:
    """A process's output so far."""

    stdout: str
    stderr: str
    next_offset: int  # where later output begins
    gap: tuple[int, int] | None = None  # bytes that the server no longer has


@dataclass(frozen=True)
class LogMatch:
    """A line that `wait_for_log` found."""

    line: str
    match: re.Match[str]


def decode(text: str, encoding: str = "utf-8") -> bytes:
    return base64.b64decode(text) if encoding == "base64" else text.encode()


def encode(data: bytes) -> tuple[str, str]:
    """Bytes as text of the wire, with the name of the encoding."""
    try:
        return data.decode(), "utf-8"
    except UnicodeDecodeError:
        return base64.b64encode(data).decode(), "base64"


class Collector:
    """Keeps the beginning and the end of what is written to it, at most `limit` bytes in all."""

    def __init__(self, limit: int) -> None:
        self._head_room = limit - limit // 2
        self._tail_room = limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self.truncated = False

    def write(self, data: bytes) -> None:
        room = self._head_room - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        # The tail is cut only when it has twice its size: moving it for every piece would cost too much.
        if len(self._tail) > 2 * self._tail_room:
            self._cut()

    def _cut(self) -> None:
        excess = len(self._tail) - self._tail_room
        if excess > 0:
            del self._tail[:excess]
            self.truncated = True

    def bytes(self) -> bytes:
        self._cut()
        return bytes(self._head + self._tail)
