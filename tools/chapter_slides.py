"""Make the slides of the units: one page each for reveal.js, from a unit's notebook and its description in slides/decks.yml."""

from __future__ import annotations

import argparse
import base64
import functools
import random
import re
import shutil
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from chapter_text import Chapter, Writer, chosen, exercises, function, pieces, questions
from nbconvert.filters.markdown import markdown2html
from playgrounds import PLAYGROUNDS, standing_alone
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

ROOT = Path(__file__).resolve().parent.parent
SLIDES = ROOT / "tools/slides"
CARDS = 2  # on one slide
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="stylesheet" href="vendor/reveal/reveal.css"><link rel="stylesheet" href="vendor/slides.css">
<script>window.MathJax = {{tex: {{inlineMath: [["$", "$"]], processEscapes: true, tags: "none"}}}};</script>
<script defer src="vendor/mathjax/tex-mml-chtml.js"></script></head>
<body><main class="reveal"><div class="slides">
{slides}
</div></main>
<script src="vendor/reveal/reveal.js"></script><script src="vendor/reveal/notes.js"></script>
<script>
const tall = innerHeight > innerWidth;  // a phone held upright gets narrow slides, not small letters
Reveal.initialize({{hash: true, slideNumber: "c/t", transition: "none", width: tall ? 720 : 1280, height: tall ? 1280 : 800,
  margin: 0.06, center: false, plugins: [RevealNotes]}});
const fit = () => {{  // a formula wider than its slide is set smaller
  for (const set of document.querySelectorAll('section mjx-container[display="true"]')) {{
    const wide = set.firstElementChild.offsetWidth, room = set.parentElement.clientWidth;
    if (wide > room) set.style.setProperty("font-size", `${{1.5 * room / wide}}em`, "important");
  }}
}};
Reveal.on("slidechanged", fit);
addEventListener("load", () => window.MathJax?.startup?.promise?.then(fit));
</script>
</body></html>
"""


class Slide(NamedTuple):
    """A slide: its heading, what it shows as HTML, what the speaker says, and the minutes it takes."""

    heading: str
    shown: str
    notes: str
    minutes: int


class Picture(NamedTuple):
    """A figure of a unit: where its image lies, its alternative text and its caption."""

    source: str
    alt: str
    caption: str


@functools.cache
def decks() -> dict[str, Any]:
    """The descriptions of slides/decks.yml by unit."""
    described: dict[str, Any] = yaml.safe_load((SLIDES / "decks.yml").read_text(encoding="utf-8"))
    return described


@functools.cache
def exercise_plans() -> dict[str, Any]:
    """The units' exercises by label: minutes, level, marks and two hints."""
    path = ROOT / "book/_instructor/exercises.yml"
    read: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return read


def total(marks: str) -> int:
    """What an exercise gives at most: every part of its marks begins with its points."""
    return sum(int(part.split()[0]) for part in marks.split("; "))


def embedded(path: Path) -> str:
    """A picture in SVG as an address that holds it."""
    return "data:image/svg+xml;base64," + base64.b64encode(path.read_bytes()).decode()


def pictures(chapter: Chapter, writer: Writer) -> dict[str, Picture]:
    """The figures of a chapter by their labels; of an animation or explorer there is none."""
    found = {}
    for piece in pieces(chapter):
        cell = piece.cell
        if cell.cell_type == "markdown":
            blocks = re.findall(
                r"^```\{figure\} *(\S+\.svg)\n((?::.*\n)*)(.*?)\n```$", cell.source, re.MULTILINE | re.DOTALL
            )
            for name, options, caption in blocks:
                asked = dict(re.findall(r"^:(\w+): *(.*)$", options, re.MULTILINE))
                text = writer.plain(caption.strip())
                source = embedded(ROOT / "book" / name)
                found[asked.get("name", name)] = Picture(source, asked.get("alt", ""), text)
        elif figure := cell.metadata.get("mystnb", {}).get("figure"):
            for output in cell.outputs:
                if data := output.get("data", {}).get("image/png"):
                    alt = cell.metadata["mystnb"].get("image", {}).get("alt", "")
                    source = "data:image/png;base64," + data.replace("\n", "")
                    found[figure.get("name", cell.id)] = Picture(source, alt, writer.caption(figure))
    return found


def equation(chapter: Chapter, label: str) -> str:
    """A displayed formula by its label, or by its number if the label is `tag:NUMBER`."""
    text = "\n\n".join(cell.source for cell in chapter.notebook.cells if cell.cell_type == "markdown")
    number = label.removeprefix("tag:")
    for found in re.finditer(
        r"^\$\$\n(.*?)\n?\$\$ *(?:\(([\w-]+)\))?|^```\{math\}\n:label: *(\S+)\n(.*?)\n```$",
        text,
        re.MULTILINE | re.DOTALL,
    ):
        formula, name = found[1] or found[4], found[2] or found[3]
        if name == label or (number != label and rf"\tag{{{number}}}" in formula):
            return f"<p>$$\n{escape(formula, quote=False)}\n$$</p>"
    raise KeyError(f"{chapter.name} has no formula {label}")


def shown(show: str, chapter: Chapter, writer: Writer) -> str:
    """What a description's `show` names, as HTML."""
    if show.startswith("fig-"):
        picture = pictures(chapter, writer)[show]
        return f'<img src="{picture.source}" alt="{escape(picture.alt)}">'
    if show.startswith(("eq-", "tag:")):
        return equation(chapter, show)
    name, _, part = show.partition(":")
    cell = next(cell for cell in chapter.notebook.cells if cell.id == name)
    if part == "out":
        text = "".join(output.get("text", "") for output in cell.outputs)
        return f'<div{large(text)}><pre class="printed">{escape(text.rstrip())}</pre></div>'
    source = function(cell.source, part) if part else cell.source
    code = highlight(source, PythonLexer(), HtmlFormatter(noclasses=True, style="a11y-high-contrast-light"))
    return f"<div{large(source)}>{code}</div>"


def large(text: str) -> str:
    """The size of letters, in pixels, at which code or what it prints fills a slide: readable from the last row."""
    lines = text.rstrip().splitlines()
    size = min(30, 1200 / (0.61 * max(map(len, lines))), 640 / (1.4 * len(lines)))
    return f' style="--size: {max(size, 18):.0f}px"'


def opening(chapter: Chapter, writer: Writer) -> str:
    """The complaint with which a unit begins, as plain Markdown; empty if it has none."""
    parts = chapter.notebook.cells[0].source.split(f"# {chapter.title}\n", 1)[1].strip().split("\n\n")
    return writer.plain(parts[0]) if parts[0].startswith("**") else ""


def learned(chapter: Chapter, writer: Writer) -> list[str]:
    """The points of *What you learned*, the first sentence of each."""
    text = next(
        (c.source.split("## What you learned")[1] for c in chapter.notebook.cells if "## What you learned" in c.source), ""
    )  # fmt: skip
    points = re.findall(r"^- (.*(?:\n  .*)*)", text, re.MULTILINE)
    return [
        re.split(r"(?<=[.:;]) +(?=[A-Z*$])", " ".join(writer.plain(point).split()))[0] for point in points
    ]


def slides(chapter: Chapter, writer: Writer) -> Iterator[Slide]:
    """The slides of a unit: title, complaint and question, cards, one idea each, playground, quiz, what one has learned.

    A unit that decks.yml does not describe gets its figures with the first sentences of their captions.
    """
    described = decks().get(chapter.name, {})
    before = next((c.source for c in chapter.notebook.cells if "**Before you start.**" in c.source), "")
    needs = re.search(r"\*\*Before you start\.\*\* *(.*?)(?=\*\*Time|\Z)", before, re.DOTALL)
    subtitle = '<p class="sub">Personalized federated learning, by running it</p>'
    known = writer.plain(" ".join(needs[1].split())) if needs else ""
    # The folder of the slides has no notebooks: titles of other units stay, links to them do not.
    known = re.sub(r"\[([^]]+)\]\([\w-]+\.ipynb\)", r"*\1*", known)
    start = f"They should know: {known}" if known else "Welcome them."
    yield Slide("", f"<h1>{escape(chapter.title)}</h1>{subtitle}", start, 1)
    asked = described.get("question", f"What is behind “{chapter.title}”?")
    complaint = markdown2html(opening(chapter, writer))
    ask = (
        "Read the complaint aloud and let the room answer the question before you do. Write the guesses down."
    )
    yield Slide(
        "", f'<div class="complaint">{complaint}</div><p class="question">{escape(asked)}</p>', ask, 3
    )
    cells = {cell.id: cell.source for cell in chapter.notebook.cells}
    cards = re.findall(r"!\[([^\]]*)\]\((figures/cards/card-[\w-]+\.svg)\)", cells.get("cards", ""))
    for number in range(0, len(cards), CARDS):
        two = cards[number : number + CARDS]
        images = [
            f'<img src="{embedded(ROOT / "book" / name)}" alt="{escape(words)}">' for words, name in two
        ]
        say = " ".join(words.split(" Server:")[0] for words, _ in two)
        yield Slide(
            "What is shared, and what stays?", f'<div class="cards n{len(two)}">{"".join(images)}</div>',
            f"{say} Hatched travels, blue is shared, an office's color stays there.", 2,
        )  # fmt: skip
    for one in described.get("slides", []):
        other = next(known for known in writer.chapters if known.name == one.get("from", chapter.name))
        notes = one["notes"]
        if one["show"].startswith("fig-"):
            caption = pictures(other, writer)[one["show"]].caption
            notes += " " + caption[caption.find("What to see") :] if "What to see" in caption else ""
        key = f'<p class="key">{escape(one["key"], quote=False)}</p>' if "key" in one else ""
        yield Slide(one["say"], shown(one["show"], other, writer) + key, notes, one["min"])
    if not described:
        for picture in pictures(chapter, writer).values():
            first = re.split(r"(?<=[.:]) ", re.sub(r"^Figure [\d.]+\. ", "", picture.caption))[0]
            image = f'<img src="{picture.source}" alt="{escape(picture.alt)}">'
            yield Slide(first.rstrip(".:"), image, picture.caption, 4)
    play = described.get("play", "server")
    task = described.get("try", "Predict, change one thing, and look.")
    yield Slide(
        "Touch it",
        f'<p class="play"><a href="play-{play}.html#play" target="_blank">{PLAYGROUNDS[play]}</a></p>'
        f"<p>{escape(task, quote=False)}</p>",
        "It trains in the page: no network, no installation. Phones will do. Let them predict before they press a button. One "
        "sentence from each table at the end.", 5,
    )  # fmt: skip
    if quiz := questions(chapter):
        first = quiz[0]
        # Shuffled anew, so that no letter becomes a safe bet in a room that votes every week.
        answers = random.Random(chapter.name).sample(first.answers, len(first.answers))
        options = "".join(f"<li>{answer.words}</li>" for answer in answers)
        right = next(answer for answer in answers if answer.right)
        yield Slide(
            "Hands up", f'{markdown2html(first.words)}<ol class="options" type="A">{options}</ol>'
            f'<div class="fragment answer">{markdown2html(f"**{right.words}.** {right.why}")}</div>',
            "A show of hands first; then neighbors convince each other; then hands again. The next step shows the answer. The "
            "other questions are in the unit, and as QTI and Moodle XML in the folder quizzes.", 5,
        )  # fmt: skip
    if points := learned(chapter, writer):
        home = ", ".join(f"{one.number} {one.title}" for one in exercises(chapter))
        yield Slide(
            "What you learned",
            markdown2html("\n".join(f"- {point}" for point in points)),
            f"Go back to the guesses. At home: {home}.",
            3,
        )


def write_shared(folder: Path) -> None:
    """Put what all decks of a folder share there: scripts, styles and the playgrounds."""
    if (folder / "vendor").is_dir():
        return
    shutil.copytree(SLIDES / "vendor", folder / "vendor")
    shutil.copy(SLIDES / "slides.css", folder / "vendor")
    shutil.copytree(ROOT / "book/_extra/_static/vendor/mathjax", folder / "vendor/mathjax")
    for kind in PLAYGROUNDS:
        (folder / f"play-{kind}.html").write_text(standing_alone(kind), encoding="utf-8")


def write_slides(chapter: Chapter, writer: Writer, folder: Path) -> None:
    """Write the slides of a unit as one page into a folder, beside what all decks share."""
    write_shared(folder)
    made, clock = [], 0
    for slide in slides(chapter, writer):
        heading = f"<h2>{escape(slide.heading, quote=False)}</h2>\n" if slide.heading else ""
        notes = f"<p><b>Minute {clock}, for {slide.minutes}.</b></p>{markdown2html(slide.notes)}"
        made.append(f'<section>\n{heading}{slide.shown}\n<aside class="notes">{notes}</aside>\n</section>')
        clock += slide.minutes
    page = PAGE.format(title=escape(chapter.title), slides="\n".join(made))
    (folder / f"{chapter.name}.html").write_text(page, encoding="utf-8")


def plan(chapter: Chapter, writer: Writer) -> list[tuple[int, str]]:
    """From which minute on each slide of a unit is shown, with its heading; the last entry is the end."""
    rows: list[tuple[int, str]] = []
    clock = 0
    for number, slide in enumerate(slides(chapter, writer)):
        heading = slide.heading or ("title", "the question")[min(number, 1)]
        if not rows or rows[-1][1] != heading:
            rows.append((clock, heading))
        clock += slide.minutes
    return [*rows, (clock, "end")]


def teaching(writer: Writer) -> str:
    """What the page for teachers says of every unit: the minutes of its slides, and its exercises with marks and hints."""
    lines = []
    for chapter in writer.chapters:
        if chapter.name not in decks():
            continue
        steps = plan(chapter, writer)
        lines += [f"### [{chapter.title}]({chapter.name}), {steps[-1][0]} minutes\n"]
        lines += [" · ".join(f"**{clock}** {heading}" for clock, heading in steps[:-1]) + "\n"]
        lines += [
            "| Exercise | Minutes | Level | Points for | First hint | Second hint |",
            "|---|---|---|---|---|---|",
        ]
        for one in exercises(chapter):
            minutes, level, marks, first, second = exercise_plans()[one.label]
            stars = "●" * level + "○" * (3 - level)
            lines.append(f"| {{numref}}`{one.label}` | {minutes} | {stars} | {marks} | {first} | {second} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="units, without .ipynb (default: all)")
    folder, writer = ROOT / "_build/slides", Writer(ROOT / "book")
    units = chosen(writer.units, parser.parse_args().names)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for chapter in units:
        write_slides(chapter, writer, folder)
        minutes = plan(chapter, writer)[-1][0]
        print(f"{folder / chapter.name}.html, for {minutes} minutes in class", flush=True)
