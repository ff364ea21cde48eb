"""Two ways to keep pFedMB's branch weights alpha >= 0 with sum 1; its equation 3 alone does not."""

from __future__ import annotations

import numpy as np

from .common import Array


def softmax(a: Array) -> Array:
    """alpha_b = exp(a_b) / sum_c exp(a_c)."""
    e = np.exp(a - a.max())
    return e / e.sum()


def project(v: Array) -> Array:
    """The nearest point of the simplex: lower all entries alike, drop those that are not above 0, repeat."""
    kept = np.ones(len(v), dtype=bool)
    while True:
        excess = (v[kept].sum() - 1.0) / kept.sum()
        if np.all(v[kept] > excess):
            return np.where(kept, v - excess, 0.0)
        kept &= v > excess
