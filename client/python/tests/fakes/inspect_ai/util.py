"""Inspect's sandboxes, and the registry that `sandboxenv` enters a class into."""

from dataclasses import dataclass
from typing import Any, Callable, Generic, TypeVar

T = TypeVar("T")
registered: dict[str, type] = {}


def sandboxenv(name: str) -> Callable[[type], type]:
    def enter(cls: type) -> type:
        registered[name] = cls
        return cls

    return enter


class SandboxEnvironment:
    def as_type(self, cls: type) -> Any:
        assert isinstance(self, cls)
        return self


class SandboxEnvironmentLimits:
    MAX_EXEC_OUTPUT_SIZE = 10 * 1024**2
    MAX_EXEC_OUTPUT_SIZE_STR = "10 MiB"
    MAX_READ_FILE_SIZE = 100 * 1024**2
    MAX_READ_FILE_SIZE_STR = "100 MiB"


class OutputLimitExceededError(Exception):
    def __init__(self, limit_str: str, truncated_output: str | None) -> None:
        super().__init__(limit_str)
        self.truncated_output = truncated_output


class SandboxUnavailableError(RuntimeError):
    pass


@dataclass
class SandboxConnection:
    type: str
    command: str


@dataclass
class ExecResult(Generic[T]):
    success: bool
    returncode: int
    stdout: T
    stderr: T
