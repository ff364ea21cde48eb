"""Floats that travel."""

from __future__ import annotations

import torch
from torch import Tensor

from pfl_lite.methods.base import Method
from pfl_lite.models import Params


def traffic(method: Method, received: Params, upload: Params, device: torch.device | str) -> Tensor:
    """Floats [2] that went down to one client and up from it in one round, as the method counts its messages.

    They are on the run's device, as a client's other answers are; filled there, because a copy would wait for it.
    """
    counts = method.traffic(received, upload)
    return torch.stack([n if isinstance(n, Tensor) else torch.full((), n, device=device) for n in counts])
