"""FedProx, Algorithm 2 of Li et al., Federated optimization in heterogeneous networks, 2020."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .common import SGD, Array, Client, Rounds, Trained, weighted_mean


def fedprox(
    start: Array, clients: Sequence[Client], rounds: Rounds, epochs: int, sgd: SGD,
    ft_epochs: int = 0, mu: float = 0.1,
) -> Trained:  # fmt: skip
    """FedAvg whose clients are pulled back to where the round started; fine-tuning is without the pull."""
    w_t = start
    for sampled in rounds:
        uploads = []
        for k in sampled:

            def grad_h(w: Array, f: Client = clients[k], w_t: Array = w_t) -> Array:
                return f.gradient(w) + mu * (w - w_t)  # of eq. 2: h_k(w; w^t) = f_k(w) + mu/2 |w - w^t|^2

            uploads.append(sgd.descend(w_t, grad_h, epochs))
        w_t = weighted_mean(uploads, [clients[k].size for k in sampled])
    tuned = [sgd.descend(w_t, client.gradient, ft_epochs) for client in clients]
    return Trained(w_t, np.stack(tuned))
