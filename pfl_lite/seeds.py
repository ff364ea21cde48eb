"""Random numbers that do not depend on what else was drawn.

Every random choice of a run gets its own generator, named by (seed, purpose, and whatever numbers the purpose needs: round,
client, phase). Adding a phase to one method therefore never shifts the batches of another, which is what makes "method A with
B = 1 equals method C" an exact statement.
"""

from __future__ import annotations

import zlib

import numpy as np


def generator(seed: int, purpose: str, *numbers: int | str) -> np.random.Generator:
    """The generator of one purpose, e.g. `generator(0, "batches", round, client, "weights")`."""
    words = [zlib.crc32(word.encode()) if isinstance(word, str) else word for word in (purpose, *numbers)]
    return np.random.default_rng([seed, *words])
