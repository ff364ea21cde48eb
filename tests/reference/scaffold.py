"""SCAFFOLD, Algorithm 1 (option II) of Karimireddy et al., Stochastic controlled averaging, 2020."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .common import SGD, Array, Client, Rounds, Trained, weighted_mean


def scaffold(
    start: Array, clients: Sequence[Client], rounds: Rounds, epochs: int, sgd: SGD, ft_epochs: int = 0,
    server_lr: float = 1.0, control: str = "on", weights: str = "uniform",
) -> Trained:  # fmt: skip
    """FedAvg whose clients correct their gradients by how theirs differ from everybody's: c - c_i."""
    w_t, c = start, np.zeros_like(start)
    c_i = np.zeros((len(clients), *start.shape))
    for sampled in rounds:
        moves, changes = [], []
        for i in sampled:

            def corrected(y: Array, f: Client = clients[i], c: Array = c, own: Array = c_i[i]) -> Array:
                return f.gradient(y) + c - own

            y = sgd.descend(w_t, corrected, epochs)  # one step an epoch: K = epochs
            moves.append(y - w_t)
            changes.append(np.zeros_like(c))
            if control == "on":  # c_i+ = c_i - c + (w - y)/(K eta)
                changes[-1] = (w_t - y) / (epochs * sgd.lr) - c
        for i, change in zip(sampled, changes, strict=True):
            c_i[i] = c_i[i] + change
        a = [clients[i].size if weights == "size" else 1.0 for i in sampled]
        w_t = w_t + server_lr * weighted_mean(moves, a)
        c = c + len(sampled) / len(clients) * weighted_mean(changes, a)
    tuned = [sgd.descend(w_t, client.gradient, ft_epochs) for client in clients]
    return Trained(w_t, np.stack(tuned), {"control": c_i} if control == "on" else {})
