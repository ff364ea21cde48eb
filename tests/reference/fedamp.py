"""FedAMP, Algorithm 1 of Huang et al., Personalized cross-silo federated learning on non-IID data, 2021."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .common import SGD, Array, Client, Rounds, Trained


def squared_distances(models: Sequence[Array]) -> Array:
    return np.array([[np.sum((w - v) ** 2) for v in models] for w in models])


def attention(d2: Array, sigma: float, self_weight: float) -> Array:
    """xi: alpha A'(|w_i - w_j|^2) off the diagonal, rows of sum 1, the least xi_ii equal to self_weight."""
    if len(d2) < 2 or sigma == 0:
        return np.eye(len(d2))
    A = np.exp(-d2 / sigma) / sigma  # A'(x) = exp(-x/sigma) / sigma
    np.fill_diagonal(A, 0.0)
    if A.max() == 0:  # all so far apart that the exponentials vanish
        return np.eye(len(d2))
    xi = (1 - self_weight) / A.sum(axis=1).max() * A
    return xi + np.diag(1 - xi.sum(axis=1))


def fedamp(
    w_0: Array, clients: Sequence[Client], rounds: Rounds, epochs: int, sgd: SGD, ft_epochs: int = 0,
    lam: float = 1.0, sigma: float = 0.0, self_weight: float = 0.5, start: str = "cloud",
) -> Trained:  # fmt: skip
    """A cloud model u_i of each client, made of the models that are like its own, pulls its training."""
    w = np.stack([w_0] * len(clients))
    xi = np.eye(len(clients))
    uploaded: set[int] = set()
    for t, sampled in enumerate(rounds):
        u = np.einsum("ij,jkf->ikf", xi, w)  # the cloud models; w^0 for who has not uploaded yet
        for i in sampled:

            def gradient(v: Array, f: Client = clients[i], u_i: Array = u[i]) -> Array:
                return f.gradient(v) + lam * (v - u_i)  # of f_i(v) + lam/2 |v - u_i|^2

            w[i] = sgd.descend(u[i] if start == "cloud" else w[i], gradient, epochs)
        uploaded |= set(sampled)
        known = sorted(uploaded)
        d2 = squared_distances(w[known])
        if t == 0 and sigma == 0 and len(known) > 1:  # the median over the pairs, fixed from now on
            sigma = float(np.median(d2[np.triu_indices(len(known), 1)]))
        xi = np.eye(len(clients))
        xi[np.ix_(known, known)] = attention(d2, sigma, self_weight)
    tuned = [sgd.descend(w_i, client.gradient, ft_epochs) for w_i, client in zip(w, clients, strict=True)]
    return Trained(None, np.stack(tuned), {"attention": xi})
