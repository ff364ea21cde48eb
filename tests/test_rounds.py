"""A run's bookkeeping: who takes part, whose state is kept, from where clients are tuned, what is scored and watched."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from toy import FAST, same, tiny_clients

from pfl_lite.config import make_config
from pfl_lite.engine import simulation
from pfl_lite.engine.history import History
from pfl_lite.engine.local_training import LocalWork
from pfl_lite.engine.simulation import Simulation
from pfl_lite.methods import FedAvg
from pfl_lite.methods.base import Round, Sequential, Work
from pfl_lite.models import Network, Params

FOUR: dict[str, Any] = {"clients": 4, "model": "linear", "epochs": 1, "rounds": 8}


@dataclass(frozen=True)
class Noted(FedAvg):
    """FedAvg whose clients keep their number and their last round, and whose server notes what it is told."""

    name: ClassVar[str] = "noted"
    told: ClassVar[list[Round]] = []

    def init(self, start: Params, network: Network, clients: int) -> tuple[Params, Params]:
        nobody = torch.full((clients,), -1)
        return start, {"who": nobody, "last": nobody}

    def local(self, received: Params, client: Params, work: Work) -> tuple[Params, Params]:
        upload, _ = super().local(received, {}, work)
        assert isinstance(work, LocalWork)  # which knows whose it is
        return upload, {"who": torch.as_tensor(work.id), "last": torch.tensor(work.round)}

    def aggregate(self, server: Params, uploads: Params, round: Round) -> Params:
        self.told.append(round)
        return super().aggregate(server, uploads, round)


@pytest.mark.parametrize("seed", range(3))
def test_a_round_s_clients_are_drawn_anew_and_keep_their_own_states(seed: int) -> None:
    Noted.told.clear()
    settings = FAST | FOUR | {"seed": seed, "participation": 0.67, "unseen": 1}
    sim = Simulation(make_config(Noted(), **settings), tiny_clients())
    sim.run(progress=False)
    members = {0, 1, 2, 3} - set(sim.unseen.tolist())
    assert [told.number for told in Noted.told] == [*range(1, 9)]
    for told in Noted.told:
        ids = told.ids.tolist()
        assert len(ids) == len(set(ids)) == 2 and set(ids) <= members and ids == sorted(ids)
        assert told.sizes.tolist() == [i + 1 for i in ids]  # client i has i + 1 images
        assert told.clients == 3  # who is held out is not one of them
    assert len({tuple(told.ids.tolist()) for told in Noted.told}) == 3  # every pair comes in eight rounds
    for i in members:
        last = max(told.number for told in Noted.told if i in told.ids)
        assert (sim.clients["who"][i], sim.clients["last"][i]) == (i, last)
    assert sim.clients["who"][sim.unseen] == -1


def quick(method: str | FedAvg, **settings: Any) -> Simulation:
    """A simulation of the four tiny clients."""
    return Simulation(make_config(method, **(FAST | FOUR | settings)), tiny_clients())


def test_a_newcomer_is_tuned_from_the_model_it_is_scored_with_and_nobody_is_one_before_training() -> None:
    sim = quick("ditto", participation=0.5, ft_epochs=1, lr=0.5)
    assert sim.newcomer_states() is sim.clients
    sim.advance()
    assert not sim.sampled.all() and not same(sim.newcomer_states(), sim.clients)
    assert same(sim.tuned_models(epochs=0), sim.personal_models(), 0)


@dataclass(frozen=True)
class InTurns(FedAvg, Sequential):
    """FedAvg whose clients start from what the one before them made of the server's model."""

    name: ClassVar[str] = "in_turns"

    def hand_over(self, server: Params, upload: Params) -> Params:
        """What the next client receives."""
        return upload


def test_clients_that_train_in_turns_are_each_tuned_from_the_server_s_model() -> None:
    often, once = (quick(InTurns(), rounds=2, ft_epochs=1, ft_every=every) for every in (1, 0))
    once.tuning_is_next_round = False
    for sim in (often, once):
        sim.run(progress=False)
    assert same(often.server, once.server, 0) and same(often.scored_models(), once.scored_models(), 0)


def test_both_engines_judge_by_the_images_that_each_client_has() -> None:
    tiny = tiny_clients()
    mixed = replace(tiny, val=[torch.tensor([], dtype=torch.int64), *tiny.train[:-1]])
    settings = FAST | FOUR | {"models": 4, "rounds": 3, "lr": 0.5}
    loop, vmap = (
        Simulation(make_config("fedfomo", **settings, engine=engine), mixed) for engine in ("loop", "vmap")
    )
    for sim in (loop, vmap):
        sim.run(progress=False)
    assert (loop.clients["weights"].sum(1) > 0).any() and same(loop.scored_models(), vmap.scored_models())
    a, b = (sim.report()["final"]["test_loss"] for sim in (loop, vmap))
    assert a == pytest.approx(b, abs=1e-12)


def test_the_last_round_is_scored_however_seldom_others_are() -> None:
    sim = quick("fedavg", rounds=3, eval_every=5)
    sim.run(progress=False)
    scored = [entry["round"] for entry in sim.history.rounds if "personal_accuracy" in entry]
    assert scored == [0, 3]


@pytest.mark.parametrize(("small", "seen"), [(8, [0, 1, 3, 5]), (0, [0, 3, 5])])
def test_states_are_kept_of_early_rounds_if_small_and_of_the_last_as_long_as_it_is(
    small: int, seen: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    limits = {"ALL_WATCHED": 1, "SMALL_STATE": small, "WATCHED_ROUNDS": (0, 3)}
    for name, value in limits.items():
        monkeypatch.setattr(simulation, name, value)
    first, longer = quick("ifca", rounds=2), quick("ifca", rounds=5)
    first.run(checkpoint=tmp_path / "run.pt", progress=False)
    assert list(first.history.watch["cluster"]) == [*map(str, seen[:-2]), "2"]
    longer.run(checkpoint=tmp_path / "run.pt", progress=False)
    assert list(longer.history.watch["cluster"]) == [*map(str, seen)]


def test_scores_by_hand() -> None:
    history = History(train_sizes=[5] * 4, test_sizes=[1, 2, 4, 0], val_sizes=[2, 0, 2, 4], unseen=[2])
    entry: dict[str, Any] = {}
    history.add_scores(entry, "personal", "test", np.array([1.0, 1, 1, 0]), np.array([2.0, 2, 2, 0]))
    assert entry["personal_accuracy"] == 0.75 and entry["personal_accuracy_weighted"] == pytest.approx(2 / 3)
    assert entry["unseen_personal_accuracy"] == 0.25 and entry["personal_loss"] == 1.5
    history.add_scores(entry, "personal", "val", np.array([1.0, 0, 2, 1]), np.zeros(4))
    assert entry["val_personal_accuracy"] == 0.375  # 1/2 and 1/4
    assert entry["val_personal_accuracy_weighted"] == pytest.approx(2 / 6)
    assert "unseen_val_personal_accuracy" not in entry
    history.add_whole_test(entry, "personal", {"global_test": np.array([0.5, np.nan, 0.9, 0.7])})
    assert entry["whole_test"]["personal"]["global_test"] == pytest.approx(0.6)
