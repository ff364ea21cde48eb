"""Two ways to do for every client what is written for one: a plain loop, or one batched computation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.func import grad, vmap

from pfl_lite.data.federation import Federation
from pfl_lite.engine.local_sgd import EVALUATION_BATCH, LocalSettings, LocalWork, epoch_orders
from pfl_lite.methods.base import Batch, Loss
from pfl_lite.models import Network, Params

PerClient = Callable[[Params, Params, LocalWork], tuple[Params, ...]]


class Mapping(Protocol):
    """Applies a per-client function `(server, client, work) -> dicts of tensors` to some clients of one round."""

    images_trained: int

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


class LoopWork(LocalWork):
    """The work of one client by itself."""

    def __init__(
        self,
        network: Network,
        federation: Federation,
        settings: LocalSettings,
        seed: int,
        round: int,
        client: int,
    ) -> None:
        super().__init__(network, federation, settings)
        self.seed, self.round, self.client, self.images_trained = seed, round, client, 0

    def batches(self, phase: str) -> Iterator[Batch]:
        indices = self.federation.train[self.client]  # [n_i]
        orders = epoch_orders(self.seed, self.round, self.client, phase, len(indices), self.settings.epochs)
        self.images_trained += orders.size
        for order in torch.from_numpy(orders).to(indices.device):
            for rows in indices[order].split(self.settings.batch_size):
                yield Batch(self.federation.images[rows], self.federation.labels[rows])

    def data(self, split: str) -> Iterator[Batch]:
        images, labels, indices = self.stored(split)
        for rows in indices[self.client].split(EVALUATION_BATCH) if len(indices[self.client]) else ():
            yield Batch(images[rows], labels[rows])

    def gradient(self, loss: Loss, params: Params, batch: Batch) -> Params:
        with torch.enable_grad():
            leaves = {name: tensor.detach().requires_grad_() for name, tensor in params.items()}
            values = torch.autograd.grad(loss(leaves, batch), list(leaves.values()), materialize_grads=True)
        return dict(zip(leaves, values, strict=True))


class Loop:
    """One client after another: readable, exact, the default on a CPU."""

    def __init__(self, network: Network, federation: Federation, seed: int) -> None:
        self.network, self.federation, self.seed, self.images_trained = network, federation, seed, 0

    @torch.no_grad()
    def __call__(
        self,
        function: PerClient,
        server: Params,
        clients: Params,
        ids: Tensor,
        round: int,
        settings: LocalSettings,
    ) -> tuple[Params, ...]:
        answers = []
        for i in ids.tolist():
            work = LoopWork(self.network, self.federation, settings, self.seed, round, i)
            answers.append(function(server, {name: rows[i] for name, rows in clients.items()}, work))
            self.images_trained += work.images_trained
        return tuple(
            {name: torch.stack([part[name] for part in parts]) for name in parts[0]}
            for parts in zip(*answers, strict=True)
        )


class VmapWork(LocalWork):
    """The work of one client inside a batched computation: `slot` is this client's place among the sampled ones."""

    def __init__(
        self,
        network: Network,
        federation: Federation,
        settings: LocalSettings,
        seed: int,
        round: int,
        ids: list[int],
    ) -> None:
        super().__init__(network, federation, settings)
        self.seed, self.round, self.ids, self.images_trained = seed, round, ids, 0
        self.slot = torch.tensor(0)

    def padded(self, rows: list[np.ndarray], images: Tensor) -> tuple[Tensor, Tensor]:
        """Rows of unequal lengths as one index tensor and one mask, both [S, longest]."""
        longest = max(len(row) for row in rows)
        indices, real = np.zeros((len(rows), longest), dtype=np.int64), np.zeros((len(rows), longest))
        for slot, row in enumerate(rows):
            indices[slot, : len(row)], real[slot, : len(row)] = row, 1
        return torch.from_numpy(indices).to(images.device), torch.from_numpy(real).to(images)

    def batches(self, phase: str) -> Iterator[Batch]:
        images, labels = self.federation.images, self.federation.labels
        orders = []  # one [E, n_i] a client
        for i in self.ids:
            own = self.federation.train[i].cpu().numpy()
            orders.append(own[epoch_orders(self.seed, self.round, i, phase, len(own), self.settings.epochs)])
        self.images_trained += sum(order.size for order in orders)
        for epoch in range(self.settings.epochs):
            indices, real = self.padded([order[epoch] for order in orders], images)  # [S, n_max]
            for rows, mask in zip(
                indices.split(self.settings.batch_size, 1),
                real.split(self.settings.batch_size, 1),
                strict=True,
            ):
                mine, weight = rows[self.slot], mask[self.slot]  # [b] of this client
                yield Batch(images[mine], labels[mine], weight, weight.sum() > 0)

    def data(self, split: str) -> Iterator[Batch]:
        images, labels, indices = self.stored(split)
        rows, real = self.padded([indices[i].cpu().numpy() for i in self.ids], images)  # [S, n_max]
        for chunk, mask in zip(rows.split(EVALUATION_BATCH, 1), real.split(EVALUATION_BATCH, 1), strict=True):
            mine = chunk[self.slot]
            yield Batch(images[mine], labels[mine], mask[self.slot])

    def gradient(self, loss: Loss, params: Params, batch: Batch) -> Params:
        return grad(loss)(params, batch)


class Vmap:
    """All sampled clients as one batched computation, shorter clients padded and masked: the default on a GPU."""

    def __init__(self, network: Network, federation: Federation, seed: int) -> None:
        self.network, self.federation, self.seed, self.images_trained = network, federation, seed, 0

    @torch.no_grad()
    def __call__(
        self,
        function: PerClient,
        server: Params,
        clients: Params,
        ids: Tensor,
        round: int,
        settings: LocalSettings,
    ) -> tuple[Params, ...]:
        work = VmapWork(self.network, self.federation, settings, self.seed, round, ids.tolist())

        def one(server: Params, client: Params, slot: Tensor) -> tuple[Params, ...]:
            work.slot = slot
            return function(server, client, work)

        rows = {name: tensor[ids] for name, tensor in clients.items()}
        slots = torch.arange(len(ids), device=self.federation.images.device)
        answers = vmap(one, in_dims=(None, 0, 0), randomness="different")(server, rows, slots)
        self.images_trained += work.images_trained
        return answers


MAPPINGS: dict[str, type[Loop] | type[Vmap]] = {"loop": Loop, "vmap": Vmap}
