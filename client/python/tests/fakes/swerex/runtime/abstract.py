"""Requests and responses are pydantic models there; dataclasses do for us."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any


@dataclass
class IsAliveResponse:
    is_alive: bool
    message: str = ""


@dataclass
class CreateBashSessionRequest:
    startup_source: list[str] = field(default_factory=list)
    session: str = "default"


@dataclass
class CreateBashSessionResponse:
    output: str = ""


@dataclass
class BashAction:
    command: str
    session: str = "default"
    timeout: float | None = None
    is_interactive_command: bool = False
    is_interactive_quit: bool = False
    check: str = "raise"
    error_msg: str = ""
    expect: list[str] = field(default_factory=list)


@dataclass
class BashInterruptAction:
    session: str = "default"
    timeout: float = 0.2
    n_retry: int = 3


@dataclass
class BashObservation:
    output: str = ""
    exit_code: int | None = None


@dataclass
class CloseBashSessionRequest:
    session: str = "default"


@dataclass
class CloseBashSessionResponse: ...


@dataclass
class Command:
    command: str | list[str]
    timeout: float | None = None
    shell: bool = False
    check: bool = False
    error_msg: str = ""
    env: dict[str, str] | None = None
    cwd: str | None = None
    merge_output_streams: bool = False


@dataclass
class CommandResponse:
    stdout: str = ""
    stderr: str = ""
    exit_code: int | None = None


@dataclass
class ReadFileRequest:
    path: str
    encoding: str | None = None
    errors: str | None = None


@dataclass
class ReadFileResponse:
    content: str = ""


@dataclass
class WriteFileRequest:
    content: str
    path: str


@dataclass
class WriteFileResponse: ...


@dataclass
class UploadRequest:
    source_path: str
    target_path: str


@dataclass
class UploadResponse: ...


@dataclass
class CloseResponse: ...


class AbstractRuntime(ABC):
    @abstractmethod
    async def is_alive(self, *, timeout: float | None = None) -> Any: ...

    @abstractmethod
    async def create_session(self, request: Any) -> Any: ...

    @abstractmethod
    async def run_in_session(self, action: Any) -> Any: ...

    @abstractmethod
    async def close_session(self, request: Any) -> Any: ...

    @abstractmethod
    async def execute(self, command: Any) -> Any: ...

    @abstractmethod
    async def read_file(self, request: Any) -> Any: ...

    @abstractmethod
    async def write_file(self, request: Any) -> Any: ...

    @abstractmethod
    async def upload(self, request: Any) -> Any: ...

    @abstractmethod
    async def close(self) -> Any: ...
