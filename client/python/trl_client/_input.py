"""The input of a command, process or terminal: every byte is given once, also when a connection is lost meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any, Mapping

from ._client import Client
from ._results import encode
from ._transport import Lost
from .errors import ClosedError, ConnectionLostError, InvalidParamsError, TrlError

PIECE = 64 << 10  # of input; far below the server's buffer for a command that does not read

_FIRST_PAUSE = 0.002
_MAX_PAUSE = 0.2


class Input:
    """Gives one command, process or terminal its input, one piece at a time.

    A piece has its offset, if the end of the input so far is known. The server takes it only there. So a piece whose answer was lost is
    sent again: either the server takes it now, or it refuses the offset, and its refusal says how much it took before."""

    def __init__(self, client: Client, method: str, target: Mapping[str, str], end: int | None) -> None:
        self._client = client
        self._method = method
        self._target = target
        self._end = end  # how many bytes of input the server has; None: unknown
        self._offsets = True  # an older server knows none
        self._turn = asyncio.Lock()  # held while a piece is on its way

    async def write(self, data: bytes, *, eof: bool = False) -> None:
        """Gives bytes, each piece when the server has room for it, and then the end of the input."""
        for start in range(0, max(len(data), 1), PIECE):
            await self._give(data[start : start + PIECE], eof and start + PIECE >= len(data))

    async def close(self) -> None:
        """Ends the input. It does not matter if it has ended already, as after the end of what reads it."""
        try:
            await self.write(b"", eof=True)
        except TrlError as e:
            if e.code != "STDIN_CLOSED":
                raise

    async def _give(self, piece: bytes, eof: bool) -> None:
        pause = _FIRST_PAUSE
        while True:
            async with self._turn:
                rest = await self._send(piece, eof)
            if rest is None:
                return
            piece = rest
            await asyncio.sleep(pause)  # others may have their turn, such as the end of the input
            pause = min(2 * pause, _MAX_PAUSE)

    async def _send(self, piece: bytes, eof: bool) -> bytes | None:
        """Sends a piece until it is known what was taken of it. Returns what is left if the server has no room now, None if nothing is left."""
        lost: Exception | None = None  # why the answer to an earlier attempt is lost; None: nothing of `piece` was taken
        at = self._end
        node = self._client.node_wait()
        pause = _FIRST_PAUSE
        while True:
            if lost is None:
                self._end = at
            try:
                link = await self._client.connected(self._method)
            except TrlError as e:
                if lost is None or isinstance(e, ClosedError):
                    raise
                raise self._unknown(e) from e
            self._end = None  # until the answer is there
            try:
                answer = await link.call(self._method, self._request(at, piece, eof))
            except Lost as e:
                if not e.sent:
                    continue
                if at is None:
                    raise self._unknown(e) from e
                lost = e
                continue
            except TrlError as e:
                refusal = e
            else:
                self._end = answer.get("input_offset") if self._offsets else None
                return None
            if at is not None and refusal.code == "OFFSET_MISMATCH" and refusal.details.get("input_offset", at) != at:
                end = self._end = int(refusal.details["input_offset"])
                if lost is not None:
                    taken = end - at
                    if not 0 < taken <= len(piece):  # somebody else has given input, too
                        raise self._unknown(lost) from lost
                    piece, lost = piece[taken:], None
                    if not piece and not eof:
                        return None
                at = end
            elif at is not None and isinstance(refusal, InvalidParamsError) and refusal.field == "offset":
                self._offsets = False
                if lost is not None:
                    raise self._unknown(lost) from lost
                at = None
            elif _no_room(refusal):
                if lost is None:
                    self._end = at
                    return piece
                await asyncio.sleep(pause)
                pause = min(2 * pause, _MAX_PAUSE)
            else:
                if lost is None:
                    self._end = at
                if await node.passes(refusal):
                    continue
                if lost is not None and refusal.code == "NODE_UNREACHABLE":
                    raise self._unknown(refusal) from refusal
                raise refusal

    def _request(self, at: int | None, piece: bytes, eof: bool) -> dict[str, Any]:
        text, encoding = encode(piece)
        params: dict[str, Any] = {**self._target, "data": text, "encoding": encoding}
        if eof:
            params["eof"] = True
        if at is not None:
            params["offset"] = at
        return params

    def _unknown(self, why: Exception) -> ConnectionLostError:
        text = why.message if isinstance(why, TrlError) else str(why)
        return ConnectionLostError(text, outcome="unknown", method=self._method)


def _no_room(refusal: TrlError) -> bool:
    return refusal.code == "RATE_LIMITED" or refusal.code == "LIMIT_EXCEEDED" and refusal.details.get("limit") == "stdin"
