"""The book as one PDF: how its page is arranged, where chapters begin, and a book of two pages, printed."""

from __future__ import annotations

import shutil
from pathlib import Path

import make_pdf
import pytest
from bs4 import BeautifulSoup

TOC = {"root": "intro", "parts": [{"caption": "Parts & pieces", "chapters": [{"file": "two"}]}]}
CONFIG = {"title": "A <small> book", "author": "Us", "copyright": "2026"}
PAGE = """<html><head></head><body><header>Menu</header><article class="bd-article">
<section id="hello"><h1>Hello<a class="headerlink" href="#x">#</a></h1>
<details class="hide above-input"><summary>Show code cell source</summary><pre>draw()</pre></details><p>A figure.</p>
<div class="toctree-wrapper"><p class="caption">Parts</p><span id="document-two"></span><section id="second">
<h2><span class="section-number">1. </span>Second</h2><h3>Quiz</h3>
<div class="quiz"><details><summary>One</summary><p>No. It is two.</p></details></div>
<div class="solution dropdown admonition"><p>Because.</p></div></section></div></section></article></body></html>"""


def contents(page: str) -> list[tuple[str, str, str]]:
    """Lines of the table of contents: where they lead, what they say, the page's number."""
    links = BeautifulSoup(page, "html.parser").select(".book-contents a")
    return [(str(one["href"]), *(part.get_text() for part in one.find_all("span"))) for one in links]  # type: ignore[misc]


def test_the_page_is_arranged_for_paper() -> None:
    page = make_pdf.printable(PAGE, TOC, CONFIG, {"two": 7})
    assert contents(page) == [("#document-intro", "Hello", ""), ("#document-two", "1. Second", "7")]
    soup = BeautifulSoup(page, "html.parser")
    assert [one.get_text() for one in soup.select(".title-page h1, .book-contents h2")] == [
        "A <small> book",
        "Parts & pieces",
    ]
    assert [one.get_text() for one in soup.select(".chapter h1, .chapter h2")] == [
        "Hello#",
        "1. Second",
        "Quiz",
    ]
    assert "Menu" not in page and "@page" in page
    assert soup.select("details[open]") == soup.select("details") != []
    assert "draw()" not in page and "A figure." in page
    # This class is what would fold the solution again.
    assert not soup.select(".dropdown") and "Because." in page


def test_a_chapter_that_is_not_on_the_page_is_named() -> None:
    with pytest.raises(ValueError, match="chapter two is not on the page"):
        make_pdf.printable(PAGE.replace("document-two", "document-three"), TOC, CONFIG, {})


def test_page_numbers_are_read_from_the_file() -> None:
    pdf = b"""1 0 obj
<</Type /Catalog>>
endobj
9 0 obj
<</Type /Page
/Parent 5 0 R>>
endobj
4 0 obj
<</Type /Page
/Parent 5 0 R>>
endobj
5 0 obj
<</Type /Pages
/Kids [9 0 R 4 0 R]>>
endobj
6 0 obj
<</document-intro [9 0 R /XYZ 0 1 0]
/document-a-b [4 0 R /XYZ 0 1 0]>>"""
    assert make_pdf.page_numbers(pdf) == {"intro": 1, "a-b": 2}


def test_without_chromium_one_sentence_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert make_pdf.make(tmp_path, tmp_path / "book.pdf") == 1
    said = capsys.readouterr().out
    assert said.count("\n") == 1 and "apt-get install chromium" in said


@pytest.mark.skipif(
    shutil.which("chromium") is None, reason="chromium is missing; on Debian: apt-get install chromium"
)
def test_an_explorer_prints_its_last_round(tmp_path: Path) -> None:
    explorer = """<div class="pfl-explorer"><form><input type="range" name="at" min="0" max="4" value="0"></form><div></div></div>
<script>document.querySelector("form").addEventListener("input", (event) => {
  document.querySelector("form + div").innerHTML = '<p style="break-after: page">a round</p>'.repeat(event.target.value);
});</script>"""
    page, pdf = tmp_path / "print.html", tmp_path / "print.pdf"
    page.write_text(
        make_pdf.printable(PAGE.replace("<p>A figure.</p>", explorer), TOC, CONFIG, {}), encoding="utf-8"
    )
    make_pdf.print_page(page, pdf, make_pdf.chromium())
    # A title page, the contents, a page for each chapter, and four that only the explorer's last round fills.
    assert len(make_pdf.LEAF.findall(pdf.read_bytes())) == 4 + 4


@pytest.mark.skipif(
    shutil.which("chromium") is None, reason="chromium is missing; on Debian: apt-get install chromium"
)
def test_a_small_book_is_printed(repository: Path, tmp_path: Path) -> None:
    source, output = tmp_path / "book", tmp_path / "pdf" / "small.pdf"
    source.mkdir()
    for name in ("_css", "_extra"):
        shutil.copytree(repository / "book" / name, source / name)
    shutil.copy(repository / "book" / "references.bib", source)
    (source / "_toc.yml").write_text(
        "format: jb-book\nroot: intro\nparts:\n  - caption: All\n    chapters:\n      - file: two\n"
    )
    (source / "intro.md").write_text(
        "# A small book\n\nIts formula is $a^2$.\n\n````{card} A card\ninside\n````\n"
    )
    (source / "two.md").write_text(
        "# Second\n\n```{exercise}\n:label: ex-one\nWhy?\n```\n\n```{solution} ex-one\n:class: dropdown\nBecause.\n```\n"
    )
    assert make_pdf.make(source, output) == 0
    pdf = output.read_bytes()
    assert pdf.startswith(b"%PDF")
    # A title page, the contents, and a page for each chapter.
    assert make_pdf.page_numbers(pdf) == {"intro": 3, "two": 4}
    printed = (output.parent / "page" / "print.html").read_text(encoding="utf-8")
    assert [number for *_, number in contents(printed)] == ["3", "4"]
