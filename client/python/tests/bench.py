"""Measures a command by the client, beside a bare WebSocket: `make bench-clients` starts it and says what to connect to.

The argument is the API: `async` or `sync`. The bare WebSocket is asyncio's in both."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import pathlib
import secrets
import sys
import time
from typing import Any, Awaitable, Callable

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import trl_client  # noqa: E402

try:
    import websockets
except ImportError:
    sys.exit(77)  # the program that started this skips it

URL, ECHO = os.environ["TRL_URL"], os.environ["TRL_ECHO"]
ROUNDS, BLOCK = int(os.environ["TRL_ROUNDS"]), int(os.environ["TRL_BLOCK"])
KEY = secrets.token_hex(8)  # of the bare requests: the client sends a key, too, which costs the server something

times: dict[str, list[float]] = {"echo": [], "bare": [], "client": []}
cpu: dict[str, list[float]] = {"echo": [], "bare": [], "client": []}  # of this process, of each block


async def dial(url: str) -> Any:
    options: dict[str, Any] = {"max_size": None, "compression": None, "ping_interval": None}
    return await websockets.connect(url.replace("http://", "ws://"), **options)  # type: ignore[attr-defined]


async def measure(what: str, act: Callable[[], Awaitable[Any]]) -> None:
    before = time.process_time()
    for _ in range(BLOCK):
        began = time.perf_counter()
        await act()
        times[what].append((time.perf_counter() - began) * 1e6)
    cpu[what].append((time.process_time() - before) / BLOCK * 1e6)


async def main(blocking: bool) -> None:
    echo, bare = await dial(ECHO), await dial(URL + "/v1/ws")

    keys = itertools.count()

    async def ask(socket: Any) -> None:
        params = {"session_id": session.id, "command": "true", "request_key": f"{KEY}-{next(keys)}"}
        await socket.send(json.dumps({"id": 1, "method": "exec.run", "params": params}))
        json.loads(await socket.recv())

    async with trl_client.aio.connect(URL) as sandbox, sandbox.create_session(shell="/bin/bash") as session:
        if blocking:
            threads = await asyncio.to_thread(trl_client.connect, URL)
            same = await asyncio.to_thread(threads.get_session, session.id)
        for _ in range(ROUNDS):
            await measure("echo", lambda: ask(echo))
            await measure("bare", lambda: ask(bare))
            if blocking:
                before = time.process_time()
                for _ in range(BLOCK):
                    began = time.perf_counter()
                    same.exec("true")
                    times["client"].append((time.perf_counter() - began) * 1e6)
                cpu["client"].append((time.process_time() - before) / BLOCK * 1e6)
            else:
                await measure("client", lambda: session.exec("true"))
        if blocking:
            await asyncio.to_thread(threads.close)
    await echo.close()
    await bare.close()


asyncio.run(main(sys.argv[1] == "sync"))
print(json.dumps({**times, "cpu": cpu}))
