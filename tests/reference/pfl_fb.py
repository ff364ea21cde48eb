"""PFL-FB, Yu et al., Salvaging federated learning by local adaptation, 2020: FedAvg, then the head alone is tuned.

A linear model is one layer: it is all head, and tuned as in PFL-FT, or all base, and frozen as FedAvg left it.
"""

from __future__ import annotations

from collections.abc import Sequence

from .common import SGD, Array, Client, Rounds, Trained
from .fedavg import fedavg


def pfl_fb(
    start: Array, clients: Sequence[Client], rounds: Rounds, epochs: int, sgd: SGD,
    ft_epochs: int = 1, head: str = "dense",
) -> Trained:  # fmt: skip
    """Head `dense`, `last` or the layer's name: the whole linear model; `none`: nothing of it."""
    return fedavg(start, clients, rounds, epochs, sgd, 0 if head == "none" else ft_epochs)
