"""A session: one persistent shell, and everything that runs in it."""

from __future__ import annotations

import asyncio
import re
import shlex
from contextlib import nullcontext
from types import TracebackType
from typing import Any, AsyncContextManager, Literal, Mapping, Sequence

from ._client import Client, new_key
from ._command import DEFAULT_OUTPUT, KILL_GRACE, PIPE, Command, OnText, is_deaf, run_to_end, to_bytes
from ._process import Process, kill
from ._results import Collector, ExecResult, encode
from ._terminal import Mode, Terminal
from ._watch import Watch
from ._wire import SessionInfo, SessionMoved
from .errors import NotFoundError, OutcomeUnknownError, SessionNotFoundError, SessionTerminatedError, TrlError
from .events import Exited, Gap, Stderr, Stdout

Env = Mapping[str, "str | None"]  # None unsets a variable

_STDIN_IN_REQUEST = 256 << 10  # larger input is sent in pieces, while the command runs


class Session:
    """A persistent shell: directory, variables and functions stay from one command to the next.

    As a context manager it is destroyed at the end of the block."""

    def __init__(self, client: Client, id: str, name: str | None) -> None:
        self._client = client
        self._id = id
        self._name = name

    @property
    def id(self) -> str:
        return self._id

    @property
    def name(self) -> str | None:
        return self._name

    def _use(self) -> AsyncContextManager[str]:
        """The session's id, for one request."""
        return nullcontext(self._id)

    async def _call(self, method: str, **params: Any) -> Any:
        """A request about this session. A parameter that is None is left out."""
        async with self._use() as session_id:
            return await self._client.call(method, {"session_id": session_id, **_given(params)})

    async def exec(
        self,
        cmd: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Env | None = None,
        timeout: float | None = None,
        no_output_timeout: float | None = None,
        stdin: str | bytes | None = None,
        max_output_bytes: int | None = None,
        clean: bool = False,
        check: bool = False,
        when_busy: Literal["queue", "reject"] = "queue",
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
        record: bool = False,
        request_key: str | None = None,
    ) -> ExecResult:
        """Runs a command in the session's shell and returns how it ended, with its output.

        A sequence is quoted for the shell. A command that fails is a result; with `check` it is a CommandError. Cancelling
        the task that waits for the result ends the command. The same call with the same `request_key`, within ten minutes and
        from whichever program, does not run the command again but has the same result."""
        large = stdin is not None and len(stdin) > _STDIN_IN_REQUEST
        if large or on_stdout or on_stderr:
            if clean:
                raise ValueError("clean works only on a whole result: not with on_stdout, on_stderr or a large stdin")
            async with self.exec_stream(
                cmd,
                cwd=cwd,
                env=env,
                timeout=timeout,
                no_output_timeout=no_output_timeout,
                stdin=stdin,
                max_output_bytes=max_output_bytes,
                when_busy=when_busy,
                record=record,
                request_key=request_key,
            ) as command:
                result = await command.result(on_stdout=on_stdout, on_stderr=on_stderr)
        else:
            params = _command(cmd, cwd, env, timeout, no_output_timeout, when_busy, record)
            params |= _given({"max_output_bytes": max_output_bytes, "clean": clean or None, "request_key": request_key})
            params |= _stdin(stdin)
            async with self._use() as session_id:
                answer = await run_to_end(self._client, {"session_id": session_id, **params})
            result = ExecResult.from_answer(params["command"], answer)
        return result.check() if check else result

    def exec_stream(
        self,
        cmd: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Env | None = None,
        timeout: float | None = None,
        no_output_timeout: float | None = None,
        stdin: str | bytes | int | None = None,
        max_output_bytes: int | None = None,
        when_busy: Literal["queue", "reject"] = "queue",
        record: bool = False,
        request_key: str | None = None,
    ) -> Command:
        """Starts a command like `exec` and returns at once: iterate over the Command for its output as it comes."""
        params = _command(cmd, cwd, env, timeout, no_output_timeout, when_busy, record)
        params |= _given({"request_key": request_key})
        data: bytes | None = None
        if isinstance(stdin, int):
            if stdin != PIPE:
                raise ValueError("stdin: want text, bytes or PIPE")
            params["interactive_stdin"] = True
        elif stdin is not None and len(stdin) > _STDIN_IN_REQUEST:
            params["interactive_stdin"] = True
            data = to_bytes(stdin)
        else:
            params |= _stdin(stdin)
        return Command(self._client, self._use, params, data, DEFAULT_OUTPUT if max_output_bytes is None else max_output_bytes)

    async def run(
        self,
        cmd: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Env | None = None,
        input: str | bytes | None = None,
        timeout: float | None = None,
        max_output_bytes: int | None = None,
        check: bool = False,
    ) -> ExecResult:
        """Runs a command in a process of its own: beside the session's commands, in parallel, without changing the session."""
        stdin = None if input is None else PIPE
        starting = self._client.spawn(self.start_process(cmd, cwd=cwd, env=env, timeout=timeout, stdin=stdin))
        try:
            await asyncio.wait({starting})
            process = starting.result()
            feeding = self._client.spawn(_feed(process, to_bytes(input))) if input is not None else None
            result = await _collect(process, self.id, DEFAULT_OUTPUT if max_output_bytes is None else max_output_bytes)
            if feeding:
                await feeding
        except asyncio.CancelledError:
            await asyncio.wait({self._client.spawn(_end(starting))}, timeout=KILL_GRACE + 1)
            raise
        return result.check() if check else result

    async def start_process(
        self,
        cmd: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Env | None = None,
        timeout: float | None = None,
        name: str | None = None,
        stdin: int | None = None,
        request_key: str | None = None,
    ) -> Process:
        """Starts a background process from the session's current state. With stdin=PIPE, `write` reaches it."""
        if stdin not in (None, PIPE):
            raise ValueError("stdin: want PIPE or None")
        started = await self._call(
            "process.start",
            command=text_of(cmd),
            working_dir=cwd,
            env=env,
            timeout_s=timeout,
            name=name,
            stdin="open" if stdin == PIPE else None,
            request_key=request_key or new_key(),
        )
        return await Process.known(self._client, started["process_id"], 0)

    async def list_processes(self) -> list[Process]:
        """Its processes, with ended ones for as long as the server keeps them."""
        return [Process(self._client, info) for info in (await self._call("process.list"))["processes"]]

    async def get_process(self, id: str) -> Process | None:
        try:
            return await Process.known(self._client, id)
        except NotFoundError:
            return None

    async def kill_process(self, id: str, signal: str | None = None) -> None:
        await kill(self._client, id, signal)

    async def kill_all_processes(self) -> int:
        """Ends all of its running processes at the same time, and returns how many they were."""
        running = [p for p in await self.list_processes() if p.status == "running"]
        await asyncio.gather(*(p.kill() for p in running))
        return len(running)

    async def open_terminal(
        self,
        *,
        cols: int = 80,
        rows: int = 24,
        cmd: str | Sequence[str] | None = None,
        cwd: str | None = None,
        env: Env | None = None,
        record: bool = False,
    ) -> Terminal:
        """Opens a terminal with the session's shell, or with a command."""
        command = None if cmd is None else text_of(cmd)
        params = _given({"command": command, "working_dir": cwd, "env": env, "record": record or None})
        return await self._open_terminal({"cols": cols, "rows": rows, **params})

    async def _open_terminal(self, params: Mapping[str, Any]) -> Terminal:
        async with self._use() as session_id:
            return await Terminal.open(self._client, {"session_id": session_id, **params})

    async def attach_terminal(
        self, id: str, *, mode: Mode = "control", cols: int | None = None, rows: int | None = None
    ) -> Terminal:
        """Joins a terminal, to type or only to watch. Its events begin with the screen."""
        return await Terminal.join(self._client, _given({"term_id": id, "mode": mode, "cols": cols, "rows": rows}))

    async def set_env(self, env: Env) -> None:
        """Exports variables in the session's shell, and unsets those that are None."""
        for name in env:
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                raise ValueError(f"not the name of a variable: {name!r}")
        lines = [f"unset {k}" if v is None else f"export {k}={shlex.quote(v)}" for k, v in env.items()]
        await self.exec("\n".join(lines), check=True)

    def watch(self) -> Watch:
        """What happens in the session, whoever does it: commands, processes and terminals begin and end, its state changes."""
        return Watch(self._client, self._use)

    async def info(self) -> SessionInfo:
        info: SessionInfo = await self._call("session.info")
        return info

    async def rename(self, name: str) -> None:
        await self._call("session.rename", name=name)
        self._name = name

    async def move(self, node: str) -> list[str]:
        """Moves the session to another node of the cluster, while nothing runs in it. Returns what the new node could not take of its state."""
        moved: SessionMoved = await self._call("session.move", node=node)
        return moved.get("state_lost", [])

    async def update(
        self,
        *,
        labels: Mapping[str, str] | None = None,
        command_timeout: float | None = None,
        idle_timeout: float | None = None,
    ) -> SessionInfo:
        """Changes what is given: all of its labels, the time limit of commands that name none, how long it may be idle."""
        info: SessionInfo = await self._call(
            "session.update", labels=labels, timeout_s=command_timeout, idle_timeout_s=idle_timeout
        )
        return info

    async def reset(self) -> None:
        """Replaces the shell by a fresh one. What runs in the session ends."""
        await self._call("session.reset")

    async def destroy(self, *, force: bool = False) -> None:
        """Ends the session and everything that runs in it."""
        await self._call("session.destroy", force=force or None)

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.destroy()
        except (SessionTerminatedError, SessionNotFoundError):
            pass  # it has ended already
        except TrlError:
            if error is None:  # otherwise, what the block raised says more
                raise


def text_of(cmd: str | Sequence[str]) -> str:
    """A command as shell text."""
    return cmd if isinstance(cmd, str) else " ".join(map(_quoted, cmd))


def _quoted(word: str) -> str:
    """Also A=b, which would be an assignment, and =ls, which zsh replaces by a path."""
    return f"'{word}'" if "=" in word and shlex.quote(word) == word else shlex.quote(word)


def _command(
    cmd: str | Sequence[str],
    cwd: str | None,
    env: Env | None,
    timeout: float | None,
    no_output_timeout: float | None,
    when_busy: str,
    record: bool,
) -> dict[str, Any]:
    return {"command": text_of(cmd), "when_busy": when_busy} | _given(
        {
            "working_dir": cwd,
            "env": env,
            "timeout_s": timeout,
            "no_output_timeout_s": no_output_timeout,
            "record": record or None,
        }
    )


def _given(params: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in params.items() if value is not None}


def _stdin(stdin: str | bytes | None) -> dict[str, str]:
    if stdin is None:
        return {}
    text, encoding = encode(to_bytes(stdin))
    return {"stdin": text, "stdin_encoding": encoding}


async def _feed(process: Process, data: bytes) -> None:
    try:
        await process.write(data)
        await process.close_stdin()
    except TrlError as e:
        if not is_deaf(e):
            await process.kill()  # it may lack a part of its input: do not let it go on
            raise


async def _end(starting: asyncio.Task[Process]) -> None:
    try:
        await (await starting).kill()
    except TrlError:
        pass


async def _collect(process: Process, session_id: str, limit: int) -> ExecResult:
    """The result of a process, from its output and its end."""
    out, err, gap = Collector(limit), Collector(limit), False
    exited = Exited(None)
    async for event in process.stream_logs():
        if isinstance(event, Stdout):
            out.write(event.raw)
        elif isinstance(event, Stderr):
            err.write(event.raw)
        elif isinstance(event, Gap):
            gap = True
        else:
            exited = event
    end = process.ended_at or process.started_at
    if exited.exit_code is None:
        raise OutcomeUnknownError("the result of the process is unknown")
    return ExecResult(
        command=process.command,
        exit_code=exited.exit_code,
        stdout_bytes=out.bytes(),
        stderr_bytes=err.bytes(),
        duration=(end - process.started_at).total_seconds(),
        exec_id=process.id,
        session_id=session_id,
        cwd="",
        signal=exited.signal,
        timed_out=exited.timed_out,
        timeout_kind="hard" if exited.timed_out else None,
        truncated=gap or out.truncated or err.truncated,
    )
