"""IFCA: k models, and every client trains the one that suits it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pfl_lite.errors import InputError
from pfl_lite.methods.base import Method, Round, RunSettings, Work, number, select
from pfl_lite.methods.clusters import best_model, mean_by_cluster
from pfl_lite.models import Network, Params
from pfl_lite.models.multi_branch import stack_branches


@dataclass(frozen=True)
class IFCA(Method):
    """Ghosh et al. (2020), algorithm 1 (model averaging): j = argmin_j f_i(theta_j) on training data, then FedAvg in cluster j.

    The k models start from k different draws (equal ones would tie for ever); a cluster without clients keeps its model. Clients
    are weighed by n_i (the authors' image code does not), and are scored under the cluster they choose on training data (the
    authors' code chooses by test loss). What is kept as `cluster` is the choice of a client's last round, -1 before it.
    Chapter: *Clusters*.
    """

    name = "ifca"
    about = "k global models; every client trains and uses the one with its lowest training loss"
    tracked = ("cluster",)

    clusters: int = number(3, least=1)
    """k, the number of models; 1 is FedAvg."""
    draw: int = number(0, least=0)
    """Which independent draw of the k starting models: a bad one ends in merged clusters, so several are worth trying."""

    def advise(self, run: RunSettings, sizes: Tensor | None = None) -> str | None:
        if self.clusters > run.clients:
            raise InputError(
                f"ifca: clusters must be at most the number of clients ({run.clients}), not {self.clusters}"
            )
        return None

    def initial(self, network: Network, clients: int, seed: int) -> Params:
        return stack_branches(
            [network.init(seed, copy=self.draw * self.clusters + j) for j in range(self.clusters)]
        )

    def init(self, start: Params, network: Network, clients: int) -> tuple[Params, Params]:
        device = next(iter(start.values())).device
        return start, {"cluster": torch.full((clients,), -1, device=device)}  # -1: has not chosen yet

    def local(self, received: Params, client: Params, work: Work) -> tuple[Params, Params]:
        chosen = {"cluster": best_model(received, work)}
        return work.sgd(work.loss, select(received, chosen["cluster"])) | chosen, chosen

    def aggregate(self, server: Params, uploads: Params, round: Round) -> Params:
        models = {name: uploads[name] for name in server}
        return mean_by_cluster(models, uploads["cluster"], round.sizes, server)

    def personal(self, received: Params, client: Params, work: Work) -> Params:
        return select(received, best_model(received, work))

    def after_local(self, upload: Params, client: Params) -> Params:
        return {name: tensor for name, tensor in upload.items() if name != "cluster"}
