"""IFCA, Algorithm 1 with model averaging of Ghosh et al., An efficient framework for clustered federated learning, 2020."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .common import SGD, Array, Client, Rounds, Trained, weighted_mean


def ifca(
    start: Array, clients: Sequence[Client], rounds: Rounds, epochs: int, sgd: SGD, ft_epochs: int = 0
) -> Trained:
    """Models theta [k, classes, features + 1], each client trains the one that fits its data best."""
    theta = start.copy()
    last = np.full(len(clients), -1)  # the cluster a client was in when it last took part

    def choose(client: Client) -> int:  # j_i = argmin_j f_i(theta_j), the first of equals
        return int(np.argmin([client.loss(w) for w in theta]))

    for sampled in rounds:
        trained = {}
        for i in sampled:
            last[i] = choose(clients[i])
            trained[i] = sgd.descend(theta[last[i]], clients[i].gradient, epochs)  # LocalUpdate
        for j in range(len(theta)):  # the mean by size; a cluster that nobody chose stays as it was
            members = [i for i in sampled if last[i] == j]
            if members:
                theta[j] = weighted_mean([trained[i] for i in members], [clients[i].size for i in members])
    tuned = [sgd.descend(theta[choose(client)], client.gradient, ft_epochs) for client in clients]
    return Trained(theta, np.stack(tuned), {"cluster": last})
