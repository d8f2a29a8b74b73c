"""The connection to a gateway, made again when it is lost."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import time
from typing import TYPE_CHECKING, Any, Coroutine, Literal, Mapping, TypeVar

from ._address import Address
from ._link import Link, Sent
from ._transport import DIAL_TIMEOUT, Lost
from ._wire import REPEATS
from .errors import ClosedError, ConnectionLostError, TrlError

if TYPE_CHECKING:
    from ._stream import Stream

T = TypeVar("T")

_MAX_PAUSE = 4.0
_FIRST_PAUSE = 0.05
_PAUSE_AFTER_USELESS = 0.25  # spares a server that accepts connections and drops them


class NodeWait:
    """For one request, which may be sent again because the node of a cluster that it is for could not be reached: nothing was done."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._until: float | None = None  # when our patience ends, from the first such answer on

    async def passes(self, error: TrlError) -> bool:
        """Waits as long as the server says. False: it is another error, or our patience is over."""
        if error.code != "NODE_UNREACHABLE":
            return False
        wait = min(max(float(error.details.get("retry_after_ms", 0)) / 1000, _FIRST_PAUSE), _MAX_PAUSE)
        now = time.monotonic()
        self._until = self._until or now + self._patience
        if now + wait > self._until:
            return False
        await asyncio.sleep(wait)
        return True


class Client:
    """Sends requests over a `Link`, and dials again for up to `patience` seconds when the link is lost."""

    def __init__(self, address: Address, patience: float) -> None:
        self.address = address
        self._patience = patience
        self._pid = os.getpid()
        self._loop = asyncio.get_running_loop()
        self._link: Link
        self._closed = False
        self._dialing: asyncio.Task[Link] | None = None
        self._until: float | None = None  # when our patience ends, since a connection was last useful
        self._pause = 0.0  # before the next dial
        self._noted: Link | None = None  # the link whose loss counts already
        self._tasks: set[asyncio.Task[Any]] = set()
        self._siblings: set[Client] = set()
        self._refused: TrlError | None = None  # the server refused a dial, and would refuse the next one
        self.followers: dict[str, set[Stream]] = {}  # who reads a process's output, by the id of the process

    @classmethod
    async def connect(cls, address: Address, patience: float) -> Client:
        """Reports an absent gateway at once."""
        client = cls(address, patience)
        try:
            client._link = await client._dial()
        except Lost as e:
            raise e.error or ConnectionLostError(f"cannot connect to {address}: {e}") from None
        return client

    async def sibling(self) -> Client:
        """Another connection to the same gateway, which ends with this one."""
        await self.connected()
        sibling = Client(self.address, self._patience)
        until = time.monotonic() + self._patience  # the gateway may be away for a moment, as after a kill or an upgrade
        sibling._link = await sibling._dial_until(until, _FIRST_PAUSE, "cannot open another connection")
        if self._closed:
            await sibling.close()
            raise ClosedError("the client is closed")
        self._siblings.add(sibling)
        return sibling

    async def drop(self, sibling: Client) -> None:
        self._siblings.discard(sibling)
        await sibling.close()

    @property
    def busy(self) -> bool:
        """Whether something runs in the background, which may have a request to send."""
        return bool(self._tasks)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._dialing:
            self._dialing.cancel()
            await asyncio.wait({self._dialing})
        for sibling in list(self._siblings):
            await sibling.close()
        await self._link.close()

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Runs in the background. The client keeps the task alive; whether it fails matters only to who waits for it."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(retrieve)
        return task

    async def call(self, method: str, params: Mapping[str, Any], *, sent: Sent | None = None) -> dict[str, Any]:
        """Sends a request, and sends it again after a lost connection if that does nothing twice."""
        repeat = repeat_of(method, params)
        asked: Link | None = None  # the link on which an answer was lost
        node = self.node_wait()
        while True:
            link = await self.connected(method, asked, keyed=repeat == "keyed")
            try:
                return await link.call(method, params, sent=sent)
            except TrlError as e:
                if await node.passes(e):
                    continue
                if asked is not None and e.code == "NODE_UNREACHABLE":
                    raise ConnectionLostError(str(e), outcome="unknown", method=method) from e
                raise
            except Lost as e:
                if not e.sent:
                    continue
                if repeat == "never":
                    raise ConnectionLostError(str(e), outcome="unknown", method=method) from e
                asked = link

    def node_wait(self) -> NodeWait:
        return NodeWait(self._patience)

    async def connected(self, method: str = "", asked: Link | None = None, keyed: bool = True) -> Link:
        """A live connection. `asked` is the link on which the answer to a request was lost. If the request is keyed, the connection must
        be to the same epoch."""
        if self._link.lost is None and asked is None and not self._closed:
            self._check_place()
            return self._link
        try:
            link = await self._connected()
        except ConnectionLostError as e:
            raise ConnectionLostError(e.message, outcome="unknown" if asked else "not_sent", method=method) from e
        except TrlError as e:
            if asked is None or not keyed or isinstance(e, ClosedError):
                raise
            raise ConnectionLostError(str(e), outcome="unknown", method=method) from e
        if keyed and asked and asked.epoch != link.epoch:
            why = "the server was started anew, and the answer is lost"
            raise ConnectionLostError(why, outcome="unknown", method=method)
        return link

    def _check_place(self) -> None:
        if os.getpid() != self._pid:
            raise RuntimeError("this process was forked after connect(): connect again in the child")
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError("this client belongs to another event loop: connect in the loop that uses it")

    async def _connected(self) -> Link:
        self._check_place()
        if self._closed:
            raise ClosedError("the client is closed")
        lost = self._link.lost
        if lost is None:
            return self._link
        refused = self._refused or (None if lost.temporary else lost.error)
        if refused is not None:
            raise type(refused)(refused.message, code=refused.code, details=refused.details)
        if not lost.temporary:
            raise ConnectionLostError(str(lost))
        if self._dialing is None:
            self._dialing = asyncio.create_task(self._redial(self._link))
            self._dialing.add_done_callback(self._dialed)
        await asyncio.wait({dialing := self._dialing})
        if dialing.cancelled():
            raise ClosedError("the client is closed")
        return dialing.result()

    def _dialed(self, dialing: asyncio.Task[Link]) -> None:
        self._dialing = None
        retrieve(dialing)

    async def _dial(self) -> Link:
        """Connects and hears that the server answers."""
        try:
            transport = await asyncio.wait_for(self.address.dial(), DIAL_TIMEOUT)
        except (OSError, asyncio.TimeoutError) as e:
            raise Lost(str(e) or "the server does not answer") from e
        link = Link(transport)
        try:
            pong = await asyncio.wait_for(link.call("system.ping", {}), DIAL_TIMEOUT)
        except BaseException as e:
            await link.close()
            if isinstance(e, asyncio.TimeoutError):
                raise Lost("the server does not answer") from e
            if isinstance(e, TrlError):
                raise Lost(str(e), temporary=e.retryable, error=e) from e
            raise
        link.epoch = pong["epoch"]
        link.useful = False
        return link

    async def _redial(self, lost: Link) -> Link:
        until = self._note_loss(lost)
        await lost.close()
        await asyncio.sleep(self._pause)
        self._link = await self._dial_until(until, max(self._pause, _FIRST_PAUSE), f"{lost.lost}; then")
        return self._link

    async def _dial_until(self, until: float, pause: float, why: str) -> Link:
        while True:
            try:
                return await self._dial()
            except Lost as e:
                left = until - time.monotonic()
                absent = e.error is not None and e.error.code == "NOT_SUPPORTED"  # a proxy says so of a gateway that was here before
                if e.error is not None and not e.temporary and not absent:
                    self._refused = e.error
                    raise e.error from e
                if left <= 0 or not (e.temporary or absent):
                    raise ConnectionLostError(f"{why} {e}") from e
            await asyncio.sleep(min(pause * random.uniform(0.5, 1), left))
            pause = min(2 * pause, _MAX_PAUSE)

    def _note_loss(self, link: Link) -> float:
        """When our patience ends. It goes on from an earlier loss if the connection brought nothing."""
        if self._noted is link and self._until is not None:
            return self._until
        self._noted = link
        if self._until is not None and not link.useful and link.lived < 1:  # a command may be silent for longer
            self._pause = min(max(2 * self._pause, _PAUSE_AFTER_USELESS), _MAX_PAUSE)
            return self._until
        self._pause = _PAUSE_AFTER_USELESS if link.lived < 1 else 0.0
        self._until = time.monotonic() + self._patience
        return self._until


def repeat_of(method: str, params: Mapping[str, Any]) -> Literal["never", "always", "keyed"]:
    """Whether a request may be sent again after its answer was lost; keyed: to a server of the same epoch. protocol/repeat.go has the rules.

    A request without a session_id is not keyed: the default session may have ended meanwhile, and the next one does not know the key."""
    repeat = REPEATS.get(method, "never")
    if repeat == "keyed":
        named = method == "session.create" or params.get("session_id")
        return "keyed" if named and params.get("request_key") else "never"
    if repeat == "end":
        named = params.get("exec_id") or params.get("process_id")
        return "always" if named and not params.get("signal") else "never"
    return repeat


def retrieve(done: asyncio.Future[Any]) -> None:
    """Keeps asyncio from reporting a failure for which nobody waits."""
    if not done.cancelled():
        done.exception()


def new_key() -> str:
    """A request_key that nobody else uses."""
    return secrets.token_hex(16)
