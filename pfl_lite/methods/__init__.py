"""Every method by name; one file each."""

from __future__ import annotations

import ast
import inspect
import math
import textwrap
from dataclasses import fields
from itertools import pairwise
from typing import Any, cast

from torch import nn

from pfl_lite.data.images import Images
from pfl_lite.errors import InputError, unknown
from pfl_lite.methods.apfl import APFL
from pfl_lite.methods.base import Method
from pfl_lite.methods.cfl import ClusteredFL
from pfl_lite.methods.ditto import Ditto
from pfl_lite.methods.fedamp import FedAMP
from pfl_lite.methods.fedavg import FedAvg
from pfl_lite.methods.fedem import FedEM
from pfl_lite.methods.fedfomo import FedFomo
from pfl_lite.methods.fedmn import FedMN
from pfl_lite.methods.fedper import FedPer
from pfl_lite.methods.fedprox import FedProx
from pfl_lite.methods.fedrep import FedRep
from pfl_lite.methods.ifca import IFCA
from pfl_lite.methods.lg_fedavg import LGFedAvg
from pfl_lite.methods.local import Local
from pfl_lite.methods.moon import Moon
from pfl_lite.methods.perfedavg import PerFedAvg
from pfl_lite.methods.pfedhn import PFedHN
from pfl_lite.methods.pfedmb import PFedMB
from pfl_lite.methods.pfedme import PFedMe
from pfl_lite.methods.pfl_fb import PFLFB
from pfl_lite.methods.pfl_ft import PFLFT
from pfl_lite.methods.pfl_mf import PFLMF
from pfl_lite.methods.pfl_mfe import PFLMFE
from pfl_lite.methods.pfl_moe import PFLMoE
from pfl_lite.methods.scaffold import Scaffold
from pfl_lite.schema import LARGE, WIDE

METHODS: dict[str, type[Method]] = {
    method.name: method for method in (
        Local, FedAvg, FedProx, PFLFT, PFLFB, FedPer, PFedMe, IFCA, ClusteredFL, FedFomo, FedAMP, FedEM, PFedMB, FedMN,
        Ditto, APFL, PerFedAvg, Scaffold, Moon, FedRep, LGFedAvg, PFedHN, PFLMoE, PFLMF, PFLMFE,
    )
}  # fmt: skip

__all__ = [
    "METHODS",
    "Method",
    "convert_settings",
    "explain",
    "make_method",
    *sorted(method.__name__ for method in METHODS.values()),
]


MANY = 10_000  # of branches, clusters, epochs, units of a layer: what is more would fill a memory


def make_method(name: str, **settings: Any) -> Method:
    """Build a method by name; settings may be strings, as they come from a command line.

    Raises:
        InputError: an unknown method or setting, or a value of the wrong type or range.
    """
    if name not in METHODS:
        raise unknown("method", name, METHODS, "`pfl-lite methods` lists them all")
    method = METHODS[name]
    return method(**convert_settings(method, settings))


def explain(name: str) -> str:
    """What a method does and what its settings mean, from its docstring and those of its fields.

    Raises:
        InputError: an unknown method.
    """
    if name not in METHODS:
        raise unknown("method", name, METHODS, "`pfl-lite methods` lists them all")
    method, meaning = METHODS[name], {}
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
        if key not in kinds:
            raise unknown(f"setting of {method.name}", key, kinds)
    return {key: convert(f"{method.name}: {key}", value, kinds[key], MANY) for key, value in settings.items()}


def convert(what: str, value: Any, kind: type, most: int = LARGE) -> Any:
    """`value` as a number or word of the given kind, e.g. `convert("fedprox: mu", "0.1", float)` -> 0.1.

    Raises:
        InputError: the value is not of that kind, or too large: a whole number above `most`, any other above `WIDE`.
    """
    if kind is str and isinstance(value, str):
        return value
    if isinstance(value, nn.Module) or (isinstance(value, type) and issubclass(value, nn.Module)):
        raise InputError(
            f"{what} must be a name: `pfl_lite.models.register` gives one to your own network, and takes a class or "
            "function that makes it from (channels, size, classes)"
        )
    if isinstance(value, Images):
        raise InputError(
            f"{what} must be a name: give {value!r} as run(federation=make_federation(images, ...))"
        )
    wanted = {float: "a number", int: "a whole number", str: "a word", bool: "true or false"}[kind]
    try:
        number = kind(value) if kind is not bool else {"true": True, "false": False}[str(value).lower()]
        foreign = kind is str or (isinstance(value, bool) and kind is not bool)
        if foreign or not math.isfinite(number) or (isinstance(value, float) and value != number):
            raise ValueError
    except (TypeError, ValueError, KeyError, OverflowError) as error:
        raise InputError(f"{what} must be {wanted}, not '{value}'") from error
    if abs(number) > (limit := most if kind is int else WIDE):
        shown = str(limit) if kind is int else f"{limit:g}"
        raise InputError(f"{what} must be at most {shown}{' in size' * (number < 0)}, not {value}")
    return number
