"""Every program in the documents runs and prints what stands below it."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from conftest import DEADLINE, ROOT, Gateway, environment

PROGRAM = re.compile(r"```python\n(.*?)```\n\n```text\n(.*?)```", re.DOTALL)
PAGE = ROOT / "docs" / "clients" / "python.md"
PROGRAMS = PROGRAM.findall(PAGE.read_text())


def test_every_program_has_its_output() -> None:
    assert PAGE.read_text().count("```python\n") == len(PROGRAMS) > 0


@pytest.mark.parametrize(("program", "output"), PROGRAMS)
def test_program(program: str, output: str, shared_gateway: Gateway) -> None:
    pytest.importorskip("websockets")
    env = environment() | {"PYTHONPATH": str(ROOT / "client" / "python"), "TRL_STATE_DIR": shared_gateway.state}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=DEADLINE)
    assert (done.stdout, done.stderr, done.returncode) == (output, "", 0)
