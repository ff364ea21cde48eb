"""FedProx: FedAvg with a rubber band to the global model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pfl_lite.methods.base import Work, check_at_least, pulled
from pfl_lite.methods.fedavg import FedAvg
from pfl_lite.models import Params


@dataclass(frozen=True)
class FedProx(FedAvg):
    """Li et al. (2020), eq. 2: clients minimise f_i(w) + (mu/2) ||w - theta||^2 around the received theta.

    Differences from the paper: clients are sampled uniformly and weighted by n_i (as the authors' code does); no stragglers.
    Chapters: *One model or many*, *Pulling towards the centre*.
    """

    name: ClassVar[str] = "fedprox"
    about: ClassVar[str] = "FedAvg whose clients are pulled towards the global model"
    finetune: ClassVar[str] = "plain_sgd"  # without the proximal term: the model is meant to leave theta

    mu: float = 0.1
    """Strength of the pull; 0 is FedAvg."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self.name, mu=(self.mu, 0))

    def local(self, received: Params, client: Params, work: Work) -> tuple[Params, Params]:
        return work.sgd(pulled(work.loss, self.mu, received), received), client
