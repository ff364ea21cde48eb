"""Two ways to do for every client what is written for one: a plain loop, or one batched computation."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from pfl_lite.config import ExecutionSettings
from pfl_lite.data.federation import Federation
from pfl_lite.engine.augment import crop_flip
from pfl_lite.engine.batching import Room, groups
from pfl_lite.engine.convolution import NARROW, Unfolded
from pfl_lite.engine.local_sgd import LocalSettings, LocalWork, on_device
from pfl_lite.engine.replay import Graphs, Replay
from pfl_lite.engine.vmap_work import Shelf, VmapWork
from pfl_lite.errors import InputError
from pfl_lite.methods.base import Batch, Loss
from pfl_lite.models import Network, Params
from pfl_lite.models.training import fold

PerClient = Callable[[Params, Params, LocalWork], tuple[Params, ...]]
LANES = 4
"""Groups of clients that a GPU may compute side by side: one small group alone leaves most of it idle."""
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

    def prepared(self, batches: Iterator[Batch], key: Tensor | None, crops: Tensor | None) -> Iterator[Batch]:
        """The mini-batches of an epoch, with keys of their own from the epoch's, and images cut out at `crops` [n, 3]."""
        if key is not None:
            batches = (batch._replace(key=fold(key, step)) for step, batch in enumerate(batches))
        if crops is None:
            return batches
        cut, black = crops.split(self.settings.batch_size), self.black()
        return (b._replace(x=crop_flip(b.x, c, black)) for b, c in zip(batches, cut, strict=False))

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
        size = self.evaluation_batch
        for rows, place in zip(mine.split(size), places.split(size), strict=True):
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


class Mapping:
    """Applies a per-client function `(server, client, work) -> dicts of tensors` to some clients of one round."""

    work: type[LocalWork]

    def __init__(
        self, network: Network, federation: Federation, seed: int, computing: ExecutionSettings | None = None
    ) -> None:
        self.network, self.federation, self.seed, self.images_trained = network, federation, seed, 0
        self.computing = computing or ExecutionSettings()
        self.device = federation.images.device

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
            works.append(self.work_of(settings, round, ids))
            return works[-1]

        with torch.no_grad(), self.products():  # gradients are taken where local SGD asks for them
            answers = self.stacked(function, server, clients, ids.tolist(), work_for)
        self.images_trained += sum(work.images_trained for work in works)
        return answers

    def work_of(self, settings: LocalSettings, round: int, ids: list[int]) -> LocalWork:
        """The work of one or of several clients in a round."""
        return self.work(self.network, self.federation, settings, self.seed, round, ids)

    @contextmanager
    def products(self) -> Iterator[None]:
        """How exact matrix products and convolutions of a GPU are; what the process had chosen comes back."""
        gpu = self.device.type == "cuda"
        libraries: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn) if gpu else ()
        before = [library.allow_tf32 for library in libraries]
        try:
            for library in libraries:
                library.allow_tf32 = self.computing.tf32
            yield
        finally:
            for library, value in zip(libraries, before, strict=True):
                library.allow_tf32 = value

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
    """Sampled clients of like size as one batched computation, shorter ones padded: the default on a GPU."""

    work = VmapWork

    def __init__(
        self, network: Network, federation: Federation, seed: int, computing: ExecutionSettings | None = None
    ) -> None:
        super().__init__(network, federation, seed, computing)
        self.shelf, self.images_computed = Shelf(federation), 0
        gpu = self.device.type == "cuda"
        self.lanes = [torch.cuda.Stream(self.device) if gpu else None for _ in range(LANES)]
        self.replay = Replay(Graphs()) if gpu and self.computing.graphs else None
        # without `self`: a cycle would keep images and graphs on the GPU until Python looks for cycles
        new_room = partial(Room, self.device, self.computing.clients_per_batch)
        self.rooms: defaultdict[object, Room] = defaultdict(new_room)

    def stacked(
        self, function: PerClient, server: Params, clients: Params, ids: list[int], work_for: WorkFor
    ) -> tuple[Params, ...]:
        room = self.rooms[function.__code__]  # training takes more than scoring
        sizes = [len(self.federation.train[i]) for i in ids]
        batch_size = work_for([]).settings.batch_size  # nobody's work, which only knows the settings
        at_most = room.clients
        limited = at_most is not None and at_most < len(ids)  # then one group is to fill the memory
        lanes = cycle(self.lanes[: 1 if limited else None])
        everyone = [list(range(len(ids)))]
        waiting = deque(everyone if at_most is None else groups(sizes, batch_size, at_most))
        done: list[tuple[list[int], tuple[Params, ...]]] = []
        with self.convolving(), self.between():
            while waiting:
                lane, places = next(lanes), waiting.popleft()
                work = work_for([ids[place] for place in places])
                assert isinstance(work, VmapWork)
                work.shelf, work.replay = self.shelf, self.replay
                with torch.cuda.stream(lane):  # None: no stream
                    compute = partial(self.together, function, server, clients, work)
                    answers = room.attempt(len(places), compute)
                if answers is not None:
                    done.append((places, answers))
                    self.images_computed += work.images_computed
                    continue
                work.trained.clear()  # it will be done again
                if len(places) == 1:
                    raise InputError(
                        "one client alone does not fit into the GPU's memory: take a smaller batch_size or network"
                    )
                waiting.extendleft([places[len(places) // 2 :], places[: len(places) // 2]])
        return in_order(done, self.device)

    def together(
        self, function: PerClient, server: Params, clients: Params, work: VmapWork
    ) -> tuple[Params, ...]:
        """The function's answers for one group of clients."""

        def one(server: Params, client: Params, slot: Tensor) -> tuple[Params, ...]:
            work.slot = slot
            return function(server, client, work)

        rows = {name: tensor[work.numbers] for name, tensor in clients.items()}
        slots = torch.arange(len(work.ids), device=self.device)
        return vmap(one, in_dims=(None, 0, 0), randomness="different")(server, rows, slots)

    @contextmanager
    def between(self) -> Iterator[None]:
        """A block whose work in the lanes comes after what was asked of the GPU before, and before what will be."""
        streams = [lane for lane in self.lanes if lane is not None]
        for stream in streams:
            stream.wait_stream(torch.cuda.current_stream(self.device))
        yield
        for stream in streams:
            torch.cuda.current_stream(self.device).wait_stream(stream)

    def convolving(self) -> AbstractContextManager[object]:
        """How convolutions are computed: as patches in all layers, in narrow ones on a GPU, or as torch does it."""
        auto = NARROW if self.device.type == "cuda" else 0
        below = {"unfold": float("inf"), "grouped": 0, "auto": auto}[self.computing.convolution]
        return Unfolded(below) if below else nullcontext()


def in_order(done: list[tuple[list[int], tuple[Params, ...]]], device: torch.device) -> tuple[Params, ...]:
    """Answers of groups in the order of the clients' places."""
    if len(done) == 1:
        return done[0][1]
    places = [place for group, _ in done for place in group]
    where = on_device(np.argsort(places), device)
    return tuple(
        {name: torch.cat([part[name] for part in parts])[where] for name in parts[0]}
        for parts in zip(*(answers for _, answers in done), strict=True)
    )


MAPPINGS: dict[str, type[Mapping]] = {"loop": Loop, "vmap": Vmap}
