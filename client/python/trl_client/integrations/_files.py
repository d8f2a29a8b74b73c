"""Files of a session, read and written by commands beside the session, with the session's rights.

A path reaches the command as an argument and never as shell text."""

from __future__ import annotations

import errno
import os
import posixpath

from .._results import Collector, ExecResult
from .._session import Session

# 100 and an errno, so that what a script found out is not taken for a failure of `cat`.
_EXITS = {100 + number: kind for number, kind in (
    (errno.ENOENT, FileNotFoundError),
    (errno.EACCES, PermissionError),
    (errno.EISDIR, IsADirectoryError),
)}  # fmt: skip

_READ = """
[ ! -d "$1" ] || exit 121
[ -e "$1" ] || exit 102
[ -r "$1" ] || exit 113
exec cat <"$1"
"""

# Whatever keeps the parent or the file from being written is in the end a lack of rights.
_WRITE = """
[ ! -d "$1" ] || exit 121
mkdir -p -- "$(dirname -- "$1")" || exit 113
exec cat >"$1" || exit 113
"""


def read_command(path: str) -> list[str]:
    """Prints a file."""
    return ["sh", "-c", _READ, "sh", _plain(path)]


def write_command(path: str) -> list[str]:
    """Makes its input the content of a file, and the directories above it."""
    return ["sh", "-c", _WRITE, "sh", _plain(path)]


def _plain(path: str) -> str:
    """The path so that no program takes it for an option."""
    if "\0" in path or not path:
        raise ValueError(f"not a path: {path!r}")
    return path if path.startswith("/") else "./" + path


def checked(result: ExecResult, path: str) -> ExecResult:
    """Raises what went wrong with the file."""
    if result.ok:
        return result
    if kind := _EXITS.get(result.exit_code):
        number = result.exit_code - 100
        raise kind(number, os.strerror(number), path)
    raise OSError(f"{path}: {result.stderr.strip() or f'exit code {result.exit_code}'}")


async def read(session: Session, path: str, *, cwd: str | None = None, limit: int) -> bytes | None:
    """A file's content; None if it is longer than the limit."""
    result = checked(await session.run(read_command(path), cwd=cwd, max_output_bytes=limit), path)
    return None if result.truncated else result.stdout_bytes


async def write(session: Session, path: str, content: str | bytes, *, cwd: str | None = None) -> None:
    checked(await session.run(write_command(path), cwd=cwd, input=content), path)


class Merged:
    """stdout and stderr of a command in the order in which they came, at most `limit` bytes: its beginning and its end."""

    def __init__(self, limit: int = 1 << 20) -> None:
        self._kept = Collector(limit)

    def add(self, text: str) -> None:
        self._kept.write(text.encode())

    @property
    def text(self) -> str:
        return self._kept.bytes().decode(errors="replace")

    @property
    def truncated(self) -> bool:
        return self._kept.truncated


def absolute(path: str | None, directory: str) -> str:
    """A path in a directory, as an absolute one."""
    return posixpath.join(directory, path or "")
