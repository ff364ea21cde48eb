"""Turn a chapter into slides: reveal.js through nbconvert, from the headings, figures and equations of the chapter."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import nbformat
from chapter_text import Chapter, Writer, exercises, pieces
from nbconvert.exporters import SlidesExporter
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell

ROOT = Path(__file__).resolve().parent.parent
CODE_LINES = 36  # more do not fit on a slide
EQUATIONS = 2  # on one slide
SENTENCES = 2  # of a section's first paragraph, and of a point of what one has learned
LEFT_OUT = {"Exercises", "Further reading", "Quiz"}
FOLDED = {"hide-input", "hide-cell", "remove-input", "remove-cell"}


def blocks(text: str) -> Iterator[str]:
    """Paragraphs, lists, quotations and displayed formulas of a Markdown text, one by one."""
    block: list[str] = []
    formula = False
    for line in [*text.splitlines(), ""]:
        if line.startswith("$$") and not formula:
            if block:
                yield "\n".join(block)
            block, formula = [line], line.count("$$") == 1
        elif formula:
            block.append(line)
            if line.startswith("$$"):
                yield "\n".join(block)
                block, formula = [], False
        elif line.strip() or block[:1] == ["```"]:
            block.append(line)
        elif block:
            yield "\n".join(block)
            block = []


def sentences(paragraph: str) -> list[str]:
    """The sentences of a paragraph; a full stop inside a formula or before a small letter ends none."""
    return re.split(r"(?<=[.?!:])\s+(?=[A-Z*_`$\[])", " ".join(paragraph.split()))


def opening(paragraph: str, following: str) -> str:
    """The first sentences of a paragraph, but none that announces what no slide shows; a formula that follows is shown."""
    shown = sentences(paragraph)[:SENTENCES]
    if shown[-1].endswith(":") and not following.startswith("$$"):
        shown = shown[:-1] or [shown[-1][:-1] + "."]
    return " ".join(shown)


def lead_of(paragraph: str) -> str:
    """The last sentence of a paragraph, after the bold words with which it opens: they say whom "it" stands for."""
    if not paragraph or paragraph.startswith(("- ", "|", ">")):
        return ""
    *earlier, last = sentences(paragraph)
    name = re.match(r"\*\*(.+?)\.?\*\*", paragraph)
    return f"**{name[1]}.** {last}" if name and earlier else last


def markdown_slides(chapter: Chapter, writer: Writer) -> Iterator[tuple[str, NotebookNode]]:
    """The slides of a chapter as (reveal's type of the cell, cell).

    The rule: the title with what one will learn; a slide for every section with its first two sentences, and the formula that
    they lead to; its numbered equations, each with the sentence that leads to it; one slide per figure; code that is not folded
    and fits on a slide; the names of the pitfalls; the names of the exercises; what one has learned. In the chapter, a
    cell's own `slideshow.slide_type` goes before the rule: `skip` leaves it out, any other keeps it whole.
    """
    section, fresh, equations, before, unfinished = "", False, 0, "", False
    pitfalls: list[str] = []

    def close() -> Iterator[tuple[str, NotebookNode]]:
        if pitfalls:
            yield "-", new_markdown_cell("\n".join(f"- {name}" for name in pitfalls))
            pitfalls.clear()

    for piece in pieces(chapter):
        if piece.place != "text":
            continue
        cell = piece.cell
        wish = cell.metadata.get("slideshow", {}).get("slide_type")
        if wish == "skip":
            continue
        if cell.cell_type == "code":
            figure = cell.metadata.get("mystnb", {}).get("figure")
            pictures = [output for output in cell.outputs if "image/png" in output.get("data", {})]
            if wish:
                yield wish, new_code_cell(cell.source, outputs=cell.outputs)
            elif figure and pictures:
                picture = nbformat.from_dict(pictures[0])
                alternative = cell.metadata["mystnb"].get("image", {}).get("alt", "")
                picture["metadata"].setdefault("image/png", {})["alt"] = alternative
                hidden = {"transient": {"remove_source": True}}
                yield "subslide", new_code_cell("", outputs=[picture], metadata=hidden)
                yield "-", new_markdown_cell(writer.caption(figure))
            elif (
                not FOLDED & set(cell.metadata.get("tags", []))
                and not figure
                and cell.source.count("\n") < CODE_LINES
            ):
                yield "subslide", new_code_cell(cell.source)
            continue
        text = writer.plain(cell.source)
        if wish:
            yield wish, new_markdown_cell(text)
            continue
        for block, following in pairwise([*blocks(text), ""]):
            if heading := re.match(r"(#+) (.*)", block):
                level, title = len(heading[1]), heading[2]
                pitfall_section = section.startswith("Common pitfalls")
                if level < 3:
                    yield from close()
                    section, fresh, equations = title, True, 0
                    if title not in LEFT_OUT:
                        yield "slide", new_markdown_cell(block)
                elif pitfall_section:
                    pitfalls.append(re.sub(r"^\d+\. ", "", title))
                elif section not in LEFT_OUT:
                    fresh, equations = True, 0
                    yield "subslide", new_markdown_cell(block)
            elif section in LEFT_OUT:
                pass
            elif section.startswith("Common pitfalls"):
                if bold := re.match(r"\*\*(.+?)\*\*", block):
                    pitfalls.append(bold[1].rstrip("."))
            elif block.startswith("$$"):
                if "\\tag" in block or unfinished:
                    equations += 1
                    if equations > EQUATIONS:
                        equations = 1
                        yield "subslide", new_markdown_cell(f"### {section}")
                    lead = lead_of(before)
                    yield "-", new_markdown_cell(f"{lead}\n\n{block}" if lead else block)
                before, unfinished = "", False
            elif block.startswith("![") and section == chapter.title:
                yield "-", new_markdown_cell(block)
            elif block.startswith("> ") and section == chapter.title:
                yield "-", new_markdown_cell("\n".join(line[2:] for line in block.splitlines()))
                fresh = False
            elif block.startswith("- ") and section == "What you learned":
                points = [" ".join(sentences(point)[:SENTENCES]) for point in block[2:].split("\n- ")]
                yield "-", new_markdown_cell("\n".join(f"- {point}" for point in points))
            elif fresh and section != chapter.title and not block.startswith(("|", "*Table")):
                shown = block if block.startswith("- ") else opening(block, following)
                yield "-", new_markdown_cell(shown)
                fresh, before, unfinished = False, "", not shown.endswith((".", "!", "?"))
            else:
                before, unfinished = block, False
    yield from close()
    if listed := exercises(chapter):
        names = "\n".join(
            f"- {one.number} {one.title}{f' ({one.kind})' if one.kind else ''}" for one in listed
        )
        yield "slide", new_markdown_cell(f"## Exercises\n\n{names}")


def write_slides(chapter: Chapter, writer: Writer, folder: Path) -> None:
    """Write the slides of a chapter as one page into a folder, with the scripts that all decks of the folder share."""
    vendor = folder / "vendor"
    if not vendor.is_dir():
        shutil.copytree(ROOT / "tools/slides/vendor", vendor)
        shutil.copytree(ROOT / "book/_extra/_static/vendor/mathjax", vendor / "mathjax")
        # Where nbconvert's template looks for the two style sheets.
        (vendor / "reveal/dist/theme").mkdir(parents=True)
        shutil.move(vendor / "reveal/reveal.css", vendor / "reveal/dist")
        shutil.copy(ROOT / "tools/slides/slides.css", vendor / "reveal/dist/theme")
    cells = []
    for number, (kind, cell) in enumerate(markdown_slides(chapter, writer)):
        cell.id, cell.metadata["slideshow"] = f"slide-{number}", {"slide_type": kind}
        cells.append(cell)
    deck = nbformat.v4.new_notebook(cells=cells, metadata={"title": chapter.title})
    exporter = SlidesExporter(
        template_name="slides", extra_template_basedirs=[str(ROOT / "tools")],
        reveal_url_prefix="vendor/reveal", reveal_theme="slides", exclude_input_prompt=True, exclude_output_prompt=True,
    )  # fmt: skip
    page, _ = exporter.from_notebook_node(deck)
    (folder / f"{chapter.name}.html").write_text(page, encoding="utf-8")
