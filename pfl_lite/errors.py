"""What a reader sees when an input is wrong: one sentence, before any work starts."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """A bad name, value, file or setting; the message is one sentence that also says what would be right."""


def unknown(kind: str, name: str, valid: Iterable[str]) -> InputError:
    """Build the error for an unknown `name` of some `kind` ("method", "data set", ...), nearest valid names first."""
    names = sorted(valid)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    return InputError(
        f"unknown {kind} '{name}'{': ' if hint else ' '}{hint}(valid: {', '.join(names) or 'none'})"
    )
