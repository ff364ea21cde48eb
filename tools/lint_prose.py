"""Read pages, Markdown cells, captions, docstrings and messages with codespell, American spelling and the words of this house."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parent.parent
HOUSE = ROOT / "tools/house_words.txt"
PAGES = (
    "book/*.ipynb", "book/*.md", "book/_instructor/*", "book/figures/*.svg", "tools/slides/*.yml",
    "*.md", "benchmarks/*.md", "examples/*/*.md", "data/*.md",
)  # fmt: skip
CODE = (
    "pfl_lite/**/*.py",
    "examples/*/*.py",
    "examples/*/pfl_*/*.py",
    "tools/cards.py",
    "tools/playgrounds.py",
)
# What stands between fences is code, but for these directives.
FENCED = re.compile(r"^(`{3,})(?:\{([a-z-]+)\})?(.*?)^\1(?=\s|\Z)", re.DOTALL | re.MULTILINE)
TEXT = {"exercise-start", "admonition", "figure", "glossary", "table"}
# Names of files, code, formulas, addresses, citations and links' targets keep their spelling.
NAMES = re.compile(
    r"``[^\n]*?``|`[^`\n]*`|\$\$.*?\$\$|\$[^$\n]*\$|\]\([^)\n]*\)|https?://\S+|<[^>\n]*>|^\(\S+\)=$|^:\w+:[^\n]*$|^\w[\w-]*:$|\S*[_/=]\S*",
    re.DOTALL | re.MULTILINE,
)
FAULTS = {
    re.compile(r"\d[ \u00a0\u202f]%(?! ?\d)"): "no space before a percent sign",
    re.compile(r"^(<{7}|>{7}) .*$", re.MULTILINE): "left over from a merge",
}


def blank(text: str) -> str:
    """The text without names; every line stays where it was."""
    spaces = partial(re.sub, r"[^\n]", " ")
    text = FENCED.sub(lambda found: f"{found[3]}" if found[2] in TEXT else spaces(found[0]), text)
    return NAMES.sub(lambda found: spaces(found[0]), text)


def words(cell: nbformat.NotebookNode) -> str:
    """The caption and the words for a picture of a code cell, on one line."""
    shown = cell.metadata.get("mystnb", {})
    return f"{shown.get('figure', {}).get('caption', '')} {shown.get('image', {}).get('alt', '')}"


def sentences(path: Path) -> str:
    """Docstrings and texts of three words and more of a Python file, each on its own lines."""
    lines = [""] * (path.read_text(encoding="utf-8").count("\n") + 2)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value.split()) >= 3:
            for at, line in enumerate(node.value.split("\n"), node.lineno - 1):
                lines[min(at, len(lines) - 1)] += line + " "
    return "\n".join(lines)


def prose(root: Path) -> Iterator[tuple[Path, str]]:
    """Every file with what people read in it."""
    for path in sorted({path for pattern in (*PAGES, *CODE) for path in root.glob(pattern)}):
        if path.suffix == ".ipynb":
            cells = nbformat.read(path, as_version=4).cells
            text = "\n".join(cell.source if cell.cell_type == "markdown" else words(cell) for cell in cells)
        else:
            text = sentences(path) if path.suffix == ".py" else path.read_text(encoding="utf-8")
        yield path.relative_to(root), blank(text)


def main() -> int:
    """Print what is misspelled or not the house's word; 1 if there is any."""
    faults = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, text in prose(ROOT):
            for pattern, why in FAULTS.items():
                for found in pattern.finditer(text):
                    faults += 1
                    print(f"{name}:{text.count(chr(10), 0, found.start()) + 1}: '{found[0]}': {why}")
            (Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
            (Path(folder) / name).write_text(text, encoding="utf-8")
        command = [
            sys.executable, "-m", "codespell_lib", "-L", "fo", "--builtin", "clear,rare,en-GB_to_en-US",
        ]  # fmt: skip
        done = subprocess.run([*command, "-D", "-", "-D", str(HOUSE), "."], cwd=folder)
    return int(done.returncode != 0 or faults > 0)


if __name__ == "__main__":
    sys.exit(main())
