"""Every method by name; one file each, which is imported, and torch with it, when its class is first asked for."""

from __future__ import annotations

import ast
import inspect
import math
import reprlib
import textwrap
from collections import UserDict
from dataclasses import fields
from importlib import import_module
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

from pfl_lite.data.images import Images
from pfl_lite.errors import InputError, one_of
from pfl_lite.schema import LARGE, WIDE

if TYPE_CHECKING:
    from pfl_lite.methods.base import Method

_CLASSES: dict[str, Any] = {  # by the method's name, which its file has too
    "local": "Local", "fedavg": "FedAvg", "fedprox": "FedProx", "pfl_ft": "PFLFT", "pfl_fb": "PFLFB", "fedper": "FedPer",
    "pfedme": "PFedMe", "ifca": "IFCA", "cfl": "ClusteredFL", "fedfomo": "FedFomo", "fedamp": "FedAMP", "fedem": "FedEM",
    "pfedmb": "PFedMB", "fedmn": "FedMN", "ditto": "Ditto", "apfl": "APFL", "perfedavg": "PerFedAvg", "scaffold": "Scaffold",
    "moon": "Moon", "fedrep": "FedRep", "lg_fedavg": "LGFedAvg", "pfedhn": "PFedHN", "pfl_moe": "PFLMoE", "pfl_mf": "PFLMF",
    "pfl_mfe": "PFLMFE",
}  # fmt: skip
_FILES = {"Method": "base"} | {own: name for name, own in _CLASSES.items()}

__all__ = [
    "METHODS", "Method", "convert_settings", "explain", "known", "make_method", *sorted(_CLASSES.values()),
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name not in _FILES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(import_module(f"{__name__}.{_FILES[name]}"), name)


class Methods(UserDict[str, "type[Method]"]):
    """The methods' classes by name: those that come with the package, and a reader's own."""

    def __getitem__(self, name: str) -> type[Method]:
        found: Any = self.data[name]
        if isinstance(found, str):  # one of the package that was not asked for before
            found = self.data[name] = __getattr__(found)
        return cast("type[Method]", found)


METHODS = Methods(_CLASSES)
MANY = 10_000  # of branches, clusters, epochs, units of a layer: what is more would fill a memory


def known(name: str) -> str:
    """A method's name, looked up without torch.

    Raises:
        InputError: no method has it.
    """
    return one_of("method", name, METHODS, "`pfl-lite methods` lists them all")


def owners_of(setting: str) -> list[str]:
    """The methods that have a setting of this name."""
    return [method.name for method in METHODS.values() if setting in method.__dataclass_fields__]


def make_method(name: str, **settings: Any) -> Method:
    """Build a method by name; settings may be strings, as they come from a command line.

    Raises:
        InputError: an unknown method or setting, or a value of the wrong type or range.
    """
    method = METHODS[known(name)]
    return method(**convert_settings(method, settings))


def explain(name: str) -> str:
    """What a method does and what its settings mean, from its docstring and those of its fields.

    Raises:
        InputError: an unknown method.
    """
    method, meaning = METHODS[known(name)], {}
    for parent in reversed(method.__mro__[:-1]):
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(parent))).body
        for field, text in pairwise(cast(ast.ClassDef, body).body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                meaning[ast.unparse(field.target)] = ast.literal_eval(text.value)
    lines = [f"{name}: {method.about}", "", inspect.getdoc(method) or "", ""]
    lines += [
        f"  {field.name}={field.default}\n      {meaning.get(field.name, '')}".rstrip()
        for field in fields(method)
    ]
    lines += ["", "Settings are given as --set name=value; `pfl-lite run --help` lists those of every run."]
    return "\n".join(lines)


def convert_settings(method: type[Method], settings: dict[str, Any]) -> dict[str, Any]:
    """Settings of a method as values of the right type; raises InputError for an unknown name or a wrong type."""
    kinds = {field.name: type(field.default) for field in fields(method)}
    for key in settings:
        one_of(f"setting of {method.name}", key, kinds)
    return {key: convert(f"{method.name}: {key}", value, kinds[key], MANY) for key, value in settings.items()}


def convert(what: str, value: Any, kind: type, most: int = LARGE) -> Any:
    """`value` as a number or word of the given kind, e.g. `convert("fedprox: mu", "0.1", float)` -> 0.1.

    Raises:
        InputError: the value is not of that kind, or too large: a whole number above `most`, any other above `WIDE`.
    """
    if kind is str and isinstance(value, str):
        return value
    from torch import nn

    if isinstance(value, nn.Module) or (what == "model" and callable(value)):
        raise InputError(
            f"{what} must be a name: `pfl_lite.models.register` gives one to your own network, and takes a class or "
            "function that makes it from (channels, size, classes)"
        )
    if isinstance(value, Images):
        raise InputError(
            f"{what} must be a name: give {value!r} as run(federation=make_federation(images, ...))"
        )
    if what in ("data", "partition"):
        raise InputError(
            f"{what} must be a name, not {type(value).__name__}: clients of your own are run(federation=...), which "
            "make_federation(images, ...), Federation.build(images, clients) or Federation.from_torch(clients, card) makes"
        )
    wanted = {float: "a number", int: "a whole number", str: "a word", bool: "true or false"}[kind]
    try:
        number = kind(value) if kind is not bool else {"true": True, "false": False}[str(value).lower()]
        foreign = kind is str or (isinstance(value, bool) and kind is not bool)
        if foreign or not math.isfinite(number) or (isinstance(value, float) and value != number):
            raise ValueError
    except (TypeError, ValueError, KeyError, OverflowError) as error:
        several = ": compare trains a row for each value" if isinstance(value, list | tuple) else ""
        shown = value if isinstance(value, str) else reprlib.repr(value)
        raise InputError(f"{what} must be {wanted}, not '{shown}'{several}") from error
    if abs(number) > (limit := most if kind is int else WIDE):
        shown = str(limit) if kind is int else f"{limit:g}"
        raise InputError(f"{what} must be at most {shown}{' in size' * (number < 0)}, not {value}")
    return number
