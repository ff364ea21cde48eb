"""FedPer, Algorithms 1 and 2 of Arivazhagan et al., Federated learning with personalization layers, 2019.

A linear model is one layer: it is all head, private to its client, or all base, shared by everybody.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .common import SGD, Array, Client, Rounds, Trained, weighted_mean


def fedper(
    start: Array, clients: Sequence[Client], rounds: Rounds, epochs: int, sgd: SGD,
    ft_epochs: int = 0, head: str = "last",
) -> Trained:  # fmt: skip
    """The base W_B travels and is averaged, the head W_P of each client waits for its next round."""
    private = head != "none"
    base = start  # W_B
    heads = [start for _ in clients]  # W_P of every client
    for sampled in rounds:
        uploads = []
        for j in sampled:  # Algorithm 1: (W_B, W_P) trained together
            trained = sgd.descend(heads[j] if private else base, clients[j].gradient, epochs)
            if private:
                heads[j] = trained
            else:
                uploads.append(trained)
        if uploads:  # Algorithm 2: W_B <- sum_j gamma_j W_B,j with gamma_j = n_j / sum of n
            base = weighted_mean(uploads, [clients[j].size for j in sampled])
    models = heads if private else [base for _ in clients]
    tuned = [sgd.descend(w, client.gradient, ft_epochs) for w, client in zip(models, clients, strict=True)]
    return Trained(None if private else base, np.stack(tuned))
