"""Clustered FL: one model, until the clients' updates disagree; then two."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pfl_lite.errors import InputError
from pfl_lite.methods.base import (
    Newcomers,
    Round,
    Traits,
    Work,
    flatten,
    number,
    pack,
    select,
    stack,
    unpack,
    word,
)
from pfl_lite.methods.clusters import best_model, bipartition, mean_by_cluster, nearer_half
from pfl_lite.models import Network, Params
from pfl_lite.models.mixing import mix


@dataclass(frozen=True)
class ClusteredFL(Newcomers):
    """Sattler et al. (2020), algorithm 2: a cell of clients splits in two when its mean update is small but single ones are not.

    A cell c splits if ||mean dW_i|| < eps1 and max ||dW_i|| > eps2 (norms over all parameters), by complete-linkage clustering
    on -cos(dW_i, dW_j); the halves are mapped back to client ids. Cells are numbered by their lowest client id.
    The method assumes full participation. Under partial participation only the participants vote; an absent client goes to the
    half whose updates are more like its last known one, a client that was never seen to the larger half. A client that never
    took part is scored by the cell with the lowest loss on its training data. Chapter: *Clusters*.
    """

    name = "cfl"
    about = "one model per cluster; clusters split where the clients' updates disagree"
    tracked = ("cluster",)
    finetune = "plain_sgd"
    traits = Traits(grows=True)

    eps1: float = number(0.4, least=0)
    """A cell may split when the norm of its mean update is below this; 0: never (FedAvg)."""
    eps2: float = number(1.6, least=0)
    """... and some update's norm is above this."""
    gamma: float = number(0.0, least=0)
    """If positive, both thresholds give way to ||mean dW_i|| / max ||dW_i|| < gamma."""
    warmup: int = number(20, least=0)
    """Rounds before the first split."""
    weights: str = word("size", "uniform")
    """`size`: clients count by their training images in means; `uniform`: all the same."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.eps1 > self.eps2:
            raise InputError(f"cfl: eps1 ({self.eps1:g}) must not be above eps2 ({self.eps2:g})")

    def init(self, start: Params, network: Network, clients: int) -> tuple[Params, Params]:
        device = next(iter(start.values())).device
        server = pack("cell", stack(start, 1)) | {
            "cluster": torch.zeros(clients, dtype=torch.int64, device=device)
        }
        return server, {"chosen": torch.full((clients,), -1, device=device)}  # a newcomer's choice, else -1

    def models(self, server: Params) -> Params:
        """One model a cell, [C, ...]."""
        return unpack("cell", server)

    def download(self, server: Params, client: Params, id: int | Tensor) -> Params:
        chosen = client["chosen"]
        return select(self.models(server), torch.where(chosen >= 0, chosen, server["cluster"][id]))

    def download_newcomer(self, server: Params, client: Params, id: int | Tensor) -> Params:
        return self.models(server)

    def local(self, received: Params, client: Params, work: Work) -> tuple[Params, Params]:
        return work.sgd(work.loss, received), client

    def aggregate(self, server: Params, uploads: Params, round: Round) -> Params:
        models, cluster, weights = self.models(server), server["cluster"], round.weights(self.weights)
        delta = {name: uploads[name] - rows for name, rows in select(models, cluster[round.ids]).items()}
        updates = flatten(delta)  # [S, P]
        memory = self.remember(server, updates, round)
        label = cluster * 2  # a split cell's second half becomes odd
        for cell in cluster.unique():
            here = cluster[round.ids] == cell  # [S]
            if round.number > self.warmup and self.splits(updates[here], weights[here]):
                second = bipartition(updates[here])  # [members], relative to this cell's participants
                label[round.ids[here]] += second.long()  # mapped back to client ids
                for i in (cluster == cell).nonzero().flatten().tolist():
                    if i not in round.ids:
                        label[i] += int(nearer_half(memory, i, updates[here], second))
        first = torch.stack([(label == one).nonzero()[0, 0] for one in label.unique()]).sort().values
        parent = cluster[first]  # of each new cell, which are numbered by their lowest client id
        cluster = (label[:, None] == label[first]).long().argmax(1)
        previous = select(models, parent)
        still = {name: torch.zeros_like(tensor) for name, tensor in previous.items()}
        step = mean_by_cluster(delta, cluster[round.ids], weights, still)
        moved = {name: tensor + step[name] for name, tensor in previous.items()}
        return pack("cell", moved) | {"cluster": cluster} | memory

    def splits(self, updates: Tensor, weights: Tensor) -> bool:
        """Whether a cell with these updates [members, P] is to split."""
        if len(updates) <= 2:
            return False
        share = (weights / weights.sum()).to(updates)
        mean, largest = mix(share, updates).norm(), updates.norm(dim=1).max()
        if self.gamma:
            return bool(mean < self.gamma * largest)
        return bool(mean < self.eps1 and largest > self.eps2)

    def remember(self, server: Params, updates: Tensor, round: Round) -> Params:
        """Every client's last update [N, P], needed as soon as one is absent."""
        clients = len(server["cluster"])
        if len(round.ids) == clients:
            return {}
        last = server.get("updates", updates.new_zeros(clients, updates.shape[1]))
        known = server.get("known", torch.zeros(clients, dtype=torch.bool, device=updates.device))
        return {
            "updates": last.index_copy(0, round.ids, updates),
            "known": known.index_fill(0, round.ids, True),
        }

    def adapt_newcomer(self, received: Params, client: Params, work: Work) -> Params:
        return {"chosen": best_model(received, work)}

    def personal(self, received: Params, client: Params, work: Work) -> Params:
        return received

    def inspect(self, server: Params, clients: Params) -> tuple[Params, Params]:
        return self.models(server), {"cluster": server["cluster"]}
