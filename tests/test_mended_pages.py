"""What the site's own extension does to pages: the words on folds, and the size of figures."""

from __future__ import annotations

import importlib

import pytest

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
