"""Where the gateway is, and the token for it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from ._transport import Transport, UnixSocket, WebSocket

_STATE_OF_SYSTEM = Path("/var/lib/trl")


@dataclass(frozen=True)
class Address:
    """A gateway's Unix socket, or its URL with a token."""

    unix: str | None = None
    url: str = ""
    token: str | None = field(default=None, repr=False)

    async def dial(self) -> Transport:
        if self.unix is not None:
            return await UnixSocket.dial(self.unix)
        return await WebSocket.dial(self.url, self.token)

    def __str__(self) -> str:
        return self.unix if self.unix is not None else self.url


def resolve(url: str | None, unix: str | os.PathLike[str] | None, token: str | None) -> Address:
    """The gateway that is named, or that of TRL_URL, or the one that runs on this machine.

    A token that a gateway wrote into its state directory is only sent to that gateway."""
    if url and url.startswith("unix://"):
        unix = url.removeprefix("unix://")
    if unix is not None:
        return Address(unix=os.fspath(unix))
    url = url or os.environ.get("TRL_URL")
    token = token or os.environ.get("TRL_TOKEN")
    for directory in _state_directories():
        address = _first_line(directory / "address")
        if address and (not url or url.rstrip("/") == address):
            return Address(url=address, token=token or _first_line(directory / "operator-token"))
    if not url:
        raise ValueError("no gateway found: start one with `trl serve`, or say where it is with url= or TRL_URL")
    return Address(url=url, token=token)


def _state_directories() -> list[Path]:
    if named := os.environ.get("TRL_STATE_DIR"):
        return [Path(named)]
    state = os.environ.get("XDG_STATE_HOME", "")
    of_user = Path(state) if os.path.isabs(state) else Path.home() / ".local" / "state"
    return [of_user / "trl", _STATE_OF_SYSTEM]


def _first_line(path: Path) -> str | None:
    try:
        return path.read_text().split("\n", 1)[0].strip() or None
    except OSError:
        return None
