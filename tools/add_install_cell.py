"""Give every chapter a hidden first code cell that installs pfl_lite from this repository's remote where it is missing.

Colab opens a chapter as it is committed, and has neither the package nor the stored results that some chapters read. The
chapters cannot know the address before there is one, so whoever publishes the repository runs this once and commits the
result; after that the site has a Colab button. Stored outputs stay as they are: the cell prints nothing where the
package is installed.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import nbformat
from build_site import INSTALL_ID, ROOT, remote

SOURCE = """\
# Where pfl_lite is missing (on Colab, for example), install it, with the results that some chapters read;
# elsewhere this does nothing.
import importlib.util
from pathlib import Path

if importlib.util.find_spec("pfl_lite") is None:
    %pip install --quiet "git+{address}"
    from pfl_lite.notebooks import copy_results

    copy_results(Path())
"""


def add(chapter: Path, address: str) -> None:
    """Put the cell in front of the first code cell, or bring its address up to date; count the cells anew."""
    notebook = nbformat.read(chapter, as_version=4)
    cells = [cell for cell in notebook.cells if cell.id != INSTALL_ID]
    first = next(at for at, cell in enumerate(cells) if cell.cell_type == "code")
    new = nbformat.v4.new_code_cell(SOURCE.format(address=address).rstrip(), id=INSTALL_ID)
    new.metadata["tags"] = ["remove-cell"]
    notebook.cells = [*cells[:first], new, *cells[first:]]
    for count, cell in enumerate((one for one in notebook.cells if one.cell_type == "code"), start=1):
        cell.execution_count = count
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output.execution_count = count
    nbformat.write(notebook, chapter)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--book", type=Path, default=ROOT / "book", help="folder of the chapters")
    parser.add_argument(
        "--address", default=remote(ROOT), help="https://HOST/OWNER/NAME (default: the remote's)"
    )
    arguments = parser.parse_args()
    if arguments.address is None:
        parser.error("the repository has no remote on GitHub or GitLab: name one with --address")
    chapters = sorted(arguments.book.glob("*.ipynb"))
    for chapter in chapters:
        add(chapter, arguments.address)
    print(f"{len(chapters)} chapters install pfl_lite from {arguments.address} where it is missing")
