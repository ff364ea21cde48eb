"""The one training loop: local mini-batch SGD of one client, in a form that runs alone or batched over clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pfl_lite.data.federation import Federation
from pfl_lite.methods.base import Batch, Loss
from pfl_lite.models import Network, Params
from pfl_lite.seeds import generator

EVALUATION_BATCH = 250  # large enough to be quick, small enough to stay in a processor's cache


@dataclass(frozen=True)
class LocalSettings:
    """How clients train: local epochs E, mini-batch size, learning rate, momentum, weight decay (torch's conventions)."""

    epochs: int
    batch_size: int
    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0


def epoch_orders(seed: int, round: int, client: int, phase: str, samples: int, epochs: int) -> np.ndarray:
    """The order [epochs, samples] in which one client visits its images in one phase of one round."""
    rng = generator(seed, "batches", round, client, phase)
    return np.stack([rng.permutation(samples) for _ in range(epochs)])


class LocalWork:
    """One client's round (the `Work` that methods see); subclasses say where batches come from and how to differentiate."""

    def __init__(
        self,
        network: Network,
        federation: Federation,
        settings: LocalSettings,
        seed: int,
        round: int,
        ids: list[int],
    ) -> None:
        self.network, self.federation, self.settings = network, federation, settings
        self.seed, self.round, self.ids = seed, round, ids
        self.images_trained = 0  # by all of `ids`

    def orders(self, phase: str) -> list[np.ndarray]:
        """Rows of the stored images, [E, n_i] for each of `ids`, in the order in which this phase visits them."""
        orders = []
        for i in self.ids:
            own = self.federation.train[i].cpu().numpy()  # [n_i]
            orders.append(own[epoch_orders(self.seed, self.round, i, phase, len(own), self.settings.epochs)])
        self.images_trained += sum(order.size for order in orders)
        return orders

    def stored(self, split: str) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Images, labels and every client's indices of a split."""
        data = self.federation
        if split == "test":
            return data.test_images, data.test_labels, data.test
        return data.images, data.labels, data.val if split == "val" else data.train

    def batches(self, phase: str) -> Iterator[Batch]:
        """The training mini-batches of E local epochs, in this phase's order."""
        raise NotImplementedError

    def data(self, split: str) -> Iterator[Batch]:
        """The client's images of one split in large batches, in their stored order."""
        raise NotImplementedError

    def gradient(self, loss: Loss, params: Params, batch: Batch) -> Params:
        """d loss / d params, a tensor a name."""
        raise NotImplementedError

    def loss(self, params: Params, batch: Batch) -> Tensor:
        """Mean cross-entropy of the plain network on a mini-batch (padding left out)."""
        logits = self.network(params, batch.x)  # [b, K]
        if batch.real is None:
            return F.cross_entropy(logits, batch.y)
        each = F.cross_entropy(logits, batch.y, reduction="none")  # [b]
        return (each * batch.real).sum() / batch.real.sum().clamp_min(1)

    def sgd(
        self,
        loss: Loss,
        params: Params,
        *,
        phase: str = "weights",
        lr: float | None = None,
        scale: Params | None = None,
        plain: bool = False,
        project: Callable[[Params], Params] | None = None,
    ) -> Params:
        """E local epochs of mini-batch SGD on `params` (see `pfl_lite.methods.base.Work`)."""
        rate = self.settings.lr if lr is None else lr
        momentum, decay = (0.0, 0.0) if plain else (self.settings.momentum, self.settings.weight_decay)
        velocity: Params | None = None
        for batch in self.batches(phase):
            step = self.gradient(loss, params, batch)
            if decay:
                step = {name: g + decay * params[name] for name, g in step.items()}
            if momentum:
                step = (
                    step
                    if velocity is None
                    else {name: momentum * velocity[name] + g for name, g in step.items()}
                )
                velocity = step if velocity is None else keep_idle(batch, step, velocity)
            if scale is not None:
                step = {name: scale[name] * g for name, g in step.items()}
            moved = {name: torch.sub(w, step[name], alpha=rate) for name, w in params.items()}
            if project is not None:
                moved = project(moved)
            params = keep_idle(batch, moved, params)
        return params


def keep_idle(batch: Batch, new: Params, old: Params) -> Params:
    """The new values, or the old ones where the batch was only padding."""
    if batch.active is None:
        return new
    return {name: torch.where(batch.active, tensor, old[name]) for name, tensor in new.items()}
