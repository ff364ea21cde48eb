"""SCAFFOLD: control variates that undo the clients' drift."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pfl_lite.methods.base import Batch, Round, RunSettings, Traits, Work, number, pack, stack, unpack, word
from pfl_lite.methods.fedavg import FedAvg
from pfl_lite.methods.weighted_mean import weighted_mean
from pfl_lite.models import Network, Params


@dataclass(frozen=True)
class Scaffold(FedAvg):
    """Karimireddy et al. (2020), algorithm 1: y <- y - eta (grad f_i(y) + c - c_i), option II: c_i+ = c_i - c + (w - y)/(K eta).

    Means are uniform as in the paper; c moves by S/N of the mean change, with the weights of the model's mean. With momentum or
    weight decay (w - y) / (K eta) is no longer the mean gradient. Chapter: *Pulling toward the center*.
    """

    name = "scaffold"
    about = "FedAvg whose clients correct their steps by control variates"
    traits = Traits(one_model=True, fits_batch_norm=False)
    finetune = "plain_sgd"

    weights: str = word("uniform", "size")
    """`size`: clients count by their training images; `uniform`: all the same."""
    server_lr: float = number(1.0, above=0)
    """eta_g, how far the server moves along the mean change."""
    control: str = word("on", "off")
    """`off`: no correction, which is FedAvg."""

    def advise(self, run: RunSettings, sizes: Tensor | None = None) -> str | None:
        if self.control == "off" or not run.momentum:
            return None
        return (
            f"scaffold: with momentum {run.momentum:g} the control variates come out up to {1 / (1 - run.momentum):g} times too "
            "long, and training may diverge: momentum 0 is what the method is made for"
        )

    def init(self, start: Params, network: Network, clients: int) -> tuple[Params, Params]:
        if self.control == "off":
            return start, {}
        zeros = {name: torch.zeros_like(tensor) for name, tensor in start.items()}
        return start | pack("control", zeros), pack("control", stack(zeros, clients))

    def local(self, received: Params, client: Params, work: Work) -> tuple[Params, Params]:
        c, own = unpack("control", received), unpack("control", client)
        w = self.weights_of(received)

        def corrected(y: Params, batch: Batch) -> Params:
            gradient = work.grad(work.loss, y, batch)
            return {name: g + c[name] - own[name] for name, g in gradient.items()} if c else gradient

        y = work.sgd(None, w, direction=corrected)
        change = {name: y[name] - w[name] for name in w}
        new = {name: own[name] - c[name] - change[name] / work.steps / work.lr for name in c}  # option II
        drift = {name: new[name] - own[name] for name in c}
        return change | pack("control", drift), pack("control", new)

    def aggregate(self, server: Params, uploads: Params, round: Round) -> Params:
        still = {name: torch.zeros_like(tensor) for name, tensor in server.items()}
        mean = weighted_mean(uploads, round.weights(self.weights), still)
        rate = {name: self.server_lr for name in self.weights_of(server)}
        share = len(round.ids) / round.clients  # c moves by S/N
        return {name: tensor + rate.get(name, share) * mean[name] for name, tensor in server.items()}

    def weights_of(self, server: Params) -> Params:
        """The model without the control variate."""
        return {name: tensor for name, tensor in server.items() if not name.startswith("control/")}

    def personal(self, received: Params, client: Params, work: Work) -> Params:
        return self.weights_of(received)

    def global_model(self, server: Params) -> Params | None:
        return self.weights_of(server)

    def inspect(self, server: Params, clients: Params) -> tuple[Params, Params]:
        return self.weights_of(server), clients
