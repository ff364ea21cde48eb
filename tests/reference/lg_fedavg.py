"""LG-FedAvg, Algorithm 1 of Liang et al., Think locally, act globally, 2020.

A linear model is one layer: it is all top, shared by everybody, or (nothing shared) all bottom, private.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .common import SGD, Array, Client, Rounds, Trained, weighted_mean


def lg_fedavg(
    start: Array, clients: Sequence[Client], rounds: Rounds, epochs: int, sgd: SGD,
    ft_epochs: int = 0, shared: str = "last",
) -> Trained:  # fmt: skip
    """All layers trained together; the top travels and is averaged, each client's bottom stays with it."""
    private = shared == "none"
    top = start
    bottoms = [start for _ in clients]
    for sampled in rounds:
        trained = [sgd.descend(bottoms[i] if private else top, clients[i].gradient, epochs) for i in sampled]
        if private:
            for i, w in zip(sampled, trained, strict=True):
                bottoms[i] = w
        else:
            top = weighted_mean(trained, [clients[i].size for i in sampled])
    models = bottoms if private else [top for _ in clients]
    tuned = [sgd.descend(w, client.gradient, ft_epochs) for w, client in zip(models, clients, strict=True)]
    return Trained(None if private else top, np.stack(tuned))
