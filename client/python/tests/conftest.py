"""Real gateways for the tests: built once, each with a state directory of its own, on loopback at a free port."""

from __future__ import annotations

import asyncio
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any, Awaitable, Callable, Iterator

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "client" / "python"))

import trl_client  # noqa: E402

# A shell that starts us with & has INT ignored, and our children would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

DEADLINE = 60.0  # for what should take no time; only a broken test waits that long


class Gateway:
    """A `trl serve` of our own. `kill` and `start` make another gateway for the same sessions."""

    def __init__(self, binary: str, *flags: str) -> None:
        self.binary = binary
        self.flags = flags
        self.state = tempfile.mkdtemp(prefix="trl-py-")
        self.unix = os.path.join(self.state, "socket")
        self.listen = "127.0.0.1:0"
        self.start()

    def start(self) -> None:
        """The helpers of a keeper that was killed hold its sockets for a moment, so this tries again."""
        until(self._started)
        self.url = pathlib.Path(self.state, "address").read_text().strip()
        self.listen = self.url.removeprefix("http://")
        self.token = pathlib.Path(self.state, "operator-token").read_text().strip()

    def _started(self) -> bool:
        address = pathlib.Path(self.state, "address")
        address.unlink(missing_ok=True)
        # The home is empty, so that nobody's ~/.bashrc runs in terminals.
        env = environment() | {"HOME": self.state}
        command = [self.binary, "serve", "--listen", self.listen, "--state-dir", self.state, "--unix", self.unix]
        if setpriv := shutil.which("setpriv"):
            command = [setpriv, "--pdeathsig", "TERM", *command]  # it ends with us, however we end
        with open(os.path.join(self.state, "log"), "ab") as log:
            self.process = subprocess.Popen([*command, *self.flags], env=env, stdout=log, stderr=log)
        until(lambda: address.exists() or self.process.poll() is not None)
        return self.process.poll() is None

    def kill(self) -> None:
        """kill -9 of the gateway. The keeper, which we started, starts another one for the same sessions."""
        os.kill(self._serving(), signal.SIGKILL)

    def lose(self) -> None:
        """kill -9 of gateway and keeper: the sessions are gone, and no client hears of it."""
        serving = self._serving()
        self.process.send_signal(signal.SIGSTOP)
        os.kill(serving, signal.SIGKILL)
        self.process.kill()
        self.process.wait(DEADLINE)

    def _serving(self) -> int:
        """The keeper's child that serves."""

        def found() -> int | None:
            threads = pathlib.Path(f"/proc/{self.process.pid}/task").glob("*/children")
            children = " ".join(t.read_text() for t in threads).split()
            serving = [int(c) for c in children if b"\0serve\0" in _arguments(c)]
            # Until its exec, a shell that the keeper has just forked has the keeper's arguments.
            return serving[0] if len(serving) == 1 else None

        pid: int = until(found)
        return pid

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(DEADLINE)

    def remove(self) -> None:
        if self.process.poll() is None:
            self.stop()
        shutil.rmtree(self.state)


def _arguments(pid: str) -> bytes:
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith("TRL_")}


def build(package: str, path: str) -> str:
    go = shutil.which("go") or "/usr/local/go/bin/go"
    subprocess.run([go, "build", "-o", path, package], cwd=ROOT, check=True)
    return path


def until(condition: Callable[[], Any]) -> Any:
    end = time.monotonic() + DEADLINE
    while not (value := condition()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)
    return value


async def auntil(condition: Callable[[], Awaitable[Any]]) -> Any:
    end = time.monotonic() + DEADLINE
    while not (value := await condition()):
        assert time.monotonic() < end, "waited in vain"
        await asyncio.sleep(0.01)
    return value


@pytest.fixture(scope="session")
def binary(tmp_path_factory: pytest.TempPathFactory) -> str:
    """`trl`, built by Go; TRL_TEST_BINARY names one that is built already."""
    return os.environ.get("TRL_TEST_BINARY") or build("./cmd/trl", str(tmp_path_factory.mktemp("bin") / "trl"))


@pytest.fixture(scope="session")
def shared_gateway(binary: str) -> Iterator[Gateway]:
    gateway = Gateway(binary)
    yield gateway
    gateway.remove()


@pytest.fixture
def gateway(binary: str) -> Iterator[Gateway]:
    """One that the test may kill."""
    gateway = Gateway(binary)
    yield gateway
    gateway.remove()


@pytest.fixture(params=["websocket", "unix"])
def address(request: pytest.FixtureRequest, shared_gateway: Gateway) -> dict[str, str]:
    """The arguments of connect(), over either transport."""
    return address_of(shared_gateway, request.param)


def address_of(gateway: Gateway, transport: str) -> dict[str, str]:
    if transport == "unix":
        return {"unix": gateway.unix}
    pytest.importorskip("websockets")
    return {"url": gateway.url, "token": gateway.token}


@pytest.fixture
def sandbox(address: dict[str, str]) -> Iterator[trl_client.Sandbox]:
    with trl_client.connect(**address) as sandbox:
        yield sandbox
