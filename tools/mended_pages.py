"""Sphinx extension: mends what other extensions do to the pages.

Jupyter Book puts Thebe's scripts on every page, twice, although Thebe is off: the second declares the constants of the
first again, an error in the browser. And sphinx-exercise tells Sphinx how the page of the whole book shows an exercise,
whereupon Sphinx forgets how that page shows what the other extensions have added.

It also puts the playgrounds into their pages, so that no copy of their scripts is kept beside these. And it says what a
fold holds: MyST-NB has one prompt for folded code and folded output. And figures that were drawn small, to keep the notebooks
small, are shown larger: their files have two dots for each dot of a page. And lines no longer break where they should not:
between a formula and its comma, after the dash of an option, or inside an interval or a short name in a table. And a line of
code that is longer than the column goes on below, indented. And in a table that pandas styles, the digits of a column stand
under one another. And a figure that holds a table of pandas is counted and named as a table.

And every page says in its head what it is about, in the words that it begins with: search engines show them, and so do chats and
learning platforms where a teacher puts a link.
"""

from __future__ import annotations

import re
import textwrap
from html import escape, unescape
from pathlib import Path
from typing import Any

from docutils import nodes
from PIL import Image
from playgrounds import playground
from sphinx.application import Sphinx

FOLDED_OUTPUT = re.compile(r'<details class="admonition hide below-input">.*?</summary>', re.DOTALL)
COLUMN, TALL = 744, 480  # pixels: the column of a small laptop, and a height that leaves room for the caption
LARGER = 1.4  # at most, for a figure with two dots per dot
FORMULA = re.compile(
    r'([(\[“]?)(<span class="math notranslate nohighlight">\\\(.*?\\\)</span>)([.,;:!?)\]’”]*)', re.DOTALL
)
OPTION = re.compile(r'<span class="pre">(--?[A-Za-z][\w.=-]{0,24})</span>')
INTERVAL = re.compile(r"\[[-+−]?[\d.]+, [-+−]?[\d.]+\]")
CELL = re.compile(
    r'<(td|th)((?: id="T_[^"]*")? class="(?:data|row_heading) )([^>]*>)([^<]*)(</(?:td|th)>|<ul>)'
)
STYLED = re.compile(r'<table id="T_.*?</table>', re.DOTALL)
OF_PANDAS = re.compile(r'<table (?:id="T_|border="1" class="dataframe")')  # styled, or plain
IN_COLUMN = re.compile(r'(class="(?:data row\d+|col_heading level\d+) col(\d+))(" >)([^<]*)<')
NUMBER = re.compile(r"[-+−]?\d[\d,]*(?:\.\d+)?%?|[–-]?")  # or the sign of a missing one
ITEM = re.compile(r"<(li|td)>[^<]*</\1>")  # of a list, or of a plain table
SHORT = {"td": 20, "th": 11}  # characters of a cell, and of a row's name, that stay on one line
CODE = re.compile(r'(<div class="highlight"><pre>)(.*?)(</pre>)', re.DOTALL)
TAG = re.compile(r"<[^>]+>")
LONG = 91  # characters of code that the column has no room for
DESCRIPTION = re.compile(r'<meta content="([^"]*)" name="description"')
LEAST, PREVIEW = 60, 200  # characters
PLAY = re.compile(r"^```\{playground\} *(\w+)\n```$", re.MULTILINE)


def of_thebe(script: Any) -> bool:
    """Whether a script of a page is one of Thebe's, or the setting of its address."""
    body = script.attributes.get("body") or ""
    return "sphinx-thebe" in str(script.filename or "") or "THEBE_JS_URL" in body


def without_thebe(_app: Sphinx, _page: str, _template: str, context: dict[str, Any], _doctree: Any) -> None:
    """Take Thebe's scripts from the list for one page, to which others still add."""
    context["script_files"][:] = [script for script in context["script_files"] if not of_thebe(script)]


def whole_book(app: Sphinx) -> None:
    """Let the page of the whole book show everything that single pages show."""
    handlers = app.registry.translation_handlers
    handlers["singlehtml"] = handlers.get("html", {}) | handlers.get("singlehtml", {})


def enlarged(width: int, height: float) -> int:
    """The width at which a page shows a figure: as large as column and screen allow, and never smaller than drawn."""
    return round(width * max(1, min(LARGER, COLUMN / width, TALL / height)))


def with_larger_figures(app: Sphinx, doctree: nodes.document, _page: str) -> None:
    """Show small figures larger on the site; the printed course keeps its pages."""
    if app.builder.name != "html":
        return
    for image in doctree.findall(nodes.image):
        found = re.fullmatch(r"(\d+)(px)?", str(image.get("width", "")))
        if not found or not image["uri"].endswith(".png"):
            continue
        with Image.open(Path(app.srcdir, image["uri"])) as picture:
            wide, high = picture.size
        width = int(found[1])
        image["width"] = f"{enlarged(width, width * high / wide)}px"


class TableFigure(nodes.figure):
    """A cell's figure that holds a table: MyST-NB knows figures alone."""


def with_tables_named(_app: Sphinx, doctree: nodes.document) -> None:
    """Let a figure that holds a table of pandas be *Table N*; the style sheet puts its caption above, as over other tables."""
    for figure in doctree.findall(nodes.figure):
        if any(OF_PANDAS.search(raw.astext()) for raw in figure.findall(nodes.raw)):
            figure.__class__ = TableFigure  # labels point to this very node
            figure["classes"].append("table-figure")


def with_playground(_app: Sphinx, _page: str, source: list[str]) -> None:
    """Put a playground where a page names one."""
    source[0] = PLAY.sub(lambda found: f"````{{raw}} html\n{playground(found[1])}\n````", source[0])


def with_prompts(_app: Sphinx, _page: str, _template: str, context: dict[str, Any], _doctree: Any) -> None:
    """Let a fold below code offer the output that it hides, not the code that stands above it."""
    if body := context.get("body"):
        context["body"] = FOLDED_OUTPUT.sub(lambda fold: fold[0].replace(" code</p>", " output</p>"), body)


def unbroken_intervals(text: str) -> str:
    """A text whose intervals stay on one line."""
    return INTERVAL.sub(lambda found: found[0].replace(", ", ",\N{NO-BREAK SPACE}"), text)


def unbroken_cell(cell: re.Match[str]) -> str:
    """A cell of a styled table, up to a list in it, whose intervals, and whose whole text if it is short, stay on one line."""
    tag, begin, end, text, after = cell.groups()
    short = "short " if len(text.strip()) <= SHORT[tag] and after != "<ul>" else ""
    return f"<{tag}{begin}{short}{end}{unbroken_intervals(text)}{after}"


def aligned_numbers(table: re.Match[str]) -> str:
    """A styled table with the columns marked that hold nothing but numbers."""
    cells = [cell.groups() for cell in IN_COLUMN.finditer(table[0])]
    words = {at for begin, at, _, text in cells if "data" in begin and not NUMBER.fullmatch(text.strip())}
    return IN_COLUMN.sub(
        lambda cell: cell[0] if cell[2] in words else f"{cell[1]} number{cell[3]}{cell[4]}<", table[0]
    )


def unbroken_formula(found: re.Match[str]) -> str:
    """A formula with the bracket before it and the comma after it, which a browser would put on another line."""
    return f'<span class="unbroken">{found[0]}</span>' if found[1] or found[3] else found[0]


def hanging(line: str) -> str:
    """A line of highlighted code; where the column ends, the rest of a long one stands below, four characters further in."""
    text = unescape(TAG.sub("", line))
    if len(text) < LONG:
        return line
    inward = len(text) - len(text.lstrip()) + 4
    return f'<span class="long" style="--in: {inward}ch">{line}</span>'


def hanging_code(block: re.Match[str]) -> str:
    """Highlighted code with its long lines marked; Pygments closes every tag at the end of its line."""
    return block[1] + "\n".join(map(hanging, block[2].split("\n"))) + block[3]


def with_unbroken_words(
    app: Sphinx, _page: str, _template: str, context: dict[str, Any], _doctree: Any
) -> None:
    """Keep together, on the site, what a browser would break, and break what it would not; the printed course stays as it is."""
    if app.builder.name != "html" or not (body := context.get("body")):
        return
    body = FORMULA.sub(unbroken_formula, body)
    body = OPTION.sub(r'<span class="pre unbroken">\1</span>', body)
    body = STYLED.sub(aligned_numbers, body)
    body = CELL.sub(unbroken_cell, body)
    body = ITEM.sub(lambda item: unbroken_intervals(item[0]), body)
    context["body"] = CODE.sub(hanging_code, body)


def with_description(
    app: Sphinx, _page: str, _template: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    """Describe a page by its own words, or by the first paragraph of plain text, as far as two lines of a search hold it."""
    if doctree is None:
        return
    given = DESCRIPTION.search(context.get("metatags", ""))
    plain = (each for each in doctree.findall(nodes.paragraph) if not isinstance(each.parent, nodes.entry))
    texts = (each.astext() for each in plain if not next(each.findall(nodes.math), None))
    first = next((text for text in texts if len(text) >= LEAST), "")
    about = given[1] if given else escape(textwrap.shorten(first, PREVIEW, placeholder=" …"))
    if not about:
        return
    title = escape(unescape(TAG.sub("", context["title"])))
    context["metatags"] = context.get("metatags", "") + "".join(
        f'<meta {name} content="{content}"/>\n'
        for name, content in (
            *([] if given else [('name="description"', about)]),
            ('property="og:type"', "article"),
            ('property="og:site_name"', escape(app.config.html_title or app.config.project)),
            ('property="og:title"', title),
            ('property="og:description"', about),
        )
    )


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx; scripts are taken before the theme adds checksums to their addresses."""
    same = (lambda writer, node: writer.visit_figure(node)), (lambda writer, node: writer.depart_figure(node))
    app.add_enumerable_node(TableFigure, "table", html=same)
    app.connect("builder-inited", whole_book)
    app.connect("doctree-read", with_tables_named)
    app.connect("source-read", with_playground)
    app.connect("html-page-context", without_thebe, priority=100)
    app.connect("html-page-context", with_prompts)
    app.connect("html-page-context", with_unbroken_words)
    app.connect("html-page-context", with_description)
    app.connect("doctree-resolved", with_larger_figures)
    return {"parallel_read_safe": True}
