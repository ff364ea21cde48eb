"""APFL, Algorithm 1 of Deng et al., Adaptive personalized federated learning, 2020."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .common import SGD, Array, Client, Rounds, Trained, weighted_mean


def mix(alpha: float, v: Array, w: Array) -> Array:
    """v_bar = alpha v + (1 - alpha) w."""
    return alpha * v + (1.0 - alpha) * w


def apfl(
    start: Array, clients: Sequence[Client], rounds: Rounds, epochs: int, sgd: SGD,
    ft_epochs: int = 0, alpha: float = 0.5, adaptive: bool = True,
) -> Trained:  # fmt: skip
    """FedAvg's w, a private v_i of each client, and the share alpha_i of v_i in the mixed model."""
    w_t = start
    kept = [(float(alpha), start) for _ in clients]  # (alpha_i, v_i)

    def client_round(i: int, w_t: Array) -> tuple[Array, tuple[float, Array]]:
        f, (a, v) = clients[i], kept[i]
        if adaptive:  # alpha <- alpha - eta d f(v_bar)/d alpha, cut to [0, 1]; w is as received
            slope = np.sum((v - w_t) * f.gradient(mix(a, v, w_t)))
            a = float(np.clip(a - sgd.lr * slope, 0.0, 1.0))

        def gradients(both: Array) -> Array:  # of f(w) in w; of f(v_bar) in v, alpha by the chain rule
            w, v = both
            return np.stack([f.gradient(w), a * f.gradient(mix(a, v, w))])

        w, v = sgd.descend(np.stack([w_t, v]), gradients, epochs)
        return w, (a, v)

    for sampled in rounds:
        uploads = []
        for i in sampled:
            w, kept[i] = client_round(i, w_t)
            uploads.append(w)
        w_t = weighted_mean(uploads, [clients[i].size for i in sampled])
    seen = {i for sampled in rounds for i in sampled}  # the others arrive now; nothing of it is kept
    arrived = [kept[i] if i in seen else client_round(i, w_t)[1] for i in range(len(clients))]
    models = [mix(a, v, w_t) for a, v in arrived]
    tuned = [sgd.descend(u, client.gradient, ft_epochs) for u, client in zip(models, clients, strict=True)]
    return Trained(w_t, np.stack(tuned), {"alpha": np.array([a for a, _ in kept])})
