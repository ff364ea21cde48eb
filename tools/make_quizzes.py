"""Write the quizzes of the units for learning platforms: QTI 2.1 as a zip, and Moodle XML with one category per unit."""

from __future__ import annotations

import argparse
import zipfile
from pathlib import Path
from xml.etree import ElementTree as ET

from chapter_text import Question, Writer, questions
from nbconvert.filters.markdown import markdown2html

ROOT = Path(__file__).resolve().parent.parent
QTI = "http://www.imsglobal.org/xsd/imsqti_v2p1"
PACKAGE = "http://www.imsglobal.org/xsd/imscp_v1p1"
XSI = "http://www.w3.org/2001/XMLSchema-instance"
SCHEMA = {  # where the schema of a namespace lies
    QTI: f"{QTI} http://www.imsglobal.org/xsd/qti/qtiv2p1/imsqti_v2p1.xsd",
    PACKAGE: f"{PACKAGE} http://www.imsglobal.org/xsd/qti/qtiv2p1/qtiv2p1_imscpv1p2_v1p0.xsd",
}


def html(text: str, writer: Writer) -> str:
    """Markdown as HTML; formulas in the brackets that platforms typeset."""
    page = markdown2html(writer.plain(text)).strip()
    for part in page.split("$")[1::2]:
        page = page.replace(f"${part}$", rf"\({part}\)", 1)
    return str(page)


def element(parent: ET.Element, tag: str, text: str = "", **attributes: str) -> ET.Element:
    """A new element with text inside a parent."""
    new = ET.SubElement(parent, tag, attributes)
    new.text = text or None
    return new


def plain(text: str, writer: Writer) -> str:
    """HTML without tags: what an element holds that allows no HTML as text."""
    return " ".join("".join(ET.fromstring(f"<x>{html(text, writer)}</x>").itertext()).split())


def root(tag: str, namespace: str, **attributes: str) -> ET.Element:
    """The first element of a file of QTI."""
    ET.register_namespace("xsi", XSI)
    return ET.Element(tag, {"xmlns": namespace, f"{{{XSI}}}schemaLocation": SCHEMA[namespace], **attributes})


def item(name: str, question: Question, writer: Writer) -> bytes:
    """A question as an item of QTI 2.1: one right choice, shuffled, with a reason for each answer."""
    top = root("assessmentItem", QTI, identifier=name, title=name, adaptive="false", timeDependent="false")
    names = [f"A{number}" for number in range(len(question.answers))]
    right = names[[answer.right for answer in question.answers].index(True)]
    response = element(
        top, "responseDeclaration", identifier="RESPONSE", cardinality="single", baseType="identifier"
    )
    element(element(response, "correctResponse"), "value", right)
    element(top, "outcomeDeclaration", identifier="SCORE", cardinality="single", baseType="float")
    element(top, "outcomeDeclaration", identifier="FEEDBACK", cardinality="single", baseType="identifier")
    body = element(top, "itemBody")
    choice = element(body, "choiceInteraction", responseIdentifier="RESPONSE", shuffle="true", maxChoices="1")
    element(choice, "prompt", plain(question.words, writer))
    for place, answer in zip(names, question.answers, strict=True):
        element(choice, "simpleChoice", plain(answer.words, writer), identifier=place)
    processing = element(top, "responseProcessing")
    condition = element(processing, "responseCondition")
    when = element(condition, "responseIf")
    match = element(when, "match")
    element(match, "variable", identifier="RESPONSE")
    element(match, "correct", identifier="RESPONSE")
    for branch, score in ((when, "1"), (element(condition, "responseElse"), "0")):
        element(element(branch, "setOutcomeValue", identifier="SCORE"), "baseValue", score, baseType="float")
    element(element(processing, "setOutcomeValue", identifier="FEEDBACK"), "variable", identifier="RESPONSE")
    for place, answer in zip(names, question.answers, strict=True):
        told = element(top, "modalFeedback", outcomeIdentifier="FEEDBACK", identifier=place, showHide="show")
        told.text = ("Right. " if answer.right else "No. ") + plain(answer.why, writer)
    return bytes(ET.tostring(top, encoding="utf-8", xml_declaration=True))


def qti(quizzes: dict[str, list[Question]], writer: Writer, path: Path) -> None:
    """All questions as one content package."""
    manifest = root("manifest", PACKAGE, identifier="pfl-quizzes")
    about = element(manifest, "metadata")
    element(about, "schema", "QTIv2.1 Package")
    element(about, "schemaversion", "1.0.0")
    element(manifest, "organizations")
    resources = element(manifest, "resources")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for unit, asked in quizzes.items():
            for number, question in enumerate(asked, 1):
                name = f"{unit}-{number}"
                packed.writestr(f"{name}.xml", item(name, question, writer))
                kept = element(
                    resources, "resource", identifier=name, type="imsqti_item_xmlv2p1", href=f"{name}.xml"
                )
                element(kept, "file", href=f"{name}.xml")
        packed.writestr("imsmanifest.xml", ET.tostring(manifest, encoding="utf-8", xml_declaration=True))


def moodle(quizzes: dict[str, list[Question]], writer: Writer) -> bytes:
    """All questions as one file of Moodle XML."""
    top = ET.Element("quiz")
    for unit, asked in quizzes.items():
        category = element(element(top, "question", type="category"), "category")
        element(
            category,
            "text",
            f"$course$/Personalized federated learning/{writer.titles[unit].replace('/', ' ')}",
        )
        for number, question in enumerate(asked, 1):
            one = element(top, "question", type="multichoice")
            element(element(one, "name"), "text", f"{unit}-{number}")
            element(element(one, "questiontext", format="html"), "text", html(question.words, writer))
            for tag, value in (
                ("defaultgrade", "1"), ("penalty", "1"), ("single", "true"), ("shuffleanswers", "true"),
            ):  # fmt: skip
                element(one, tag, value)
            for answer in question.answers:
                given = element(one, "answer", fraction="100" if answer.right else "0", format="html")
                element(given, "text", html(answer.words, writer))
                element(element(given, "feedback", format="html"), "text", html(answer.why, writer))
    return bytes(ET.tostring(top, encoding="utf-8", xml_declaration=True))


def make(writer: Writer, folder: Path) -> int:
    """Write both files into a folder; return how many questions they hold."""
    folder.mkdir(parents=True, exist_ok=True)
    quizzes = {chapter.name: questions(chapter) for chapter in writer.units}
    qti(quizzes, writer, folder / "quizzes-qti21.zip")
    (folder / "quizzes-moodle.xml").write_bytes(moodle(quizzes, writer))
    return sum(map(len, quizzes.values()))


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    folder = ROOT / "_build/quizzes"
    print(f"{make(Writer(ROOT / 'book'), folder)} questions in {folder}")
