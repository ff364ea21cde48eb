"""How well a model does on one client's own images, and what a federation's mean is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pfl_lite.engine.local_sgd import LocalWork
from pfl_lite.models import Params


def score(predict: Callable[[Tensor], Tensor], work: LocalWork, split: str) -> Params:
    """Correct answers and summed cross-entropy (nats) of one client's images in a split."""
    correct = loss = torch.zeros((), dtype=torch.float64, device=work.federation.images.device)
    for batch in work.data(split):
        logits = predict(batch.x)  # [b, K]
        right = (logits.argmax(1) == batch.y).double()  # [b]
        each = F.cross_entropy(logits, batch.y, reduction="none").double()
        if batch.real is not None:
            right, each = right * batch.real, each * batch.real
        correct, loss = correct + right.sum(), loss + each.sum()
    return {"correct": correct, "loss": loss}


def mean(values: np.ndarray, sizes: np.ndarray, *, weighted: bool = False) -> float | None:
    """Mean over the clients that have images (sizes > 0), each counted once or by its size.

    A model that diverged has a loss that is not a number, and so has the mean; None where no client has images.
    """
    present = sizes > 0
    if not present.any():
        return None
    return float(np.average(values[present], weights=sizes[present] if weighted else None))
