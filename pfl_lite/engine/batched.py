"""Clients as one batched computation: who is computed with whom, what their work is, and the mapping that does it."""

from __future__ import annotations

import functools
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn.utils.rnn import pad_sequence

from pfl_lite.config import RunConfig
from pfl_lite.data.federation import Federation
from pfl_lite.engine import gpu
from pfl_lite.engine.augment import crop_flip
from pfl_lite.engine.gpu import ClientLimit, Graphs, Replay
from pfl_lite.engine.local_training import EVALUATION_BATCH, LocalWork, on_device
from pfl_lite.engine.mapping import Mapping, PerClient, WorkFor, in_client_order
from pfl_lite.errors import InputError
from pfl_lite.methods.base import Batch, Carry, Loss
from pfl_lite.models import Network, Params
from pfl_lite.models.train_mode import fold

IDLE = 0.1
"""Share of the steps of a batched computation that may be padding; clients' last mini-batches, rarely full, come on top."""


def padded(images: int, batch_size: int) -> int:
    """Images with which an epoch of one client is computed: full mini-batches, or a single smaller one."""
    return images if images <= batch_size else -(-images // batch_size) * batch_size


def groups(sizes: Sequence[int], batch_size: int, at_most: int) -> list[list[int]]:
    """Places of clients that are computed together, as few groups as keep idle steps below `IDLE` of all.

    A group takes as long as its largest member, so that clients of like size belong together: they are sorted by size and cut
    where the least is lost. One group keeps the order given.

    Args:
        sizes: images of every client.
        batch_size: images a mini-batch.
        at_most: clients in a group.
    """
    count = len(sizes)
    order = sorted(range(count), key=lambda place: -sizes[place])
    work = np.array([padded(sizes[place], batch_size) for place in order], dtype=float)
    allowed = work.sum() / (1 - IDLE)
    # least[j]: least work of the first j clients in so many groups; each group costs (its clients) x (its first, the largest)
    least = np.full(count + 1, np.inf)
    least[0], cuts = 0.0, []
    while not least[count] <= allowed:  # alone, every client does its own work only
        best, cut = np.full(count + 1, np.inf), np.zeros(count + 1, dtype=int)
        for j in range(1, count + 1):
            start = np.arange(max(0, j - at_most), j)
            each = least[start] + (j - start) * work[start]
            best[j], cut[j] = each.min(), start[each.argmin()]
        least = best
        cuts.append(cut)
    ends = [count]
    for cut in reversed(cuts):
        ends.append(int(cut[ends[-1]]))
    if len(ends) == 2:
        return [list(range(count))]
    return [order[start:end] for start, end in zip(ends[:0:-1], ends[-2::-1], strict=True)]


class ClientIndexTable:
    """Where the clients' images lie: by split, `rows` [N, longest] of indices, padded with zeros, and `sizes` [N]."""

    def __init__(self, federation: Federation) -> None:
        indices = {split: getattr(federation, split) for split in ("train", "val", "test")}
        self.rows = {split: pad_sequence(parts, batch_first=True) for split, parts in indices.items()}
        self.sizes = {
            split: on_device(np.array([len(part) for part in parts]), federation.images.device)
            for split, parts in indices.items()
        }


@dataclass
class BatchSchedule:
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

    def epochs(self, count: int) -> Iterator[BatchSchedule]:
        """The same mini-batches, epoch by epoch."""
        length = len(self) // max(1, count)
        for number in range(count):
            part = slice(number * length, (number + 1) * length)
            keys, crops = (None if rows is None else rows[part] for rows in (self.keys, self.crops))
            places, counts, widths = self.places[part], self.counts[part], self.widths[part]
            yield replace(self, places=places, counts=counts, widths=widths, keys=keys, crops=crops)


class VmapWork(LocalWork):
    """The work of one client inside a batched computation, at the place `slot` among its clients."""

    slot: Tensor
    table: ClientIndexTable
    replay: Replay | None = None
    images_computed = 0
    """With padding, by all of `ids`."""

    @functools.cached_property
    def numbers(self) -> Tensor:
        """`ids` on the device [S]."""
        return on_device(np.array(self.ids), self.federation.images.device)

    @property
    def id(self) -> Tensor:
        """The client's number [], which is its row of the table."""
        return self.numbers[self.slot]

    def size(self, split: str) -> Tensor:
        return self.table.sizes[split][self.id]

    @property
    def steps(self) -> Tensor:
        each = np.array([self.steps_of(i) for i in self.ids])
        return on_device(each, self.federation.images.device)[self.slot]

    # ---- data -----------------------------------------------------------------------------------------------------

    def batch(self, split: str, place: Tensor, real: Tensor) -> Batch:
        """The client's images at places [b] of a split, of which some are `real` [b] and the others padding."""
        images, labels, _ = self.stored(split)
        rows = self.table.rows[split][self.id, place]  # [b]
        return Batch(images[rows], labels[rows], place, real.to(images.dtype), real.any())

    def data(self, split: str) -> Iterator[Batch]:
        indices, size = getattr(self.federation, split), self.size(split)
        longest = max(len(indices[i]) for i in self.ids)
        for place in torch.arange(longest, device=size.device).split(EVALUATION_BATCH[size.device.type]):
            if longest:
                yield self.batch(split, place, place < size)

    def batches(self, phase: str = "weights", epochs: int | None = None, part: str = "all") -> BatchSchedule:
        return self.schedule(self.orders(phase, epochs, part), phase)

    def epochs(
        self, phase: str = "weights", epochs: int | None = None, part: str = "all"
    ) -> Iterator[BatchSchedule]:
        orders = self.orders(phase, epochs, part)
        yield from self.schedule(orders, phase).epochs(len(orders[0]))

    def schedule(self, orders: list[np.ndarray], phase: str) -> BatchSchedule:
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
        return BatchSchedule(
            self,
            by_step(on_device(places, device)),
            on_device(np.tile(counts, (epochs, 1)), device),
            counts.max(1).tolist() * epochs,
            keys,
            crops,
            None if crops is None else self.black(),
        )

    # ---- training -------------------------------------------------------------------------------------------------

    def reduced(self, step: Callable[..., Carry], carry: Carry, streams: Sequence[Iterable[Batch]]) -> Carry:
        """As everywhere; on a GPU the step is recorded once and replayed, unless it is part of another derivative."""
        columns = [stream for stream in streams if isinstance(stream, BatchSchedule)]
        alike = len(columns) == len(streams) and len({len(stream) for stream in columns}) == 1
        if (
            self.replay is None
            or not alike
            or not self.replay.wants(len(columns[0]))
            or torch.is_grad_enabled()
        ):
            return super().reduced(step, carry, streams)

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


class Vmap(Mapping):
    """Sampled clients of like size as one batched computation, shorter ones padded: the default on a GPU."""

    work = VmapWork

    def __init__(self, network: Network, federation: Federation, config: RunConfig) -> None:
        super().__init__(network, federation, config)
        self.table, self.images_computed = ClientIndexTable(federation), 0
        self.replay = Replay(Graphs()) if self.driver.gpu and config.graphs else None
        # without `self`: a cycle would keep images and graphs on the GPU until Python looks for cycles
        new_limit = partial(ClientLimit, self.driver, config.clients_per_batch)
        self.limits: defaultdict[object, ClientLimit] = defaultdict(new_limit)

    def stacked(
        self, function: PerClient, server: Params, clients: Params, ids: list[int], work_for: WorkFor
    ) -> tuple[Params, ...]:
        limit = self.limits[function.__code__]  # training takes more than scoring
        sizes = [len(self.federation.train[i]) for i in ids]
        batch_size = work_for([]).settings.batch_size  # the work of no client, which only knows the settings
        at_most = limit.clients
        if at_most is not None and gpu.SORTED_GROUPS:
            waiting = deque(groups(sizes, batch_size, at_most))
        else:
            places, count = list(range(len(ids))), at_most or len(ids)
            waiting = deque(places[start : start + count] for start in range(0, len(ids), count))
        done: list[tuple[list[int], tuple[Params, ...]]] = []
        with self.driver.own_stream():
            while waiting:
                places = waiting.popleft()
                work = work_for([ids[place] for place in places])
                assert isinstance(work, VmapWork)
                work.table, work.replay = self.table, self.replay
                compute = partial(self.one_group, function, server, clients, work)
                answers = limit.attempt(len(places), compute)
                if answers is not None:
                    done.append((places, answers))
                    self.images_trained += work.images_trained
                    self.images_computed += work.images_computed
                    continue
                if len(places) == 1:
                    raise InputError(
                        "one client alone does not fit into the GPU's memory: take a smaller batch_size or network"
                    )
                count = limit.clients or 1
                waiting = deque(
                    group[start : start + count]
                    for group in (places, *waiting)
                    for start in range(0, len(group), count)
                )
        return in_client_order(done, self.device)

    def one_group(
        self, function: PerClient, server: Params, clients: Params, work: VmapWork
    ) -> tuple[Params, ...]:
        """The function's answers for one group of clients."""

        def one(server: Params, client: Params, slot: Tensor) -> tuple[Params, ...]:
            work.slot = slot
            return function(server, client, work)

        rows = {name: tensor[work.numbers] for name, tensor in clients.items()}
        slots = torch.arange(len(work.ids), device=self.device)
        try:
            return vmap(one, in_dims=(None, 0, 0), randomness="different")(server, rows, slots)
        except RuntimeError as error:
            if not str(error).startswith(("vmap:", "Batching rule not implemented")):
                raise
            raise InputError(
                "the engine vmap cannot do this method or network for all clients as one batch: write torch.where for an `if` "
                f"on tensors, leave out .item(), or take engine='loop' ({str(error).partition('. ')[0]})"
            ) from error
