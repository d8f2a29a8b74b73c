"""A gateway, with the session that commands use when none is named."""

from __future__ import annotations

import asyncio
import os
from types import TracebackType
from typing import Any, AsyncContextManager, Literal, Mapping, Sequence

from ._address import resolve
from ._client import Client, new_key
from ._opening import Opening
from ._session import Env, Session, _given, text_of
from ._terminal import Terminal
from ._wire import Limits, SessionInfo
from .errors import ForbiddenError, SessionNotFoundError, SessionTerminatedError

State = Literal["CREATING", "IDLE", "RUNNING", "TERMINATED"]
Record = Literal["off", "terminals", "execs", "all"]


class Sandbox(Session):
    """A gateway. As a session it is the one named `default`, or as `connect` says, which is made when it is first used.

    As a context manager it is closed at the end of the block; its sessions go on."""

    def __init__(self, client: Client, session: str) -> None:
        super().__init__(client, "", session)
        self._wanted = session  # a name, or an id
        self._resolving = asyncio.Lock()

    def _use(self) -> AsyncContextManager[str]:
        return _Own(self)

    async def _resolve(self) -> str:
        """The id, asked for once. Requests name the session by its id, so that none runs in a session of the same name that was
        made after a restart of the server."""
        async with self._resolving:
            if not self._id:
                self._id = await self._find()
        return self._id

    async def _open_terminal(self, params: Mapping[str, Any]) -> Terminal:
        async with self._resolving:
            if not self._id and not self._wanted.startswith("s-"):  # one request makes or finds the session, too
                try:
                    created, terminal = await Terminal.create(self._client, {"name": self._wanted, "if_exists": "return"}, params)
                except ForbiddenError:  # a guest may open one in the session that exists
                    pass
                else:
                    self._id = str(created["session_id"])
                    return terminal
        return await super()._open_terminal(params)

    def _ended(self, id: str) -> None:
        """The next use makes another session."""
        if self._id == id:
            self._id = ""

    async def _find(self) -> str:
        wanted = self._wanted
        if wanted.startswith("s-"):
            try:
                return str((await self._client.call("session.info", {"session_id": wanted}))["session_id"])
            except SessionNotFoundError:
                pass  # it is a name
        try:
            answer = await self._client.call("session.create", {"name": wanted, "if_exists": "return", "request_key": new_key()})
        except ForbiddenError:
            who = (await self._client.call("system.capabilities", {}))["principal"]
            if "share" in who:
                return str(who["share"]["session_id"])  # a guest has one session
            answer = await self._client.call("session.info", {"session": wanted})
        return str(answer["session_id"])

    def create_session(
        self,
        name: str | None = None,
        *,
        cwd: str | None = None,
        env: Env | None = None,
        shell: str | None = None,
        command_timeout: float | None = None,
        idle_timeout: float | None = None,
        limits: Limits | None = None,
        labels: Mapping[str, str] | None = None,
        if_exists: Literal["error", "return"] = "error",
        on_disconnect: Literal["keep", "destroy"] = "keep",
        record: Record | None = None,
    ) -> Opening[Session]:
        """Opens a session. `async with` destroys it at the end of the block."""
        params = {
            "name": name,
            "working_dir": cwd,
            "env": env,
            "shell": shell,
            "timeout_s": command_timeout,
            "idle_timeout_s": idle_timeout,
            "limits": limits,
            "labels": labels,
            "if_exists": if_exists,
            "on_disconnect": on_disconnect,
            "record": record,
        }
        return Opening(self._create(_given(params)))

    async def _create(self, params: Mapping[str, Any]) -> Session:
        created = await self._client.call("session.create", {**params, "request_key": new_key()})
        return Session(self._client, created["session_id"], created.get("name"))

    async def create_session_with_terminal(
        self,
        name: str | None = None,
        *,
        cols: int = 80,
        rows: int = 24,
        cmd: str | Sequence[str] | None = None,
        cwd: str | None = None,
        env: Env | None = None,
        shell: str | None = None,
        command_timeout: float | None = None,
        idle_timeout: float | None = None,
        limits: Limits | None = None,
        labels: Mapping[str, str] | None = None,
        if_exists: Literal["error", "return"] = "error",
        on_disconnect: Literal["keep", "destroy"] = "keep",
        record: Record | None = None,
    ) -> tuple[Session, Terminal]:
        """`create_session` and `open_terminal` in one request. If the terminal cannot be opened, no session is made."""
        params = {
            "name": name,
            "working_dir": cwd,
            "env": env,
            "shell": shell,
            "timeout_s": command_timeout,
            "idle_timeout_s": idle_timeout,
            "limits": limits,
            "labels": labels,
            "if_exists": if_exists,
            "on_disconnect": on_disconnect,
            "record": record,
        }
        command = None if cmd is None else text_of(cmd)
        created, terminal = await Terminal.create(self._client, _given(params), {"cols": cols, "rows": rows, **_given({"command": command})})
        return Session(self._client, created["session_id"], created.get("name")), terminal

    async def get_session(self, name_or_id: str) -> Session:
        """An existing session, or SessionNotFoundError."""
        try:
            info = await self._client.call("session.info", {"session_id": name_or_id})
        except SessionNotFoundError:
            info = await self._client.call("session.info", {"session": name_or_id})
        return Session(self._client, info["session_id"], info.get("name"))

    async def list_sessions(
        self, *, label: str | None = None, state: State | None = None, all: bool = False
    ) -> list[SessionInfo]:
        """Our sessions, or everybody's for an admin who asks for all."""
        params = _given({"label": label, "state": state, "all": all or None})
        found: list[SessionInfo] = (await self._client.call("session.list", params))["sessions"]
        return found

    async def delete_session(self, name_or_id: str, *, force: bool = False) -> None:
        """Ends a session and everything that runs in it."""
        await (await self.get_session(name_or_id)).destroy(force=force)

    async def call(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Any request of the protocol, for what this class has no method for. After a lost connection it is sent again if that does
        nothing twice; to run a command, that needs a `request_key` and a `session_id`. Otherwise this raises ConnectionLostError."""
        return await self._client.call(method, params or {})

    async def close(self) -> None:
        """Ends the connection. Sessions and what runs in them go on."""
        await self._client.close()

    async def __aenter__(self) -> Sandbox:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class _Own:
    """The id of a sandbox's own session, for one request, which may say that the session has ended."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._id = ""

    async def __aenter__(self) -> str:
        self._id = self._sandbox._id or await self._sandbox._resolve()
        return self._id

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, (SessionTerminatedError, SessionNotFoundError)):
            self._sandbox._ended(self._id)


def connect(
    url: str | None = None,
    *,
    unix: str | os.PathLike[str] | None = None,
    token: str | None = None,
    session: str = "default",
    patience: float = 45.0,
) -> Opening[Sandbox]:
    """Connects to a gateway: its URL with a token, or its Unix socket. With neither: TRL_URL and TRL_TOKEN, then the gateway
    that runs on this machine. A connection that is lost later is dialled again for `patience` seconds."""

    async def dial() -> Sandbox:
        return Sandbox(await Client.connect(resolve(url, unix, token), patience), session)

    return Opening(dial())
