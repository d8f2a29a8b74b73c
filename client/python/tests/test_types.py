"""The types: of the package, and as users meet them."""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT, environment

PACKAGE = ROOT / "client" / "python"
TESTS = PACKAGE / "tests"


def mypy(*files: pathlib.Path) -> subprocess.CompletedProcess[str]:
    program = shutil.which("mypy")
    if program is None:
        pytest.skip("mypy is not installed")
    command = [program, "--strict", "--cache-dir=/dev/null", *map(str, files)]
    return subprocess.run(command, env=environment() | {"MYPYPATH": str(PACKAGE)}, capture_output=True, text=True)


def test_the_package_and_programs_that_use_it_are_typed() -> None:
    done = mypy(PACKAGE / "trl_client", TESTS / "typed_examples.py")
    assert done.returncode == 0, done.stdout


def test_mistakes_are_found() -> None:
    program = TESTS / "wrong_examples.py"
    lines = program.read_text().splitlines()
    wrong = {n for n, line in enumerate(lines, 1) if "# wrong" in line}
    found = {int(n) for n in re.findall(r"wrong_examples\.py:(\d+): error", mypy(program).stdout)}
    assert found == wrong


def test_pip_installs_what_the_program_writes(binary: str, tmp_path: pathlib.Path) -> None:
    """Offline, from a wheel, and what is installed has everything."""
    source = tmp_path / "source"
    subprocess.run([binary, "sdk", "python", str(source)], check=True, capture_output=True)
    offline = ["--quiet", "--no-index", "--no-deps"]
    if subprocess.run([sys.executable, "-c", "import setuptools, pip, wheel"], capture_output=True).returncode:
        pytest.skip("pip, setuptools or wheel is not installed")
    target = tmp_path / "target"
    wheel = [sys.executable, "-m", "pip", "wheel", *offline, "--no-build-isolation", "-w", str(tmp_path), str(source)]
    subprocess.run(wheel, check=True, capture_output=True)
    (made,) = tmp_path.glob("trl_client-*-py3-none-any.whl")
    install = [sys.executable, "-m", "pip", "install", *offline, "--target", str(target), str(made)]
    subprocess.run(install, check=True, capture_output=True)
    ours = {str(p.relative_to(PACKAGE)) for p in (PACKAGE / "trl_client").rglob("*.py")} | {"trl_client/py.typed"}
    theirs = {str(p.relative_to(target)) for p in target.rglob("*") if p.is_file()}
    assert ours <= theirs
    program = "import trl_client; print(trl_client.__file__)"
    env = {"PYTHONPATH": str(target)}
    done = subprocess.run([sys.executable, "-c", program], env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.startswith(str(target))
