"""Searches that climb ladders: which candidate comes next, and when the search is over."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import pfl_lite.papers as protocols
from pfl_lite.papers import PFEDMB_TABLE1, get_experiment
from pfl_lite.papers.experiment import Arm, climbed
from pfl_lite.results import audit as care
from pfl_lite.results import runner
from pfl_lite.results.ledger import Ledger


def best_at(**wanted: float) -> Any:
    """A score for candidates that falls with the distance to some settings, in steps of a ladder."""

    def score(settings: dict[str, Any], ladders: dict[str, tuple[Any, ...]]) -> dict[str, Any]:
        away = sum(abs(ladders[k].index(settings[k]) - ladders[k].index(v)) for k, v in wanted.items())
        return {"settings": settings, "validation_accuracy": 0.9 - away / 10}

    return score


def climb(
    candidates: tuple[int, int], score: Any, ladders: dict[str, tuple[Any, ...]], *grid: dict[str, Any]
) -> Any:
    arm = Arm("fedprox", "fedprox", "FedProx", None, grid, ladders=ladders)
    scored: list[dict[str, Any]] = []
    while len(tried := climbed(arm, scored, candidates)) > len(scored):
        assert tried[: len(scored)] == tuple(one["settings"] for one in scored)  # what was tried stays
        scored.append(score(tried[len(scored)], ladders))
    return [tuple(one["settings"].values()) for one in scored]


RUNGS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)


def test_a_search_climbs_its_ladders_until_its_best_is_no_longer_at_the_edge() -> None:
    start = {"lr": 0.003, "mu": 0.003}
    ladders = {"lr": RUNGS, "mu": RUNGS}
    found = climb((4, 20), best_at(lr=0.1, mu=0.003), ladders, start)
    assert found[0] == (0.003, 0.003) and len(found) == len(set(found)) <= 20
    best = (0.1, 0.003)
    assert best in found and {(0.03, 0.003), (0.3, 0.003), (0.1, 0.001), (0.1, 0.01)} & set(found)
    tried = {settings[0] for settings in found}
    assert min(tried) < 0.1 < max(tried)  # not at the edge
    assert len(climb((4, 4), best_at(lr=0.1, mu=0.003), ladders, start)) == 4
    assert (
        len(climb((9, 9), best_at(lr=0.003, mu=0.003), ladders, start)) == 9
    )  # then neighbors of the next best
    assert len(climb((4, 9), best_at(lr=0.001, mu=0.003), ladders, start)) < 9  # a ladder ends


def test_a_search_by_hand() -> None:
    ladder, start = {"lr": RUNGS}, {"lr": 0.01}
    # up, then down; three are tried, and the best of them is not at the edge
    assert climb((3, 9), best_at(lr=0.01), ladder, start) == [(0.01,), (0.03,), (0.003,)]
    # up while the best is at the edge, and one step beyond it
    assert climb((1, 9), best_at(lr=0.1), ladder, start) == [(0.01,), (0.03,), (0.1,), (0.3,)]
    # the best is the lowest of all, and what lies above it has been seen further up
    assert climb((2, 9), best_at(lr=0.001), ladder, {"lr": 0.001}, {"lr": 0.1}) == [(0.001,), (0.1,)]


def test_a_search_without_ladders_is_its_grid() -> None:
    arm = Arm("fedavg", "fedavg", "FedAvg", None, ({"lr": 0.1}, {"lr": 0.2}))
    assert climbed(arm, [], (9, 9)) == arm.grid


def test_a_sweep_climbs_and_is_not_asked_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    arm = Arm("fedavg", "fedavg", "FedAvg", None, ({"lr": 0.001},), ladders={"lr": RUNGS})
    tiny = replace(
        PFEDMB_TABLE1, name="tiny", data="digits", model="linear", rounds=2, epochs=1, ft_epochs=1, arms=(arm,), seeds=(0,),
        search_rounds=1, candidates=(3, 9), patience=1, common={"ft_factors": "0,1"},
    )  # fmt: skip
    monkeypatch.setitem(protocols.EXPERIMENTS, "tiny", tiny)
    ledger = Ledger(tmp_path)
    assert runner.reproduce("tiny", ledger=ledger, device="cpu").left == 0
    (search,) = ledger.searches("tiny")
    rates = [one["settings"]["lr"] for one in search["candidates"]]
    assert 3 <= len(rates) <= len(RUNGS) and rates[0] == 0.001
    scores = {one["settings"]["lr"]: one["validation_accuracy"] for one in search["candidates"]}
    best = max(scores, key=lambda rate: scores[rate])
    assert search["chosen"] == {"lr": best} and best in (*sorted(rates)[1:-1], RUNGS[0], RUNGS[-1])
    assert ledger.read("tiny")[0]["config"]["lr"] == best
    assert runner.reproduce("tiny", ledger=ledger, device="cpu").written == []
    assert care.check(ledger).faults == [] and care.missing("tiny", ledger) == []
    assert get_experiment("tiny").heading.endswith(
        "has not risen for 1 rounds, 2 rounds at most, 1 seed planned)"
    )
