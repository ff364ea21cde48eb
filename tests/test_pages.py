"""What the chapters of reproduced tables show follows the ledger: a run that is taken away is missing on the page."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from pfl_lite.experiments import pages
from pfl_lite.experiments.claims import claims
from pfl_lite.experiments.ledger import Ledger
from pfl_lite.experiments.tables import accuracy, table

STORED = Path(__file__).resolve().parent.parent / "data" / "results"
NAME, OTHER = "pflmoe-fmnist-lenet-0.9", "pfedmb-table1"


@pytest.fixture()
def ledger(tmp_path: Path) -> Ledger:
    """A copy of two experiments of the stored ledger."""
    for name in (NAME, OTHER):
        shutil.copytree(STORED / name, tmp_path / name)
    return Ledger(tmp_path)


def test_grid_puts_the_paper_beside_ours(ledger: Ledger) -> None:
    shown = pages.grid(OTHER, ledger=ledger).data
    first = table(OTHER, ledger).set_index("Method")
    assert shown.loc["Local", (OTHER, "paper")] == f"{first.loc['Local', 'Paper (%)']:.2f}"
    runs = [run for run in ledger.read(OTHER) if run["arm"] == "fedavg"]
    ours = np.mean([accuracy(run) for run in runs])
    assert shown.loc["FedAvg", (OTHER, "ours")].startswith(f"{ours:.2f}")


def test_a_run_that_is_gone_is_not_run(ledger: Ledger) -> None:
    before = pages.grid(OTHER, ledger=ledger).data[OTHER, "ours"]
    for path in (ledger.folder / OTHER).glob("fedavg-seed*.json"):
        path.unlink()
    after = pages.grid(OTHER, ledger=ledger).data[OTHER, "ours"]
    assert before["FedAvg"] != "not run" == after["FedAvg"]
    assert before.drop("FedAvg").equals(after.drop("FedAvg"))
    assert "--methods fedavg" in pages.still_missing(OTHER, ledger).data
    assert "FedAvg" not in set(pages.costs(OTHER, ledger=ledger)["method"])


def test_fewer_seeds_than_planned_have_a_star(ledger: Ledger) -> None:
    for path in (ledger.folder / OTHER).glob("*-seed[12].json"):
        path.unlink()
    assert all(value.endswith("*") for value in pages.grid(OTHER, ledger=ledger).data[OTHER, "ours"])
    whole = pages.grid(NAME, ledger=ledger).data[NAME, "ours"]  # one seed is all that is planned there
    assert not any(value.endswith("*") for value in whole)


def test_colours_follow_the_gap() -> None:
    assert pages.shade(np.nan) == pages.shade("not run") == ""
    assert pages.shade(-6.0) == f"background-color: rgba({pages.BELOW},0.60)"
    assert pages.shade(3.0) == f"background-color: rgba({pages.ABOVE},0.30)"
    assert pages.shade(60.0) == pages.shade(6.0)


def test_every_deviation_is_said_once_and_numbered() -> None:
    text = pages.deviations("pfedmb-table2-random2-50", "pfedmb-table2-dirichlet-50").data
    lines = text.splitlines()
    assert [line.split(".")[0] for line in lines] == [str(n) for n in range(1, len(lines) + 1)]
    bodies = [line.partition(". ")[2] for line in lines]
    assert len(set(bodies)) == len(bodies) > 5


def test_facts_name_where_settings_come_from() -> None:
    shown = pages.facts("pfedmb-table2-random2-15", "pfedmb-table2-random2-50", NAME).data
    assert shown.loc["settings chosen"].tolist() == [
        "those of pfedmb-table2-random2-50",
        "4 candidates, 5 rounds, seed 100",
        "nothing searched",
    ]
    assert shown.loc["sampled a round"].tolist() == ["15", "10", "10"]


def test_clients_and_costs_are_those_of_the_runs(ledger: Ledger) -> None:
    run = next(run for run in ledger.read(NAME) if run["arm"] == "fedavg")
    (row,) = pages.clients(NAME, ledger=ledger).to_dict("records")
    assert (row["fewest"], row["most"]) == (min(run["final"]["train_size"]), max(run["final"]["train_size"]))
    cost = pages.costs(NAME, ledger=ledger).set_index("method").loc["FedAvg"]
    last = run["rounds"][-1]
    assert cost["thousand floats up a round"] == last["floats_up"] / len(last["clients"]) / 1e3
    assert cost["core hours"] == run["seconds"] / 3600


def test_verdicts_keep_every_claim(ledger: Ledger) -> None:
    found = claims(OTHER, ledger)
    shown = pages.verdicts(found).data
    assert shown["verdict"].tolist() == [one.verdict for one in found] and len(found) > 3


def test_reasons_are_those_of_the_table(ledger: Ledger) -> None:
    frame = table(OTHER, ledger)
    said = pages.reasons(frame).data
    assert all(reason in said for reason in frame["Reason"])
    assert "Reason" not in pages.shaded(frame).data
