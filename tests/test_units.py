"""Units of the course are short, and each that has been cut has its laboratory behind it."""

from __future__ import annotations

import re
from pathlib import Path

import count_units
import pytest
from chapter_text import ALONE
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

ROOT = Path(__file__).resolve().parent.parent
UNITS = sorted({path.stem.removeprefix("lab-") for path in (ROOT / "book").glob("lab-*.ipynb")} - ALONE)


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_is_short_and_leads_to_its_laboratory(name: str) -> None:
    known = {chapter.name: chapter for chapter in count_units.chapters(ROOT / "book")}
    unit, lab = known[name], known[f"lab-{name}"]
    found = count_units.count(unit)
    assert found.words <= count_units.WORDS and found.code <= count_units.CODE and not found.wide, found
    assert lab.title.startswith("Laboratory: ") and f"]({name})" in lab.notebook.cells[0].source
    assert any(f"](lab-{name})" in cell.source for cell in unit.notebook.cells)
    assert list(known).index(name) < list(known).index(lab.name)


def test_what_is_counted() -> None:
    text = "# Two words\n\n$$\nx = 1\n$$ (eq-x)\n\n![not these](a.svg)\n\n```{figure} b.svg\n:alt: nor these\n\nBut these\n```"
    assert count_units.words(text) == 5  # and the label of the equation
    folded = new_code_cell("a = 1\nb = 2", metadata={"tags": ["hide-input"]})
    seen = new_code_cell("c = 3\n\n" + "d" * 96, outputs=[new_output("stream", text="e" * 96 + "\nf\n")])
    cells = [new_markdown_cell(text), folded, seen, new_markdown_cell("No question", id="quiz")]
    chapter = count_units.Chapter("x", 1, "X", new_notebook(cells=cells))
    assert count_units.count(chapter) == count_units.Count(words=5, code=2, figures=2, wide=2)


def test_a_first_look_is_shorter() -> None:
    (first,) = [one for one in count_units.chapters(ROOT / "book") if one.name == "what-to-try-first"]
    assert count_units.count(first).words <= 900


FITS = 90  # characters of a line of code that the column of text has room for at 1440 pixels


def test_code_on_pages_fits_their_column() -> None:
    wide = []
    for page in sorted((ROOT / "book").glob("*.md")):
        for block in re.findall(
            r"^```(?:python|bash)\n(.*?)^```", page.read_text(encoding="utf-8"), re.S | re.M
        ):
            wide += [f"{page.name}: {line}" for line in block.splitlines() if len(line) > FITS]
    assert not wide, "\n".join(wide)
