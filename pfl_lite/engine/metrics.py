"""How well a model does on one client's own images, and what a federation's mean is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pfl_lite.engine.local_sgd import EVALUATION_BATCH, LocalWork
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


def right_by_class(
    predict: Callable[[Tensor], Tensor], images: Tensor, labels: Tensor, classes: int
) -> Tensor:
    """How many of the given images [n, C, H, W] of every class are answered correctly: [K]."""
    right = torch.zeros(classes, dtype=torch.float64, device=images.device)
    size = EVALUATION_BATCH[images.device.type]
    for x, y in zip(images.split(size), labels.split(size), strict=True):
        correct = predict(x).argmax(1) == y  # [b]
        right = right + (F.one_hot(y, classes) * correct[:, None]).sum(0)
    return right


def whole_test(right: np.ndarray, held: np.ndarray, trained: np.ndarray) -> dict[str, np.ndarray]:
    """Two accuracies of every client's model on all test images (Yu et al. 2020, Guo et al. 2021): a fraction each, [N].

    `global_test` is the share of correct answers, `local_test` sum_c p_i(c) acc_i(c): accuracies by class, weighted by how often
    the classes occur among the client's training images. Classes without test images are left out, and the shares renormalised.

    Args:
        right: correct answers of each model in each class [N, K].
        held: test images of each class [K].
        trained: training images of each class at each client [N, K].
    """
    shares = trained * (held > 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        by_class = np.where(held > 0, right / held, 0)
        local = (shares * by_class).sum(1) / shares.sum(1)
    return {"global_test": right.sum(1) / held.sum(), "local_test": local}


def mean(values: np.ndarray, sizes: np.ndarray, *, weighted: bool = False) -> float | None:
    """Mean over the clients that have images (sizes > 0), each counted once or by its size.

    A model that diverged has a loss that is not a number, and so has the mean; None where no client has images.
    """
    present = sizes > 0
    if not present.any():
        return None
    return float(np.average(values[present], weights=sizes[present] if weighted else None))
