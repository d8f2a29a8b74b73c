"""An event loop in a thread, for the blocking API."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import AsyncGenerator, Awaitable, Callable, Iterator, TypeVar

from .errors import ClosedError

R = TypeVar("R")


class Runner:
    """Runs asyncio code in a daemon thread for callers that block."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="trl_client", daemon=True)
        self._thread.start()

    @property
    def is_ours(self) -> bool:
        """Whether this is the process that made it, and not a fork of it."""
        return os.getpid() == self._pid

    def run(self, work: Callable[[], Awaitable[R]]) -> R:
        """The result of what `work`, called in the loop, returns. An exception in the waiting thread, such as
        KeyboardInterrupt, cancels it and waits for its end: a command that runs is ended, too."""
        if not self.is_ours:
            raise RuntimeError("this process was forked after connect(): connect again in the child")
        if threading.current_thread() is self._thread:
            raise RuntimeError("the blocking API cannot be used in a callback of trl_client.aio")
        if self._loop.is_closed():
            raise ClosedError("the client is closed")
        done = threading.Event()
        tasks: list[asyncio.Task[R]] = []

        async def main() -> R:
            return await work()

        def start() -> None:
            tasks.append(self._loop.create_task(main()))
            tasks[0].add_done_callback(lambda _: done.set())

        self._loop.call_soon_threadsafe(start)
        try:
            done.wait()
        except BaseException:
            self._loop.call_soon_threadsafe(lambda: tasks[0].cancel())
            done.wait()
            raise
        return tasks[0].result()

    def iterate(self, events: AsyncGenerator[R, None]) -> Iterator[R]:
        """The events of an asynchronous generator, which is closed when this one is."""
        try:
            while (event := self.run(lambda: anext(events, None))) is not None:
                yield event
        finally:
            self.post(events.aclose)

    def post(self, work: Callable[[], Awaitable[None]]) -> None:
        """Starts `work` without waiting for it. The garbage collector may call this in any thread."""
        if self.is_ours and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(lambda: asyncio.ensure_future(work(), loop=self._loop))

    def stop(self) -> None:
        if not self.is_ours or not self._thread.is_alive():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
