"""How clustered federated learning cuts a cell in two: agglomerative clustering of the updates, complete linkage."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from .common import Array


def cosine(u: Array, v: Array) -> float:
    return float(np.sum(u * v) / (np.linalg.norm(u) * np.linalg.norm(v)))


def bipartition(updates: dict[int, Array]) -> list[list[int]]:
    """Complete linkage: join the two groups whose least similar pair is the most alike, until two are left."""
    groups = [[i] for i in updates]
    like = {(i, j): cosine(u, v) for i, u in updates.items() for j, v in updates.items()}
    while len(groups) > 2:
        a, b = max(combinations(groups, 2), key=lambda ab: min(like[i, j] for i in ab[0] for j in ab[1]))
        groups = [g for g in groups if g not in (a, b)] + [a + b]
    return sorted(sorted(g) for g in groups)
