"""FedProx: FedAvg with a rubber band to the global model."""

from __future__ import annotations

from dataclasses import dataclass

from pfl_lite.methods.base import Work, number, pulled
from pfl_lite.methods.fedavg import FedAvg
from pfl_lite.models import Params


@dataclass(frozen=True)
class FedProx(FedAvg):
    """Li et al. (2020), eq. 2: clients minimize f_i(w) + (mu/2) ||w - theta||^2 around the received theta.

    Differences from the paper: clients are sampled uniformly and weighted by n_i (as the authors' code does); no stragglers.
    Chapters: *One model or many*, *Pulling toward the center*.
    """

    name = "fedprox"
    about = "FedAvg whose clients are pulled toward the global model"
    finetune = "plain_sgd"  # without the proximal term: the model is meant to leave theta

    mu: float = number(0.1, least=0)
    """Strength of the pull; 0 is FedAvg."""

    def local(self, received: Params, client: Params, work: Work) -> tuple[Params, Params]:
        return work.sgd(pulled(work.loss, self.mu, received), received), client
