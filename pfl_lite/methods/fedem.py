"""FedEM: every client is a mixture of the same few models."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pfl_lite.errors import InputError
from pfl_lite.methods.base import (
    Batch,
    Newcomers,
    RunSettings,
    Traits,
    Work,
    number,
    select,
    stack,
    train_mean,
)
from pfl_lite.methods.clusters import losses_of_all, training_losses
from pfl_lite.models import Network, Params
from pfl_lite.models.multi_branch import stack_branches


@dataclass(frozen=True)
class FedEM(Newcomers):
    """Marfoq et al. (2021), algorithm 1: client i's labels come from sum_m pi_im p(y | x, theta_m).

    E-step: q_sm proportional to pi_im exp(-loss_m(s)) on every training image s, pi_im = mean_s q_sm. M-step: each component
    trains E epochs on its q-weighted loss. Probabilities are mixed, not logits. Responsibilities are looked up by the image's
    place, so that they stay with their images under any shuffle. A client that never took part takes one E-step from uniform
    weights before it is scored. Chapter: *Mixtures*.
    """

    name = "fedem"
    about = "a few shared models, mixed by each client's own weights"
    tracked = ("mixture",)
    traits = Traits(needs_classes=True)

    components: int = number(3, least=1)
    """M, the number of models; 1 is FedAvg."""

    def advise(self, run: RunSettings, sizes: Tensor | None = None) -> str | None:
        if run.ft_epochs:
            raise InputError(
                "fedem scores a mixture, which has no single model to fine-tune: leave ft_epochs at 0"
            )
        return None

    def initial(self, network: Network, clients: int, seed: int) -> Params:
        return stack_branches([network.init(seed, copy=m) for m in range(self.components)])

    def init(self, start: Params, network: Network, clients: int) -> tuple[Params, Params]:
        like = next(iter(start.values()))
        return start, stack({"mixture": like.new_full((self.components,), 1 / self.components)}, clients)

    def responsibilities(self, models: Params, client: Params, work: Work) -> Tensor:
        """E-step: q [n, M] of every training image of the client."""
        return (client["mixture"].log() - training_losses(models, work)).softmax(1)

    def local(self, received: Params, client: Params, work: Work) -> tuple[Params, Params]:
        q = self.responsibilities(received, client, work)  # [n, M]

        def weighted_loss(models: Params, batch: Batch) -> Tensor:
            share = q[batch.place]  # [b, M]
            return batch.mean((share * losses_of_all(work.training(batch), models, batch)).sum(1))

        return work.sgd(weighted_loss, received), {"mixture": train_mean(q, work)}

    def adapt_newcomer(self, received: Params, client: Params, work: Work) -> Params:
        return {"mixture": train_mean(self.responsibilities(received, client, work), work)}

    def personal(self, received: Params, client: Params, work: Work) -> Params:
        return received | client

    def predict(self, network: Network, model: Params, x: Tensor) -> Tensor:
        """log sum_m pi_m p_m(y | x): log-probabilities, whose softmax are the mixed probabilities [b, K]."""
        mixture = model["mixture"]
        components = {name: tensor for name, tensor in model.items() if name != "mixture"}
        each = [network(select(components, m), x).log_softmax(1) for m in range(self.components)]
        return torch.logsumexp(torch.stack(each) + mixture.log()[:, None, None], 0)
