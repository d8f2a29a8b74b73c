"""The programs in examples/ run as they stand, with warnings as errors; the agent through everything that can die under it."""

from __future__ import annotations

import contextlib
import json
import pathlib
import signal
import socket
import subprocess
import sys
import threading
from typing import Any, Iterator

import pytest
from conftest import DEADLINE, ROOT, Gateway, environment, until
from test_types import mypy

EXAMPLES = ROOT / "examples"
pytest.importorskip("websockets")

FIRST = """hello oops 3
starting
server: killed
secret x /tmp
stdout: 1
stdout: 2
stdout: 3
complete: 0
"""

FIRST_ASYNC = """hello oops 3
starting
server: killed
secret x /tmp
first
second
stdout: 1
stdout: 2
stdout: 3
complete: 0
IDLE
"""

NOTEBOOK = """In [1]: import sys
    numbers = [n * n for n in range(5)]
    numbers
Out[1]: [0, 1, 4, 9, 16]
In [2]: for n in numbers[:3]:
        print("square", n)
    print("a warning", file=sys.stderr)
square 0
square 1
square 4
a warning
In [3]: 1 / 0
Error[3]: ZeroDivisionError: division by zero
In [4]: sum(numbers)
Out[4]: 30
"""


def start(gateway: Gateway, program: str, *arguments: str, **extra: str) -> subprocess.Popen[str]:
    env = environment() | {"PYTHONPATH": str(ROOT / "client" / "python"), "TRL_STATE_DIR": gateway.state} | extra
    warnings = ["-W", "error", "-W", "ignore::DeprecationWarning:websockets"]
    command = [sys.executable, *warnings, str(EXAMPLES / program), *arguments]
    return subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def finish(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=DEADLINE)
    assert (err, process.returncode) == ("", 0), out
    return out


@pytest.mark.parametrize(
    ("program", "output"),
    [("py-first/first.py", FIRST), ("py-first/first_async.py", FIRST_ASYNC), ("py-notebook/notebook.py", NOTEBOOK)],
)
def test_example(program: str, output: str, shared_gateway: Gateway) -> None:
    arguments = [str(EXAMPLES / "py-notebook/cells.py")] if "notebook" in program else []
    assert finish(start(shared_gateway, program, *arguments)) == output


def test_examples_are_typed() -> None:
    done = mypy(*sorted(EXAMPLES.glob("py-*/[!c]*.py")))
    assert done.returncode == 0, done.stdout


def test_a_notebook_cell_is_interrupted(shared_gateway: Gateway, tmp_path: pathlib.Path) -> None:
    cells = tmp_path / "cells.py"
    cells.write_text("# %%\nimport time\nfor i in range(6000):\n    print('tick', flush=True)\n    time.sleep(0.1)\n# %%\n'still here'\n")
    notebook = start(shared_gateway, "py-notebook/notebook.py", str(cells), PYTHONUNBUFFERED="1")
    assert notebook.stdout
    while notebook.stdout.readline() != "tick\n":
        pass
    notebook.send_signal(signal.SIGINT)
    out = finish(notebook)
    assert "Error[1]: KeyboardInterrupt" in out and out.endswith("Out[2]: 'still here'\n")


@contextlib.contextmanager
def proxy(to: str) -> Iterator[tuple[str, list[socket.socket]]]:
    """A way to a gateway that can be cut: its address, and the connections that go through it."""
    host, _, port = to.removeprefix("http://").rpartition(":")
    sockets: list[socket.socket] = []

    def copy(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                try:
                    far = socket.create_connection((host, int(port)))
                except OSError:
                    near.close()
                    continue
                sockets.extend((near, far))
                for pair in ((near, far), (far, near)):
                    threads.append(threading.Thread(target=copy, args=pair))
                    threads[-1].start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threads = [threading.Thread(target=serve)]
        threads[0].start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", sockets
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            cut(sockets)
            for thread in threads:
                thread.join(DEADLINE)
            for s in sockets:
                s.close()


def cut(sockets: list[socket.socket]) -> None:
    for s in sockets:
        with contextlib.suppress(OSError):
            s.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("fate", ["nothing", "cut", "gateway", "agent"])
def test_agent(fate: str, gateway: Gateway, tmp_path: pathlib.Path) -> None:
    """Whatever dies while the slow steps run, each step runs once, and the agent comes to its answer."""
    work = pathlib.Path(gateway.state, "work")  # the session begins in HOME, which is the state directory
    journal = tmp_path / "journal"

    def steps() -> int:
        return (work / "steps").read_text().count("ran") if (work / "steps").exists() else 0

    with proxy(gateway.url) as (url, sockets):
        run = [gateway, "py-agent/agent.py", str(journal)]
        address = {"TRL_URL": url, "TRL_TOKEN": gateway.token}
        agent = start(*run, **address)  # type: ignore[arg-type]
        for step in (1, 2) if fate != "nothing" else ():
            until(lambda: steps() == step or agent.poll() is not None)  # the step runs for a second more
            if fate == "cut":
                cut(sockets)
            elif fate == "gateway":
                gateway.kill()
            else:
                agent.send_signal(signal.SIGKILL)
                agent.communicate(timeout=DEADLINE)
                agent = start(*run, **address)  # type: ignore[arg-type]
        out = finish(agent)
    assert out.endswith("answer: double.py works after a fix\n")
    assert steps() == 2
    messages: list[dict[str, Any]] = [json.loads(line) for line in journal.read_text().splitlines()]
    results = [m["content"] for m in messages if m["role"] == "tool"]
    assert [r.rpartition("\n")[2] for r in results] == ["exit code 0", "exit code 1", "exit code 0", "exit code 0"]
    assert "AssertionError" in results[1] and results[3].startswith("passed\n")
