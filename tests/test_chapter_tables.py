"""What the chapters of reproduced tables show follows the ledger: a run that is taken away is missing on the page."""

from __future__ import annotations

import json
import re
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pfl_lite.errors import InputError
from pfl_lite.papers import get_experiment
from pfl_lite.papers.experiment import own_names
from pfl_lite.papers.statement import ClaimResult
from pfl_lite.results.audit import missing
from pfl_lite.results.ledger import Ledger
from pfl_lite.results.tables import accuracy, table
from pfl_lite.results.verdicts import claims
from pfl_lite.show import chapter_tables as pages
from pfl_lite.show.figures import figure
from tests.test_claims_of_tables import make_run

ROOT = Path(__file__).resolve().parent.parent
STORED = ROOT / "data" / "results"
NAME, OTHER = "pflmoe-fmnist-lenet-0.9", "pfedmb-table1"


@pytest.fixture()
def ledger(tmp_path: Path) -> Ledger:
    """A copy of two experiments of the stored ledger: seed 0 of the first, however many it has by now, and all of the second."""
    shutil.copytree(STORED / NAME, tmp_path / NAME, ignore=shutil.ignore_patterns("*-seed[1-9].json"))
    shutil.copytree(STORED / OTHER, tmp_path / OTHER)
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
    assert "FedAvg" not in after and before.drop("FedAvg").equals(after)
    said = pages.not_run(OTHER, ledger=ledger).data
    assert OTHER in said and "(FedAvg)" in said
    assert pages.not_run(NAME, ledger=ledger).data == "Every row has a run."
    assert all("--methods fedavg" in one.command for one in missing(OTHER, ledger))
    assert "FedAvg" not in set(pages.costs(OTHER, ledger=ledger)["method"])


def test_a_command_that_waits_for_another_says_so(ledger: Ledger) -> None:
    waits = missing("pfedmb-table2-dirichlet-15", Ledger(ledger.folder / "empty"))
    first = "pfl-lite reproduce pfedmb-table2-dirichlet-50 --methods "
    assert len(waits) == 9 and all(one.after.startswith(first) for one in waits)


def test_fewer_seeds_than_planned_have_a_star(ledger: Ledger) -> None:
    for path in (ledger.folder / OTHER).glob("*-seed[12].json"):
        path.unlink()
    assert all(value.endswith("*") for value in pages.grid(OTHER, ledger=ledger).data[OTHER, "ours"])
    one = "fedmn-turns"
    whole = pages.grid(one, ledger=Ledger(STORED)).data[one, "ours"]  # one seed is all that is planned there
    assert not any(value.endswith("*") for value in whole)


def test_colors_follow_the_gap() -> None:
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
    named = [body for body in bodies if body.startswith("*")]
    assert named and bodies[-len(named) :] == named  # what holds for all comes first
    assert named[0].startswith("*random2-50*: ")


def test_names_are_cut_to_what_tells_them_apart() -> None:
    assert own_names(["a-b-c", "a-b-d-e"]) == ["c", "d-e"] and own_names(["a-b"]) == ["a-b"]
    assert own_names(["a-b", "a-b-c"]) == ["b", "b-c"]


def test_a_column_that_the_paper_leaves_empty_is_left_out(ledger: Ledger) -> None:
    both = "fedmn-table2-glyphs", "fedmn-table2-glyphs-writers"
    for name in both:
        ledger.write(make_run(name, "fedavg", 50))
    shown = pages.grid(*both, ledger=ledger).data
    assert [tuple(column) for column in shown.columns] == [("glyphs", "ours"), ("glyphs-writers", "ours")]


def test_only_whole_searches_of_the_present_protocol_are_shown(ledger: Ledger) -> None:
    shown = {search["arm"]: search for search in pages.searches(OTHER, ledger)}
    assert set(shown) == {arm.key for arm in get_experiment(OTHER).arms if arm.grid}
    path = ledger.path(OTHER, "local", None)
    stored = json.loads(path.read_text())
    one, *others = stored["candidates"]
    path.write_text(json.dumps(stored | {"candidates": [one, *others, {**one, "settings": {"lr": 9.0}}]}))
    assert shown["local"] in pages.searches(OTHER, ledger), (
        "a candidate that the grid no longer has is not shown"
    )
    for left in (others, [one | {"rounds": 1}, *others]):
        path.write_text(json.dumps(stored | {"candidates": left}))
        assert "local" not in {search["arm"] for search in pages.searches(OTHER, ledger)}


@pytest.mark.parametrize(("lr", "mu", "edge"), [(0.1, 1, "mu"), (0.2, 2, "lr, mu"), (0.05, 1, "lr, mu")])
def test_a_choice_at_the_edge_of_what_was_tried_is_named(lr: float, mu: int, edge: str) -> None:
    tried = [{"settings": {"lr": rate, "mu": other, "K": 5}} for rate in (0.05, 0.1, 0.2) for other in (1, 2)]
    chosen = {"lr": lr, "mu": mu, "K": 5}  # one value tried alone has no edge
    assert pages.at_the_edge({"candidates": tried, "chosen": chosen}) == edge


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
    assert shown["verdict"].tolist() == [one.says for one in found] and len(found) > 3
    assert all(one.note in evidence for one, evidence in zip(found, shown["evidence"], strict=True))
    html = pages.verdicts(
        [
            ClaimResult("s", verdict, seeds=seeds, budget="30 rounds")
            for verdict, seeds in (("held", 3), ("failed", 1))
        ]
    ).to_html()
    assert 'class="verdicts"' in html and "table.verdicts" in (ROOT / "book/_css/book.css").read_text()
    assert f"rgba({pages.ABOVE},{pages.STRONG})" in html and f"rgba({pages.BELOW},{pages.PALE})" in html


def test_evidence_is_a_number_and_a_folded_list() -> None:
    def cell(note: str, statistic: str = "floats") -> str:
        found = pages.verdicts([ClaimResult(statistic, "held", value=2.0, note=note)]).to_html()
        return re.search(rf"<td[^>]*>({statistic.partition(',')[0]}: 2.*?)</td>", found, re.DOTALL)[1]

    assert cell("") == "floats: 2" and cell("", "gain, points") == "gain: 2 points"
    shown, folded = cell("a < b; c").split("<details><summary>details</summary>")
    assert shown == "floats: 2" and folded == "<ul><li>a &lt; b</li><li>c</li></ul></details>"


@pytest.mark.parametrize("columns", [["x", "y"], pd.MultiIndex.from_product([["one"], ["x", "y"]])])
def test_the_name_of_an_index_takes_no_row_of_its_own(columns: list[str] | pd.MultiIndex) -> None:
    frame = pd.DataFrame([[1, 2]], pd.Index(["a"], name="Method"), columns)
    head = pages.styled(frame).to_html().partition("</thead>")[0]
    rows = head.split("<tr>")[1:]
    assert len(rows) == frame.columns.nlevels
    assert [re.sub("<[^>]+>|&nbsp;", "", cell) for cell in re.findall("<th.*?</th>", rows[-1])] == [
        "Method",
        "x",
        "y",
    ]


def test_reasons_are_those_of_the_table(ledger: Ledger) -> None:
    frame = table(OTHER, ledger)
    said = pages.reasons(frame).data
    assert all(reason in said for reason in frame["Reason"])
    assert "Reason" not in pages.shaded(frame).data


def test_a_reason_of_most_rows_is_said_last_and_without_their_names() -> None:
    frame = pd.DataFrame({"Method": list("abcd"), "Reason": ["why", "why", "else", "why"]})
    assert pages.reasons(frame).data == "- **c**: else\n- **All other rows**: why"
    assert pages.reasons(frame[:2]).data == "- **a; b**: why"


def test_clients_are_drawn_as_they_were_for_the_runs() -> None:
    counts = pages.class_counts(NAME)
    for run in Ledger(STORED).read(NAME):
        assert run["seed"] != 0 or counts.sum(1).tolist() == run["final"]["train_size"]
    assert not np.array_equal(counts, pages.class_counts(NAME, seed=1))


def test_clients_that_cut_their_own_images_keep_all_of_them() -> None:
    groups = pages.class_counts("fedmn-table2-cifar10-lenet")
    assert groups.shape == (80, 10) and groups.sum(0).tolist() == [6000] * 10
    superclasses = pages.class_counts("fedmn-table2-cifar100")
    assert superclasses.shape == (100, 100) and set(superclasses.sum(1)) == {600}


def test_classes_that_cannot_be_known_are_not_drawn() -> None:
    with pytest.raises(
        InputError, match=r"emnist:0.1 cannot be drawn without its images, only those of fashion_mnist"
    ):
        pages.class_counts("fedmn-table2-emnist")


def test_a_grid_may_show_another_measure(ledger: Ledger) -> None:
    frame = table(NAME, ledger).set_index("Method")
    for words in ("local test", "global test"):
        shown = pages.grid(NAME, ledger=ledger, measure=words.replace(" ", "_")).data
        for kind, column in (("paper", "Paper (%)"), ("ours", "Ours (%)")):
            assert (
                shown.loc["FedAvg", (NAME, kind)].rstrip("*")
                == f"{frame.loc[f'{words}: FedAvg', column]:.2f}"
            )
    assert pages.grid(NAME, ledger=ledger).data.equals(
        pages.grid(NAME, ledger=ledger, measure="local_test").data
    )
    with pytest.raises(InputError, match="global_test"):
        pages.grid(NAME, ledger=ledger, measure="test")


def test_rows_of_one_method_meet_under_one_name(ledger: Ledger) -> None:
    name = "fedmn-table2-emnist"
    ledger.write(make_run(name, "fedmn", 50))
    ledger.write(make_run("fedmn-table2-cifar10", "fedem", 50))
    shown = pages.grid("fedmn-table2-cifar10", name, ledger=ledger).data
    assert shown.index.tolist() == ["FedEM", "FedMN"] and shown.notna().all(axis=None)
    assert shown.columns.get_level_values(0).unique().tolist() == ["cifar10", "emnist"]
    assert shown.loc["FedMN"].tolist() == [
        "83.40",
        pages.NOT_RUN,
        "83.80",
        "50.07*",
    ]  # clients waver around 50


def test_a_deleted_run_of_pflmoe_leaves_every_part_of_its_page(ledger: Ledger) -> None:
    assert pages.begun(NAME, "pflmoe-fmnist-lenet-2", ledger=ledger) == [NAME]
    assert all(one.command.endswith("--seeds 1,2,3,4") for one in missing(NAME, ledger))
    assert not pages.statuses(NAME, ledger=ledger).get("not run", np.zeros(1)).any()
    before = sum(one.results for one in missing(NAME, ledger))
    (ledger.folder / NAME / "pfl_mfe-seed0.json").unlink()
    row = "PFL-MFE (features), as in the paper"
    gone = pages.shaded(table(NAME, ledger)).data.set_index("Method").filter(like=row, axis=0)
    assert gone["Status"].tolist() == ["not run", "not run"] and gone["Ours (%)"].isna().all()
    assert row not in pages.grid(NAME, ledger=ledger, measure="global_test").data.index
    assert row not in set(figure("pflmoe-fig3", ledger)["Method"])
    assert pages.statuses(NAME, ledger=ledger)["not run"].tolist() == [2]
    (todo,) = (one for one in missing(NAME, ledger) if "--seeds 0" in one.command)
    assert f"{NAME} --methods pfl_mfe," in todo.command
    assert sum(one.results for one in missing(NAME, ledger)) == before + 1


def test_a_deleted_run_of_fedmn_leaves_every_part_of_its_page(ledger: Ledger) -> None:
    name = "fedmn-table2-cifar10-lenet"
    one = get_experiment(name)
    for arm in one.arms:
        paths = [ledger.write(make_run(name, arm.key, 40, seed)) for seed in one.seeds]
        if arm.key == "fedmn":
            gone = paths
    assert not missing(name, ledger)
    for path in gone:
        path.unlink()  # four rows of our own come after it
    shown = pages.grid(name, ledger=ledger).data[name, "ours"].tolist()
    assert shown == ["40.07 ± 0.00"] * 11
    assert pages.statuses(name, ledger=ledger)["not run"].tolist() == [1]
    (todo,) = missing(name, ledger)
    assert todo.command == f"pfl-lite reproduce {name} --methods fedmn --seeds 0,1,2,3,4"


def test_what_is_missing_comes_with_the_time_of_the_same_rows(ledger: Ledger) -> None:
    found = [*missing("pflmoe-tables", ledger), *missing("fedmn-table2-emnist", ledger)]
    assert all((one.seconds is not None) == (f" {NAME} " in one.command) for one in found)
    (first,) = (run for run in ledger.read(NAME) if run["arm"] == "local")
    (ledger.folder / NAME / "local-seed0.json").unlink()
    ledger.write(first | {"seed": 1, "seconds": 321.0, "config": first["config"] | {"seed": 1}})
    (todo,) = (one for one in missing(NAME, ledger) if "--methods local" in one.command)
    assert todo.seconds == 321 and todo.command.endswith("--seeds 0,2,3,4")
    assert {"fedmn-table2-emnist" in one.command for one in found if one.unavailable} == {True}


def test_rows_that_take_over_a_training_count_what_they_did_after_it(ledger: Ledger) -> None:
    runs = {run["arm"]: run for run in ledger.read(NAME)}
    costs = pages.costs(NAME, ledger=ledger).set_index("method")
    after = costs.loc["PFL-FB on 3/4 of the images"]
    assert after["core hours"] == (runs["pfl_fb"]["seconds"] - runs["fedavg"]["seconds"]) / 3600
    assert (
        after["million images"] == (runs["pfl_fb"]["images_trained"] - runs["fedavg"]["images_trained"]) / 1e6
    )
    total = runs["fedavg"]["images_trained"] / 1e6
    assert costs.loc["FedAvg", "million images"] == total
    nothing = pages.costs("fedmn-table2-emnist", ledger=ledger)
    assert nothing.empty and list(nothing) == list(pages.costs(NAME, ledger=ledger))


def test_a_run_that_two_experiments_show_costs_once(ledger: Ledger) -> None:
    home = "pfedmb-table2-random2-50"
    ledger.write(make_run(home, "pfedmb", 80) | {"seconds": 1800.0, "images_trained": 1_000_000})
    alone = pages.costs("pfedmb-fig5", ledger=ledger)
    assert alone["method"].tolist() == ["B = 10"] and alone["core hours"].tolist() == [0.5]
    assert pages.costs(home, "pfedmb-fig5", ledger=ledger)["method"].tolist() == ["pFedMB"]


def test_no_row_costs_less_than_nothing(ledger: Ledger) -> None:
    name = "fedmn-table2-cifar10-lenet"
    for arm, seconds in (
        ("fedavg", 275.0),
        ("pfl_ft", 236.0),
    ):  # trained apart, the second on a quicker machine
        ledger.write(make_run(name, arm, 50) | {"seconds": seconds, "images_trained": 1_000_000})
    assert pages.costs(name, ledger=ledger)["core hours"].tolist() == [275 / 3600, 0]


def test_a_claim_shows_the_bound_that_it_is_held_to() -> None:
    shown = partial(ClaimResult, "points", "undecided", -0.5, 0.1, (-1.7, 0.7))
    assert pages._statistic(shown(-1.1)) == "points: -0.5 [-1.70, 0.70], bound -1.1"
    assert pages._statistic(shown(0.0)) == "points: -0.5 [-1.70, 0.70]"
