"""The blocking API. Each class wraps the one of the same name in `aio`, and each method waits for the one that it names.

`blocking` keeps the parameters, for readers, type checkers and `inspect.signature`."""

from __future__ import annotations

import functools
import os
from datetime import datetime
from types import TracebackType
from typing import Any, Awaitable, Callable, Concatenate, Generic, Iterator, ParamSpec, Self, TypeVar

from . import aio
from ._command import OnText
from ._process import Status
from ._results import ExecResult
from ._runner import Runner
from ._terminal import Mode
from .events import CommandEvent, Completed, LogEvent, Stderr, Stdout, TerminalEvent, WatchEvent

P = ParamSpec("P")
R = TypeVar("R")
W = TypeVar("W")
Inner = TypeVar("Inner")


class Facade(Generic[Inner]):
    """An object of `aio`, and the loop in which it lives."""

    def __init__(self, inner: Inner, runner: Runner) -> None:
        self._inner = inner
        self._runner = runner


Method = Callable[Concatenate[Any, P], Awaitable[R]]
Blocking = Callable[Concatenate[Any, P], R]


def blocking(method: Method[P, R]) -> Blocking[P, R]:
    """A method that waits for one of the inner object and returns its result."""

    @functools.wraps(method)
    def call(self: Facade[Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._runner.run(lambda: method(self._inner, *args, **kwargs))

    return call


def wrapping(wrap: Callable[[R, Runner], W], method: Method[P, R]) -> Blocking[P, W]:
    """Like `blocking`, for a result that needs a facade of its own."""

    @functools.wraps(method)
    def call(self: Facade[Any], /, *args: P.args, **kwargs: P.kwargs) -> W:
        return wrap(self._runner.run(lambda: method(self._inner, *args, **kwargs)), self._runner)

    return call


def shaped_as(method: Method[P, R]) -> Callable[[Callable[..., R]], Blocking[P, R]]:
    """Gives a function the parameters of a method of the inner object."""

    def decorate(function: Callable[..., R]) -> Blocking[P, R]:
        return functools.wraps(method)(function)

    return decorate


class Command(Facade[aio.Command]):
    __doc__ = aio.Command.__doc__

    @property
    def id(self) -> str:
        return self._inner.id

    @property
    def offset(self) -> int:
        return self._inner.offset

    @property
    def exit_code(self) -> int | None:
        return self._inner.exit_code

    def __iter__(self) -> Iterator[CommandEvent]:
        return self._runner.iterate(self._inner.__aiter__())

    result = blocking(aio.Command.result)
    kill = blocking(aio.Command.kill)
    write = blocking(aio.Command.write)
    close_stdin = blocking(aio.Command.close_stdin)
    detach = blocking(aio.Command.detach)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._runner.run(lambda: self._inner.__aexit__(kind, error, trace))


class Process(Facade[aio.Process]):
    __doc__ = aio.Process.__doc__

    @property
    def id(self) -> str:
        return self._inner.id

    @property
    def pid(self) -> int:
        return self._inner.pid

    @property
    def name(self) -> str | None:
        return self._inner.name

    @property
    def command(self) -> str:
        return self._inner.command

    @property
    def status(self) -> Status:
        return self._inner.status

    @property
    def exit_code(self) -> int | None:
        return self._inner.exit_code

    @property
    def signal(self) -> str | None:
        return self._inner.signal

    @property
    def started_at(self) -> datetime:
        return self._inner.started_at

    @property
    def ended_at(self) -> datetime | None:
        return self._inner.ended_at

    def refresh(self) -> Self:
        self._runner.run(self._inner.refresh)
        return self

    def stream_logs(self, since: int = 0) -> Iterator[LogEvent]:
        return self._runner.iterate(self._inner.stream_logs(since))

    get_status = blocking(aio.Process.get_status)
    ports = blocking(aio.Process.ports)
    kill = blocking(aio.Process.kill)
    write = blocking(aio.Process.write)
    close_stdin = blocking(aio.Process.close_stdin)
    logs = blocking(aio.Process.logs)
    wait_for_port = blocking(aio.Process.wait_for_port)
    wait_for_log = blocking(aio.Process.wait_for_log)
    wait = blocking(aio.Process.wait)


class Terminal(Facade[aio.Terminal]):
    __doc__ = aio.Terminal.__doc__

    @property
    def id(self) -> str:
        return self._inner.id

    @property
    def mode(self) -> Mode:
        return self._inner.mode

    def __iter__(self) -> Iterator[TerminalEvent]:
        return self._runner.iterate(self._inner.__aiter__())

    write = blocking(aio.Terminal.write)
    resize = blocking(aio.Terminal.resize)
    take_over = blocking(aio.Terminal.take_over)
    snapshot = blocking(aio.Terminal.snapshot)
    close = blocking(aio.Terminal.close)
    detach = blocking(aio.Terminal.detach)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Watch(Facade[aio.Watch]):
    __doc__ = aio.Watch.__doc__

    def __iter__(self) -> Iterator[WatchEvent]:
        return self._runner.iterate(self._inner.__aiter__())

    close = blocking(aio.Watch.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _processes(found: list[aio.Process], runner: Runner) -> list[Process]:
    return [Process(p, runner) for p in found]


def _maybe_process(found: aio.Process | None, runner: Runner) -> Process | None:
    return None if found is None else Process(found, runner)


class Session(Facade[aio.Session]):
    __doc__ = aio.Session.__doc__

    @property
    def id(self) -> str:
        return self._inner.id

    @property
    def name(self) -> str | None:
        return self._inner.name

    @shaped_as(aio.Session.exec)
    def exec(
        self,
        cmd: Any,
        *,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
        clean: bool = False,
        check: bool = False,
        **options: Any,
    ) -> ExecResult:
        if clean or not (on_stdout or on_stderr):
            options |= {"clean": clean, "on_stdout": on_stdout, "on_stderr": on_stderr, "check": check}
            return self._runner.run(lambda: self._inner.exec(cmd, **options))
        # The callbacks are called here, in the thread of the caller.
        with self.exec_stream(cmd, **options) as command:
            for event in command:
                if isinstance(event, Stdout) and on_stdout and event.data:
                    on_stdout(event.data)
                elif isinstance(event, Stderr) and on_stderr and event.data:
                    on_stderr(event.data)
                elif isinstance(event, Completed):
                    result = event.result
        return result.check() if check else result

    exec_stream = wrapping(Command, aio.Session.exec_stream)
    run = blocking(aio.Session.run)
    start_process = wrapping(Process, aio.Session.start_process)
    list_processes = wrapping(_processes, aio.Session.list_processes)
    get_process = wrapping(_maybe_process, aio.Session.get_process)
    kill_process = blocking(aio.Session.kill_process)
    kill_all_processes = blocking(aio.Session.kill_all_processes)
    open_terminal = wrapping(Terminal, aio.Session.open_terminal)
    attach_terminal = wrapping(Terminal, aio.Session.attach_terminal)
    watch = wrapping(Watch, aio.Session.watch)
    set_env = blocking(aio.Session.set_env)
    info = blocking(aio.Session.info)
    rename = blocking(aio.Session.rename)
    move = blocking(aio.Session.move)
    update = blocking(aio.Session.update)
    reset = blocking(aio.Session.reset)
    destroy = blocking(aio.Session.destroy)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._runner.run(lambda: self._inner.__aexit__(kind, error, trace))


def _session_and_terminal(made: tuple[aio.Session, aio.Terminal], runner: Runner) -> tuple[Session, Terminal]:
    session, terminal = made
    return Session(session, runner), Terminal(terminal, runner)


class Sandbox(Session):
    __doc__ = aio.Sandbox.__doc__
    _inner: aio.Sandbox

    create_session = wrapping(Session, aio.Sandbox.create_session)
    create_session_with_terminal = wrapping(_session_and_terminal, aio.Sandbox.create_session_with_terminal)
    get_session = wrapping(Session, aio.Sandbox.get_session)
    list_sessions = blocking(aio.Sandbox.list_sessions)
    delete_session = blocking(aio.Sandbox.delete_session)
    call = blocking(aio.Sandbox.call)

    @shaped_as(aio.Sandbox.close)
    def close(self) -> None:
        self._runner.stop()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def connect(
    url: str | None = None,
    *,
    unix: str | os.PathLike[str] | None = None,
    token: str | None = None,
    session: str = "default",
    patience: float = 45.0,
) -> Sandbox:
    runner = Runner()
    try:
        inner = runner.run(lambda: aio.connect(url, unix=unix, token=token, session=session, patience=patience))
    except BaseException:
        runner.stop()
        raise
    runner.at_end(inner.close)
    return Sandbox(inner, runner)


connect.__doc__ = aio.connect.__doc__
