"""The scenarios that every client of ours runs, in both APIs and over both transports."""

from __future__ import annotations

import asyncio
import json
import pathlib
import subprocess
import tempfile
from typing import Any, Iterator

import pytest
from conftest import ROOT, build, environment
from scenario import Rig, Run

SCENARIOS = json.loads((ROOT / "client/testdata/scenarios.json").read_text())["scenarios"]


@pytest.fixture(scope="session")
def rig(tmp_path_factory: pytest.TempPathFactory, binary: str) -> Iterator[Rig]:
    program = build("./internal/clientrig", str(tmp_path_factory.mktemp("rig") / "clientrig"))
    process = subprocess.Popen(
        [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**environment(), "TRL_TEST_BINARY": binary}
    )
    assert process.stdin and process.stdout
    yield Rig(process.stdout.readline().strip())
    process.stdin.close()  # it ends with its input
    assert process.wait(60) == 0


@pytest.fixture(scope="session")
def unix_socket() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="trl-py-") as directory:
        yield directory + "/socket"


@pytest.fixture(scope="session")
def shared(rig: Rig, unix_socket: str) -> Any:
    return rig.post("/start", {"args": ["--unix", unix_socket]})


def words(value: Any) -> set[str]:
    """Every operation and action in a list of steps."""
    if isinstance(value, list):
        return set().union(*map(words, value))
    if isinstance(value, dict):
        return {str(value.get("do")), str(value.get("action")).partition("/")[0], str("token" in value)} | words(list(value.values()))
    return set()


def cases() -> Iterator[Any]:
    for scenario in SCENARIOS:
        used = words(scenario["steps"])
        yield pytest.param(scenario, False, False, id=f"{scenario['name']}, async")
        if not {"abort"} & used and not scenario.get("slow"):  # a blocked thread cannot be cancelled from outside
            yield pytest.param(scenario, True, False, id=f"{scenario['name']}, sync")
        if not {"drop", "cut", "close", "settle", "True"} & used:  # the rig's proxy and tokens are for the WebSocket
            yield pytest.param(scenario, False, True, id=f"{scenario['name']}, Unix socket")


@pytest.mark.parametrize(("scenario", "blocking", "unix"), cases())
def test_scenario(scenario: Any, blocking: bool, unix: bool, rig: Rig, shared: Any, unix_socket: str) -> None:
    if not unix:
        pytest.importorskip("websockets")
    gateway = shared
    if own := "gateway" in scenario:
        unix_socket += "2"
        wanted = scenario["gateway"]
        gateway = rig.post("/start", {**wanted, "args": ["--unix", unix_socket, *wanted.get("args", [])]})
    try:
        asyncio.run(Run(rig, gateway, blocking, unix_socket if unix else None).scenario(scenario["steps"]))
    finally:
        if own:
            rig.post(f"/{gateway['id']}/stop")
