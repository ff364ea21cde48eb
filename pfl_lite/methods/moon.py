"""MOON: features stay close to the global model's and away from the client's last ones."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pfl_lite.methods.base import Batch, Work, number, pack, stack, unpack
from pfl_lite.methods.fedavg import FedAvg
from pfl_lite.models import Network, Params
from pfl_lite.models.network import torch_seeded


@dataclass(frozen=True)
class Moon(FedAvg):
    """Li et al. (2021), algorithm 1: f_i(w) + mu * -log(e^{z.z_glob/T} / (e^{z.z_glob/T} + e^{z.z_prev/T})), "." the cosine.

    z is the output of a projection head of two layers between the features and the classifier, z_glob the received model's,
    z_prev that of the client's model after its last participation (the received one the first time). With `projection=0` z are
    the model's own features, as in several public re-implementations. Chapter: *Pulling toward the center*.
    """

    name = "moon"
    about = "FedAvg whose clients keep their features near the global model's"
    finetune = "plain_sgd"

    mu: float = number(5.0, least=0)
    """Weight of the contrastive term."""
    temperature: float = number(0.5, above=0)
    """T, by which similarities are divided."""
    projection: int = number(256, least=0)
    """Width of the projection head; 0: none, the contrast is on the model's own features."""

    def initial(self, network: Network, clients: int, seed: int) -> Params:
        plain = network.init(seed)
        if not self.projection:
            return plain
        classes = network.classes  # refuses a last layer that is not linear
        width = plain[f"{network.last}.weight"].shape[1]
        with torch_seeded(seed, "projection head"):
            layers = {
                "projection1": nn.Linear(width, self.projection),
                "projection2": nn.Linear(self.projection, self.projection),
                network.last: nn.Linear(self.projection, classes),
            }
        extra = {
            f"{name}.{part}": t for name, layer in layers.items() for part, t in layer.named_parameters()
        }
        like = next(iter(plain.values()))
        return plain | {name: tensor.detach().to(like) for name, tensor in extra.items()}

    def init(self, start: Params, network: Network, clients: int) -> tuple[Params, Params]:
        seen = torch.zeros(clients, dtype=torch.bool, device=next(iter(start.values())).device)
        return start, pack("previous", stack(start, clients)) | {"seen": seen}

    def project(self, network: Network, w: Params, x: Tensor) -> Tensor:
        """z [b, p], what the classifier reads."""
        h = network.features(w, x)  # [b, d]
        if not self.projection:
            return h
        h = F.relu(F.linear(h, w["projection1.weight"], w["projection1.bias"]))  # [b, p]
        return F.linear(h, w["projection2.weight"], w["projection2.bias"])  # [b, p]

    def classify(self, network: Network, w: Params, z: Tensor) -> Tensor:
        """Logits [b, K] from z [b, p]."""
        return F.linear(z, w[f"{network.last}.weight"], w[f"{network.last}.bias"])

    def local(self, received: Params, client: Params, work: Work) -> tuple[Params, Params]:
        previous = {
            name: torch.where(client["seen"], w, received[name])
            for name, w in unpack("previous", client).items()
        }

        def loss(w: Params, batch: Batch) -> Tensor:
            z = self.project(work.training(batch), w, batch.x)
            near, far = (self.project(work.network, model, batch.x) for model in (received, previous))
            pull = F.cosine_similarity(z, near) / self.temperature  # [b]
            push = F.cosine_similarity(z, far) / self.temperature  # [b]
            contrast = F.softplus(push - pull)  # -log(e^pull / (e^pull + e^push))
            return batch.loss(self.classify(work.network, w, z)) + self.mu * batch.mean(contrast)

        trained = work.sgd(loss, received)
        return trained, pack("previous", trained) | {"seen": torch.ones_like(client["seen"])}

    def predict(self, network: Network, model: Params, x: Tensor) -> Tensor:
        return self.classify(network, model, self.project(network, model, x))

    def to_module(self, network: Network, model: Params) -> nn.Module:
        return super().to_module(network, model) if self.projection else network.to_module(model)

    def inspect(self, server: Params, clients: Params) -> tuple[Params, Params]:
        return server, {}  # the previous models are large and are no result
