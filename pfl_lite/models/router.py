"""FedMN's router: a network that reads images with their labels and says how likely each decision should be."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pfl_lite.models.network import Network, Params


def concrete(eps: Tensor, logits: Tensor, tau: float) -> Tensor:
    """v in (0, 1) from uniform noise and logit Pi (eq. 5); v > 1/2 with probability Pi whatever the temperature."""
    return ((eps.log() - (-eps).log1p() + logits) / tau).sigmoid()


@dataclass(frozen=True)
class Router:
    """r_theta_h of Wang et al. (2022): an image encoder and a label encoder, joined by one linear layer (eqs. 9-10).

    Args:
        network: the image encoder; its last layer has d_x outputs.
        label_width: d_y, outputs of the label encoder.
        classes: K.
        decisions: E, outputs of the router.
    """

    network: Network
    label_width: int
    classes: int
    decisions: int

    def init(self, seed: int, copy: int) -> Params:
        """`x/...`: the image encoder's start number `copy`; `y/...` and `out/...`: torch's start, by its global generator."""
        start = {f"x/{name}": tensor for name, tensor in self.network.init(seed, copy=copy).items()}
        like, wide = next(iter(start.values())), len(start[f"x/{self.network.last}.bias"])
        for part, inputs, outputs in (
            ("y", self.classes, self.label_width),
            ("out", wide + self.label_width, self.decisions),
        ):
            for name, tensor in nn.Linear(inputs, outputs).named_parameters():
                start[f"{part}/{name}"] = tensor.detach().to(like)
        return start

    def __call__(self, params: Params, x: Tensor, y: Tensor, network: Network | None = None) -> Tensor:
        """Outputs [b, E] for images x [b, C, H, W] and labels y [b]; `network`: the image encoder in another mode."""
        labels = y[:, None] == torch.arange(self.classes, device=y.device)  # [b, K]
        image = {name: params[f"x/{name}"] for layer in self.network.layers.values() for name in layer}
        h_x = (network or self.network)(image, x)  # [b, d_x]
        h_y = F.linear(labels.to(h_x), params["y/weight"], params["y/bias"])  # [b, d_y]
        z = torch.cat([F.normalize(h, dim=1, eps=1e-12).relu() for h in (h_x, h_y)], 1)
        return F.linear(z, params["out/weight"], params["out/bias"])

    def mean(self, params: Params, x: Tensor, y: Tensor, key: Tensor, real: Tensor | None) -> Tensor:
        """The mean output [E] over a mini-batch in training mode, padding (`real` [b] is 0) left out."""
        each = self(params, x, y, self.network.training(key, real))
        return each.mean(0) if real is None else real @ each / real.sum().clamp_min(1)
