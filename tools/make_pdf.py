"""Print the course into one PDF: Jupyter Book puts the whole book on one page, and headless Chromium prints its part of it."""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from html import escape
from pathlib import Path
from typing import Any

import yaml
from bs4 import BeautifulSoup, Tag
from build_site import ROOT, build
from chapter_text import BESIDE

NAME = "personalized-federated-learning.pdf"
NAMES = ("chromium", "chromium-browser", "google-chrome")
# Formulas and explorers have so many milliseconds of the page's own clock, which runs as fast as the machine can.
PATIENCE = 120_000
LEAF = re.compile(rb"(\d+) 0 obj\s*<<\s*/Type /Page\b")  # a page of a PDF by Chromium
# On paper an explorer of recorded rounds cannot be played: it shows the last one, as animations do.
LAST_ROUNDS = """
addEventListener("beforeprint", () => {
  for (const at of document.querySelectorAll('.pfl-explorer [name="at"]')) {
    at.value = at.max;
    at.dispatchEvent(new Event("input", { bubbles: true }));
  }
});
"""
PRINTED_TOO = {"notation", "bibliography"}  # of what is not the course
FOR_TEACHERS = {"teaching"}  # stands with the course, but is no part of what its readers print


def chromium() -> str | None:
    """The path of a Chromium, if there is one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def chapter(article: Tag, name: str) -> Tag:
    """The section of a chapter other than the first, which surrounds all others; its mark stands before it, and is moved in."""
    mark = article.find(id=f"document-{name}")
    section = mark.find_next_sibling("section") if isinstance(mark, Tag) else None
    if not (isinstance(mark, Tag) and isinstance(section, Tag)):
        raise ValueError(f"the chapter {name} is not on the page of the whole book")
    section.insert(0, mark)  # inside, it goes to the new page with the section
    return section


def heading(section: Tag) -> str:
    """The title of a chapter, with its number if it has one."""
    title = section.find("h1")
    assert isinstance(title, Tag)
    return " ".join(title.get_text().removesuffix("#").split())  # behind the link to itself


def printable(page: str, toc: dict[str, Any], config: dict[str, Any], numbers: dict[str, int]) -> str:
    """The page of the whole book as it is printed: a title page, the contents with page `numbers`, and the course's chapters.

    Solutions and answers are open; hidden code, which draws figures, is left out; so is what only a browser can do.
    A chapter that `numbers` lacks gets no number, as in the first of two passes.
    """
    soup = BeautifulSoup(page, "html.parser")
    article = soup.find("article")
    if not isinstance(article, Tag) or soup.head is None or soup.body is None:
        raise ValueError("the page of the whole book has no article")
    first = article.find("section")
    assert isinstance(first, Tag)
    first.insert(0, soup.new_tag("span", id=f"document-{toc['root']}"))
    sections = {toc["root"]: first}
    printed = {"": [toc["root"]]}  # caption -> its chapters
    for part in toc["parts"]:
        files = [one["file"] for one in part["chapters"]]
        readers = [name for name in files if name not in FOR_TEACHERS]
        kept = [name for name in readers if part["caption"] not in BESIDE or name in PRINTED_TOO]
        for name in files:
            section = chapter(article, name)
            if name in kept:
                sections[name] = section
            else:
                section.decompose()
        if kept:
            printed[part["caption"]] = kept
    for section in sections.values():
        section["class"] = "chapter"
        if section is not first:  # a level below the first chapter, which is no other's chapter
            for each in section.find_all(re.compile("^h[2-6]$")):
                each.name = f"h{int(each.name[1]) - 1}"
    lines = ["<h1>Contents</h1>"]
    for caption, names in printed.items():
        lines += [f"<h2>{escape(caption)}</h2>"] if caption else []
        for name in names:
            lines.append(
                f'<a href="#document-{name}"><span>{escape(heading(sections[name]))}</span>'
                f'<span class="number">{numbers.get(name, "")}</span></a>'
            )
    for details in soup.find_all("details"):
        details["open"] = ""
    for closed in article.select(".toggle-hidden, .dropdown"):
        classes = set(closed.get_attribute_list("class")) - {"toggle-hidden", "dropdown", "toggle"}
        closed["class"] = " ".join(sorted(classes))
    for gone in article.select("details.hide.above-input, .toctree-wrapper > .caption"):
        gone.decompose()
    title = (
        f'<section class="title-page"><h1>{escape(config["title"])}</h1><p>{escape(config["author"])}</p>'
        f'<p class="below">{escape(config["copyright"])}<br>Printed from the site. Code that only draws figures is in the'
        " notebooks; so are explorers and animations, of which this file shows one picture each. Laboratories and reference"
        " pages are on the site.</p></section>"
    )
    front = BeautifulSoup(f'{title}<nav class="book-contents">{"".join(lines)}</nav>', "html.parser")
    soup.body.clear()
    soup.body["class"] = "book bd-article bd-content"
    soup.body.append(front)
    soup.body.append(article)
    style = soup.new_tag("style")
    style.string = (ROOT / "tools" / "print.css").read_text(encoding="utf-8")
    soup.head.append(style)
    script = soup.new_tag("script")
    script.string = LAST_ROUNDS
    soup.head.append(script)
    return str(soup)


def page_numbers(pdf: bytes) -> dict[str, int]:
    """On which page of a PDF by Chromium each chapter begins, by the chapter's name."""
    where = {leaf: place for place, leaf in enumerate(LEAF.findall(pdf), start=1)}
    marks = re.findall(rb"/document-([\w-]+) \[(\d+) 0 R /XYZ", pdf)
    return {name.decode(): where[leaf] for name, leaf in marks if leaf in where}


def print_page(page: Path, pdf: Path, browser: str) -> None:
    """Let Chromium print a page of a folder; raise RuntimeError with its last words if it does not."""
    command = [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    command += ["--no-pdf-header-footer", "--generate-pdf-document-outline"]
    command += [f"--virtual-time-budget={PATIENCE}", "--run-all-compositor-stages-before-draw"]
    command += [f"--print-to-pdf={pdf}", page.resolve().as_uri()]
    with tempfile.TemporaryDirectory() as profile:
        done = subprocess.run([*command, f"--user-data-dir={profile}"], capture_output=True, text=True)
    if done.returncode or not pdf.is_file():
        raise RuntimeError(f"Chromium did not print: {done.stderr.strip()[-500:]}")


def print_sheet(html: str, name: str, without: str) -> int:
    """Print a page of its own into _build; the exit code, 1 where no Chromium is here, and then `without` says what there is."""
    browser, output = chromium(), ROOT / "_build" / name
    if browser is None:
        print(f"a PDF needs Chromium; {without}")
        return 1
    output.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        page.write_text(html, encoding="utf-8")
        print_page(page, output, browser)
    print(f"wrote {output.relative_to(ROOT)}")
    return 0


def make(source: Path, output: Path) -> int:
    """Build, arrange and print the book in `source`; return the exit code."""
    started = time.perf_counter()
    if (browser := chromium()) is None:
        print(
            f"`make pdf` prints with Chromium, and none of {', '.join(NAMES)} is here; on Debian: apt-get install chromium"
        )
        return 1
    folder = output.parent / "page"
    if code := build(source, folder, pages="singlehtml"):
        return code
    output.unlink(missing_ok=True)
    whole = (folder / "intro.html").read_text(encoding="utf-8")
    toc = yaml.safe_load((source / "_toc.yml").read_text(encoding="utf-8"))
    config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    page = folder / "print.html"
    numbers: dict[str, int] = {}
    for step in ("to see on which page each chapter begins", "with the page numbers in the contents"):
        print(f"Printing {step}", flush=True)
        page.write_text(printable(whole, toc, config, numbers), encoding="utf-8")
        print_page(page, output, browser)
        numbers = page_numbers(output.read_bytes())
    size, seconds = output.stat().st_size / 1e6, time.perf_counter() - started
    leaves = len(LEAF.findall(output.read_bytes()))
    print(f"{leaves} pages, {size:.1f} MB in {seconds:.0f} s: open {output}", flush=True)
    return 0


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    sys.exit(make(ROOT / "book", ROOT / "_build" / "pdf" / NAME))
