"""What a reader sees when an input is wrong: one sentence, before any work starts."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

ELSEWHERE = {
    **dict.fromkeys(("learning_rate", "local_learning_rate", "eta"), "lr"),
    **dict.fromkeys(("num_clients", "n_clients", "num_users"), "clients"),
    **dict.fromkeys(("num_rounds", "global_rounds", "n_rounds"), "rounds"),
    **dict.fromkeys(("local_epochs", "num_epochs"), "epochs"),
    **dict.fromkeys(("fraction", "fraction_fit", "join_ratio"), "participation"),
    "alpha": 'partition="dirichlet:ALPHA"',
    "dataset": "data",
    "network": "model",
    "optimizer": "lr, momentum and weight_decay of local SGD, which is the only optimizer",
    **dict.fromkeys(("scheduler", "lr_scheduler", "lr_decay"), "lr, the same in every round"),
    **dict.fromkeys(
        ("loss", "criterion", "loss_fn"), "cross-entropy, unless a method of your own descends another loss"
    ),
    **dict.fromkeys(
        ("logger", "callbacks", "callback"), "the entry of each round that Simulation.step() returns"
    ),
    **dict.fromkeys(("num_workers", "n_jobs", "num_processes"), "workers"),
}
"""What other libraries call a setting, and what it is here."""


class InputError(ValueError):
    """A bad name, value, file or setting; the message is one sentence that also says what would be right."""


def unknown(kind: str, name: str, valid: Iterable[str], listed: str | None = None) -> InputError:
    """Build the error for an unknown `name` of some `kind` ("method", "data set", ...), nearest valid names first.

    `listed` says where the valid names are, if they are too many for a sentence.
    """
    names = {one.lower(): one for one in sorted(valid)}
    near = difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.5)
    if name.lower() in names:  # only its case is another
        near = near[:1]
    hint = f"did you mean {' or '.join(names[one] for one in near)}? " if near else ""
    if kind.startswith("setting") and name.lower() in ELSEWHERE:
        hint = f"here it is {ELSEWHERE[name.lower()]} "
    shown = listed or f"valid: {', '.join(names.values()) or 'none'}"
    return InputError(f"unknown {kind} '{name}'{': ' if hint else ' '}{hint}({shown})")


def one_of(kind: str, name: str, valid: Collection[str], listed: str | None = None) -> str:
    """The name, which must be a valid one; else the error is that of `unknown`."""
    if name not in valid:
        raise unknown(kind, name, valid, listed)
    return name


def expect(value: object, kinds: Any, sentence: str) -> None:
    """Raise an InputError with the sentence, and what was given instead, unless a value is of one of some types."""
    if not isinstance(value, kinds):
        raise InputError(f"{sentence}, not {type(value).__name__}")


@contextmanager
def refused(
    kinds: type[Exception] | tuple[type[Exception], ...], sentence: str | Callable[[Any], str]
) -> Iterator[None]:
    """A block whose errors of some kinds become an InputError: with a sentence, or with what is made of the error.

    An InputError says already what is wrong: it passes, unless it is among the kinds by name.
    """
    named = kinds if isinstance(kinds, tuple) else (kinds,)
    try:
        yield
    except named as error:
        if isinstance(error, InputError) and InputError not in named:
            raise
        raise InputError(sentence if isinstance(sentence, str) else sentence(error)) from error
