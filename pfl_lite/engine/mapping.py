"""A function written for one client, done for every client: one after another, with no tricks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from pfl_lite.config import RunConfig
from pfl_lite.data.federation import Federation
from pfl_lite.engine.gpu import Driver
from pfl_lite.engine.local_training import LocalSettings, LocalWork, LoopWork, on_device
from pfl_lite.models import Network, Params

PerClient = Callable[[Params, Params, LocalWork], tuple[Params, ...]]
WorkFor = Callable[[list[int]], LocalWork]


class Mapping:
    """Applies a per-client function `(server, client, work) -> dicts of tensors` to some clients of one round."""

    work: type[LocalWork]
    progress: Callable[[int, int], object] | None = None
    """Is told after each client how many are done, and of how many: by the loop alone, and where several processes share out the
    clients, of those of the first one."""

    def __init__(self, network: Network, federation: Federation, config: RunConfig) -> None:
        self.network, self.federation, self.config, self.images_trained = network, federation, config, 0
        self.device = federation.images.device
        self.driver = Driver(self.device)

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
        work_for = partial(self.work_of, settings, round)
        # gradients are taken where local SGD asks for them
        with torch.no_grad(), self.driver.products(tf32=self.config.tf32):
            return self.stacked(function, server, clients, ids.tolist(), work_for)

    def work_of(self, settings: LocalSettings, round: int, ids: list[int]) -> LocalWork:
        """The work of one or of several clients in a round."""
        return self.work(self.network, self.federation, settings, self.config.seed, round, ids)

    def stacked(
        self, function: PerClient, server: Params, clients: Params, ids: list[int], work_for: WorkFor
    ) -> tuple[Params, ...]:
        """What `__call__` answers, with the images counted that clients train on; `work_for` makes the work of some of them."""
        raise NotImplementedError


class Loop(Mapping):
    """One client after another: readable, exact, the default on a CPU."""

    work = LoopWork

    def stacked(
        self, function: PerClient, server: Params, clients: Params, ids: list[int], work_for: WorkFor
    ) -> tuple[Params, ...]:
        answers = []
        for i in ids:
            work = work_for([i])
            answers.append(function(server, {name: rows[i] for name, rows in clients.items()}, work))
            self.images_trained += work.images_trained
            if self.progress is not None:
                self.progress(len(answers), len(ids))
        return tuple(
            {name: torch.stack([part[name] for part in parts]) for name in parts[0]}
            for parts in zip(*answers, strict=True)
        )


def in_client_order(
    done: list[tuple[list[int], tuple[Params, ...]]], device: torch.device
) -> tuple[Params, ...]:
    """Answers of groups in the order of the clients' places."""
    if len(done) == 1:
        return done[0][1]
    places = [place for group, _ in done for place in group]
    where = on_device(np.argsort(places), device)
    return tuple(
        {name: torch.cat([part[name] for part in parts])[where] for name in parts[0]}
        for parts in zip(*(answers for _, answers in done), strict=True)
    )
