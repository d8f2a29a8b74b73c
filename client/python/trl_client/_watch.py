"""What happens in a session, whoever does it."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, AsyncGenerator, Generator, cast

from ._client import Client
from ._command import SessionID
from ._link import Feed
from ._transport import Lost
from ._wire import SessionInfo
from .errors import ClosedError, SessionTerminatedError, TrlError
from .events import Missed, SessionEvent, SessionEventType, WatchEvent


class Watch:
    """The events of a session, without output. They end when the session ends.

    `await` it to know that it has begun: it has every event from then on, or a `Missed`. Iterate over it for the events, and leave the
    loop or `close` it to end it. It has a connection of its own, so that a stream that nobody reads does not hold it up."""

    def __init__(self, client: Client, session: SessionID) -> None:
        self._parent = client
        self._session = session
        self._client: Client | None = None
        self._session_id = ""
        self._feed = Feed()
        self._iterated = False
        self._closed = False
        self._opening = client.spawn(self._open())

    async def _open(self) -> None:
        async with self._session() as self._session_id:
            self._client = await self._parent.sibling()
            await self._subscribe(self._client)

    async def _subscribe(self, client: Client) -> None:
        """Asks for the events on a live connection, and again if that one is lost meanwhile."""
        node = client.node_wait()
        while True:
            link = await client.connected("session.watch")
            link.listener = self._feed = Feed(bounded=True)
            try:
                await link.call("session.watch", {"session_id": self._session_id})
                return
            except TrlError as e:
                if await node.passes(e):
                    continue
                raise
            except Lost:
                continue

    async def _accepted(self) -> Watch:
        try:
            await asyncio.wait({self._opening})
            self._opening.result()
        except BaseException:
            self._parent.spawn(self.close())
            raise
        return self

    def __await__(self) -> Generator[Any, None, Watch]:
        return self._accepted().__await__()

    def __aiter__(self) -> AsyncGenerator[WatchEvent, None]:
        if self._iterated:
            raise RuntimeError("the events of a watch can be iterated once")
        self._iterated = True
        return self._events()

    async def _events(self) -> AsyncGenerator[WatchEvent, None]:
        try:
            await self._accepted()
            while True:
                event = await self._next()
                yield event
                state = event.info["state"] if isinstance(event, Missed) else event.data.get("to")
                if state == "TERMINATED":
                    return
        finally:
            self._parent.spawn(self.close())

    async def _next(self) -> WatchEvent:
        if self._closed or self._client is None:
            raise ClosedError("the watch is closed")
        if self._feed.overflowed and self._feed.empty:
            self._feed.overflowed = False
            return await self._missed_some(self._client)
        try:
            name, data = await self._feed.get()
        except Lost:
            if self._closed:
                raise ClosedError("the watch is closed") from None
            try:
                await self._subscribe(self._client)
            except SessionTerminatedError:
                pass  # it ended meanwhile: session.info tells
            return await self._missed_some(self._client)
        if name == "session.state" and data["from"] == data["to"]:  # the server says so when we did not read its events
            return await self._missed_some(self._client)
        return SessionEvent(cast(SessionEventType, name), data)

    async def _missed_some(self, client: Client) -> Missed:
        info: Any = await client.call("session.info", {"session_id": self._session_id})
        present: SessionInfo = info
        return Missed(present)

    async def close(self) -> None:
        """Ends the events."""
        if self._closed:
            return
        self._closed = True
        self._opening.cancel()
        await asyncio.wait({self._opening})
        if self._client is not None:
            await self._parent.drop(self._client)

    async def __aenter__(self) -> Watch:
        return await self._accepted()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
