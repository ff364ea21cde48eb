"""Put all figures into one zip for lecturers: as PNG and, where matplotlib draws them, as SVG, from the pages' cells."""

from __future__ import annotations

import argparse
import base64
import os
import sys
import tempfile
import zipfile
from pathlib import Path

import nbformat
from chapter_text import Writer, pieces
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parent.parent
ASK = "import matplotlib_inline.backend_inline as inline\ninline.set_matplotlib_formats('png', 'svg')"
MIME = {"image/png": "png", "image/svg+xml": "svg"}


def kept(cell: nbformat.NotebookNode, folder: str) -> dict[str, bytes]:
    """The pictures among a cell's outputs, by the names of their files."""
    figure = cell.metadata.get("mystnb", {}).get("figure", {})
    name, found = figure.get("name", cell.id), {}
    for output in cell.outputs:
        for mime, ending in MIME.items():
            if data := output.get("data", {}).get(mime):
                found[f"{folder}/{name}.{ending}"] = (
                    data.encode() if ending == "svg" else base64.b64decode(data)
                )
    return found


def drawn(cells: list[nbformat.NotebookNode], notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    """The cells of a page, run again with figures as PNG and SVG; solutions are left out."""
    copy = nbformat.from_dict(notebook)
    copy.cells = [nbformat.v4.new_code_cell(ASK), *cells]
    with tempfile.TemporaryDirectory() as folder:
        resources = {"metadata": {"path": folder}}
        NotebookClient(copy, timeout=600, kernel_name="python3", resources=resources).execute()
    return list(copy.cells[1:])


def make(names: list[str], output: Path, *, stored: bool) -> int:
    """Write the zip; return how many figures it holds."""
    writer = Writer(ROOT / "book")
    files: dict[str, bytes] = {}
    captions = []
    for chapter in writer.chapters:
        if names and chapter.name not in names:
            continue
        cells = [
            piece.cell
            for piece in pieces(chapter)
            if piece.cell.cell_type == "code" and piece.place == "text"
        ]
        for cell in cells if stored else drawn(cells, chapter.notebook):
            files |= kept(cell, chapter.name)
            if figure := cell.metadata.get("mystnb", {}).get("figure"):
                captions.append(f"{chapter.name}/{figure.get('name', cell.id)}: {writer.caption(figure)}\n")
        print(f"  {chapter.name}", flush=True)
    if not names:
        for path in sorted((ROOT / "book/figures").rglob("*.svg")):
            files[str(path.relative_to(ROOT / "book"))] = path.read_bytes()
    output.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(output, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in sorted(files.items()):
            packed.writestr(f"pfl-figures/{name}", content)
        packed.writestr("pfl-figures/CAPTIONS.txt", "\n".join(captions))
        packed.write(ROOT / "LICENSE-TEXT", "pfl-figures/LICENSE-TEXT")
    return len(files)


def main() -> int:
    """Read the command line and make the zip."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "names", nargs="*", help="pages, without .ipynb (default: all, and the cards and ideas)"
    )
    parser.add_argument("--output", type=Path, default=ROOT / "_build/pfl-figures.zip", help="file to write")
    parser.add_argument("--stored", action="store_true", help="run nothing: only the PNG that the pages hold")
    asked = parser.parse_args()
    os.environ["TQDM_DISABLE"] = "1"
    count = make(asked.names, asked.output, stored=asked.stored)
    print(f"{asked.output}: {count} pictures, {asked.output.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
