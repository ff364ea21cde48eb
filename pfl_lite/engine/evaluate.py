"""How well models do on the clients' own images and on all test images, and what a federation's mean is."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pfl_lite.config import RunConfig
from pfl_lite.data.federation import Federation
from pfl_lite.data.task import CLASSES, task_of
from pfl_lite.engine.local_training import EVALUATION_BATCH, LocalSettings, LocalWork
from pfl_lite.engine.mapping import Mapping
from pfl_lite.errors import InputError
from pfl_lite.methods.base import Gated, Method
from pfl_lite.models import Params


class Scorer:
    """Scores models by a method's rule, on the clients of a mapping and as it computes them."""

    def __init__(self, method: Method, map: Mapping, settings: LocalSettings) -> None:
        self.method, self.map, self.settings = method, map, settings
        self.network, self.federation = map.network, map.federation
        self.everyone = torch.arange(len(self.federation), device=map.device)

    def rule(self, server: Params, model: Params) -> Callable[[Tensor], Tensor]:
        """What predicts: the client's own model, or the global one where it has none."""
        scored = model or self.method.global_model(server)
        assert scored is not None
        return partial(self.method.predict, self.network, scored)

    def sums(self, server: Params, models: Params, split: str, round: int) -> tuple[np.ndarray, np.ndarray]:
        """Summed scores and losses [N] of one model a client [N, ...] ({}: the global one) on the images of a split (`score`)."""

        def one(server: Params, model: Params, work: LocalWork) -> tuple[Params]:
            return (score(self.rule(server, model), work, split),)

        found = self.map(one, server, models, self.everyone, round, self.settings)[0]
        return found["correct"].cpu().numpy(), found["loss"].cpu().numpy()

    def shares(self, method: Gated, server: Params, models: Params, round: int) -> list[float]:
        """Mean of a gate's `share` over each client's own test images, one model a client [N, ...]; NaN where it has none."""

        def one(server: Params, model: Params, work: LocalWork) -> tuple[Params]:
            total = torch.zeros((), dtype=torch.float64, device=self.everyone.device)
            for batch in work.data("test"):
                each = method.share(self.network, model, batch.x).double()
                total = total + (each if batch.real is None else each * batch.real).sum()
            return ({"share": total},)

        total = self.map(one, server, models, self.everyone, round, self.settings)[0]["share"].cpu()
        return (total / self.federation.test_sizes.cpu()).tolist()

    def whole_test(self, server: Params, models: Params, round: int) -> dict[str, np.ndarray]:
        """Two accuracies of every client's model ({}: the global one) on all test images (see `whole_test`)."""
        data = self.federation

        def one(server: Params, model: Params, work: LocalWork) -> tuple[Params]:
            rule = self.rule(server, model)
            return ({"right": right_by_class(rule, data.test_images, data.test_labels, data.classes)},)

        ids = self.everyone if models else self.everyone[:1]  # the global model once
        right = self.map(one, server, models, ids, round, self.settings)[0]["right"].cpu().numpy()
        held = torch.bincount(data.test_labels, minlength=data.classes).cpu().numpy()
        every = np.broadcast_to(right, (len(data), data.classes))
        return whole_test(every, held, data.class_counts("train").numpy())


def score(predict: Callable[[Tensor], Tensor], work: LocalWork, split: str) -> Params:
    """Summed scores (of classes: correct answers) and losses (of classes: nats) of one client's images in a split."""
    correct = loss = torch.zeros((), dtype=torch.float64, device=work.federation.images.device)
    for batch in work.data(split):
        outputs = predict(batch.x)  # [b, K]
        right = task_of(batch.y).score(outputs, batch.y)  # [b]
        each = batch.losses(outputs).double()
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
    the classes occur among the client's training images. Classes without test images are left out, and the shares renormalized.

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


def check_whole_test(federation: Federation, config: RunConfig) -> None:
    """Raise an InputError where a model cannot be scored on all test images of a federation."""
    if task_of(federation.labels) is not CLASSES:
        raise InputError("whole_test counts answers by class, but these labels are numbers: leave it out")
    if federation.test_images is federation.images or not len(federation.test_images):
        raise InputError(
            f"whole_test needs test images apart from the training images, which {config.data} lacks here"
        )
    if federation.relabeled:
        raise InputError(
            "whole_test needs labels that mean the same to all clients, but some of these see labels changed: "
            "leave it out, or use a partition that changes none"
        )
