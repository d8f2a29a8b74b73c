"""One connection: its requests in flight and its streams. It dies once; the `Client` makes the next one."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from typing import Any, Callable, Mapping

from ._results import decode
from ._transport import Lost, Transport
from .errors import TrlError, from_wire

MAX_REQUEST = 4 << 20  # the server's default bound on a frame; it closes the connection on a larger one
PING_AFTER = 20.0  # seconds of silence
GIVE_UP_AFTER = 45.0


@dataclass(frozen=True)
class Chunk:
    """Bytes of a stream, or with `snapshot` a terminal's screen."""

    offset: int
    stream: str
    data: bytes
    replay: bool = False
    snapshot: bool = False


Event = tuple[str, Any]  # its name and its data; that of "output" is a Chunk
Sent = Callable[["Link", int], None]  # told where a request goes, and with which id


class Feed:
    """What has come on one stream of one link and was not read yet. The stream's window bounds it."""

    def __init__(self) -> None:
        self._events: asyncio.Queue[Event | Exception] = asyncio.Queue()
        self.stream_id = ""
        self.left = False  # nobody reads it any more

    def put(self, event: Event | Exception) -> None:
        self._events.put_nowait(event)

    async def get(self) -> Event:
        event = await self._events.get()
        if isinstance(event, Exception):
            self._events.put_nowait(event)  # it stays the last one
            raise event
        return event


@dataclass
class _Call:
    method: str
    answer: asyncio.Future[dict[str, Any]]
    feed: Feed | None


class Displaced(Exception):
    """Another feed of this link has the stream now."""


_EXITS = {"exec.exit", "process.exit", "term.exit"}
_OUTPUTS = {"exec.output", "process.output", "term.output"}
_DETACH = {"exec_id": "exec.detach", "process_id": "process.detach", "term_id": "term.detach"}
_BINARY_STREAMS = {1: "stdout", 2: "stderr", 3: "tty"}


class Link:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._next_id = 0
        self._calls: dict[int, _Call] = {}
        self._streams: dict[str, Feed] = {}
        self._numbers: dict[int, str] = {}  # the stream of each number in binary frames
        self._terminals: dict[str, str] = {}  # the stream of each terminal: term.resized names only the terminal
        self._detaching: set[asyncio.Task[None]] = set()
        self._heard = self.created = time.monotonic()
        self.epoch = ""
        self.useful = False  # output has come, or the answer to a request
        self.lost: Lost | None = None  # why it died
        self.lived = 0.0  # seconds
        self._tasks = [asyncio.create_task(self._read())]
        if transport.pings:
            self._tasks.append(asyncio.create_task(self._watch_silence()))

    async def call(
        self, method: str, params: Mapping[str, Any], *, feed: Feed | None = None, sent: Sent | None = None
    ) -> dict[str, Any]:
        """Sends a request and returns the data of its answer. A feed gets the stream that the answer names."""
        call = _Call(method, self._loop.create_future(), feed)
        request_id = await self._send(call, params, sent)
        try:
            return await call.answer
        except asyncio.CancelledError:
            if feed is not None:
                feed.left = True  # the stream that the answer opens will be left at once
            else:
                self._calls.pop(request_id, None)
            raise

    async def post(self, method: str, params: Mapping[str, Any]) -> None:
        """Sends a request whose answer does not matter."""
        call = _Call(method, self._loop.create_future(), None)
        call.answer.add_done_callback(lambda f: f.cancelled() or f.exception())
        try:
            await self._send(call, params, None)
        except Lost:
            pass

    async def _send(self, call: _Call, params: Mapping[str, Any], sent: Sent | None) -> int:
        if self.lost:
            raise self.lost.again()
        self._next_id += 1
        request_id = self._next_id
        request = {"id": request_id, "method": call.method, "params": params}
        frame = json.dumps(request, ensure_ascii=False, separators=(",", ":"))
        if len(frame) > MAX_REQUEST // 4 and len(frame.encode()) > MAX_REQUEST:
            raise TrlError("the request is too large", code="REQUEST_TOO_LARGE", method=call.method)
        self._calls[request_id] = call
        if sent:
            sent(self, request_id)
        try:
            await self._transport.send(frame)
        except Lost as e:
            self._calls.pop(request_id, None)
            self._die(e)
            raise
        return request_id

    def leave(self, feed: Feed, key: str, thing: str) -> asyncio.Task[None] | None:
        """Drops the rest of a feed and asks the server to send no more of it."""
        feed.left = True
        if self.lost or self._streams.pop(feed.stream_id, None) is not feed:
            return None
        task = asyncio.create_task(self._detach(_DETACH[key], {key: thing}))
        self._detaching.add(task)
        task.add_done_callback(self._detaching.discard)
        return task

    async def _detach(self, method: str, params: Mapping[str, str]) -> None:
        try:
            await self.call(method, params)
        except (Lost, TrlError):
            pass  # it is gone anyway

    async def close(self) -> None:
        self._die(Lost("closed", temporary=False))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._transport.close()

    def _die(self, why: Lost) -> None:
        if self.lost:
            return
        self.lost = why
        self.lived = time.monotonic() - self.created
        for call in self._calls.values():
            if not call.answer.done():
                call.answer.set_exception(why.again())
                if call.feed is not None and call.feed.left:
                    call.answer.exception()  # nobody waits for it
        for feed in self._streams.values():
            feed.put(why.again())
        self._calls.clear()
        self._streams.clear()

    async def _read(self) -> None:
        try:
            while True:
                frame = await self._transport.receive()
                self._heard = time.monotonic()
                if isinstance(frame, bytes):
                    self._deliver_binary(frame)
                else:
                    self._deliver(json.loads(frame))
        except Lost as e:
            self._die(e)
        except (ValueError, KeyError, TypeError, IndexError) as e:
            # The same frame would come again.
            self._die(Lost(f"unintelligible frame from the server: {e}", temporary=False))

    async def _watch_silence(self) -> None:
        pinged = False
        while not self.lost:
            silent = time.monotonic() - self._heard
            if silent > GIVE_UP_AFTER:
                self._die(Lost("the server has been silent for too long"))
                await self._transport.close()
                return
            if silent > PING_AFTER and not pinged:
                await self.post("system.ping", {})
            pinged = silent > PING_AFTER
            await asyncio.sleep(1)

    def _deliver(self, frame: dict[str, Any]) -> None:
        if "event" in frame:
            self._deliver_event(frame["event"], frame["data"])
            return
        call = self._calls.pop(frame["id"], None) if frame.get("id") is not None else None
        if call is None:
            if frame.get("id") is None and "error" in frame:
                # The connection itself is refused, or a request of ours could not be read.
                error = from_wire(frame["error"])
                self._die(Lost(str(error), temporary=error.retryable, error=error))
            return
        self.useful = self.useful or call.feed is None
        if frame["ok"]:
            if "stream_no" in frame["data"]:
                self._numbers[frame["data"]["stream_no"]] = frame["data"]["stream_id"]
            if call.feed is not None:
                self._open(call.feed, frame["data"])
            if not call.answer.done():
                call.answer.set_result(frame["data"])
        elif not call.answer.done():
            call.answer.set_exception(from_wire(frame["error"], call.method))

    def _open(self, feed: Feed, answer: dict[str, Any]) -> None:
        """Connects a feed to the stream that an answer names, before the stream's first event arrives."""
        feed.stream_id = answer.get("stream_id", "")
        if not feed.stream_id:
            return
        if before := self._streams.get(feed.stream_id):
            before.put(Displaced())
        self._streams[feed.stream_id] = feed
        if "term_id" in answer:
            self._terminals[answer["term_id"]] = feed.stream_id
        if feed.left:
            for key in _DETACH:
                if key in answer:
                    self.leave(feed, key, answer[key])

    def _deliver_event(self, name: str, data: dict[str, Any]) -> None:
        terminal = self._terminals.get(data.get("term_id", ""), "")
        feed = self._streams.get(data.get("stream_id", terminal))
        if feed is None:
            return
        self.useful = True
        if name in _EXITS:
            del self._streams[feed.stream_id]
        if name in _OUTPUTS:
            raw = decode(data["data"], data.get("encoding", "utf-8"))
            replay, snapshot = data.get("replay", False), data.get("snapshot", False)
            feed.put(("output", Chunk(data["offset"], data["stream"], raw, replay, snapshot)))
        else:
            feed.put((name, data))

    def _deliver_binary(self, frame: bytes) -> None:
        kind = frame[0]
        number, start = _uvarint(frame, 1)
        offset, start = _uvarint(frame, start)
        feed = self._streams.get(self._numbers.get(number, ""))
        if feed is not None:
            self.useful = True
            chunk = Chunk(offset, _BINARY_STREAMS[kind & 0x0F], frame[start:], bool(kind & 0x10), bool(kind & 0x20))
            feed.put(("output", chunk))


def _uvarint(frame: bytes, at: int) -> tuple[int, int]:
    """An unsigned LEB128 number, and where it ends."""
    value = shift = 0
    while True:
        byte = frame[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
