"""Print the map of the methods as one A3 page: headless Chromium prints the picture."""

from __future__ import annotations

import sys

from cards import poster
from make_pdf import print_sheet

PAGE = "<style>@page { size: A3 landscape; margin: 0 } body { margin: 0 } svg { width: 420mm; height: 296mm }</style>"


def main() -> int:
    """Write _build/map-of-methods.pdf."""
    html = f'<!doctype html><meta charset="utf-8">{PAGE}{poster()}'
    return print_sheet(html, "map-of-methods.pdf", "the picture is book/figures/cards/map-of-methods.svg")


if __name__ == "__main__":
    sys.exit(main())
