"""What the scenarios cannot say: Python's own ways to cancel, to fork, to end, and to iterate."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from typing import Any, Callable, Iterator

import pytest
import trl_client
from conftest import DEADLINE, ROOT, Gateway, address_of, auntil, environment, until
from trl_client import PIPE, Completed, Exited, Gap, Stderr, Stdout, aio
from trl_client._stream import WINDOW

Address = dict[str, str]


def run(work: Any) -> Any:
    return asyncio.run(asyncio.wait_for(work, 3 * DEADLINE))


def script(text: str, address: Address, **options: Any) -> subprocess.Popen[str]:
    """A Python program of its own, with `sandbox` connected."""
    connect = f"import trl_client, os, sys, threading, time\nsandbox = trl_client.connect(**{address!r})\n"
    env = environment() | {"PYTHONPATH": str(ROOT / "client/python")}
    return subprocess.Popen([sys.executable, "-c", connect + text], env=env, text=True, stdout=subprocess.PIPE, **options)


async def state(session: aio.Session) -> str:
    return (await session.info())["state"]


# The two APIs.


def public(cls: type) -> dict[str, Any]:
    return {n: getattr(cls, n) for n in dir(cls) if not n.startswith("_") or n in ("__enter__", "__aenter__")}


@pytest.mark.parametrize("name", ["Sandbox", "Session", "Command", "Process", "Terminal", "Watch"])
def test_both_apis_have_the_same_names_and_parameters(name: str) -> None:
    blocking, asynchronous = public(getattr(trl_client, name)), public(getattr(aio, name))
    only_async = {"open", "create", "join", "known", "__aenter__"}  # constructors, and the protocol of asyncio
    assert set(blocking) - {"__enter__"} == set(asynchronous) - only_async
    for method, function in blocking.items():
        if callable(function) and not method.startswith("__"):
            ours, theirs = inspect.signature(function), inspect.signature(asynchronous[method])
            assert ours.parameters == theirs.parameters, method


def test_both_connects_take_the_same() -> None:
    assert inspect.signature(trl_client.connect).parameters == inspect.signature(aio.connect).parameters


def test_the_first_program(address: Address, tmp_path: pathlib.Path) -> None:
    """CLIENTS §8, blocking."""
    port, pids = free_port(), tmp_path / "pids"
    server = tmp_path / "start-server.sh"
    server.write_text(
        f"#!/bin/sh\nfor i in 1 2; do python3 -c 'import time; time.sleep(600)' & echo $! >>{pids}; done\n"
        f"echo $$ >>{pids}; echo starting; exec python3 -m http.server --bind 127.0.0.1 {port}\n"
    )
    server.chmod(0o755)

    with trl_client.connect(**address) as sandbox:
        result = sandbox.exec("printf hello; printf oops >&2; (exit 3)")
        assert (result.stdout, result.stderr, result.exit_code) == ("hello", "oops", 3)

        process = sandbox.start_process(str(server))
        process.wait_for_port(port, timeout=DEADLINE)
        for event in process.stream_logs():
            assert event == Stdout("starting\n", 0, b"starting\n")
            break
        process.kill()
        assert process.status == "killed"
        started = pids.read_text().split()
        assert len(started) == 3
        assert not [pid for pid in started if lives(pid)]

        with sandbox.create_session(cwd="/tmp", env={"MODE": "x"}) as session:
            session.exec("export API_KEY=secret")
            assert session.exec("echo $API_KEY $MODE $PWD").stdout == "secret x /tmp\n"
            events = list(session.exec_stream("for i in 1 2 3; do echo $i; sleep 0.1; done"))
            assert "".join(e.data for e in events if isinstance(e, Stdout)) == "1\n2\n3\n"
            assert isinstance(events[-1], Completed) and events[-1].result.ok
        with pytest.raises(trl_client.SessionTerminatedError):
            session.exec("true")


def lives(pid: str) -> bool:
    """Not a zombie, which its parent has not fetched yet."""
    try:
        return ") Z " not in pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def test_the_first_program_async(address: Address) -> None:
    async def main() -> None:
        async with aio.connect(**address) as sandbox:
            async with sandbox.create_session(cwd="/tmp") as session:
                first = asyncio.create_task(session.exec("sleep 0.2; echo first"))
                second = asyncio.create_task(session.exec("echo second"))
                assert [(await t).stdout for t in (first, second)] == ["first\n", "second\n"]

                seen = [e async for e in session.exec_stream("echo out; echo err >&2; (exit 7)")]
                assert isinstance(seen[-1], Completed) and seen[-1].result.exit_code == 7
                assert {type(e) for e in seen} == {Stdout, Stderr, Completed}

                process = await session.start_process("echo ready in 5; sleep 600")
                found = await process.wait_for_log(r"ready in (\d+)", timeout=DEADLINE)
                assert found.match[1] == "5"
                assert await session.kill_all_processes() == 1
            session = await sandbox.create_session()
            await session.destroy()

    run(main())


# Commands.


def test_callbacks_of_the_blocking_api_run_in_the_caller(sandbox: trl_client.Sandbox) -> None:
    got: list[tuple[str, str, threading.Thread]] = []
    result = sandbox.exec(
        "echo out; echo err >&2; (exit 2)",
        on_stdout=lambda text: got.append(("out", text, threading.current_thread())),
        on_stderr=lambda text: got.append(("err", text, threading.current_thread())),
    )
    me = threading.current_thread()
    assert sorted(got, key=lambda g: g[0]) == [("err", "err\n", me), ("out", "out\n", me)]
    assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 2)


def test_a_callback_that_raises_ends_the_command(sandbox: trl_client.Sandbox) -> None:
    def refuse(text: str) -> None:
        raise KeyboardInterrupt(text)

    with sandbox.create_session() as session:
        with pytest.raises(KeyboardInterrupt, match="begun"):
            session.exec("echo begun; sleep 600", on_stdout=refuse)
        until(lambda: session.info()["state"] == "IDLE")


def test_callbacks_may_be_async(address: Address) -> None:
    async def main() -> None:
        got: list[str] = []

        async def note(text: str) -> None:
            await asyncio.sleep(0)
            got.append(text)

        async with aio.connect(**address) as sandbox:
            await sandbox.exec("echo one", on_stdout=note)
        assert got == ["one\n"]

    run(main())


def test_check(sandbox: trl_client.Sandbox) -> None:
    assert sandbox.exec("true", check=True).ok
    with pytest.raises(trl_client.CommandError, match="exit code 3.*no luck") as caught:
        sandbox.exec("echo no luck >&2; (exit 3)", check=True)
    assert caught.value.result.stderr == "no luck\n"
    with pytest.raises(trl_client.CommandError):
        sandbox.exec("(exit 3)", check=True, on_stdout=print)


def test_large_stdin_and_large_output(sandbox: trl_client.Sandbox) -> None:
    data = bytes(range(256)) * 40_000  # 10 MiB
    result = sandbox.exec("cat", stdin=data, max_output_bytes=len(data))
    assert result.stdout_bytes == data and not result.truncated
    cut = sandbox.exec("cat", stdin=data, max_output_bytes=1000)
    assert cut.truncated and len(cut.stdout_bytes) == 1000
    assert cut.stdout_bytes[:500] == data[:500] and cut.stdout_bytes[-500:] == data[-500:]
    # A command that does not read its input holds nobody up.
    assert sandbox.exec("echo done", stdin=data).stdout == "done\n"


def test_a_character_that_is_cut_is_in_the_later_text(address: Address) -> None:
    async def main() -> None:
        async with aio.connect(**address) as sandbox:
            command = sandbox.exec_stream("printf 'a\\303'; sleep 0.3; printf '\\251b'; printf '\\303'")
            events = [e async for e in command]
            texts = [e for e in events if isinstance(e, Stdout)]
            assert "".join(e.data for e in texts) == "aéb\ufffd"
            assert b"".join(e.raw for e in texts) == "aéb".encode() + b"\xc3"
            assert all(a.offset + len(a.raw) == b.offset for a, b in zip(texts, texts[1:]))
            assert command.offset == 5
            result = await command.result()
            assert result.stdout_bytes == "aéb".encode() + b"\xc3"

    run(main())


def test_stdin_of_a_stream(sandbox: trl_client.Sandbox) -> None:
    command = sandbox.exec_stream("while read -r line; do echo got $line; done", stdin=PIPE)
    command.write("one\n")
    command.write(b"two\n")
    command.close_stdin()
    assert command.result().stdout == "got one\ngot two\n"
    with pytest.raises(trl_client.TrlError) as caught:
        command.write("more")
    assert caught.value.code == "STDIN_CLOSED"
    with pytest.raises(ValueError):
        sandbox.exec_stream("cat", stdin=17)


def test_leaving_the_loop_leaves_the_command_running(sandbox: trl_client.Sandbox, tmp_path: pathlib.Path) -> None:
    go, done = tmp_path / "go", tmp_path / "done"
    for _ in sandbox.exec_stream(f"echo begun; until [ -e {go} ]; do sleep 0.05; done; touch {done}"):
        break
    go.touch()
    until(done.exists)


def test_a_command_as_a_context_manager_ends_with_an_exception(sandbox: trl_client.Sandbox) -> None:
    with sandbox.create_session() as session:
        with pytest.raises(RuntimeError, match="mine"):
            with session.exec_stream("sleep 600"):
                raise RuntimeError("mine")
        until(lambda: session.info()["state"] == "IDLE")


def test_a_command_is_iterated_once(sandbox: trl_client.Sandbox) -> None:
    command = sandbox.exec_stream("echo x")
    assert len(list(command)) == 2
    with pytest.raises(RuntimeError):
        iter(command)
    assert command.result().stdout == "x\n" and command.exit_code == 0


def test_a_refusal_of_a_stream_is_raised(sandbox: trl_client.Sandbox) -> None:
    with pytest.raises(trl_client.TrlError) as caught:
        sandbox.exec_stream("true", cwd="/no/such/directory").result()
    assert caught.value.code == "WORKING_DIR_NOT_FOUND"

    with pytest.raises(trl_client.InvalidParamsError) as wrong:
        sandbox.exec("true", timeout=-1)
    assert wrong.value.field == "timeout_s"


def test_a_request_that_is_too_large_ends_no_connection(sandbox: trl_client.Sandbox) -> None:
    with pytest.raises(trl_client.TrlError) as caught:
        sandbox.exec("true " + "x" * (5 << 20))
    assert caught.value.code == "REQUEST_TOO_LARGE"
    assert sandbox.exec("true").ok


def test_run_is_beside_the_session(sandbox: trl_client.Sandbox) -> None:
    with sandbox.create_session(cwd="/tmp") as session:
        session.exec("export A=1")
        busy = session.exec_stream("sleep 600")
        result = session.run(["sh", "-c", "echo $A $PWD; cat >&2; cd /; A=2; exit 4"], input=b"\xff\n" * 100_000)
        assert (result.stdout, result.exit_code) == ("1 /tmp\n", 4)
        assert result.stderr_bytes == b"\xff\n" * 100_000
        assert session.run("sleep 600", timeout=0.2).timed_out
        with pytest.raises(trl_client.CommandError):
            session.run("false", check=True)
        busy.kill()
        assert session.exec("echo $A $PWD").stdout == "1 /tmp\n"


def test_set_env(sandbox: trl_client.Sandbox) -> None:
    with sandbox.create_session() as session:
        session.set_env({"A": "it's $HOME", "B": "2"})
        session.set_env({"B": None})
        assert session.run("echo \"$A|$B\"").stdout == "it's $HOME|\n"
        with pytest.raises(ValueError):
            session.set_env({"A; rm": "x"})


def test_commands_run_in_the_order_of_the_calls(address: Address) -> None:
    async def main() -> None:
        async with aio.connect(**address) as sandbox, sandbox.create_session() as session:
            first = session.exec_stream("sleep 0.2; echo first")
            assert (await session.exec("echo second")).ok
            assert (await first.result()).stdout == "first\n"
            assert [e["command"][-5:] for e in (await sandbox.call("exec.list", {"session_id": session.id}))["execs"]] == ["first", "econd"]

    run(main())


def test_sessions_are_named_listed_and_changed(sandbox: trl_client.Sandbox) -> None:
    name = f"py-{time.monotonic_ns()}"
    session = sandbox.create_session(name, labels={"py": name}, command_timeout=60)
    assert sandbox.get_session(name).id == sandbox.get_session(session.id).id == session.id
    with pytest.raises(trl_client.SessionExistsError):
        sandbox.create_session(name)
    assert sandbox.create_session(name, if_exists="return").id == session.id
    info = session.update(labels={"py": name, "more": "x"}, idle_timeout=600, command_timeout=0.2)
    assert (info["labels"], info["idle_timeout_s"]) == ({"py": name, "more": "x"}, 600)
    assert session.exec("sleep 600").timed_out
    session.update(command_timeout=60)
    session.rename(name + "-2")
    assert session.name == name + "-2"
    session.exec("X=1")
    session.reset()
    assert session.exec("echo \"<$X>\"").stdout == "<>\n"
    assert [s["session_id"] for s in sandbox.list_sessions(label=f"py={name}", state="IDLE")] == [session.id]
    sandbox.delete_session(name + "-2")
    with pytest.raises(trl_client.SessionNotFoundError):
        sandbox.get_session("no such session")


# Output that nobody reads.


@pytest.fixture(scope="module")
def patient(binary: str) -> Iterator[Gateway]:
    """It waits longer for a client that does not read than a test does."""
    gateway = Gateway(binary, "--slow-client", "10m")
    yield gateway
    gateway.remove()


@pytest.mark.parametrize("transport", ["websocket", "unix"])
@pytest.mark.parametrize("read", [False, True])
def test_a_flood_that_nobody_reads_is_killed(patient: Gateway, transport: str, read: bool) -> None:
    async def main() -> None:
        async with aio.connect(**address_of(patient, transport)) as sandbox, sandbox.create_session() as session:
            command = await session.exec_stream("yes")
            events = aiter(command)
            if read:
                await anext(events)
            await auntil(lambda: stuck(command._output))
            await command.kill()
            last = None
            async for last in events:
                pass
            assert isinstance(last, Completed) and last.result.cancelled
            assert (await session.exec("echo on")).stdout == "on\n"

            task = asyncio.create_task(session.exec("yes", on_stdout=lambda text: asyncio.sleep(600)))
            await auntil(lambda: running(session))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await auntil(lambda: idle(session))

            process = await session.start_process("yes")
            logs = process.stream_logs()
            await anext(logs)
            await auntil(lambda: stuck(*sandbox._client.followers[process.id]))
            await process.kill()
            assert process.status == "killed"
            assert [type(e) async for e in logs][-1] is Exited

    run(main())


async def stuck(output: Any) -> bool:
    """The window is full, but for the event that was read."""
    unread = sum(len(data.data) for name, data in list(output._feed._events) if name == "output")
    return bool(unread >= WINDOW - (64 << 10))


def test_memory_is_bounded_by_the_window(address: Address) -> None:
    """40 MiB of output that is read late, over either transport, beside other work."""
    text = """
import resource
command = sandbox.exec_stream("yes | head -c 40000000")
events = iter(command)
next(events)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
time.sleep(1)
with sandbox.create_session() as other:
    assert other.exec("echo on").ok
total = sum(len(e.raw) for e in events if isinstance(e, trl_client.Stdout))
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(total > 39_000_000, after - before)
"""
    out = script(text, address).communicate(timeout=DEADLINE)[0].split()
    assert out[0] == "True" and int(out[1]) < 20_000, out  # KiB


# Cancelling.


def test_cancelling_the_task_ends_the_command(address: Address) -> None:
    async def main() -> None:
        async with aio.connect(**address) as sandbox, sandbox.create_session() as session:
            for start in (
                lambda: session.exec("sleep 600"),
                lambda: session.exec("echo x; sleep 600", on_stdout=lambda text: None),
                lambda: session.exec_stream("sleep 600").result(),
            ):
                task = asyncio.ensure_future(start())
                await auntil(lambda: running(session))
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                await auntil(lambda: idle(session))
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await session.run("sleep 600")
            assert await session.kill_all_processes() == 0

    run(main())


async def running(session: aio.Session) -> bool:
    return await state(session) == "RUNNING"


async def idle(session: aio.Session) -> bool:
    return await state(session) == "IDLE"


def test_a_task_that_is_cancelled_before_it_starts_sends_nothing(address: Address) -> None:
    async def main() -> None:
        async with aio.connect(**address) as sandbox, sandbox.create_session() as session:
            task = asyncio.create_task(session.exec("echo no"))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await session.info())["commands_run"] == 0

    run(main())


@pytest.mark.parametrize("transport", ["websocket", "unix"])
def test_cancelling_after_the_connection_was_lost_ends_the_command(gateway: Gateway, transport: str) -> None:
    """The request is sent again to the next gateway, and cancelled there by its new id."""

    async def main() -> None:
        async with aio.connect(**address_of(gateway, transport)) as sandbox:
            task = asyncio.create_task(sandbox.exec("sleep 600"))
            await auntil(lambda: running(sandbox))
            gateway.kill()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await auntil(lambda: idle(sandbox))

    run(main())


@pytest.mark.parametrize(
    "how",
    [
        "sandbox.exec('sleep 600')",
        "list(sandbox.exec_stream('sleep 600'))",
        "with sandbox.exec_stream('sleep 600'):\n        time.sleep(600)",
        "sandbox.run('sleep 600')",
    ],
)
def test_keyboard_interrupt_ends_the_command(address: Address, how: str) -> None:
    with trl_client.connect(**address, session=f"int-{time.monotonic_ns()}") as sandbox:
        sandbox.exec("true")
        text = f"\ntry:\n    {how}\nexcept KeyboardInterrupt:\n    print('interrupted')"
        child = script(text, {**address, "session": sandbox.name or ""})
        works: Callable[[], Any] = lambda: sandbox.info()["state"] == "RUNNING" or sandbox.info()["processes"]
        until(works)
        until(lambda: waits(child.pid))
        child.send_signal(signal.SIGINT)
        assert child.communicate(timeout=DEADLINE)[0] == "interrupted\n"
        assert child.returncode == 0
        until(lambda: not works())
        sandbox.destroy()


def waits(pid: int) -> bool:
    """The main thread of a program has not run for a while: it waits, and is not on its way from one wait to the next."""

    def switches() -> str:
        return pathlib.Path(f"/proc/{pid}/task/{pid}/status").read_text().partition("voluntary")[2]

    before = switches()
    time.sleep(0.3)
    return switches() == before


# Losing the connection.


def test_over_the_unix_socket_a_stream_outlives_its_gateway(gateway: Gateway) -> None:
    pytest.importorskip("websockets")
    with trl_client.connect(unix=gateway.unix) as sandbox:
        command = sandbox.exec_stream("for i in 1 2 3 4 5 6 7 8 9; do echo $i; sleep 0.1; done")
        lines = ""
        for event in command:
            if isinstance(event, Stdout):
                if "3" in event.data or "6" in event.data:
                    gateway.kill()
                lines += event.data
            assert not isinstance(event, Gap)
        assert lines == "".join(f"{i}\n" for i in range(1, 10))


@pytest.mark.parametrize("transport", ["websocket", "unix"])
def test_nothing_is_repeated_in_a_new_epoch(gateway: Gateway, transport: str, tmp_path: pathlib.Path) -> None:
    runs = tmp_path / "runs"

    async def main() -> None:
        async with aio.connect(**address_of(gateway, transport)) as sandbox:
            await sandbox.exec("cd /")
            doomed = [asyncio.create_task(sandbox.exec(f"echo run >>{runs}; sleep 600"))]
            await auntil(lambda: asyncio.to_thread(runs.exists))
            queued = await sandbox.exec_stream("echo queued")
            doomed.append(asyncio.create_task(queued.result()))
            gateway.lose()
            gateway.start()
            for task in doomed:
                # The ending gateway may still say that it does not know the end.
                with pytest.raises((trl_client.ConnectionLostError, trl_client.SessionTerminatedError, trl_client.OutcomeUnknownError)):
                    await task
            # The first use says that the old shell is gone; the next one gets another.
            with pytest.raises(trl_client.SessionTerminatedError) as lost:
                await sandbox.exec("pwd")
            assert lost.value.reason == "lost"
            assert (await sandbox.exec("pwd")).ok
        assert runs.read_text() == "run\n"

    run(main())


def test_patience_ends(gateway: Gateway) -> None:
    with trl_client.connect(unix=gateway.unix, patience=0.3) as sandbox:
        sandbox.exec("true")
        gateway.stop()
        with pytest.raises(trl_client.ConnectionLostError) as caught:
            sandbox.exec("true")
        assert caught.value.outcome == "not_sent"


def test_a_server_that_falls_silent_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("websockets")
    import websockets
    from trl_client import _link

    monkeypatch.setattr(_link, "PING_AFTER", 0.2)
    monkeypatch.setattr(_link, "GIVE_UP_AFTER", 1.0)
    dials = 0

    async def serve(socket: Any, path: str = "") -> None:
        """Answers the first ping of each connection, and then nothing."""
        nonlocal dials
        dials += 1
        await socket.recv()
        await socket.send('{"id": 1, "ok": true, "data": {"epoch": "e"}}')
        await socket.wait_closed()

    async def main() -> None:
        async with websockets.serve(serve, "127.0.0.1", 0, subprotocols=["trl.v1"]) as server:
            port = next(iter(server.sockets)).getsockname()[1]
            async with aio.connect(f"http://127.0.0.1:{port}", token="t") as sandbox:
                waiting = asyncio.create_task(sandbox.call("system.stats"))
                await auntil(lambda: asyncio.sleep(0, dials > 1))
                waiting.cancel()

    run(main())


@pytest.mark.parametrize(
    ("method", "params", "repeated"),
    [
        ("session.touch", {"session_id": "s-1"}, True),
        ("term.resize", {"term_id": "t-1", "cols": 80, "rows": 24}, True),
        ("exec.cancel", {"exec_id": "e-1"}, True),
        ("exec.cancel", {"exec_id": "e-1", "signal": "INT"}, False),
        ("exec.cancel", {"session_id": "s-1"}, False),
        ("process.kill", {"process_id": "p-1"}, True),
        ("exec.run", {"session_id": "s-1", "command": "true", "request_key": "k"}, True),
        ("exec.run", {"session_id": "s-1", "command": "true"}, False),
        ("exec.run", {"command": "true", "request_key": "k"}, False),
        ("session.create", {"request_key": "k"}, True),
        ("exec.input", {"exec_id": "e-1", "data": "x"}, False),
        ("later.method", {}, False),
    ],
)
def test_what_is_repeated_after_a_loss(method: str, params: dict[str, Any], repeated: bool) -> None:
    pytest.importorskip("websockets")
    import websockets

    received = []

    async def serve(socket: Any, path: str = "") -> None:
        """Answers pings. It drops the connection at the first other request, and answers the next one."""
        async for frame in socket:
            request = json.loads(frame)
            if request["method"] != "system.ping":
                received.append(request["params"])
                if len(received) == 1:
                    await socket.close(1001)
                    return
            await socket.send(json.dumps({"id": request["id"], "ok": True, "data": {"epoch": "e"}}))

    async def main() -> None:
        async with websockets.serve(serve, "127.0.0.1", 0, subprotocols=["trl.v1"]) as server:
            port = next(iter(server.sockets)).getsockname()[1]
            async with aio.connect(f"http://127.0.0.1:{port}", token="t") as sandbox:
                if repeated:
                    await sandbox.call(method, params)
                else:
                    with pytest.raises(trl_client.ConnectionLostError) as lost:
                        await sandbox.call(method, params)
                    assert lost.value.outcome == "unknown"
        assert received == [params] * (2 if repeated else 1)

    run(main())


# Processes and terminals.


@pytest.mark.parametrize("older", [False, True])
def test_the_own_session_and_its_terminal_come_in_one_request(older: bool) -> None:
    """A server that does not know `terminal` gets two requests."""
    pytest.importorskip("websockets")
    import websockets

    received: list[tuple[str, dict[str, Any]]] = []
    opened = {"term_id": "t-1", "stream_id": "st-1", "claim": 1}

    async def serve(socket: Any, path: str = "") -> None:
        async for frame in socket:
            request = json.loads(frame)
            method, params = request["method"], request["params"]
            answer: dict[str, Any] = {"ok": True, "data": {"epoch": "e", "session_id": "s-1", "name": "default"}}
            if method != "system.ping":
                received.append((method, params))
            if method == "term.open":
                answer["data"] = opened
            elif "terminal" in params and older:
                answer = {"ok": False, "error": {"code": "INVALID_PARAMS", "message": "unknown", "details": {"field": "terminal"}}}
            elif "terminal" in params:
                answer["data"]["terminal"] = opened
            await socket.send(json.dumps({"id": request["id"], **answer}))
            if answer.get("data", {}).get("terminal", answer.get("data")) == opened:
                data = {"stream_id": "st-1", "stream": "tty", "offset": 0, "data": "shown"}
                await socket.send(json.dumps({"event": "term.output", "data": data}))

    async def main() -> None:
        async with websockets.serve(serve, "127.0.0.1", 0, subprotocols=["trl.v1"]) as server:
            port = next(iter(server.sockets)).getsockname()[1]
            async with aio.connect(f"http://127.0.0.1:{port}", token="t") as sandbox:
                terminal = await sandbox.open_terminal()
                event = await anext(terminal.__aiter__())
                assert isinstance(event, trl_client.Output) and event.data == b"shown"
                assert terminal.id == "t-1" and sandbox.id == "s-1"

    run(main())
    assert [method for method, _ in received] == (["session.create"] * 2 + ["term.open"] if older else ["session.create"])
    first = received[0][1]
    assert first["name"] == "default" and first["if_exists"] == "return" and first["terminal"]["cols"] == 80
    assert all(params["request_key"] == first["request_key"] for method, params in received if method == "session.create")


def test_two_readers_of_one_log(address: Address) -> None:
    async def main() -> None:
        async with aio.connect(**address) as sandbox:
            process = await sandbox.start_process("echo one; read -r x; echo two; exit 3", stdin=PIPE)
            logs = process.stream_logs()
            assert (await anext(logs)) == Stdout("one\n", 0, b"one\n")
            same = await sandbox.get_process(process.id)
            assert same is not None
            waiting = asyncio.create_task(same.wait_for_log("^two$", timeout=DEADLINE))
            await process.write("\n")
            assert (await waiting).line == "two"
            assert [type(e) for e in [e async for e in logs]] == [Stdout, Exited]
            assert (await process.wait()).exit_code == 3
            assert process.status == "failed" and process.ended_at is not None
            assert process.ended_at >= process.started_at
            assert (await process.logs(since=4)).stdout == "two\n"

    run(main())


def test_processes_of_a_session(sandbox: trl_client.Sandbox) -> None:
    with sandbox.create_session() as session:
        process = session.start_process(["sh", "-c", "echo $0 $1", "it's", "$HOME"], name="mine")
        assert process.wait(DEADLINE).exit_code == 0
        assert process.refresh().status == "completed"
        assert [p.name for p in session.list_processes()] == ["mine"]
        found = session.get_process(process.id)
        assert found is not None and found.logs().stdout == "it's $HOME\n"
        assert session.get_process("p-none") is None
        sleeper = session.start_process("sleep 600")
        with pytest.raises(TimeoutError):
            sleeper.wait(timeout=0.1)
        session.kill_process(sleeper.id)
        assert sleeper.refresh().status == "killed" and sleeper.signal == "TERM"


def free_port() -> int:
    """A port that is free and that no connection gets by chance: Linux assigns those from 32768 on, and Go's tests those from 12000 on."""
    import random
    import socket

    while True:
        port = random.randrange(11000, 12000)
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def test_two_clients_of_one_terminal(address: Address) -> None:
    async def main() -> None:
        async with aio.connect(**address) as sandbox, aio.connect(**address) as other:
            async with sandbox.create_session() as session:
                terminal = await session.open_terminal(cols=80, rows=24, cmd="stty -echo; echo up; cat")
                await read_until(terminal, b"up")
                guest = await (await other.get_session(session.id)).attach_terminal(terminal.id, mode="view")
                assert guest.mode == "view"
                await read_until(guest, b"up")  # the screen
                with pytest.raises(trl_client.ForbiddenError):
                    await guest.write("no\n")
                await guest.take_over()
                await guest.write("mine\n")
                await read_until(guest, b"mine")
                assert guest.mode == "control"
                await read_until(terminal, b"mine")
                assert terminal.mode == "view"
                assert "mine" in "\n".join((await terminal.snapshot())["lines"])
                await terminal.detach()
                await guest.close()
                last = [e async for e in guest][-1]
                assert isinstance(last, Exited)

    run(main())


async def read_until(terminal: aio.Terminal, text: bytes) -> None:
    seen = b""
    async for event in terminal:
        if isinstance(event, trl_client.Output):
            seen += event.data
        if text in seen:
            return


# Where the gateway is.


def test_the_gateway_of_the_state_directory_is_found(shared_gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("websockets")
    for name in ("TRL_URL", "TRL_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TRL_STATE_DIR", shared_gateway.state)
    with trl_client.connect() as sandbox:
        assert sandbox.exec("true").ok
    # The token of a state directory goes to its own gateway only.
    from trl_client._address import resolve

    assert resolve("http://192.0.2.1:1", None, None).token is None
    assert shared_gateway.token not in repr(resolve(None, None, None))
    monkeypatch.setenv("TRL_URL", "http://192.0.2.1:1")
    monkeypatch.setenv("TRL_TOKEN", "mine")
    found = resolve(None, None, None)
    assert (found.url, found.token) == ("http://192.0.2.1:1", "mine")
    assert resolve(f"unix://{shared_gateway.unix}", None, None).unix == shared_gateway.unix


def test_a_gateway_that_is_not_there_is_reported_at_once(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConnectionError, match="cannot connect"):
        trl_client.connect(unix=tmp_path / "none")
    monkeypatch.setenv("TRL_STATE_DIR", str(tmp_path))
    monkeypatch.delenv("TRL_URL", raising=False)
    with pytest.raises(ValueError, match="trl serve"):
        trl_client.connect()
    with pytest.raises(ValueError, match="http://HOST:PORT"):
        trl_client.connect("ftp://127.0.0.1", token="x")


def test_what_is_no_gateway_is_said(shared_gateway: Gateway) -> None:
    pytest.importorskip("websockets")
    with pytest.raises(trl_client.TrlError) as caught:
        trl_client.connect(shared_gateway.url + "/no/such/path", token=shared_gateway.token)
    assert caught.value.code == "NOT_SUPPORTED"
    with pytest.raises(trl_client.AuthError):
        trl_client.connect(shared_gateway.url, token="wrong")


# Processes of ours.


def test_a_fork_is_refused(address: Address) -> None:
    text = """
sandbox.exec("true")
if os.fork() == 0:
    try:
        sandbox.exec("true")
    except RuntimeError as e:
        print(e, flush=True)
    sys.exit(0)
os.wait()
print(sandbox.exec("echo the parent goes on").stdout, end="")
"""
    out = script(text, address).communicate(timeout=DEADLINE)[0]
    assert "forked" in out and out.endswith("the parent goes on\n")


def test_the_end_of_the_program_closes_the_connection_and_leaves_the_work(address: Address) -> None:
    with trl_client.connect(**address) as sandbox, sandbox.create_session() as session:
        text = f"s = sandbox.get_session({session.id!r})\np = s.start_process('sleep 600')\ns.exec_stream('sleep 600')\n"
        child = script(text, address, stderr=subprocess.PIPE)
        out, err = child.communicate(timeout=DEADLINE)
        assert (out, err, child.returncode) == ("", "", 0)
        assert [p.status for p in session.list_processes()] == ["running"]
        assert session.info()["state"] == "RUNNING"


def test_a_closed_client_says_so(address: Address) -> None:
    sandbox = trl_client.connect(**address)
    session = sandbox.create_session()
    sandbox.close()
    sandbox.close()
    for use in (sandbox.exec, session.exec):
        with pytest.raises(trl_client.ClosedError):
            use("true")
    threads = [t.name for t in threading.enumerate()]
    assert threads.count("trl_client") == 0, threads


def test_many_threads_share_a_client(sandbox: trl_client.Sandbox) -> None:
    results: list[str] = []

    def work(i: int) -> None:
        with sandbox.create_session() as session:
            results.append(session.exec(f"X={i}; sleep 0.1; echo $X").stdout)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(DEADLINE)
    assert sorted(results) == [f"{i}\n" for i in range(8)]


def test_the_blocking_api_is_refused_in_the_loop(sandbox: trl_client.Sandbox) -> None:
    async def misuse() -> None:
        sandbox.exec("true")

    with pytest.raises(RuntimeError, match="callback"):
        sandbox._runner.run(misuse)
