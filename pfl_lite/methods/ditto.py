"""Ditto: a global model, and beside it a personal one on a leash."""

from __future__ import annotations

from dataclasses import dataclass

from pfl_lite.methods.base import Newcomers, Traits, Work, number, pulled, stack
from pfl_lite.methods.fedavg import FedAvg
from pfl_lite.models import Network, Params


@dataclass(frozen=True)
class Ditto(FedAvg, Newcomers):
    """Li et al. (2021), algorithm 1: w is FedAvg's; v_i <- v_i - eta (grad f_i(v_i) + lam (v_i - w^t)), w^t as received.

    v_i trains E epochs on the mini-batches of w_i. A client that never took part does one client round, without upload, before
    it is scored. Chapter: *Two models, one tie*.
    """

    name = "ditto"
    about = "FedAvg, and for each client a second model pulled toward it"
    traits = Traits()
    finetune = "plain_sgd"

    lam: float = number(1.0, least=0)
    """Strength of the pull; 0 is Local."""

    def init(self, start: Params, network: Network, clients: int) -> tuple[Params, Params]:
        return start, stack(start, clients)

    def local(self, received: Params, client: Params, work: Work) -> tuple[Params, Params]:
        return work.sgd(work.loss, received), self.adapt_newcomer(received, client, work)

    def adapt_newcomer(self, received: Params, client: Params, work: Work) -> Params:
        return work.sgd(pulled(work.loss, self.lam, received), client)

    def personal(self, received: Params, client: Params, work: Work) -> Params:
        return client

    def inspect(self, server: Params, clients: Params) -> tuple[Params, Params]:
        return server, {}  # the client's state is its scored model
