"""The drawn language: every method has a card, the cards fit and speak, and the book shows the cards as they are."""

from __future__ import annotations

import importlib
import re
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path
from types import ModuleType

import cards
import matplotlib
import pytest
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath

from pfl_lite.methods import METHODS
from pfl_lite.show.offices import OFFICES, SHARED
from pfl_lite.show.plots import METHOD_COLORS, METHOD_LABELS

ROOT = Path(__file__).resolve().parent.parent
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def tool() -> ModuleType:
    """tools/update_pictures.py."""
    return importlib.import_module("update_pictures")


def test_every_method_has_a_card() -> None:
    missing, strange = set(METHODS) - set(cards.CARDS), set(cards.CARDS) - set(METHODS)
    assert not missing, f"no entry in CARDS of tools/cards.py: {', '.join(sorted(missing))}"
    assert not strange, f"no such method: {', '.join(sorted(strange))}"


def test_every_method_has_a_label_and_a_color() -> None:
    missing = METHODS.keys() - METHOD_LABELS.keys()
    assert not missing, f"no entry in _METHODS of pfl_lite/show/plots.py: {', '.join(sorted(missing))}"


def test_every_method_with_a_card_stands_beside_its_family() -> None:
    names = [family for family, _ in cards.families()]
    parted = {family for family in names if names.count(family) > 1}
    assert not parted, f"cards of one family must follow one another in CARDS of tools/cards.py: {parted}"


@pytest.mark.parametrize("method", cards.CARDS)
class TestCard:
    def test_words_fit(self, method: str) -> None:
        """In DejaVu Sans, wider than the fonts that most readers have."""
        found = {}
        for text in ET.fromstring(cards.svg(method)).iter(f"{SVG}text"):
            size, words = float(text.get("font-size", 0)), str(text.text)
            width = (
                TextPath((0, 0), words, size, prop=FontProperties(family="DejaVu Sans")).get_extents().width
            )
            x, anchor = float(text.get("x", 0)), text.get("text-anchor")
            left = x - {"start": 0, "middle": 0.5, "end": 1}[str(anchor)] * width
            found[words] = (left, left + width)
        for words, (left, right) in found.items():
            assert left > 10 and right < cards.WIDTH - 8, f"{words} is cut off"
        card = cards.CARDS[method]
        for name in cards.FACTS:
            rows = cards.lines(getattr(card, name))
            assert 1 <= len(rows) <= 2, f"{name} has {len(rows)} lines"
            assert all(found[row][1] - found[row][0] < 262 for row in rows), f"{name} runs into its neighbor"
        boxes = [piece.label for piece in card.office]
        assert len(boxes) <= 3 and all(found[label][1] - found[label][0] < 132 for label in boxes)

    def test_arrows_and_hatching_agree(self, method: str) -> None:
        card = cards.CARDS[method]
        assert bool(card.down) == bool(card.up) == bool(card.server)
        assert any(piece.travels for piece in card.office) == bool(card.server)

    def test_nothing_is_personal_without_a_piece_of_ones_own(self, method: str) -> None:
        card = cards.CARDS[method]
        one_model = METHODS[method].traits.one_model and not METHODS[method].ft_epochs
        assert card.when.startswith("never") == one_model
        if not card.when.startswith("never"):
            assert any(piece.own for piece in card.office) or "group" in card.office[0].label

    def test_words_name_every_piece(self, method: str) -> None:
        words = cards.words(method)
        card = cards.CARDS[method]
        assert all(piece.label in words for piece in (*card.server, *card.office)) and card.says in words
        assert not re.search(r"[\[\]`*|]", words), "it stands in Markdown"

    def test_its_chapter_exists(self, method: str) -> None:
        assert (ROOT / f"book/{cards.CARDS[method].chapter}.ipynb").is_file()


def test_the_map_holds_every_card_and_is_a3() -> None:
    sheet = cards.poster()
    root = ET.fromstring(sheet)
    assert all(cards.drawn(method) in sheet for method in cards.CARDS)
    _, _, wide, high = map(float, str(root.get("viewBox")).split())
    assert 1.2 < wide / high < 1.5


def test_the_book_shows_the_cards_as_they_are(tool: ModuleType) -> None:
    outdated = []
    for path, content in tool.files():
        stored = path.read_text(encoding="utf-8") if path.is_file() else ""
        if path.parent.name == "ideas" and f"Matplotlib v{matplotlib.__version__}" not in stored:
            assert stored, path.name  # another version draws the same picture with other numbers
        elif stored != content:
            outdated.append(str(path.relative_to(ROOT)))
    assert not outdated, f"make reference: {', '.join(outdated)}"


def test_only_the_cell_of_cards_is_written(tool: ModuleType) -> None:
    stored = (ROOT / "book/pfedmb.ipynb").read_text(encoding="utf-8")
    changed = tool.with_cell(stored, "cards", "something else")
    assert changed != stored and tool.with_cell(changed, "cards", tool.cell("pfedmb")) == stored


def test_the_cheat_sheet_has_every_method_in_a_line(tool: ModuleType) -> None:
    sheet = importlib.import_module("cheat_sheet")
    assert [row[0] for row in sheet.rows()] == list(cards.CARDS)
    assert len({row[-1] for row in sheet.rows()}) == len(cards.CARDS), "two methods with one formula"
    lines = [line for line in sheet.page().splitlines() if line.startswith("| [")]
    assert len(lines) == len(cards.CARDS) and all(line.count("|") == 7 for line in lines)
    stays = {row[0]: row[2] for row in sheet.rows()}
    assert stays["fedavg"] == "nothing" and stays["fedper"] == "head" and stays["pfedmb"] == "mix α"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is missing")
def test_the_cheat_sheet_is_one_page(tool: ModuleType) -> None:
    sheet = importlib.import_module("cheat_sheet")
    assert sheet.main() == 0
    pdf = (ROOT / "_build/cheat-sheet.pdf").read_bytes()
    assert len(re.findall(rb"/Type /Page\b", pdf)) == 1 and b"MathJax" in pdf, (
        "two pages, or formulas that are not set"
    )


def test_offices_keep_apart() -> None:
    assert len({office.color for office in OFFICES} | {SHARED}) == len(OFFICES) + 1 == 9
    assert len({office.letter for office in OFFICES}) == 8
    assert {office.color for office in OFFICES} | {SHARED} <= set(METHOD_COLORS.values())
