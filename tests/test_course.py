"""The teacher's files: what students see and what they do not, how answers are graded, slides, and copies of the chapters."""

from __future__ import annotations

import ast
import errno
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import chapter_text
import nbformat
import pytest
import yaml
from bs4 import BeautifulSoup

from pfl_lite import notebooks as copies
from pfl_lite.errors import InputError

ROOT = Path(__file__).resolve().parent.parent
CHAPTERS = sorted((ROOT / "book").glob("*.ipynb"))
UNITS = [path for path in CHAPTERS if not path.stem.startswith("lab-") and path.stem != "reproducing-pfedmb"]
ONE, TWO = "federated-learning-in-twenty-lines", "one-model-or-many"  # the units with samples
SHORT = {"what-to-try-first", "a-year-later"}  # units without a laboratory


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The course of two chapters, with the samples that teachers grade."""
    output = tmp_path_factory.mktemp("course") / "course"
    wheel = output.parent / "pfl_lite-0-py3-none-any.whl"
    wheel.write_bytes(b"a package")
    command = [sys.executable, str(ROOT / "tools/make_course.py"), ONE, TWO]
    command += ["--output", str(output), "--wheel", str(wheel)]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout + process.stderr
    return output


def cells(path: Path) -> dict[str, nbformat.NotebookNode]:
    return {cell.id: cell for cell in nbformat.read(path, as_version=4).cells}


def test_students_get_stubs_and_nothing_of_the_solutions(course: Path) -> None:
    student, source = cells(course / f"student/{ONE}.ipynb"), cells(ROOT / f"book/{ONE}.ipynb")
    everything = "\n".join(cell.source for cell in student.values())
    for cell in source.values():
        if "solution" in cell.metadata.get("tags", []) and "tests" not in cell.metadata.tags:
            longest = max(cell.source.splitlines(), key=len)
            assert longest not in everything, f"a student can read {longest!r}"
    assert "A gradient has as many numbers, $P$, as a model" not in everything  # the prose of a solution
    assert "HIDDEN" not in everything and "solution-start" not in everything

    stub = student["ex-fl-fedsgd-code"].source
    assert stub.startswith("def fedsgd(theta, T, lr, fed=federation):")
    with pytest.raises(NotImplementedError, match=r"exercise 1\.2: Send gradients instead of models"):
        exec(stub + "\nfedsgd(None, 1, 0.1)", {"federation": None})
    with pytest.raises(NotImplementedError, match=r"exercise 1\.1"):
        exec(student["ex-fl-floats-code"].source, {})
    for title in ("Count the floats", "Send gradients instead of models", "Fewer clients per round"):
        assert title in everything


def test_what_is_no_exercise_keeps_its_code_and_outputs(course: Path) -> None:
    for edition in ("student", "instructor"):
        made = cells(course / f"{edition}/{ONE}.ipynb")
        for name, cell in cells(ROOT / f"book/{ONE}.ipynb").items():
            if cell.cell_type == "code" and "solution" not in cell.metadata.get("tags", []):
                assert made[name].source == cell.source and made[name].outputs == cell.outputs


def test_students_learn_what_to_install(course: Path) -> None:
    text = (course / "student/README.md").read_text()
    (package,) = re.findall(r"pip install \./(\S+) jupyterlab", text)
    assert (course / "student" / package).read_bytes() == b"a package"


@pytest.mark.parametrize(
    "edition", ["student", "instructor", f"grading/source/{ONE}", f"grading/release/{ONE}"]
)
def test_pictures_lie_beside_the_notebook(course: Path, edition: str) -> None:
    text = "\n".join(cell.source for cell in cells(course / edition / f"{ONE}.ipynb").values())
    shown = set(re.findall(r"\]\((figures/[^)]+)\)", text))
    assert "figures/cards/card-fedavg.svg" in shown
    assert all((course / edition / name).is_file() for name in shown)


def test_instructors_get_every_solution(course: Path) -> None:
    made = cells(course / f"instructor/{ONE}.ipynb")
    for name, cell in cells(ROOT / f"book/{ONE}.ipynb").items():
        if "solution" in cell.metadata.get("tags", []):
            assert made[name].source == cell.source
    everything = "\n".join(cell.source for cell in made.values())
    assert (
        "Solution of exercise 1.2" in everything
        and "A gradient has as many numbers, $P$, as a model" in everything
    )


def test_editions_hold_no_directive_of_the_book() -> None:
    writer = chapter_text.Writer(ROOT / "book")
    left = [
        f"{chapter.name}: {found[0]}"
        for chapter in writer.chapters
        for piece in chapter_text.pieces(chapter)
        if piece.cell.cell_type == "markdown"
        for found in re.finditer(r"\{[\w:]+\}`|^[:`]{3,}\{.*", writer.plain(piece.cell.source), re.MULTILINE)
    ]
    assert not left, left
    number = next(chapter.number for chapter in writer.chapters if chapter.name == "two-models-one-tie")
    equation, exercise = writer.labels["eq-om-fedper"], writer.labels["ex-om-keep"]
    assert re.fullmatch(r"\(\d+\.\d+\)", equation) and re.fullmatch(r"exercise \d+\.\d+", exercise)
    picture = "```{figure} figures/ideas/a.svg\n:name: fig-idea-envelope\n:alt: A V.\n\nSee {eq}`eq-om-fedper`.\n```"
    shown = writer.plain(picture)
    assert (
        re.sub(r"\d+\.\*\*", "N.**", shown)
        == f"![A V.](figures/ideas/a.svg)\n\n**Figure {number}.N.** See {equation}."
    )
    assert (
        writer.plain("::::{grid} 1 1 2 2\n:gutter: 2\n\n:::{grid-item}\n![a](b.svg)\n:::\n::::").strip()
        == "![a](b.svg)"
    )
    assert writer.plain("{cite:t}`mcmahan2017fedavg`") == "McMahan et al. (2017)"
    assert writer.plain("{ref}`an\nexercise <ex-om-keep>`") == f"an\nexercise ({exercise})"
    assert writer.plain("see {eq}`eq-om-fedper` in [one](one-model-or-many)") == (
        f"see {equation} in [one](one-model-or-many.ipynb)"
    )
    assert writer.plain(
        "{doc}`the method <pfedmb>`, {doc}`clusters`, {doc}`notation`, {doc}`words <teaching>`"
    ) == ("[the method](pfedmb.ipynb), [Clusters](clusters.ipynb), *Notation* of the book, words")


@pytest.mark.parametrize("chapter", UNITS, ids=lambda p: p.stem)
def test_a_code_exercise_is_graded(chapter: Path) -> None:
    """In every chapter that teaches a method: tests that students see, others, and a function that both call."""
    notebook = nbformat.read(chapter, as_version=4)
    tagged = {
        tag: [cell.source for cell in notebook.cells if tag in cell.metadata.get("tags", [])]
        for tag in ("tests", "hidden-tests", "solution")
    }
    assert tagged["tests"] and len(tagged["tests"]) == len(tagged["hidden-tests"])
    hidden = [
        cell.metadata.tags for cell in notebook.cells if "hidden-tests" in cell.metadata.get("tags", [])
    ]
    assert all("remove-cell" in tags for tags in hidden), "the site shows the tests"
    defined = {
        node.name
        for source in tagged["solution"]
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }
    for source in tagged["tests"] + tagged["hidden-tests"]:
        called = {node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)}
        assert defined & called, "the tests call nothing that the solution defines"


@pytest.mark.parametrize("chapter", UNITS, ids=lambda p: p.stem)
def test_quiz_explains_every_answer(chapter: Path) -> None:
    quiz = next(cell.source for cell in nbformat.read(chapter, as_version=4).cells if cell.id == "quiz")
    questions = [BeautifulSoup(part, "html.parser") for part in quiz.split('<div class="quiz">')[1:]]
    assert 3 <= len(questions) <= 5
    for question in questions:
        answers = question.find_all("details")
        right = [answer for answer in answers if "right" in (answer.get("class") or [])]
        assert len(answers) >= 3 and len(right) == 1, question.get_text()[:80]
        for answer in answers:
            option, why = answer.summary.get_text(), answer.get_text().replace(answer.summary.get_text(), "")
            assert "$" not in option, "an option is HTML, in which no formula is set"
            assert why.strip().startswith("Right." if answer in right else "No."), option
            assert len(why) > 30, f"{option!r} is not explained"


def test_the_longest_answer_is_no_safe_bet(writer: Any) -> None:
    """Of three answers, the right one is the longest about every third time, and stands first, second and third alike."""
    asked = [question for chapter in writer.chapters for question in chapter_text.questions(chapter)]
    longest, places = 0, []
    for question in asked:
        lengths = [len(answer.words) for answer in question.answers]
        places.append([answer.right for answer in question.answers].index(True))
        longest += lengths[places[-1]] > max(lengths[: places[-1]] + lengths[places[-1] + 1 :])
    chance = sum(1 / len(question.answers) for question in asked)
    assert 0.6 * chance <= longest <= 1.3 * chance, f"{longest} of {len(asked)}"
    assert max(map(places.count, range(3))) <= 0.45 * len(asked), places


# What students hand in for exercise 1.2, and what it is worth: (tests they have seen, tests they have not).
FEDSGD = """
def fedsgd(theta, T, lr, fed=federation):
    for _ in range(T):
        total = {name: torch.zeros_like(p) for name, p in theta.items()}
        weights = fed.train_sizes.double() / fed.train_sizes.sum()
        for a, mine in zip(weights, fed.train, strict=True):
            w = {name: p.clone().requires_grad_() for name, p in theta.items()}
            loss = F.cross_entropy(softmax_regression(w, fed.images[mine]), fed.labels[mine])
            gradients = torch.autograd.grad(loss, list(w.values()))
            total = {name: total[name] + a * g for name, g in zip(w, gradients, strict=True)}
        theta = {name: p - lr * total[name] for name, p in theta.items()}
    return theta
"""
SUBMISSIONS = {
    "right": (FEDSGD, (1, 1)),
    "empty": (None, (0, 0)),
    "unweighted": (FEDSGD.replace("for a, mine in zip(weights,", "for a, mine in zip([1 / 8] * 8,"), (0, 0)),
    "one-round-only": (FEDSGD.replace("range(T)", "range(1)"), (1, 0)),
    "wrong-sign": (FEDSGD.replace("p - lr", "p + lr"), (0, 0)),
}
# What teachers grade before the course: made with it, and handed in already.
SAMPLES = {"sample-right": (1, 1), "sample-wrong": (1, 0)}


def test_grading(course: Path, tmp_path: Path) -> None:
    """Right, empty and wrong answers get what they deserve, also if a student rewrites the tests; and so do the samples."""
    from nbgrader.api import Gradebook

    grading = tmp_path / "grading"
    shutil.copytree(course / "grading", grading)
    for student, answer in {
        **{one: answer for one, (answer, _) in SUBMISSIONS.items()},
        **dict.fromkeys(SAMPLES),
    }.items():
        folder = grading / "submitted" / student / ONE
        handed_in = folder / f"{ONE}.ipynb" if student in SAMPLES else course / f"student/{ONE}.ipynb"
        notebook = nbformat.read(handed_in, as_version=4)
        # The experiments take a minute; what these answers need comes before them.
        needed = {"cell-imports", "cell-03", "cell-10", "cell-12", "cell-14"}
        notebook.cells = [cell for cell in notebook.cells if cell.id in needed or "nbgrader" in cell.metadata]
        for cell in notebook.cells:
            if cell.id == "ex-fl-fedsgd-code" and answer:
                assert answer != FEDSGD or student == "right"
                cell.source = answer
            elif cell.id == "ex-fl-fedsgd-tests" and student == "wrong-sign":
                cell.source = "pass"
        folder.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, folder / f"{ONE}.ipynb")
    for student in SAMPLES:  # of the other unit, the first cell and the answers are enough
        handed_in = grading / "submitted" / student / TWO / f"{TWO}.ipynb"
        notebook = nbformat.read(handed_in, as_version=4)
        notebook.cells = [
            cell for cell in notebook.cells if cell.id == "cell-03" or "nbgrader" in cell.metadata
        ]
        nbformat.write(notebook, handed_in)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    for unit in (ONE, TWO):
        process = subprocess.run(
            [sys.executable, "-m", "nbgrader", "autograde", unit],
            cwd=grading, capture_output=True, text=True, env=os.environ | {"PATH": path},
        )  # fmt: skip
        assert process.returncode == 0, process.stderr[-3000:]
    got = {}
    with Gradebook(f"sqlite:///{grading}/gradebook.db") as gradebook:
        guide = (ROOT / "book/teaching.md").read_text(encoding="utf-8")
        for student in SUBMISSIONS | SAMPLES:
            notebook = gradebook.find_submission_notebook(ONE, ONE, student)
            points = {grade.name: grade.auto_score for grade in notebook.grades}
            got[student] = points["ex-fl-fedsgd-tests"], points["ex-fl-fedsgd-hidden-tests"]
            assert student in SAMPLES or points["ex-fl-floats-text"] == 0, (
                "an answer that nobody wrote has points"
            )
        for unit in (ONE, TWO):
            for student, expected in SAMPLES.items():
                notebook = gradebook.find_submission_notebook(unit, unit, student)
                line = f"{unit},,,{student},,,,{notebook.score},0.0,{notebook.score},{notebook.max_score}\n"
                assert notebook.score == sum(expected) and line in guide, f"the guide does not promise {line}"
    assert got == {student: points for student, (_, points) in SUBMISSIONS.items()} | SAMPLES


def test_weaker_words_of_a_sample_stand_in_their_cells(course: Path) -> None:
    """What `sample-wrong` answers differs from the book's words in every exercise that the guide grades, and nowhere else."""
    right, wrong = (
        cells(course / f"grading/submitted/sample-{kind}/{TWO}/{TWO}.ipynb") for kind in ("right", "wrong")
    )
    apart = {
        name.removesuffix("-text") for name in right if name.endswith("-text") and right[name] != wrong[name]
    }
    table = (ROOT / "book/teaching.md").read_text(encoding="utf-8").split("The words of `sample-wrong`")[1]
    graded = re.findall(r"^\| \{numref\}`(ex-[\w-]+)` \| \d of", table.split("```")[0], re.MULTILINE)
    assert apart == set(graded) and len(graded) == 3


def test_slides_need_no_network(course: Path) -> None:
    page = BeautifulSoup((course / f"slides/{ONE}.html").read_text(encoding="utf-8"), "html.parser")
    loaded = [str(tag["src"]) for tag in page.find_all(src=True)]
    loaded += [str(tag["href"]) for tag in page.find_all(href=True)]
    files = [address for address in loaded if not address.startswith("data:")]
    assert {"vendor/reveal/reveal.js", "vendor/reveal/notes.js", "vendor/mathjax/tex-mml-chtml.js"} <= set(
        files
    )
    for address in files:
        assert (course / "slides" / unquote(address.partition("#")[0])).is_file(), address


DECKS = yaml.safe_load((ROOT / "tools/slides/decks.yml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def writer() -> Any:
    """Reads the whole book once."""
    return chapter_text.Writer(ROOT / "book")


@pytest.mark.parametrize("name", DECKS)
def test_slides_are_made_for_a_room(writer: Any, name: str) -> None:
    """One idea a slide: a short heading, a picture, a formula or a little code; the words are in the speaker's notes."""
    chapter = next(one for one in writer.chapters if one.name == name)
    made = list(importlib.import_module("chapter_slides").slides(chapter, writer))
    assert 7 <= len(made) <= 16 and 25 <= sum(slide.minutes for slide in made) <= 60
    named = [slide.heading for slide in made]
    assert {"Touch it", "Hands up", "What you learned"} <= set(named)
    assert DECKS[name]["try"].endswith((".", "?"))
    cards = any("figures/cards/card-" in cell.source for cell in chapter.notebook.cells)
    assert cards == ("What is shared, and what stays?" in named)
    for slide in made:
        shown = BeautifulSoup(slide.shown, "html.parser")
        assert len(slide.heading.split()) <= 12 and slide.minutes > 0 and len(slide.notes.split()) >= 3, slide
        assert all(len(str(picture["alt"])) > 20 for picture in shown.find_all("img")), slide.heading
        assert "|" not in slide.heading and slide.shown.count("<img") <= 2
        assert "$$" not in slide.shown or shown.select_one(".key"), (
            f"{slide.heading}: letters without a meaning"
        )
        if code := shown.find("pre"):
            assert len(code.get_text().strip().splitlines()) <= 32, slide.heading
        elif slide.heading not in {"", "Hands up", "What you learned"}:
            assert len(re.sub(r"\$\$.*?\$\$", "", shown.get_text(), flags=re.DOTALL).split()) <= 20, (
                slide.heading
            )


def test_slides_describe_every_unit_that_has_a_laboratory(writer: Any) -> None:
    known = {chapter.name for chapter in writer.chapters}
    cut = {name.removeprefix("lab-") for name in known if name.startswith("lab-")}
    assert cut - chapter_text.ALONE <= set(DECKS) <= known
    for name, deck in DECKS.items():
        assert deck["question"].endswith("?") and len(deck["slides"]) >= 3, name


def test_no_letter_is_a_safe_bet_when_hands_go_up(writer: Any) -> None:
    slides, letters = importlib.import_module("chapter_slides").slides, []
    for chapter in (one for one in writer.chapters if one.name in DECKS):
        (vote,) = [one for one in slides(chapter, writer) if one.heading == "Hands up"]
        shown = BeautifulSoup(vote.shown, "html.parser")
        answer = shown.select(".answer strong")[0].get_text().removesuffix(".")
        letters.append("ABCD"[[option.get_text() for option in shown.select("li")].index(answer)])
    assert len(letters) == len(DECKS) and max(letters.count(one) for one in "ABC") <= 0.6 * len(letters)


def test_slides_show_no_solution(course: Path) -> None:
    page = BeautifulSoup((course / f"slides/{ONE}.html").read_text(encoding="utf-8"), "html.parser")
    assert page.h1 is not None and page.h1.get_text() == "Federated learning in twenty lines"
    assert len(page.select(".slides img")) >= 4 and len(page.select("aside.notes")) == len(
        page.select(".slides > section")
    )
    assert "Four clients per round" not in page.get_text()


@pytest.mark.parametrize("name", DECKS)
def test_what_the_speaker_reads_links_to_no_notebook(writer: Any, name: str) -> None:
    chapter = next(one for one in writer.chapters if one.name == name)
    made = importlib.import_module("chapter_slides").slides(chapter, writer)
    assert not [slide.heading for slide in made if ".ipynb" in slide.notes + slide.shown]


def test_a_unit_asks_three_exercises_and_its_laboratory_the_others() -> None:
    """A unit with its laboratory, like a chapter that is not cut, has five or more, of four kinds."""
    lacking = {}
    known = {chapter.name: chapter for chapter in chapter_text.chapters(ROOT / "book")}
    for name, chapter in known.items():
        asked = chapter_text.exercises(chapter)
        solved = {piece.exercise.label for piece in chapter_text.pieces(chapter) if piece.place == "solution"}
        assert solved == {one.label for one in asked}, f"{name}: an exercise without a solution"
        lab = known.get(f"lab-{name}")
        both = asked + (chapter_text.exercises(lab) if lab else [])
        enough = (len(both) >= 5 and {one.kind for one in both} == set(chapter_text.KINDS)) or name in SHORT
        if (lab or name in SHORT) and len(asked) != 3:
            enough = False
        if not name.startswith("lab-") and not (enough and any(one.kind == "code" for one in asked)):
            lacking[name] = [one.kind for one in asked], [one.kind for one in both]
    assert not lacking, lacking


def test_every_exam_question_has_an_answer(course: Path) -> None:
    questions = (ROOT / "book/teaching.md").read_text(encoding="utf-8").split("## Exam questions")[1]
    answers = (course / "instructor/exam-answers.md").read_text(encoding="utf-8")
    numbered = [re.findall(r"^(\d+)\. ", text, re.MULTILINE) for text in (questions, answers)]
    assert len(numbered[0]) >= 10 and numbered[0] == numbered[1]


def test_teachers_guide_names_exercises_and_chapters_that_exist() -> None:
    guide = (ROOT / "book/teaching.md").read_text(encoding="utf-8")
    known = chapter_text.chapters(ROOT / "book")
    labels = {one.label for chapter in known for one in chapter_text.exercises(chapter)}
    named = set(re.findall(r"\{numref\}`(ex-[\w-]+)`", guide))
    assert len(named) >= 10 and named <= labels
    outcomes = guide.split("## What a chapter is for")[1].split("\n## ")[0]
    assert re.findall(r"^\| \[[^]]*\]\(([\w-]+)\)", outcomes, re.MULTILINE) == [
        chapter.name for chapter in known if not chapter.name.startswith("lab-")
    ]


def test_two_weeks_have_the_minutes_of_slides_and_exercises() -> None:
    """Each session has all exercises of its unit: one before class, one in class, and the one with code to hand in."""
    described = importlib.import_module("chapter_slides").exercise_plans()
    plans = (ROOT / "book/_instructor/plans.txt").read_text(encoding="utf-8")
    lectures = dict(re.findall(r"^### \[.*\]\((\S+)\), (\d+) minutes", plans, re.MULTILINE))
    known = {one.name: chapter_text.exercises(one) for one in chapter_text.chapters(ROOT / "book")}
    guide = (ROOT / "book/teaching.md").read_text(encoding="utf-8")
    table = re.findall(
        r"^\| \d+ \|.*?`(\S+)` \| \[.*?\]\((\S+)\), \S*?`(\S+)` \| (\d+) \| \S*?`(\S+)` \|$",
        guide.split("### Two weeks")[1].split("\n### ")[0], re.MULTILINE,
    )  # fmt: skip
    assert len(table) == 10 and 10 * 60 < sum(int(row[3]) for row in table) < 10.5 * 60
    for before, unit, during, minutes, after in table:
        assert {before, during, after} == {one.label for one in known[unit]}
        assert [one.label for one in known[unit] if one.kind == "code"] == [after]
        assert int(minutes) == int(lectures[unit]) + described[during][0], unit
        prose = (ROOT / f"book/{unit}.ipynb").read_text(encoding="utf-8")
        (reading,) = re.findall(r"(\d+ minutes|[Hh]alf an hour) of reading", prose)
        reading = 30 if "hour" in reading else int(reading.split()[0])
        assert 45 <= reading + described[before][0] + described[after][0] <= 90, unit


def test_zip_holds_the_course(course: Path) -> None:
    with zipfile.ZipFile(course / "pfl-course.zip") as packed:
        names = set(packed.namelist())
        first = packed.read("pfl-course/README.md").decode()
    assert set(re.findall(r"^\| `(\w+)/`", first, re.MULTILINE)) == {
        name.split("/")[1] for name in names if name.count("/") > 1
    }
    for part in (
        "LICENSE",
        "LICENSE-TEXT",
        f"student/{ONE}.ipynb",
        "student/README.md",
        "student/pfl_lite-0-py3-none-any.whl",
        f"instructor/{ONE}.ipynb",
        "instructor/plans.md",
        f"slides/{ONE}.html",
        "grading/nbgrader_config.py",
    ):
        assert f"pfl-course/{part}" in names


def test_an_unknown_chapter_gets_one_sentence() -> None:
    command = [sys.executable, str(ROOT / "tools/make_course.py"), "clustres"]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 1 and process.stderr.startswith("no chapter 'clustres' (there are: ")


def test_chapters_are_copied(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    written = copies.copy_chapters(folder)
    assert sorted(path.name for path in written) == [path.name for path in CHAPTERS]
    assert (folder / f"{ONE}.ipynb").read_bytes() == (ROOT / f"book/{ONE}.ipynb").read_bytes()
    assert (folder / "data/paper_tables.csv").is_file() and any((folder / "data/results").iterdir())


def test_no_chapter_is_replaced_unasked(tmp_path: Path) -> None:
    changed = tmp_path / CHAPTERS[-1].name
    changed.write_text("my notes")
    with pytest.raises(InputError, match=rf"{changed.name} exists: .* --force"):
        copies.copy_chapters(tmp_path)
    assert changed.read_text() == "my notes" and len(list(tmp_path.iterdir())) == 1, "something was copied"
    copies.copy_chapters(tmp_path, force=True)
    assert changed.read_bytes() == CHAPTERS[-1].read_bytes()
    with pytest.raises(InputError, match="is a file"):
        copies.copy_chapters(changed)


def test_a_failure_in_the_middle_leaves_the_chapters_that_were_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies.copy_chapters(tmp_path)
    for chapter in CHAPTERS:
        (tmp_path / chapter.name).write_text("my notes")
    before, copied = sorted(tmp_path.rglob("*")), shutil.copyfile

    def full(last: str, source: Path, target: Path) -> Path:
        """The disk is full in the middle of a file."""
        if Path(source).name == last:
            Path(target).write_bytes(b"{")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(source), None, str(target))
        return Path(copied(source, target))

    monkeypatch.setattr(shutil, "copyfile", partial(full, CHAPTERS[-2].name))
    with pytest.raises(InputError, match=r"cannot be written \(No space left on device\)"):
        copies.copy_chapters(tmp_path, force=True)
    assert sorted(tmp_path.rglob("*")) == before
    assert {(tmp_path / chapter.name).read_text() for chapter in CHAPTERS} == {"my notes"}
    for last in (CHAPTERS[-2], ROOT / "data/paper_tables.csv"):  # a chapter, and one of the last results
        monkeypatch.setattr(shutil, "copyfile", partial(full, last.name))
        with pytest.raises(InputError, match=r"cannot be written \(No space left on device\)"):
            copies.copy_chapters(tmp_path / "no/such/folder")
        assert sorted(tmp_path.rglob("*")) == before, "files or empty folders are left"


def test_no_result_is_replaced_at_all(tmp_path: Path) -> None:
    shipped = next((ROOT / "data/results").glob("*/*.json")).relative_to(ROOT)
    (tmp_path / shipped).parent.mkdir(parents=True)
    (tmp_path / shipped).write_text("mine")
    for force in (False, True):
        copies.copy_chapters(tmp_path, force)
        assert (tmp_path / shipped).read_text() == "mine"
    assert (tmp_path / "data/paper_tables.csv").is_file()


def test_every_exercise_of_a_unit_has_minutes_marks_and_two_hints(writer: Any) -> None:
    described = importlib.import_module("chapter_slides").exercise_plans()
    units = [chapter for chapter in writer.chapters if chapter.name in DECKS]
    assert {one.label for chapter in units for one in chapter_text.exercises(chapter)} == set(described)
    for label, (minutes, level, marks, *hints) in described.items():
        assert 5 <= minutes <= 30 and level in (1, 2, 3), label
        assert all(re.match(r"\d \w", part) for part in marks.split("; ")), label
        assert len(hints) == len({*hints}) == 2 and all(hint.endswith((".", "?")) for hint in hints), label
    plans = (ROOT / "book/_instructor/plans.txt").read_text(encoding="utf-8")
    assert plans == importlib.import_module("chapter_slides").teaching(writer), "make reference"


@pytest.mark.parametrize("name", DECKS)
def test_points_in_nbgrader_are_those_of_the_plan(name: str, writer: Any) -> None:
    slides, course = importlib.import_module("chapter_slides"), importlib.import_module("make_course")
    unit = next(chapter for chapter in writer.chapters if chapter.name == name)
    worth: dict[str, dict[str, int]] = {one.label: {} for one in chapter_text.exercises(unit)}
    for cell in course.edition(unit, writer, solved=False).cells:
        if "nbgrader" in cell.metadata:
            label, part = re.fullmatch(r"(ex-.*?)-(text|code|tests|hidden-tests)", cell.id).groups()
            worth[label][part] = cell.metadata.nbgrader["points"]
    for label, parts in worth.items():
        marks = slides.exercise_plans()[label][2]
        assert sum(parts.values()) == slides.total(marks), label
        assert [parts.get(part) for part in ("tests", "hidden-tests")] == [
            1 if f"1 {kind} tests" in marks else None for kind in ("visible", "hidden")
        ]
        assert parts.get("code", 0) == 0 and parts.get("text") != 0, label


def test_a_chapter_s_time_is_that_of_its_reading_and_its_exercises(writer: Any) -> None:
    """The table of chapters gives hours to lecturers: what the page says of reading, and the exercises' minutes, rounded up."""
    described = importlib.import_module("chapter_slides").exercise_plans()
    text = (ROOT / "book/teaching.md").read_text(encoding="utf-8")
    stated = dict(re.findall(r"^\| \[.*?\]\(([\w-]+)\) \|.*\| (\d?[¼½¾]?) h \|$", text, re.MULTILINE))
    parts = {"¼": 15, "½": 30, "¾": 45}
    for unit in (chapter for chapter in writer.chapters if chapter.name in DECKS):
        prose = (ROOT / f"book/{unit.name}.ipynb").read_text(encoding="utf-8")
        (minutes,) = re.findall(r"(\d+ minutes|[Hh]alf an hour) of reading", prose)
        reading = 30 if "hour" in minutes else int(minutes.split()[0])
        needed = reading + sum(described[one.label][0] for one in chapter_text.exercises(unit))
        given = sum(parts.get(digit) or 60 * int(digit) for digit in stated[unit.name])
        assert needed <= given < needed + 25, unit.name
