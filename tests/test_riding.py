"""Runs that ride together: the numbers of every run alone, in as few computations as one run needs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from test_engine import quick
from toy import FAST, Dropped, same

from pfl_lite.engine import riding
from pfl_lite.engine.config import RunConfig, make_config
from pfl_lite.engine.mapping import Mapping
from pfl_lite.engine.riding import Ride, run_together
from pfl_lite.engine.rounds import Simulation, run
from pfl_lite.errors import InputError
from pfl_lite.experiments.crews import Riders, Task
from pfl_lite.methods import METHODS
from pfl_lite.methods.base import Method
from pfl_lite.methods.fedavg import FedAvg
from pfl_lite.models import NETWORKS, NetworkSpec

OTHERS = ({"seed": 3}, {"seed": 4}, {"seed": 3, "lr": 0.05})


def configured(method: str, **settings: Any) -> RunConfig:
    return make_config(method, **(FAST | {"engine": "vmap"} | quick(method, **settings)))


def alone(config: RunConfig) -> Simulation:
    settings = {name: value for name, value in config.as_dict().items() if name not in ("method", "engine")}
    return run(config.method, engine="loop", **settings)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many runs each computation answered."""
    seen: list[int] = []
    answer = riding.Shared.answer

    def counted(self: riding.Shared, requests: Any) -> None:
        seen.append(len(requests))
        answer(self, requests)

    monkeypatch.setattr(riding.Shared, "answer", counted)
    return seen


@pytest.mark.parametrize("method", METHODS)
def test_every_run_is_as_it_would_be_alone(method: str, calls: list[int]) -> None:
    settings = {"participation": 0.6, "momentum": 0.5, "weight_decay": 0.01, "ft_epochs": 1}
    configs = [configured(method, **settings, **other) for other in OTHERS]
    together = run_together(configs)
    if METHODS[method].arrive is Method.arrive:  # otherwise runs of other seeds ask for other newcomers
        assert set(calls) == {len(configs)}
    for config, simulation in zip(configs, together, strict=True):
        single = alone(config)
        assert simulation.config == config.resolved()
        assert same(simulation.scored_models(), single.scored_models(), 1e-10)
        assert same(simulation.server, single.server, 1e-10)
        assert simulation.map.images_trained == single.map.images_trained
        assert [entry["clients"] for entry in simulation.history.rounds] == [
            entry["clients"] for entry in single.history.rounds
        ]
        for name in ("test_loss", "test_accuracy"):
            mine, theirs = (one.report()["final"][name] for one in (simulation, single))
            assert mine == pytest.approx(theirs, abs=1e-10)
    assert not same(
        together[0].server or together[0].clients, together[2].server or together[2].clients, 1e-4
    )


def test_dropout_and_augmentation_are_those_of_each_run(
    calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(NETWORKS, "dropped", NetworkSpec(Dropped, ""))
    configs = [configured("fedavg", model="dropped", augment="crop_flip", **other) for other in OTHERS]
    for config, simulation in zip(configs, run_together(configs), strict=True):
        assert same(simulation.server, alone(config).server, 1e-10)
    assert set(calls) == {3}


def test_one_computation_of_a_kind_serves_all_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    make = riding.Shared.__init__

    def counted(self: riding.Shared, seats: Any) -> None:
        made.append(len(seats))
        make(self, seats)

    monkeypatch.setattr(riding.Shared, "__init__", counted)
    run_together([configured("fedavg", seed=seed, rounds=5) for seed in (3, 4)])
    assert made == [2, 2]  # training, and scoring


def test_runs_that_differ_otherwise_are_computed_one_after_another(calls: list[int]) -> None:
    configs = [configured("fedprox", mu=0.1), configured("fedprox", mu=1.0), configured("fedavg")]
    for config, simulation in zip(configs, run_together(configs), strict=True):
        assert same(simulation.server, alone(config).server, 1e-10)
    assert set(calls) == {1}


def test_labels_of_their_own_keep_runs_apart(calls: list[int]) -> None:
    configs = [configured("fedavg", partition="concept:2", seed=seed) for seed in (3, 4)]
    for config, simulation in zip(configs, run_together(configs), strict=True):
        assert same(simulation.server, alone(config).server, 1e-10)
    assert set(calls) == {1}


def test_a_run_that_is_ahead_waits_for_the_others(calls: list[int], tmp_path: Path) -> None:
    configs = [configured("fedavg", seed=seed, rounds=4) for seed in (3, 4)]
    first = Simulation(configs[0])
    first.run(checkpoint=tmp_path / "first.pt", stop=lambda: first.round == 2)
    ride, done = Ride(), {}

    def train(config: RunConfig, checkpoint: Path) -> None:
        simulation = ride.simulation(config)
        simulation.run(checkpoint=checkpoint, progress=False)
        done[config.seed] = simulation
        ride.leave()

    threads = [
        threading.Thread(target=train, args=about)
        for about in zip(configs, (tmp_path / "first.pt", tmp_path / "second.pt"), strict=True)
    ]
    for _ in threads:
        ride.join()  # all of them before the first sets out: else it may be rounds ahead before the second is aboard
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for config in configs:
        assert same(done[config.seed].server, alone(config).server, 1e-10)
    assert calls.count(2) >= 2 * 3  # rounds 3 and 4: training, and scores on two splits


def test_an_error_reaches_every_run_that_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Mapping, *about: Any) -> Any:
        raise InputError("no room")

    monkeypatch.setattr(riding.Shared, "stacked", broken)
    with pytest.raises(InputError, match="no room"):
        run_together([configured("fedavg", seed=seed) for seed in (3, 4)])


def test_a_run_that_cannot_be_holds_up_nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PFL_LITE_DATA", str(tmp_path))
    with pytest.raises(InputError, match="cifar10"):
        run_together([configured("fedavg"), configured("fedavg", data="cifar10")])


def test_nothing_is_kept_when_nobody_is_aboard(monkeypatch: pytest.MonkeyPatch) -> None:
    rides: list[Ride] = []
    monkeypatch.setattr(riding, "Ride", lambda riders: rides.append(Ride(riders)) or rides[-1])
    run_together([configured("fedavg", seed=seed) for seed in (3, 4)])
    (ride,) = rides
    assert (ride.riders, ride.waiting, ride.libraries, ride.shared) == (0, [], [], {})
    assert run_together([]) == []


def test_what_cannot_ride_is_refused() -> None:
    with pytest.raises(InputError, match="--engine vmap, not loop"):
        run_together([configured("fedavg", engine="loop")])


def test_rates_of_fine_tuning_that_are_those_of_one_run_alone_keep_runs_apart(tmp_path: Path) -> None:
    common: dict[str, Any] = {"rounds": 3, "epochs": 1, "ft_epochs": 1, "ft_lr": 0.1, "ft_every": 1}
    configs = [configured("fedavg", lr=lr, **common) for lr in (0.1, 0.05)]
    for rounds, config in enumerate(configs, 1):  # so that one fine-tunes where the other trains
        stop = iter([False] * rounds + [True])
        Simulation(config).run(checkpoint=tmp_path / f"{config.lr}.pt", stop=stop.__next__)
    ride, done = Ride(len(configs)), {}

    def train(config: RunConfig) -> None:
        try:
            done[config.lr] = ride.simulation(config)
            done[config.lr].run(checkpoint=tmp_path / f"{config.lr}.pt", progress=False)
        finally:
            ride.leave()

    with ThreadPoolExecutor(len(configs)) as threads:
        list(threads.map(train, configs))
    for config in configs:
        mine, theirs = (
            [entry["tuned_accuracy"] for entry in one.history.rounds]
            for one in (done[config.lr], alone(config))
        )
        assert mine == pytest.approx(theirs)


@dataclass(frozen=True)
class Listed(FedAvg):
    """FedAvg with a setting that cannot be hashed."""

    sizes: tuple[list[int], ...] = ([1],)


def test_settings_need_not_be_hashable(calls: list[int]) -> None:
    config = make_config(Listed(), **(FAST | {"engine": "vmap"}))
    configs = [replace(config, seed=seed) for seed in (3, 4)]
    done = within(60, lambda: run_together(configs))
    assert [simulation.round for simulation in done] == [2, 2] and set(calls) == {2}


def test_a_run_that_fails_between_computations_ends_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    aggregate, seen = FedAvg.aggregate, []

    def broken(self: FedAvg, server: Any, uploads: Any, round: Any) -> Any:
        seen.append((round.seed, round.number))
        if (round.seed, round.number) == (3, 2):
            raise InputError("no sum")
        return aggregate(self, server, uploads, round)

    monkeypatch.setattr(FedAvg, "aggregate", broken)
    with pytest.raises(InputError, match="no sum"):
        within(60, lambda: run_together([configured("fedavg", seed=seed, rounds=200) for seed in (3, 4)]))
    assert max(number for _, number in seen) < 200


def test_an_interrupted_computation_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Mapping, *about: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(riding.Shared, "stacked", interrupted)
    with pytest.raises(KeyboardInterrupt):
        within(60, lambda: run_together([configured("fedavg", seed=seed) for seed in (3, 4)]))


def test_nobody_waits_for_a_run_that_is_cancelled_before_it_begins(tmp_path: Path) -> None:
    crew = Riders(1)
    held = threading.Event()
    crew.pool.submit(held.wait)  # the only thread
    waiting = crew.submit(Task("", "fedavg", 3, configured("fedavg")), tmp_path / "checkpoint.pt")
    assert crew.ride.riders == 1 and waiting.cancel()
    assert crew.ride.riders == 0
    held.set()
    crew.close()


def within(seconds: float, action: Callable[[], Any]) -> Any:
    """What an action gives, or its error; a failure, not a test that hangs, where it takes longer."""
    came: Future[Any] = Future()

    def act() -> None:
        try:
            came.set_result(action())
        except BaseException as error:
            came.set_exception(error)

    threading.Thread(target=act, daemon=True).start()
    return came.result(timeout=seconds)
