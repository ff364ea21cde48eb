"""The cheat sheet: every method in one line of a page of its own, and on one sheet of A4 as a PDF (with Chromium)."""

from __future__ import annotations

import sys
from html import escape

from cards import CARDS, Piece
from make_pdf import ROOT, print_sheet

from pfl_lite.show.plots import METHOD_LABELS

PAGE = ROOT / "book/cheat-sheet.md"
TITLES = "Method", "Shared", "Its own", "The knob", "Cost per office and round", "The formula"
INTRO = """\
# Cheat sheet

Each method of this book has one row: what the offices share, what each keeps as its own, which knob to turn first,
what a round costs, and its characteristic formula. {{doc}}`notation` and the linked chapters explain the letters;
the [map](map-of-methods) has pictures. To print the sheet on one page of A4, type `make sheet`.

:::{{div}} sheet
{table}
:::

**First** run Local, FedAvg and FedAvg with fine-tuning ([What to try first](what-to-try-first)). Compare them in pairs, client by
client, over several seeds, with an interval ([One model or many](one-model-or-many)).
"""
STYLE = """
@page { size: A4 landscape; margin: 7mm } body { margin: 0; font: 9pt/1.15 system-ui, sans-serif; color: #1f2937 }
h1 { margin: 0 0 1mm; font-size: 17pt } p { margin: 1mm 0 }
table { border-collapse: collapse; width: 100% } th { text-align: left; border-bottom: 1.2pt solid #1f2937 }
td { padding: 0.7mm 1.6mm 0.7mm 0; border-bottom: 0.4pt solid #c9d0d9; vertical-align: middle }
td:first-child { font-weight: 700; white-space: nowrap }
tr.first td { border-top: 1pt solid #4b5563 } small { color: #4b5563 } mjx-container { font-size: 100% !important }
"""


def named(pieces: tuple[Piece, ...], own: bool) -> str:
    """The pieces of an office that are shared, or its own."""
    return ", ".join(piece.label for piece in pieces if piece.own == own) or "nothing"


def rows() -> list[tuple[str, ...]]:
    """The lines of the sheet: the method and five columns; a formula is LaTeX."""
    return [
        (method, named(card.office, False), named(card.office, True), card.knob, card.cost, card.formula)
        for method, card in CARDS.items()
    ]


def page() -> str:
    """The page of the book."""
    lines = [f"| {' | '.join(TITLES)} |", f"|{'---|' * len(TITLES)}"]
    for method, *facts, equation in rows():
        link = f"[{METHOD_LABELS[method]}]({CARDS[method].chapter})"
        lines.append(f"| {' | '.join([link, *facts])} | ${equation}$ |")
    return INTRO.format(table="\n".join(lines))


def sheet(mathjax: str) -> str:
    """The sheet as a page to print."""
    body, family = [], ""
    for method, *facts, equation in rows():
        card = CARDS[method]
        mark = ' class="first"' if card.family != family else ""
        label = f"{escape(METHOD_LABELS[method])} <small>{escape(card.family) if mark else ''}</small>"
        cells = "".join(f"<td>{escape(fact)}</td>" for fact in facts)
        body.append(f"<tr{mark}><td>{label}</td>{cells}<td>\\({escape(equation)}\\)</td></tr>")
        family = card.family
    heads = "".join(f"<th>{title}</th>" for title in TITLES)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Cheat sheet</title><style>{STYLE}</style>'
        f'<script src="{mathjax}"></script><h1>Personalized federated learning: every method in one line</h1>'
        f"<table><tr>{heads}</tr>{''.join(body)}</table><p><b>First</b> run Local, FedAvg and FedAvg with fine-tuning. Compare "
        "in pairs, client by client, with an interval. Per office: f<sub>i</sub> its loss, n<sub>i</sub> its images, "
        "θ<sub>i</sub>, v<sub>i</sub> its model; θ, w the common one.</p></html>"
    )


def main() -> int:
    """Write _build/cheat-sheet.pdf."""
    mathjax = (ROOT / "book/_extra/_static/vendor/mathjax/tex-mml-chtml.js").as_uri()
    return print_sheet(sheet(mathjax), "cheat-sheet.pdf", "the page is book/cheat-sheet.md")


if __name__ == "__main__":
    sys.exit(main())
