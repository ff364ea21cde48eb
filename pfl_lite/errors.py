"""What a reader sees when an input is wrong: one sentence, before any work starts."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

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
