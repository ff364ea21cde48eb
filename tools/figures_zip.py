"""Put all figures into one zip for lecturers: as PNG and, where matplotlib draws them, as SVG, from the pages' cells."""

from __future__ import annotations

import argparse
import base64
import os
import tempfile
import zipfile
from pathlib import Path

import nbformat
from chapter_text import Writer, chosen, pieces
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parent.parent
OUTPUT = ROOT / "_build/pfl-figures.zip"
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


def make(names: list[str]) -> int:
    """Write the zip; return how many figures it holds."""
    writer = Writer(ROOT / "book")
    files: dict[str, bytes] = {}
    captions = []
    for chapter in chosen(writer.chapters, names):
        shown = (piece.cell for piece in pieces(chapter) if piece.place == "text")
        cells = [cell for cell in shown if cell.cell_type == "code"]
        for cell in drawn(cells, chapter.notebook):
            files |= kept(cell, chapter.name)
            if figure := cell.metadata.get("mystnb", {}).get("figure"):
                captions.append(f"{chapter.name}/{figure.get('name', cell.id)}: {writer.caption(figure)}\n")
        print(f"  {chapter.name}", flush=True)
    if not names:
        for path in sorted((ROOT / "book/figures").rglob("*.svg")):
            files[str(path.relative_to(ROOT / "book"))] = path.read_bytes()
    OUTPUT.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(OUTPUT, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in sorted(files.items()):
            packed.writestr(f"pfl-figures/{name}", content)
        packed.writestr("pfl-figures/CAPTIONS.txt", "\n".join(captions))
        packed.write(ROOT / "LICENSE-TEXT", "pfl-figures/LICENSE-TEXT")
    return len(files)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "names", nargs="*", help="pages, without .ipynb (default: all, with the cards and ideas)"
    )
    os.environ["TQDM_DISABLE"] = "1"
    count = make(parser.parse_args().names)
    print(f"{OUTPUT}: {count} pictures, {OUTPUT.stat().st_size / 1e6:.1f} MB")
