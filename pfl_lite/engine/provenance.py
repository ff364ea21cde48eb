"""Which files of the package define a run, and what they say: comments, docstrings and layout do not count."""

from __future__ import annotations

import ast
import hashlib
import inspect
from functools import cache, partial
from pathlib import Path
from typing import Any

from pfl_lite.methods import Method
from pfl_lite.models import NETWORKS

PACKAGE = Path(__file__).resolve().parent.parent
ENGINE = "engine/rounds.py"
DIGITS = 12  # of a hash: enough to tell versions of one file apart
UNTOUCHED = {"errors.py", "engine/provenance.py"}  # what no number depends on


def code_of(method: type[Method], model: str) -> dict[str, str]:
    """The version of every file that defines a run of a method on a network: path in the package -> hash of its code.

    These are the engine, the method and the network with all that they import of the package, data and partitions included.
    A change of a partition that a run does not use changes this, too: it says where to look, not that numbers differ.

    Args:
        method: a method's class; of one that is not the package's, the parts that are.
        model: name of a network (not `auto`).
    """
    network = NETWORKS[model].module
    classes = [*method.__mro__, network.func if isinstance(network, partial) else network]
    found: dict[str, str] = {}
    waiting = [ENGINE, *filter(None, map(home, classes))]
    while waiting:
        path = waiting.pop()
        if path not in found and path not in UNTOUCHED:
            found[path] = version(path)
            waiting += imports(path)
    return dict(sorted(found.items()))


def home(thing: Any) -> str | None:
    """The file of a class, as a path in the package; None for one of another package."""
    try:
        path = Path(inspect.getfile(thing)).resolve()
    except (TypeError, OSError):  # built in, or typed into a notebook
        return None
    return path.relative_to(PACKAGE).as_posix() if path.is_relative_to(PACKAGE) else None


@cache
def tree(path: str) -> ast.Module:
    """A file of the package, parsed."""
    return ast.parse((PACKAGE / path).read_text(encoding="utf-8"))


@cache
def version(path: str) -> str:
    """Hash of a file's code, the same under every version of Python."""
    return hashlib.sha256(repr(essence(tree(path))).encode()).hexdigest()[:DIGITS]


def essence(node: Any) -> Any:
    """A syntax tree as nested lists, without positions, empty fields and sentences that stand alone (docstrings)."""
    if isinstance(node, list):
        return [essence(one) for one in node if not is_text(one)]
    if not isinstance(node, ast.AST):
        return node
    fields = ((name, essence(value)) for name, value in ast.iter_fields(node))
    return [type(node).__name__, *(field for field in fields if field[1] not in (None, []))]


def is_text(node: Any) -> bool:
    """Whether a statement is nothing but a string."""
    alone = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return alone and isinstance(node.value.value, str)


@cache
def imports(path: str) -> list[str]:
    """The files of the package that a file imports; not `__init__.py`, whose lists would lead to every method and network."""
    froms = (node for node in ast.walk(tree(path)) if isinstance(node, ast.ImportFrom))
    names = {
        name
        for node in froms
        if str(node.module).startswith("pfl_lite")
        for name in (str(node.module), *(f"{node.module}.{one.name}" for one in node.names))
    }
    files = (name.removeprefix("pfl_lite").lstrip(".").replace(".", "/") + ".py" for name in sorted(names))
    return [file for file in files if (PACKAGE / file).is_file()]
