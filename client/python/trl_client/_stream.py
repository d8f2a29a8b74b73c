"""The events of one command, process or terminal, over as many connections as it takes."""

from __future__ import annotations

import codecs
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any

from ._client import Client
from ._link import Chunk, Displaced, Event, Feed, Link
from ._transport import Lost
from .errors import ClosedError, TrlError
from .events import Gap, Stderr, Stdout

WINDOW = 1 << 20  # bytes that the server sends before we have read them
_ACK_EVERY = 256 << 10


class Stream(ABC):
    """One reader takes events with `next`. Every byte comes once and in order, or a gap says which are gone."""

    kind: str  # the name of its id on the wire: "exec_id", "process_id" or "term_id"

    def __init__(self, client: Client, id: str = "", offset: int = 0) -> None:
        self._client = client
        self.id = id
        self.offset = offset  # `next` has returned everything before it
        self._link: Link | None = None
        self._feed: Feed | None = None
        self._pending: list[Event] = []  # events in the answer that opened it, before those of the feed
        self._acked = 0
        self._asked: Link | None = None  # carried a request_key whose answer is not there yet

    @abstractmethod
    async def _subscribe(self, link: Link, feed: Feed) -> None:
        """Asks for the events from `offset` on, on this link."""

    async def open(self) -> None:
        """Subscribes on a live connection, and again if that one is lost meanwhile."""
        node = self._client.node_wait()
        while True:
            link = await self._client.connected(asked=None if self.id else self._asked)
            feed = Feed()
            self._pending = []
            try:
                await self._subscribe(link, feed)
            except TrlError as e:
                if await node.passes(e):
                    continue
                raise
            except Lost:
                continue
            self._link, self._feed, self._acked = link, feed, self.offset
            return

    async def next(self) -> Event:
        await self._acknowledge()
        while True:
            if self._feed is None:
                await self.open()
                continue
            if self._pending:
                name, data = self._pending.pop(0)
            else:
                feed = self._feed
                try:
                    name, data = await feed.get()
                except Lost:
                    if self._feed is feed:
                        self._feed = None
                    continue
                except Displaced:
                    raise ClosedError("another reader of this client reads this stream now") from None
            if event := self._advance(name, data):
                return event

    def _advance(self, name: str, data: Any) -> Event | None:
        """Moves the offset behind an event. Bytes that came before the connection was lost are cut off."""
        if isinstance(data, Chunk):
            if data.snapshot:
                self.offset = data.offset
            else:
                known = self.offset - data.offset
                if known > 0:
                    data = replace(data, offset=self.offset, data=data.data[known:])
                if not data.data:
                    return None
                self.offset = data.offset + len(data.data)
        elif name == "stream.gap":
            if data["to"] <= self.offset:
                return None
            data = Gap(self.offset, data["to"])
            self.offset = data.to
        return name, data

    async def _acknowledge(self) -> None:
        """Tells the server what was read, so that it sends more."""
        if self._link and self._feed and self.offset - self._acked >= _ACK_EVERY:
            self._acked = self.offset
            await self._link.post("stream.ack", {"stream_id": self._feed.stream_id, "offset": self.offset})

    async def leave(self) -> None:
        """Stops the events. What they are about goes on."""
        await self.pause()
        self._feed = Feed()
        self._feed.put(ClosedError("the stream was left"))

    async def pause(self) -> None:
        """Stops the events until `next` is called again. Meanwhile nobody holds up what they are about."""
        link, feed, self._feed = self._link, self._feed, None
        if link and feed:
            feed.put(Lost("paused"))  # a reader that waits now subscribes again
            if detached := link.leave(feed, self.kind, self.id):
                await detached


_KINDS: dict[str, type[Stdout] | type[Stderr]] = {"stdout": Stdout, "stderr": Stderr}


class Text:
    """Turns the chunks of a stream into text, with one decoder each for stdout and stderr."""

    def __init__(self) -> None:
        self._decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in _KINDS}
        self._offset = 0

    def event(self, chunk: Chunk) -> Stdout | Stderr:
        self._offset = chunk.offset + len(chunk.data)
        text = self._decoders[chunk.stream].decode(chunk.data)
        return _KINDS[chunk.stream](text, chunk.offset, chunk.data)

    def rest(self) -> list[Stdout | Stderr]:
        """At the end or before a gap, what there is of a character that will never be whole."""
        rests = {name: decoder.decode(b"", final=True) for name, decoder in self._decoders.items()}
        return [_KINDS[name](text, self._offset) for name, text in rests.items() if text]
