"""What a look through the ledger finds, and which commands would fill its gaps."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pfl_lite.experiments import care
from pfl_lite.experiments.care import check, missing, nominal, price, show, whole
from pfl_lite.experiments.ledger import Ledger, default_folder
from pfl_lite.experiments.protocols import EXPERIMENTS, PFEDMB_TABLE1, get_experiment
from tests.test_cli import call
from tests.test_ledger import make_run, make_search
from tests.test_sweep import tiny  # noqa: F401 (a fixture)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path)


def enter(ledger: Ledger, **changes: Any) -> Path:
    run = make_run(**{k: v for k, v in changes.items() if k in ("arm", "seed", "lr", "model")})
    return ledger.write(
        run | {k: v for k, v in changes.items() if k in ("images_trained", "images_per_second")}
    )


def test_the_repository_s_ledger_is_sound() -> None:
    found = check(Ledger(default_folder()))
    assert found.faults == [] and found.files > 300 and found.bytes < care.LARGEST


def test_a_sound_ledger_has_no_fault_and_is_left_as_it_is(ledger: Ledger) -> None:
    enter(ledger)
    enter(ledger, seed=1)
    ledger.write(make_search(0.1, 0.2))
    (ledger.folder / ".checkpoints").mkdir()
    (ledger.folder / ".checkpoints/half.json").write_text("{")
    before = sorted(ledger.folder.rglob("*"))
    found = check(ledger)
    assert found.files == 3 and found.faults == [] and sorted(ledger.folder.rglob("*")) == before
    assert "toy: 2 runs of an experiment that is not known here" in found.notes


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("fedavg-seed0.json", "{", "toy/fedavg-seed0.json: it is not valid JSON"),
        ("fedavg-seed3.json", json.dumps(make_run()), "toy/fedavg-seed3.json: its name and its contents disagree"),
        ("fedavg-seed0.json", json.dumps(make_run() | {"code": 3}), '"code" is not a text'),
        (
            "fedavg-seed0.json",
            json.dumps(make_run(complete=False, method={}) | {"rounds": []}),
            '"config" does not name its method',
        ),
        ("fedavg-seed0.json", json.dumps(make_run() | {"arm": 3}), '"experiment" or "arm" is not a text'),
        (
            "search-fedavg.json",
            json.dumps(make_search(0.1) | {"chosen": {"lr": 9}}),
            '"chosen" is none of the candidates',
        ),
        ("search-fedavg.json", json.dumps(make_search() | {"candidates": [3]}), "not a list of objects"),
        (
            "search-fedavg.json",
            json.dumps(make_search(0.1)).replace('_accuracy": 0.5', '_accuracy": null'),
            'a candidate has no finite "validation_accuracy"',
        ),
        ("fedavg-seed0.json.damaged", "", "set aside as damaged"),
    ],
)  # fmt: skip
def test_a_file_that_breaks_its_schema_is_a_fault_and_stays_where_it_is(
    ledger: Ledger, name: str, text: str, says: str
) -> None:
    path = ledger.folder / "toy" / name
    path.parent.mkdir()
    path.write_text(text)
    found = check(ledger)
    assert len(found.faults) == 1 and says in found.faults[0] and path.read_text() == text
    result = call("ledger", "check", "--ledger", ledger.folder)
    assert result.exit_code == 1 and says in result.stdout and "1 faults" in result.stdout


def test_a_run_that_is_kept_twice_is_a_fault_wherever_it_was_computed(ledger: Ledger) -> None:
    enter(ledger)
    enter(ledger, arm="other", lr=0.1)
    assert check(ledger).faults == []
    copy = make_run(arm="third", device="cuda")
    ledger.write(copy)
    assert check(ledger).faults == ["toy/third-seed0.json: the same run as toy/fedavg-seed0.json: keep one"]


def test_a_ledger_too_large_to_keep_is_a_fault(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    enter(ledger)
    monkeypatch.setattr(care, "LARGEST", 100)
    assert "more than 0 MB" in check(ledger).faults[0]


def test_empty_cells_are_counted_and_the_paper_s_only_where_there_is_one(ledger: Ledger) -> None:
    notes = check(ledger).notes
    assert "pfedmb-table1: 12 of 12 results are missing" in notes and not any(
        "-paper" in note for note in notes
    )
    (ledger.folder / "pfedmb-table1-paper").mkdir()
    assert "pfedmb-table1-paper: 12 of 12 results are missing" in check(ledger).notes


def test_images_are_counted_by_hand() -> None:
    local, fedavg = PFEDMB_TABLE1.arm("local"), PFEDMB_TABLE1.arm("fedavg")
    assert nominal(PFEDMB_TABLE1, local, 30) == 40_000 * (30 * 5 + 5)
    assert price(PFEDMB_TABLE1).startswith("12 results, 8 candidates, ")
    moe = EXPERIMENTS["pflmoe-fmnist-lenet-0.9"]
    assert nominal(moe, moe.arm("fedavg"), 100) == 60_000 * 0.1 * 5 * 100
    assert nominal(moe, moe.arm("local"), 100) == 60_000 * 100  # its own participation and epochs
    assert nominal(moe, moe.arm("pfl_mf"), 0) == 60_000 * 50  # takes over FedAvg's training
    mn = EXPERIMENTS["fedmn-table2-cifar10"]
    assert nominal(mn, mn.arm("fedavg"), 1) == pytest.approx(60_000 * 0.8 * 0.75)
    assert nominal(PFEDMB_TABLE1, fedavg, 30) == nominal(PFEDMB_TABLE1, local, 30)


def named(name: str, ledger: Ledger, budget: str = "small") -> list[str]:
    return [one.command for one in missing(name, ledger, budget)]


def test_gaps_are_commands_that_the_command_line_takes_the_longest_first(tiny: str, ledger: Ledger) -> None:  # noqa: F811
    one = get_experiment(tiny)
    for seed, arms in ((0, ("fedavg", "local")), (1, ("local",))):
        for key in arms:
            run = make_run(key, seed) | {"experiment": tiny, "images_per_second": 100}
            trained = nominal(one, one.arm(key), 2) * (
                3 if key == "local" else 1
            )  # three times FedAvg's images
            ledger.write(run | {"images_trained": trained})
    found = missing(tiny, ledger)
    assert {item.command for item in found} == {
        "pfl-lite reproduce tiny --methods pfedmb-plain --seeds 0,1",
        "pfl-lite reproduce tiny --methods pfedmb --seeds 0,1",
        "pfl-lite reproduce tiny --methods fedavg --seeds 1",
    }
    assert [bool(item.after) for item in found] == sorted(bool(item.after) for item in found)
    for waits in (False, True):
        hours = [item.hours for item in found if bool(item.after) == waits]
        assert hours and None not in hours and hours == sorted(hours, reverse=True)
    fedavg = next(item for item in found if "fedavg" in item.command)
    images = nominal(one, one.arm("fedavg"), 2) + 2 * nominal(one, one.arm("fedavg"), 1)  # and two candidates
    assert fedavg.images == images and fedavg.hours == pytest.approx(images / 100 / 3600)
    assert "core hours  pfl-lite reproduce tiny" in show(found)
    for item in found:
        understood = call(*item.command.split()[1:], "--budget", "1ms")  # up to the budget
        assert "a budget is a number with s, m or h, e.g. 30m, not '1ms'" in understood.stderr
        done = call(*item.command.split()[1:], "--ledger", ledger.folder, "--budget", "0.001s")
        assert (
            done.exit_code == (2 if item.after else 0) and item.after.partition(" --seeds")[0] in done.stderr
        )


def test_a_row_that_takes_over_a_training_costs_what_it_does_after_it(ledger: Ledger) -> None:
    name = "pflmoe-fmnist-lenet-0.9"
    shutil.copytree(default_folder() / name, ledger.folder / name)
    runs = {run["arm"]: run for run in ledger.read(name)}
    (ledger.folder / name / "pfl_mfe-seed0.json").unlink()
    (row,) = missing(name, ledger)
    training = runs["fedavg"]["seconds"]
    assert (
        row.hours is not None and training < 3600 * row.hours < 1.3 * training
    )  # which has to be made again
    checkpoint = whole(get_experiment(name), ledger).checkpoint("fedavg", 0)
    checkpoint.parent.mkdir(parents=True)
    checkpoint.touch()
    (row,) = missing(name, ledger)
    alike = [runs[arm]["seconds"] - training for arm in ("pfl_fb", "pfl_mf", "pfl_mf-code", "pfl_mfe-code")]
    for arm in ("pfl_fb-all", "pfl_mf", "pfl_mf-code", "pfl_mfe-code"):
        (ledger.folder / name / f"{arm}-seed0.json").unlink()
    (five,) = missing(name, ledger)  # four of them by the pace of the one that is left
    assert five.hours is not None and 3600 * five.hours < 8 * max(alike) < 5 * training
    assert row.hours is not None and 0.5 * min(alike) < 3600 * row.hours < 2 * max(alike)


def test_a_search_is_counted_with_the_first_command_that_needs_it(ledger: Ledger) -> None:
    for name in ("fedmn-fig2-cifar10", "fedmn-table2-cifar10-lenet"):
        planned = float(price(get_experiment(name)).split(", ")[2].split()[0].replace(",", ""))
        assert sum(one.images for one in missing(name, ledger)) / 1e6 == pytest.approx(planned, abs=0.5)


def test_gaps_without_a_run_to_measure_by_are_counted_in_images(ledger: Ledger) -> None:
    assert named("pflmoe-fmnist-lenet-0.9", ledger, "paper")[0] == (
        "pfl-lite reproduce pflmoe-fmnist-lenet-0.9 --methods "
        "fedavg,pfl_fb,pfl_fb-all,pfl_mf,pfl_mfe,pfl_mf-code,pfl_mfe-code --seeds 0 --budget-name paper"
    )
    (first, *_) = missing("pfedmb-table2-dirichlet-15", ledger)
    assert first.hours is None and first.after.startswith(
        "pfl-lite reproduce pfedmb-table2-dirichlet-50 --methods"
    )
    assert "million images" in show([first]) and "# after:" in show([first])
    assert "pfl-lite reproduce pfedmb-table2-random2-50 --methods pfedmb --seeds 0" in named(
        "pfedmb-fig5", ledger
    )
    both = named("pfedmb-table3", ledger)
    assert len(both) == len(set(both)) and any("fig5" in command for command in both)


def test_a_full_ledger_has_nothing_missing(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    one = replace(PFEDMB_TABLE1, name="full", arms=PFEDMB_TABLE1.arms[:1], rounds=2, seeds=(0,))
    monkeypatch.setitem(EXPERIMENTS, "full", one)
    ledger.write(make_run("local") | {"experiment": "full"})
    assert missing("full", ledger) == []
    assert "nothing is missing of full" in call("ledger", "missing", "full", "--ledger", ledger.folder).stdout


def test_what_needs_data_that_were_not_there_comes_last(ledger: Ledger) -> None:
    found = missing("fedmn-table2", ledger)
    absent = [one.unavailable for one in found]
    assert absent == sorted(absent) and {True, False} == set(absent)
    assert all(one.unavailable == ("mnist" in one.command) for one in found)
    lines = care.show(found).splitlines()
    assert [line.endswith("  # where the data are") for line in lines] == absent


def test_results_are_held_to_what_their_search_chose(tmp_path: Path) -> None:
    home, ledger = Ledger(default_folder()), Ledger(tmp_path)
    about = ("pfedmb-table2-random2-50", "ifca")
    search, run = home.get(*about, None), home.get(*about, 0)
    assert search is not None and run is not None
    ledger.write(run)
    ledger.write(search)
    assert check(ledger).faults == []
    other = next(one for one in search["candidates"] if one["settings"]["lr"] != search["chosen"]["lr"])
    better = [one | {"validation_accuracy": 1.0} if one is other else one for one in search["candidates"]]
    path = ledger.path(*about, None)
    for candidates, says in (
        (better, "ifca-seed0.json: lr, clusters not as the search chose"),
        (search["candidates"][1:], "the ledger holds 3 of 4"),
    ):
        path.write_text(json.dumps(search | {"candidates": candidates, "chosen": candidates[0]["settings"]}))
        (fault,) = check(ledger).faults
        assert says in fault
