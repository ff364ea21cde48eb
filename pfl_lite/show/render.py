"""Tables of words and numbers as text, Markdown or CSV."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import pandas as pd
from tabulate import tabulate

from pfl_lite.errors import unknown

FORMATS = ("text", "markdown", "csv")
WIDTH, LAST = 120, 60  # characters of a note, and of the last column, before they are wrapped


def render(frame: pd.DataFrame, format: str = "text", *, title: str = "", notes: Sequence[str] = ()) -> str:
    """A table between its title and its notes as `text` or `markdown`, or alone as `csv` (plain numbers, for programs).

    Raises:
        InputError: an unknown format.
    """
    if format not in FORMATS:
        raise unknown("format", format, FORMATS)
    if format == "csv":
        return frame.to_csv(index=False, float_format="%.2f")
    cells = frame.astype(str)
    if format == "markdown":
        body = tabulate(cells.map(lambda cell: cell.replace("|", "\\|")), "keys", "github", **_PLAIN)
        parts = [f"**{title}**" if title else "", body, "\n".join(f"- {note}" for note in notes)]
    else:
        widths = [None] * (frame.shape[1] - 1) + [LAST]
        body = tabulate(cells, "keys", "simple", maxcolwidths=widths, **_PLAIN)
        said = [textwrap.fill(note, WIDTH, initial_indent="* ", subsequent_indent="  ") for note in notes]
        parts = [title, body, "\n".join(said)]
    return "\n\n".join(part for part in parts if part).rstrip() + "\n"


def listed(rows: Sequence[Sequence[str]]) -> str:
    """Rows of words as aligned columns, without headings."""
    return tabulate(rows, tablefmt="plain", disable_numparse=True)


_PLAIN = {"showindex": False, "disable_numparse": True}
