"""Count what a reader has before them, page by page: words, visible code, figures, lines that do not fit, and
seconds of processor time.

With --write the units' rows go into tools/units.csv, which a test holds; screens and blocks that overflow are measured in
Chromium on a built site (--site _build/site), and kept as they were where none is given.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from chapter_text import FOLDED, LAB, Chapter, chapters, pieces
from make_pdf import chromium

ROOT = Path(__file__).resolve().parent.parent
SECONDS = ROOT / "_build" / "seconds.json"  # what tools/execute_book.py noted last
TABLE = ROOT / "tools" / "units.csv"
COLUMNS = [
    "unit", "words", "code", "figures", "screens_1440", "screens_390", "overflow_1440", "overflow_390", "seconds",
]  # fmt: skip
SCREENS = {1440: 900, 390: 844}  # width and height in pixels
# Blocks in sight that do not fit: on a desk those that scroll sideways, on a phone those that hang over the edge of the page
# without a box that scrolls. Folded code, and what a reader opens, is not in sight.
OVERFLOW = """
const blocks = "article :is(pre, table, img, svg, mjx-container[display], .output, .pfl-explorer, .pfl-player)";
const scrolls = (one) => ["auto", "scroll"].includes(getComputedStyle(one).overflowX);
const boxed = (one) => { for (; one !== document.body; one = one.parentElement) if (scrolls(one)) return one; };
return [...document.querySelectorAll(blocks)]
  .filter((one) => !one.closest("details:not([open]), .toggle-hidden, .dropdown") && one.getBoundingClientRect().width)
  .filter((one) => {
    const box = boxed(one);
    const over = one.getBoundingClientRect().right > innerWidth + 1 && !box;
    return over || innerWidth > 1000 && box && box.scrollWidth > box.clientWidth + 1;
  })
  .map((one) => one.outerHTML.replace(/\\s+/g, " ").slice(0, 90));
"""
WORDS, CODE = 1800, 120  # at most, in a unit that has a laboratory
SHORT = {"what-to-try-first", "a-year-later"}  # units without a laboratory
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


def measured(site: Path, names: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Screens of each page, and how many of its blocks overflow, at both widths; the blocks are printed."""
    from selenium import webdriver

    options, service = webdriver.ChromeOptions(), webdriver.ChromeService(shutil.which("chromedriver"))
    options.binary_location = str(chromium())
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1440,1000"):
        options.add_argument(argument)
    browser = webdriver.Chrome(options=options, service=service)
    try:
        for name in names:
            row: dict[str, Any] = {}
            for width, height in SCREENS.items():
                size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
                browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
                browser.get((site / f"{name}.html").resolve().as_uri())
                browser.execute_async_script(
                    "const [done] = arguments, set = window.MathJax?.startup?.promise ?? Promise.resolve();"
                    "set.then(() => setTimeout(done, 300))"
                )
                tall = browser.execute_script("return document.querySelector('article').scrollHeight")
                over = browser.execute_script(OVERFLOW)
                row |= {f"screens_{width}": f"{tall / height:.1f}", f"overflow_{width}": len(over)}
                for block in over:
                    print(f"{name}, {width} pixels: {block}")
            yield name, row
    finally:
        browser.quit()


def units(known: list[Chapter]) -> list[Chapter]:
    """The units: chapters that have a laboratory, and those of the course that need none."""
    cut = {chapter.name.removeprefix(LAB) for chapter in known if chapter.name.startswith(LAB)}
    return [chapter for chapter in known if chapter.name in cut | SHORT]


def table(site: Path | None = None) -> list[dict[str, Any]]:
    """The rows of units.csv: counted anew, measured anew if there is a site, and otherwise as they are stored."""
    listed = units(chapters(ROOT / "book"))
    stored = {}
    if TABLE.is_file():
        stored = {row["unit"]: row for row in csv.DictReader(TABLE.read_text(encoding="utf-8").splitlines())}
    seconds = json.loads(SECONDS.read_text()) if SECONDS.is_file() else {}
    seen = dict(measured(site, [chapter.name for chapter in listed])) if site else {}
    rows = []
    for chapter in listed:
        name, found = chapter.name, count(chapter)
        row = dict.fromkeys(COLUMNS, "") | stored.get(name, {}) | seen.get(name, {})
        row |= {"unit": name, "words": found.words, "code": found.code, "figures": found.figures}
        rows.append(row | ({"seconds": seconds[name]} if name in seconds else {}))
    return rows


def main() -> int:
    """Print the table, and what is too long in units that have a laboratory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="pages, without .ipynb (default: all)")
    parser.add_argument("--write", action="store_true", help="write the units' rows into tools/units.csv")
    parser.add_argument(
        "--site", type=Path, help="a built site, to measure screens and overflowing blocks on"
    )
    asked = parser.parse_args()
    if asked.write:
        rows = table(asked.site)
        with TABLE.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        print(f"wrote {TABLE.relative_to(ROOT)}")
        return 0
    names = asked.names
    known = chapters(ROOT / "book")
    seconds = json.loads(SECONDS.read_text()) if SECONDS.is_file() else {}
    cut = {chapter.name.removeprefix(LAB) for chapter in known if chapter.name.startswith(LAB)}
    print(f"{'page':48} {'words':>6} {'code':>5} {'figures':>8} {'wide':>5} {'seconds':>8}")
    for chapter in known:
        if not names or chapter.name in names:
            found = count(chapter)
            late = "  too long" if chapter.name in cut and (found.words > WORDS or found.code > CODE) else ""
            took = seconds.get(chapter.name, "-")
            print(
                f"{chapter.name:48} {found.words:6} {found.code:5} {found.figures:8} {found.wide:5} {took:>8}{late}"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
