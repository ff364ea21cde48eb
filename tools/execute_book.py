"""Execute the chapters of a folder in place, each in its own kernel; say which one fails, where and why."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import resource
import shutil
import signal
import sys
import time
from concurrent.futures import Future, ProcessPoolExecutor
from importlib.metadata import distributions
from multiprocessing import active_children, get_context
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import NamedTuple

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError

ROOT = Path(__file__).resolve().parent.parent
SIGN_OF_LIFE = 60.0  # seconds
READ = ("pfl_lite", "data", "examples")
"""Folders from which chapters take something."""


class Outcome(NamedTuple):
    """What became of one chapter: its seconds, and a line that says what went wrong (empty if nothing)."""

    chapter: Path
    seconds: float
    computed: float
    """Seconds of processor time, which do not depend on what else the machine does."""
    problem: str


def spent() -> float:
    """Processor time of this process's children so far, in seconds."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def steady(notebook: nbformat.NotebookNode) -> None:
    """Number the ids of pandas' tables and blank the addresses of objects, which chance draws, so that equal results are equal
    text. (Addresses are not numbered: whether two objects in turn have one address is chance, too.)"""
    seen: dict[str, str] = {}

    def numbered(match: re.Match[str]) -> str:
        return seen.setdefault(match[0], f"T_{len(seen) + 1:05x}")

    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            for kind, text in output.get("data", {}).items():
                if kind.startswith("text/"):
                    text = re.sub(r"\bT_[0-9a-f]{5}", numbered, text)
                    output["data"][kind] = re.sub(r"\bat 0x[0-9a-f]+", "at 0x0", text)


def surroundings() -> bytes:
    """A digest of all that a chapter's outputs depend on but the chapter itself."""
    installed = sorted(f"{one.name} {one.version}" for one in distributions())
    settings = sorted(f"{name}={value}" for name, value in os.environ.items() if name.startswith("PFL_LITE_"))
    found = hashlib.sha256(repr([sys.version, installed, settings]).encode())
    files = (file for folder in READ for file in sorted((ROOT / folder).rglob("*")) if file.is_file())
    for file in (Path(__file__), *files):
        if "__pycache__" not in file.parts:
            found.update(hashlib.sha256(f"{file}\n".encode() + file.read_bytes()).digest())
    return found.digest()


def execute(chapter: Path, timeout: int, kept: Path | None = None) -> Outcome:
    """Execute one notebook and write it back atomically, without metadata that differ from run to run; also to `kept`."""
    started, before = time.perf_counter(), spent()
    notebook = nbformat.read(chapter, as_version=4)
    at = 0

    def outcome(reason: str = "") -> Outcome:
        reason = " ".join(reason.split())[:300]
        return Outcome(chapter, time.perf_counter() - started, spent() - before, reason)

    def remember(cell: nbformat.NotebookNode, cell_index: int) -> None:
        nonlocal at
        at = cell_index

    client = NotebookClient(
        notebook,
        timeout=timeout,
        startup_timeout=600,
        kernel_name="python3",
        resources={"metadata": {"path": str(chapter.parent)}},
        coalesce_streams=True,  # what a cell prints is one output, however slowly it prints
        record_timing=False,  # times in the metadata would make every run a change
        on_cell_start=remember,
    )
    try:
        client.execute()
    except Exception as error:  # also a dead kernel or a time-out: each is reported with its chapter and cell
        name, value = type(error).__name__, str(error)
        if isinstance(error, CellTimeoutError):  # its own words are an error's, and half of the cell
            return outcome(
                f"cell {at + 1} took longer than {timeout} s; with TIMEOUT={6 * timeout}, make gives a cell six times as long"
            )
        if isinstance(error, CellExecutionError):
            name, value = error.ename, error.evalue
        return outcome(f"cell {at + 1}: {name}: {value}")
    for number, cell in enumerate(notebook.cells, 1):  # where a `_repr_*_` raises, the kernel goes on
        lost = [out for out in cell.get("outputs", ()) if out["output_type"] == "error"]
        if lost and "raises-exception" not in cell.metadata.get("tags", ()):
            name, value = lost[0]["ename"], lost[0]["evalue"]
            return outcome(f"cell {number}: its result could not be shown: {name}: {value}")
    # Kernels describe the Python that happened to run; the chapter itself only needs a Python 3.
    notebook.metadata["kernelspec"] = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook.metadata["language_info"] = {"name": "python", "file_extension": ".py"}
    steady(notebook)
    for path in filter(None, (chapter, kept)):
        unfinished = path.with_suffix(".part")
        nbformat.write(notebook, unfinished)
        os.replace(unfinished, path)
    return outcome()


def main() -> int:
    """Execute the chapters named on the command line (all by default); return 1 if any failed, else 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="folder of the notebooks")
    parser.add_argument("names", nargs="*", help="chapters to run, without .ipynb (default: all)")
    parser.add_argument("--jobs", type=int, default=2, help="chapters at the same time (default: 2)")
    parser.add_argument("--timeout", type=int, default=600, help="seconds a cell may take (default: 600)")
    parser.add_argument(
        "--kept",
        type=Path,
        help="folder in which executed chapters are kept, too: a call after an interrupted one takes over those whose source, "
        "package and environment are the same (delete the folder when all is done)",
    )
    arguments = parser.parse_args()

    chapters = sorted(arguments.folder.glob("*.ipynb"))
    known = {chapter.stem for chapter in chapters}
    if unknown := [name for name in arguments.names if name not in known]:
        parser.error(f"no chapter '{unknown[0]}' (there are: {', '.join(sorted(known))})")
    if arguments.names:
        chapters = [chapter for chapter in chapters if chapter.stem in arguments.names]

    copies: dict[Path, Path] = {}
    if arguments.kept is not None:
        arguments.kept.mkdir(parents=True, exist_ok=True)
        print("Comparing sources, package and environment with those of the last call", flush=True)
        around = surroundings()
        for chapter in chapters:
            name = hashlib.sha256(around + chapter.read_bytes()).hexdigest()
            copies[chapter] = arguments.kept / f"{name}.ipynb"
        there = [chapter for chapter, copy in copies.items() if copy.is_file()]
        for chapter in there:
            shutil.copyfile(copies[chapter], chapter)
        if there:
            some = f"{len(there)} chapter{'s' * (len(there) != 1)}"
            print(f"Taking over {some} that an interrupted call has executed", flush=True)
        chapters = [chapter for chapter in chapters if chapter not in there]
    print(f"Running {len(chapters)} chapters, {arguments.jobs} at a time", flush=True)
    started = time.perf_counter()
    failed = 0
    note = ROOT / "_build" / "seconds.json"  # tools/count_units.py shows them
    took = json.loads(note.read_text(encoding="utf-8")) if note.is_file() else {}
    # Signals are noted: an exception may leave a future locked, for which the pool would then wait for ever.
    signals: list[int] = []
    news: SimpleQueue[Future[Outcome] | None] = SimpleQueue()

    def hear(number: int, _: object) -> None:
        signals.append(number)
        news.put(None)

    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, hear)
    with ProcessPoolExecutor(arguments.jobs, mp_context=get_context("spawn")) as pool:
        if names := ", ".join(chapter.stem for chapter in chapters[: arguments.jobs]):
            print(
                f"  first {names}; a chapter takes a minute or two and is named when it is done", flush=True
            )
        jobs = [pool.submit(execute, chapter, arguments.timeout, copies.get(chapter)) for chapter in chapters]
        for job in jobs:
            job.add_done_callback(news.put)
        done = 0
        while done < len(jobs):
            try:
                ended = news.get(timeout=SIGN_OF_LIFE)
            except Empty:
                now = [one.stem for one, job in zip(chapters, jobs, strict=True) if not job.done()]
                print(f"       still at {', '.join(now[: arguments.jobs])}", flush=True)
                continue
            if signals or ended is None:
                # A worker answers signals as its notebook does, and would go on to the next; its kernel ends with it.
                for worker in active_children():
                    worker.kill()
                then = "is taken over by" if copies else "runs again at"
                print(
                    f"interrupted: what is named above with ok has run, and {then} the next call", flush=True
                )
                return 130
            chapter, seconds, computed, problem = ended.result()
            done, failed = done + 1, failed + bool(problem)
            took[chapter.stem] = round(computed, 1)
            print(
                f"  {done}/{len(chapters)}  {chapter.stem:<40} {seconds:6.1f} s  {problem or 'ok'}",
                flush=True,
            )
            if (later := done + arguments.jobs - 1) < len(chapters):
                print(f"       now {chapters[later].stem}", flush=True)
    note.parent.mkdir(exist_ok=True)
    note.write_text(json.dumps(took, indent=1), encoding="utf-8")
    seconds = time.perf_counter() - started
    print(f"{len(chapters) - failed} of {len(chapters)} chapters ran, in {seconds:.0f} s", flush=True)
    if failed and copies:
        print("the next call takes over those and runs the rest", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
