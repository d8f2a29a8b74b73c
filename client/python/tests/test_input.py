"""Input is given once, whatever happens to the connection meanwhile."""

from __future__ import annotations

import asyncio
import hashlib
import json
import pathlib
import tempfile
from contextlib import asynccontextmanager
from typing import Any, AsyncIterator, Awaitable, Callable, Mapping

import pytest
import trl_client
from conftest import DEADLINE, Gateway, address_of, auntil
from trl_client import PIPE, Output, aio
from trl_client._input import PIECE
from trl_client._link import Link

DATA = b"".join(b"%d\n" % n for n in range(1_500_000))[: 10 << 20]
PIECES = len(DATA) // PIECE
SUM = hashlib.sha256(DATA).hexdigest()


def run(work: Any) -> Any:
    return asyncio.run(asyncio.wait_for(work, 3 * DEADLINE))


class Cutter:
    """A proxy in front of a gateway's Unix socket. `plan` says what happens to an input request, by its number:

    pass:   nothing.
    before: the connection is cut, and the gateway does not get the request.
    after:  the connection is cut in place of the answer.
    part:   like after, and the gateway gets only the first three bytes.
    mute:   the answer does not come.
    busy:   the gateway has no room for the request and does not get it."""

    def __init__(self, gateway: Gateway, path: str, older: bool) -> None:
        self.gateway = gateway
        self.unix = path
        self.older = older  # the gateway seems to know no offsets
        self.plan: Callable[[int], str] = lambda n: "pass"
        self.meanwhile: Callable[[], Awaitable[Any]] | None = None  # done before a cut
        self.requests: list[dict[str, Any]] = []
        self.refusals: list[str] = []
        self.gone = False  # new connections are cut at once

    @property
    def offsets(self) -> list[int | None]:
        return [r.get("offset") for r in self.requests]

    def cut_at(self, plan: Mapping[int, str]) -> None:
        self.plan = lambda n: plan.get(n, "pass")

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.gone:
            writer.close()
            return
        answers, requests = await asyncio.open_unix_connection(self.gateway.unix, limit=1 << 26)
        unanswered: dict[int, str] = {}  # requests whose answer does not come, by their id
        forwarding = [
            asyncio.create_task(self._requests(reader, requests, unanswered, writer)),
            asyncio.create_task(self._answers(answers, writer, unanswered)),
        ]
        await asyncio.wait(forwarding, return_when=asyncio.FIRST_COMPLETED)
        if self.meanwhile and not reader.at_eof():
            await self.meanwhile()
        for task in forwarding:
            task.cancel()
        requests.close()
        writer.close()

    async def _requests(
        self, reader: asyncio.StreamReader, gateway: asyncio.StreamWriter, unanswered: dict[int, str], client: asyncio.StreamWriter
    ) -> None:
        while line := await reader.readline():
            request = json.loads(line)
            params = request["params"]
            if request["method"].endswith(".input"):
                how = self.plan(len(self.requests))
                self.requests.append({**params})
                error: dict[str, Any] = {}
                if self.older and "offset" in params:
                    error = {"code": "INVALID_PARAMS", "message": "unknown field", "details": {"field": "offset"}}
                if how == "busy":
                    error = {"code": "RATE_LIMITED", "message": "too many requests"}
                if error:
                    client.write(json.dumps({"id": request["id"], "ok": False, "error": error}).encode() + b"\n")
                    continue
                if how == "before":
                    return
                if how == "part":
                    params["data"] = params["data"][:3]
                    params.pop("eof", None)
                if how != "pass":
                    unanswered[request["id"]] = how
            gateway.write(json.dumps(request).encode() + b"\n")

    async def _answers(self, gateway: asyncio.StreamReader, client: asyncio.StreamWriter, unanswered: Mapping[int, str]) -> None:
        while line := await gateway.readline():
            frame = json.loads(line)
            how = unanswered.get(frame.get("id"), "pass")
            if how == "mute":
                continue
            if how != "pass":
                return
            if frame.get("ok") is False:
                self.refusals.append(frame["error"]["code"])
            if self.older and "input_offset" in frame.get("data", {}):
                line = json.dumps({**frame, "data": {}}).encode() + b"\n"
            client.write(line)


@asynccontextmanager
async def cutter(gateway: Gateway, older: bool = False) -> AsyncIterator[Cutter]:
    with tempfile.TemporaryDirectory(prefix="trl-py-") as directory:
        proxy = Cutter(gateway, directory + "/socket", older)
        server = await asyncio.start_unix_server(proxy.serve, proxy.unix, limit=1 << 26)
        try:
            yield proxy
        finally:
            server.close()


# The ways in which a program gives input. Each returns output with the SHA-256 of what the command, process or terminal got.


async def by_exec(session: aio.Session) -> str:
    return (await session.exec("sha256sum", stdin=DATA)).stdout


async def by_command(session: aio.Session) -> str:
    command = session.exec_stream("sha256sum", stdin=PIPE)
    await command.write(DATA)
    await command.close_stdin()
    return (await command.result()).stdout


async def by_run(session: aio.Session) -> str:
    return (await session.run("sha256sum", input=DATA)).stdout


async def by_terminal(session: aio.Session) -> str:
    terminal = await session.open_terminal(cmd=f"stty raw -echo; echo ready; head -c {len(DATA)} | sha256sum")
    shown, writing = b"", None
    async for event in terminal:
        if isinstance(event, Output):
            shown += event.data
        if b"ready" in shown and writing is None:
            writing = asyncio.create_task(terminal.write(DATA))
    assert writing is not None
    await writing
    return shown.decode()


WAYS = [by_exec, by_command, by_run, by_terminal]
Way = Callable[[aio.Session], Awaitable[str]]


@pytest.mark.parametrize("transport", ["websocket", "unix"])
@pytest.mark.parametrize("way", WAYS)
def test_large_input_survives_gateways_that_are_killed(
    gateway: Gateway, transport: str, way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = Link.call
    pieces = 0
    kills: list[asyncio.Task[None]] = []

    async def counted(self: Link, method: str, params: Any, **more: Any) -> Any:
        nonlocal pieces
        if method.endswith(".input"):
            pieces += 1
            if pieces in (PIECES // 4, PIECES // 2, PIECES * 3 // 4):
                kills.append(asyncio.create_task(asyncio.to_thread(gateway.kill)))
        return await call(self, method, params, **more)

    async def main() -> None:
        async with aio.connect(**address_of(gateway, transport)) as sandbox, sandbox.create_session() as session:
            assert SUM in await way(session)
            await asyncio.gather(*kills)
        assert len(kills) == 3

    monkeypatch.setattr(Link, "call", counted)
    run(main())


@pytest.mark.parametrize("way", WAYS)
def test_large_input_survives_connections_that_are_cut(shared_gateway: Gateway, way: Way) -> None:
    async def main() -> None:
        async with cutter(shared_gateway) as proxy:
            proxy.cut_at({3: "before", 11: "after", 19: "part", 60: "after", 61: "before", 70: "after", 160: "after"})
            async with aio.connect(unix=proxy.unix) as sandbox, sandbox.create_session() as session:
                assert SUM in await way(session)
            assert "OFFSET_MISMATCH" in proxy.refusals

    run(main())


def test_what_was_lost_is_sent_again_where_it_was(shared_gateway: Gateway) -> None:
    async def main() -> None:
        async with cutter(shared_gateway) as proxy, aio.connect(unix=proxy.unix) as sandbox:
            proxy.cut_at({1: "before", 3: "after", 5: "part", 8: "after"})
            process = await sandbox.start_process("cat", stdin=PIPE)
            for word in ("one ", "two ", "three ", "four "):
                await process.write(word)
            await process.close_stdin()
            assert (await process.wait(DEADLINE)).exit_code == 0
            assert (await process.logs()).stdout == "one two three four "
            assert [(r["offset"], r["data"]) for r in proxy.requests] == [
                (0, "one "),
                *[(4, "two ")] * 2,  # it was not taken
                *[(8, "three ")] * 2,  # it was taken
                *[(14, "four ")] * 2,  # a part was taken
                (17, "r "),
                *[(19, "")] * 2,  # the end
            ]

    run(main())


def test_the_last_piece_and_the_end_are_lost(shared_gateway: Gateway, tmp_path: pathlib.Path) -> None:
    async def main() -> None:
        async with cutter(shared_gateway) as proxy, aio.connect(unix=proxy.unix) as sandbox:
            proxy.cut_at({4: "after", 6: "after"})
            data = DATA[: 5 * PIECE]
            go = tmp_path / "go"
            running = asyncio.create_task(sandbox.exec(f"sha256sum; until [ -e {go} ]; do sleep 0.05; done", stdin=data))
            await auntil(lambda: asyncio.sleep(0, len(proxy.requests) == 8))
            go.touch()
            assert (await running).stdout.split()[0] == hashlib.sha256(data).hexdigest()
            sent = [(r["offset"] // PIECE, bool(r["data"]), r.get("eof")) for r in proxy.requests[3:]]
            assert sent == [(3, True, None), (4, True, True), (4, True, True), (5, False, True), (5, False, True)]

    run(main())


def test_two_writers_mix_and_lose_nothing(shared_gateway: Gateway) -> None:
    """Two tasks over a connection that is cut now and then, and another client, write to one process."""

    async def write(name: str, process: aio.Process) -> None:
        for n in range(100):
            await process.write(f"{name} {n}\n")

    async def main() -> None:
        async with cutter(shared_gateway) as proxy:
            async with aio.connect(unix=proxy.unix) as sandbox, aio.connect(unix=shared_gateway.unix) as other:
                process = await sandbox.start_process("cat", stdin=PIPE)
                proxy.plan = lambda n: {5: "before", 25: "after"}.get(n % 50, "pass")
                await asyncio.gather(write("a", process), write("b", process))
                proxy.plan = lambda n: "pass"
                session = await other.get_session(sandbox.id)
                same = await session.get_process(process.id)
                assert same is not None
                await asyncio.gather(write("c", process), write("d", same))
                await process.close_stdin()
                await process.wait(DEADLINE)
                lines = (await process.logs()).stdout.split("\n")
                assert len(lines) == 401
                for name in "abcd":
                    assert [line for line in lines if line.startswith(name)] == [f"{name} {n}" for n in range(100)]

    run(main())


def test_the_outcome_is_unknown_if_somebody_else_has_written_meanwhile(shared_gateway: Gateway) -> None:
    async def main() -> None:
        async with cutter(shared_gateway) as proxy:
            async with aio.connect(unix=proxy.unix) as sandbox, aio.connect(unix=shared_gateway.unix) as other:
                process = await sandbox.start_process("cat", stdin=PIPE)
                params = {"process_id": process.id, "data": "somebody else's "}
                proxy.meanwhile = lambda: other.call("process.input", params)
                proxy.cut_at({0: "before"})
                with pytest.raises(trl_client.ConnectionLostError) as lost:
                    await process.write("mine ")
                assert lost.value.outcome == "unknown" and lost.value.method == "process.input"
                await process.write("again ")
                await process.close_stdin()
                await process.wait(DEADLINE)
                assert (await process.logs()).stdout == "somebody else's again "

    run(main())


def test_the_outcome_is_unknown_without_a_connection(shared_gateway: Gateway) -> None:
    async def main() -> None:
        async with cutter(shared_gateway) as proxy, aio.connect(unix=proxy.unix, patience=3) as sandbox:
            process = await sandbox.start_process("cat", stdin=PIPE)
            proxy.cut_at({0: "after"})
            proxy.gone = True
            with pytest.raises(trl_client.ConnectionLostError) as lost:
                await process.write("one ")
            assert lost.value.outcome == "unknown"
            with pytest.raises(trl_client.ConnectionLostError) as lost:
                await process.write("two ")
            assert lost.value.outcome == "not_sent"
            proxy.gone = False
            await process.write("three ")
            await process.close_stdin()
            await process.wait(DEADLINE)
            assert (await process.logs()).stdout == "one three "
            assert proxy.offsets == [0, None, 10]

    run(main())


def test_input_that_has_no_room_after_a_loss_is_given_once(shared_gateway: Gateway) -> None:
    async def main() -> None:
        async with cutter(shared_gateway) as proxy, aio.connect(unix=proxy.unix) as sandbox:
            proxy.cut_at({0: "busy", 1: "after", 2: "busy", 3: "busy", 5: "part", 7: "busy"})
            process = await sandbox.start_process("cat", stdin=PIPE)
            await process.write("one ")
            await process.write("two ")
            await process.close_stdin()
            await process.wait(DEADLINE)
            assert (await process.logs()).stdout == "one two "
            assert proxy.offsets == [0] * 5 + [4, 4, 7, 7, 8]

    run(main())


def test_the_end_of_an_input_does_not_wait_for_room(shared_gateway: Gateway) -> None:
    async def main() -> None:
        async with cutter(shared_gateway) as proxy, aio.connect(unix=proxy.unix) as sandbox:
            command = sandbox.exec_stream("sleep 600", stdin=PIPE)
            writing = asyncio.create_task(command.write(DATA))
            await auntil(lambda: asyncio.sleep(0, "LIMIT_EXCEEDED" in proxy.refusals))
            await command.close_stdin()
            with pytest.raises(trl_client.TrlError) as closed:
                await writing
            assert closed.value.code == "STDIN_CLOSED"
            await command.kill()

    run(main())


def test_where_the_input_of_others_ends_is_known_after_the_first_piece(shared_gateway: Gateway) -> None:
    async def main() -> None:
        async with cutter(shared_gateway) as proxy:
            async with aio.connect(unix=shared_gateway.unix) as sandbox, aio.connect(unix=proxy.unix) as other:
                session = await sandbox.create_session()
                same = await other.get_session(session.id)
                process = await session.start_process("cat", stdin=PIPE)
                await process.write("one ")
                found = await same.get_process(process.id)
                assert found is not None
                proxy.cut_at({0: "after", 2: "after"})
                with pytest.raises(trl_client.ConnectionLostError) as lost:
                    await found.write("two ")
                assert lost.value.outcome == "unknown" and proxy.offsets == [None]
                for word in ("three ", "four "):
                    await found.write(word)
                assert proxy.offsets == [None, None, 14, 14] or proxy.offsets == [None, None, 8, 8], proxy.offsets
                await found.close_stdin()
                await process.wait(DEADLINE)
                assert (await process.logs()).stdout == "one two three four "

                proxy.requests.clear()
                proxy.cut_at({1: "after"})
                terminal = await session.open_terminal(cmd="stty raw -echo; exec cat")
                joined = await same.attach_terminal(terminal.id)
                await joined.write("ab")
                await joined.write("cd")
                assert proxy.offsets == [None, 2, 2]
                await session.destroy(force=True)

    run(main())


def test_a_server_that_knows_no_offsets(shared_gateway: Gateway) -> None:
    async def main() -> None:
        async with cutter(shared_gateway, older=True) as proxy, aio.connect(unix=proxy.unix) as sandbox:
            process = await sandbox.start_process("cat", stdin=PIPE)
            await process.write("one ")
            await process.write("two ")
            proxy.cut_at({3: "after"})
            with pytest.raises(trl_client.ConnectionLostError) as lost:
                await process.write("three ")
            assert lost.value.outcome == "unknown"
            await process.close_stdin()
            await process.wait(DEADLINE)
            assert (await process.logs()).stdout == "one two three "
            assert proxy.offsets == [0, None, None, None, None]

    run(main())


def test_a_writer_that_is_cancelled_leaves_the_end_unknown(shared_gateway: Gateway) -> None:
    async def main() -> None:
        async with cutter(shared_gateway) as proxy, aio.connect(unix=proxy.unix) as sandbox:
            process = await sandbox.start_process("cat", stdin=PIPE)
            proxy.cut_at({0: "mute"})
            first, second = (asyncio.create_task(process.write(word)) for word in ("one ", "two "))
            await auntil(lambda: asyncio.sleep(0, bool(proxy.requests)))
            second.cancel()  # it waits for its turn
            first.cancel()
            await asyncio.wait({first, second})
            assert first.cancelled() and second.cancelled()
            await process.write("three ")
            await process.write("four ")
            await process.close_stdin()
            await process.wait(DEADLINE)
            assert (await process.logs()).stdout == "one three four "
            assert proxy.offsets == [0, None, 10, 15]

    run(main())
