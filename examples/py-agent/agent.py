"""An agent: a model asks for commands, and this program runs them in a session and gives the model what they printed.

    python3 agent.py JOURNAL

Nothing is run twice and nothing is lost, whatever dies. If the connection is cut or the gateway is killed, the client connects again by itself and goes on.
If this program is killed, start it again with the same JOURNAL: it finds its session, and asks for the command that it had asked for under the same
request key, so that the gateway returns the result of the first time. The model here is a script, so that the example runs by itself;
put yours in its place."""

from __future__ import annotations

import json
import pathlib
import sys
import uuid
from dataclasses import dataclass

import trl_client

Message = dict[str, str]


@dataclass
class Command:
    """What the model wants to have run."""

    text: str


@dataclass
class Answer:
    """The model is done."""

    text: str


class ScriptedModel:
    """Plays a model that writes a program, tests it, and mends it when the test fails. It looks at what came back, as a model does."""

    def reply(self, messages: list[Message]) -> Command | Answer:
        commands = [m["content"] for m in messages if m["role"] == "assistant"]
        outputs = [m["content"] for m in messages if m["role"] == "tool"]
        if not commands:
            return Command("mkdir -p work && cd work && echo 'def double(x): return x + x + 1' > double.py && pwd")
        if outputs[-1].endswith("exit code 0") and commands[-1].startswith("python3"):
            return Answer("double.py works after a fix")
        if "AssertionError" in outputs[-1]:
            return Command("sed -i 's/ + 1//' double.py && cat double.py")
        # The directory is that of the last command: the session is one shell. The slow step is the one that a kill should meet.
        return Command("python3 -c 'import double; assert double.double(2) == 4; print(\"passed\")'; r=$?; echo ran >> steps; sleep 1; (exit $r)")


class Journal:
    """The conversation in a file, so that another run of this program can go on with it."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        if not path.exists():
            self.write({"role": "run", "content": uuid.uuid4().hex})
        first, *rest = [json.loads(line) for line in path.read_text().splitlines()]
        self.run: str = first["content"]
        self.messages: list[Message] = rest

    def write(self, message: Message) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(message) + "\n")

    def add(self, role: str, content: str) -> None:
        self.write({"role": role, "content": content})
        self.messages.append({"role": role, "content": content})
        print(f"{role}: {content}", flush=True)


def run_command(session: trl_client.Session, key: str, command: str) -> str:
    """Runs a command and returns what the model should read."""
    result = session.exec(command, timeout=60, max_output_bytes=16_000, clean=True, request_key=key)
    text = result.stdout + result.stderr
    if result.truncated:
        text += "\n(some output was left out)"
    if result.timed_out:
        text += "\n(timed out after 60 s)"
    return f"{text}\nexit code {result.exit_code}"


def main(path: str) -> None:
    journal = Journal(pathlib.Path(path))
    model = ScriptedModel()
    with trl_client.connect() as sandbox:
        session = sandbox.create_session(f"agent-{journal.run}", if_exists="return", idle_timeout=3600)
        while True:
            if not journal.messages or journal.messages[-1]["role"] == "tool":
                match model.reply(journal.messages):
                    case Answer(text):
                        journal.add("answer", text)
                        break
                    case Command(text):
                        journal.add("assistant", text)
            step = len(journal.messages)  # the same in every run of this program that gets here
            output = run_command(session, f"{journal.run}-{step}", journal.messages[-1]["content"])
            journal.add("tool", output)
        session.destroy()


if __name__ == "__main__":
    main(sys.argv[1])
