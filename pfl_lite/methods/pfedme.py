"""pFedMe: personal models tied to the global one by a Moreau envelope."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pfl_lite.methods.base import (
    Batch,
    Carry,
    Newcomers,
    Round,
    RunSettings,
    Traits,
    Work,
    number,
    pulled,
    stack,
)
from pfl_lite.methods.weighted_mean import weighted_mean
from pfl_lite.models import Network, Params


@dataclass(frozen=True)
class PFedMe(Newcomers):
    """Dinh et al. (2020), algorithm 1: theta_i = argmin f_i(theta) + (lam/2) ||theta - w_i||^2, then w_i follows theta_i.

    Every mini-batch gives `inner_steps` gradient steps on theta and one step of the run's SGD on w_i along lam (w_i - theta).
    The scored model is theta_i, kept apart from w_i (in the authors' code both share memory, so that w_i is scored). R, the local
    steps, are the mini-batches of E epochs; the server weighs by n_i (the paper's uniform mean, the authors' code by n_i).
    A warning comes where the tie alone would make theta - w grow; lr * lam above 1 can do well if theta is brought close to w.
    A client that never took part does one client round, without upload, before it is scored. Chapter: *Two models, one tie*.
    """

    name = "pfedme"
    about = "a personal model for each client, tied to the global one by a quadratic"
    traits = Traits(fits_batch_norm=False)
    finetune = "plain_sgd"

    lam: float = number(15.0, least=0)
    """Strength lambda of the tie."""
    inner_steps: int = number(5, least=1)
    """K, gradient steps on theta a mini-batch."""
    inner_lr: float = number(0.01, above=0)
    """Their learning rate eta_p; the run's learning rate is eta, that of w_i."""
    beta: float = number(1.0, least=0)
    """How far the server moves to the clients' mean."""

    def advise(self, run: RunSettings, sizes: Tensor | None = None) -> str | None:
        inner = self.inner_lr * self.lam
        factor = abs((1 - run.lr * self.lam) * (1 - inner) ** self.inner_steps)  # of theta - w, a mini-batch
        if inner <= 2 and factor <= 1:
            return None
        much, rate = ("inner_lr", inner) if inner > 2 else ("lr", run.lr * self.lam)
        return (
            f"pfedme: {much} * lam is {rate:g}, with which the tie overshoots more at every mini-batch: "
            f"take a smaller {much}"
        )

    def init(self, start: Params, network: Network, clients: int) -> tuple[Params, Params]:
        return start, stack(start, clients)

    def local(self, received: Params, client: Params, work: Work) -> tuple[Params, Params]:
        optimizer = work.optimizer

        def one_batch(carry: Carry, batch: Batch) -> Carry:
            theta, *sgd = carry
            w = sgd[0]
            envelope = pulled(work.loss, self.lam, w)  # eq. 3
            for _ in range(self.inner_steps):
                gradient = work.grad(envelope, theta, batch)
                theta = {k: torch.sub(theta[k], gradient[k], alpha=self.inner_lr) for k in theta}
            return theta, *optimizer.step(tuple(sgd), {k: self.lam * (w[k] - theta[k]) for k in w})

        theta, w, _ = work.over_batches(one_batch, (received, *optimizer.start(received)))
        return w, theta

    def aggregate(self, server: Params, uploads: Params, round: Round) -> Params:
        mean = weighted_mean(uploads, round.sizes, server)
        return {name: (1 - self.beta) * w + self.beta * mean[name] for name, w in server.items()}

    def personal(self, received: Params, client: Params, work: Work) -> Params:
        return client

    def global_model(self, server: Params) -> Params | None:
        return server

    def inspect(self, server: Params, clients: Params) -> tuple[Params, Params]:
        return server, {}  # the client's state is its scored model
