from dataclasses import dataclass


@dataclass
class FileDownloadResponse:
    path: str
    content: bytes | None = None
    error: str | None = None


@dataclass
class FileUploadResponse:
    path: str
    error: str | None = None


@dataclass
class ExecuteResponse:
    output: str
    exit_code: int | None = None
    truncated: bool = False
