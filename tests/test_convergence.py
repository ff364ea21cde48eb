"""Runs that end when validation accuracy no longer rises, and the choice of the rate of fine-tuning: validation images decide."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from toy import FAST, same, train

from pfl_lite.config import make_config
from pfl_lite.engine.checkpoint import trains_alike
from pfl_lite.engine.history import converged_in, has_converged
from pfl_lite.engine.simulation import Simulation
from pfl_lite.errors import InputError

NAN = float("nan")
STOPS: dict[str, Any] = {"rounds": 60, "patience": 3, "lr": 0.5, "epochs": 1}


def entries(*scores: float | None, name: str = "val_personal_accuracy") -> list[dict[str, Any]]:
    """A history with these accuracies after rounds 0, 1, ..."""
    return [{"round": i} | ({} if score is None else {name: score}) for i, score in enumerate(scores)]


@pytest.mark.parametrize(
    ("scores", "patience", "ends"),
    [
        ((0.1, 0.5, 0.4, 0.4), 2, True),  # best in round 1
        ((0.1, 0.5, 0.4, 0.4), 3, False),
        ((0.1, 0.5, 0.4, 0.6), 2, False),  # it has just risen
        ((0.1, 0.5, 0.5, 0.5), 2, True),  # as good is not better
        ((0.9, 0.1, 0.2, 0.3), 2, False),  # what an untrained model is guessing by luck does not count
        ((0.1, 0.5, None, None), 2, False),  # nobody has looked
        ((0.1, 0.5, None, 0.4), 2, True),
        ((0.1, 0.5, 0.4, 0.4), 0, False),
        ((0.1, NAN, 0.4, 0.5), 2, False),  # what is not a number is not the best
        ((0.1, 0.5, NAN, NAN), 2, True),
        ((0.1, NAN, NAN, NAN), 2, True),
    ],
)
def test_when_a_run_has_converged(scores: tuple[float | None, ...], patience: int, ends: bool) -> None:
    assert has_converged(entries(*scores), patience) is ends


def test_where_models_are_fine_tuned_those_decide() -> None:
    rising, falling = (0.1, 0.2, 0.3, 0.4), (0.1, 0.8, 0.7, 0.6)
    both = [
        a | b for a, b in zip(entries(*rising), entries(*falling, name="val_tuned_accuracy"), strict=True)
    ]
    assert has_converged(both, 2) and not has_converged(entries(*rising), 2)


def test_a_run_ends_when_it_has_converged_and_keeps_the_last_model(federation: Any) -> None:
    sim = train("fedavg", federation, **STOPS)
    ended = converged_in(sim.history.rounds)
    assert ended == sim.round and 3 < sim.round < 60 and sim.report()["complete"]
    values = [entry["val_personal_accuracy"] for entry in sim.history.rounds]
    assert ended - (1 + max(range(ended), key=lambda t: values[1:][t])) == 3
    same_length = train("fedavg", federation, **(STOPS | {"rounds": ended, "patience": 0}))
    assert same(sim.server, same_length.server)
    longer = train("fedavg", federation, **(STOPS | {"patience": 6}))
    assert longer.round > sim.round


def test_test_images_decide_nothing(federation: Any) -> None:
    from dataclasses import replace

    half = replace(federation, test=[ids[: len(ids) // 2] for ids in federation.test])
    settings = STOPS | {"ft_epochs": 1, "ft_every": 1, "ft_factors": "0,0.1,1"}
    a, b = (train("fedavg", some, **settings) for some in (federation, half))
    assert a.round == b.round and a.history.rounds[-1]["factors"] == b.history.rounds[-1]["factors"]
    assert same(a.scored_models(), b.scored_models())


def test_a_run_that_is_stopped_and_resumed_ends_in_the_same_round(federation: Any, tmp_path: Path) -> None:
    settings = STOPS | {"ft_epochs": 1, "ft_every": 1, "ft_factors": "0,1"}
    whole = train("fedavg", federation, **settings)
    file = tmp_path / "run.pt"
    config = make_config("fedavg", **(FAST | settings))
    for until in (1, whole.round - 1, whole.round, 60):
        sim = Simulation(config, federation)
        sim.run(checkpoint=file, stop=lambda sim=sim, until=until: sim.round >= until)  # type: ignore[misc]
        assert sim.round == min(until, whole.round) and sim.done is (until >= whole.round)
    assert sim.report()["final"] == whole.report()["final"]


def test_the_factor_of_fine_tuning_is_the_best_on_validation_images(federation: Any) -> None:
    settings: dict[str, Any] = {"ft_epochs": 2, "partition": "classes:2"}
    chosen = train("fedavg", None, **settings, ft_factors="0,0.01,1")
    last = chosen.history.rounds[-1]
    assert set(last["factors"]) == {"0", "0.01", "1"}
    assert (
        last["factors"][f"{last['factor']:g}"] == max(last["factors"].values()) == last["val_tuned_accuracy"]
    )
    assert last["factors"]["0"] == last["val_personal_accuracy"]
    for factor in (0.01, 1):
        alone = train("fedavg", None, **settings, ft_lr=factor * FAST["lr"]).history.rounds[-1]
        assert last["factors"][f"{factor:g}"] == pytest.approx(alone["val_tuned_accuracy"], abs=1e-12)
    nothing = train("fedavg", None, **settings, ft_factors="0")
    assert same(nothing.scored_models(), nothing.personal_models())


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"patience": -1}, "patience"),
        ({"patience": 2, "eval_every": 5}, "patience"),
        ({"patience": 2, "ft_epochs": 1}, "patience"),
        ({"patience": 2, "val_fraction": 0.0}, "patience"),
        ({"ft_factors": "0,1"}, "ft_factors"),
        ({"ft_factors": "0,fast", "ft_epochs": 1}, "ft_factors"),
        ({"ft_factors": "0,-1", "ft_epochs": 1}, "ft_factors"),
        ({"ft_factors": "0,1", "ft_epochs": 1, "val_fraction": 0.0}, "ft_factors"),
    ],
)
def test_what_cannot_be_asked_for(settings: dict[str, Any], word: str) -> None:
    with pytest.raises(InputError, match=word):
        make_config("fedavg", **settings)


@pytest.mark.parametrize("patience", [0, 2])
def test_a_run_with_patience_or_scores_of_tuned_models_on_the_way_is_not_taken_over(patience: int) -> None:
    a, b = (make_config(name, ft_epochs=1, ft_every=1, patience=patience) for name in ("fedavg", "pfl_ft"))
    assert not trains_alike(a, b)
