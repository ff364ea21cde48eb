"""Quizzes for learning platforms: what was written is read back, question by question and key by key."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import make_quizzes
import pytest

ROOT = Path(__file__).resolve().parent.parent
Q = "{http://www.imsglobal.org/xsd/imsqti_v2p1}"
P = "{http://www.imsglobal.org/xsd/imscp_v1p1}"
# The order in which the schema of QTI 2.1 wants an item's parts.
ORDER = [
    "responseDeclaration", "outcomeDeclaration", "outcomeDeclaration", "itemBody", "responseProcessing",
]  # fmt: skip


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """Every question by its name, and the folder of both files."""
    folder, writer = tmp_path_factory.mktemp("quizzes"), make_quizzes.Writer(ROOT / "book")
    asked = {
        f"{chapter.name}-{number}": question
        for chapter in writer.units
        for number, question in enumerate(make_quizzes.questions(chapter), 1)
    }
    assert make_quizzes.make(writer, folder) == len(asked) > 50
    return asked, folder


def same(text: str, source: str) -> bool:
    """Whether the letters and digits of a text are those of its Markdown source, HTML and marks aside."""
    bare = ["".join(sign for sign in one if sign.isalnum()) for one in (text, source)]
    return bare[0] == bare[1] and len(bare[0]) > 0


def test_qti_holds_every_question_with_its_key(written: tuple[dict[str, Any], Path]) -> None:
    asked, folder = written
    with zipfile.ZipFile(folder / "quizzes-qti21.zip") as packed:
        manifest = ET.fromstring(packed.read("imsmanifest.xml"))
        listed = {one.get("identifier"): one.get("href") for one in manifest.iter(f"{P}resource")}
        assert set(listed) == set(asked) and set(packed.namelist()) == {"imsmanifest.xml", *listed.values()}
        for name, question in asked.items():
            top = ET.fromstring(packed.read(str(listed[name])))
            assert [part.tag.removeprefix(Q) for part in top][: len(ORDER)] == ORDER
            choices = {one.get("identifier"): one.text for one in top.iter(f"{Q}simpleChoice")}
            key = top.findtext(f"{Q}responseDeclaration/{Q}correctResponse/{Q}value")
            places = [f"A{number}" for number in range(len(question.answers))]
            assert list(choices) == places and all(choices.values())
            assert question.answers[places.index(str(key))].right, name
            assert top.find(f".//{Q}choiceInteraction").get("shuffle") == "true"  # type: ignore[union-attr]
            told = {one.get("identifier"): str(one.text) for one in top.iter(f"{Q}modalFeedback")}
            assert {place for place, text in told.items() if text.startswith("Right.")} == {key}
            assert list(told) == places and all(text.startswith(("Right.", "No.")) for text in told.values())


def test_moodle_holds_every_question_with_its_key(written: tuple[dict[str, Any], Path]) -> None:
    asked, folder = written
    top = ET.parse(folder / "quizzes-moodle.xml").getroot()
    found = {one.findtext("name/text"): one for one in top if one.get("type") == "multichoice"}
    assert set(found) == set(asked)
    for name, question in asked.items():
        one = found[name]
        assert one.findtext("shuffleanswers") == one.findtext("single") == "true"
        marks = [answer.get("fraction") for answer in one.iter("answer")]
        assert marks == ["100" if answer.right else "0" for answer in question.answers]
        for given, answer in zip(one.iter("answer"), question.answers, strict=True):
            words = ET.fromstring(f"<x>{given.findtext('text')}</x>")
            assert same("".join(words.itertext()), answer.words), name
            assert len(str(given.findtext("feedback/text"))) > 30 and "$" not in str(
                given.findtext("feedback/text")
            )


def test_formulas_are_in_brackets() -> None:
    writer = make_quizzes.Writer(ROOT / "book")
    assert make_quizzes.html("With $B = 5$ and $a_1$", writer) == r"<p>With \(B = 5\) and \(a_1\)</p>"
    assert make_quizzes.plain("one *word* $x < y$", writer) == r"one word \(x < y\)"
