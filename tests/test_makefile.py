"""What make says and leaves behind, with stand-ins for uv and Python that do nothing but tell."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("Makefile", "requirements.lock", "pyproject.toml", "tools/make_environment.sh", "tools/uv.sh")
UV = """#!/bin/sh
case "$1" in
  venv) for folder; do :; done; mkdir -p "$folder/bin"; cp "$STAND_INS/python" "$folder/bin/python";;
  build) echo "a wheel is built"; mkdir -p _build/wheel; touch _build/wheel/one.whl;;
esac
"""
PYTHON = """#!/bin/sh
case "$1" in
  --version) echo "Python 3.$MINOR.9";;
  -c) exec "$REAL" -c "import sys; sys.version_info = (3, $MINOR, 9); $2";;
  *) echo "$@";;
esac
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with what make needs of the repository, and stand-ins in `bin`."""
    for name in COPIED:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "bin").mkdir()
    for name, content in (("uv", UV), ("python", PYTHON)):
        (tmp_path / "bin" / name).write_text(content)
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path


def make(folder: Path, target: str, minor: int) -> subprocess.CompletedProcess[str]:
    """`make target` where uv finds a Python 3.`minor`."""
    stand_ins = str(folder / "bin")
    # nothing is inherited of the make that may have started the tests
    env = {"PATH": f"{stand_ins}:{os.environ['PATH']}", "STAND_INS": stand_ins}
    env |= {"MINOR": str(minor), "REAL": sys.executable}
    return subprocess.run(["make", target], cwd=folder, env=env, capture_output=True, text=True)


def test_a_python_that_is_too_old_is_refused_and_its_environment_removed(folder: Path) -> None:
    refused = make(folder, "environment", 10)
    said = "Python 3.10.9 is too old: this needs Python 3.11 or newer (.venv was removed; try again)"
    assert refused.returncode and refused.stderr.splitlines()[0] == said
    assert not (folder / ".venv").exists()
    assert make(folder, "environment", 11).returncode == 0 and (folder / ".venv" / ".installed").exists()


def test_a_book_that_is_complete_leaves_no_executed_chapters_to_go_on_from(folder: Path) -> None:
    assert make(folder, "environment", 12).returncode == 0
    (folder / "book").mkdir()
    (folder / "_build" / "executed").mkdir(parents=True)
    done = make(folder, "book", 12).stdout
    assert "execute_book.py _build/book-src --kept _build/executed " in done
    assert not (folder / "_build" / "executed").exists() and (folder / "_build" / "book-src").exists()


def test_make_course_says_first_what_it_begins_with(folder: Path) -> None:
    assert make(folder, "environment", 12).returncode == 0
    opening = "Making the course: first the package as a wheel, then each unit and laboratory (a few minutes)"
    work = ["a wheel is built", "tools/make_course.py --wheel _build/wheel/one.whl"]
    assert make(folder, "course", 12).stdout.splitlines() == [opening, *work]
