"""Chapters as they are stored: complete, in order, without an error, and small enough to read and to review.

nbval compares nothing for a cell that was never run, so this is what makes `make test` mean something.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from base64 import b64decode
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from pfl_lite.show.plots import SHARP

BOOK = Path(__file__).resolve().parent.parent / "book"
CHAPTERS = sorted(BOOK.glob("*.ipynb"))


def cells(chapter: Path, kind: str = "code") -> list[dict[str, Any]]:
    """The cells of one kind, without empty ones."""
    notebook = json.loads(chapter.read_text(encoding="utf-8"))
    return [
        cell for cell in notebook["cells"] if cell["cell_type"] == kind and "".join(cell["source"]).strip()
    ]


def text(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


def test_there_are_chapters() -> None:
    assert CHAPTERS, "book/ holds no notebook, so the tests of this file would check nothing"


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
class TestChapter:
    def test_every_cell_ran_in_order(self, chapter: Path) -> None:
        counts = [cell["execution_count"] for cell in cells(chapter)]
        assert counts == list(range(1, len(counts) + 1)), f"run it again: make chapters NAMES={chapter.stem}"

    def test_no_cell_failed(self, chapter: Path) -> None:
        for number, cell in enumerate(cells(chapter), start=1):
            allowed = "raises-exception" in cell["metadata"].get("tags", [])
            errors = [out.get("ename") for out in cell["outputs"] if out["output_type"] == "error"]
            assert allowed or not errors, f"code cell {number} stored the error {errors}"

    def test_is_small(self, chapter: Path) -> None:
        assert chapter.stat().st_size < 500_000, f"{chapter.stat().st_size / 1000:.0f} kB: draw or print less"

    def test_figures_are_sharp(self, chapter: Path) -> None:
        for number, cell in enumerate(cells(chapter), start=1):
            for out in cell["outputs"]:
                if "image/png" in out.get("data", {}):
                    picture = Image.open(BytesIO(b64decode(out["data"]["image/png"])))
                    shown = out["metadata"].get("image/png", {}).get("width")
                    assert shown == picture.width // SHARP, f"code cell {number} drew before use_style()"

    def test_name_survives_in_an_address(self, chapter: Path) -> None:
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", chapter.stem)

    def test_code_of_solutions_is_tagged(self, chapter: Path) -> None:
        notebook = json.loads(chapter.read_text(encoding="utf-8"))
        inside = False
        for cell in notebook["cells"]:
            if cell["cell_type"] == "markdown":
                # A gate may open and close several times; the last one of the cell decides.
                for gate in re.findall(r"\{solution-(start|end)\}", text(cell)):
                    inside = gate == "start"
            elif text(cell).strip():
                tagged = "solution" in cell["metadata"].get("tags", [])
                assert tagged == inside, (
                    f"tag 'solution' {'missing' if inside else 'outside a solution'}: {text(cell)[:60]!r}"
                )
        assert not inside, "a solution-start without its solution-end"

    def test_tells_what_it_needs_and_teaches(self, chapter: Path) -> None:
        prose = "\n".join(text(cell) for cell in cells(chapter, "markdown")).lower()
        parts = ("what you will learn", "before you start", "what you learned", "{exercise")
        for part in () if chapter.stem.startswith("lab-") else parts:
            assert part in prose, f"the chapter has no '{part}'"
        ends = re.findall(r"^## (quiz|exercises|what you learned)\b", prose, re.MULTILINE)
        assert ends == sorted(ends, key=("quiz", "exercises", "what you learned").index)


UNITS = [path for path in CHAPTERS if not path.stem.startswith("lab-")]


@pytest.mark.parametrize("chapter", UNITS, ids=lambda path: path.stem)
def test_a_chapter_says_its_level_what_it_needs_and_how_long_it_takes(chapter: Path) -> None:
    prose = "\n".join(text(cell) for cell in cells(chapter, "markdown")[:4])
    said = re.findall(r"\*\*(Level|Before you start|Time)\.\*\* \S", prose)
    assert said == ["Level", "Before you start", "Time"]
    assert re.search(r"^\*\*Level\.\*\* (First steps|Core|Advanced)\b", prose, re.MULTILINE)


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
def test_equal_results_are_equal_text(chapter: Path) -> None:
    """Ids of tables are numbered and addresses of objects blank, as chance draws both in every run: a diff shows what changed."""
    outputs = json.dumps([cell["outputs"] for cell in cells(chapter)])
    tables = {int(one, 16) for one in re.findall(r"\bT_([0-9a-f]{5})", outputs)}
    assert tables == set(range(1, len(tables) + 1)), "`make chapters` numbers them"
    assert {*re.findall(r"\bat 0x([0-9a-f]+)", outputs)} <= {"0"}, "`make chapters` blanks them"


def tool_and_pages(folder: Path, *pages: list[tuple[str, list[str]]]) -> list[str]:
    """The command that executes pages of cells (source, tags), from a copy of the tool: it writes its seconds beside itself."""
    (folder / "book").mkdir()
    (folder / "tools").mkdir()
    for number, page in enumerate(pages):
        cells = [
            {"cell_type": "code", "execution_count": None, "outputs": [], "source": source, "id": f"cell{at}"}
            | {"metadata": {"tags": tags}}
            for at, (source, tags) in enumerate(page)
        ]
        stored = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
        (folder / f"book/page{number}.ipynb").write_text(json.dumps(stored), encoding="utf-8")
    tool = shutil.copy(BOOK.parent / "tools/execute_book.py", folder / "tools")
    return [sys.executable, str(tool), str(folder / "book")]


@pytest.mark.slow
def test_an_interrupted_book_goes_on_with_the_chapters_that_it_lacks(tmp_path: Path) -> None:
    ran, go_on, kept = (tmp_path / name for name in ("ran", "go on", "kept"))
    note = f"print('seen'); print({{}}, file=open({str(ran)!r}, 'a'), flush=True)"
    wait = f"import os, time\nwhile not os.path.exists({str(go_on)!r}): time.sleep(0.1)"
    command = [*tool_and_pages(tmp_path, [(note.format(0), [])], [(f"{note.format(1)}\n{wait}", [])])]
    command += ["--kept", str(kept)]
    (package := tmp_path / "pfl_lite").mkdir()
    shutil.copytree(tmp_path / "book", tmp_path / "source")

    def call() -> subprocess.Popen[str]:
        shutil.rmtree(tmp_path / "book")
        shutil.copytree(tmp_path / "source", tmp_path / "book")
        start = ["env", "--default-signal=INT", *command]
        return subprocess.Popen(start, stdout=subprocess.PIPE, text=True, start_new_session=True)

    def ended(started: subprocess.Popen[str]) -> tuple[list[str], str]:
        said, _ = started.communicate(timeout=900)
        runs = ran.read_text().split()
        ran.write_text("")
        return sorted(runs), said

    started, end = call(), time.monotonic() + 900
    while not (any(kept.glob("*.ipynb")) and "1" in ran.read_text()) and time.monotonic() < end:
        time.sleep(0.2)
    os.killpg(started.pid, signal.SIGINT)
    runs, said = ended(started)
    assert runs == ["0", "1"] and "and is taken over by the next call" in said and started.returncode == 130
    go_on.touch()
    runs, said = ended(call())
    assert runs == ["1"] and "Taking over 1 chapter that" in said and "1 of 1 chapters ran" in said
    assert all('"seen\\n"' in (tmp_path / f"book/page{i}.ipynb").read_text() for i in (0, 1))
    assert ended(call())[0] == []  # as long as nothing has removed what is kept
    (package / "changed.py").touch()
    assert ended(call())[0] == ["0", "1"]


@pytest.mark.slow
def test_a_result_that_cannot_be_shown_is_reported(tmp_path: Path) -> None:
    """Such a cell stores an error, but its kernel goes on."""
    source = "class Shy:\n    def _repr_html_(self):\n        raise ValueError('not like\\nthis')\n\nShy()"
    command = tool_and_pages(tmp_path, [(source, ["raises-exception"]), (source, [])])
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (
        ran.returncode == 1
        and "cell 2: its result could not be shown: ValueError: not like this" in ran.stdout
    )


@pytest.mark.slow
def test_a_cell_that_takes_too_long_is_reported_in_a_few_words(tmp_path: Path) -> None:
    command = tool_and_pages(tmp_path, [("import time; time.sleep(3600)", [])])
    tool = Path(command[1])
    tool.write_text(tool.read_text(encoding="utf-8").replace("SIGN_OF_LIFE = 60.0", "SIGN_OF_LIFE = 0.2"))
    ran = subprocess.run([*command, "--timeout", "1"], capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    said = r" s  cell 1 took longer than 1 s; with TIMEOUT=6, make gives a cell six times as long$"
    assert re.search(said, ran.stdout, re.MULTILINE) and "\n       still at page0\n" in ran.stdout


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_ends_the_kernels_too(tmp_path: Path, number: signal.Signals) -> None:
    """A worker whose notebook was interrupted must not go on to the next one, and leave it running when the tool has ended."""
    at = tmp_path / "pids"
    source = f"import os, time\nprint(os.getpid(), file=open({str(at)!r}, 'a'), flush=True)\ntime.sleep(3600)"
    command = tool_and_pages(tmp_path, *[[(source, [])]] * 4)
    # as a shell's own in a terminal, whatever this process ignores
    started = subprocess.Popen(
        ["env", "--default-signal=INT", *command], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    end = time.monotonic() + 900
    while not (at.exists() and len(at.read_text().splitlines()) == 2) and time.monotonic() < end:
        time.sleep(0.2)
    os.killpg(started.pid, number)
    said, _ = started.communicate(timeout=900)
    assert started.returncode == 130 and "\ninterrupted: " in said
    kernels = [int(pid) for pid in at.read_text().splitlines()]
    end = time.monotonic() + 900
    while any(Path(f"/proc/{pid}").exists() for pid in kernels) and time.monotonic() < end:
        time.sleep(0.2)
    assert len(kernels) == 2 and not any(Path(f"/proc/{pid}").exists() for pid in kernels)
