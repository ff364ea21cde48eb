"""What values in files and in settings may be: a rule says of a value what is wrong with it, and where; None if nothing is."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Mapping
from typing import Any

from pfl_lite.errors import InputError

Rule = Callable[[Any], str | None]

LARGE = 2**31 - 1  # more of anything that is counted is a mistake
WIDE = 1e30  # a setting beyond it leaves no number finite
MOST = 1e300  # of a loss, or of seconds
MOST_WORKERS = 1_000

Bounds = tuple[tuple[str, Callable[[Any], bool], str], ...]

SGD_BOUNDS: Bounds = (
    ("batch_size", lambda value: value >= 1, "1 or more"),
    ("lr", lambda value: value > 0, "positive"),
    ("momentum", lambda value: value >= 0, "0 or more"),
    ("momentum", lambda value: value < 1, "below 1"),
    ("weight_decay", lambda value: value >= 0, "0 or more"),
)
"""What local SGD takes: setting, whether a value is right, what would be right; fine-tuning has its own under `ft_`."""
_FROM_ONE = "clients", "rounds", "epochs", "eval_every"
_FROM_ZERO = "unseen", "seed", "patience", "ft_epochs", "ft_every", "clients_per_batch"
BOUNDS: Bounds = (
    *((name, lambda value: value >= 1, "1 or more") for name in _FROM_ONE),
    *((name, lambda value: value >= 0, "0 or more") for name in _FROM_ZERO),
    ("participation", lambda value: 0 < value <= 1, "in (0, 1]"),
    ("val_fraction", lambda value: 0 <= value < 1, "in [0, 1)"),
    *SGD_BOUNDS,
    *((f"ft_{name}", right, wanted) for name, right, wanted in SGD_BOUNDS),
)
"""The same of every number of a run that is right or wrong by itself."""


def check_bounds(settings: Mapping[str, Any], bounds: Bounds = BOUNDS) -> None:
    """Check the numbers among a run's settings; here, so that the command line can do it before it loads torch.

    Raises:
        InputError: one is out of its bounds.
    """
    for name, right, wanted in bounds:
        if name in settings and not right(settings[name]):
            raise InputError(f"{name} must be {wanted}, not {settings[name]}")


def check_workers(workers: int) -> None:
    """Raise an InputError for a number of processes that no machine is asked for."""
    if not isinstance(workers, int) or not 1 <= workers <= MOST_WORKERS:
        raise InputError(f"workers must be 1 to {MOST_WORKERS:,}, not {workers!r}")


def said(value: Any, wanted: str) -> str:
    """What is wrong with a value that is not what was wanted."""
    return f" is {'null' if value is None else reprlib.repr(value)}, not {wanted}"


def number(low: float = 0, high: float = MOST, *, whole: bool = False) -> Rule:
    """A number from `low` to `high`."""
    kinds: tuple[type, ...] = (int,) if whole else (int, float)
    wanted = f"a {'whole ' * whole}number from {low:.10g} to {high:.10g}"
    return lambda value: None if type(value) in kinds and low <= value <= high else said(value, wanted)


def of_type(kind: type, wanted: str) -> Rule:
    """A value of one type."""
    return lambda value: None if isinstance(value, kind) else said(value, wanted)


def equal(wanted: Any) -> Rule:
    """One value."""
    return lambda value: None if value == wanted else said(value, reprlib.repr(wanted))


def nullable(rule: Rule) -> Rule:
    """What a rule allows, or null."""
    return lambda value: None if value is None else rule(value)


def each(rule: Rule) -> Rule:
    """A list, every item by one rule."""

    def of_list(value: Any) -> str | None:
        if not isinstance(value, list):
            return said(value, "a list")
        return next((f"/{i}{fault}" for i, one in enumerate(value) if (fault := rule(one))), None)

    return of_list


def finite(value: Any) -> str | None:
    """Any nested value without a number that is not finite."""
    if isinstance(value, dict | list):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        try:
            return next((f"/{key}{fault}" for key, one in pairs if (fault := finite(one))), None)
        except RecursionError:  # what could be read may still be nested too deep to be looked through
            return " is nested too deep"
    return said(value, "a finite number") if isinstance(value, float) and not math.isfinite(value) else None


def fields(
    needed: Mapping[str, Rule] = {},
    more: Mapping[str, Rule] = {},
    rest: Callable[[str], Rule] = lambda name: finite,
) -> Rule:
    """An object with some keys and perhaps `more`; `rest` gives the rule of any other key."""
    known = {**needed, **more}

    def of_object(value: Any) -> str | None:
        if not isinstance(value, dict):
            return said(value, "an object")
        if missing := [key for key in needed if key not in value]:
            return f" lacks {', '.join(missing)}"
        faults = ((key, (known.get(key) or rest(str(key)))(one)) for key, one in value.items())
        return next((f"/{key}{fault}" for key, fault in faults if fault), None)

    return of_object


def scalar(value: Any) -> str | None:
    """A setting: a text, a finite number, true, false or null."""
    return said(value, "a setting") if isinstance(value, dict | list) else finite(value)


text, flag = of_type(str, "a text"), of_type(bool, "true or false")
count, size = number(0, LARGE, whole=True), number(0, 2**63, whole=True)
share, loss, explained = nullable(number(0, 1)), nullable(number()), nullable(number(-MOST, 1))
"""Of these, null says that there was nothing to score, or that it was no finite number."""


def shares(value: Any) -> str | None:
    """A share, or a list of shares, one a client."""
    return each(share)(value) if isinstance(value, list) else share(value)


def score(name: str) -> Rule:
    """What a number of this name may be: an accuracy is a share, a loss not negative, an R2 at most 1."""
    rules = {"accuracy": share, "loss": loss, "r2": explained, "floats": size}
    return next((rule for part, rule in rules.items() if part in name), finite)


def each_client(name: str) -> Rule:
    """What scores of this name may be, one a client; a model's name alone stands for its accuracies."""
    return nullable(each(loss if "loss" in name else explained if "r2" in name else share))


def _entry(factors: Rule) -> Rule:
    return fields(
        {"round": count, "clients": each(count), "floats_down": size, "floats_up": size},
        {
            "diverged": each(count),
            "per_client": fields(rest=each_client),
            "whole_test": fields(rest=lambda _: fields(rest=lambda _: shares)),
            "converged": flag,
            "factor": number(),
            "factors": fields(rest=lambda _: factors),
        },
        score,
    )


_OF_CLASSES, _OF_NUMBERS = _entry(share), _entry(explained)


def entry(value: Any) -> str | None:
    """A round of a history."""
    numbers = isinstance(value, dict) and "tuned_r2" in value
    return (_OF_NUMBERS if numbers else _OF_CLASSES)(value)


def rounds(value: Any) -> str | None:
    """The rounds of a history, one after another."""
    if fault := each(entry)(value):
        return fault
    numbers = [one["round"] for one in value]
    return None if numbers == sorted(set(numbers)) else " are not one after another"
