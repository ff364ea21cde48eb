"""The chapters of the book, for a reader who has installed the package only."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from pathlib import Path

from pfl_lite.atomic_files import atomic_path, made
from pfl_lite.errors import InputError


def source() -> Path:
    """The folder of the chapters: in an installed package its own, in the repository `book/`.

    Raises:
        InputError: neither is there.
    """
    package = Path(__file__).resolve().parent
    for folder in (package / "book", package.parent / "book"):
        if next(folder.glob("*.ipynb"), None):
            return folder
    raise InputError(f"this installation of pfl_lite has no chapters: {package / 'book'} holds no notebook")


def copy_results(folder: Path) -> None:
    """Copy the stored results that some chapters read to `folder/data`; a chapter in `folder` then finds them.

    A file that is there already stays as it is: it may be a result of the reader's own. If one cannot be copied, none is.

    Raises:
        InputError: this installation has no chapters, or `folder` cannot be written.
    """
    book = source()
    data = book / "data" if (book / "data").is_dir() else book.parent / "data"
    with ExitStack() as undo:
        for stored in sorted(data.rglob("*")):
            target = folder / "data" / stored.relative_to(data)
            if stored.is_file() and not target.exists():
                undo.enter_context(made(target.parent))
                with atomic_path(target) as temporary:
                    shutil.copyfile(stored, temporary)
                undo.callback(target.unlink)
        undo.pop_all()


def copy_chapters(folder: Path, force: bool = False) -> list[Path]:
    """Copy the chapters to `folder`, with the stored results that some of them read below `folder/data`.

    `force` replaces chapters, never results; where something fails in the middle, all is as it was.

    Returns the notebooks that were written. In that folder, `jupyter lab` runs them.

    Raises:
        InputError: `folder` is a file, cannot be written, or holds a chapter already and `force` is not given.
    """
    book = source()
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file: name a folder for the chapters")
    chapters = sorted(book.glob("*.ipynb"))
    there = [chapter.name for chapter in chapters if (folder / chapter.name).exists()]
    if there and not force:
        raise InputError(
            f"{folder / there[0]} exists: name another folder, or replace the chapters with --force"
        )
    with ExitStack() as copies:  # they take their places together, at its end
        for chapter in chapters:
            shutil.copyfile(chapter, copies.enter_context(atomic_path(folder / chapter.name)))
        copy_results(folder)
    return [folder / chapter.name for chapter in chapters]
