"""The record of the comparison: what it keeps of the ledger, and what is computed from it, against pandas and by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from pfl_lite.errors import InputError
from pfl_lite.results.ledger import Ledger, default_folder
from pfl_lite.show import comparison, explorers
from pfl_lite.show.comparison import curves, decode, encode, paired, ranks, worst_tenth
from tests.explored import carried
from tests.test_claims_of_tables import IDLE, make_run

NAME = "pfedmb-table2-random2-15"


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path)


def scored(arm: str, accuracies: list[float], seed: int = 0, **more: Any) -> dict[str, Any]:
    """A run with these accuracies at the end, in percent."""
    run = make_run(NAME, arm, 50, seed, len(accuracies))
    exact = [None if np.isnan(one) else one / 100 for one in accuracies]
    run["final"] = {key: value for key, value in run["final"].items() if not key.endswith("_clients")}
    run["final"] |= {"test_accuracy": exact, "test_size": [int(one is not None) for one in exact]}
    return run | more


def get_entry(record: dict[str, Any], experiment: str) -> dict[str, Any]:
    """One experiment of a record by its name."""
    return next(entry for entry in record["experiments"] if entry["name"] == experiment)


@pytest.mark.parametrize("clients", range(8))
def test_accuracies_survive_the_encoding(clients: int) -> None:
    values = np.array([0, 1, 0.12345, 0.99996, np.nan, 0.5, 1])[:clients]
    words = encode(values)
    assert len(words) == 3 * clients
    near = pytest.approx([0, 100, 12.34, 100, np.nan, 50, 100][:clients], abs=0.0051, nan_ok=True)
    assert decode(words) == near and decode(words).shape == (clients,)


@pytest.mark.parametrize("wrong", [-0.01, 1.0001, 55.0, np.inf])
def test_what_is_no_accuracy_is_not_encoded(wrong: float) -> None:
    with pytest.raises(InputError, match="outside 0 to 1"):
        encode([0.5, wrong])


def test_the_worst_tenth_by_hand() -> None:
    assert worst_tenth([5, 3, np.nan, 4]) == 3  # one client of three
    assert worst_tenth(range(10)) == 0 and worst_tenth(range(11)) == 0.5 and worst_tenth(range(21)) == 1
    assert np.isnan(worst_tenth([np.nan]))


def test_a_record_needs_complete_runs_of_two_methods_and_follows_the_ledger(ledger: Ledger) -> None:
    for seed in (0, 1):
        ledger.write(scored("local", [50, 60], seed))
    assert comparison.record(ledger)["experiments"] == []
    path = ledger.write(scored("fedavg", [70, 80]))
    ledger.write(scored("pfedmb", [1, 2]) | {"complete": False})
    (entry,) = comparison.record(ledger)["experiments"]
    assert entry["name"] == NAME and entry["metrics"] == ["scored", "personal"]
    assert [method["key"] for method in entry["methods"]] == ["local", "fedavg"]
    path.unlink()
    assert comparison.record(ledger)["experiments"] == [], "a run that is gone is gone from the record"


def test_papers_tables_come_before_the_others_and_their_budgets_have_their_titles(ledger: Ledger) -> None:
    for name, budget in (
        ("when-label-skew", "small"),
        ("pfedmb-table1", "small"),
        ("pfedmb-table1", "paper"),
    ):
        for arm in ("local", "fedavg"):
            ledger.write(make_run(name, arm, 50, budget=budget))
    entries = comparison.record(ledger)["experiments"]
    assert [entry["name"] for entry in entries] == ["pfedmb-table1", "pfedmb-table1-paper", "when-label-skew"]
    assert "paper budget" in entries[1]["title"] and "budget" not in entries[0]["title"]


def test_a_run_of_another_experiment_counts_where_it_is_shown(ledger: Ledger) -> None:
    ledger.write(make_run("pfedmb-fig5", "b2", 50))
    ledger.write(make_run("pfedmb-table2-random2-50", "pfedmb", 60))
    entry = get_entry(comparison.record(ledger), "pfedmb-fig5")
    assert [method["key"] for method in entry["methods"]] == ["b2", "b10"]


def test_metrics_by_hand(ledger: Ledger) -> None:
    rounds = [
        {"round": 0, **IDLE, "per_client": {"personal": [0.1, 0.2], "tuned": [0.5, None], "global": [0, 0]}},
        {"round": 1, **IDLE},
        {"round": 2, **IDLE, "per_client": {"personal": [0.3, 0.4], "tuned": [0.6, 0.8], "global": [0.3, 0.4]}},
    ]  # fmt: skip
    before = {"test_accuracy": [0.3, 0.4]}
    ledger.write(scored("fedavg", [60, 80], rounds=rounds, final_before_ft=before))
    bare = [r | {"per_client": {"personal": [0.1, 0.2]}} for r in rounds]
    ledger.write(scored("local", [55, 65], rounds=bare))
    (entry,) = comparison.record(ledger)["experiments"]
    assert entry["metrics"] == ["scored", "personal", "global"]
    assert sorted(entry["rounds"]) == [[0, 1, 2], [0, 2]], "equal lists of rounds are kept once"

    def values(metric: str, summary: str, arm: str) -> dict[int, float]:
        found = curves(entry, metric, summary, [arm])
        return dict(zip(found["round"], found["value"], strict=True))

    assert values("scored", "mean", "fedavg") == pytest.approx({0: 50, 2: 70})
    assert values("scored", "worst_tenth", "fedavg") == pytest.approx({0: 50, 2: 60})
    assert values("personal", "mean", "fedavg") == pytest.approx({0: 15, 2: 35})
    assert values("global", "mean", "fedavg") == pytest.approx({0: 0, 2: 35})
    # a run without fine-tuning is scored as it is, and its last accuracies are those of `final`
    assert (
        values("scored", "mean", "local")
        == values("personal", "mean", "local")
        == pytest.approx({0: 15, 1: 15, 2: 60})
    )
    assert next(one for one in entry["methods"] if one["key"] == "local")["runs"][0]["personal"] == "scored"
    assert set(curves(entry, "global")["arm"]) == {"fedavg"} and list(paired(entry, "global")) == ["fedavg"]


def test_clients_are_paired_over_the_seeds_that_all_have(ledger: Ledger) -> None:
    ledger.write(scored("local", [50, 60, 70], 0))
    ledger.write(scored("local", [10, 20], 1))  # another seed may have other clients
    ledger.write(scored("fedavg", [55, np.nan, 65], 0))
    ledger.write(scored("fedavg", [30, 20], 1))
    ledger.write(scored("pfedmb", [90, 90, 90], 0))
    (entry,) = comparison.record(ledger)["experiments"]
    both = paired(entry, "scored", ["local", "fedavg"])
    assert both.index.tolist() == [(0, 0), (0, 2), (1, 0), (1, 1)], (
        "a client without test images is in no pair"
    )
    assert both["local"].tolist() == [50, 70, 10, 20] and both["fedavg"].tolist() == [55, 65, 30, 20]
    found = ranks(both)
    assert found.loc["fedavg"].tolist() == pytest.approx([(1 + 2 + 1 + 1.5) / 4, 42.5, (55 + 20) / 2])
    assert list(found.index) == ["fedavg", "local"]
    assert paired(entry, "scored").index.tolist() == [(0, 0), (0, 2)], "the third method has one seed"


def test_methods_without_a_common_seed_have_no_pair(ledger: Ledger) -> None:
    ledger.write(scored("local", [50, 60], 0))
    ledger.write(scored("fedavg", [50, 60], 1))
    (entry,) = comparison.record(ledger)["experiments"]
    assert paired(entry, "scored").empty and ranks(paired(entry, "scored"))["mean"].isna().all()
    assert paired(entry, "scored", []).empty


def test_runs_of_one_seed_with_other_clients_are_refused(ledger: Ledger) -> None:
    ledger.write(scored("local", [50, 60, 70]))
    ledger.write(scored("fedavg", [50, 60]))
    with pytest.raises(InputError, match=f"seed 0 of {NAME} has runs with 3 and with 2 clients"):
        comparison.record(ledger)


def test_unknown_names_are_refused(ledger: Ledger) -> None:
    for arm in ("local", "fedavg"):
        ledger.write(scored(arm, [50, 60]))
    record = comparison.record(ledger)
    entry = get_entry(record, NAME)
    for call, said in (
        (lambda: curves(entry, "global"), "global"),
        (lambda: curves(entry, "scored", "median"), "median"),
        (lambda: paired(entry, "scored", ["ditto"]), "ditto"),
    ):
        with pytest.raises(InputError, match=said):
            call()


def test_the_record_of_the_ledger_is_the_ledgers() -> None:
    ledger = Ledger(default_folder())
    record = comparison.record(ledger)
    page = explorers.comparison(record)
    assert len(page) < 300_000, "the page must stay light"
    assert [one["name"] for one in carried(page)["experiments"]] == [
        one["name"] for one in record["experiments"]
    ]
    for name in ("pfedmb-table1", "when-label-skew", "pflmoe-fmnist-lenet-0.9"):
        entry, frame = get_entry(record, name), ledger.frame(name)
        ends = frame[frame["round"] == frame["round"].max()]
        for metric, quantity in (("scored", "test_accuracy"), ("global_test", "global_test_clients")):
            if metric not in entry["metrics"]:
                continue
            for arm, own in ends[ends["quantity"] == quantity].groupby("arm"):
                table = paired(entry, metric, [str(arm)])[arm]
                theirs = own.set_index(["seed", "client"])["value"].sort_index()
                assert np.allclose(table, 100 * theirs, atol=0.00501)
        kept = [
            (run["arm"], run["seed"], entry["round"], entry["personal_accuracy"])
            for run in ledger.read(name)
            for entry in run["rounds"]
            if entry.get("personal_accuracy") is not None
        ]
        means = pd.DataFrame(kept, columns=["arm", "seed", "round", "value"])
        means = means.set_index(["arm", "seed", "round"])["value"]
        ours = curves(entry, "personal").set_index(["arm", "seed", "round"])["value"]
        common = means.index.intersection(ours.index)
        assert len(common) == len(ours), "a round was lost or invented"
        assert np.allclose(ours[common], 100 * means[common], atol=0.00501)
