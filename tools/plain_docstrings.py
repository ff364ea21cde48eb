"""Sphinx extension: our docstrings are plain text with `code` in backticks and *chapters* by title, not reStructuredText."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

# Literals and roles stay as they are; a single backtick becomes a literal; words between asterisks are emphasised, or a link
# where they are a page's title; everything else is text.
TOKEN = re.compile(
    r"(?P<keep>``.+?``|:[a-z:]+:`[^`]+`)|`(?P<code>[^`]+)`"
    r"|(?<![\w*])\*(?P<stressed>[^\s*`](?:[^*`]*[^\s*`])?)\*(?![\w*])|(?P<mark>[*|]|_(?!\w))"
)
TITLE = re.compile(r"^\s*\"?# (.+?)(?:\\n\",?)?$", re.MULTILINE)  # of a page, or of a notebook's first cell


def titles(book: Path) -> dict[str, str]:
    """The pages of a folder by title, and by what stands before the colon of one."""
    pages: dict[str, str] = {}
    for path in sorted(book.glob("*.*"), key=lambda path: path.stem):
        if found := TITLE.search(path.read_text(encoding="utf-8")):
            for title in (found[1], found[1].partition(":")[0]):
                pages.setdefault(title, path.stem)
    return pages


def plain(line: str, pages: dict[str, str]) -> str:
    """One line of a docstring, with code marked up and every other character meant literally; `pages`: names by title."""

    def replace(found: re.Match[str]) -> str:
        if found["code"]:
            return f"``{found['code']}``"
        if found["stressed"]:
            page = pages.get(found["stressed"])
            return f":doc:`{found['stressed']} </{page}>`" if page else found[0]
        return found["keep"] or "\\" + found["mark"]

    return TOKEN.sub(replace, line)


def process(app: Sphinx, _what: str, _name: str, _object: Any, _options: Any, lines: list[str]) -> None:
    """Rewrite the lines of a docstring in place."""
    lines[:] = [plain(line, app.config.pages_by_title) for line in lines]


def remember_titles(app: Sphinx, config: Any) -> None:
    """Look once where a title leads."""
    config.pages_by_title = titles(Path(app.srcdir))


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx, before napoleon reads the sections."""
    app.add_config_value("pages_by_title", {}, "")
    app.connect("config-inited", remember_titles)
    app.connect("autodoc-process-docstring", process, priority=100)
    return {"parallel_read_safe": True}
