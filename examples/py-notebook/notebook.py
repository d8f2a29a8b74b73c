"""A notebook: cells of Python that run one after the other in one interpreter, each with its own output.

    python3 notebook.py CELLS.py

The cells of the file are divided by lines that begin with `# %%`. The interpreter is a background process of a session. So the variables
stay from cell to cell, and they survive a lost connection and a killed gateway. Ctrl-C interrupts the cell that runs, not the interpreter."""

from __future__ import annotations

import json
import pathlib
import re
import sys
from dataclasses import dataclass
from typing import Callable, Iterator

import trl_client
from trl_client import PIPE, Exited, Gap, Stderr, Stdout

# Runs in the session. A cell arrives as a line of JSON. Its output goes to stdout, errors too, so that it keeps its order; a line that begins
# with the control character RS ends it and says how the cell ended.
KERNEL = r"""
import ast, json, os, signal, sys, traceback
os.dup2(1, 2)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background process may begin with INT ignored
names = {"__name__": "__main__"}
print("\x1e" + json.dumps({}), flush=True)
for line in sys.stdin:
    done = {}
    try:
        body = ast.parse(json.loads(line)).body
        last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
        exec(compile(ast.Module(body, []), "<cell>", "exec"), names)
        value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names) if last else None
        done["value"] = None if value is None else repr(value)
    except BaseException as e:
        done["error"] = traceback.format_exception_only(type(e), e)[-1].strip()
    print("\x1e" + json.dumps(done), flush=True)
"""


@dataclass
class Outcome:
    value: str | None = None  # of the cell's last expression
    error: str | None = None


class Notebook:
    def __init__(self, session: trl_client.Session) -> None:
        self._process = session.start_process(["python3", "-u", "-c", KERNEL], stdin=PIPE)
        self._offset = 0  # of the output that was read
        self._follow()
        self._until_done(print)  # now the interpreter is there

    def _follow(self) -> None:
        self._events = self._process.stream_logs(self._offset)
        self._text = ""  # what was read and belongs to no outcome yet

    def run(self, cell: str, show: Callable[[str], object]) -> Outcome:
        """Runs a cell. `show` gets its output as it comes. KeyboardInterrupt interrupts the cell, which then ends with an error."""
        self._process.write(json.dumps(cell) + "\n")
        try:
            return self._until_done(show)
        except KeyboardInterrupt:
            self._process.kill("INT")
            self._follow()  # the interrupt has ended the iteration
            return self._until_done(show)

    def _until_done(self, show: Callable[[str], object]) -> Outcome:
        while True:
            output, mark, end = self._text.partition("\x1e")
            if output:
                show(output)
            self._text = mark + end
            if end.endswith("\n"):
                self._text = ""
                return Outcome(**json.loads(end))
            event = next(self._events)
            if isinstance(event, (Stdout, Stderr)):
                self._text += event.data
                self._offset = event.offset + len(event.raw)
            elif isinstance(event, Gap):
                self._text += f"[{event.to - event.from_} bytes are gone]"
            elif isinstance(event, Exited):
                raise RuntimeError(f"the interpreter has ended with exit code {event.exit_code}")

    def close(self) -> None:
        self._process.kill()


def cells(path: str) -> Iterator[str]:
    for cell in re.split(r"^# %%.*\n", pathlib.Path(path).read_text(), flags=re.MULTILINE):
        if cell.strip():
            yield cell


def main(path: str) -> None:
    with trl_client.connect() as sandbox, sandbox.create_session() as session:
        notebook = Notebook(session)
        for number, cell in enumerate(cells(path), 1):
            print(f"In [{number}]: " + cell.strip().replace("\n", "\n    "))
            outcome = notebook.run(cell, lambda output: print(output, end="", flush=True))
            if outcome.error:
                print(f"Error[{number}]: {outcome.error}", flush=True)
            elif outcome.value:
                print(f"Out[{number}]: {outcome.value}", flush=True)
        notebook.close()


if __name__ == "__main__":
    main(sys.argv[1])
