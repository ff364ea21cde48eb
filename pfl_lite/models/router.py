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
    """r_theta_h of Wang et al. (2022): an image code and a label code an image, their mean over a client, one linear layer.

    Args:
        network: the image encoder; its last layer has d_x outputs.
        label_width: d_y, outputs of the label encoder.
        classes: K.
        decisions: E, outputs of the router.
        codes: `concat`: both codes side by side (eqs. 9-10); `product`: every image number times every label number (eq. 8);
            the label's code is then its one-hot vector less 1/K, and there is no label encoder.
        normalize: of `concat`, what has length 1: the two codes together (`joint`), or each by itself (`each`).
    """

    network: Network
    label_width: int
    classes: int
    decisions: int
    codes: str = "concat"
    normalize: str = "joint"

    @property
    def product(self) -> bool:
        """Whether the two codes are multiplied."""
        return self.codes == "product"

    def init(self, seed: int, copy: int) -> Params:
        """`x/...`: the image encoder's start number `copy`; `y/...` and `out/...`: torch's start, by its global generator."""
        start = {f"x/{name}": tensor for name, tensor in self.network.init(seed, copy=copy).items()}
        like, wide = next(iter(start.values())), len(start[f"x/{self.network.last}.bias"])
        inputs = wide * self.classes if self.product else wide + self.label_width
        parts = {} if self.product else {"y": nn.Linear(self.classes, self.label_width)}
        for part, layer in (parts | {"out": nn.Linear(inputs, self.decisions)}).items():
            for name, tensor in layer.named_parameters():
                start[f"{part}/{name}"] = tensor.detach().to(like)
        return start

    def code(self, params: Params, x: Tensor, y: Tensor, network: Network | None = None) -> Tensor:
        """Codes [b, d] of images x [b, C, H, W] with labels y [b]; `network`: the image encoder in another mode."""
        labels = y[:, None] == torch.arange(self.classes, device=y.device)  # [b, K]
        image = {name: params[f"x/{name}"] for layer in self.network.layers.values() for name in layer}
        h_x = (network or self.network)(image, x)  # [b, d_x]
        if self.product:
            h_y = labels.to(h_x) - 1 / self.classes  # [b, K]
            return (F.normalize(h_x, dim=1, eps=1e-12)[:, :, None] * h_y[:, None]).flatten(1)
        h_y = F.linear(labels.to(h_x), params["y/weight"], params["y/bias"])  # [b, d_y]
        parts = (torch.cat([h_x, h_y], 1),) if self.normalize == "joint" else (h_x, h_y)
        return torch.cat([F.normalize(h, dim=1, eps=1e-12).relu() for h in parts], 1)

    def logits(self, params: Params, code: Tensor) -> Tensor:
        """logit Pi [E] of a mean code [d], less the clients' mean and by their spread where the server has measured them."""
        if "mean" in params:
            code = (code - params["mean"]) / params["spread"]
        return F.linear(code, params["out/weight"], params["out/bias"])

    def mean(self, params: Params, x: Tensor, y: Tensor, key: Tensor, real: Tensor | None) -> Tensor:
        """The mean code [d] of a mini-batch in training mode, padding (`real` [b] is 0) left out."""
        each = self.code(params, x, y, self.network.training(key, real))
        return each.mean(0) if real is None else real @ each / real.sum().clamp_min(1)
