"""Write what the book shows of the methods' cards and of ideas, from their descriptions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import cheat_sheet
import draw_ideas as ideas
import generated
from cards import CARDS, FACTS, KEY, families, key, poster, svg, words
from chapter_slides import teaching
from chapter_text import Writer

from pfl_lite.show.plots import METHOD_LABELS

ROOT = Path(__file__).resolve().parent.parent
FOLDER = "figures/cards"
CELL = "cards"  # the id of a chapter's cell of cards

MAP = """\
# Map of the methods

Every method in this book answers one question: *what is shared, and what stays?* The map shows all {count} answers, in the order
of the course. Each card has the server at the top and three offices below. Hatched parts travel in every round, blue
parts are the same for all, and parts in an office's color belong to that office alone.

```{{figure}} {folder}/map-of-methods.svg
:name: fig-map-of-methods
:alt: {count} small cards in rows, one per method. Each card is repeated in the glossary, with words for what it shows.
:class: dark-light

All methods on one sheet. What to see: how much of each card is blue, how much has an office's color, and how much is hatched. A
click or a tap on a card enlarges it; another shows the sheet whole again.
```

To print it, download {{download}}`the picture <{folder}/map-of-methods.svg>`, or type `make map` for one A3 page in PDF.

## The same as a table, with the costs

Traffic is counted per office and round; the unit is one model of the size of an office's network.

{table}

The [glossary](sec-cards) has every card in full size, and [Which method when](which-method-when) says what to try first.

(sec-not-on-the-map)=
## What is not on the map

The newest methods here are from 2022, and libraries such as PFLlib {{cite}}`zhang2025pfllib` have many others. You will meet the
names below. We have run only the first and the last. Each gives one more answer to the question of the map:

- **FedBN** {{cite}}`li2021fedbn`: everything travels but batch norm ([our program](sec-own-fedbn)).
- **FedBABU** {{cite}}`oh2022fedbabu`: the base travels and trains under a head that stays as it was drawn at random. At the end
  each client tunes the head. Compare with FedPer and PFL-FB ([Sharing a part](sharing-a-part)).
- **Fed-RoD** {{cite}}`chen2022fedrod`: the base and a common head travel. A private head adds its answer to that of the
  common one.
- **kNN-Per** {{cite}}`marfoq2022knnper`: one model travels. At the end each client mixes its answer with the labels of the
  client's own most similar images, as [PFL-MoE](a-gate-between-two-experts) mixes two models.
- **FedALA** {{cite}}`zhang2023fedala`: one model travels. Before it trains, each client mixes it with its own model. In the upper
  layers it learns a share for every weight, where [APFL](two-models-one-tie) learns one for all.
- **FedProto** {{cite}}`tan2022fedproto`: the mean features of each class travel, and no weights. So clients may have
  different networks.
- **FedSA-LoRA** {{cite}}`guo2025fedsa`: a large pretrained model stays frozen. Clients train two small matrices beside a layer,
  and only one of the two travels. An exercise of [Small parts of a large model](lab-small-parts-of-a-large-model) runs it.
"""


def image(method: str) -> str:
    """A card in a page."""
    return f"![{words(method)}]({FOLDER}/card-{method}.svg)"


def grid(methods: list[str]) -> str:
    """Cards side by side where there is room."""
    items = "\n".join(f":::{{grid-item}}\n{image(method)}\n:::" for method in methods)
    return f"::::{{grid}} 1 1 2 2\n:gutter: 2\n\n{items}\n::::"


def gallery() -> str:
    """All cards, family by family."""
    parts = [f"![{KEY}]({FOLDER}/key.svg)"]
    for family, methods in families():
        parts += [f"### {family}", grid(methods)]
    return "\n\n".join(parts) + "\n"


def table() -> str:
    """What the cards say, in rows."""
    columns = [title.removesuffix(" per office and round") for title in FACTS.values()]
    lines = [f"| Method | {' | '.join(columns)} |", f"|---{'|---' * len(columns)}|"]
    for method, card in CARDS.items():
        facts = " | ".join(getattr(card, name) for name in FACTS)
        lines.append(f"| [{METHOD_LABELS[method]}]({card.chapter}) | {facts} |")
    return "\n".join(lines)


def cell(chapter: str) -> str:
    """The cell of a chapter that shows its methods' cards."""
    methods = [method for method, card in CARDS.items() if card.chapter == chapter]
    shown = image(methods[0]) if len(methods) == 1 else grid(methods)
    return (
        f"{shown}\n\n*Hatched: travels in every round. Blue: shared. An office's color: its own. "
        "[All methods side by side](map-of-methods).*"
    )


def files() -> Iterator[tuple[Path, str]]:
    """Every file that is made, with what belongs in it."""
    folder = ROOT / "book" / FOLDER
    for method in CARDS:
        yield folder / f"card-{method}.svg", svg(method)
    yield folder / "map-of-methods.svg", poster()
    yield folder / "key.svg", key()
    yield folder / "gallery.txt", gallery()
    yield ROOT / "book/map-of-methods.md", MAP.format(count=len(CARDS), folder=FOLDER, table=table())
    yield ROOT / "book/_instructor/plans.txt", teaching(Writer(ROOT / "book"))
    yield cheat_sheet.PAGE, cheat_sheet.page()
    for name, idea in ideas.IDEAS.items():
        yield ROOT / f"book/figures/ideas/idea-{name}.svg", ideas.svg(idea)
    chapters = [card.chapter for card in CARDS.values()] + [idea.chapter for idea in ideas.IDEAS.values()]
    for chapter in sorted({*chapters}):
        path = ROOT / f"book/{chapter}.ipynb"
        content = path.read_text(encoding="utf-8")
        for name, source, after in cells(chapter):
            content = with_cell(content, name, source, after)
        yield path, content


def cells(chapter: str) -> Iterator[tuple[str, str, str | None]]:
    """The id and the source of every cell that a chapter gets from here, and the id of the cell before it if not the first."""
    if any(card.chapter == chapter for card in CARDS.values()):
        yield CELL, cell(chapter), None
    for name, idea in ideas.IDEAS.items():
        if idea.chapter == chapter:
            yield f"idea-{name}", figure(name, idea), idea.after


def figure(name: str, idea: ideas.Idea) -> str:
    """The picture of an idea in a page."""
    options = f":name: fig-idea-{name}\n:alt: {idea.alt}\n:class: dark-light\n:width: 100%"
    return f"```{{figure}} figures/ideas/idea-{name}.svg\n{options}\n\n{idea.caption}\n```"


def with_cell(stored: str, name: str, source: str, after: str | None = None) -> str:
    """A chapter with a cell of this id and source; a new one stands behind the cell `after`. Nothing else changes."""
    notebook = json.loads(stored)
    new = {"cell_type": "markdown", "id": name, "metadata": {}, "source": source.splitlines(keepends=True)}
    ids = [one["id"] for one in notebook["cells"]]
    if name in ids:
        notebook["cells"][ids.index(name)] = new
    else:
        notebook["cells"].insert(ids.index(after) + 1 if after else 1, new)
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    generated.write(files())
