"""Write the pages of the book that describe the code from the code: book/api.md, book/api-experiments.md, book/datasets.md."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import generated

from pfl_lite.data.images import Card, datasets

ROOT = Path(__file__).resolve().parent.parent

# (folder, title, lead, modules in the order of reading; the others follow by name)
ROOMS = [
    (
        "data",
        "Ground floor: data",
        "Images are loaded once and kept once; a client is an array of indices into them.",
        ["images", "recipes", "partition", "federation"],
    ),
    (
        "models",
        "Networks",
        "Plain networks, parameters in the open, and the branches that pFedMB makes of their layers.",
        ["network"],
    ),
    (
        "methods",
        "Methods",
        "A method answers fourteen questions at most, above all five: what is kept, what goes down, what a client\n"
        "does with it, what the server makes of the answers, and which model is scored. Everything else belongs to the engine.",
        ["base", "local", "fedavg"],
    ),
    (
        "engine",
        "Engine",
        "Participation, batches, mapping over clients, evaluation, counting what travels, checkpoints.",
        ["simulation", "rounds", "mapping", "history"],
    ),
    (
        "papers",
        "Papers",
        "One file a paper: its tables and figures as data, and what it says as functions of runs or of its own numbers.",
        ["pfedmb", "fedmn", "pflmoe", "scenarios"],
    ),
    (
        "results",
        "Results",
        "The ledger of runs, what is missing of an experiment, the runner, tables, verdicts and care of the files.",
        ["ledger", "plan", "run", "tables", "verdicts", "audit"],
    ),
    (
        "show",
        "What is shown",
        "Tables as text, figures, explorers that compute in the page, and pieces of the chapters that read the ledger.",
        ["text", "plots", "figures", "pages", "explorers"],
    ),
    (
        "",
        "The roof",
        "What a person touches, and small pieces that every room uses.",
        ["config", "comparing", "cli", "chapter"],
    ),
]

UPPER = ("papers", "results", "show", "")
"""Rooms with a page of their own: all of them on one would be a heavy page."""

UPPER_LEAD = """\
# The package, upper floors

Papers, results, what is shown, and what a person touches; the rooms below them are [on the page before](api).
"""

API_LEAD = """\
# The package, room by room

`pfl_lite` is small enough to be read from the ground floor up. Arrows point down only: data and models know
nothing above them; a method knows models; the engine knows the interface of a method, never one method by name;
papers know the engine's words, results know papers, what is shown knows results, and the command line is
the roof. Each entry links to its source.
"""

DATASETS_LEAD = """\
# Data sets

You need no download and no network for three of these data sets: one comes with scikit-learn, and the package draws the
other two. Every teaching chapter runs on them. Each of the others is downloaded once through torchvision and converted to
one `.npz` file. (FEMNIST is made from the files that LEAF's scripts write.) The package looks for these files in the folder
`$PFL_LITE_DATA`, which is `~/.cache/pfl_lite` unless you set it. If a file is there already, nothing is downloaded. On the
command line, `pfl-lite datasets` prints the list, and `NAME:0.1` means a random tenth of a data set, always the same one.

The repository contains no image of any data set.
"""


def modules(folder: str, first: list[str]) -> list[str]:
    """Dotted names of the public modules of a room, the important ones first."""
    stems = {path.stem for path in (ROOT / "pfl_lite" / folder).glob("*.py") if not path.stem.startswith("_")}
    order = [stem for stem in first if stem in stems] + sorted(stems - set(first))
    return [".".join(part for part in ("pfl_lite", folder, stem) if part) for stem in order]


def api_page(intro: str, *, upper: bool) -> str:
    """A page of the package."""
    parts = [intro]
    for folder, title, lead, first in ROOMS:
        if (folder in UPPER) != upper:
            continue
        parts.append(f"## {title}\n\n{lead}\n")
        for name in modules(folder, first):
            parts.append(
                f"### `{name.removeprefix('pfl_lite.')}`\n\n```{{eval-rst}}\n.. automodule:: {name}\n```\n"
            )
    return "\n".join(parts)


def card_section(card: Card) -> str:
    """One data set: a table of its facts, and what to know about it."""
    numbers = [", ".join(f"{value:.4f}" for value in values) for values in (card.mean, card.std)]
    cut = f" for training, {card.test_size:,} for testing" if card.test_size else ", split when they are read"
    rows = {
        "Name on the command line": f"`{card.name}`",
        "Source": card.source,
        "License": card.licence,
        "Images": f"{card.train_size:,}{cut}",
        "Size": f"{card.size} × {card.size} pixels, {'color' if card.channels == 3 else 'gray'}",
        "Classes": str(len(card.classes)),
        "Mean, standard deviation": " and ".join(numbers),
        "How to get it": card.how_to_get,
    }
    table = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    return f"## {card.title}\n\n| | |\n|---|---|\n{table}\n\n{card.note}\n"


def datasets_page() -> str:
    """The page of the data sets."""
    return "\n".join([DATASETS_LEAD, *map(card_section, datasets().values())])


PAGES: dict[str, Callable[[], str]] = {
    "api.md": partial(api_page, API_LEAD, upper=False),
    "api-experiments.md": partial(api_page, UPPER_LEAD, upper=True),
    "datasets.md": datasets_page,
}


if __name__ == "__main__":
    sys.exit(generated.write(((ROOT / "book" / name, page()) for name, page in PAGES.items()), __doc__))
