"""Figures' numbers, from runs whose numbers are known and from the ledger as it is."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pfl_lite.errors import InputError
from pfl_lite.papers import EXPERIMENTS
from pfl_lite.results.ledger import Ledger, default_folder
from pfl_lite.show.figures import FIGURES, figure
from pfl_lite.show.text import render
from tests.test_claims_of_tables import CLIENTS, make_run
from tests.test_cli import call


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path)


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_says_which_budget_it_had_and_what_is_lacking(name: str, ledger: Ledger) -> None:
    frame = figure(name, ledger)
    assert "small budget" in frame.attrs["title"] and all("not run" in note for note in frame.attrs["notes"])
    assert "paper budget" in figure(name, ledger, "paper").attrs["title"]
    assert len(frame) == (6 if name == "pfedmb-table3" else 0) and frame.attrs["notes"]
    for format in ("text", "markdown", "csv"):
        assert call("table", name, "--format", format, "--ledger", ledger.folder).exit_code == 0


def test_a_figure_s_title_and_notes_are_about_the_arms_that_it_draws(ledger: Ledger) -> None:
    assert figure("pflmoe-fig1", ledger, "paper").attrs["title"].endswith("(paper budget, 300 rounds)")
    assert figure("pflmoe-fig2", ledger, "paper").attrs["title"].endswith("(paper budget, 1000 rounds)")
    ledger.write(make_run("pflmoe-fmnist-lenet-0.9", "fedavg", 60))
    assert any("alpha = 0.9" in note for note in figure("pflmoe-fig1", ledger).attrs["notes"])


def test_best_b_is_that_of_the_validation_images(ledger: Ledger) -> None:
    for arm, accuracy, val in (("b2", 90, 0.5), ("b5", 50, 0.7)):
        ledger.write(make_run("pfedmb-fig5", arm, accuracy, val_accuracy=[val] * CLIENTS))
    row = figure("pfedmb-table3", ledger).set_index("Setting").loc["random 2 classes; 50"]
    assert (row["Paper's B"], row["Our B"], row["Validation (%)"]) == (10, 5, pytest.approx(70))
    assert row["Reason"] == "not run: B = 10, B = 20"


def test_figures_of_five_pairs_are_the_ledger_s() -> None:
    ledger = Ledger(default_folder())
    weights = figure("pfedmb-fig3", ledger)
    run = next(one for one in ledger.read("pfedmb-table1") if one["arm"] == "pfedmb")
    last = weights[(weights["Method"] == "pFedMB (eq. 5)") & (weights["Seed"] == run["seed"])].iloc[-1]
    alpha = np.array(run["watch"]["alpha"]["30"])
    assert last["Largest distance inside a pair"] == pytest.approx(
        np.abs(alpha[::2] - alpha[1::2]).sum(1).max()
    )
    mean = alpha.reshape(5, 2, -1).mean(1)
    assert last["Branches used"] == len(set(mean.argmax(1))) and weights["Entropy"].max() == pytest.approx(
        np.log(5)
    )
    curves = figure("pfedmb-fig4", ledger)
    mine = curves[(curves["Method"] == "pFedMB (eq. 5)") & (curves["Round"] == 30)].iloc[0]
    assert mine["After fine-tuning (%)"] == pytest.approx(100 * run["rounds"][-1]["tuned_accuracy"])


def test_boxes_curves_and_leads_of_pflmoe(ledger: Ledger) -> None:
    name = "pflmoe-fmnist-lenet-0.9"
    ledger.write(make_run(name, "local", np.arange(CLIENTS) - 200 * np.sin(np.arange(CLIENTS)) / 100 + 20))
    fedavg = make_run(name, "fedavg", 60)
    fedavg["rounds"][1] |= {"global_accuracy_weighted": 0.61}
    ledger.write(fedavg)
    ledger.write(make_run(name, "pfl_mf", 63))
    ledger.write(make_run(name, "pfl_mfe", 63, seed=5))  # FedAvg has no such seed
    boxes = figure("pflmoe-fig1", ledger)
    assert boxes["Test"].tolist() == ["local test", "global test"]
    assert boxes.loc[0, ["lowest", "median", "highest"]].tolist() == pytest.approx([20, 25.5, 31])
    assert figure("pflmoe-fig2", ledger)[["Round", "Global test (%)"]].values.tolist() == [[100, 61.0]]
    leads = figure("pflmoe-fig3", ledger)
    assert len(leads) == CLIENTS and set(leads["Method"]) == {"PFL-MF (pixels), as in the paper"}
    assert leads["Lead, local test"].tolist() == pytest.approx([3] * CLIENTS)
    assert leads["FedAvg, local test (%)"].std() > 0.5 and figure("pflmoe-fig4", ledger).empty


def test_floats_and_accuracy_of_fedmn(ledger: Ledger) -> None:
    ledger.write(make_run("fedmn-fig2-cifar10", "fedavg-8", 40))
    frame = figure("fedmn-fig2", ledger)
    assert frame[["Data", "Method", "Million floats"]].values.tolist() == [
        ["cifar10", "FedAvg, 8 layers", 1e-4]
    ]
    assert any("data not available here" in note for note in frame.attrs["notes"])
    back = pd.read_csv(io.StringIO(render(frame, "csv", digits=4)))
    assert list(back) == list(frame) and back["Accuracy (%)"][0] == pytest.approx(
        frame["Accuracy (%)"][0], abs=1e-4
    )


def test_a_figure_is_laid_out_as_a_table_is(ledger: Ledger) -> None:
    frame = pd.DataFrame({"Setting": ["2 | 3"], "Value": [0.5]})
    frame.attrs = {"title": "A figure", "notes": ["a note"]}
    lines = [" ".join(line.split()) for line in render(frame, "markdown").splitlines()]
    assert lines == [
        "**A figure**", "", "| Setting | Value |", "|-----------|---------|", "| 2 \\| 3 | 0.50 |", "",
        "- a note",
    ]  # fmt: skip


def test_wrong_names_are_answered(ledger: Ledger) -> None:
    with pytest.raises(InputError, match="unknown figure 'pflmoe-fig6': did you mean pflmoe-fig"):
        figure("pflmoe-fig6", ledger)
    with pytest.raises(InputError, match="unknown format"):
        render(figure("pflmoe-fig1", ledger), "html")


@pytest.mark.parametrize("end", ["\n", "\r", "\u2028", "\x0b"])
def test_a_cell_of_markdown_stays_in_its_row(end: str) -> None:
    frame = pd.DataFrame({"method": [f"one{end}two|three"]})
    assert render(frame, "markdown").splitlines()[2:] == ["| one two\\|three |"]
    assert set(EXPERIMENTS).isdisjoint(FIGURES)
