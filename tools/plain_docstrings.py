"""Sphinx extension: our docstrings are plain text with `code` in backticks, not reStructuredText."""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

# Literals and roles stay as they are; a single backtick becomes a literal; everything else is text.
TOKEN = re.compile(r"(?P<keep>``.+?``|:[a-z:]+:`[^`]+`)|`(?P<code>[^`]+)`|(?P<mark>[*|]|_(?!\w))")


def plain(line: str) -> str:
    """One line of a docstring, with code marked up and every other character meant literally."""

    def replace(found: re.Match[str]) -> str:
        if found["code"]:
            return f"``{found['code']}``"
        return found["keep"] or "\\" + found["mark"]

    return TOKEN.sub(replace, line)


def process(_app: Sphinx, _what: str, _name: str, _object: Any, _options: Any, lines: list[str]) -> None:
    """Rewrite the lines of a docstring in place."""
    lines[:] = [plain(line) for line in lines]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx, before napoleon reads the sections."""
    app.connect("autodoc-process-docstring", process, priority=100)
    return {"parallel_read_safe": True}
