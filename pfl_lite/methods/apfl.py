"""APFL: a personal model and the global one, mixed in parameter space."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pfl_lite.methods.base import Batch, Newcomers, Traits, Work, number, pack, stack, train_gradient, unpack
from pfl_lite.methods.fedavg import FedAvg
from pfl_lite.models import Network, Params


@dataclass(frozen=True)
class APFL(FedAvg, Newcomers):
    """Deng et al. (2020), algorithm 1: vbar = alpha v_i + (1 - alpha) w_i; w_i learns by itself, v_i through vbar.

    Each step moves w_i along grad f(w_i) and v_i along alpha grad f(vbar), both taken before the step. alpha_i moves once, at the
    start of a round, along <v_i - w, grad f_i(vbar)> with the received w and the whole training data. Scored is vbar with the
    server's w. A client that never took part does one client round, without upload, before it is scored.
    Chapter: *Two models, one tie*.
    """

    name = "apfl"
    about = "a mix of the global and a personal model, in parameter space, with a learned share"
    tracked = ("alpha",)
    traits = Traits(fits_batch_norm=False)
    finetune = "plain_sgd"

    alpha: float = number(0.5, least=0, most=1)
    """Share of the personal model at first; 0 is FedAvg, 1 is Local."""
    adaptive: bool = True
    """Let every client learn its own share."""

    def init(self, start: Params, network: Network, clients: int) -> tuple[Params, Params]:
        like = next(iter(start.values()))
        return start, pack("own", stack(start, clients)) | {"alpha": like.new_full((clients,), self.alpha)}

    def local(self, received: Params, client: Params, work: Work) -> tuple[Params, Params]:
        v, alpha = unpack("own", client), client["alpha"]
        if self.adaptive:
            slope = train_gradient(interpolate(alpha, v, received), work)
            moved = torch.stack([((v[k] - received[k]) * slope[k]).sum() for k in v]).sum()
            alpha = (alpha - work.lr * moved).clamp(0, 1)

        def both(models: Params, batch: Batch) -> Params:
            w, v = unpack("w", models), unpack("v", models)
            through = work.grad(work.loss, interpolate(alpha, v, w), batch)  # grad f(vbar)
            along_v = {name: alpha * g for name, g in through.items()}
            return pack("w", work.grad(work.loss, w, batch)) | pack("v", along_v)

        trained = work.sgd(None, pack("w", received) | pack("v", v), direction=both)
        return unpack("w", trained), pack("own", unpack("v", trained)) | {"alpha": alpha}

    def personal(self, received: Params, client: Params, work: Work) -> Params:
        return interpolate(client["alpha"], unpack("own", client), received)

    def inspect(self, server: Params, clients: Params) -> tuple[Params, Params]:
        return server, {"alpha": clients["alpha"]}  # [N]


def interpolate(alpha: Tensor, v: Params, w: Params) -> Params:
    """vbar = alpha v + (1 - alpha) w."""
    return {name: alpha * v[name] + (1 - alpha) * w[name] for name in w}
