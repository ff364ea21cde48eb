"""FedAvg, Algorithm 1 of McMahan et al., Communication-efficient learning of deep networks, 2017."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .common import SGD, Array, Client, Rounds, Trained, importance, weighted_mean


def fedavg(
    start: Array, clients: Sequence[Client], rounds: Rounds, epochs: int, sgd: SGD,
    ft_epochs: int = 0, weights: str = "size",
) -> Trained:  # fmt: skip
    """One model for all; in fine-tuning each client goes on alone from its copy of the last one."""
    w_t = start
    for sampled in rounds:  # the set S_t
        # ClientUpdate(k, w_t): for each local epoch, w <- w - eta grad f_k(w)
        uploads = [sgd.descend(w_t, clients[k].gradient, epochs) for k in sampled]
        # w_{t+1} <- sum over k in S_t of n_k w_{t+1}^k, divided by the sum of these n_k (or each n_k taken as 1)
        w_t = weighted_mean(uploads, importance(clients, sampled, weights))
    tuned = [sgd.descend(w_t, client.gradient, ft_epochs) for client in clients]
    return Trained(w_t, np.stack(tuned))
