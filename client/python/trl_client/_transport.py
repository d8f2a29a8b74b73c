"""Transports carry whole frames: a line on the Unix socket, a message on the WebSocket."""

from __future__ import annotations

import asyncio
import base64
import importlib
from typing import Any, Protocol
from urllib.parse import urlsplit, urlunsplit

from .errors import TrlError, from_wire

# An answer may hold many MiB of output, and JSON writes a control character in six bytes.
MAX_FRAME = 1 << 30
DIAL_TIMEOUT = 10.0
CLOSE_TIMEOUT = 1.0


class Transport(Protocol):
    """One reader may use `receive` while others use `send`; `close` unblocks both."""

    pings: bool  # the peer may vanish without a word, so silence has a meaning

    async def receive(self) -> str | bytes:
        """The next frame. Text and bytes of a line are JSON; see `binary`."""

    async def send(self, frame: str) -> None: ...

    async def close(self) -> None: ...


class Lost(Exception):
    """The connection has ended. `temporary` says whether dialling again makes sense, `sent` whether the server may have got a request."""

    def __init__(self, why: str, *, temporary: bool = True, error: TrlError | None = None, sent: bool = True) -> None:
        super().__init__(why)
        self.temporary = temporary
        self.error = error  # what the server said, if it said anything
        self.sent = sent

    def again(self, *, sent: bool = True) -> Lost:
        """The same, to be raised elsewhere: an exception carries the traceback of one place."""
        return Lost(str(self), temporary=self.temporary, error=self.error, sent=sent)


class UnixSocket:
    pings = False

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def dial(cls, path: str) -> UnixSocket:
        return cls(*await asyncio.open_unix_connection(path, limit=MAX_FRAME))

    async def receive(self) -> str:
        try:
            line = await self._reader.readuntil()
        except asyncio.IncompleteReadError:
            raise Lost("cut off") from None
        except (OSError, asyncio.LimitOverrunError) as e:
            raise Lost(str(e)) from e
        return line.decode()

    async def send(self, frame: str) -> None:
        try:
            self._writer.write(frame.encode() + b"\n")
            await self._writer.drain()
        except OSError as e:
            raise Lost(str(e)) from e

    async def close(self) -> None:
        self._writer.close()
        try:
            await asyncio.wait_for(self._writer.wait_closed(), CLOSE_TIMEOUT)
        except asyncio.TimeoutError:
            self._writer.transport.abort()  # the peer does not read what we have written
        except OSError:
            pass


def _websockets() -> Any:
    try:
        return importlib.import_module("websockets")
    except ImportError as e:
        raise TrlError("connecting to http:// and ws:// needs the package `websockets`: pip install websockets") from e


# A client that dials again after one of these, or after a code of the server's own, would meet the same end (PROTOCOL.md, Closing).
_FINAL_CLOSES = {1000, 1002, 1003, 1007, 1008, 1009, 1010, *range(4000, 5000)}


class WebSocket:
    """A WebSocket of the `websockets` package. Only what its versions 10 to 17 have in common is used."""

    pings = True

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    @classmethod
    async def dial(cls, url: str, token: str | None) -> WebSocket:
        websockets = _websockets()
        protocols = ["trl.v1+bin", "trl.v1"]
        if token:
            protocols.append("trl.token." + base64.urlsafe_b64encode(token.encode()).decode().rstrip("="))
        try:
            connection = await websockets.connect(
                _endpoint(url),
                subprotocols=protocols,
                max_size=None,
                compression=None,
                ping_interval=None,
                open_timeout=DIAL_TIMEOUT,
                close_timeout=CLOSE_TIMEOUT,
            )
        except websockets.InvalidHandshake as e:
            raise _refusal(e) from e
        return cls(connection)

    async def receive(self) -> str | bytes:
        try:
            frame: str | bytes = await self._connection.recv()
            return frame
        except _websockets().ConnectionClosed as e:
            raise _ended(e) from e

    async def send(self, frame: str) -> None:
        try:
            await self._connection.send(frame)
        except _websockets().ConnectionClosed as e:
            raise _ended(e) from e

    async def close(self) -> None:
        await self._connection.close()


def _ended(closed: Any) -> Lost:
    bye = closed.rcvd
    if bye is None:
        return Lost("cut off")
    why = f"closed by the server: {bye.code} {bye.reason}".rstrip()
    error = from_wire({"code": "AUTH_FAILED", "message": why}) if bye.code == 4401 else None
    return Lost(why, temporary=bye.code not in _FINAL_CLOSES, error=error)


def _endpoint(url: str) -> str:
    """http://HOST:PORT, as people type it, as the address of the WebSocket."""
    u = urlsplit(url)
    scheme = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}.get(u.scheme)
    if scheme is None or not u.netloc:
        raise ValueError(f"gateway address {url!r}: want http://HOST:PORT, https://… or unix:///PATH")
    # The server refuses a token in an address; do not send one by accident.
    host = u.netloc.rpartition("@")[2]
    return urlunsplit((scheme, host, u.path.rstrip("/") or "/v1/ws", "", ""))


_NO_ROOM = ("LIMIT_EXCEEDED", "the server has no room for this connection now")
_REFUSALS = {
    200: ("NOT_SUPPORTED", "there is no trl gateway at this address"),
    401: ("AUTH_FAILED", "the server does not know this token"),
    403: ("FORBIDDEN", "the server refuses this client"),
    404: ("NOT_SUPPORTED", "there is no trl gateway at this address"),
    421: ("FORBIDDEN", "the server does not serve this name"),
    426: ("NOT_SUPPORTED", "there is no trl gateway at this address"),
    429: _NO_ROOM,
    503: _NO_ROOM,
}


def _refusal(failed: Any) -> Lost:
    """What an HTTP answer in place of the upgrade means."""
    response = getattr(failed, "response", None)
    status = getattr(failed, "status_code", None) or getattr(response, "status_code", 0)
    if status not in _REFUSALS:
        return Lost(f"the server refused the connection: {failed}")
    code, message = _REFUSALS[status]
    details = {"limit": "connections"} if code == "LIMIT_EXCEEDED" else {}
    error = from_wire({"code": code, "message": message, "details": details})
    return Lost(str(error), temporary=error.retryable, error=error)
