"""Nothing hangs and nothing is left behind: closed clients, dropped references, event loops that end, threads, exceptions."""

from __future__ import annotations

import asyncio
import gc
import pathlib
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
import trl_client
from conftest import DEADLINE, ROOT, Gateway, environment, until
from trl_client import aio
from trl_client._link import Link
from trl_client._transport import Lost, WebSocket

Address = dict[str, str]


def program(text: str, **options: str) -> subprocess.CompletedProcess[str]:
    """A program of its own, in which warnings are errors, and what is left behind is a warning."""
    env = environment() | {"PYTHONPATH": str(ROOT / "client/python")}
    command = [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning:websockets", "-c", text]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=DEADLINE)


def threads() -> int:
    return sum(t.name == "trl_client" for t in threading.enumerate())


def test_a_client_that_was_dropped_ends_with_a_warning(address: Address) -> None:
    before = threads()
    session = trl_client.connect(**address).create_session()  # whatever uses the connection keeps it
    gc.collect()
    assert session.exec("echo here").stdout == "here\n"
    session.destroy()
    with pytest.warns(ResourceWarning, match="not closed"):
        del session
        gc.collect()
    until(lambda: threads() == before)


def test_close_while_other_threads_wait(address: Address) -> None:
    before = threads()
    for _ in range(5):
        sandbox = trl_client.connect(**address)
        session = sandbox.create_session()
        caught: list[BaseException] = []
        begun = threading.Barrier(5)

        def work() -> None:
            begun.wait()
            try:
                while True:
                    session.run("sleep 0.01")
            except BaseException as e:
                caught.append(e)

        workers = [threading.Thread(target=work) for _ in range(4)]
        for w in workers:
            w.start()
        begun.wait()
        sandbox.close()
        for w in workers:
            w.join(DEADLINE)
        assert {type(e) for e in caught} == {trl_client.ClosedError} and len(caught) == 4
        with trl_client.connect(**address) as again:
            again.delete_session(session.id)
    assert threads() == before


def test_what_nobody_waits_for_ends_with_the_client(address: Address) -> None:
    text = f"""
import trl_client
sandbox = trl_client.connect(**{address!r})
session = sandbox.create_session(on_disconnect="destroy")
commands = [session.exec_stream("cat", stdin=b"x" * (1 << 20)) for _ in range(3)]
process = session.start_process("while sleep 0.01; do echo tick; done")
for event in process.stream_logs():
    break
logs = process.stream_logs()
next(logs)
watch = session.watch()
session.start_process("true")
waiting = next(iter(watch))
sandbox.close()
print("closed")
"""
    done = program(text)
    assert (done.stdout, done.stderr, done.returncode) == ("closed\n", "", 0)


def test_a_program_that_closes_nothing_ends(address: Address) -> None:
    text = f"""
import trl_client
sandbox = trl_client.connect(**{address!r})
session = sandbox.create_session(on_disconnect="destroy")
command = session.exec_stream("sleep 600")
for event in session.start_process("while sleep 0.01; do echo tick; done").stream_logs():
    break
watch = session.watch()
print("done")
"""
    done = program(text)
    assert (done.stdout, done.stderr, done.returncode) == ("done\n", "", 0)


def test_a_task_that_the_loop_cancels_at_its_end_does_not_hang(address: Address) -> None:
    """asyncio.run cancels all tasks at once, ours too; what a program does in `finally` then fails at once."""
    text = f"""
import asyncio
from trl_client import aio, TrlError

async def work(sandbox):
    try:
        await asyncio.sleep(600)
    finally:
        try:
            await sandbox.exec("true")
        except TrlError as e:
            print(type(e).__name__)

async def main():
    sandbox = await aio.connect(**{address!r})
    task = asyncio.create_task(work(sandbox))
    await sandbox.exec("true")
    return task, sandbox

kept = asyncio.run(main())
"""
    env = environment() | {"PYTHONPATH": str(ROOT / "client/python")}
    done = subprocess.run([sys.executable, "-c", text], env=env, capture_output=True, text=True, timeout=DEADLINE)
    assert (done.stdout, done.returncode) == ("ConnectionLostError\n", 0), done.stderr


def test_another_event_loop_is_refused(address: Address) -> None:
    async def opened() -> aio.Sandbox:
        return await aio.connect(**address)

    with asyncio.Runner() as runner:
        sandbox = runner.run(opened())

        def elsewhere() -> None:
            with pytest.raises(RuntimeError, match="another event loop"):
                asyncio.run(sandbox.exec("true"))

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join(DEADLINE)
        runner.run(sandbox.close())


@pytest.mark.parametrize("ended", [False, True])
def test_a_session_that_has_ended_may_leave_its_block(address: Address, ended: bool) -> None:
    with trl_client.connect(**address) as sandbox:
        with sandbox.create_session() as session:
            if ended:
                session.destroy()
        with pytest.raises(KeyError):
            with sandbox.create_session() as session:
                if ended:
                    session.destroy()
                raise KeyError("mine")
        with sandbox.open_terminal(cmd="true") as terminal:
            for _ in terminal:
                pass


def test_an_exception_in_a_loop_over_output_leaves_no_thread_and_no_reader(address: Address) -> None:
    with trl_client.connect(**address) as sandbox, sandbox.create_session() as session:
        with pytest.raises(ZeroDivisionError):
            with session.exec_stream("while sleep 0.01; do echo tick; done") as command:
                for _ in command:
                    1 // 0
        assert session.info()["state"] == "IDLE"
        with pytest.raises(ZeroDivisionError):
            session.exec("echo out; sleep 600", on_stdout=lambda _: 1 // 0)
        assert session.info()["state"] == "IDLE"


def test_keyboard_interrupt_between_events_ends_a_command_in_a_block(address: Address, tmp_path: pathlib.Path) -> None:
    ready = tmp_path / "ready"
    text = f"""
import pathlib, time, trl_client
with trl_client.connect(**{address!r}) as sandbox, sandbox.create_session("interrupted") as session:
    try:
        with session.exec_stream("while sleep 0.01; do echo tick; done") as command:
            for event in command:
                pathlib.Path({str(ready)!r}).touch()
                time.sleep(0.01)
    except KeyboardInterrupt:
        print(session.info()["state"])
"""
    env = environment() | {"PYTHONPATH": str(ROOT / "client/python")}
    command = [sys.executable, "-c", text]
    child = subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    until(ready.exists)
    time.sleep(0.05)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=DEADLINE)
    assert (out, err, child.returncode) == ("IDLE\n", "", 0)


def test_a_log_is_left_and_followed_again_at_once(address: Address) -> None:
    with trl_client.connect(**address) as sandbox, sandbox.create_session() as session:
        process = session.start_process("i=0; while sleep 0.01; do i=$((i+1)); echo $i; done")
        offset = 0
        for _ in range(10):
            for event in process.stream_logs(offset):
                assert isinstance(event, trl_client.Stdout) and event.offset == offset
                offset += len(event.raw)
                break


def test_a_log_line_without_an_end_is_bounded(address: Address) -> None:
    with trl_client.connect(**address) as sandbox, sandbox.create_session() as session:
        process = session.start_process("head -c 3000000 /dev/zero | tr '\\0' x; echo ready; sleep 600")
        assert len(process.wait_for_log("ready", timeout=DEADLINE).line) < 2 << 20


def test_a_final_refusal_is_remembered(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that goes on dialling with a wrong token would have its address locked out."""
    pytest.importorskip("websockets")
    create = [gateway.binary, "token", "create", "--state-dir", gateway.state, "--subject", "me", "--role", "user"]
    gateway.stop()  # so that it knows the token when it starts
    token = subprocess.run(create, check=True, capture_output=True, text=True).stdout.strip()
    gateway.start()
    with trl_client.connect(gateway.url, token=token) as sandbox:
        assert sandbox.exec("echo on").stdout == "on\n"
        gateway.stop()
        pathlib.Path(gateway.state, "tokens").unlink()
        gateway.start()
        dials = 0
        dial = WebSocket.dial

        async def counted(url: str, token: str | None) -> WebSocket:
            nonlocal dials
            dials += 1
            return await dial(url, token)

        monkeypatch.setattr(WebSocket, "dial", counted)
        for _ in range(3):
            with pytest.raises(trl_client.AuthError):
                sandbox.exec("true")
        assert dials == 1


def test_a_reader_that_gives_up_at_once_takes_nothing_from_the_next(address: Address) -> None:
    async def main() -> None:
        async with aio.connect(**address) as sandbox, sandbox.create_session() as session:
            process = await session.start_process("sleep 0.5; echo late; sleep 600")
            for _ in range(3):
                first = asyncio.create_task(anext(process.stream_logs()))
                for _ in range(3):  # until its request is sent, and not answered yet
                    await asyncio.sleep(0)
                first.cancel()
                second = process.stream_logs()
                assert (await asyncio.wait_for(anext(second), DEADLINE)).data == "late\n"
                await second.aclose()

    asyncio.run(main())


def test_a_node_that_cannot_be_reached_is_waited_for(address: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    refusals = 0
    answer = Link.call

    async def refuse(self: Link, method: str, params: Any, **more: Any) -> Any:
        nonlocal refusals
        if refusals <= 0 or method == "system.ping":
            return await answer(self, method, params, **more)
        refusals -= 1
        raise trl_client.TrlError("gone", code="NODE_UNREACHABLE", details={"node": "n2", "retry_after_ms": 1})

    monkeypatch.setattr(Link, "call", refuse)
    with trl_client.connect(**address, patience=3) as sandbox, sandbox.create_session() as session:
        refusals = 2
        session.rename("renamed")
        assert refusals == 0
        refusals = 2
        assert session.exec_stream("exit 7").result().exit_code == 7
        assert refusals == 0
        refusals = 1 << 30
        with pytest.raises(trl_client.TrlError) as failed:
            session.rename("never")
        assert failed.value.code == "NODE_UNREACHABLE"
        refusals = 0


def test_a_connection_that_ends_while_a_request_is_sent_is_told_once() -> None:
    class Ending:
        pings = False
        sending = asyncio.Event()

        async def receive(self) -> str:
            await self.sending.wait()
            raise Lost("cut off")

        async def send(self, frame: str) -> None:
            self.sending.set()
            while not link.lost:
                await asyncio.sleep(0)
            raise Lost("cut off")

        async def close(self) -> None:
            pass

    async def main() -> None:
        nonlocal link
        link = Link(Ending())
        asyncio.get_running_loop().set_exception_handler(lambda _, report: reports.append(report))
        with pytest.raises(Lost):
            await link.call("exec.input", {})
        await link.close()
        gc.collect()

    link: Link
    reports: list[Any] = []
    asyncio.run(main())
    assert not reports
