"""Two ways to do for every client what is written for one: a plain loop, or one batched computation."""

from __future__ import annotations

from collections.abc import Callable, Iterator

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

    def batches(self, phase: str) -> Iterator[Batch]:
        images, labels = self.federation.images, self.federation.labels
        (orders,) = self.orders(phase)  # [E, n_i]
        for order in torch.from_numpy(orders).to(images.device):
            for rows in order.split(self.settings.batch_size):
                yield Batch(images[rows], labels[rows])

    def data(self, split: str) -> Iterator[Batch]:
        images, labels, indices = self.stored(split)
        mine = indices[self.ids[0]]
        for rows in mine.split(EVALUATION_BATCH) if len(mine) else ():
            yield Batch(images[rows], labels[rows])

    def gradient(self, loss: Loss, params: Params, batch: Batch) -> Params:
        with torch.enable_grad():
            leaves = {name: tensor.detach().requires_grad_() for name, tensor in params.items()}
            values = torch.autograd.grad(loss(leaves, batch), list(leaves.values()), materialize_grads=True)
        return dict(zip(leaves, values, strict=True))


class VmapWork(LocalWork):
    """The work of one client inside a batched computation: `slot` is its place among the sampled ones."""

    slot: Tensor

    def padded(self, rows: list[np.ndarray], images: Tensor) -> tuple[Tensor, Tensor]:
        """Rows of unequal lengths as one index tensor and one mask, both [S, longest]."""
        longest = max(len(row) for row in rows)
        indices, real = np.zeros((len(rows), longest), dtype=np.int64), np.zeros((len(rows), longest))
        for slot, row in enumerate(rows):
            indices[slot, : len(row)], real[slot, : len(row)] = row, 1
        return torch.from_numpy(indices).to(images.device), torch.from_numpy(real).to(images)

    def chunks(self, rows: list[np.ndarray], images: Tensor, labels: Tensor, size: int) -> Iterator[Batch]:
        """This client's part of all clients' rows, `size` columns at a time; shorter clients are padded."""
        indices, real = self.padded(rows, images)  # [S, n_max]
        for chunk, mask in zip(indices.split(size, 1), real.split(size, 1), strict=True):
            mine, weight = chunk[self.slot], mask[self.slot]  # [b] of this client
            yield Batch(images[mine], labels[mine], weight, weight.sum() > 0)

    def batches(self, phase: str) -> Iterator[Batch]:
        images, labels, orders = self.federation.images, self.federation.labels, self.orders(phase)
        for epoch in range(self.settings.epochs):
            yield from self.chunks(
                [order[epoch] for order in orders], images, labels, self.settings.batch_size
            )

    def data(self, split: str) -> Iterator[Batch]:
        images, labels, indices = self.stored(split)
        rows = [indices[i].cpu().numpy() for i in self.ids]
        yield from self.chunks(rows, images, labels, EVALUATION_BATCH)

    def gradient(self, loss: Loss, params: Params, batch: Batch) -> Params:
        return grad(loss)(params, batch)


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
        answers = [
            function(server, {name: rows[i] for name, rows in clients.items()}, work_for([i])) for i in ids
        ]
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
