"""What labels are, and so how a network's outputs are compared with them: classes, or numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor


class Task(NamedTuple):
    """How outputs [b, K] are compared with labels [b].

    `loss(outputs, labels, reduction=...)` is what is descended, with torch's reductions. `score(outputs, labels)` [b] is float64,
    larger for better answers; its mean is called `metric` in histories and reports.
    """

    metric: str
    loss: Callable[..., Tensor]
    score: Callable[[Tensor, Tensor], Tensor]


def _squared_error(outputs: Tensor, labels: Tensor, *, reduction: str = "mean") -> Tensor:
    return F.mse_loss(outputs[:, 0], labels, reduction=reduction)


CLASSES = Task("accuracy", F.cross_entropy, lambda logits, labels: (logits.argmax(1) == labels).double())
"""Labels are int64: cross-entropy (nats), and the share of right answers."""
NUMBERS = Task("r2", _squared_error, lambda outputs, labels: 1 - (outputs[:, 0] - labels).double().square())
"""Labels are floats with mean 0 and variance 1 over all clients' training rows: squared error, and the share of that variance
which is explained (1: no error; 0: as good as the mean of all clients; below 0: worse)."""


def task_of(labels: Tensor) -> Task:
    """The task that labels set."""
    return NUMBERS if labels.is_floating_point() else CLASSES
