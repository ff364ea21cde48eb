"""pFedMe, Algorithm 1 of Dinh et al., Personalized federated learning with Moreau envelopes, 2020."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .common import SGD, Array, Client, Rounds, Trained, weighted_mean


def pfedme(
    start: Array, clients: Sequence[Client], rounds: Rounds, epochs: int, sgd: SGD, ft_epochs: int = 0,
    lam: float = 15.0, inner_steps: int = 5, inner_lr: float = 0.01, beta: float = 1.0,
) -> Trained:  # fmt: skip
    """The clients look for theta_i near w; w itself follows the thetas."""
    w_t = start
    personal: list[Array | None] = [None] * len(clients)  # theta_i of the last participation

    def client_round(f: Client, w: Array) -> tuple[Array, Array]:
        """(w_i, theta_i) after R = `epochs` local rounds, each with all the data as its mini-batch."""
        theta = w

        def envelope_gradient(w_i: Array) -> Array:  # of the Moreau envelope
            nonlocal theta
            for _ in range(inner_steps):  # on f_i(theta) + lam/2 |theta - w_i|^2
                theta = theta - inner_lr * (f.gradient(theta) + lam * (theta - w_i))
            return lam * (w_i - theta)

        w_i = sgd.descend(w, envelope_gradient, epochs)  # w_i <- w_i - eta lam (w_i - theta_i)
        return w_i, theta

    for sampled in rounds:
        uploads = []
        for i in sampled:
            w_i, personal[i] = client_round(clients[i], w_t)
            uploads.append(w_i)
        mean = weighted_mean(uploads, [clients[i].size for i in sampled])
        w_t = (1 - beta) * w_t + beta * mean
    # who never took part finds its theta from the last w
    scored = [client_round(c, w_t)[1] if p is None else p for c, p in zip(clients, personal, strict=True)]
    tuned = [sgd.descend(theta, c.gradient, ft_epochs) for c, theta in zip(clients, scored, strict=True)]
    return Trained(w_t, np.stack(tuned))
