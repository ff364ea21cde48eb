"""Per-FedAvg, Algorithm 1 of Fallah et al., Personalized federated learning with guarantees (MAML), 2020.

The batches of the inner and the outer gradient are one and the same here: all the client's data.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .common import SGD, Array, Client, Rounds, Trained, weighted_mean


def hessian_times(client: Client, w: Array, d: Array) -> Array:
    """H(w) d, the derivative of the gradient (P - Y)^T X / n along d: P moves by P (U - sum_k P_k U_k), U = X d^T."""
    p, u = np.exp(client.log_probabilities(w)), client.x @ d.T
    return (p * (u - np.sum(p * u, axis=1, keepdims=True))).T @ client.x / client.size


def perfedavg(
    start: Array, clients: Sequence[Client], rounds: Rounds, epochs: int, sgd: SGD,
    ft_epochs: int = 0, inner_lr: float = 0.01, variant: str = "fo",
) -> Trained:  # fmt: skip
    """A model that is good after one gradient step of each client: FedAvg on F_i(w) = f_i(w - a grad f_i(w))."""

    def adapt(f: Client, w: Array) -> Array:
        return w - inner_lr * f.gradient(w)

    def meta_gradient(f: Client, w: Array) -> Array:  # grad F_i(w) = (I - a H(w)) grad f_i(w')
        g = f.gradient(adapt(f, w))
        return g - inner_lr * hessian_times(f, w, g) if variant == "hf" else g

    w_t = start
    for sampled in rounds:
        uploads = [sgd.descend(w_t, lambda w, f=clients[i]: meta_gradient(f, w), epochs) for i in sampled]
        w_t = weighted_mean(uploads, [clients[i].size for i in sampled])
    models = [adapt(client, w_t) for client in clients]
    tuned = [sgd.descend(w, client.gradient, ft_epochs) for w, client in zip(models, clients, strict=True)]
    return Trained(w_t, np.stack(tuned))
