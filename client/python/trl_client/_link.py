"""One connection: its requests in flight and its streams. It dies once; the `Client` makes the next one."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from dataclasses import dataclass, replace
from typing import Any, Callable, Mapping

from ._results import decode
from ._transport import Lost, Transport
from .errors import TrlError, from_wire
from .events import SESSION_EVENTS

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


_FEW_EVENTS = 64  # that wait for a reader; after these, small pieces of output are put together
_PIECE = 4096
_MANY_EVENTS = 1024


class Feed:
    """What has come on one stream of one link and was not read yet. The stream's window bounds it."""

    def __init__(self, bounded: bool = False) -> None:
        self._events: deque[Event] = deque()
        self._bounded = bounded  # no window bounds it: when there are too many events, the latest are dropped
        self.overflowed = False  # some were dropped
        self._failure: Exception | None = None  # follows the events
        self._changed = asyncio.Event()
        self.stream_id = ""
        self.stream_no: int | None = None
        self.left = False  # nobody reads it any more

    @property
    def empty(self) -> bool:
        return not self._events

    def put(self, event: Event | Exception) -> None:
        if isinstance(event, Exception):
            self._failure = self._failure or event
        elif self._bounded and len(self._events) >= _MANY_EVENTS:
            self.overflowed = True
        elif len(self._events) < _FEW_EVENTS or not self._join(event):
            self._events.append(event)
        self._changed.set()

    def _join(self, event: Event) -> bool:
        """Adds a small piece of output to the last one. An object for each byte would take far more memory than the window has."""
        last, data = self._events[-1][1], event[1]
        if not (isinstance(last, Chunk) and isinstance(data, Chunk) and len(last.data) + len(data.data) <= _PIECE):
            return False
        kind = (data.stream, data.replay, data.snapshot)
        if data.snapshot or (last.stream, last.replay, last.snapshot) != kind or last.offset + len(last.data) != data.offset:
            return False
        self._events[-1] = (event[0], replace(last, data=last.data + data.data))
        return True

    async def get(self) -> Event:
        while not self._events:
            if self._failure is not None:
                raise self._failure
            self._changed.clear()
            await self._changed.wait()
        return self._events.popleft()


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
        self._numbers: dict[int, Feed] = {}  # the stream of each number in binary frames
        self._terminals: dict[str, str] = {}  # the stream of each terminal: term.resized names only the terminal
        self.listener: Feed | None = None  # gets the events of a watched session
        self._detaching: set[asyncio.Task[None]] = set()
        self._opening = 0  # requests in flight that have a feed
        self._opened = asyncio.Event()  # their number is 0
        self._opened.set()
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
        call = self._new_call(method, feed)
        request_id = 0
        try:
            request_id = await self._send(call, params, sent)
            return await call.answer
        except asyncio.CancelledError:
            if feed is not None:
                feed.left = True  # the stream that the answer opens will be left at once
            else:
                self._calls.pop(request_id, None)
            raise

    async def post(self, method: str, params: Mapping[str, Any]) -> None:
        """Sends a request whose answer does not matter."""
        try:
            await self._send(self._new_call(method, None), params, None)
        except Lost:
            pass

    def _new_call(self, method: str, feed: Feed | None) -> _Call:
        """Nobody waits for the answer if the request cannot be sent, and asyncio must not report then that the answer failed."""
        call = _Call(method, self._loop.create_future(), feed)
        call.answer.add_done_callback(lambda f: f.cancelled() or f.exception())
        return call

    async def _send(self, call: _Call, params: Mapping[str, Any], sent: Sent | None) -> int:
        if self.lost:
            raise self.lost.again(sent=False)
        self._next_id += 1
        request_id = self._next_id
        request = {"id": request_id, "method": call.method, "params": params}
        frame = json.dumps(request, ensure_ascii=False, separators=(",", ":"))
        if len(frame) > MAX_REQUEST // 4 and len(frame.encode()) > MAX_REQUEST:
            raise TrlError("the request is too large", code="REQUEST_TOO_LARGE", method=call.method)
        self._calls[request_id] = call
        if call.feed is not None:
            self._opening += 1
            self._opened.clear()
        if sent:
            sent(self, request_id)
        try:
            await self._transport.send(frame)
        except Lost as e:
            self._calls.pop(request_id, None)
            self._die(e)
            raise
        return request_id

    def _answered(self, call: _Call) -> None:
        if call.feed is not None:
            self._opening -= 1
            if self._opening == 0:
                self._opened.set()

    def leave(self, feed: Feed, key: str, thing: str) -> asyncio.Task[None] | None:
        """Drops the rest of a feed and asks the server to send no more of it."""
        feed.left = True
        if self.lost or self._streams.get(feed.stream_id) is not feed:
            return None  # it has ended, or another feed has the stream now
        self._forget(feed)
        task = asyncio.create_task(self._detach(feed.stream_id, _DETACH[key], {key: thing}))
        self._detaching.add(task)
        task.add_done_callback(self._detaching.discard)
        return task

    def _forget(self, feed: Feed) -> None:
        """Connects a feed to its stream no longer."""
        del self._streams[feed.stream_id]
        if feed.stream_no is not None:
            self._numbers.pop(feed.stream_no, None)
        for term_id in [t for t, stream_id in self._terminals.items() if stream_id == feed.stream_id]:
            del self._terminals[term_id]

    async def _detach(self, stream_id: str, method: str, params: Mapping[str, str]) -> None:
        await self._opened.wait()  # a request in flight may be for the same stream, and the server must get it last
        if stream_id in self._streams:
            return  # another feed has it now
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
        for feed in [*self._streams.values(), *([] if self.listener is None else [self.listener])]:
            feed.put(why.again())
        self._calls.clear()
        self._streams.clear()
        self._opened.set()

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
        except asyncio.CancelledError:
            # Not by us: the loop ends, and cancels all tasks. Whoever still waits for an answer must not wait for ever.
            self._die(Lost("the event loop ends", temporary=False))
            raise
        except Exception as e:
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
        self._answered(call)
        self.useful = self.useful or call.feed is None
        if frame["ok"]:
            if call.feed is not None:
                self._open(call.feed, frame["data"])
            elif "stream_no" in frame["data"]:
                self._number(frame["data"])
            if not call.answer.done():
                call.answer.set_result(frame["data"])
        elif not call.answer.done():
            call.answer.set_exception(from_wire(frame["error"], call.method))

    def _open(self, feed: Feed, answer: dict[str, Any]) -> None:
        """Connects a feed to the stream that an answer names, before the stream's first event arrives."""
        answer = answer.get("terminal", answer)  # session.create names the stream there
        feed.stream_id = answer.get("stream_id", "")
        if not feed.stream_id:
            return
        if before := self._streams.get(feed.stream_id):
            before.put(Displaced())
            self._forget(before)
        self._streams[feed.stream_id] = feed
        self._number(answer)
        if "term_id" in answer:
            self._terminals[answer["term_id"]] = feed.stream_id
        if feed.left:
            for key in _DETACH:
                if key in answer:
                    self.leave(feed, key, answer[key])

    def _number(self, answer: dict[str, Any]) -> None:
        """Notes the number of a stream in binary frames. An attach that is repeated may give another one."""
        feed = self._streams.get(answer["stream_id"])
        if feed is None or "stream_no" not in answer:
            return
        if feed.stream_no is not None:
            self._numbers.pop(feed.stream_no, None)
        feed.stream_no = answer["stream_no"]
        self._numbers[answer["stream_no"]] = feed

    def _deliver_event(self, name: str, data: dict[str, Any]) -> None:
        terminal = self._terminals.get(data.get("term_id", ""), "")
        feed = self._streams.get(data.get("stream_id", terminal))
        if feed is None:
            if self.listener is not None and name in SESSION_EVENTS:
                self.useful = True
                self.listener.put((name, data))
            return
        self.useful = True
        if name in _EXITS:
            self._forget(feed)
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
        feed = self._numbers.get(number)
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
