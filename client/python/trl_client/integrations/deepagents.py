"""deepagents: a backend whose commands and files are those of one session.

    agent = create_deep_agent(backend=TrlSandbox(session))"""

from __future__ import annotations

from deepagents.backends.protocol import ExecuteResponse, FileDownloadResponse, FileUploadResponse
from deepagents.backends.sandbox import BaseSandbox

from .._sync import Session
from . import _files

MAX_FILE = 100 << 20


class TrlSandbox(BaseSandbox):
    """Commands run in the session's shell, in turn: what one leaves is there for the next one."""

    def __init__(self, session: Session, *, timeout: int | None = None) -> None:
        self._session = session
        self._timeout = timeout

    @property
    def id(self) -> str:
        return self._session.id

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        merged = _files.Merged()
        limit = timeout or self._timeout
        result = self._session.exec(command, timeout=limit, on_stdout=merged.add, on_stderr=merged.add)
        output = merged.text
        if result.timed_out:
            output += f"\n[the command was ended after {limit} s]"
        return ExecuteResponse(output=output, exit_code=result.exit_code, truncated=merged.truncated or result.truncated)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        return [FileUploadResponse(path=path, error=self._upload(path, content)) for path, content in files]

    def _upload(self, path: str, content: bytes) -> str | None:
        try:
            _files.checked(self._session.run(_files.write_command(path), input=content), path)
        except (OSError, ValueError) as e:
            return _error(e)
        return None

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        return [self._download(path) for path in paths]

    def _download(self, path: str) -> FileDownloadResponse:
        try:
            result = self._session.run(_files.read_command(path), max_output_bytes=MAX_FILE)
            content = _files.checked(result, path).stdout_bytes
        except (OSError, ValueError) as e:
            return FileDownloadResponse(path=path, error=_error(e))
        if result.truncated:
            return FileDownloadResponse(path=path, error=f"the file is larger than {MAX_FILE} bytes")
        return FileDownloadResponse(path=path, content=content)


def _error(error: Exception) -> str:
    match error:
        case FileNotFoundError():
            return "file_not_found"
        case PermissionError():
            return "permission_denied"
        case IsADirectoryError():
            return "is_directory"
        case ValueError():
            return "invalid_path"
    return str(error)
