"""Inspect: `sandbox="trl"` gives each sample a session of its own, in a fresh directory.

The gateway is that of TRL_URL and TRL_TOKEN, or the one of this machine."""

from __future__ import annotations

from typing import Any

from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxConnection,
    SandboxEnvironment,
    SandboxEnvironmentLimits,
    SandboxUnavailableError,
    sandboxenv,
)

from .. import aio
from ..errors import ConnectionLostError, SessionTerminatedError, TrlError
from . import _files


@sandboxenv(name="trl")
class TrlSandboxEnvironment(SandboxEnvironment):
    """One sample's session. Commands run beside each other, each in a process of its own."""

    def __init__(self, client: aio.Sandbox, session: aio.Session, directory: str, users: list[str]) -> None:
        super().__init__()
        self._client = client
        self._session = session
        self._directory = directory
        self._users = users  # name and number of the user whose session it is

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        if user is not None and user not in self._users:
            raise PermissionError(f"commands run as {self._users[0]}, not as {user}")
        limit = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        try:
            result = await self._session.run(
                cmd,
                input=input,
                cwd=_files.absolute(cwd, self._directory),
                env=env,
                timeout=timeout,
                max_output_bytes=limit,
            )
        except (ConnectionLostError, SessionTerminatedError) as e:
            raise SandboxUnavailableError(str(e)) from e
        if result.timed_out:
            raise TimeoutError(f"the command took longer than {timeout} s")
        if result.truncated:
            limit_text = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR
            raise OutputLimitExceededError(limit_str=limit_text, truncated_output=result.stdout + result.stderr)
        return ExecResult(result.ok, result.exit_code, result.stdout, result.stderr)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        await _files.write(self._session, file, contents, cwd=self._directory)

    async def read_file(self, file: str, text: bool = True) -> Any:
        limit = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        content = await _files.read(self._session, file, cwd=self._directory, limit=limit)
        if content is None:
            limit_text = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR
            raise OutputLimitExceededError(limit_str=limit_text, truncated_output=None)
        return content.decode() if text else content

    async def connection(self, *, user: str | None = None) -> SandboxConnection:
        return SandboxConnection(type="trl", command=f"trl term --session {self._session.id}")

    @classmethod
    async def sample_init(cls, task_name: str, config: Any, metadata: dict[str, str]) -> dict[str, SandboxEnvironment]:
        try:
            client = await aio.connect()
        except (TrlError, ValueError) as e:
            raise SandboxUnavailableError(str(e)) from e
        session: aio.Session | None = None
        try:
            session = await client.create_session(labels={"inspect": task_name[:256]})
            made = await session.exec("cd \"$(mktemp -d)\" && pwd -P && id -un && id -u", check=True)
            directory, *users = made.stdout.splitlines()
        except BaseException:
            if session is not None:
                await _destroy(session)
            await client.close()
            raise
        return {"default": cls(client, session, directory, users)}

    @classmethod
    async def sample_cleanup(
        cls, task_name: str, config: Any, environments: dict[str, SandboxEnvironment], interrupted: bool
    ) -> None:
        for environment in environments.values():
            own = environment.as_type(cls)
            try:
                await own._session.run(["rm", "-rf", "--", own._directory], cwd="/")
            except TrlError:
                pass  # the session is gone, or cannot start a process
            finally:
                await _destroy(own._session)
                await own._client.close()


async def _destroy(session: aio.Session) -> None:
    try:
        await session.destroy()
    except TrlError:
        pass  # it is gone, or will be when it has been idle
