"""The random numbers a method shares with the package: one generator for every purpose, named by words and numbers."""

from __future__ import annotations

import zlib

import numpy as np


def generator(seed: int, *names: str | int) -> np.random.Generator:
    """A word counts as the checksum of its letters: `generator(0, "parts", client)`."""
    return np.random.default_rng(
        [seed, *(zlib.crc32(name.encode()) if isinstance(name, str) else name for name in names)]
    )
