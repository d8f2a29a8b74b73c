"""An event loop in a thread, for the blocking API."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import warnings
import weakref
from typing import Any, AsyncGenerator, Awaitable, Callable, Coroutine, Iterator, TypeVar

from .errors import ClosedError

R = TypeVar("R")

Goodbye = Callable[[], Coroutine[Any, Any, None]]

_END_TIMEOUT = 5.0  # seconds for the end of what still runs in a loop


class Runner:
    """Runs asyncio code in a daemon thread for callers that block.

    Everything that needs the loop has a reference to its runner. When the last one is gone without a `stop`, the loop ends by itself."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._stopped = False  # guarded by _lock; nothing is submitted any more
        self._posted: set[asyncio.Future[None]] = set()
        self._goodbyes: list[Goodbye] = []
        self._thread = threading.Thread(target=_serve, args=(self._loop,), name="trl_client", daemon=True)
        self._thread.start()
        _live.add(self)
        self._abandon = weakref.finalize(self, _abandoned, self._loop, self._goodbyes, self._pid)
        self._abandon.atexit = False

    @property
    def is_ours(self) -> bool:
        """Whether this is the process that made it, and not a fork of it."""
        return os.getpid() == self._pid

    def at_end(self, goodbye: Goodbye) -> None:
        """`goodbye` runs in the loop before the loop ends."""
        self._goodbyes.append(goodbye)

    def run(self, work: Callable[[], Awaitable[R]]) -> R:
        """The result of what `work`, called in the loop, returns. An exception in the waiting thread, such as
        KeyboardInterrupt, cancels it and waits for its end: a command that runs is ended, too."""
        if not self.is_ours:
            raise RuntimeError("this process was forked after connect(): connect again in the child")
        if threading.current_thread() is self._thread:
            raise RuntimeError("the blocking API cannot be used in a callback of trl_client.aio")
        done = threading.Event()
        tasks: list[asyncio.Task[None]] = []
        results: list[R] = []
        errors: list[BaseException] = []

        async def main() -> None:
            try:
                results.append(await work())
            except BaseException as e:
                errors.append(e)
            finally:
                done.set()  # here, because a callback of the task would come a turn of the loop later

        def start() -> None:
            tasks.append(self._loop.create_task(main()))
            tasks[0].add_done_callback(lambda _: done.set())  # a task that is cancelled before its first step runs no `finally`

        def cancel() -> None:
            if tasks:
                tasks[0].cancel()
            else:
                done.set()  # the exception came before `start` was submitted

        try:
            if not self._submit(start):
                raise ClosedError("the client is closed")
            done.wait()
        except BaseException:
            if self._submit(cancel):
                done.wait()
            raise
        if results:
            return results[0]
        try:
            if self._stopped and (not errors or isinstance(errors[0], asyncio.CancelledError)):
                raise ClosedError("the client was closed meanwhile") from None
            raise errors[0]
        finally:
            errors.clear()  # otherwise the exception and this frame keep each other alive

    def iterate(self, events: AsyncGenerator[R, None]) -> Iterator[R]:
        """The events of an asynchronous generator, which is closed when this one is."""
        try:
            while (event := self.run(lambda: anext(events, None))) is not None:
                yield event
        finally:
            self.post(events.aclose)

    def post(self, work: Callable[[], Awaitable[None]]) -> None:
        """Starts `work` without waiting for it. The garbage collector may call this in any thread."""

        def start() -> None:
            task = asyncio.ensure_future(work(), loop=self._loop)
            self._posted.add(task)
            task.add_done_callback(self._posted.discard)
            task.add_done_callback(lambda t: t.cancelled() or t.exception())

        if self.is_ours:
            self._submit(start)

    def _submit(self, work: Callable[[], None]) -> bool:
        with self._lock:
            if not self._stopped:
                self._loop.call_soon_threadsafe(work)
            return not self._stopped

    def stop(self) -> None:
        """Ends the loop, and with it what still runs in it."""
        if not self.is_ours:
            return
        with self._lock:
            first, self._stopped = not self._stopped, True
        if first:
            self._abandon.detach()
            _end_soon(self._loop, self._goodbyes)
        self._thread.join()


_live: weakref.WeakSet[Runner] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    """Says goodbye to the gateways. Sessions, and what runs in them, go on."""
    for runner in list(_live):
        runner.stop()


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


def _abandoned(loop: asyncio.AbstractEventLoop, goodbyes: list[Goodbye], pid: int) -> None:
    """Nobody can use the loop any more. The garbage collector may call this in any thread, so it does not wait."""
    if os.getpid() == pid:
        _end_soon(loop, goodbyes)
        warnings.warn("a trl_client connection was not closed", ResourceWarning, stacklevel=2)


def _end_soon(loop: asyncio.AbstractEventLoop, goodbyes: list[Goodbye]) -> None:
    def start() -> None:
        task = loop.create_task(_end(loop, goodbyes))
        _ending.add(task)
        task.add_done_callback(_ending.discard)

    loop.call_soon_threadsafe(start)


_ending: set[asyncio.Task[None]] = set()  # keeps them alive


async def _end(loop: asyncio.AbstractEventLoop, goodbyes: list[Goodbye]) -> None:
    try:
        for goodbye in goodbyes:
            await asyncio.wait_for(goodbye(), _END_TIMEOUT)
    except Exception:
        pass  # it is gone anyway
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    if rest:
        await asyncio.wait(rest, timeout=_END_TIMEOUT)
    await loop.shutdown_asyncgens()
    loop.stop()
