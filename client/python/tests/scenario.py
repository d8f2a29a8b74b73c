"""Runs the steps of client/testdata/scenarios.json, which the README there describes, with either API of this client."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import inspect
import json
import re
import time
import urllib.request
from dataclasses import dataclass, field
from typing import Any, Awaitable, Callable, Mapping

import trl_client
from trl_client import aio
from trl_client.events import Completed, Exited, Gap, Output, Stderr, Stdout

DEADLINE = 150.0


class Rig:
    """The program that starts gateways."""

    def __init__(self, url: str) -> None:
        self.url = url

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        request = urllib.request.Request(self.url + path, json.dumps(body or {}).encode(), method="POST")
        with urllib.request.urlopen(request, timeout=2 * DEADLINE) as answer:
            return json.load(answer)


KINDS: list[tuple[type[BaseException], str]] = [  # the first that fits
    (trl_client.AuthError, "auth"),
    (trl_client.ForbiddenError, "forbidden"),
    (trl_client.InvalidParamsError, "invalid_params"),
    (trl_client.SessionNotFoundError, "session_not_found"),
    (trl_client.SessionExistsError, "session_exists"),
    (trl_client.SessionBusyError, "session_busy"),
    (trl_client.NotFoundError, "not_found"),
    (trl_client.LimitError, "limit"),
    (trl_client.SessionTerminatedError, "session_terminated"),
    (trl_client.ConnectionLostError, "connection_lost"),
    (trl_client.CommandError, "command_failed"),
    (trl_client.OutcomeUnknownError, "outcome_unknown"),
    (trl_client.ProcessReadyTimeoutError, "not_ready"),
    (trl_client.ProcessExitedError, "exited_before_ready"),
    (trl_client.TrlError, "refused"),
    (asyncio.CancelledError, "aborted"),
]


def described(error: BaseException) -> dict[str, Any]:
    kind = next((name for cls, name in KINDS if isinstance(error, cls)), None)
    if kind is None:
        raise error
    about = {"kind": kind, "code": getattr(error, "code", "")}
    if isinstance(error, trl_client.InvalidParamsError):
        about["field"] = error.field
    if isinstance(error, trl_client.CommandError):
        about |= {"exit_code": error.result.exit_code, "stdout": error.result.stdout}
    if isinstance(error, trl_client.ProcessExitedError):
        about["exit_code"] = error.exit_code
    return about


def matches(want: Any, got: Any) -> bool:
    if isinstance(want, dict):
        for operator, value in want.items():
            if operator == "$at_least":
                fits = got >= value
            elif operator == "$at_most":
                fits = got <= value
            elif operator == "$length":
                fits = len(got) == value
            elif operator == "$matches":
                fits = re.search(value, got) is not None
            else:
                fits = matches(value, look_up(got, operator))
            if not fits:
                return False
        return True
    if isinstance(want, list) and isinstance(got, (list, tuple)):
        return len(want) == len(got) and all(map(matches, want, got))
    return bool(want == got)


def look_up(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        return value.get(name)
    if isinstance(value, (list, tuple)):
        return value[int(name)]
    return getattr(value, name, None)


@dataclass
class Reader:
    """What a `read` step reads from: the events of a command, log or terminal, and what has come of them."""

    thing: Any  # what write and kill act on
    events: Any
    stdout: bytearray = field(default_factory=bytearray)
    stderr: bytearray = field(default_factory=bytearray)
    bytes: int = 0
    offset: int = 0
    gaps: list[dict[str, int]] = field(default_factory=list)
    end: dict[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return str(self.thing.id)

    def take(self, event: Any, keep: bool) -> None:
        if isinstance(event, (Stdout, Stderr, Output)):
            raw = event.data if isinstance(event, Output) else event.raw
            if keep:
                (self.stderr if isinstance(event, Stderr) else self.stdout).extend(raw)
            if not (isinstance(event, Output) and event.snapshot):
                self.bytes += len(raw)
                self.offset = event.offset + len(raw)
        elif isinstance(event, Gap):
            self.gaps.append({"from": event.from_, "to": event.to})
            self.offset = event.to
        elif isinstance(event, Completed):
            self.end = {"exit_code": event.result.exit_code, "signal": event.result.signal}
        elif isinstance(event, Exited):
            self.end = {"exit_code": event.exit_code, "signal": event.signal}

    def state(self) -> dict[str, Any]:
        out, err = bytes(self.stdout), bytes(self.stderr)
        # A character whose rest has not come yet is not text yet.
        text = out.decode(errors="replace") if self.end else out.decode(errors="ignore")
        return {
            "stdout": text,
            "stderr": err.decode(errors="replace"),
            "stdout_base64": base64.b64encode(out).decode(),
            "stdout_sha256": hashlib.sha256(out).hexdigest(),
            "bytes": self.bytes,
            "offset": self.offset,
            "gaps": self.gaps,
            "ended": bool(self.end),
            **self.end,
        }


WIRE_NAMES = {"working_dir": "cwd", "timeout_s": "timeout", "no_output_timeout_s": "no_output_timeout"}
SESSION_NAMES = {"working_dir": "cwd", "timeout_s": "command_timeout", "idle_timeout_s": "idle_timeout"}
NOT_OPTIONS = {"do", "as", "of", "in", "meanwhile", "expect", "error", "command", "client", "stdin_base64"}


class Run:
    """One run of one scenario. `blocking` uses the blocking API, each call in a thread of its own."""

    def __init__(self, rig: Rig, gateway: Mapping[str, Any], blocking: bool, unix: str | None) -> None:
        self.rig = rig
        self.gateway = gateway
        self.blocking = blocking
        self.unix = unix
        self.to_end: list[Callable[[], Awaitable[Any]]] = []

    async def do(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self.blocking:
            return await asyncio.to_thread(function, *args, **kwargs)
        result = function(*args, **kwargs)
        return await result if inspect.isawaitable(result) else result

    async def scenario(self, steps: list[Any]) -> None:
        names: dict[str, Any] = {}
        try:
            await self.step({"do": "connect", "as": "c"}, names)
            names["client"] = names["c"]
            await self.step({"do": "session", "as": "s"}, names)
            await self.steps(steps, names)
        finally:
            for end in reversed(self.to_end):
                try:
                    await asyncio.wait_for(end(), DEADLINE)
                except (trl_client.TrlError, asyncio.CancelledError):
                    pass

    async def steps(self, steps: list[Any], names: dict[str, Any]) -> None:
        for step in steps:
            await self.step(step, names)

    async def step(self, step: Mapping[str, Any], names: dict[str, Any]) -> None:
        repeats = step["do"] == "repeat"
        if repeats and not step.get("meanwhile"):  # its steps have deadlines of their own
            return await self.do_repeat(step, names)
        if step["do"] == "eventually":
            end = time.monotonic() + DEADLINE
            while True:
                try:
                    return await self.step(step["step"], names)
                except AssertionError:
                    if time.monotonic() > end:
                        raise
                    await asyncio.sleep(0.02)
        filled = step if repeats else {k: v if k in ("expect", "error") else fill(v, names) for k, v in step.items()}
        work = getattr(self, "do_" + step["do"])(filled, names)
        if step.get("meanwhile"):
            task = asyncio.create_task(work)
            task.add_done_callback(lambda t: t.cancelled() or t.exception())
            names[step["as"]] = task
            await asyncio.sleep(0)
            return
        try:
            # A hundred MiB may take a while on a slow machine; what makes no progress takes for ever.
            result = await asyncio.wait_for(work, 3 * DEADLINE)
        except (trl_client.TrlError, asyncio.CancelledError) as e:
            assert "error" in step, f"{step}: {e!r}"
            got: Any = described(e)
            kinds = step["error"].get("kind", got["kind"])
            assert got["kind"] in (kinds if isinstance(kinds, list) else [kinds]), f"{step}: {got}, {e}"
            rest = {k: v for k, v in step["error"].items() if k != "kind"}
            assert matches(fill(rest, names), got), f"{step}: {got}"
            return
        assert "error" not in step, f"{step}: did not fail but gave {result}"
        if "as" in step:
            names[step["as"]] = result
        assert matches(fill(step.get("expect", {}), names), result), f"{step}: got {result}"

    def client(self, step: Mapping[str, Any], names: dict[str, Any]) -> Any:
        """A step that names no client means the first one, also when something else was named `c` since."""
        return names[step["client"]] if "client" in step else names["client"]

    # The operations, each by its name.

    async def do_repeat(self, step: Mapping[str, Any], names: dict[str, Any]) -> None:
        turns = [self.steps(step["steps"], {**names, "i": i}) for i in range(step["times"])]
        if step.get("parallel"):
            await asyncio.gather(*turns)
        else:
            for turn in turns:
                await turn

    async def do_connect(self, step: Mapping[str, Any], names: dict[str, Any]) -> Any:
        options = {"session": step["session"]} if "session" in step else {}
        if "patience_s" in step:
            options["patience"] = step["patience_s"]
        if self.unix:
            where: dict[str, Any] = {"unix": self.unix}
        else:
            token = step.get("token", "user")
            where = {"url": self.gateway["url"], "token": self.gateway["tokens"].get(token, token)}
        client = await self.do(trl_client.connect if self.blocking else aio.connect, **where, **options)
        self.to_end.append(lambda: self.do(client.close))
        return client

    async def do_session(self, step: Mapping[str, Any], names: dict[str, Any]) -> Any:
        options = {SESSION_NAMES.get(k, k): v for k, v in step.items() if k not in NOT_OPTIONS}
        session = await self.do(self.client(step, names).create_session, **options)
        self.to_end.append(lambda: self.do(session.destroy, force=True))
        return session

    async def do_session_with_terminal(self, step: Mapping[str, Any], names: dict[str, Any]) -> Any:
        options = {SESSION_NAMES.get(k, k): v for k, v in step.items() if k not in NOT_OPTIONS | {"terminal"}}
        create = self.client(step, names).create_session_with_terminal
        session, terminal = await self.do(create, cmd=step.get("command"), **options)
        self.to_end.append(lambda: self.do(session.destroy, force=True))
        names[step["terminal"]] = Reader(terminal, self.iterator(terminal))
        return session

    async def do_get_session(self, step: Mapping[str, Any], names: dict[str, Any]) -> Any:
        return await self.do(self.client(step, names).get_session, step["name"])

    async def do_move(self, step: Mapping[str, Any], names: dict[str, Any]) -> Any:
        await self.do(names[step["of"]].move, step["node"])

    async def do_destroy(self, step: Mapping[str, Any], names: dict[str, Any]) -> Any:
        await self.do(names[step["of"]].destroy)

    def options(self, step: Mapping[str, Any]) -> dict[str, Any]:
        options = {WIRE_NAMES.get(k, k): v for k, v in step.items() if k not in NOT_OPTIONS}
        if options.get("stdin") == "open":
            options["stdin"] = trl_client.PIPE
        if "stdin_base64" in step:
            options["stdin"] = base64.b64decode(step["stdin_base64"])
        return options

    async def do_exec(self, step: Mapping[str, Any], names: dict[str, Any]) -> Any:
        session = names[step.get("in", "s")]
        return as_wire(await self.do(session.exec, step["command"], **self.options(step)))

    async def do_stream(self, step: Mapping[str, Any], names: dict[str, Any]) -> Any:
        command = await self.do(names[step.get("in", "s")].exec_stream, step["command"], **self.options(step))
        return Reader(command, self.iterator(command))

    def iterator(self, events: Any) -> Any:
        return iter(events) if self.blocking else aiter(events)

    async def do_read(self, step: Mapping[str, Any], names: dict[str, Any]) -> Any:
        reader: Reader = names[step["of"]]
        until, before = step["until"], reader.bytes
        while not reader.end and not reached(until, reader, before):
            event = await self.do(next, reader.events) if self.blocking else await anext(reader.events)
            reader.take(event, keep=True)
        return reader.state()

    async def do_count(self, step: Mapping[str, Any], names: dict[str, Any]) -> Any:
        reader: Reader = names[step["of"]]
        while not reader.end:
            event = await self.do(next, reader.events) if self.blocking else await anext(reader.events)
            reader.take(event, keep=False)
        return reader.state()

    async def do_write(self, step: Mapping[str, Any], names: dict[str, Any]) -> Any:
        thing = getattr(names[step["of"]], "thing", names[step["of"]])
        await self.do(thing.write, step["data"] * step.get("times", 1))
        if step.get("eof"):
            await self.do(thing.close_stdin)

    async def do_kill(self, step: Mapping[str, Any], names: dict[str, Any]) -> Any:
        thing = getattr(names[step["of"]], "thing", names[step["of"]])
        await self.do(thing.kill, step.get("signal"))

    async def do_process(self, step: Mapping[str, Any], names: dict[str, Any]) -> Any:
        return await self.do(names[step.get("in", "s")].start_process, step["command"], **self.options(step))

    async def do_wait_for_port(self, step: Mapping[str, Any], names: dict[str, Any]) -> Any:
        options = {k: step[k] for k in ("mode", "path") if k in step}
        process = names[step["of"]]
        await self.do(process.wait_for_port, int(step["port"]), timeout=step.get("timeout_s"), **options)

    async def do_wait_for_log(self, step: Mapping[str, Any], names: dict[str, Any]) -> Any:
        pattern = step.get("pattern") or re.escape(step["text"])
        found = await self.do(names[step["of"]].wait_for_log, pattern, timeout=step.get("timeout_s"))
        return {"line": found.line, "groups": found.match.groups()}

    async def do_wait_for_exit(self, step: Mapping[str, Any], names: dict[str, Any]) -> Any:
        return await self.do(names[step["of"]].wait, step.get("timeout_s"))

    async def do_logs(self, step: Mapping[str, Any], names: dict[str, Any]) -> Any:
        return await self.do(names[step["of"]].logs)

    async def do_follow(self, step: Mapping[str, Any], names: dict[str, Any]) -> Any:
        process = names[step["of"]]
        return Reader(process, process.stream_logs(step.get("since", 0)))

    async def do_terminal(self, step: Mapping[str, Any], names: dict[str, Any]) -> Any:
        size = {"cols": step["cols"], "rows": step["rows"]}
        terminal = await self.do(names[step.get("in", "s")].open_terminal, cmd=step.get("command"), **size)
        return Reader(terminal, self.iterator(terminal))

    async def do_resize(self, step: Mapping[str, Any], names: dict[str, Any]) -> Any:
        await self.do(names[step["of"]].thing.resize, step["cols"], step["rows"])

    async def do_snapshot(self, step: Mapping[str, Any], names: dict[str, Any]) -> Any:
        screen = await self.do(names[step["of"]].thing.snapshot)
        return {**screen, "text": "\n".join(screen["lines"])}

    async def do_call(self, step: Mapping[str, Any], names: dict[str, Any]) -> Any:
        return await self.do(self.client(step, names).call, step["method"], step.get("params"))

    async def do_direct(self, step: Mapping[str, Any], names: dict[str, Any]) -> Any:
        where = {"url": self.gateway["direct"], "token": self.gateway["tokens"]["user"]}
        async with aio.connect(**where) as client, client.create_session() as session:
            return as_wire(await session.exec(step["command"]))

    async def do_rig(self, step: Mapping[str, Any], names: dict[str, Any]) -> Any:
        return await asyncio.to_thread(self.rig.post, f"/{self.gateway['id']}/{step['action']}")

    async def do_await(self, step: Mapping[str, Any], names: dict[str, Any]) -> Any:
        return await names[step["of"]]

    async def do_abort(self, step: Mapping[str, Any], names: dict[str, Any]) -> Any:
        names[step["of"]].cancel()

    async def do_sleep(self, step: Mapping[str, Any], names: dict[str, Any]) -> Any:
        await asyncio.sleep(step["seconds"])


def reached(until: Any, reader: Reader, before: int) -> bool:
    if until == "end":
        return False
    if "text" in until:
        return until["text"].encode() in reader.stdout
    if "more" in until:
        return reader.bytes - before >= int(until["more"])
    return reader.bytes >= int(until["bytes"])


def as_wire(result: trl_client.ExecResult) -> dict[str, Any]:
    return {
        **vars(result),
        "stdout": result.stdout,
        "stderr": result.stderr,
        "stdout_base64": base64.b64encode(result.stdout_bytes).decode(),
        "stderr_base64": base64.b64encode(result.stderr_bytes).decode(),
        "working_dir": result.cwd,
    }


def fill(value: Any, names: Mapping[str, Any]) -> Any:
    """Puts the values of earlier steps in place of ${name.field}."""
    if isinstance(value, dict):
        return {k: fill(v, names) for k, v in value.items()}
    if isinstance(value, list):
        return [fill(v, names) for v in value]
    if not isinstance(value, str):
        return value

    def replacement(found: re.Match[str]) -> str:
        name, *fields = found[1].split(".")
        found_value = names[name]
        for part in fields:
            found_value = look_up(found_value, part)
        return str(found_value)

    return re.sub(r"\$\{([a-z0-9_.]+)\}", replacement, value)
