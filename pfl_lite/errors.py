"""What a reader sees when an input is wrong: one sentence, before any work starts."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


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
    shown = listed or f"valid: {', '.join(names.values()) or 'none'}"
    return InputError(f"unknown {kind} '{name}'{': ' if hint else ' '}{hint}({shown})")
