"""SWE-ReX: a runtime whose bash sessions are sessions of a gateway.

Commands that wait for input (`is_interactive_command`, `expect`) are not supported: use a terminal."""

from __future__ import annotations

import asyncio
import io
import logging
import pathlib
import tarfile
from typing import Any

from swerex.exceptions import (
    CommandTimeoutError,
    NonZeroExitCodeError,
    SessionDoesNotExistError,
    SessionExistsError,
)
from swerex.runtime.abstract import (
    AbstractRuntime,
    BashInterruptAction,
    BashObservation,
    CloseBashSessionResponse,
    CloseResponse,
    CommandResponse,
    CreateBashSessionResponse,
    IsAliveResponse,
    ReadFileResponse,
    UploadResponse,
    WriteFileResponse,
)

from .. import aio
from .._results import ExecResult
from ..errors import TrlError
from . import _files

MAX_FILE = 100 << 20
_MERGE = ["sh", "-c", 'exec "$@" 2>&1', "sh"]


class TrlRuntime(AbstractRuntime):
    """Works on a connected sandbox. Files and `execute` use its own session, `run_in_session` the sessions made here."""

    def __init__(self, sandbox: aio.Sandbox, *, logger: logging.Logger | None = None) -> None:
        self._sandbox = sandbox
        self._sessions: dict[str, aio.Session] = {}
        self.logger = logger or logging.getLogger("rex-runtime")

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        try:
            await self._sandbox.call("system.ping")
        except TrlError as e:
            return IsAliveResponse(is_alive=False, message=str(e))
        return IsAliveResponse(is_alive=True)

    async def create_session(self, request: Any) -> CreateBashSessionResponse:
        if request.session in self._sessions:
            raise SessionExistsError(f"session {request.session!r} already exists")
        session = await self._sandbox.create_session(shell="bash")
        self._sessions[request.session] = session
        output = ""
        for file in request.startup_source:
            merged = _files.Merged()
            await session.exec(["source", file], on_stdout=merged.add, on_stderr=merged.add)
            output += merged.text
        return CreateBashSessionResponse(output=output)

    async def run_in_session(self, action: Any) -> BashObservation:
        session = self._session(action.session)
        if isinstance(action, BashInterruptAction):
            for _ in range(action.n_retry):
                sent = await self._sandbox.call("exec.cancel", {"session_id": session.id, "signal": "INT"})
                if not sent["cancelled"]:  # nothing runs any more
                    break
                await asyncio.sleep(action.timeout)
            return BashObservation(exit_code=0)
        if action.is_interactive_command or action.is_interactive_quit or action.expect:
            raise NotImplementedError("trl runs interactive programs in terminals, not in a bash session")
        merged = _files.Merged()
        result = await session.exec(action.command, timeout=action.timeout, on_stdout=merged.add, on_stderr=merged.add)
        _check_time(result, action.timeout)
        if action.check == "raise" and not result.ok:
            raise NonZeroExitCodeError(_failure(action, result, merged.text))
        return BashObservation(output=merged.text, exit_code=None if action.check == "ignore" else result.exit_code)

    async def close_session(self, request: Any) -> CloseBashSessionResponse:
        session = self._session(request.session)
        del self._sessions[request.session]
        await session.destroy()
        return CloseBashSessionResponse()

    async def execute(self, command: Any) -> CommandResponse:
        argv = [command.command] if isinstance(command.command, str) else list(command.command)
        if command.shell:
            argv = ["sh", "-c", *argv]
        if command.merge_output_streams:
            argv = _MERGE + argv
        result = await self._sandbox.run(argv, cwd=command.cwd, env=command.env, timeout=command.timeout)
        _check_time(result, command.timeout)
        if command.check and not result.ok:
            raise NonZeroExitCodeError(_failure(command, result, result.stdout + result.stderr))
        return CommandResponse(stdout=result.stdout, stderr=result.stderr, exit_code=result.exit_code)

    async def read_file(self, request: Any) -> ReadFileResponse:
        content = await _files.read(self._sandbox, request.path, limit=MAX_FILE)
        if content is None:
            raise ValueError(f"{request.path}: larger than {MAX_FILE} bytes")
        return ReadFileResponse(content=content.decode(request.encoding or "utf-8", request.errors or "strict"))

    async def write_file(self, request: Any) -> WriteFileResponse:
        await _files.write(self._sandbox, request.path, request.content)
        return WriteFileResponse()

    async def upload(self, request: Any) -> UploadResponse:
        """Brings a local file, or a directory with all that is in it."""
        source = pathlib.Path(request.source_path)
        if source.is_dir():
            archive = io.BytesIO()
            with tarfile.open(fileobj=archive, mode="w") as tar:
                tar.add(source, arcname=".")
            unpack = 'mkdir -p -- "$1" && exec tar -xf - -C "$1"'
            unpacked = await self._sandbox.run(["sh", "-c", unpack, "sh", request.target_path], input=archive.getvalue())
            _files.checked(unpacked, request.target_path)
        else:
            await _files.write(self._sandbox, request.target_path, source.read_bytes())
        return UploadResponse()

    async def close(self) -> CloseResponse:
        for name in list(self._sessions):
            try:
                await self._sessions.pop(name).destroy()
            except TrlError as e:
                self.logger.warning("session %s: %s", name, e)
        return CloseResponse()

    def _session(self, name: str) -> aio.Session:
        if name not in self._sessions:
            raise SessionDoesNotExistError(f"session {name!r} does not exist")
        return self._sessions[name]


def _check_time(result: ExecResult, timeout: float | None) -> None:
    if result.timed_out:
        raise CommandTimeoutError(f"the command was ended after {timeout} s")


def _failure(asked: Any, result: ExecResult, output: str) -> str:
    text = f"command {asked.command!r} failed with exit code {result.exit_code}. Here is the output:\n{output!r}"
    return f"{asked.error_msg}: {text}" if asked.error_msg else text
