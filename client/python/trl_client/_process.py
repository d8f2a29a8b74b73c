"""Background processes: they start from a session's current state and do not change it."""

from __future__ import annotations

import asyncio
import re
import time
from datetime import datetime
from typing import Any, AsyncGenerator, Literal, Mapping

from ._client import Client
from ._command import to_bytes
from ._input import Input
from ._link import Chunk, Feed, Link
from ._results import Collector, LogMatch, Logs, ProcessExit, decode
from ._stream import WINDOW, Stream, Text
from ._wire import ProcessInfo
from .errors import ProcessExitedError, ProcessReadyTimeoutError
from .events import Exited, Gap, LogEvent, Stderr, Stdout

# A wait cannot be taken back on the server, so a long one is asked for in pieces.
_WAIT_PIECE = 20.0
_WAIT_GRACE = 1.0  # after the time of a wait, so that the server's answer comes first; it matters when there is no connection
_LONGEST_LINE = 1 << 20  # characters; the rest of a longer one counts as a line of its own

Status = Literal["running", "completed", "failed", "killed"]


class _Output(Stream):
    kind = "process_id"

    async def _subscribe(self, link: Link, feed: Feed) -> None:
        params: dict[str, Any] = {"process_id": self.id, "offset": self.offset, "follow": True}
        params |= {"on_slow": "block", "window_bytes": WINDOW}
        logs = await link.call("process.logs", params, feed=feed)
        if gap := logs.get("gap"):
            self._pending.append(("stream.gap", gap))
        self._pending += [("output", chunk) for chunk in _chunks(logs)]


def _chunks(logs: Mapping[str, Any]) -> list[Chunk]:
    return [Chunk(c["offset"], c["stream"], decode(c["data"], c.get("encoding", "utf-8"))) for c in logs["chunks"]]


class Process:
    """A background process. Its attributes are as last heard of; `refresh` asks again."""

    def __init__(self, client: Client, info: ProcessInfo, input_end: int | None = None) -> None:
        self._client = client
        self._info = info
        self._stdin = Input(client, "process.input", {"process_id": self.id}, input_end)

    @classmethod
    async def known(cls, client: Client, id: str, input_end: int | None = None) -> Process:
        """A process that runs. `input_end` is how much input it has, if that is known."""
        info: Any = await client.call("process.info", {"process_id": id})
        return cls(client, info, input_end)

    @property
    def id(self) -> str:
        return self._info["process_id"]

    @property
    def pid(self) -> int:
        return self._info["pid"]

    @property
    def name(self) -> str | None:
        return self._info.get("name")

    @property
    def command(self) -> str:
        return self._info["command"]

    @property
    def status(self) -> Status:
        if self._info["state"] == "running":
            return "running"
        if "signal" in self._info:
            return "killed"
        return "completed" if self.exit_code == 0 else "failed"

    @property
    def exit_code(self) -> int | None:
        return self._info.get("exit_code")

    @property
    def signal(self) -> str | None:
        return self._info.get("signal")

    @property
    def started_at(self) -> datetime:
        return _time(self._info["started_at"])

    @property
    def ended_at(self) -> datetime | None:
        return _time(self._info["ended_at"]) if "ended_at" in self._info else None

    async def refresh(self) -> Process:
        self._info = await self._call("process.info")
        return self

    async def get_status(self) -> Status:
        return (await self.refresh()).status

    async def ports(self) -> list[int]:
        """The TCP ports on which it, or a process that it started, accepts connections."""
        return (await self.refresh())._info.get("ports", [])

    async def kill(self, signal: str | None = None) -> None:
        """Ends it and everything that it started (TERM, 5 s, KILL) and returns when they are gone; or sends one signal."""
        self._info = await kill(self._client, self.id, signal)

    async def write(self, data: str | bytes) -> None:
        """Writes to its stdin, which needs stdin=PIPE; waits while it does not read."""
        await self._stdin.write(to_bytes(data))

    async def close_stdin(self) -> None:
        await self._stdin.close()

    async def logs(self, since: int = 0) -> Logs:
        """Its output so far, from a byte on."""
        text, gap = {"stdout": bytearray(), "stderr": bytearray()}, None
        end = (await self._call("process.info"))["output_bytes"]  # it may print faster than we ask
        while True:
            answer = await self._call("process.logs", offset=since)
            if "gap" in answer:
                gap = (answer["gap"]["from"], answer["gap"]["to"])
            for chunk in _chunks(answer):
                text[chunk.stream] += chunk.data
            since = answer["next_offset"]
            if since >= end or not answer["chunks"]:
                break
        out, err = (text[name].decode(errors="replace") for name in ("stdout", "stderr"))
        return Logs(out, err, since, gap)

    async def stream_logs(self, since: int = 0) -> AsyncGenerator[LogEvent, None]:
        """Its output from a byte on, as it comes, then its end. Leaving the loop leaves the process running."""
        followers = self._client.followers.setdefault(self.id, set())
        # The server sends a stream once per connection, so a second reader at the same time has a connection of its own.
        client = await self._client.sibling() if followers else self._client
        output, text = _Output(client, self.id, since), Text()
        followers.add(output)
        try:
            while True:
                name, data = await output.next()
                if name == "output":
                    yield text.event(data)
                elif isinstance(data, Gap):
                    for event in text.rest():
                        yield event
                    yield data
                elif name == "process.exit":
                    self._info = data
                    for event in text.rest():
                        yield event
                    yield Exited(data.get("exit_code"), data.get("signal"), data.get("timed_out", False))
                    return
        finally:
            try:
                await output.leave()
            finally:
                # Not before: until the server has detached this reader, the next one has a connection of its own.
                followers.discard(output)
                if not followers and self._client.followers.get(self.id) is followers:
                    del self._client.followers[self.id]
                if client is not self._client:
                    await self._client.drop(client)

    async def wait_for_port(
        self,
        port: int,
        *,
        mode: Literal["tcp", "http"] = "tcp",
        host: str | None = None,
        path: str = "/",
        timeout: float | None = None,
    ) -> None:
        """Returns when something accepts connections on the port, or answers HTTP there with a status below 400."""
        until: dict[str, Any] = {"port": port} | ({"host": host} if host else {})
        if mode == "http":
            until = {"http": f"http://{host or '127.0.0.1'}:{port}/{path.lstrip('/')}"}
        await self._wait(until, timeout, f"port {port}")

    async def wait_for_log(
        self,
        pattern: str | re.Pattern[str],
        *,
        timeout: float | None = None,
        stream: Literal["stdout", "stderr", "both"] = "both",
    ) -> LogMatch:
        """The first line, from the beginning of the output on, in which the regular expression is found."""
        pattern = re.compile(pattern)
        search = self._search(pattern, stream)
        try:
            return await asyncio.wait_for(search, timeout)
        except asyncio.TimeoutError:
            raise ProcessReadyTimeoutError(f"no line matched {pattern.pattern!r} within {timeout:g} s") from None

    async def _search(self, pattern: re.Pattern[str], stream: str) -> LogMatch:
        begun = {Stdout: "", Stderr: ""}  # the line that has no end yet
        tail = Collector(4096)
        events = self.stream_logs()
        try:
            async for event in events:
                lines: list[str] = []
                if isinstance(event, (Stdout, Stderr)):
                    tail.write(event.raw)
                    *lines, begun[type(event)] = (begun[type(event)] + event.data).split("\n")
                    if len(begun[type(event)]) > _LONGEST_LINE:
                        lines.append(begun[type(event)])
                        begun[type(event)] = ""
                    if stream not in ("both", type(event).__name__.lower()):
                        continue
                elif isinstance(event, Exited):
                    lines = [begun[Stdout]] if stream != "stderr" else []
                    lines += [begun[Stderr]] if stream != "stdout" else []
                for line in lines:
                    if match := pattern.search(line.removesuffix("\r")):
                        return LogMatch(line.removesuffix("\r"), match)
        finally:
            await events.aclose()
        raise ProcessExitedError(
            f"the process ended with exit code {self.exit_code} before it printed {pattern.pattern!r}",
            exit_code=self.exit_code,
            tail=tail.bytes().decode(errors="replace"),
        )

    async def wait(self, timeout: float | None = None) -> ProcessExit:
        """Returns when it has ended. After `timeout` seconds it raises, and the process goes on."""
        await self._wait({"exit": True}, timeout, "its end")
        await self.refresh()
        return ProcessExit(self.exit_code, self.signal, self._info.get("timed_out", False))

    async def _wait(self, until: Mapping[str, Any], timeout: float | None, what: str) -> None:
        deadline = time.monotonic() + timeout if timeout is not None else None
        while True:
            left = _WAIT_PIECE if deadline is None else max(deadline - time.monotonic(), 0.001)
            try:
                async with asyncio.timeout(None if deadline is None else left + _WAIT_GRACE):
                    answer = await self._call("process.wait", until=until, timeout_s=min(left, _WAIT_PIECE))
            except TimeoutError:
                raise ProcessReadyTimeoutError(f"waited {timeout:g} s for {what}") from None
            if answer["met"]:
                return
            if "exit_code" in answer:
                raise ProcessExitedError(
                    f"the process ended with exit code {answer['exit_code']} while we waited for {what}",
                    exit_code=answer["exit_code"],
                    tail=answer.get("tail", ""),
                )
            if deadline is not None and time.monotonic() >= deadline:
                raise ProcessReadyTimeoutError(f"waited {timeout:g} s for {what}")

    async def _call(self, method: str, **params: Any) -> Any:
        return await self._client.call(method, {"process_id": self.id, **params})


async def kill(client: Client, id: str, signal: str | None) -> ProcessInfo:
    """What `Process.kill` does. A process ends when its last output has found room, so readers let go of it meanwhile."""
    if signal is None:
        await asyncio.gather(*(output.pause() for output in client.followers.get(id, ())))
    info: Any = await client.call("process.kill", {"process_id": id} | ({"signal": signal} if signal else {}))
    return info  # type: ignore[no-any-return]


def _time(text: str) -> datetime:
    """A time of the wire, which may have nanoseconds; Python has microseconds."""
    return datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", text))


