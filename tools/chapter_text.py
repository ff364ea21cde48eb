"""Read the chapters outside Jupyter Book: their order and numbers, their exercises, and their text as plain Markdown."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import nbformat
import yaml
from bs4 import BeautifulSoup
from nbformat import NotebookNode
from pybtex.database import parse_file

# A fence of sphinx-exercise, with its options: ```{exercise-start} Title / :label: name / ```
GATE = re.compile(r"^```\{(exercise|solution)-(start|end)\} *(.*)\n((?::.*\n)*)```$\n?", re.MULTILINE)
KINDS = ("recall", "derive", "code", "explore")
KIND = re.compile(rf"\(?({'|'.join(KINDS)})\b", re.IGNORECASE)
FOLDED = {"hide-input", "hide-cell", "remove-input", "remove-cell"}  # tags of code that a page does not show
LAB = "lab-"  # the page lab-NAME is the laboratory of the unit NAME
ALONE = {"a-table-of-numbers", "small-parts-of-a-large-model"}  # laboratories that belong to no unit
BESIDE = {"Playgrounds", "Laboratory", "Reference"}  # parts of the contents that are not the course


class Exercise(NamedTuple):
    """An exercise: its number in the book, its title, its label, and its kind (one of KINDS)."""

    number: str
    title: str
    label: str
    kind: str


class Piece(NamedTuple):
    """A part of a chapter: a whole code cell, or what of a Markdown cell lies in one place.

    `place` is "text", "exercise" (a statement) or "solution"; the last two say of which exercise.
    """

    place: str
    cell: NotebookNode
    exercise: Exercise | None = None


class Chapter(NamedTuple):
    """A notebook of the book: its file's stem, its number (0 if it has none), its title and its notebook."""

    name: str
    number: int
    title: str
    notebook: NotebookNode


def chapters(book: Path) -> list[Chapter]:
    """The notebooks of the table of contents, in its order, with the numbers that the site gives them."""
    toc, found, number = yaml.safe_load((book / "_toc.yml").read_text(encoding="utf-8")), [], 0
    for part in toc["parts"]:
        for entry in part["chapters"]:
            number += bool(part.get("numbered"))
            path = book / f"{entry['file']}.ipynb"
            if path.is_file():
                notebook = nbformat.read(path, as_version=4)
                title = title_of(notebook.cells[0].source)
                found.append(Chapter(path.stem, number if part.get("numbered") else 0, title, notebook))
    return found


def chosen(known: Sequence[Chapter], names: Sequence[str]) -> list[Chapter]:
    """The chapters with some names, all for no name; an unknown name ends the program."""
    if unknown := {*names} - {chapter.name for chapter in known}:
        raise SystemExit(f"no chapter '{min(unknown)}' (there are: {', '.join(one.name for one in known)})")
    return [chapter for chapter in known if not names or chapter.name in names]


def pieces(chapter: Chapter) -> Iterator[Piece]:
    """The chapter cut at the gates of its exercises and solutions, without the gates and without empty parts."""
    place, exercise, count = "text", None, 0
    for cell in chapter.notebook.cells:
        if cell.cell_type != "markdown":
            yield Piece(place, cell, exercise if place == "solution" else None)
            continue
        at = 0
        for gate in [*GATE.finditer(cell.source), None]:
            text = cell.source[at : gate.start() if gate else None].strip()
            if gate and gate[1] == "exercise" and gate[2] == "start":
                count += 1
                label = re.search(r":label: *(\S+)", gate[4])
                exercise = Exercise(
                    f"{chapter.number}.{count}", gate[3].strip(), label[1] if label else "", ""
                )
            elif exercise and place == "exercise" and text:
                kind = KIND.match(exercise.title) or KIND.match(text)
                exercise = exercise._replace(kind=kind[1].lower() if kind else "")
            if text:
                part = nbformat.from_dict(cell | {"source": text, "id": f"{cell.id}-{at}" if at else cell.id})
                yield Piece(place, part, exercise if place != "text" else None)
            if gate:
                at = gate.end()
                place = gate[1] if gate[2] == "start" else "text"


def exercises(chapter: Chapter) -> list[Exercise]:
    """The exercises of a chapter."""
    return [piece.exercise for piece in pieces(chapter) if piece.place == "exercise" and piece.exercise]


class Answer(NamedTuple):
    """An answer to a question of a quiz: its words, why it is right or wrong, and which of the two."""

    words: str
    why: str
    right: bool


class Question(NamedTuple):
    """A question of a quiz in Markdown, without its number, and its answers."""

    words: str
    answers: list[Answer]


def questions(chapter: Chapter) -> list[Question]:
    """The quiz of a chapter: the questions in the cells whose id begins with `quiz`."""
    cells = [cell.source for cell in chapter.notebook.cells if cell.id.startswith("quiz")]
    found = []
    for part in "\n".join(cells).split('<div class="quiz">')[1:]:
        words = re.sub(r"^\s*\*\*\d+\.\*\*\s*", "", part.split("<details", 1)[0]).strip()
        answers = []
        for one in BeautifulSoup(part, "html.parser").find_all("details"):
            summary = one.find("summary").extract()  # type: ignore[union-attr]
            why = re.sub(r"^(Right|No)\.\s*", "", one.get_text().strip())
            right = "right" in (one.get("class") or [])
            answers.append(Answer(summary.get_text().strip(), why, right))
        found.append(Question(words, answers))
    return found


def function(source: str, name: str) -> str:
    """The source of one function of a cell."""
    node = next(
        one for one in ast.parse(source).body if isinstance(one, ast.FunctionDef) and one.name == name
    )
    return "\n".join(source.splitlines()[node.lineno - 1 : node.end_lineno])


class Writer:
    """Writes MyST Markdown as Markdown that any notebook shows: numbers, names and links in the place of roles."""

    def __init__(self, book: Path) -> None:
        """Read the labels, titles and references of the book in this folder."""
        self.chapters = chapters(book)
        self.units = [chapter for chapter in self.chapters if not chapter.name.startswith(LAB)]
        self.titles = {chapter.name: chapter.title for chapter in self.chapters}
        # those that are no notebooks
        self.pages = {path.stem: title_of(path.read_text(encoding="utf-8")) for path in book.glob("*.md")}
        self.labels: dict[str, str] = {}
        for chapter in self.chapters:
            self._number(chapter)
        self.references = {
            key: self._reference(entry)
            for key, entry in parse_file(str(book / "references.bib")).entries.items()
        }

    def _number(self, chapter: Chapter) -> None:
        """Note what equations, figures, tables and exercises are called, as Sphinx counts them."""
        counts = {"equation": 0, "figure": 0, "table": 0}

        def note(what: str, label: str | None, style: str) -> None:
            counts[what] += 1
            if label:
                self.labels[label] = style.format(f"{chapter.number}.{counts[what]}")

        for cell in chapter.notebook.cells:
            if cell.cell_type == "markdown":
                marks = r"^\$\$ *\(([\w-]+)\)|^```\{math\}\n:label: *(\S+)|^```\{(table|figure)\}.*\n(?::name: *(\S+))?"
                for found in re.finditer(marks, cell.source, re.MULTILINE):
                    if found[3]:
                        note(found[3], found[4], f"{found[3].capitalize()} {{}}")
                    else:
                        note("equation", found[1] or found[2], "({})")
            elif figure := cell.metadata.get("mystnb", {}).get("figure"):
                note("figure", figure.get("name"), "Figure {}")
        for exercise in exercises(chapter):
            self.labels[exercise.label] = f"exercise {exercise.number}"
        self.labels |= {
            label: title
            for cell in chapter.notebook.cells
            if cell.cell_type == "markdown"
            for label, title in re.findall(r"^\(([\w-]+)\)=\n#+ (.*)", cell.source, re.MULTILINE)
        }

    @staticmethod
    def _reference(entry: object) -> tuple[str, str]:
        """Names and year of an entry of the bibliography."""
        people = [" ".join(person.prelast_names + person.last_names) for person in entry.persons["author"]]  # type: ignore[attr-defined]
        names = people[0] if len(people) == 1 else " and ".join(people)
        return names if len(people) < 3 else f"{people[0]} et al.", entry.fields["year"]  # type: ignore[attr-defined]

    def caption(self, figure: dict[str, str]) -> str:
        """The caption of a figure, with its number if it has a name."""
        number = self.labels.get(figure.get("name", ""), "")
        return self.plain(f"{number}. {figure['caption']}" if number else figure["caption"])

    def plain(self, text: str) -> str:
        """Markdown without MyST's directives, roles and labels."""
        text = re.sub(r"^\([\w-]+\)=\n", "", text, flags=re.MULTILINE)
        for marks, written in (
            (r"^```\{math\}\n:label: *(?P<label>\S+)\n(?P<formula>.*?)\n```$", self._equation),
            (r"^\$\$\n(?P<formula>(?:(?!\$\$).)*?)\n\$\$ *\((?P<label>[\w-]+)\)", self._equation),
            (r"^(:::|```)\{admonition\} *([^\n]*)\n((?::[^\n]*\n)*)(.*?)\n\1$", self._admonition),
            (r"^```\{table\} *([^\n]*)\n((?::[^\n]*\n)*)(.*?)\n```$", self._table),
            (r"^```\{figure\} *(\S+)\n((?::[^\n]*\n)*)(.*?)\n```$", self._picture),
        ):
            text = re.sub(marks, written, text, flags=re.MULTILINE | re.DOTALL)
        # Cards side by side become cards one below the other.
        text = re.sub(r"^::::?(\{grid.*\n(:gutter:.*\n)?|$\n?)", "", text, flags=re.MULTILINE)
        text = re.sub(r"\{(cite(?::[tp])?|eq|numref|ref|doc)\}`([^`]+)`", self._role, text)
        return re.sub(r"(?<!!)\[([^\]]+)\]\(([\w-]+)\)", self._link, text)

    def _equation(self, found: re.Match[str]) -> str:
        return f"$$\n{found['formula']}\n\\tag{{{self.labels[found['label']].strip('()')}}}\n$$"

    @staticmethod
    def _admonition(found: re.Match[str]) -> str:
        return quoted(f"**{found[2]}**\n\n{found[4].strip()}")

    def _table(self, found: re.Match[str]) -> str:
        name = re.search(r":name: *(\S+)", found[2])
        return f"*{self.labels[name[1]] if name else 'Table'}. {found[1]}*\n\n{found[3].strip()}"

    def _picture(self, found: re.Match[str]) -> str:
        name, words = (re.search(rf":{option}: *(.+)", found[2]) for option in ("name", "alt"))
        number = f"**{self.labels[name[1]]}.** " if name else ""
        return f"![{words[1] if words else ''}]({found[1]})\n\n{number}{found[3].strip()}"

    def _role(self, found: re.Match[str]) -> str:
        role, target = found[1], found[2]
        if role.startswith("cite"):
            cited = [self.references[key.strip()] for key in target.split(",")]
            if role == "cite:t":
                return " and ".join(f"{names} ({year})" for names, year in cited)
            return "(" + "; ".join(f"{names}, {year}" for names, year in cited) + ")"
        named = re.fullmatch(r"(.+)\s<(.+)>", target, re.DOTALL)  # it may go over a line
        if role == "doc":
            page = named[2] if named else target
            words = named[1] if named else self.titles.get(page) or f"*{self.pages[page]}* of the book"
            return f"[{words}]({page}.ipynb)" if page in self.titles else words
        if named:
            return (
                f"{named[1]} ({self.labels[named[2]]})"
                if role != "ref" or named[2].startswith("ex-")
                else named[1]
            )
        return self.labels[target]

    def _link(self, found: re.Match[str]) -> str:
        return f"[{found[1]}]({found[2]}.ipynb)" if found[2] in self.titles else found[1]


def title_of(text: str) -> str:
    """The title of a page or a notebook in Markdown: its first heading."""
    return next(line[2:] for line in text.splitlines() if line.startswith("# "))


def quoted(text: str) -> str:
    """Text as a quotation in Markdown."""
    return "\n".join(f"> {line}".rstrip() for line in text.splitlines())
