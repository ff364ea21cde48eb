"""One client's round inside a batched computation: the same questions, answered from tables of all clients at once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.func import grad
from torch.nn.utils.rnn import pad_sequence

from pfl_lite.data.federation import Federation
from pfl_lite.engine.augment import crop_flip
from pfl_lite.engine.local_sgd import LocalWork, on_device
from pfl_lite.engine.replay import Replay
from pfl_lite.methods.base import Batch, Carry, Loss
from pfl_lite.models import Params
from pfl_lite.models.training import fold


class Shelf:
    """Where the clients' images lie: by split, `rows` [N, longest] of indices, padded with zeros, and `sizes` [N]."""

    def __init__(self, federation: Federation) -> None:
        indices = {split: getattr(federation, split) for split in ("train", "val", "test")}
        self.rows = {split: pad_sequence(parts, batch_first=True) for split, parts in indices.items()}
        self.sizes = {
            split: on_device(np.array([len(part) for part in parts]), federation.images.device)
            for split, parts in indices.items()
        }


@dataclass
class Columns:
    """Mini-batches of one phase for all clients of a group, as numbers on the device; images are fetched when a step asks.

    `places` [K, S, b]: which of its images each client sees at each of K steps, all of one shape. `counts` [K, S]: how many of
    them are no padding. `widths` [K]: the most of any client, known to the host. `keys` [K, S] and `crops` [K, S, b, 3]: see
    `LocalWork`.
    """

    work: VmapWork
    places: Tensor
    counts: Tensor
    widths: list[int]
    keys: Tensor | None
    crops: Tensor | None
    black: Tensor | None

    def __len__(self) -> int:
        return len(self.places)

    def __iter__(self) -> Iterator[Batch]:
        return map(self.at, range(len(self)))

    def at(self, step: int | Tensor) -> Batch:
        """The mini-batch of the client in the slot at a step, whose number may be a tensor [] that only the device knows."""

        def mine(rows: Tensor) -> Tensor:
            row = rows[step] if isinstance(step, int) else rows.index_select(0, step.reshape(1))[0]
            return row[self.work.slot]

        width = self.widths[step] if isinstance(step, int) else self.places.shape[2]
        place = mine(self.places)[:width]  # [b]
        real = torch.arange(len(place), device=place.device) < mine(self.counts)
        batch = self.work.batch("train", place, real)
        if self.keys is not None:
            batch = batch._replace(key=mine(self.keys))
        if self.crops is not None and self.black is not None:
            batch = batch._replace(x=crop_flip(batch.x, mine(self.crops)[:width], self.black))
        return batch

    def epochs(self, count: int) -> Iterator[Columns]:
        """The same mini-batches, epoch by epoch."""
        length = len(self) // max(1, count)
        for number in range(count):
            part = slice(number * length, (number + 1) * length)
            keys, crops = (None if rows is None else rows[part] for rows in (self.keys, self.crops))
            places, counts, widths = self.places[part], self.counts[part], self.widths[part]
            yield replace(self, places=places, counts=counts, widths=widths, keys=keys, crops=crops)


class VmapWork(LocalWork):
    """The work of one client inside a batched computation: `slot` is its place among the clients `ids`."""

    slot: Tensor
    shelf: Shelf
    replay: Replay | None = None
    images_computed = 0
    """With padding, by all of `ids`."""

    @functools.cached_property
    def numbers(self) -> Tensor:
        """`ids` on the device [S]."""
        return on_device(np.array(self.ids), self.federation.images.device)

    @property
    def row(self) -> Tensor:
        """The client's row on the shelf []."""
        return self.numbers[self.slot]

    @property
    def id(self) -> Tensor:
        return self.row

    def size(self, split: str) -> Tensor:
        return self.shelf.sizes[split][self.row]

    @property
    def steps(self) -> Tensor:
        each = np.array([self.steps_of(i) for i in self.ids])
        return on_device(each, self.federation.images.device)[self.slot]

    def uniform(self, purpose: str, shape: tuple[int, ...], *, fixed: bool = False) -> Tensor:
        return self.drawn(purpose, shape, fixed)[self.slot]

    # ---- data -----------------------------------------------------------------------------------------------------

    def batch(self, split: str, place: Tensor, real: Tensor) -> Batch:
        """The client's images at places [b] of a split, of which some are `real` [b] and the others padding."""
        images, labels, _ = self.stored(split)
        rows = self.shelf.rows[split][self.row, place]  # [b]
        return Batch(images[rows], labels[rows], place, real.to(images.dtype), real.any())

    def data(self, split: str) -> Iterator[Batch]:
        indices, size = getattr(self.federation, split), self.size(split)
        longest = max(len(indices[i]) for i in self.ids)
        for place in torch.arange(longest, device=size.device).split(self.evaluation_batch):
            if longest:
                yield self.batch(split, place, place < size)

    def batches(self, phase: str = "weights", epochs: int | None = None, part: str = "all") -> Columns:
        return self.columns(self.orders(phase, epochs, part), phase)

    def passes(
        self, phase: str = "weights", epochs: int | None = None, part: str = "all"
    ) -> Iterator[Columns]:
        orders = self.orders(phase, epochs, part)
        yield from self.columns(orders, phase).epochs(len(orders[0]))

    def columns(self, orders: list[np.ndarray], phase: str) -> Columns:
        """All clients' orders [E, n_i] beside each other: mini-batches of one size, shorter clients padded."""
        epochs, lengths = len(orders[0]), np.array([order.shape[1] for order in orders])
        size = min(self.settings.batch_size, max(1, lengths.max()))
        steps = -(-int(lengths.max()) // size)  # an epoch
        places = np.zeros((epochs, len(orders), steps * size), dtype=np.int64)
        for slot, order in enumerate(orders):
            places[:, slot, : order.shape[1]] = order
        counts = np.clip(lengths - size * np.arange(steps)[:, None], 0, size)  # [steps, S]
        self.images_computed += places.size

        def by_step(rows: Tensor) -> Tensor:
            """[E, S, steps * b, ...] -> [E * steps, S, b, ...]."""
            return rows.unflatten(2, (steps, size)).transpose(1, 2).flatten(0, 1)

        device = self.federation.images.device
        keys, crops = self.keys(phase, epochs), self.crops(phase, orders)
        if keys is not None:  # [S, E]
            number = torch.arange(steps, device=device)[:, None]
            keys = fold(keys.T[:, None], number).flatten(0, 1)
        if crops is not None:  # [S, E, longest, 3]
            room = crops.new_zeros(epochs, len(orders), steps * size, 3)
            room[:, :, : crops.shape[2]] = crops.transpose(0, 1)
            crops = by_step(room)
        return Columns(
            self,
            by_step(on_device(places, device)),
            on_device(np.tile(counts, (epochs, 1)), device),
            counts.max(1).tolist() * epochs,
            keys,
            crops,
            None if crops is None else self.black(),
        )

    # ---- training -------------------------------------------------------------------------------------------------

    def fold(self, step: Callable[..., Carry], carry: Carry, *streams: Iterable[Batch]) -> Carry:
        """As everywhere; on a GPU the step is recorded once and replayed, unless it is part of another derivative."""
        columns = [stream for stream in streams if isinstance(stream, Columns)]
        alike = len(columns) == len(streams) and len({len(stream) for stream in columns}) == 1
        if (
            self.replay is None
            or not alike
            or not self.replay.wants(len(columns[0]))
            or torch.is_grad_enabled()
        ):
            return super().fold(step, carry, *streams)

        def numbered(carry: Carry, number: Tensor) -> Carry:
            return self.moved(step, carry, [stream.at(number) for stream in columns])

        return self.replay.loop(numbered, carry, len(columns[0]), self.slot)

    def grad(self, loss: Loss, params: Params, batch: Batch) -> Params:
        return grad(loss)(params, batch)

    def held_out_loss(self, params: Params) -> Tensor:
        sizes = [len(self.federation.val[i]) for i in self.ids]
        if all(sizes):
            return self.mean_loss(params, "val")
        train = self.mean_loss(params, "train")
        return (
            torch.where(self.size("val") > 0, self.mean_loss(params, "val"), train) if any(sizes) else train
        )
