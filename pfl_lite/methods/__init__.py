"""Every method by name; one file each."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

from pfl_lite.errors import InputError, unknown
from pfl_lite.methods.base import Method
from pfl_lite.methods.fedavg import FedAvg
from pfl_lite.methods.fedper import FedPer
from pfl_lite.methods.fedprox import FedProx
from pfl_lite.methods.local import Local
from pfl_lite.methods.pfedmb import PFedMB

__all__ = [
    "METHODS",
    "FedAvg",
    "FedPer",
    "FedProx",
    "Local",
    "Method",
    "PFedMB",
    "convert_settings",
    "make_method",
]

METHODS: dict[str, type[Method]] = {
    method.name: method for method in (Local, FedAvg, FedProx, FedPer, PFedMB)
}


def make_method(name: str, **settings: Any) -> Method:
    """Build a method by name; settings may be strings, as they come from a command line.

    Raises:
        InputError: an unknown method or setting, or a value of the wrong type or range.
    """
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    method = METHODS[name]
    return method(**convert_settings(method, settings))


def convert_settings(method: type[Method], settings: dict[str, Any]) -> dict[str, Any]:
    """Settings of a method as values of the right type; raises InputError for an unknown name or a wrong type."""
    kinds = {field.name: type(field.default) for field in fields(method)}
    for key in settings:
        if key not in kinds:
            raise unknown(f"setting of {method.name}", key, kinds)
    return {key: convert(f"{method.name}: {key}", value, kinds[key]) for key, value in settings.items()}


def convert(what: str, value: Any, kind: type) -> Any:
    """`value` as a number or word of the given kind, e.g. `convert("fedprox: mu", "0.1", float)` -> 0.1.

    Raises:
        InputError: the value is not of that kind.
    """
    if kind is str and isinstance(value, str):
        return value
    wanted = {float: "a number", int: "a whole number", str: "a word", bool: "true or false"}[kind]
    try:
        number = kind(value) if kind is not bool else {"true": True, "false": False}[str(value).lower()]
        if kind is str or not math.isfinite(number) or (isinstance(value, float) and value != number):
            raise ValueError
    except (TypeError, ValueError, KeyError, OverflowError) as error:
        raise InputError(f"{what} must be {wanted}, not '{value}'") from error
    return number
