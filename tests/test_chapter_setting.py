"""The line at the top of a chapter: what it returns, what it refuses, what assertions do, and that every chapter has it."""

from __future__ import annotations

import json
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell
from nbclient import NotebookClient

import pfl_lite
from pfl_lite.chapter import Setting, setting, tell
from pfl_lite.errors import InputError

ROOT = Path(__file__).resolve().parent.parent

BOOK = Path(__file__).resolve().parent.parent / "book"
LINE = re.compile(
    r'^DATA, DEVICE, TIMES = setting\("(\w+)", "cpu", "quick", written_for="\1"\)$', re.MULTILINE
)
SWITCHED = [
    "a-gate-between-two-experts", "assembling-a-network-per-client", "clients-are-not-alike", "clusters",
    "federated-learning-in-twenty-lines", "generated-models", "mixtures", "neighbours", "one-model-or-many",
    "pfedmb", "pulling-towards-the-centre", "sharing-a-part", "two-models-one-tie", "what-an-upload-tells",
    "what-to-try-first",
]  # fmt: skip


@pytest.fixture
def color_photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A data folder with a CIFAR-10 of 5,000 random images."""
    rng = np.random.default_rng(0)
    arrays = {
        f"{split}_{kind}": rng.integers(0, 256, (n, 32, 32, 3), np.uint8)
        if kind == "images"
        else np.arange(n) % 10
        for split, n in (("train", 4500), ("test", 500))
        for kind in ("images", "labels")
    }
    np.savez(tmp_path / "cifar10.npz", **arrays)
    monkeypatch.setenv("PFL_LITE_DATA", str(tmp_path))


def test_as_written_nothing_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert setting("digits", "cpu", "quick", written_for="digits") == Setting("digits", "cpu", 1)
    assert not capsys.readouterr().out


@pytest.mark.usefixtures("color_photos")
def test_quick_takes_a_part_of_large_data_and_full_takes_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert setting("cifar10", written_for="digits") == ("cifar10:0.444", "cpu", 1)
    assert capsys.readouterr().out == (
        "cifar10:0.444 on cpu, rounds as in the text, which is about digits on cpu, quick.\n"
    )
    assert setting("cifar10:0.1", written_for="digits").data == "cifar10:0.1"
    assert setting("cifar10", "cpu", "full", written_for="digits") == ("cifar10", "cpu", 10)
    assert setting("glyphs10", written_for="digits").data == "glyphs10"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            ("glyphs", "cpu", "quick"),
            "glyphs has 62 classes, and this chapter's cells need 10: digits, glyphs10",
        ),
        (("digitz", "cpu", "quick"), "unknown data set 'digitz': did you mean digits"),
        (("digits", "gpu", "quick"), "device must be one of cpu, cuda, not 'gpu'"),
        (("digits", "cpu", "long"), "unknown length 'long'"),
    ],
)
def test_a_wrong_setting_is_refused(change: tuple[str, str, str], says: str) -> None:
    with pytest.raises(InputError, match=re.escape(says)):
        setting(*change, written_for="digits")


def test_cuda_is_refused_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="finds no CUDA device"):
        setting("digits", "cuda", written_for="digits")


def test_assertions_speak_instead_of_stopping_only_away_from_the_text(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pfl_lite.chapter._told", set())
    shell = InteractiveShell()
    monkeypatch.setattr("builtins.get_ipython", lambda: shell, raising=False)

    def cell(code: str) -> Any:
        return shell.run_cell(code, store_history=False)

    cell("from pfl_lite.chapter import setting")
    cell('setting("glyphs10", written_for="digits")')
    capsys.readouterr()
    done = cell("for x in range(3):\n    assert x < 1, 'small'\nassert x == 2\nafter = True")
    assert done.success and shell.user_ns["after"]
    assert capsys.readouterr().out == "other than in the text: x < 1\n"
    assert cell("assert [0][1] > 2").success  # a statement that has no meaning here does not hold
    assert (
        capsys.readouterr().out
        == "other than in the text: [0][1] > 2 (IndexError: list index out of range)\n"
    )
    cell('setting("glyphs10", written_for="digits")')
    capsys.readouterr()
    cell("assert [0][1] > 2")  # set again, it is said again
    assert "other than in the text" in capsys.readouterr().out
    with monkeypatch.context() as graded:
        graded.setenv("NBGRADER_EXECUTION", "autograde")
        cell('setting("glyphs10", written_for="digits")')
    assert not cell("assert 1 > 2").success  # no setting of a student's passes tests
    cell('setting("glyphs10", written_for="digits")')
    assert not cell("[0][1]").success  # a fault still stops
    cell('setting("digits", written_for="digits")')
    assert not cell("assert 1 > 2").success


def test_a_statement_is_told_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pfl_lite.chapter._told", set())
    for holds in (True, False, False):
        tell(lambda holds=holds: holds, "a < b")
    assert capsys.readouterr().out == "other than in the text: a < b\n"


@pytest.mark.parametrize("name", SWITCHED)
def test_a_chapter_has_the_line_in_its_first_cell_and_uses_it(name: str) -> None:
    cells = [c.source for c in nbformat.read(BOOK / f"{name}.ipynb", 4).cells if c.cell_type == "code"]
    found = LINE.findall(cells[0])
    assert len(found) == 1
    rest = "\n".join(cells).replace(LINE.search(cells[0])[0], "")  # type: ignore[index]
    for name_of_three in ("DATA", "DEVICE", "TIMES"):
        assert re.search(rf"\b{name_of_three}\b", rest), name_of_three
    named = re.findall(rf'(?:"data": |data=|load\(|make_federation\(\s*)"{found[0]}"', rest)
    assert not named  # nothing that the line is meant to switch is named again below


@pytest.mark.usefixtures("color_photos")
def test_a_chapter_runs_on_other_data_with_its_line_changed() -> None:
    notebook = nbformat.read(BOOK / "federated-learning-in-twenty-lines.ipynb", 4)
    first = next(cell for cell in notebook.cells if cell.cell_type == "code")
    first.source, count = LINE.subn(
        'DATA, DEVICE, TIMES = setting("cifar10:0.1", written_for="digits")', first.source
    )
    assert count == 1
    NotebookClient(
        notebook, timeout=1800, startup_timeout=600, resources={"metadata": {"path": str(BOOK)}}
    ).execute()
    said = "".join(o.get("text", "") for cell in notebook.cells for o in cell.get("outputs", []))
    assert "cifar10:0.1 on cpu" in said and "other than in the text: " in said
    assert said.count("ours = the package's") == 2  # what needs no particular data holds on noise, too


def test_names_that_chapters_import_are_those_of_their_rooms() -> None:
    from pfl_lite import chapter

    for room, names in chapter._ROOMS.items():
        for name in names.split():
            assert getattr(chapter, name) is getattr(import_module(f"pfl_lite.{room}"), name)
    for name in pfl_lite.__all__:
        assert getattr(pfl_lite, name) is not None
    with pytest.raises(AttributeError, match="nothing"):
        chapter.nothing  # noqa: B018


@pytest.mark.parametrize("chapter", sorted((ROOT / "book").glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_chapter_opens_with_few_imports_of_the_package_and_all_of_them_are_there(chapter: Path) -> None:
    cells = [
        cell["source"] for cell in json.loads(chapter.read_text())["cells"] if cell["cell_type"] == "code"
    ]
    found = [
        re.findall(r"^from (pfl_lite\S*) import (\([^)]*\)|.*)$", "".join(cell), re.MULTILINE)
        for cell in cells
    ]
    assert len(next((imports for imports in found if imports), [])) <= 6
    for module, names in [one for imports in found for one in imports]:
        for name in re.findall(r"(\w+)(?: as \w+)?", re.sub("#.*", "", names.strip("()"))):
            assert hasattr(import_module(module), name) or import_module(f"{module}.{name}"), (module, name)
