"""Terminals: a PTY in a session, for people and for programs that want one."""

from __future__ import annotations

from types import TracebackType
from typing import Any, AsyncGenerator, Literal, Mapping

from ._client import Client, new_key
from ._command import to_bytes
from ._input import Input
from ._link import Feed, Link
from ._stream import WINDOW, Stream
from ._wire import TermSnapshot
from .errors import InvalidParamsError
from .events import CommandDone, Control, Exited, Gap, Output, Resized, TerminalEvent

Mode = Literal["control", "view"]


class _Screen(Stream):
    """A terminal's events. After a lost connection they begin with the screen, and in the same mode as before."""

    kind = "term_id"

    def __init__(self, client: Client, opening: tuple[str, Mapping[str, Any]] | None, attach: Mapping[str, Any]) -> None:
        super().__init__(client, attach.get("term_id", ""))
        self._opening = opening  # a method and its params
        self.created: dict[str, Any] = {}  # the answer of session.create
        self.attach: dict[str, Any] = {**attach, "window_bytes": WINDOW, "snapshot": True}
        self.mode: Mode = attach["mode"]

    async def _subscribe(self, link: Link, feed: Feed) -> None:
        if not self.id and self._opening:
            self._asked = link
            method, params = self._opening
            opened = await link.call(method, params, feed=feed)
            if method == "session.create":
                self.created, opened = opened, opened["terminal"]
            self.id = self.attach["term_id"] = opened["term_id"]
            self.attach["claim"] = opened["claim"]
            return
        attached = await link.call("term.attach", self.attach, feed=feed)
        self._note(attached)
        if attached["mode"] != self.mode:  # control changed while we were away
            self.mode = attached["mode"]
            self._pending.append(("term.control", attached))

    def _note(self, attached: Mapping[str, Any]) -> None:
        if "claim" in attached:
            self.attach["claim"] = attached["claim"]

    async def take_over(self) -> None:
        request = {**self.attach, "mode": "control"}
        request.pop("claim", None)
        attached = await self._client.call("term.attach", request)
        self.attach["mode"] = "control"
        self._note(attached)
        self.mode = attached["mode"]


def _controlling(params: Mapping[str, Any]) -> dict[str, Any]:
    """How the client that opens a terminal attaches to it again."""
    return {"mode": "control", "cols": params["cols"], "rows": params["rows"]}


class Terminal:
    """One client of a terminal. Iterate over it for its events; leaving the loop, or `detach`, leaves the terminal running."""

    def __init__(self, client: Client, screen: _Screen, input_end: int | None) -> None:
        self._client = client
        self._screen = screen
        self._input = Input(client, "term.input", {"term_id": screen.id}, input_end)

    @classmethod
    async def open(cls, client: Client, params: Mapping[str, Any]) -> Terminal:
        screen = _Screen(client, ("term.open", {**params, "request_key": new_key(), "window_bytes": WINDOW}), _controlling(params))
        await screen.open()
        return cls(client, screen, 0)

    @classmethod
    async def create(cls, client: Client, session: Mapping[str, Any], params: Mapping[str, Any]) -> tuple[dict[str, Any], Terminal]:
        """Opens a terminal in a session that the same request makes or finds. An older server gets two requests."""
        session = {**session, "request_key": new_key()}
        opening = {**session, "terminal": {**params, "window_bytes": WINDOW}}
        screen = _Screen(client, ("session.create", opening), _controlling(params))
        try:
            await screen.open()
        except InvalidParamsError as error:
            if error.details.get("field") != "terminal":
                raise
            created = await client.call("session.create", session)
            return created, await cls.open(client, {"session_id": created["session_id"], **params})
        return screen.created, cls(client, screen, 0)

    @classmethod
    async def join(cls, client: Client, attach: Mapping[str, Any]) -> Terminal:
        screen = _Screen(client, None, attach)
        await screen.open()
        return cls(client, screen, None)

    @property
    def id(self) -> str:
        return self._screen.id

    @property
    def mode(self) -> Mode:
        return self._screen.mode

    async def __aiter__(self) -> AsyncGenerator[TerminalEvent, None]:
        while True:
            name, data = await self._screen.next()
            if name == "output":
                yield Output(data.data, data.offset, data.replay, data.snapshot)
            elif isinstance(data, Gap):
                yield data
            elif name == "term.resized":
                yield Resized(data["cols"], data["rows"])
            elif name == "term.control":
                self._screen.mode = data["mode"]
                yield Control(data["mode"], data.get("by", {}).get("subject"))
            elif name == "term.command":
                duration = data["duration_ms"] / 1000 if "duration_ms" in data else None
                yield CommandDone(data.get("command"), data.get("exit_code"), duration)
            elif name == "term.exit":
                yield Exited(data.get("exit_code"), data.get("signal"))
                return

    async def write(self, data: str | bytes) -> None:
        """Types."""
        await self._input.write(to_bytes(data))

    async def resize(self, cols: int, rows: int) -> None:
        self._screen.attach |= {"cols": cols, "rows": rows}
        await self._client.call("term.resize", {"term_id": self.id, "cols": cols, "rows": rows})

    async def take_over(self) -> None:
        """Takes control from whoever has it. The screen comes again."""
        await self._screen.take_over()

    async def snapshot(self) -> TermSnapshot:
        """The screen as lines of text, with the cursor."""
        screen: Any = await self._client.call("term.snapshot", {"term_id": self.id})
        return screen  # type: ignore[no-any-return]

    async def close(self) -> None:
        """Ends the terminal and everything that was started in it."""
        await self._client.call("term.close", {"term_id": self.id})

    async def detach(self) -> None:
        """Leaves the terminal, which goes on."""
        await self._screen.leave()

    async def __aenter__(self) -> Terminal:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
