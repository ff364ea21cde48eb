"""Write the pages of the book that describe the code from the code: book/api.md, book/api-experiments.md, book/datasets.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import generated

from pfl_lite import _HOMES
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
        ["registry", "network"],
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
        "One file per paper: its tables and figures as data, and what it says as functions of runs or of its own numbers.",
        ["pfedmb", "fedmn", "pflmoe", "scenarios"],
    ),
    (
        "results",
        "Results",
        "The ledger of runs, what is missing of an experiment, the runner, tables, verdicts and care of the files.",
        ["ledger", "plan", "runner", "tables", "verdicts", "audit"],
    ),
    (
        "show",
        "What is shown",
        "Tables as text, figures, explorers that compute in the page, and pieces of the chapters that read the ledger.",
        ["text", "plots", "figures", "chapter_tables", "explorers"],
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
# API: papers, results, commands

Papers, results, what is shown, and what a person touches; the rooms below them are [on the page before](api).
"""

API_LEAD = """\
# API: data, models, methods, engine

## The names that you need first

Most programs get by with these. Write `from pfl_lite import run`, and so on.

{first}

A method of your own extends `Method` of `pfl_lite.methods.base`; [Your own method, your own data](your-own) shows how.

## The rooms, from the ground up

`pfl_lite` is small enough to be read from the ground floor up. Every room uses only the rooms below it: data and models know
nothing above them; a method knows models; the engine knows the interface of a method, never one method by name;
papers know the engine's words, results know papers, what is shown knows results, and the command line is
the roof. Papers and everything above them are on [the next page](api-experiments). Each entry links to its source.
"""

DATASETS_LEAD = """\
# Data sets

**Which images should you start with?** With `digits` a run takes seconds. With `glyphs` clients can differ in their
handwriting. Every teaching chapter runs on the first three data sets below, which need no download. The papers' tables need
CIFAR-10, CIFAR-100, Fashion-MNIST or EMNIST.

{overview}

On the command line, `pfl-lite datasets` prints this list, and `NAME:0.1` means a random tenth of a data set, always the
same one.

A downloaded data set is kept as one `.npz` file in the data
folder: `$PFL_LITE_DATA`, or `~/.cache/pfl_lite` if that is not set. On a machine without a network, put the file
there yourself: it holds `train_images` and `test_images`
(`uint8`), and `train_labels` and `test_labels` (integers). If your file has the images in another order than
the published archives, the same seed gives a client other images, but
as many of each class.

To train on images of your own instead, see [Your own method, your own data](sec-own-data).
"""


# what a newcomer imports from `pfl_lite` itself, and what for
FIRST = {
    "run": "train one method once; what it returns holds the history and the models",
    "compare": "train several methods with several seeds, and tell how far they are apart",
    "make_federation": "deal a data set out to clients",
    "Federation": "make clients of your own lists or torch data sets",
    "Images Card": "bring your own images",
    "make_network register": "build a network by its name; give your own network a name",
    "load_model": "read a saved model as a torch module",
    "Simulation make_config": "play the rounds one by one",
    "Ledger table verdicts": "read the stored results of the reproductions",
}


def first_names() -> str:
    """These names as a table, each with a link to its entry."""
    lines = ["| Name | What it is for |", "|---|---|"]
    for names, purpose in FIRST.items():
        links = []
        for name in names.split():
            role = "class" if name[0].isupper() else "func"
            links.append(f"{{py:{role}}}`{name} <pfl_lite.{_HOMES[name].replace(':', '.')}>`")
        lines.append(f"| {', '.join(links)} | {purpose} |")
    return "\n".join(lines)


def modules(folder: str, first: list[str]) -> list[str]:
    """Dotted names of the public modules of a room, the important ones first."""
    stems = {path.stem for path in (ROOT / "pfl_lite" / folder).glob("*.py") if not path.stem.startswith("_")}
    return [
        ".".join(filter(None, ("pfl_lite", folder, stem))) for stem in [*first, *sorted(stems - {*first})]
    ]


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


def overview(cards: Iterable[Card]) -> str:
    """All data sets in one table, so that a reader can choose without reading every section."""
    lines = ["| Name | Images | Classes | Pixels | Where it comes from |", "|---|---|---|---|---|"]
    for card in cards:
        color = "color" if card.channels == 3 else "gray"
        many = f"{card.train_size + card.test_size:,}"
        pixels = f"{card.size} × {card.size}, {color}"
        lines.append(f"| `{card.name}` | {many} | {len(card.classes)} | {pixels} | {card.origin} |")
    return "\n".join(lines)


def datasets_page() -> str:
    """The page of the data sets."""
    cards = datasets().values()
    return "\n".join([DATASETS_LEAD.format(overview=overview(cards)), *map(card_section, cards)])


PAGES: dict[str, Callable[[], str]] = {
    "api.md": partial(api_page, API_LEAD.format(first=first_names()), upper=False),
    "api-experiments.md": partial(api_page, UPPER_LEAD, upper=True),
    "datasets.md": datasets_page,
}


if __name__ == "__main__":
    generated.write((ROOT / "book" / name, page()) for name, page in PAGES.items())
