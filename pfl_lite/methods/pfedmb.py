"""pFedMB: every layer has B branches; each client learns how much of each it wants."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pfl_lite.methods.base import Batch, Method, Round, Traits, Work, number, stack, word
from pfl_lite.methods.weighted_mean import weighted_mean
from pfl_lite.models import Network, Params
from pfl_lite.models.multi_branch import collapse, stack_branches, weights_by_name


def project_onto_simplex(a: Tensor) -> Tensor:
    """Euclidean projection of each row of a [..., B] onto the probability simplex."""
    a = a - a.amax(-1, keepdim=True)  # the projection does not mind, and 1 is not lost beside large numbers
    descending = a.sort(-1, descending=True).values
    rank = torch.arange(1, a.shape[-1] + 1, device=a.device, dtype=a.dtype)
    threshold = (descending.cumsum(-1) - 1) / rank  # [..., B]
    last = (descending > threshold).sum(-1, keepdim=True) - 1  # how many entries stay positive, minus one
    # last is -1 in a run that diverged to NaN, and stays so
    return (a - threshold.gather(-1, last.clamp_min(0))).clamp_min(0)


@dataclass(frozen=True)
class PFedMB(Method):
    """Mori et al. (2023): client i's layer is W_l = sum_b alpha^i_{l,b} W_{l,b} (eq. 1); branches are shared, alpha is not.

    A round is E epochs on alpha (eq. 3), then E epochs on W (eq. 4): twice the local work of FedAvg at equal E. The server
    averages branch b with weights n_i alpha^i_{l,b} (eq. 5) or n_i (eq. 6, the ablation), over the sampled clients.
    Open points of the paper and what is done here: biases are branched; the simplex is kept by a softmax or by projection after
    every step; alpha's steps use neither momentum nor weight decay. Chapters: *pFedMB*, *We repeat a paper*.
    """

    name = "pfedmb"
    about = "shared branches in every layer, mixed by each client's own weights"
    tracked = ("alpha",)
    traits = Traits(fits_batch_norm=False)

    branches: int = number(5, least=1)
    """B, the number of branches of every layer."""
    aggregation: str = word("alpha", "plain")
    """`alpha`: branches averaged with weights n_i alpha (eq. 5); `plain`: with n_i (eq. 6)."""
    alpha_scope: str = word("layer", "shared")
    """`layer`: one alpha a layer [L, B]; `shared`: one for all layers [B] (section V-B of the paper)."""
    simplex: str = word("softmax", "projection")
    """How alpha stays a convex combination: `softmax` of logits, or `projection` after every step."""
    alpha_lr: float = number(0.1, least=0)
    """Learning rate of alpha (of its logits under softmax); the two ways need different ones."""
    rate: str = word("plain", "effective")
    """`plain`: the run's learning rate; `effective`: divided by sum_b alpha_b^2, so that the mixed layer moves at that rate."""

    def initial(self, network: Network, clients: int, seed: int) -> Params:
        # branches must differ: equal branches under equal alpha would stay equal for ever
        return stack_branches([network.init(seed, copy=b) for b in range(self.branches)])

    def init(self, start: Params, network: Network, clients: int) -> tuple[Params, Params]:
        shape = (self.branches,) if self.alpha_scope == "shared" else (len(network.layers), self.branches)
        like = next(iter(start.values()))  # in the run's own precision from the first digit on
        return start, stack(
            {"alpha": like.new_full(shape, 0.0 if self.simplex == "softmax" else 1 / self.branches)}, clients
        )

    def mixture(self, client: Params) -> Tensor:
        """The client's weights on the simplex; what is stored under `alpha` are their logits if `simplex` is `softmax`."""
        return client["alpha"].softmax(-1) if self.simplex == "softmax" else client["alpha"]

    def back_to_simplex(self, client: Params) -> Params:
        """What follows every step on alpha: a projection, or logits kept where the softmax does not underflow."""
        alpha = client["alpha"]
        return {"alpha": alpha.clamp(-30, 30) if self.simplex == "softmax" else project_onto_simplex(alpha)}

    def local(self, received: Params, client: Params, work: Work) -> tuple[Params, Params]:
        def loss_of_alpha(a: Params, batch: Batch) -> Tensor:
            return work.loss(collapse(received, self.mixture(a)), batch)

        client = work.sgd(  # eq. 3
            loss_of_alpha, client, phase="alpha", lr=self.alpha_lr, plain=True, project=self.back_to_simplex
        )
        alpha = self.mixture(client)

        def loss_of_branches(w: Params, batch: Batch) -> Tensor:
            return work.loss(collapse(w, alpha), batch)

        scale = None
        if self.rate == "effective":  # one step moves the mixed layer by -lr * sum_b alpha_b^2 * gradient
            mix = weights_by_name(alpha, list(received), shared=self.alpha_scope == "shared")
            scale = {name: 1 / (weights**2).sum(-1) for name, weights in mix.items()}
        return work.sgd(loss_of_branches, received, scale=scale) | {"alpha": alpha}, client  # eq. 4

    def aggregate(self, server: Params, uploads: Params, round: Round) -> Params:
        branches = {name: uploads[name] for name in server}  # [S, B, ...]
        if self.aggregation == "plain":
            return weighted_mean(branches, round.sizes, server)  # eq. 6
        mix = weights_by_name(uploads["alpha"], list(server), shared=self.alpha_scope == "shared")
        weights = {name: round.sizes[:, None] * alpha for name, alpha in mix.items()}  # [S, B] each
        return weighted_mean(branches, weights, server)  # eq. 5

    def personal(self, received: Params, client: Params, work: Work) -> Params:
        return collapse(received, self.mixture(client))

    def after_local(self, upload: Params, client: Params) -> Params:
        return collapse({name: tensor for name, tensor in upload.items() if name != "alpha"}, upload["alpha"])

    def inspect(self, server: Params, clients: Params) -> tuple[Params, Params]:
        return server, {"alpha": self.mixture(clients)}  # [N, B] or [N, L, B]
