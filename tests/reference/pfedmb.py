"""pFedMB, Algorithm 1 of Mori et al., Personalized federated learning with multi-branch architecture, 2023.

A linear model is one layer, so that alpha per layer and alpha shared are the same B numbers of a client.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .common import SGD, Array, Client, Rounds, Trained, weighted_mean
from .simplex import project, softmax


def mix(W: Array, alpha: Array) -> Array:
    """eq. 1: W = sum_b alpha_b W_b."""
    return np.einsum("b,bkf->kf", alpha, W)


def pfedmb(
    start: Array, clients: Sequence[Client], rounds: Rounds, epochs: int, sgd: SGD, ft_epochs: int = 0,
    ft_mode: str = "own_update", aggregation: str = "alpha", simplex: str = "softmax",
    alpha_lr: float = 0.1, rate: str = "plain",
) -> Trained:  # fmt: skip
    """Branches W [B, classes, features + 1] for all, mixed by an alpha of each client, 1/B at first."""
    W, B, soft = start, len(start), simplex == "softmax"
    alpha_of = softmax if soft else np.asarray
    kept = np.full((len(clients), B), 0.0 if soft else 1 / B)  # what eq. 3 moves: logits, or alpha itself

    def alpha_phase(client: Client, a: Array, steps: int) -> Array:  # W as received
        for _ in range(steps):
            alpha = alpha_of(a)
            g = np.einsum("kf,bkf->b", client.gradient(mix(W, alpha)), W)  # df/dalpha_b = <df/dW, W_b>
            slope = alpha * (g - alpha @ g) if soft else g  # df/da_b = alpha_b (g_b - sum_c alpha_c g_c)
            a = a - alpha_lr * slope if soft else project(a - alpha_lr * slope)  # eq. 3
        return a

    def weight_phase(client: Client, alpha: Array, steps: int) -> Array:  # eq. 4, df/dW_b = alpha_b df/dW
        scaled = sgd._replace(lr=sgd.lr / np.sum(alpha**2)) if rate == "effective" else sgd
        return scaled.descend(W, lambda V: np.multiply.outer(alpha, client.gradient(mix(V, alpha))), steps)

    for sampled in rounds:  # Algorithm 1, line 5
        for i in sampled:
            kept[i] = alpha_phase(clients[i], kept[i], epochs)  # lines 18, 19
        uploads = [weight_phase(clients[i], alpha_of(kept[i]), epochs) for i in sampled]  # lines 17, 20
        W = W.copy()
        for b in range(B):  # lines 8 to 12: eq. 5, or with every share 1 eq. 6
            shares = [alpha_of(kept[i])[b] if aggregation == "alpha" else 1.0 for i in sampled]
            if max(shares) > 0:  # a branch that nobody uses stays as it was
                weights = [clients[i].size * share for i, share in zip(sampled, shares, strict=True)]
                W[b] = weighted_mean([w[b] for w in uploads], weights)

    own = ft_epochs if ft_mode == "own_update" else 0  # once more; or plain SGD on the mix
    alphas = [alpha_of(alpha_phase(c, a, own)) for c, a in zip(clients, kept, strict=True)]
    tuned = [mix(weight_phase(c, a, own), a) for c, a in zip(clients, alphas, strict=True)]
    tuned = [sgd.descend(w, c.gradient, ft_epochs - own) for c, w in zip(clients, tuned, strict=True)]
    return Trained(W, np.stack(tuned), {"alpha": np.stack([alpha_of(a) for a in kept])})
