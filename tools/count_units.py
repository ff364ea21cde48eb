"""Count what a reader has before them, page by page: words, visible code, figures, lines that do not fit, and
seconds of processor time.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import NamedTuple

from chapter_text import FOLDED, LAB, Chapter, chapters, chosen, pieces

ROOT = Path(__file__).resolve().parent.parent
SECONDS = ROOT / "_build" / "seconds.json"  # what tools/execute_book.py noted last
WORDS, CODE = 1800, 120  # at most, in a unit that has a laboratory
WIDE = 93  # characters that fit beside the margin at 1440 pixels


class Count(NamedTuple):
    """What a page has: words of text, lines of code that are not folded, figures, and lines that scroll sideways."""

    words: int
    code: int
    figures: int
    wide: int


def words(text: str) -> int:
    """Words of a Markdown text, without formulas on lines of their own, options of directives, HTML and words for pictures."""
    text = re.sub(
        r"\$\$.*?\$\$|^```\{math\}.*?^```$|<[^>]*>|!\[[^\]]*\]\([^)]*\)",
        " ",
        text,
        flags=re.DOTALL | re.MULTILINE,
    )
    text = re.sub(r"^:[\w-]+:.*$|^[:`]{3,}.*$|^\([\w-]+\)=$", " ", text, flags=re.MULTILINE)
    return sum(any(sign.isalnum() for sign in word) for word in text.split())


def count(chapter: Chapter) -> Count:
    """Count a page, without its solutions and its quiz."""
    total, code, figures, wide = 0, 0, 0, 0
    for piece in pieces(chapter):
        cell = piece.cell
        if piece.place == "solution" or cell.id.startswith("quiz"):
            continue
        if cell.cell_type == "markdown":
            total += words(cell.source)
            figures += len(re.findall(r"^```\{figure\}|^!\[", cell.source, flags=re.MULTILINE))
            continue
        shown = (
            []
            if FOLDED & set(cell.metadata.get("tags", []))
            else [line for line in cell.source.splitlines() if line.strip()]
        )
        code += len(shown)
        figures += sum("image/png" in out.get("data", {}) for out in cell.outputs)
        printed = [line for out in cell.outputs for line in out.get("text", "").splitlines()]
        wide += sum(len(line) > WIDE for line in shown + printed)
    return Count(total, code, figures, wide)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="pages, without .ipynb (default: all)")
    names, known = parser.parse_args().names, chapters(ROOT / "book")
    seconds = json.loads(SECONDS.read_text()) if SECONDS.is_file() else {}
    cut = {chapter.name.removeprefix(LAB) for chapter in known if chapter.name.startswith(LAB)}
    print(f"{'page':48} {'words':>6} {'code':>5} {'figures':>8} {'wide':>5} {'seconds':>8}")
    for chapter in chosen(known, names):
        found, took = count(chapter), seconds.get(chapter.name, "-")
        late = "  too long" if chapter.name in cut and (found.words > WORDS or found.code > CODE) else ""
        print(
            f"{chapter.name:48} {found.words:6} {found.code:5} {found.figures:8} {found.wide:5} {took:>8}{late}"
        )
