"""The exceptions of this package. All of them are a `TrlError`.

Branch on the class or on `code`; `message` is for people and may change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Mapping

if TYPE_CHECKING:
    from ._results import ExecResult

__all__ = [
    "AuthError",
    "ClosedError",
    "CommandError",
    "ConnectionLostError",
    "ForbiddenError",
    "InvalidParamsError",
    "LimitError",
    "NotFoundError",
    "OutcomeUnknownError",
    "ProcessExitedError",
    "ProcessReadyTimeoutError",
    "SessionBusyError",
    "SessionExistsError",
    "SessionNotFoundError",
    "SessionTerminatedError",
    "TrlError",
]


class TrlError(Exception):
    """The server could not carry out a request, or this client could not ask it."""

    def __init__(
        self, message: str, *, code: str = "", details: Mapping[str, Any] | None = None, method: str = ""
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code  # the server's code; empty for an error of this client
        self.details: Mapping[str, Any] = details or {}
        self.method = method  # the request that failed; empty if it was none

    @property
    def retryable(self) -> bool:
        """The same request may succeed a little later."""
        if self.code == "LIMIT_EXCEEDED":
            return self.details.get("limit") in ("connections", "stdin")
        return self.code in ("RATE_LIMITED", "SHUTTING_DOWN", "SESSION_BUSY", "NODE_UNREACHABLE", "DIRECTORY_UNAVAILABLE")

    def __str__(self) -> str:
        text = f"{self.code}: {self.message}" if self.code else self.message
        return f"{self.method}: {text}" if self.method else text


class AuthError(TrlError):
    """The token is missing, wrong or expired."""


class ForbiddenError(TrlError, PermissionError):
    """The role of the token, or the share link, does not allow this."""


class InvalidParamsError(TrlError, ValueError):
    """A parameter is wrong; `field` names it."""

    @property
    def field(self) -> str:
        return str(self.details.get("field", ""))


class NotFoundError(TrlError, LookupError):
    """There is no such command, process, terminal, stream, share or recording."""


class SessionNotFoundError(NotFoundError):
    """There is no such session."""


class SessionExistsError(TrlError):
    """A live session has this name."""


class SessionBusyError(TrlError):
    """Another command runs; `exec_id` names it."""

    @property
    def exec_id(self) -> str:
        return str(self.details.get("exec_id", ""))


class SessionTerminatedError(TrlError):
    """The session has ended, or it belonged to an earlier run of the server."""

    @property
    def reason(self) -> str:
        return str(self.details.get("reason", "lost" if self.code == "SESSION_LOST" else ""))


class LimitError(TrlError):
    """A bound of the session or the server was reached; `limit` names it."""

    @property
    def limit(self) -> str:
        return str(self.details.get("limit", ""))


class ConnectionLostError(TrlError, ConnectionError):
    """There is no connection. `outcome` says whether the request may have been carried out."""

    def __init__(self, message: str, *, outcome: Literal["unknown", "not_sent"] = "not_sent", method: str = "") -> None:
        super().__init__(message, method=method)
        self.outcome = outcome


class ClosedError(TrlError):
    """`close` was called, or another reader has taken over the stream."""


class OutcomeUnknownError(TrlError):
    """The server lost sight of the command: it may have run."""


class CommandError(TrlError):
    """A command failed and `check=True` was given. `result` has everything about it."""

    def __init__(self, result: ExecResult) -> None:
        how = f"signal {result.signal}" if result.signal else f"exit code {result.exit_code}"
        if result.timed_out:
            how = "timeout"
        last = (result.stderr.strip() or result.stdout.strip()).rpartition("\n")[2]
        super().__init__(f"command failed ({how})" + (f": {last}" if last else ""))
        self.result = result


class ProcessReadyTimeoutError(TrlError, TimeoutError):
    """What a wait for a process waited for did not happen in time. The process goes on."""


class ProcessExitedError(TrlError):
    """A process ended before it was ready."""

    def __init__(self, message: str, *, exit_code: int | None = None, tail: str = "") -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.tail = tail  # its last output


_CLASSES: dict[str, type[TrlError]] = {
    "AUTH_FAILED": AuthError,
    "FORBIDDEN": ForbiddenError,
    "INVALID_PARAMS": InvalidParamsError,
    "SESSION_NOT_FOUND": SessionNotFoundError,
    "SESSION_EXISTS": SessionExistsError,
    "SESSION_BUSY": SessionBusyError,
    "SESSION_TERMINATED": SessionTerminatedError,
    "SESSION_LOST": SessionTerminatedError,
    "LIMIT_EXCEEDED": LimitError,
    "MAX_SESSIONS_REACHED": LimitError,
    "EXEC_NOT_FOUND": NotFoundError,
    "PROCESS_NOT_FOUND": NotFoundError,
    "TERM_NOT_FOUND": NotFoundError,
    "STREAM_NOT_FOUND": NotFoundError,
    "SHARE_NOT_FOUND": NotFoundError,
    "RECORDING_NOT_FOUND": NotFoundError,
}


def from_wire(error: Mapping[str, Any], method: str = "") -> TrlError:
    """The exception for a failure that the server sent."""
    code = str(error.get("code", ""))
    kind = _CLASSES.get(code, TrlError)
    return kind(str(error.get("message", "")), code=code, details=error.get("details"), method=method)
