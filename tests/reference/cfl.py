"""Clustered federated learning, Sattler et al., Clustered federated learning: model-agnostic distributed multitask
optimization under privacy constraints, 2019."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .common import SGD, Array, Client, Rounds, Trained, importance, weighted_mean
from .linkage import bipartition, cosine


def cfl(
    start: Array, clients: Sequence[Client], rounds: Rounds, epochs: int, sgd: SGD, ft_epochs: int = 0,
    eps1: float = 0.4, eps2: float = 1.6, gamma: float = 0.0, warmup: int = 20, weights: str = "size",
) -> Trained:  # fmt: skip
    """Cells of clients with a model each; a cell whose members pull apart is cut in two."""
    cells = [(list(range(len(clients))), start)]  # (members, theta), by the lowest member
    last: dict[int, Array] = {}  # the last known update of a client

    def mean(members: Sequence[int]) -> Array:
        return weighted_mean([last[i] for i in members], importance(clients, members, weights))

    def splits(members: Sequence[int]) -> bool:
        m, largest = np.linalg.norm(mean(members)), max(np.linalg.norm(last[i]) for i in members)
        return len(members) > 2 and bool(m < gamma * largest if gamma > 0 else m < eps1 and largest > eps2)

    def nearer(i: int, halves: list[list[int]]) -> int:
        """Where an absent client goes: to updates like its last one, or without one to where more are."""
        a, b = [np.mean([cosine(last[i], last[j]) for j in h]) if i in last else len(h) for h in halves]
        return int(b > a)

    for t, sampled in enumerate(rounds, start=1):
        after = []
        for cell, theta in cells:
            present = [i for i in cell if i in sampled]
            last |= {i: sgd.descend(theta, clients[i].gradient, epochs) - theta for i in present}
            halves, here = [cell], [present]
            if t > warmup and present and splits(present):
                here = bipartition({i: last[i] for i in present})
                home = {i: nearer(i, here) for i in cell if i not in sampled}
                halves = [sorted(h + [i for i in home if home[i] == n]) for n, h in enumerate(here)]
            after += [(c, theta + mean(p) if p else theta) for c, p in zip(halves, here, strict=True)]
        cells = sorted(after, key=lambda cell: cell[0])
    cluster = np.array([n for i in range(len(clients)) for n, (cell, _) in enumerate(cells) if i in cell])
    theta = np.stack([w for _, w in cells])
    own = [n if i in last else np.argmin([clients[i].loss(w) for w in theta]) for i, n in enumerate(cluster)]
    tuned = [sgd.descend(theta[n], c.gradient, ft_epochs) for n, c in zip(own, clients, strict=True)]
    return Trained(theta, np.stack(tuned), {"cluster": cluster})
