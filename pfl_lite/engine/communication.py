"""Floats that travel."""

from __future__ import annotations

import torch
from torch import Tensor

from pfl_lite.methods.base import Method
from pfl_lite.models import Params


def traffic(method: Method, received: Params, upload: Params) -> Tensor:
    """Floats [2] that went down to one client and up from it in one round, as the method counts its messages."""
    return torch.stack([torch.as_tensor(floats) for floats in method.traffic(received, upload)])
