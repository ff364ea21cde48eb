"""Two ways to do for every client what is written for one: a plain loop, or one batched computation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.func import grad, vmap

from pfl_lite.data.federation import Federation
from pfl_lite.engine.local_sgd import EVALUATION_BATCH, LocalSettings, LocalWork
from pfl_lite.methods.base import Batch, Loss
from pfl_lite.models import Network, Params

PerClient = Callable[[Params, Params, LocalWork], tuple[Params, ...]]
WorkFor = Callable[[list[int]], LocalWork]


class LoopWork(LocalWork):
    """The work of one client by itself."""

    @property
    def id(self) -> int:
        return self.ids[0]

    def size(self, split: str) -> int:
        return len(getattr(self.federation, split)[self.id])

    @property
    def steps(self) -> int:
        return self.steps_of(self.id)

    def uniform(self, purpose: str, shape: tuple[int, ...], *, fixed: bool = False) -> Tensor:
        return self.drawn(purpose, shape, fixed)[0]

    def passes(
        self, phase: str = "weights", epochs: int | None = None, part: str = "all"
    ) -> Iterator[Iterator[Batch]]:
        orders = self.orders(phase, epochs, part)
        keys, crops = self.keys(phase, len(orders[0])), self.crops(phase, orders)
        for epoch, order in enumerate(torch.from_numpy(orders[0]).to(self.federation.images.device)):
            mine = [None if each is None else each[0, epoch] for each in (keys, crops)]
            yield self.prepared(self.in_order(order), *mine)

    def in_order(self, order: Tensor) -> Iterator[Batch]:
        """The mini-batches of an epoch that visits the client's training images in this order [n_i]."""
        images, labels, own = self.stored("train")
        mine = own[self.id]
        for places in order.split(self.settings.batch_size) if len(order) else ():
            rows = mine[places]
            yield Batch(images[rows], labels[rows], places)

    def data(self, split: str) -> Iterator[Batch]:
        images, labels, indices = self.stored(split)
        mine = indices[self.id]
        places = torch.arange(len(mine), device=mine.device)
        for rows, place in zip(mine.split(EVALUATION_BATCH), places.split(EVALUATION_BATCH), strict=True):
            if len(rows):
                yield Batch(images[rows], labels[rows], place)

    def grad(self, loss: Loss, params: Params, batch: Batch) -> Params:
        nested = torch.is_grad_enabled()  # inside another loss: stay on its graph
        with torch.enable_grad():
            leaves = params if nested else {name: w.detach().requires_grad_() for name, w in params.items()}
            values = torch.autograd.grad(
                loss(leaves, batch), list(leaves.values()), create_graph=nested, materialize_grads=True
            )
        return dict(zip(leaves, values, strict=True))

    def held_out_loss(self, params: Params) -> Tensor:
        return self.mean_loss(params, "val" if self.size("val") else "train")


class VmapWork(LocalWork):
    """The work of one client inside a batched computation: `slot` is its place among the sampled ones."""

    slot: Tensor

    def of_slot(self, values: list[int]) -> Tensor:
        """This client's entry of one whole number a sampled client."""
        return torch.tensor(values, device=self.federation.images.device)[self.slot]

    @property
    def id(self) -> Tensor:
        return self.of_slot(self.ids)

    def size(self, split: str) -> Tensor:
        indices = getattr(self.federation, split)
        return self.of_slot([len(indices[i]) for i in self.ids])

    @property
    def steps(self) -> Tensor:
        return self.of_slot([self.steps_of(i) for i in self.ids])

    def uniform(self, purpose: str, shape: tuple[int, ...], *, fixed: bool = False) -> Tensor:
        return self.drawn(purpose, shape, fixed)[self.slot]

    def chunks(self, orders: list[np.ndarray], split: str, size: int) -> Iterator[Batch]:
        """This client's part of all clients' orders (places, [n_i] each), `size` columns at a time; shorter ones are padded."""
        images, labels, own = self.stored(split)
        longest = max(len(order) for order in orders)
        places, rows = np.zeros((2, len(orders), longest), dtype=np.int64)
        real = np.zeros((len(orders), longest))
        for slot, (i, order) in enumerate(zip(self.ids, orders, strict=True)):
            places[slot, : len(order)], real[slot, : len(order)] = order, 1
            rows[slot, : len(order)] = own[i].cpu().numpy()[order]
        columns = [torch.from_numpy(array).to(images.device).split(size, 1) for array in (places, rows, real)]
        for place, row, mask in zip(*columns, strict=True):  # [S, b] each
            mine, weight = row[self.slot], mask[self.slot].to(images.dtype)  # [b] of this client
            yield Batch(images[mine], labels[mine], place[self.slot], weight, weight.sum() > 0)

    def passes(
        self, phase: str = "weights", epochs: int | None = None, part: str = "all"
    ) -> Iterator[Iterator[Batch]]:
        orders = self.orders(phase, epochs, part)
        keys, crops = self.keys(phase, len(orders[0])), self.crops(phase, orders)
        for epoch in range(len(orders[0])):
            batches = self.chunks([order[epoch] for order in orders], "train", self.settings.batch_size)
            mine = [None if each is None else each[self.slot, epoch] for each in (keys, crops)]
            yield self.prepared(batches, *mine)

    def data(self, split: str) -> Iterator[Batch]:
        indices = getattr(self.federation, split)
        yield from self.chunks([np.arange(len(indices[i])) for i in self.ids], split, EVALUATION_BATCH)

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


class Mapping:
    """Applies a per-client function `(server, client, work) -> dicts of tensors` to some clients of one round."""

    work: type[LocalWork]

    def __init__(self, network: Network, federation: Federation, seed: int) -> None:
        self.network, self.federation, self.seed, self.images_trained = network, federation, seed, 0

    def __call__(
        self,
        function: PerClient,
        server: Params,
        clients: Params,
        ids: Tensor,
        round: int,
        settings: LocalSettings,
    ) -> tuple[Params, ...]:
        """The function's answers, each tensor stacked over `ids` [S] -> [S, ...]."""
        works: list[LocalWork] = []

        def work_for(ids: list[int]) -> LocalWork:
            works.append(self.work(self.network, self.federation, settings, self.seed, round, ids))
            return works[-1]

        with torch.no_grad():  # gradients are taken where local SGD asks for them
            answers = self.stacked(function, server, clients, ids.tolist(), work_for)
        self.images_trained += sum(work.images_trained for work in works)
        return answers

    def stacked(
        self, function: PerClient, server: Params, clients: Params, ids: list[int], work_for: WorkFor
    ) -> tuple[Params, ...]:
        """What `__call__` answers; `work_for` makes the work of one or of several clients."""
        raise NotImplementedError


class Loop(Mapping):
    """One client after another: readable, exact, the default on a CPU."""

    work = LoopWork

    def stacked(
        self, function: PerClient, server: Params, clients: Params, ids: list[int], work_for: WorkFor
    ) -> tuple[Params, ...]:
        return together(
            [function(server, {name: rows[i] for name, rows in clients.items()}, work_for([i])) for i in ids]
        )


def together(answers: Sequence[tuple[Params, ...]]) -> tuple[Params, ...]:
    """The answers of several clients as stacked tensors [S, ...]."""
    return tuple(
        {name: torch.stack([part[name] for part in parts]) for name in parts[0]}
        for parts in zip(*answers, strict=True)
    )


class Vmap(Mapping):
    """All sampled clients as one batched computation, shorter ones padded: the default on a GPU."""

    work = VmapWork

    def stacked(
        self, function: PerClient, server: Params, clients: Params, ids: list[int], work_for: WorkFor
    ) -> tuple[Params, ...]:
        work = work_for(ids)
        assert isinstance(work, VmapWork)

        def one(server: Params, client: Params, slot: Tensor) -> tuple[Params, ...]:
            work.slot = slot
            return function(server, client, work)

        rows = {name: tensor[ids] for name, tensor in clients.items()}
        slots = torch.arange(len(ids), device=self.federation.images.device)
        return vmap(one, in_dims=(None, 0, 0), randomness="different")(server, rows, slots)


MAPPINGS: dict[str, type[Mapping]] = {"loop": Loop, "vmap": Vmap}
