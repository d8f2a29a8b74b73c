"""Every program in the documents runs and prints what stands below it."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import trl_client
from conftest import DEADLINE, ROOT, Gateway, environment

PROGRAM = re.compile(r"```python\n(.*?)```\n\n```text\n(.*?)```", re.DOTALL)
PAGES = [ROOT / "docs" / "clients" / "python.md", ROOT / "client" / "python" / "README.md"]
TEXT = "".join(page.read_text() for page in PAGES)
PROGRAMS = PROGRAM.findall(TEXT)


def test_every_program_has_its_output() -> None:
    assert TEXT.count("```python\n") == len(PROGRAMS) > len(PAGES)


def test_the_migration_table_names_what_there_is() -> None:
    """Every call in a column named Python is a name of this package."""
    table, wrong, calls = (ROOT / "docs/clients/migration.md").read_text(), [], 0
    classes = [trl_client.Sandbox, trl_client.Command, trl_client.Process, trl_client.Terminal]
    names = set(dir(trl_client)).union(*map(dir, classes))
    column = -1
    for line in table.splitlines():
        cells = [c.strip() for c in line.split("|")]
        if "Python" in cells:
            column = cells.index("Python")
        elif len(cells) == 6 and column > 0:
            for name in re.findall(r"\b([a-z_]+)(?:\(|`)", cells[column]):
                calls += 1
                if name not in names | {"break"}:
                    wrong.append(f"{name} in: {line}")
    assert not wrong and calls > 50, (wrong, calls)


@pytest.mark.parametrize(("program", "output"), PROGRAMS)
def test_program(program: str, output: str, shared_gateway: Gateway) -> None:
    pytest.importorskip("websockets")
    env = environment() | {"PYTHONPATH": str(ROOT / "client" / "python"), "TRL_STATE_DIR": shared_gateway.state}
    program = program.replace("sleep 0.1", "sleep 3")  # longer than a busy machine stands still: what a reader finds together is one piece
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=DEADLINE)
    assert (done.stdout, done.stderr, done.returncode) == (output, "", 0)
