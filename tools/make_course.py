"""Make the teacher's files out of the chapters: student and instructor notebooks, grading for nbgrader, slides, a zip."""

from __future__ import annotations

import argparse
import ast
import logging
import os
import re
import shutil
import sys
import zipfile
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

import nbformat
import yaml
from chapter_slides import exercise_plans, teaching, total, write_slides
from chapter_text import Chapter, Exercise, Piece, Writer, chosen, pieces
from make_quizzes import make as write_quizzes
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell
from nbgrader.apps import NbGraderAPI
from traitlets.config import Config

ROOT = Path(__file__).resolve().parent.parent
# What the notebooks of a chapter are: the same exercises, with more or less of what answers them.
TESTS, HIDDEN = "tests", "hidden-tests"
# By unit, what two students might hand in: teachers grade it before the course.
SAMPLES = yaml.safe_load((ROOT / "book/_instructor/samples.yml").read_text(encoding="utf-8"))

CONFIG = '''\
"""nbgrader's settings for this course. In this folder: nbgrader autograde CHAPTER, then nbgrader generate_feedback CHAPTER."""

c = get_config()  # noqa: F821
c.CourseDirectory.course_id = "pfl-lite"
# A chapter runs in a minute or two, its longest cell in less than one.
c.Execute.timeout = 300
# The stubs are made already, and the chapters keep their outputs, so nothing else is cleared when they are released.
c.GenerateAssignment.preprocessors = [
    f"nbgrader.preprocessors.{step}"
    for step in ("LockCells", "CheckCellMetadata", "ComputeChecksums", "SaveCells", "ClearHiddenTests", "ComputeChecksums")
]
'''


def tagged(cell: NotebookNode, tag: str) -> bool:
    """Whether a cell carries a tag."""
    return tag in cell.metadata.get("tags", [])


def stub(exercise: Exercise, sources: Iterable[str], tests: str) -> str:
    """What a student finds in the place of a solution: the heads of the functions that the tests call, or one refusal."""
    refusal = f'raise NotImplementedError("exercise {exercise.number}: {exercise.title}")'
    called = {node.id for node in ast.walk(ast.parse(tests)) if isinstance(node, ast.Name)}
    heads = []
    for source in sources:
        lines = source.splitlines()
        for node in ast.parse(source).body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name in called:
                inner = node.body if isinstance(node, ast.ClassDef) else [node]
                functions = [one for one in inner if isinstance(one, ast.FunctionDef)]
                head = lines[node.lineno - 1 : node.body[0].lineno - 1] if node not in functions else []
                for one in functions:
                    head += lines[one.lineno - 1 : one.body[0].lineno - 1]
                    head.append(" " * one.body[0].col_offset + refusal)
                heads.append("\n".join(head))
    return "\n\n\n".join(heads) or refusal


def graded(name: str, source: str, *, points: int, solution: bool, code: bool = True) -> NotebookNode:
    """A cell with nbgrader's mark: an answer, a test, or (with points and solution) an answer that a person grades."""
    cell = (new_code_cell if code else new_markdown_cell)(source, id=name)
    if code:  # with this tag "Run all" goes on behind an exercise that is not solved yet
        cell.metadata["tags"] = ["raises-exception"]
    cell.metadata["nbgrader"] = {
        "grade": points > 0,
        "grade_id": name,
        "locked": not solution,
        "points": points,
        "schema_version": 3,
        "solution": solution,
        "task": False,
    }
    return cell


def answers(exercise: Exercise, solution: list[Piece]) -> Iterator[NotebookNode]:
    """The cells that take the place of a solution: for prose, for code, and the tests that grade the code.

    Each test is worth a point. Words are worth the rest of what the plan gives, where there is a plan, and code nothing.
    """
    code = [piece.cell for piece in solution if piece.cell.cell_type == "code"]
    tests = [cell for cell in code if tagged(cell, TESTS) or tagged(cell, HIDDEN)]
    code = [cell for cell in code if cell not in tests]
    if plan := exercise_plans().get(exercise.label):
        words = total(plan[2]) - len(tests)
    else:
        words = int(not tests or any(piece.cell.cell_type == "markdown" for piece in solution))
    if words:
        ask = f"*Your answer (points: {words}). Write here, even if your code shows it: left as it is, this cell earns nothing.*"
        yield graded(f"{exercise.label}-text", ask, points=words, solution=True, code=False)
    if code:
        source = stub(exercise, [cell.source for cell in code], "\n".join(cell.source for cell in tests))
        yield graded(f"{exercise.label}-code", source, points=0, solution=True)
    for cell in tests:
        source, kind = cell.source, HIDDEN if tagged(cell, HIDDEN) else TESTS
        if kind == HIDDEN:
            source = f"# More tests, which only the teacher has\n### BEGIN HIDDEN TESTS\n{source}\n### END HIDDEN TESTS"
        yield graded(f"{exercise.label}-{kind}", source, points=1, solution=False)


def shown(piece: Piece, writer: Writer) -> Iterator[NotebookNode]:
    """A piece as both editions show it: plain Markdown, and the caption of a figure below the figure."""
    cell = nbformat.from_dict(piece.cell)
    if cell.cell_type == "markdown":
        cell.source = writer.plain(cell.source)
        if piece.place == "exercise" and piece.exercise:
            cell.source = f"### Exercise {piece.exercise.number}: {piece.exercise.title}\n\n{cell.source}"
        yield cell
        return
    figure = cell.metadata.pop("mystnb", {}).get("figure")
    cell.metadata.setdefault("jupyter", {})
    if tagged(cell, "hide-input") or tagged(cell, "hide-cell"):
        cell.metadata["jupyter"]["source_hidden"] = True
    yield cell
    if figure:
        yield new_markdown_cell(f"*{writer.caption(figure)}*", id=f"{cell.id}-caption")


def edition(chapter: Chapter, writer: Writer, *, solved: bool) -> NotebookNode:
    """The notebook of a chapter for instructors (solved, solutions open) or, with hidden tests still in it, for students."""
    cells: list[NotebookNode] = []
    for (place, exercise), group in groupby(pieces(chapter), lambda piece: (piece.place, piece.exercise)):
        parts = list(group)
        if place != "solution" or exercise is None:
            cells += [cell for piece in parts for cell in shown(piece, writer)]
        elif solved:
            cells.append(
                new_markdown_cell(
                    f"**Solution of exercise {exercise.number}**", id=f"{exercise.label}-solved"
                )
            )
            cells += [cell for piece in parts for cell in shown(piece, writer)]
        else:
            cells += answers(exercise, parts)
    notebook = nbformat.v4.new_notebook(cells=cells, metadata=dict(chapter.notebook.metadata))
    nbformat.validate(notebook)
    return notebook


def release(grading: Path, name: str) -> None:
    """Let nbgrader enter a chapter in its gradebook and write what students get: without hidden tests."""
    # nbgrader calls the program `alembic` by its name: it is found beside the Python that runs this.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    config = Config()
    exec(compile(CONFIG, "nbgrader_config.py", "exec"), {"get_config": lambda: config})
    config.CourseDirectory.root = str(grading)
    # Its log of every file stays off the screen, and so does its complaint that this machine has no exchange.
    logging.getLogger("traitlets").propagate = False
    result = NbGraderAPI(config=config).generate_assignment(name)
    if not result["success"]:
        raise RuntimeError(f"nbgrader could not release {name}:\n{result['log']}")


def hand_in_samples(chapter: Chapter, writer: Writer, grading: Path) -> None:
    """Hand in what two students might: the book's solutions, and the same with a mistake and with weaker words."""
    sample = SAMPLES[chapter.name]
    solved: dict[str, list[str]] = {}
    for place, cell, exercise in pieces(chapter):
        if place == "solution" and exercise and not (tagged(cell, TESTS) or tagged(cell, HIDDEN)):
            kind, text = (
                ("code", cell.source) if cell.cell_type == "code" else ("text", writer.plain(cell.source))
            )
            solved.setdefault(f"{exercise.label}-{kind}", []).append(text)
    ((right, wrong),) = sample["mistake"].items()
    weaker = {f"{label}-text": [words] for label, words in sample.get("words", {}).items()}
    file = f"{chapter.name}/{chapter.name}.ipynb"
    for student, line, handed in (("right", right, solved), ("wrong", wrong, solved | weaker)):
        notebook = nbformat.read(grading / "release" / file, as_version=4)
        for cell in notebook.cells:
            if cell.id in handed:
                cell.source = "\n\n".join(handed[cell.id]).replace(right, line)
        path = grading / "submitted" / f"sample-{student}" / file
        path.parent.mkdir(parents=True)
        nbformat.write(notebook, path)


READ_FIRST = """# A course on personalized federated learning

| Folder | For | What |
|---|---|---|
| `student/` | students | units and laboratories as notebooks, with stubs in the place of solutions |
| `slides/` | every reader | one file per unit; opens in a browser, without a network; key S shows what the speaker says |
| `instructor/` | teachers | the same notebooks with solutions, minute plans with points and hints, and exam answers |
| `quizzes/` | teachers | all quizzes as QTI 2.1 (Canvas, Blackboard, ILIAS, ...) and as Moodle XML, with keys |
| `grading/` | teachers | an nbgrader course with the plans' points; `source/` and the hidden tests in it are not for students |

Hand out `student/` and `slides/`, not this whole folder. `student/README.md` says what students install, and that they need
nothing else. You need nbgrader too: `make environment` in a clone of the book's repository makes an environment that has it; the
page *Teaching with this book* says how submissions are graded.

Text is under CC BY 4.0 (`LICENSE-TEXT`), code under BSD-3-Clause (`LICENSE`).
"""


INSTALL = """# Notebooks about personalized federated learning

You need Python 3.11 or newer. In this folder:

```bash
python3 -m venv .venv
.venv/bin/pip install {package} jupyterlab
.venv/bin/jupyter lab
```

(On Windows: `py -m venv .venv`, and `.venv\\Scripts` in the place of `.venv/bin`.) The data of the notebooks comes with the
package: after this no network is needed, and no graphics card. On Linux the usual torch brings 3 GB of libraries for NVIDIA
cards, almost 6 GB in all; without such a card, install the CPU build of torch and torchvision first, as PyTorch's own page
says, and it is less than 2 GB.

A cell that is not answered yet raises `NotImplementedError`; *Run all* goes on behind it.
"""


def pictures(chapter: Chapter) -> set[str]:
    """The files of pictures that the text of a chapter shows, from the book's folder."""
    texts = [cell.source for cell in chapter.notebook.cells if cell.cell_type == "markdown"]
    return {name for text in texts for name in re.findall(r"\bfigures/[\w./-]+\.svg", text)}


def make(book: Path, output: Path, names: list[str], wheel: Path | None) -> None:
    """Write everything for the named chapters into `output`, replacing what is there; with the package as a wheel, if given."""
    writer = Writer(book)
    wanted = chosen(writer.chapters, names)
    shutil.rmtree(output, ignore_errors=True)
    student, instructor, slides, grading = (
        output / part for part in ("student", "instructor", "slides", "grading")
    )
    for folder in (student, instructor, slides, grading):
        folder.mkdir(parents=True)
    (grading / "nbgrader_config.py").write_text(CONFIG, encoding="utf-8")
    for chapter in wanted:
        source = grading / "source" / chapter.name
        source.mkdir(parents=True)
        nbformat.write(edition(chapter, writer, solved=False), source / f"{chapter.name}.ipynb")
        for name in pictures(chapter):
            for folder in (source, student, instructor):
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(book / name, folder / name)
        release(grading, chapter.name)
        if chapter.name in SAMPLES:
            hand_in_samples(chapter, writer, grading)
        shutil.copy(grading / "release" / chapter.name / f"{chapter.name}.ipynb", student)
        nbformat.write(edition(chapter, writer, solved=True), instructor / f"{chapter.name}.ipynb")
        if chapter in writer.units:
            write_slides(chapter, writer, slides)
        print(f"  {chapter.name}", flush=True)
    write_quizzes(writer, output / "quizzes")
    shutil.copy(book / "_instructor/exam-answers.md", instructor)
    plans = f"# Minute plans, points and hints\n\n{writer.plain(teaching(writer))}"
    (instructor / "plans.md").write_text(plans, encoding="utf-8")
    for licence in ("LICENSE", "LICENSE-TEXT"):
        shutil.copy(ROOT / licence, output)
    (output / "README.md").write_text(READ_FIRST, encoding="utf-8")
    package = "pfl-lite" if wheel is None else f"./{Path(shutil.copy(wheel, student)).name}"
    (student / "README.md").write_text(INSTALL.format(package=package), encoding="utf-8")
    archive = output / "pfl-course.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for path in sorted(output.rglob("*")):
            if path.is_file() and path != archive:
                packed.write(path, Path("pfl-course") / path.relative_to(output))
    print(f"{archive}: {archive.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="chapters, without .ipynb (default: all)")
    parser.add_argument("--book", type=Path, default=ROOT / "book", help="folder of the chapters")
    parser.add_argument("--output", type=Path, default=ROOT / "_build" / "course", help="folder to write")
    parser.add_argument("--wheel", type=Path, help="the package, for students to install")
    arguments = parser.parse_args()
    make(arguments.book, arguments.output.resolve(), arguments.names, arguments.wheel)
