"""Programs as users write them, for `mypy --strict`: what the types of this package promise. Not run."""

import re

import trl_client
from trl_client import PIPE, Completed, Exited, Gap, Missed, Output, SessionEvent, Stderr, Stdout


def commands(sandbox: trl_client.Sandbox) -> str:
    result = sandbox.exec(["git", "status"], cwd="/src", env={"LANG": "C", "PAGER": None}, timeout=60, check=True)
    code: int = result.exit_code
    raw: bytes = result.stdout_bytes
    with sandbox.create_session("build", limits={"memory_bytes": 1 << 30}) as session:
        for event in session.exec_stream("make", stdin=PIPE):
            match event:
                case Stdout(text, offset):
                    print(text, offset + len(raw))
                case Stderr(text):
                    print(text)
                case Gap(first, end):
                    print(end - first)
                case Completed(done):
                    code += done.exit_code
        state: str = session.info()["state"]
    return state + str(code)


def processes(session: trl_client.Session) -> int | None:
    process = session.start_process("npm run dev", stdin=PIPE)
    process.wait_for_port(3000, timeout=30)
    found = process.wait_for_log(re.compile(r"port (\d+)"), timeout=10)
    port: int = int(found.match[1])
    for event in process.stream_logs():
        if isinstance(event, Exited):
            return event.exit_code
    process.kill("INT")
    maybe = session.get_process("p-1")
    return None if maybe is None else maybe.pid + port


def terminals(session: trl_client.Session) -> list[str]:
    with session.open_terminal(cols=120, rows=40) as terminal:
        terminal.write("ls\r")
        for event in terminal:
            if isinstance(event, Output):
                break
        return terminal.snapshot()["lines"]


def failures(sandbox: trl_client.Sandbox) -> bool:
    try:
        sandbox.exec("false", check=True)
    except trl_client.CommandError as e:
        return e.result.timed_out
    except trl_client.InvalidParamsError as e:
        return e.field == "timeout_s"
    except trl_client.TrlError as e:
        return e.retryable
    return False


async def asynchronous() -> int:
    async with trl_client.aio.connect(token="t") as sandbox:
        plain: trl_client.aio.Sandbox = await trl_client.aio.connect(unix="/run/trl/socket")
        async with sandbox.create_session(cwd="/tmp") as session:
            command = session.exec_stream("make")
            async for event in command:
                if isinstance(event, Completed):
                    return event.result.exit_code
        await plain.close()
        return (await sandbox.run(["true"], input=b"")).exit_code


def watching(session: trl_client.Session) -> str:
    with session.watch() as watch:
        for event in watch:
            match event:
                case SessionEvent("exec.exit", data):
                    print(data["exit_code"])
                case SessionEvent(type, _):
                    kind: str = type
                case Missed(info):
                    return info["state"] + kind
    return session.exec("make", request_key="step-1").stdout
