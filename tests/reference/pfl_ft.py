"""PFL-FT, Wang et al., Federated evaluation of on-device personalization, 2019: FedAvg, then each client goes on alone."""

from __future__ import annotations

from collections.abc import Sequence

from .common import SGD, Array, Client, Rounds, Trained
from .fedavg import fedavg


def pfl_ft(
    start: Array, clients: Sequence[Client], rounds: Rounds, epochs: int, sgd: SGD, ft_epochs: int = 1
) -> Trained:
    """FedAvg whose fine-tuning is part of the method: one epoch unless told otherwise (PFL-MoE's equation 6)."""
    return fedavg(start, clients, rounds, epochs, sgd, ft_epochs)
