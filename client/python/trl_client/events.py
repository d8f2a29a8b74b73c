"""What comes on a stream: output, gaps, ends. All are frozen dataclasses, so `match` takes them apart."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, Mapping, Union, get_args

from ._results import ExecResult
from ._wire import SessionInfo

__all__ = [
    "CommandDone",
    "CommandEvent",
    "Completed",
    "Control",
    "Exited",
    "Gap",
    "LogEvent",
    "Missed",
    "Output",
    "Resized",
    "SessionEvent",
    "Stderr",
    "Stdout",
    "TerminalEvent",
    "WatchEvent",
]


@dataclass(frozen=True)
class Stdout:
    """A piece of standard output. A character that is split between two pieces is in the text of the later one."""

    data: str
    offset: int  # of the first byte of `raw` in the stream, stdout and stderr counted together
    raw: bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class Stderr:
    """A piece of standard error, like `Stdout`."""

    data: str
    offset: int
    raw: bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class Gap:
    """The bytes from `from_` to `to` are gone: the server no longer had them when we asked."""

    from_: int
    to: int


@dataclass(frozen=True)
class Completed:
    """A command has ended; the last event of its stream."""

    result: ExecResult


@dataclass(frozen=True)
class Exited:
    """A process or terminal has ended; the last event of its stream."""

    exit_code: int | None
    signal: str | None = None
    timed_out: bool = False


@dataclass(frozen=True)
class Output:
    """What a terminal printed. With `snapshot` it draws the screen instead and does not count as bytes of the stream.

    A terminal emulator must not answer queries in output with `replay`, which is older than the attach."""

    data: bytes
    offset: int
    replay: bool = False
    snapshot: bool = False


@dataclass(frozen=True)
class Resized:
    cols: int
    rows: int


@dataclass(frozen=True)
class Control:
    """This client types from now on (`control`), or another one has taken over (`view`)."""

    mode: Literal["control", "view"]
    by: str | None = None  # the subject that took control


@dataclass(frozen=True)
class CommandDone:
    """A command ended in a terminal whose shell reports commands."""

    command: str | None
    exit_code: int | None
    duration: float | None  # seconds


SessionEventType = Literal[
    "session.state",
    "session.expiring",
    "exec.started",
    "exec.exit",
    "process.started",
    "process.exit",
    "term.opened",
    "term.viewers",
    "term.exit",
]
SESSION_EVENTS: frozenset[str] = frozenset(get_args(SessionEventType))


@dataclass(frozen=True)
class SessionEvent:
    """Something happened in a session. PROTOCOL.md says what `data` has for each type."""

    type: SessionEventType
    data: Mapping[str, Any]


@dataclass(frozen=True)
class Missed:
    """Events are missing here: the connection was lost, or the program did not read them. `info` is the session as it is now."""

    info: SessionInfo


CommandEvent = Union[Stdout, Stderr, Gap, Completed]
LogEvent = Union[Stdout, Stderr, Gap, Exited]
TerminalEvent = Union[Output, Gap, Resized, Control, CommandDone, Exited]
WatchEvent = Union[SessionEvent, Missed]
