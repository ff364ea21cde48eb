"""Sums of parameters and of losses, which a GPU must not round as it may round the products of a layer."""

from __future__ import annotations

import torch
from torch import Tensor


def mix(weights: Tensor, x: Tensor) -> Tensor:
    """sum_b a_b x_b of weights [B] and tensors [B, ...]: a matrix product on a CPU, a sum elsewhere.

    A GPU computes matrix products with TF32's eleven bits unless it is told not to. For activations that is a choice; parameters
    that are mixed, stored and mixed again would lose in every round what a step of training changes.
    """
    a = weights.to(x)
    if x.device.type == "cpu":
        return torch.tensordot(a, x, dims=1)
    return (a.reshape(-1, *[1] * (x.dim() - 1)) * x).sum(0)
