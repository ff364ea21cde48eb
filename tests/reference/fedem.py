"""FedEM, Algorithm 1 of Marfoq et al., Federated multi-task learning under a mixture of distributions, 2021."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from .common import SGD, Array, Client, Rounds, Trained, weighted_mean


def log_joint(client: Client, theta: Array, pi: Array) -> Array:
    """log(pi_m p_m(y_s | x_s)), [samples, components]."""
    own = [client.log_probabilities(w)[np.arange(client.size), client.y] for w in theta]
    return np.log(pi) + np.stack(own, axis=1)


def e_step(client: Client, theta: Array, pi: Array) -> tuple[Array, Array]:
    """q_sm ~ pi_m exp(-l(h_m(x_s), y_s)), rows of sum 1, and the new pi_m = mean_s q_sm."""
    log_q = log_joint(client, theta, pi)
    q = np.exp(log_q - np.logaddexp.reduce(log_q, axis=1, keepdims=True))
    return q, q.mean(axis=0)


def mixture_loss(client: Client, theta: Array, pi: Array) -> float:
    """The mean of -log sum_m pi_m p_m(y_s | x_s): probabilities are mixed, not logits."""
    return float(-np.logaddexp.reduce(log_joint(client, theta, pi), axis=1).mean())


def fedem(start: Array, clients: Sequence[Client], rounds: Rounds, epochs: int, sgd: SGD) -> Trained:
    """Components theta [M, classes, features + 1] for all; the clients differ in their mixture pi_i, uniform at first."""
    theta, M = start, len(start)
    pi = np.full((len(clients), M), 1 / M)
    seen = {i for sampled in rounds for i in sampled}
    for sampled in rounds:
        uploads = []
        for i in sampled:
            q, pi[i] = e_step(clients[i], theta, pi[i])

            def gradient(w: Array, q_m: Array, f: Client = clients[i]) -> Array:  # of 1/n_i sum_s q_sm l_s(w)
                error = np.exp(f.log_probabilities(w)) - np.eye(len(w))[f.y]
                return (q_m[:, None] * error).T @ f.x / f.size

            # M-step: each component by SGD, q as it is
            slopes = [partial(gradient, q_m=q[:, m]) for m in range(M)]
            uploads.append([sgd.descend(w, slope, epochs) for w, slope in zip(theta, slopes, strict=True)])
        theta = weighted_mean(uploads, [clients[i].size for i in sampled])
    scored = [pi[i] if i in seen else e_step(client, theta, pi[i])[1] for i, client in enumerate(clients)]
    return Trained(theta, np.stack([theta] * len(clients)), {"mixture": pi}, np.stack(scored))
