"""What the site's own extension does to pages: the words on folds, and the size of figures."""

from __future__ import annotations

import importlib

import pytest
from docutils import nodes
from docutils.utils import new_document

FOLD = (
    '<details class="admonition hide {side}-input">\n<summary>\n<p class="collapsed admonition-title">Show code</p>\n'
    '<p class="expanded admonition-title">Hide code</p>\n</summary>the code</details>'
)


def test_a_fold_below_code_offers_output_and_one_above_it_code() -> None:
    tool = importlib.import_module("mended_pages")
    context = {"body": FOLD.format(side="above") + FOLD.format(side="below")}
    tool.with_prompts(None, "a", "page.html", context, None)
    said = FOLD.format(side="below").replace("Show code", "Show output").replace("Hide code", "Hide output")
    assert context["body"] == FOLD.format(side="above") + said


@pytest.mark.parametrize(
    ("width", "height", "shown"),
    [(500, 300, 700), (700, 300, 744), (900, 400, 900), (528, 528, 528), (400, 400, 480)],
    ids=[
        "at most 1.4 times",
        "as wide as the column",
        "as wide as before",
        "as high as before",
        "as high as fits",
    ],
)
def test_a_figure_is_shown_as_large_as_the_page_allows(width: int, height: float, shown: int) -> None:
    assert importlib.import_module("mended_pages").enlarged(width, height) == shown


def test_columns_of_numbers_are_marked_and_columns_with_words_are_not() -> None:
    head = '<th id="T_1_level0_col{0}" class="col_heading level0 col{0}" >{1}</th>'
    cell = '<td id="T_1_row{0}_col{1}" class="data row{0} col{1}" >{2}</td>'
    table = '<table id="T_1">' + head.format(0, "images/s") + head.format(1, "settings")
    table += cell.format(0, 0, "9,639") + cell.format(0, 1, "0.1")
    table += cell.format(1, 0, "–") + cell.format(1, 1, "0.1, 4") + "</table>"
    tool = importlib.import_module("mended_pages")
    marked = tool.STYLED.sub(tool.aligned_numbers, table)
    assert marked == table.replace('col0" >', 'col0 number" >')


class _Site:
    """As much of Sphinx's application as the extension asks for."""

    def __init__(self, pages: str) -> None:
        self.builder = type("Builder", (), {"name": pages})()


FORMULA = '<span class="math notranslate nohighlight">\\(m\\)</span>'
CELL = '<td id="T_00001_row0_col1" class="data row0 col1" >{}</td>'
LINE = '    <span class="n">x</span>'


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f"over {FORMULA}. Next", f'over <span class="unbroken">{FORMULA}.</span> Next'),
        (f"images ({FORMULA}, say", f'images <span class="unbroken">({FORMULA},</span> say'),
        (f"over {FORMULA} and", f"over {FORMULA} and"),
        ('<span class="pre">--host</span>', '<span class="pre unbroken">--host</span>'),
        ('<span class="pre">--A.b=9</span>', '<span class="pre unbroken">--A.b=9</span>'),
        (CELL.format("held"), CELL.format("held").replace("data row0", "data short row0")),
        ('<td class="data row0 col1" >0</td>', '<td class="data short row0 col1" >0</td>'),
        (
            CELL.format("about 0.04 [-0.17, 0.19] points"),
            CELL.format("about 0.04 [-0.17,\N{NO-BREAK SPACE}0.19] points"),
        ),
        (
            CELL.format("0.04 [-0.17, 0.19]<ul><li>a [1, 2]</li></ul>"),
            CELL.format("0.04 [-0.17,\N{NO-BREAK SPACE}0.19]<ul><li>a [1,\N{NO-BREAK SPACE}2]</li></ul>"),
        ),
        ("<td>+0.4 [-0.1, +0.9]</td>", "<td>+0.4 [-0.1,\N{NO-BREAK SPACE}+0.9]</td>"),
        (
            f'<div class="highlight"><pre>{LINE}\n{LINE}{"=" * 90}\n</pre></div>',
            f'<div class="highlight"><pre>{LINE}\n<span class="long" style="--in: 8ch">{LINE}{"=" * 90}</span>\n</pre></div>',
        ),
    ],
    ids=[
        "a formula's period",
        "its bracket",
        "a word",
        "an option",
        "an option with its value",
        "a short cell",
        "one without an id",
        "an interval",
        "intervals beside a list and in it",
        "one in a plain table",
        "a long line of code",
    ],
)
def test_lines_break_where_they_should_on_the_site_alone(before: str, after: str) -> None:
    tool = importlib.import_module("mended_pages")
    for pages, expected in (("html", after), ("singlehtml", before)):
        context = {"body": before}
        tool.with_unbroken_words(_Site(pages), "a", "page.html", context, None)
        assert context["body"] == expected


@pytest.mark.parametrize(
    ("shown", "kind"),
    [
        ('<table id="T_1"></table>', "TableFigure"),
        ('<table border="1" class="dataframe"></table>', "TableFigure"),
        ('<div class="pfl-explorer"><table></table></div>', "figure"),
    ],
    ids=["a styled table", "a plain one", "an explorer"],
)
def test_a_table_that_a_cell_shows_is_counted_as_a_table(shown: str, kind: str) -> None:
    page = new_document("a-page")
    page += nodes.figure("", nodes.container("", nodes.raw("", shown, format="html")))
    importlib.import_module("mended_pages").with_tables_named(None, page)
    assert type(page[0]).__name__ == kind
