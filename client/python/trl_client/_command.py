"""Commands: what runs in a session's own shell, one at a time."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
from types import TracebackType
from typing import Any, AsyncContextManager, AsyncGenerator, Awaitable, Callable, Generator, Mapping

from ._client import Client, new_key
from ._input import Input
from ._link import Feed, Link
from ._results import Collector, ExecResult
from ._stream import WINDOW, Stream, Text
from ._transport import Lost
from .errors import TrlError, from_wire
from .events import CommandEvent, Completed, Gap, Stderr, Stdout

PIPE = subprocess.PIPE  # stdin=PIPE: `write` sends the input later

SessionID = Callable[[], AsyncContextManager[str]]
OnText = Callable[[str], object]  # may be async

DEFAULT_OUTPUT = 1 << 20  # bytes of each stream that a result has
KILL_GRACE = 5.0  # the server's time between TERM and KILL


class _Output(Stream):
    kind = "exec_id"

    def __init__(self, client: Client, params: Mapping[str, Any]) -> None:
        super().__init__(client)
        self.params: dict[str, Any] = {"request_key": new_key(), **params, "window_bytes": WINDOW}

    async def _subscribe(self, link: Link, feed: Feed) -> None:
        if self.id:
            # block: this is the output's only reader here, and it must not skip output when it is slow.
            again: dict[str, Any] = {"exec_id": self.id, "offset": self.offset, "on_slow": "block", "window_bytes": WINDOW}
            await link.call("exec.attach", again, feed=feed)
            return
        self._asked = link
        opened = await link.call("exec.stream", self.params, feed=feed)
        self.id, self.offset = opened["exec_id"], opened["offset"]


class Command:
    """A command and its output as it comes.

    `await` it to know that the server has accepted it; iterate over it for its events; `result` reads the rest. Cancelling the
    task that waits for it ends the command. `break` out of the loop and `detach` leave it running. As a context manager it is
    ended if the block raises."""

    def __init__(
        self,
        client: Client,
        session: SessionID,
        params: dict[str, Any],
        stdin: bytes | None,
        max_output: int,
    ) -> None:
        self._client = client
        self.command = str(params["command"])
        self._output = _Output(client, params)
        self._text = Text()
        self._collected = {"stdout": Collector(max_output), "stderr": Collector(max_output)}
        self._rest: list[CommandEvent] = []  # events to return before those of the stream
        self._result: ExecResult | None = None
        self._failure: TrlError | None = None  # at the end there is either a result or a failure
        self._gap = False
        self._iterated = False
        self._stdin: Input  # set when the command is accepted
        self._feeding: asyncio.Task[None] | None = None
        self._opening = client.spawn(self._open(session, stdin))

    async def _open(self, session: SessionID, stdin: bytes | None) -> None:
        async with session() as session_id:
            self._output.params["session_id"] = session_id
            await self._output.open()
        self._stdin = Input(self._client, "exec.input", {"exec_id": self.id}, 0)  # no request has input beside an open stdin
        if stdin is not None:
            self._feeding = self._client.spawn(self._feed(stdin))

    async def _feed(self, stdin: bytes) -> None:
        try:
            await self._stdin.write(stdin, eof=True)
        except TrlError as e:
            if not is_deaf(e):
                self._failure = e  # it may lack a part of its input: do not let it go on
                await self._end()

    def __await__(self) -> Generator[Any, None, Command]:
        return self._accepted().__await__()

    async def _accepted(self) -> Command:
        await self._cancels(asyncio.wait({self._opening}))
        self._opening.result()
        return self

    async def _cancels(self, wait: Awaitable[Any]) -> Any:
        """Waits; if the waiting task is cancelled, ends the command first."""
        try:
            return await wait
        except asyncio.CancelledError:
            await asyncio.wait({self._client.spawn(self._end())}, timeout=KILL_GRACE + 1)
            raise

    async def _end(self) -> None:
        try:
            await asyncio.wait({self._opening})
            if not self._opening.exception() and self._result is None:
                await self.kill()
        except TrlError:
            pass

    @property
    def id(self) -> str:
        """The command's exec_id; empty until the server has accepted the command."""
        return self._output.id

    @property
    def offset(self) -> int:
        """Everything before this byte of the output was returned."""
        return self._output.offset

    @property
    def exit_code(self) -> int | None:
        """Known at the end of the events."""
        return self._result.exit_code if self._result else None

    def __aiter__(self) -> AsyncGenerator[CommandEvent, None]:
        if self._iterated:
            raise RuntimeError("a command's events can be iterated once")
        self._iterated = True
        return self._events()

    async def _events(self) -> AsyncGenerator[CommandEvent, None]:
        ended = False
        try:
            while (event := await self._next()) is not None:
                ended = isinstance(event, Completed)
                yield event
        finally:
            if not ended:
                self._client.spawn(self.detach())

    async def _next(self) -> CommandEvent | None:
        """The next event, None after the last."""
        if self._rest:
            return self._rest.pop(0)
        if self._failure is not None:
            raise self._failure
        if self._result is not None:
            return None
        await self._accepted()
        name, data = await self._cancels(self._output.next())
        if name == "output":
            self._collected[data.stream].write(data.data)
            return self._text.event(data)
        if isinstance(data, Gap):
            self._gap = True
            self._rest = [*self._text.rest(), data]
            return self._rest.pop(0)
        try:
            if self._failure is not None:
                raise self._failure
            self._result = self._completed(data)
        except TrlError as e:
            self._failure = e
            raise
        self._rest = [*self._text.rest(), Completed(self._result)]
        return self._rest.pop(0)

    def _completed(self, end: Mapping[str, Any]) -> ExecResult:
        out, err = self._collected["stdout"], self._collected["stderr"]
        stdout, stderr = out.bytes(), err.bytes()
        error = end.get("error", {})
        if error and error["code"] not in ("INTERNAL_ERROR", "SESSION_LOST"):
            raise from_wire(error, "exec.stream")  # it never ran
        return ExecResult.from_exit(self.command, end, stdout, stderr, self._gap or out.truncated or err.truncated)

    async def result(
        self, *, on_stdout: OnText | None = None, on_stderr: OnText | None = None
    ) -> ExecResult:
        """Reads the events that are left and returns the result."""
        while (event := await self._next()) is not None:
            callback = on_stdout if isinstance(event, Stdout) else on_stderr if isinstance(event, Stderr) else None
            if callback and isinstance(event, (Stdout, Stderr)) and event.data:
                returned = callback(event.data)
                if inspect.isawaitable(returned):
                    await returned
        assert self._result is not None
        return self._result

    async def kill(self, signal: str | None = None) -> None:
        """Ends the command (TERM, grace, KILL) and everything that it started, or sends it one signal."""
        await self._opened()
        if signal:
            await self._client.call("exec.cancel", {"exec_id": self.id, "signal": signal})
            return
        # A command ends when its last output has found room, so output that nobody reads must not be in the way.
        await self._output.pause()
        await self._client.call("exec.cancel", {"exec_id": self.id})

    async def _opened(self) -> None:
        await asyncio.wait({self._opening})
        self._opening.result()

    async def write(self, data: str | bytes) -> None:
        """Writes to the command's stdin, which needs stdin=PIPE; waits while the command does not read."""
        await self._opened()
        await self._stdin.write(to_bytes(data))

    async def close_stdin(self) -> None:
        await self._opened()
        await self._stdin.close()

    async def detach(self) -> None:
        """Stops the events. The command goes on."""
        try:
            await self._opened()
            await self._output.leave()
        except TrlError:
            pass

    async def __aenter__(self) -> Command:
        return await self._accepted()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self._result is None:
            await asyncio.wait({self._client.spawn(self._end())}, timeout=KILL_GRACE + 1)


async def run_to_end(client: Client, params: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to exec.run. Cancelling this ends the command, on whatever connection it was asked for last."""
    where: list[tuple[Link, int]] = []

    def sent(link: Link, request_id: int) -> None:
        where[:] = [(link, request_id)]

    keyed = {"request_key": new_key(), **params}
    try:
        if client.busy:
            await asyncio.sleep(0)  # what was called before this is sent before this
        return await client.call("exec.run", keyed, sent=sent)
    except asyncio.CancelledError:
        if where:
            # Asks again under the same key, which joins the command, to hear of its end.
            again = client.spawn(client.call("exec.run", keyed, sent=sent))
            await asyncio.wait({client.spawn(_cancel(again, where))}, timeout=KILL_GRACE + 1)
        raise


async def _cancel(run: asyncio.Task[dict[str, Any]], where: list[tuple[Link, int]]) -> None:
    """Cancels a request by its id on the connection that carried it. If that one is lost, the request is sent again on another."""
    tried = None
    while not run.done():
        if where and where[0] != tried:
            tried = where[0]
            link, request_id = tried
            try:
                await link.call("exec.cancel", {"request_id": request_id})
            except (Lost, TrlError):
                pass
        await asyncio.wait({run}, timeout=0.05)


def is_deaf(error: TrlError) -> bool:
    """Whether input failed because nobody reads it any more, which is no fault: `head` does not read everything, either."""
    return error.code in ("STDIN_CLOSED", "EXEC_NOT_FOUND", "PROCESS_NOT_FOUND")


def to_bytes(data: str | bytes) -> bytes:
    return data.encode() if isinstance(data, str) else bytes(data)
