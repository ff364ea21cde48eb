"""FedRep, Algorithm 1 of Collins et al., Exploiting shared representations for personalized federated learning, 2021.

A linear model is one layer: it is all head, private to its client, or all base, shared by everybody.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .common import SGD, Array, Client, Rounds, Trained, weighted_mean


def fedrep(
    start: Array, clients: Sequence[Client], rounds: Rounds, epochs: int, sgd: SGD, ft_epochs: int = 0,
    ft_mode: str = "own_update", head: str = "last", head_epochs: int = 10,
) -> Trained:  # fmt: skip
    """First the head on the received base, then the base under that head; the base is averaged."""
    private = head != "none"
    base = start  # phi
    heads = [start for _ in clients]  # h_i of every client

    def client_round(f: Client, w: Array, epochs: int) -> Array:  # one of the two phases has nothing to train
        return sgd.descend(w, f.gradient, head_epochs if private else epochs)

    for sampled in rounds:
        uploads = []
        for i in sampled:
            trained = client_round(clients[i], heads[i] if private else base, epochs)
            if private:
                heads[i] = trained
            else:
                uploads.append(trained)
        if uploads:
            base = weighted_mean(uploads, [clients[i].size for i in sampled])
    seen = {i for sampled in rounds for i in sampled}
    if private:  # who was never there trains its head now
        heads = [h if i in seen else client_round(clients[i], h, epochs) for i, h in enumerate(heads)]
    models = heads if private else [base for _ in clients]
    tuned = []
    for f, w in zip(clients, models, strict=True):
        again = ft_epochs > 0 and ft_mode == "own_update"  # both phases once more; or plain SGD
        tuned.append(client_round(f, w, ft_epochs) if again else sgd.descend(w, f.gradient, ft_epochs))
    return Trained(None if private else base, np.stack(tuned))
