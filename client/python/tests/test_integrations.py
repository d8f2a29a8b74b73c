"""The adapters, with stand-ins for the frameworks and a real gateway. In `upstream.json` are the real frameworks' names."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import os
import pathlib
import shutil
import sys
import threading
from typing import Any, Iterator

import pytest
import trl_client
from conftest import DEADLINE, Gateway
from trl_client import aio

HERE = pathlib.Path(__file__).parent
UPSTREAM: dict[str, Any] = json.loads((HERE / "upstream.json").read_text())


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(HERE / "fakes"))
    yield
    for name in set(sys.modules) - before:
        if not name.startswith("trl_client._"):
            del sys.modules[name]


def adapter(name: str) -> Any:
    return importlib.import_module("trl_client.integrations." + name)


def run(work: Any) -> Any:
    return asyncio.run(asyncio.wait_for(work, 3 * DEADLINE))


def parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


@pytest.mark.parametrize("name", UPSTREAM)
def test_an_adapter_has_the_names_of_its_framework(name: str) -> None:
    facts, module = UPSTREAM[name], adapter(name)
    for cls, methods in facts["implements"].items():
        for method, names in methods.items():
            assert parameters(getattr(getattr(module, cls), method)) == names, f"{cls}.{method}"
    for path, names in facts["constructs"].items():
        holder, _, attribute = path.rpartition(".")
        assert parameters(getattr(importlib.import_module(holder), attribute)) == names, path


def test_openai_agents(shared_gateway: Gateway) -> None:
    import agents

    async def main() -> None:
        async with aio.connect(unix=shared_gateway.unix) as sandbox, sandbox.create_session() as session:
            execute = adapter("openai_agents").shell_executor(session)

            def request(*commands: str, timeout_ms: int | None = None) -> Any:
                action = agents.ShellActionRequest(list(commands), timeout_ms, max_output_length=100)
                return agents.ShellCommandRequest(None, agents.ShellCallData("call-1", action))

            result = await execute(request("cd /tmp; X=1", "echo $X $PWD; echo err >&2; (exit 3)"))
            assert result.max_output_length == 100
            assert [o.outcome for o in result.output] == [agents.ShellCallOutcome("exit", 0), agents.ShellCallOutcome("exit", 3)]
            assert (result.output[1].stdout, result.output[1].stderr) == ("1 /tmp\n", "err\n")
            # A timeout stops the rest; the state is still there.
            result = await execute(request("echo begun; sleep 600", "echo never", timeout_ms=4000))
            assert [(o.outcome.type, o.stdout) for o in result.output] == [("timeout", "begun\n")]
            assert (await execute(request("echo $X"))).output[0].stdout == "1\n"

    run(main())


@pytest.fixture
def environment_of_gateway(shared_gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("websockets")
    monkeypatch.setenv("TRL_URL", shared_gateway.url)
    monkeypatch.setenv("TRL_TOKEN", shared_gateway.token)


def test_inspect(environment_of_gateway: None, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter("inspect_ai")
    import inspect_ai.util as util

    cls: Any = util.registered["trl"]

    async def main() -> None:
        environments = await cls.sample_init("task", None, {})
        box = environments["default"]
        other = (await cls.sample_init("task", None, {}))["default"]
        assert box._directory != other._directory and os.path.isdir(box._directory)

        done = await box.exec(["sh", "-c", "cat; echo $A $PWD; echo e >&2; exit 3"], input="in\n", env={"A": "it's"})
        assert done == util.ExecResult(False, 3, f"in\nit's {box._directory}\n", "e\n")
        both = await asyncio.gather(*(box.exec(["sh", "-c", "sleep 0.2; echo $0", str(i)]) for i in range(4)))
        assert [r.stdout for r in both] == ["0\n", "1\n", "2\n", "3\n"]
        assert (await box.exec(["no-such-program"])).returncode == 127
        with pytest.raises(TimeoutError):
            await box.exec(["sleep", "600"], timeout=1)
        with pytest.raises(PermissionError):
            await box.exec(["true"], user="somebody-else")
        assert (await box.exec(["true"], user=box._users[0])).success

        await box.write_file("deep/down/a file", "text\r\n")
        assert await box.read_file("deep/down/a file") == "text\r\n"
        assert (await box.exec(["cat", "a file"], cwd="deep/down")).stdout == "text\r\n"
        await box.write_file("-rf", b"\xff\0")
        assert await box.read_file("-rf", text=False) == b"\xff\0"
        with pytest.raises(UnicodeDecodeError):
            await box.read_file("-rf")
        with pytest.raises(FileNotFoundError):
            await box.read_file("none")
        with pytest.raises(IsADirectoryError):
            await box.read_file("deep")
        with pytest.raises(IsADirectoryError):
            await box.write_file("deep", "x")
        with pytest.raises(PermissionError):
            await box.write_file("/proc/none/x", "x")

        monkeypatch.setattr(util.SandboxEnvironmentLimits, "MAX_EXEC_OUTPUT_SIZE", 1000)
        monkeypatch.setattr(util.SandboxEnvironmentLimits, "MAX_READ_FILE_SIZE", 1000)
        with pytest.raises(util.OutputLimitExceededError) as caught:
            await box.exec(["seq", "1000"])
        assert caught.value.truncated_output.startswith("1\n2\n")
        await box.write_file("large", "x" * 1001)
        with pytest.raises(util.OutputLimitExceededError):
            await box.read_file("large")

        assert (await box.connection()).command == f"trl term --session {box._session.id}"
        await cls.sample_cleanup("task", None, {"default": other}, False)
        directory = box._directory
        await box._session.destroy()
        with pytest.raises(util.SandboxUnavailableError):
            await box.exec(["true"])
        await cls.sample_cleanup("task", None, environments, True)
        assert not os.path.exists(other._directory)
        shutil.rmtree(directory)
        monkeypatch.setenv("TRL_URL", "http://127.0.0.1:9")
        with pytest.raises(util.SandboxUnavailableError):
            await cls.sample_init("task", None, {})

    run(main())


def test_cancelling_a_task_of_inspect_ends_the_process(environment_of_gateway: None) -> None:
    async def main() -> None:
        cls = adapter("inspect_ai").TrlSandboxEnvironment
        environments = await cls.sample_init("task", None, {})
        box = environments["default"]
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(box.exec(["sleep", "600"]), 0.3)
        assert {p.status for p in await box._session.list_processes()} == {"killed"}
        await cls.sample_cleanup("task", None, environments, False)

    run(main())


def test_a_sample_of_inspect_leaves_no_session(environment_of_gateway: None, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(*_: Any, **__: Any) -> Any:
        raise trl_client.LimitError("no room", code="LIMIT_EXCEEDED")

    async def main() -> None:
        cls = adapter("inspect_ai").TrlSandboxEnvironment
        ended = await cls.sample_init("no rm", None, {})
        with monkeypatch.context() as patch:
            patch.setattr(aio.Session, "run", refused)
            await cls.sample_cleanup("no rm", None, ended, False)
            patch.setattr(aio.Session, "exec", refused)
            with pytest.raises(trl_client.LimitError):
                await cls.sample_init("no directory", None, {})
        shutil.rmtree(ended["default"]._directory)
        async with aio.connect() as sandbox:
            for task in ("no rm", "no directory"):
                assert await sandbox.list_sessions(label=f"inspect={task}") == []

    run(main())


def test_deepagents(shared_gateway: Gateway, tmp_path: pathlib.Path) -> None:
    from trl_client import connect

    with connect(unix=shared_gateway.unix) as sandbox, sandbox.create_session(cwd=str(tmp_path)) as session:
        backend = adapter("deepagents").TrlSandbox(session)
        assert backend.id == session.id
        done = backend.execute("X=1; echo out; echo err >&2; (exit 4)")
        assert done.output in ("out\nerr\n", "err\nout\n")  # two pipes
        assert (done.exit_code, done.truncated) == (4, False)
        assert backend.execute("echo $X").output == "1\n"
        assert "ended after 1 s" in backend.execute("sleep 600", timeout=1).output
        assert backend.execute("head -c 3000000 /dev/zero").truncated

        content = bytes(range(256)) * 3000
        uploaded = backend.upload_files([("a/b c", content), (str(tmp_path), b""), ("/proc/none/x", b""), ("", b"")])
        assert [r.error for r in uploaded] == [None, "is_directory", "permission_denied", "invalid_path"]
        downloaded = backend.download_files(["a/b c", "none", "a"])
        assert [r.error for r in downloaded] == [None, "file_not_found", "is_directory"]
        assert downloaded[0].content == content


def test_mini_swe_agent(environment_of_gateway: None, tmp_path: pathlib.Path) -> None:
    module = adapter("mini_swe_agent")
    from minisweagent.exceptions import Submitted

    with pytest.raises(trl_client.TrlError, match="DIR_NOT_FOUND"):
        module.TrlEnvironment(cwd="/none/such")
    assert not [t for t in threading.enumerate() if t.name == "trl_client" and t.is_alive()]  # its connection is closed
    environment = module.TrlEnvironment(cwd=str(tmp_path), env={"A": "1"}, timeout=4)
    try:
        assert environment.execute({"command": "echo $A $PWD; echo err >&2"}) == {
            "output": f"1 {tmp_path}\nerr\n",
            "returncode": 0,
            "exception_info": "",
        }
        assert environment.execute({"command": "pwd"}, "/")["output"] == "/\n"
        late = environment.execute({"command": "echo begun; sleep 600"})
        assert late["output"].startswith("begun\n")  # the shell may say that it was ended
        assert (late["returncode"], late["extra"]["exception_type"]) == (-1, "TimeoutError")
        assert environment.execute({"command": "sleep 4.2; echo x"}, timeout=60)["output"] == "x\n"
        with pytest.raises(Submitted) as submitted:
            environment.execute({"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo the; echo diff"})
        assert submitted.value.messages[0]["content"] == "the\ndiff\n"
        variables = environment.get_template_vars(task="t")
        assert (variables["system"], variables["task"], variables["timeout"]) == ("Linux", "t", 4)
        assert "TrlEnvironment" in json.dumps(environment.serialize())
    finally:
        environment.cleanup()


def test_swe_rex(shared_gateway: Gateway, tmp_path: pathlib.Path) -> None:
    module = adapter("swe_rex")
    import swerex.exceptions as errors
    import swerex.runtime.abstract as rex

    async def main() -> None:
        async with aio.connect(unix=shared_gateway.unix) as sandbox:
            runtime = module.TrlRuntime(sandbox)
            assert (await runtime.is_alive()).is_alive
            rc = tmp_path / "rc"
            rc.write_text("FROM_RC=yes; echo sourced\n")
            created = await runtime.create_session(rex.CreateBashSessionRequest(startup_source=[str(rc)]))
            assert created.output == "sourced\n"
            with pytest.raises(errors.SessionExistsError):
                await runtime.create_session(rex.CreateBashSessionRequest())

            seen = await runtime.run_in_session(rex.BashAction("echo $FROM_RC; cd /tmp; echo e >&2"))
            assert (seen.output, seen.exit_code) == ("yes\ne\n", 0)
            assert (await runtime.run_in_session(rex.BashAction("pwd; (exit 3)", check="silent"))).exit_code == 3
            assert (await runtime.run_in_session(rex.BashAction("(exit 3)", check="ignore"))).exit_code is None
            with pytest.raises(errors.NonZeroExitCodeError, match="mine: .*exit code 3"):
                await runtime.run_in_session(rex.BashAction("(exit 3)", error_msg="mine"))
            with pytest.raises(errors.CommandTimeoutError):
                await runtime.run_in_session(rex.BashAction("sleep 600", timeout=0.3))
            with pytest.raises(errors.SessionDoesNotExistError):
                await runtime.run_in_session(rex.BashAction("true", session="none"))
            with pytest.raises(NotImplementedError):
                await runtime.run_in_session(rex.BashAction("gdb", is_interactive_command=True))
            begun = tmp_path / "begun"
            sleep = rex.BashAction(f"touch {begun}; sleep 600", check="silent")
            sleeping = asyncio.create_task(runtime.run_in_session(sleep))
            while not sleeping.done():
                if begun.exists():
                    await runtime.run_in_session(rex.BashInterruptAction())
                await asyncio.sleep(0.01)
            assert sleeping.result().exit_code > 128
            await runtime.run_in_session(rex.BashInterruptAction())  # nothing runs

            done = await runtime.execute(rex.Command(["sh", "-c", "echo $A; echo e >&2"], env={"A": "1"}, cwd="/"))
            assert (done.stdout, done.stderr, done.exit_code) == ("1\n", "e\n", 0)
            merged = await runtime.execute(rex.Command("echo o; echo e >&2", shell=True, merge_output_streams=True))
            assert (merged.stdout, merged.stderr) == ("o\ne\n", "")
            with pytest.raises(errors.NonZeroExitCodeError):
                await runtime.execute(rex.Command("false", check=True))
            with pytest.raises(errors.CommandTimeoutError):
                await runtime.execute(rex.Command(["sleep", "600"], timeout=0.3))

            path = str(tmp_path / "deep" / "file")
            await runtime.write_file(rex.WriteFileRequest("é\n", path))
            assert (await runtime.read_file(rex.ReadFileRequest(path))).content == "é\n"
            assert (await runtime.read_file(rex.ReadFileRequest(path, "ascii", "replace"))).content == "\ufffd\ufffd\n"
            await runtime.upload(rex.UploadRequest(path, str(tmp_path / "copy")))
            await runtime.upload(rex.UploadRequest(str(tmp_path / "deep"), str(tmp_path / "tree")))
            assert (tmp_path / "copy").read_text() == (tmp_path / "tree" / "file").read_text() == "é\n"
            await runtime.close_session(rex.CloseBashSessionRequest())
            await runtime.create_session(rex.CreateBashSessionRequest())
            await runtime.close()
            assert runtime._sessions == {}

    run(main())


def test_input_that_is_lost_is_an_error(gateway: Gateway, tmp_path: pathlib.Path) -> None:
    """A file is never written from a part of its content without anybody hearing of it."""

    async def main() -> None:
        async with aio.connect(unix=gateway.unix) as sandbox:
            writing = asyncio.create_task(sandbox.run("sleep 2; cat", input=b"x" * (3 << 20), max_output_bytes=4 << 20))
            while not await sandbox.list_processes():
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.2)  # the server's buffer is full, and pieces are sent again and again
            gateway.kill()
            try:
                result = await writing
            except trl_client.ConnectionLostError as e:
                assert e.outcome == "unknown"
            else:
                assert result.stdout_bytes == b"x" * (3 << 20)

    run(main())
