"""Every protocol with every budget: the same comparison, settings that can be, search budgets that are equal."""

from __future__ import annotations

import json
import re
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pfl_lite.config import make_config
from pfl_lite.errors import InputError
from pfl_lite.methods import METHODS
from pfl_lite.papers import EXPERIMENTS, GROUPS, Experiment, every_budget, get_experiment, members, statement
from pfl_lite.results import executors, runner
from pfl_lite.results.ledger import Ledger
from pfl_lite.results.plan import Plan
from pfl_lite.results.tables import table
from pfl_lite.show.figures import FIGURES
from tests.test_sweep import Inline

ALL = every_budget()
PAPERS = [one for one in EXPERIMENTS.values() if one.paper_budget]


def searching(experiment: Experiment) -> Experiment:
    while experiment.searched_in is not None:
        experiment = get_experiment(experiment.searched_in, experiment.budget)
    return experiment


@pytest.mark.parametrize("one", PAPERS, ids=lambda one: one.name)
def test_budgets_differ_in_what_is_spent_and_in_nothing_else(one: Experiment) -> None:
    paper = one.at("paper")
    for name in ("data", "partition", "clients", "model", "epochs", "participation", "measures"):
        assert getattr(paper, name) == getattr(one, name)
    for each in (one, paper):  # smaller ones than FedMN's 128 are a deviation
        said = any(f"Mini-batches of {each.batch_size} images" in words for words in each.deviations)
        assert said == (each.name.startswith("fedmn") and each.batch_size != 128)
    assert one.batch_size == paper.batch_size or one.name == "fedmn-table2-cifar100-lenet"
    assert paper.common.items() - {("ft_factors", "0,0.1,1")} == one.common.items()
    assert paper.name == f"{one.name}-paper" and paper.budget == "paper"
    for arm in one.arms:
        other = paper.arm(arm.key)
        assert (arm.method, arm.label, arm.paper, arm.papers) == (
            other.method,
            other.label,
            other.paper,
            other.papers,
        )
        assert paper.rounds_of(other) >= one.rounds_of(arm)
    assert one.heading != paper.heading and "small budget" in one.heading and "paper budget" in paper.heading
    assert paper.at("paper") is paper


def test_no_two_experiments_share_a_folder_of_the_ledger() -> None:
    assert len({one.name for one in ALL}) == len(ALL)
    assert set(GROUPS).isdisjoint(EXPERIMENTS) and set(FIGURES) <= set(GROUPS)
    assert all(name in EXPERIMENTS for parts in GROUPS.values() for name in parts)


@pytest.mark.parametrize("one", ALL, ids=lambda one: one.name)
def test_every_search_and_every_result_has_settings_that_can_be(one: Experiment) -> None:
    home = searching(one)
    for arm in one.arms:
        source = home.arm(str(arm.rates_of)) if arm.run_of or arm.rates_of else home.arm(arm.key)
        for candidate in source.grid or ({},):
            result = one.settings(0, rounds=one.rounds_of(arm)) | {"device": "cpu"} | arm.settings | candidate
            make_config(arm.method, **result)
        for candidate in arm.grid if home is one else ():
            short = one.settings(one.search_seed, rounds=one.search_rounds) | {"device": "cpu"}
            make_config(
                arm.method, **(short | {"ft_every": 0, "patience": 0} | arm.settings | arm.search | candidate)
            )
        model = arm.settings.get("model", one.model)
        if model.startswith("mobilenet"):
            assert METHODS[arm.method].traits.fits_batch_norm, f"{arm.key} refuses batch norm"
    assert one.search_seed not in one.seeds


FEDMN_S = dict.fromkeys(("fedmn", "fedmn-wide", "fedmn-printed", "fedmn-program", "fedmn-works"))


@pytest.mark.parametrize("one", [e for e in ALL if e.name != "pfedmb-table1"], ids=lambda one: one.name)
def test_all_methods_are_searched_alike(one: Experiment) -> None:
    if any(one.candidates):  # ladders go on from grids of any length to the same number
        assert all(arm.ladders and len(arm.grid) < one.candidates[0] for arm in one.arms if arm.grid)
    else:
        assert len({len(arm.grid) for arm in one.arms if arm.grid}) <= 1
    assert {arm.key for arm in one.arms if "rounds" in arm.search} <= FEDMN_S.keys()


def test_a_run_that_stands_for_another_s_is_the_same_run() -> None:
    borrowed = [(one, arm) for one in ALL for arm in one.arms if arm.run_of is not None]
    assert len(borrowed) == 12
    for one, arm in borrowed:
        home = get_experiment(str(arm.run_of), one.budget)
        theirs = home.arm(str(arm.rates_of))
        mine = one.settings(0, rounds=one.rounds_of(arm)) | arm.settings
        assert mine == home.settings(0, rounds=home.rounds_of(theirs)) | theirs.settings
        assert arm.method == theirs.method and set(one.seeds) <= set(home.seeds) and arm.paper == theirs.paper


def test_printed_numbers_stand_beside_the_paper_s_data_only() -> None:
    assert [arm.paper for arm in EXPERIMENTS["fedmn-table2-femnist"].arms] == [
        71.0, 78.6, 78.9, 75.3, 73.5, 74.9, 79.9, 82.2
    ]  # fmt: skip
    for name in ("cifar10", "cifar100", "emnist", "femnist", "cifar10-lenet", "cifar100-lenet"):
        one = EXPERIMENTS[f"fedmn-table2-{name}"]
        ours = [arm for arm in one.arms if arm.key in FEDMN_S]
        eight, last = one.arms[:8], ours[1] if name.endswith("lenet") else None
        assert [arm.key for arm in ours] == (list(FEDMN_S) if last else ["fedmn"]) and ours[0] in eight
        assert len(eight) == 8 and all(arm.paper is not None for arm in eight)
        assert bool(one.stands_in) == name.endswith("lenet") == (last is not None)
        if last is not None:  # as FedMN's row but for the start of its blocks
            fedmn = replace(one.arm("fedmn"), key="fedmn-wide", label=last.label, paper=None)
            assert last == replace(fedmn, settings=fedmn.settings | {"block_std": 0.1})
    for name in ("glyphs", "glyphs-writers"):
        assert all(arm.paper is None for arm in EXPERIMENTS[f"fedmn-table2-{name}"].arms)
    assert {one.name for one in PAPERS if one.unavailable} == {
        "fedmn-table2-emnist", "fedmn-table2-femnist", "fedmn-fig2-emnist"
    }  # fmt: skip
    best = {6: "random2-15", 7: "dirichlet-15"}
    for number, setting in best.items():
        found = EXPERIMENTS[f"pfedmb-table3-{setting}"]
        assert found.arm(f"b{number}").paper == EXPERIMENTS[f"pfedmb-table2-{setting}"].arm("pfedmb").paper
        assert found.arm("b2").paper is None


def test_the_paper_of_the_guide_can_be_declared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(statement, "CLAIMS", {})
    guide = (Path(__file__).parent.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"   ```python\n(.*?)   ```", guide, re.DOTALL)
    named: dict[str, Any] = {}
    exec(textwrap.dedent(code), named)
    (one,) = named["DITTO"]
    test_every_search_and_every_result_has_settings_that_can_be(one)
    test_all_methods_are_searched_alike(one)
    assert one.settings(0, 1)["ft_every"] == 0 and "ft_epochs" not in one.settings(0, 1)
    assert table(one, Ledger(tmp_path))["Status"].tolist() == ["not run", "not run"]
    assert statement.CLAIMS["D1"].needs == {one.name: ("ditto", "fedavg")}


def test_wrong_names_are_answered() -> None:
    with pytest.raises(InputError, match="unknown budget 'papers': did you mean paper"):
        get_experiment("pfedmb-table1", "papers")
    with pytest.raises(InputError, match="when-label-skew is no paper's table"):
        get_experiment("when-label-skew", "paper")
    with pytest.raises(
        InputError, match=r"pfedmb-table2 is a group of experiments: take one of them \(pfedmb-table2-"
    ):
        get_experiment("pfedmb-table2")
    with pytest.raises(InputError, match="did you mean pfedmb-table2"):
        members("pfedmb-tabel2")
    assert members("pfedmb-fig5") == ("pfedmb-fig5",) and len(members("pfedmb-table2")) == 6


@pytest.mark.parametrize("name", ["femnist", "emnist"])
def test_letters_and_writers_run_from_small_files_of_their_format(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PFL_LITE_DATA", str(tmp_path / "data"))
    random, labels = np.random.default_rng(0), np.arange(62).repeat(10)
    if name == "femnist":  # as LEAF writes it
        users = [f"f{n}" for n in range(5)]
        drawn = {
            user: {"x": random.random((25, 784)).tolist(), "y": labels[n::25].tolist()[:25]}
            for n, user in enumerate(users)
        }
        (tmp_path / "data/femnist/all").mkdir(parents=True)
        content = {"users": users, "num_samples": [25] * 5, "user_data": drawn}
        (tmp_path / "data/femnist/all/part.json").write_text(json.dumps(content))
    else:  # as it is kept after torchvision fetched it
        (tmp_path / "data").mkdir()
        images = random.integers(0, 256, (len(labels), 28, 28), dtype=np.uint8)
        arrays = {
            f"{part}_{what}": x
            for part in ("train", "test")
            for what, x in (("images", images), ("labels", labels))
        }
        np.savez(tmp_path / "data/emnist.npz", **arrays)
    one = get_experiment(f"fedmn-table2-{name}")
    arms = tuple(
        replace(arm, grid=arm.grid[:1], settings=arm.settings | small, search={})
        for arm, small in (
            (one.arm("fedavg"), {}),
            (one.arm("pfl_ft"), {}),
            (
                one.arm("fedmn"),
                {"blocks": "2x2", "encoder_width": 8, "width": 4, "router_width": 4, "pretrain": 1},
            ),
        )
    )
    tiny = replace(
        one, name="letters", seeds=(0,), clients=4, rounds=2, search_rounds=3, model="mlp", arms=arms
    )
    monkeypatch.setitem(EXPERIMENTS, "letters", tiny)
    monkeypatch.setattr(executors, "ThreadPoolExecutor", Inline)
    ledger = Ledger(tmp_path / "results")
    assert set(table(tiny, ledger)["Reason"]) == {
        f"data not available here; where it is: `pfl-lite reproduce letters --methods {arm.key}`"
        for arm in arms
    }
    assert len(runner.reproduce("letters", ledger=ledger, device="cpu").written) == 5
    assert not table(tiny, ledger)["Ours (%)"].isna().any()


def test_vgg_s_experts_are_tuned_at_their_own_rate() -> None:
    """Section V-A of PFL-MoE: 0.001 for LeNet-5, 0.005 for VGG-16."""
    for pair, rate in (("fmnist-lenet", 0.001), ("cifar10-lenet", 0.001), ("cifar10-vgg16", 0.005)):
        arms = EXPERIMENTS[f"pflmoe-{pair}-0.9"].arms
        tuned = {arm.key: arm.settings["ft_lr"] for arm in arms if "ft_lr" in arm.settings}
        assert len(tuned) == len(arms) - 2 and set(tuned.values()) == {rate}  # all but Local and FedAvg


@pytest.mark.parametrize(("budget", "before", "after"), [("small", 30, 30), ("paper", 146, 150)])
def test_fedmn_s_rounds_follow_its_pre_training(budget: str, before: int, after: int) -> None:
    one = get_experiment("fedmn-table2-cifar10", budget)
    fedmn = one.arm("fedmn")
    assert fedmn.settings["pretrain"] == before and one.rounds_of(fedmn) == before + after


def test_a_candidate_is_scored_once_after_the_rounds_of_its_own_arm_s_search(tmp_path: Path) -> None:
    experiment = get_experiment("fedmn-table2-cifar10-lenet")
    plan = Plan(experiment, Ledger(tmp_path))
    rounds = {}
    for arm in (experiment.arm("fedavg"), experiment.arm("fedmn")):
        config = plan.trial(arm, arm.grid[0])
        assert config.eval_every == config.rounds == experiment.search_rounds_of(arm)
        rounds[arm.key] = config.rounds
    assert rounds["fedmn"] > rounds["fedavg"]


@pytest.mark.parametrize("experiment", ALL, ids=lambda one: f"{one.name}-{one.budget}")
def test_an_arm_takes_over_training_and_runs_only_with_their_settings(experiment: Experiment) -> None:
    for arm in experiment.arms:
        assert arm.trained_by in (None, arm.rates_of) and (arm.rates_of or not arm.run_of)
        assert not (arm.rates_of and (arm.grid or arm.ladders))
