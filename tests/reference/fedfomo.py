"""FedFomo, section 3 of Zhang et al., Personalized federated learning with first order model optimization, 2021.

The server's random draws are not repeated here: either epsilon is 0, or every uploaded model is sent.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .common import SGD, Array, Client, Rounds, Trained


def fedfomo(
    start: Array, clients: Sequence[Client], rounds: Rounds, epochs: int, sgd: SGD, ft_epochs: int = 0,
    models: int = 5, epsilon: float = 0.3,
) -> Trained:  # fmt: skip
    """Each client moves towards the models that do better on its validation data than its own did."""
    N = len(clients)
    assert epsilon == 0 or models >= N, "exploration is random"
    own, before = [start] * N, [start] * N  # theta_i, and theta_i^- from before the last local training
    uploads: dict[int, Array] = {}  # of the last round
    affinity, used = np.zeros((N, N)), np.zeros((N, N))

    def federated_update(i: int) -> tuple[Array, Array, Array]:
        """theta_i after it, the unclipped and the normalised weights; writes nothing down."""
        others = sorted((n for n in uploads if n != i), key=lambda n: (-affinity[i, n], n))[: models - 1]
        sent = {i: own[i]} | {n: uploads[n] for n in others}
        loss, base = clients[i].validation.loss, before[i]
        gain = np.zeros(N)
        for n, theta in sent.items():  # (L(theta_i^-) - L(theta_n)) / |theta_n - theta_i^-|
            distance = np.linalg.norm(theta - base)
            gain[n] = (loss(base) - loss(theta)) / distance if distance > 0 else 0.0
        w = np.maximum(gain, 0.0)  # clipped at 0, then with sum 1
        if w.sum() == 0:  # nothing helps: go on from the own model
            return own[i], gain, w
        w /= w.sum()
        return base + sum(w[n] * (theta - base) for n, theta in sent.items()), gain, w

    for sampled in rounds:
        received = {i: federated_update(i) for i in sampled}
        for i, (theta, gain, w) in received.items():
            affinity[i] += gain
            used[i], before[i] = w, theta
            own[i] = sgd.descend(theta, clients[i].gradient, epochs)
        uploads = {i: own[i] for i in sampled}
    seen = {i for sampled in rounds for i in sampled}
    scored = [own[i] if i in seen else federated_update(i)[0] for i in range(N)]
    tuned = [sgd.descend(w, client.gradient, ft_epochs) for w, client in zip(scored, clients, strict=True)]
    return Trained(None, np.stack(tuned), {"weights": used})
