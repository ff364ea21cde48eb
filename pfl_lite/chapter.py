"""What chapters call besides the package: the line that says on which data and how long they run, and stored measurements."""

from __future__ import annotations

import ast
import json
import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

from pfl_lite.config import check_device
from pfl_lite.data.images import datasets, load
from pfl_lite.errors import InputError, one_of
from pfl_lite.papers.experiment import stored_folder

LENGTHS = {"quick": 1, "full": 10}
QUICK_IMAGES = 2000  # training images of a quick chapter, about as many as the embedded data have
_ROOMS = {
    "data.partition": "partition",
    "engine.evaluate": "whole_test",
    "engine.history": "diverged_in",
    "engine.processes": "shares",
    "engine.local_training": "epoch_orders part_of",
    "methods.base": "Round flatten select unpack",
    "methods.pfedmb": "project_onto_simplex",
    "methods.weighted_mean": "weighted_mean",
    "models": "NETWORKS NetworkSpec SmallCNN",
    "models.modular": "held in_use routing_report through_blocks",
    "models.multi_branch": "MultiBranch collapse",
    "papers": "SCENARIOS members paper_tables",
    "papers.statement": "estimate",
    "papers.statistics": "agreement kendall settling widening",
    "results.tables": "runs_of",
    "seeds": "generator",
}
"""What chapters look inside of, by room: they import it from here, so that a room can be rebuilt behind them."""


def __getattr__(name: str) -> Any:
    for room, names in _ROOMS.items():
        if name in names.split():
            return getattr(import_module(f"pfl_lite.{room}"), name)
    raise AttributeError(f"module 'pfl_lite.chapter' has no attribute '{name}'")


class Setting(NamedTuple):
    """What a chapter's cells use: a data set's name, a device, and how many times the rounds of the text are run."""

    data: str
    device: str
    times: int


def setting(data: str, device: str = "cpu", length: str = "quick", *, written_for: str) -> Setting:
    """Set up a chapter of the book: its first cell calls this once.

    Text, printed numbers and assertions of a chapter are written for one setting: its own data on the CPU, quick. In any
    other, an assertion of the notebook that does not hold prints a line and lets the notebook go on.

    Args:
        data: a data set with as many classes as that of the text. Quick runs take a random part of a large one, with
            about 2,000 training images.
        device: `cpu` or `cuda`; the runs are computed there, and what they return is on the CPU.
        length: `quick`, as in the text, or `full`: all images and ten times the rounds.
        written_for: the data set of the text.

    Returns:
        The three values as a tuple (data, device, times).

    Raises:
        InputError: an unknown name, data that are not here, another number of classes, no GPU for `cuda`.
    """
    check_device(device, ("cpu", "cuda"))
    one_of("length", length, LENGTHS)
    as_written = (data, device, length) == (written_for, "cpu", "quick")
    if not as_written:
        card, wanted = load(data).card, len(datasets()[written_for].classes)
        if len(card.classes) != wanted:
            fitting = ", ".join(name for name, one in datasets().items() if len(one.classes) == wanted)
            raise InputError(
                f"{data} has {len(card.classes)} classes, and this chapter's cells need {wanted}: {fitting}"
            )
        if length == "quick" and ":" not in data and card.train_size > 2 * QUICK_IMAGES:
            data = f"{data}:{QUICK_IMAGES / card.train_size:.3g}"
        rounds = (
            "rounds as in the text"
            if length == "quick"
            else f"{LENGTHS[length]} times the rounds of the text"
        )
        print(f"{data} on {device}, {rounds}, which is about {written_for} on cpu, quick.")
    _told.clear()
    # graders run a student's notebook: there an assertion is a test, whatever the student's setting
    _let_assertions_stop(as_written or "NBGRADER_EXECUTION" in os.environ)
    return Setting(data, device, LENGTHS[length])


def front_end() -> bool:
    """Whether a reader can move a slider: true in JupyterLab, Jupyter Notebook, VS Code and Colab.

    False where a notebook is executed by a program, as for this book's pages.
    """
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    in_vscode = shell is not None and "__vsc_ipynb_file__" in shell.user_ns
    return bool(os.environ.get("JPY_SESSION_NAME")) or in_vscode or "google.colab" in sys.modules


def stored(name: str) -> dict[str, Any]:
    """A committed measurement: `data/bench/NAME.json` of the repository, else of the working folder.

    Raises:
        InputError: there is none of that name.
    """
    path = stored_folder() / "bench" / f"{name}.json"
    if not path.is_file():
        raise InputError(f"no measurement is stored as {path}: benchmarks/README.md says how it is taken")
    return dict(json.loads(path.read_text(encoding="utf-8")))


class _Tell(ast.NodeTransformer):
    """Every `assert` of a cell becomes a line that is printed where it does not hold."""

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        """The node that stands in the assertion's place."""
        test = ast.unparse(node.test)
        told = ast.parse(f"__import__('pfl_lite.chapter').chapter.tell(lambda: {test}, {test!r})")
        return ast.copy_location(told.body[0], node)


def tell(holds: Callable[[], object], statement: str) -> None:
    """Print a statement of the text that does not hold, or has no meaning here, once."""
    try:
        said = "" if holds() else statement
    except Exception as error:  # as a comparison with a round that is never reached
        said = f"{statement} ({type(error).__name__}: {error})"
    if said and statement not in _told:
        _told.add(statement)
        print("other than in the text:", said)


_told: set[str] = set()


def _let_assertions_stop(stop: bool) -> None:
    try:
        shell: Any = get_ipython()  # type: ignore[name-defined]
    except NameError:  # a script, not a notebook
        return
    others = [one for one in shell.ast_transformers if type(one).__name__ != _Tell.__name__]
    shell.ast_transformers = others if stop else [*others, _Tell()]
