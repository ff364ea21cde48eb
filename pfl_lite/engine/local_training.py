"""The one training loop: local mini-batch SGD of one client, in a form that runs alone or batched over clients."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pfl_lite.data.federation import Federation
from pfl_lite.engine.augment import crop_flip, random_crops
from pfl_lite.errors import InputError
from pfl_lite.methods.base import SGD, Batch, Carry, Loss, Work
from pfl_lite.models import Network, Params
from pfl_lite.models.train_mode import fold
from pfl_lite.seeds import generator

EVALUATION_BATCH = {"cpu": 250, "cuda": 1000}
"""Images a client that are looked at together: on a CPU few enough to stay in its cache, on a GPU enough to keep it busy."""


@dataclass(frozen=True)
class LocalSettings:
    """How clients train: local epochs E, mini-batch size, learning rate, momentum, weight decay (torch's conventions).

    `rounds`: T, of the whole run. `needs_rng_key`: mini-batches carry a key, because dropout asks for it. `augment`: what happens
    to the images of a mini-batch, `none` or `crop_flip`.
    """

    epochs: int
    batch_size: int
    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    rounds: int = 1
    needs_rng_key: bool = False
    augment: str = "none"


def on_device(array: np.ndarray, device: torch.device | str) -> Tensor:
    """An array as a tensor on a device; a GPU fetches it while the processor goes on."""
    tensor = torch.from_numpy(array)
    return tensor if torch.device(device).type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def epoch_orders(seed: int, round: int, client: int, phase: str, samples: int, epochs: int) -> np.ndarray:
    """The order [epochs, samples] in which one client visits its images in one phase of one round."""
    rng = generator(seed, "batches", round, client, phase)
    orders = [rng.permutation(samples) for _ in range(epochs)]
    return np.array(orders, dtype=np.int64).reshape(epochs, samples)  # a phase may have no epochs


class LocalWork(Work):
    """One client's round (the `Work` that methods see); subclasses say where batches come from and how to differentiate."""

    slot: int | Tensor
    """The client's place among `ids`."""

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
        self.lr: float | Tensor = settings.lr
        self.images_trained = 0  # by all of `ids`

    @property
    def id(self) -> int | Tensor:
        """The client's number."""
        raise NotImplementedError

    def used(self, samples: int) -> int:
        """How many of its images a client visits in an epoch: all; for batch norm only full mini-batches, if there is one."""
        full = samples // self.settings.batch_size * self.settings.batch_size
        return full if full and self.network.batch_norm else samples

    def steps_of(self, client: int) -> int:
        """How many mini-batches a client's E local epochs have."""
        return self.settings.epochs * -(
            -self.used(len(self.federation.train[client])) // self.settings.batch_size
        )

    @property
    def rounds(self) -> int:
        return self.settings.rounds

    def uniform(self, purpose: str, shape: tuple[int, ...], *, per: str = "round") -> Tensor:
        # [S, *shape], a stream a client, the same whichever other clients draw; [S, K, *shape] per `batch`
        when = () if per == "run" else (self.round,)
        shape = (max(map(self.steps_of, self.ids)), *shape) if per == "batch" else shape
        numbers = np.array([generator(self.seed, purpose, *when, i).random(shape) for i in self.ids])
        return on_device(numbers, self.network.device).to(self.network.dtype)[self.slot]

    def keys(self, phase: str, epochs: int) -> Tensor | None:
        """Keys [S, E] of the epochs of one phase, from which those of their mini-batches are folded; None if not needed."""
        if not self.settings.needs_rng_key:
            return None
        streams = (generator(self.seed, "dropout", self.round, i, phase) for i in self.ids)
        keys = np.array([rng.integers(2**63, size=epochs) for rng in streams])
        return on_device(keys, self.federation.images.device)

    def crops(self, phase: str, orders: list[np.ndarray]) -> Tensor | None:
        """Where the images of one phase are cut out and whether they are mirrored [S, E, n, 3]; None without augmentation."""
        if self.settings.augment == "none":
            return None
        crops = np.zeros((len(orders), len(orders[0]), max(order.shape[1] for order in orders), 3), np.int64)
        for mine, i, order in zip(crops, self.ids, orders, strict=True):
            rng = generator(self.seed, "augment", self.round, i, phase)
            mine[:, : order.shape[1]] = random_crops(rng, order.shape)
        return on_device(crops, self.federation.images.device)

    def black(self) -> Tensor:
        """The value of a black pixel after normalization [C]."""
        images, card = self.federation.images, self.federation.card
        mean, std = (torch.tensor(numbers, dtype=images.dtype) for numbers in (card.mean, card.std))
        return on_device((-mean / std).numpy(), images.device)

    def orders(self, phase: str, epochs: int | None, part: str) -> list[np.ndarray]:
        """Places in the clients' training images, [E, n_i] for each of `ids`, in the order in which a phase visits them."""
        epochs = self.settings.epochs if epochs is None else epochs
        orders = []
        for i in self.ids:
            kept = part_of(self.seed, i, len(self.federation.train[i]), part)
            order = epoch_orders(self.seed, self.round, i, phase, len(kept), epochs)
            order = order[:, : self.used(len(kept))]
            orders.append(order if part == "all" else kept[order])
            self.images_trained += order.size
        return orders

    def stored(self, split: str) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Images, labels and every client's indices of a split."""
        data = self.federation
        if split == "test":
            return data.test_images, data.test_labels, data.test
        return data.images, data.labels, data.val if split == "val" else data.train

    def batches(
        self, phase: str = "weights", epochs: int | None = None, part: str = "all"
    ) -> Iterable[Batch]:
        """The training mini-batches of all local epochs in one row."""
        return itertools.chain.from_iterable(self.epochs(phase, epochs, part))

    # ---- local training -------------------------------------------------------------------------------------------

    def over_batches(
        self,
        step: Callable[..., Carry],
        carry: Carry,
        *streams: Iterable[Batch],
        phase: str | tuple[str, ...] = "weights",
        epochs: int | None = None,
        part: str = "all",
    ) -> Carry:
        """The one training loop (see `Work`); steps of padding alone leave the carry as it is."""
        if not streams:
            phases = (phase,) if isinstance(phase, str) else phase
            streams = tuple(self.batches(name, epochs, part) for name in phases)
        return self.reduced(step, carry, streams)

    def reduced(self, step: Callable[..., Carry], carry: Carry, streams: Sequence[Iterable[Batch]]) -> Carry:
        """`over_batches` of given streams."""
        for batches in zip(*streams, strict=True):
            carry = self.moved(step, carry, batches)
        return carry

    @staticmethod
    def moved(step: Callable[..., Carry], carry: Carry, batches: Sequence[Batch]) -> Carry:
        """`step(carry, *batches)`, or the carry as it is where the mini-batches are padding alone."""
        new, active = step(carry, *batches), batches[0].active
        return new if active is None else keep_idle(active, new, carry)

    def fixed(self, function: Callable[[Batch], Tensor]) -> Callable[[Batch], Tensor]:
        if self.settings.augment != "none":
            return function
        known = torch.cat([function(batch) for batch in self.data("train")])  # [n, ...]
        return lambda batch: known[batch.place]

    @property
    def optimizer(self) -> SGD:
        return SGD(self.settings.momentum, self.settings.weight_decay, self.lr, self.network.batch_norm)

    # ---- looking at one's own data --------------------------------------------------------------------------------

    def mean_loss(self, params: Params, split: str) -> Tensor:
        """Mean loss over a split's images; 0 without any."""
        total = torch.zeros((), dtype=self.network.dtype, device=self.network.device)
        for batch in self.data(split):
            each = batch.losses(self.network(params, batch.x))
            total = total + (each.sum() if batch.real is None else (each * batch.real).sum())
        size = self.size(split)
        return total / (size.clamp_min(1) if isinstance(size, Tensor) else max(size, 1))


class LoopWork(LocalWork):
    """The work of one client by itself."""

    slot = 0

    @property
    def id(self) -> int:
        return self.ids[0]

    def size(self, split: str) -> int:
        return len(getattr(self.federation, split)[self.id])

    @property
    def steps(self) -> int:
        return self.steps_of(self.id)

    def epochs(
        self, phase: str = "weights", epochs: int | None = None, part: str = "all"
    ) -> Iterator[Iterator[Batch]]:
        orders = self.orders(phase, epochs, part)
        keys, crops = self.keys(phase, len(orders[0])), self.crops(phase, orders)
        for epoch, order in enumerate(torch.from_numpy(orders[0]).to(self.federation.images.device)):
            mine = (None if each is None else each[0, epoch] for each in (keys, crops))
            yield self.batches_of(order, *mine)

    def batches_of(self, order: Tensor, key: Tensor | None, crops: Tensor | None) -> Iterator[Batch]:
        """The mini-batches of an epoch that visits the client's training images in this order [n_i], with keys of their own from
        the epoch's, and images cut out at `crops` [n_i, 3]."""
        images, labels, own = self.stored("train")
        cut = None if crops is None else (crops, self.black())
        for step, start in enumerate(range(0, len(order), self.settings.batch_size)):
            now = slice(start, start + self.settings.batch_size)
            rows = own[self.id][order[now]]
            x = images[rows] if cut is None else crop_flip(images[rows], cut[0][now], cut[1])
            yield Batch(x, labels[rows], order[now], key=None if key is None else fold(key, step))

    def data(self, split: str) -> Iterator[Batch]:
        images, labels, indices = self.stored(split)
        mine = indices[self.id]
        for place in torch.arange(len(mine), device=mine.device).split(EVALUATION_BATCH[mine.device.type]):
            if len(place):
                rows = mine[place]
                yield Batch(images[rows], labels[rows], place)

    def grad(self, loss: Loss, params: Params, batch: Batch) -> Params:
        nested = torch.is_grad_enabled()  # inside another loss: stay on its graph
        with torch.enable_grad():
            leaves = params if nested else {name: w.detach().requires_grad_() for name, w in params.items()}
            value = loss(leaves, batch)
            if value.dim():
                raise InputError(
                    f"a loss must be one number, not {list(value.shape)}: batch.mean(each) is the mean over the images"
                )
            values = torch.autograd.grad(
                value, list(leaves.values()), create_graph=nested, materialize_grads=True
            )
        return dict(zip(leaves, values, strict=True))

    def held_out_loss(self, params: Params) -> Tensor:
        return self.mean_loss(params, "val" if self.size("val") else "train")


def part_of(seed: int, client: int, samples: int, part: str) -> np.ndarray:
    """Sorted places of a part of a client's training images: `all`, or the fixed `gate` (a quarter) and `per` (the rest)."""
    if part == "all":
        return np.arange(samples)
    shuffled = generator(seed, "parts", client).permutation(samples)
    return np.sort(shuffled[: samples // 4] if part == "gate" else shuffled[samples // 4 :])


def keep_idle(active: Tensor, new: Carry, old: Carry) -> Carry:
    """The new values, or the old ones where the batch was only padding."""
    return tuple(
        {name: torch.where(active, tensor, before[name]) for name, tensor in after.items()}
        for after, before in zip(new, old, strict=True)
    )
