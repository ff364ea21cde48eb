"""FedAvg: the mean of what the clients learned."""

from __future__ import annotations

from dataclasses import dataclass

from pfl_lite.methods.base import Method, Round, Traits, Work, word
from pfl_lite.methods.weighted_mean import weighted_mean
from pfl_lite.models import Network, Params


@dataclass(frozen=True)
class FedAvg(Method):
    """McMahan et al. (2017), algorithm 1: theta <- sum_i n_i theta_i / sum_i n_i over the sampled clients.

    The means are weighted by training size over the sampled clients, as in the paper; several public re-implementations average
    without weights, which is the option `weights="uniform"`. Chapters: *Federated learning in twenty lines*, *One model or many*.
    """

    name = "fedavg"
    about = "one global model, the size-weighted mean of the clients' models"
    traits = Traits(one_model=True)

    weights: str = word("size", "uniform")
    """`size`: clients count by their training images; `uniform`: all the same."""

    def init(self, start: Params, network: Network, clients: int) -> tuple[Params, Params]:
        return start, {}

    def local(self, received: Params, client: Params, work: Work) -> tuple[Params, Params]:
        return work.sgd(work.loss, received), client

    def aggregate(self, server: Params, uploads: Params, round: Round) -> Params:
        return weighted_mean(uploads, round.weights(self.weights), server)

    def personal(self, received: Params, client: Params, work: Work) -> Params:
        return received

    def global_model(self, server: Params) -> Params | None:
        return server
