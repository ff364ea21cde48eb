"""Several runs in one computation: seeds and learning rates side by side, where one run alone would leave a GPU idle."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pfl_lite.data.federation import Federation
from pfl_lite.engine.config import RunConfig
from pfl_lite.engine.local_sgd import LocalSettings, LocalWork, on_device
from pfl_lite.engine.mapping import Mapping, PerClient, Vmap
from pfl_lite.engine.vmap_work import VmapWork
from pfl_lite.errors import InputError
from pfl_lite.models import Network, Params

if TYPE_CHECKING:
    from pfl_lite.engine.rounds import Simulation


class RidingWork(VmapWork):
    """The work of one client among those of several runs, numbered through: run r has those from `first[r]` on."""

    seeds: Sequence[int]
    first: Sequence[int]
    numbers_at_home: Tensor

    def run_of(self, i: int) -> int:
        """To which run a client belongs."""
        return bisect_right(self.first, i) - 1

    def whose(self, i: int) -> tuple[int, int]:
        run = self.run_of(i)
        return self.seeds[run], i - self.first[run]

    @property
    def id(self) -> Tensor:
        return self.numbers_at_home[self.row]


@dataclass(eq=False)
class Request:
    """What one run asks to be done for its clients (see `Mapping.__call__`), and the answers once they are there."""

    seat: Seat
    function: PerClient
    server: Params
    clients: Params
    ids: Tensor
    round: int
    settings: LocalSettings
    answers: tuple[Params, ...] | None = None
    error: BaseException | None = None

    @property
    def kind(self) -> tuple[object, ...]:
        """Equal for requests that one computation answers: they differ in clients, parameters and learning rate only."""
        shapes = tuple(
            (name, tensor.shape[1:] if part is self.clients else tensor.shape)
            for part in (self.server, self.clients)
            for name, tensor in part.items()
        )
        code = (self.function.__code__, self.function.__defaults__)
        return *code, self.seat.alike, self.seat.library, self.round, replace(self.settings, lr=1.0), shapes


class Shared(Vmap):
    """The batched computation of the clients of several runs, for requests of one kind."""

    work = RidingWork

    def __init__(self, seats: Sequence[Seat]) -> None:
        one = seats[0]
        every = [seat.federation for seat in seats]

        def clients(split: str) -> list[Tensor]:
            """Of all runs, one run after another."""
            return [indices for data in every for indices in getattr(data, split)]

        everyone = replace(
            one.federation, train=clients("train"), val=clients("val"), test=clients("test"), groups=None
        )
        super().__init__(one.network, everyone, one.seed, one.computing)
        sizes = [len(data) for data in every]
        self.seeds, self.first = [seat.seed for seat in seats], [0, *accumulate(sizes)][:-1]
        owners = torch.arange(len(seats), device=self.device)
        self.run = owners.repeat_interleave(torch.tensor(sizes, device=self.device))  # [all clients]
        self.at_home = torch.cat([torch.arange(size, device=self.device) for size in sizes])

    def work_of(self, settings: LocalSettings, round: int, ids: list[int]) -> LocalWork:
        work = super().work_of(settings, round, ids)
        assert isinstance(work, RidingWork)
        work.seeds, work.first, work.numbers_at_home = self.seeds, self.first, self.at_home
        self.works.append(work)
        return work

    def answer(self, requests: Sequence[Request]) -> None:
        """Compute what the runs ask for, each run's in its turn."""
        one = requests[0]
        rates = [request.settings.lr for request in requests]
        own_rates = on_device(torch.tensor(rates, dtype=self.network.dtype).numpy(), self.device)
        server = {name: torch.stack([r.server[name] for r in requests]) for name in one.server}
        clients = {name: torch.cat([r.clients[name] for r in requests]) for name in one.clients}
        ids = torch.cat([r.ids + first for r, first in zip(requests, self.first, strict=True)])

        def of_its_run(server: Params, client: Params, work: LocalWork) -> tuple[Params, ...]:
            assert isinstance(work, RidingWork)
            run = self.run[work.row]
            if len(set(rates)) > 1:
                work.lr = own_rates[run]
            return one.function({name: each[run] for name, each in server.items()}, client, work)

        self.works: list[RidingWork] = []
        answers = self(of_its_run, server, clients, ids, one.round, one.settings)
        cuts = [len(request.ids) for request in requests]
        parts = [{name: t.split(cuts) for name, t in answer.items()} for answer in answers]
        for place, request in enumerate(requests):
            request.answers = tuple({name: rows[place] for name, rows in part.items()} for part in parts)
        for work in self.works:
            for i, images in work.trained.items():
                requests[work.run_of(i)].seat.images_trained += images


class Seat(Mapping):
    """Where a run asks for the work of its clients: the answer comes with that of the others who ride along."""

    def __init__(self, ride: Ride, config: RunConfig, network: Network, federation: Federation) -> None:
        if config.engine != "vmap":
            raise InputError(f"runs ride together with --engine vmap, not {config.engine}")
        super().__init__(network, federation, config.seed, config.computing)
        # fine-tuning at the rate of training may be the next round's work, which then answers more than that of another rate
        self.ride, self.alike = ride, (replace(config, seed=0, lr=1.0), config.ft_lr in (None, config.lr))
        self.library = ride.library_of(federation)

    def __call__(
        self,
        function: PerClient,
        server: Params,
        clients: Params,
        ids: Tensor,
        round: int,
        settings: LocalSettings,
    ) -> tuple[Params, ...]:
        return self.ride.answered(Request(self, function, server, clients, ids, round, settings))


class Ride:
    """Runs that wait for one another: what they ask for is computed together once all of them ask.

    Each run has a thread of its own, which is counted (`join`, `leave`). Runs that differ in seed and learning rate alone ask for
    the same things at the same time, so that their clients fill one batch; others take turns. A run that is behind goes first,
    until it has caught up.

    Args:
        riders: runs that are awaited from the beginning.
    """

    def __init__(self, riders: int = 0) -> None:
        self.turn = threading.Condition()
        self.riders = riders
        self.waiting: list[Request] = []
        self.libraries: list[Federation] = []
        self.shared: dict[Hashable, Shared] = {}

    def library_of(self, federation: Federation) -> int:
        """A number for the images and labels that a federation shares with others; clients can be mixed where it is equal."""
        names = ("images", "labels", "test_images", "test_labels")
        for number, known in enumerate(self.libraries):
            if all(torch.equal(getattr(known, name), getattr(federation, name)) for name in names):
                return number
        self.libraries.append(federation)
        return len(self.libraries) - 1

    def join(self) -> None:
        """From now on the others wait for what one more run asks."""
        with self.turn:
            self.riders += 1

    def leave(self) -> None:
        """From now on nobody waits for one of the runs."""
        with self.turn:
            self.riders -= 1
            self.shared.clear()  # what belongs to those who were here
            if not self.riders:
                self.libraries.clear()
            self.turn.notify_all()  # one of those who wait goes on

    def seat(self, config: RunConfig, network: Network, federation: Federation) -> Seat:
        """Where a run that rides along asks for the work of its clients."""
        return Seat(self, config, network, federation)

    def simulation(self, config: RunConfig) -> Simulation:
        """A run that rides along; made while no other is, as start values are drawn from a generator of the whole process."""
        from pfl_lite.engine.rounds import Simulation

        with self.turn:
            return Simulation(config, ride=self)

    def answered(self, request: Request) -> tuple[Params, ...]:
        """What a run asked for, once it is there; an error of the computation is raised by every run that asked for it."""
        with self.turn:
            self.waiting.append(request)
            while request.answers is None and request.error is None:
                if len(self.waiting) < self.riders:
                    self.turn.wait()
                else:
                    self.go_on()
        if request.error is not None:
            raise request.error
        assert request.answers is not None
        return request.answers

    def go_on(self) -> None:
        """Compute what is asked for by those who are furthest behind; everybody aboard is waiting."""
        behind = min(request.round for request in self.waiting)
        asked = [request for request in self.waiting if request.round == behind]
        self.waiting = [request for request in self.waiting if request.round != behind]
        kinds: list[tuple[object, list[Request]]] = []  # no dict: a method's settings need not be hashable
        for request in asked:
            kind = request.kind
            mine = next((requests for known, requests in kinds if known == kind), None)
            if mine is None:
                kinds.append((kind, [request]))
            else:
                mine.append(request)
        for _, requests in kinds:
            requests.sort(key=lambda request: (request.seat.seed, request.settings.lr))
            seats = tuple(request.seat for request in requests)
            place = requests[0].function.__code__, seats  # serves all rounds: what it learned of memory stays
            try:
                if place not in self.shared:
                    self.shared[place] = Shared(seats)
                self.shared[place].answer(requests)
            except BaseException as error:  # an interrupt too: who is not answered waits for ever
                for request in requests:
                    request.error = error
        self.turn.notify_all()


def run_together(configs: Sequence[RunConfig]) -> list[Simulation]:
    """Train several runs at once and return them finished, in order; no number depends on who rides along, but for rounding.

    Runs that differ in seed and learning rate alone are computed as one batch. All need the engine `vmap`.

    Raises:
        InputError: a run that cannot be, or that cannot ride with others.
    """
    if not configs:
        return []
    ride, stopping = Ride(len(configs)), threading.Event()

    def train(config: RunConfig) -> Simulation:
        try:
            simulation = ride.simulation(config)
            simulation.run(stop=stopping.is_set, progress=False)
            return simulation
        finally:
            ride.leave()

    with ThreadPoolExecutor(len(configs)) as threads:
        try:
            return list(threads.map(train, configs))
        finally:
            stopping.set()  # after an error or an interrupt the others end with the round in hand
