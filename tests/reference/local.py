"""Local training: every client alone, all from the same start. Nothing travels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .common import SGD, Array, Client, Rounds, Trained


def local(
    start: Array, clients: Sequence[Client], rounds: Rounds, epochs: int, sgd: SGD, ft_epochs: int = 0
) -> Trained:
    """Train each client on its own data in every round it takes part in; fine-tuning is `ft_epochs` more."""
    own = [start for _ in clients]
    for sampled in rounds:
        for i in sampled:
            own[i] = sgd.descend(own[i], clients[i].gradient, epochs)
    tuned = [sgd.descend(w, client.gradient, ft_epochs) for w, client in zip(own, clients, strict=True)]
    return Trained(None, np.stack(tuned))
