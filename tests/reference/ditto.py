"""Ditto, Algorithm 1 of Li et al., Ditto: fair and robust federated learning through personalization, 2021."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .common import SGD, Array, Client, Rounds, Trained, weighted_mean


def ditto(
    start: Array, clients: Sequence[Client], rounds: Rounds, epochs: int, sgd: SGD,
    ft_epochs: int = 0, lam: float = 1.0,
) -> Trained:  # fmt: skip
    """FedAvg for all, and beside it a model v_k of each client, held near what the client received."""
    w_t = start
    v = [start for _ in clients]

    def own(k: int, w_t: Array) -> Array:  # h_k(v; w^t) = f_k(v) + lam/2 |v - w^t|^2
        return sgd.descend(v[k], lambda u: clients[k].gradient(u) + lam * (u - w_t), epochs)

    for sampled in rounds:
        for k in sampled:
            v[k] = own(k, w_t)
        uploads = [sgd.descend(w_t, clients[k].gradient, epochs) for k in sampled]
        w_t = weighted_mean(uploads, [clients[k].size for k in sampled])
    seen = {k for sampled in rounds for k in sampled}
    # Who was never there does its part of a round now.
    models = [v[k] if k in seen else own(k, w_t) for k in range(len(clients))]
    tuned = [sgd.descend(u, client.gradient, ft_epochs) for u, client in zip(models, clients, strict=True)]
    return Trained(w_t, np.stack(tuned))
