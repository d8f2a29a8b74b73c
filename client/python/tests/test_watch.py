"""Session.watch, and keys of requests that programs choose themselves."""

from __future__ import annotations

import asyncio
import itertools
import threading
from typing import Any

import pytest
import trl_client
from conftest import DEADLINE, Gateway, address_of, auntil
from trl_client import Completed, Missed, SessionEvent, SessionTerminatedError, Stdout, _link, _transport, aio

Address = dict[str, str]


def run(work: Any) -> Any:
    return asyncio.run(asyncio.wait_for(work, 3 * DEADLINE))


def names(events: list[Any]) -> list[str]:
    return [e.type if isinstance(e, SessionEvent) else "missed" for e in events]


def test_everything_in_a_session_is_heard_of(address: Address) -> None:
    with trl_client.connect(**address) as sandbox, sandbox.create_session() as session:
        with session.watch() as watch:  # it has begun: what follows is heard of
            session.exec("echo unheard; (exit 3)")
            list(session.exec_stream("echo streamed"))  # its exit is heard of twice: on the stream, and here
            process = session.start_process("true", name="mine")
            process.wait(DEADLINE)
            session.open_terminal(cmd="true")
            seen: list[Any] = []
            ends = {"exec.exit", "process.exit", "term.exit"}
            for event in watch:
                seen.append(event)
                if ends <= set(names(seen)) and names(seen).count("exec.exit") == 2:
                    break
        heard = names(seen)
        assert heard.count("exec.started") == 2 and "process.started" in heard and "term.opened" in heard
        first = next(e.data for e in seen if e.type == "exec.exit")
        assert first["exit_code"] == 3
        assert next(e.data for e in seen if e.type == "process.started")["name"] == "mine"


def test_a_watch_ends_with_its_session(address: Address) -> None:
    async def main() -> None:
        async with aio.connect(**address) as sandbox:
            session = await sandbox.create_session()
            watch = await session.watch()
            await session.destroy()
            last = [event async for event in watch][-1]
            assert last.data["to"] == "TERMINATED" and last.data["reason"] == "client"
            with pytest.raises(RuntimeError, match="once"):
                aiter(watch)
            with pytest.raises(SessionTerminatedError):
                await session.watch()
            await auntil(no_siblings(sandbox))

    run(main())


def test_a_watch_ends_although_its_session_ended_while_the_connection_was_away(address: Address) -> None:
    async def main() -> None:
        async with aio.connect(**address) as sandbox:
            session = await sandbox.create_session()
            watch = await session.watch()
            assert watch._client is not None
            link = watch._client._link
            link._die(_transport.Lost("cut by the test"))
            await link._transport.close()
            await session.destroy()
            last = [event async for event in watch][-1]
            assert isinstance(last, Missed) and last.info["state"] == "TERMINATED"

    run(main())


def no_siblings(sandbox: aio.Sandbox) -> Any:
    async def none() -> bool:
        return not sandbox._client._siblings and len(sandbox._client._tasks) == 0

    return none


def test_a_watch_goes_on_after_its_gateway_was_killed(gateway: Gateway) -> None:
    async def main() -> None:
        async with aio.connect(**address_of(gateway, "unix")) as sandbox, sandbox.create_session() as session:
            events = aiter(session.watch())
            first = asyncio.ensure_future(anext(events))

            async def heard() -> bool:
                await session.exec("true")
                return first.done()

            await auntil(heard)
            gateway.kill()
            seen = [await first]
            while "missed" not in names(seen):
                seen.append(await anext(events))
            assert seen[-1].info["session_id"] == session.id
            await session.exec("exit_code=7; (exit 7)")
            async for event in events:
                if isinstance(event, SessionEvent) and event.type == "exec.exit" and event.data["exit_code"] == 7:
                    break

    run(main())


def test_leaving_the_loop_ends_the_watch(address: Address) -> None:
    async def main() -> None:
        async with aio.connect(**address) as sandbox, sandbox.create_session() as session:
            for _ in range(3):
                async with session.watch() as watch:
                    await session.exec("true")
                    async for _event in watch:
                        break
            watch = await session.watch()
            waiting = asyncio.ensure_future(anext(aiter(watch)))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await auntil(no_siblings(sandbox))

    run(main())


def test_events_that_nobody_reads_are_bounded(address: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_link, "_MANY_EVENTS", 10)

    async def main() -> None:
        async with aio.connect(**address) as sandbox, sandbox.create_session() as session:
            async with session.watch() as watch:
                while not watch._feed.overflowed:
                    await session.exec("true")
                assert len(watch._feed._events) == 10
                seen: list[Any] = []
                async for event in watch:
                    seen.append(event)
                    if isinstance(event, Missed):
                        break
                assert len(seen) == 11

    run(main())


def test_a_closed_client_ends_a_watch(address: Address) -> None:
    sandbox = trl_client.connect(**address)
    session = sandbox.create_session()
    watch = session.watch()
    caught: list[BaseException] = []

    def read() -> None:
        try:
            for _ in watch:
                pass
        except BaseException as e:
            caught.append(e)

    reader = threading.Thread(target=read)
    reader.start()
    sandbox.close()
    reader.join(DEADLINE)
    assert [type(e) for e in caught] == [trl_client.ClosedError]
    with trl_client.connect(**address) as again:
        again.delete_session(session.id)


def test_the_same_key_runs_a_command_once(address: Address, tmp_path: pathlib.Path) -> None:
    """A program that died after it had sent a command sends it again, on another connection, and has its output from the beginning."""
    with trl_client.connect(**address) as sandbox, sandbox.create_session() as session:
        key, go = "step-1", tmp_path / "go"
        text = f"N=$((N+1)); echo run $N; until [ -e {go} ]; do sleep 0.05; done; echo done"
        command = session.exec_stream(text, request_key=key)
        assert next(iter(command)) == Stdout("run 1\n", 0, b"run 1\n")
        command.detach()
        go.touch()
        with trl_client.connect(**address) as other:
            mine = other.get_session(session.id)
            again = mine.exec_stream(text, request_key=key).result()
            assert again.stdout == "run 1\ndone\n"
            once = mine.exec("N=$((N+1)); echo $N", request_key="step-2")
            twice = session.exec("N=$((N+1)); echo $N", request_key="step-2")
            assert (once.stdout, twice.stdout, once.exec_id) == ("2\n", "2\n", twice.exec_id)
            a, b = (s.start_process("sleep 60", request_key="step-3") for s in (mine, session))
            assert a.id == b.id
            with pytest.raises(trl_client.InvalidParamsError):
                session.exec("another command", request_key="step-2")


def test_small_pieces_take_no_more_memory_than_the_window() -> None:
    """A program that writes byte by byte makes one event each; those that wait for a reader are put together."""
    feed = _link.Feed()
    text = bytes(itertools.islice(itertools.cycle(b"0123456789"), 1 << 18))
    for i in range(len(text)):
        feed.put(("output", _link.Chunk(i, "stdout", text[i : i + 1])))
    feed.put(("output", _link.Chunk(len(text), "stderr", b"!")))
    feed.put(("exec.exit", {}))
    assert len(feed._events) < 64 + len(text) // _link._PIECE + 5
    got, at = b"", 0
    for name, chunk in feed._events:
        if name == "output" and chunk.stream == "stdout":
            assert chunk.offset == at
            got, at = got + chunk.data, at + len(chunk.data)
    assert got == text
    assert [name for name, _ in list(feed._events)[-2:]] == ["output", "exec.exit"]


def test_a_completed_stream_leaves_nothing_behind(address: Address) -> None:
    async def main() -> None:
        async with aio.connect(**address) as sandbox, sandbox.create_session() as session:
            for i in range(5):
                events = [e async for e in session.exec_stream(f"echo {i}")]
                assert isinstance(events[-1], Completed)
                process = await session.start_process(f"echo {i}; sleep 60")
                async for event in process.stream_logs():
                    assert event == Stdout(f"{i}\n", 0, f"{i}\n".encode())
                    break
                await process.kill()
                terminal = await session.open_terminal(cmd="true")
                async for _ in terminal:
                    pass
            client, link = sandbox._client, sandbox._client._link

            async def clean() -> bool:
                kept = (link._streams, link._numbers, link._terminals, link._calls, link._detaching)
                return not any(kept) and not client._tasks and not client.followers and not client._siblings

            await auntil(clean)

    run(main())


def test_a_second_view_of_a_terminal_lives_on_when_the_first_leaves(address: Address) -> None:
    async def main() -> None:
        async with aio.connect(**address) as sandbox, sandbox.create_session() as session:
            first = await session.open_terminal(cmd="stty -echo; cat")
            second = await session.attach_terminal(first.id)
            with pytest.raises(trl_client.ClosedError, match="another reader"):
                async for _ in first:
                    pass
            await first.detach()
            await second.write("still here\n")
            seen = b""
            async for event in second:
                if isinstance(event, trl_client.Output):
                    seen += event.data
                if b"still here" in seen:
                    break
            await second.close()

    run(main())
