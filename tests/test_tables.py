"""A table's numbers, statuses and reasons, on ledgers whose right answer is known by hand."""

import io
import math
import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from pfl_lite.errors import InputError
from pfl_lite.papers import EXPERIMENTS, members
from pfl_lite.results.ledger import Ledger, default_folder
from pfl_lite.results.tables import accuracy, judge, order_says, table
from pfl_lite.show.text import render_table
from tests.test_claims_of_tables import IDLE
from tests.test_cli import call

NAME = "pfedmb-table1"
EXPERIMENT = EXPERIMENTS[NAME]
PAPER = {arm.key: arm.paper for arm in EXPERIMENT.arms}
NAN = math.nan


def make_run(arm, percent, seed=0, rounds=EXPERIMENT.rounds, complete=True, **config):
    """A run of two clients, one below and one above the mean test accuracy `percent` by ten points."""
    accuracies = [percent / 100 - 0.1, percent / 100 + 0.1]
    return {
        "kind": "run",
        "experiment": NAME,
        "arm": arm,
        "seed": seed,
        "method": arm,
        "complete": complete,
        "config": {"epochs": 5, "seed": seed, "method": {"name": arm}, **config},
        "rounds": [{"round": t, **IDLE, "clients": [0, 1]} for t in (0, rounds)],
        "final": {
            "test_accuracy": accuracies,
            "test_loss": [1, 1],
            "train_size": [1, 9],
            "test_size": [1, 9],
        },
    }


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path)


def fill(ledger, shift, seeds=EXPERIMENT.seeds, **config):
    """Every arm at the paper's number plus `shift[arm]`, the seeds spread a tenth of a point around it."""
    for arm, paper in PAPER.items():
        for number, seed in enumerate(seeds):
            off = 0.1 * (number - (len(seeds) - 1) / 2)
            ledger.write(make_run(arm, paper + shift.get(arm, 0) + off, seed, **config))


def rows(ledger):
    return table(NAME, ledger).assign(arm=list(PAPER)).set_index("arm")


def test_the_papers_numbers_are_those_of_the_file():
    numbers = pd.read_csv(default_folder().parent / "paper_tables.csv")
    assert list(numbers) == [
        "paper", "table", "dataset", "model", "setting", "method", "metric", "value_percent", "in_short",
    ]  # fmt: skip
    ours = numbers[numbers["paper"].str.startswith("pFedMB") & (numbers["table"] == "I")]
    printed = {
        "local": "Local",
        "fedavg": "FedAvg",
        "pfedmb-plain": "pFedMB w/o alpha-weighted avg",
        "pfedmb": "pFedMB",
    }
    assert set(PAPER) == set(printed)
    for arm, paper in PAPER.items():
        assert set(ours.loc[ours["method"] == printed[arm], "value_percent"]) == {paper}


def test_the_metric_is_the_unweighted_mean_over_clients():
    run = make_run("local", 60)  # sizes 1 and 9 would give 68
    assert accuracy(run) == pytest.approx(60)
    run["final"]["test_accuracy"] = [0.3, 0.3, 0.6, None]  # a client without test images
    assert accuracy(run) == pytest.approx(40)


@pytest.mark.parametrize(
    ("ours", "sd", "others", "status"),
    [
        (87.0, NAN, [], "reproduced"),
        (87.01, NAN, [], "reproduced"),
        (86.9, NAN, [], "not reproduced"),  # too far, nothing to compare with
        (86.9, 0.6, [], "reproduced"),  # within 2 s.d.
        (86.9, 0.5, [], "not reproduced"),
        (86.0, 5.0, [], "reproduced"),  # two points at most, however much the seeds differ
        (85.9, 5.0, [], "not reproduced"),
        (89.1, NAN, [("FedAvg", 86.0, 87.0)], "trend only"),  # above, as in the paper
        (85.0, NAN, [("FedAvg", 86.0, 87.0)], "not reproduced"),  # below
        (
            85.6,
            NAN,
            [("FedAvg", 86.0, 87.0)],
            "not reproduced",
        ),  # less than half a point away: a tie says nothing
        (85.6, NAN, [("FedAvg", 86.0, 87.0), ("Local", 84.0, 80.0)], "trend only"),  # nor does it contradict
        (85.0, NAN, [("FedAvg", 86.0, 88.0)], "not reproduced"),  # nor does a tie in the paper
        (
            85.0,
            NAN,
            [("FedAvg", 84.0, 87.0), ("FedProx", 85.6, 87.5)],
            "not reproduced",
        ),  # one reversal is enough
    ],
)
def test_the_rule_for_the_status(ours, sd, others, status):
    assert judge(ours, sd, 88.0, others)[0] == status


def test_noise_that_covers_a_wide_gap_is_named():
    assert "2.00 points (though not than 2 s.d. over seeds, 10.00)" in judge(85.0, 5.0, 88.0, [])[1]
    assert "s.d." not in judge(85.0, 1.2, 88.0, [])[1]


@pytest.mark.parametrize(("gap", "sd"), [(1.13, 0.57), (1.04, 0.523), (1.96, 0.985), (0.94, 0.10)])
def test_a_printed_gap_is_within_the_printed_bound(gap, sd):
    status, reason = judge(88.0 - gap, sd, 88.0, [])
    assert status == "reproduced"
    assert gap <= float(reason.removeprefix("the gap is within ").removesuffix(" points"))


def test_a_reversal_is_named():
    assert judge(85.0, NAN, 88.0, [("FedAvg", 86.0, 87.0)])[1].endswith("reversed against FedAvg")


def test_the_order_of_two_rows_is_that_on_the_seeds_that_both_have(ledger):
    for arm, paper in PAPER.items():
        for seed in (
            EXPERIMENT.seeds[:1] if arm == "pfedmb" else EXPERIMENT.seeds
        ):  # the first seed deals hard clients
            ledger.write(make_run(arm, paper - (15 if seed == EXPERIMENT.seeds[0] else 5), seed))
    result = rows(ledger)
    assert result["Ours (%)"]["pfedmb"] < result["Ours (%)"].drop("pfedmb").min()
    assert result["Status"]["pfedmb"] == "trend only" and set(result["Status"]) == {"trend only"}


def test_rows_without_a_common_seed_say_no_order(ledger):
    first, second = list(PAPER)[:2]
    ledger.write(make_run(first, PAPER[first] - 5, 0))
    ledger.write(make_run(second, PAPER[second] - 5, 1))
    result = rows(ledger)
    assert set(result["Status"][[first, second]]) == {"not reproduced"}
    assert result["Reason"][first].startswith("the gap is larger than 1.00 points, and no other row")


def test_a_full_ledger_that_agrees(ledger):
    fill(ledger, {})
    result = rows(ledger)
    assert set(result["Status"]) == {"reproduced"} and set(result["Seeds"]) == {len(EXPERIMENT.seeds)}
    assert np.allclose(result["Gap"], 0) and np.allclose(result["Ours (%)"], list(PAPER.values()))
    assert np.allclose(result["s.d."], np.std(0.1 * np.arange(len(EXPERIMENT.seeds)), ddof=1))
    assert set(result["Rounds"]) == {str(EXPERIMENT.rounds)}
    assert set(result["Reason"]) == {"the gap is within 1.00 points"}


def test_a_lower_but_parallel_table_is_a_trend(ledger):
    fill(ledger, dict.fromkeys(PAPER, -5.0))
    result = rows(ledger)
    assert set(result["Status"]) == {"trend only"} and np.allclose(result["Gap"], -5)


def test_one_arm_out_of_order_is_not_reproduced(ledger):
    fill(ledger, {"pfedmb": -5.0})
    result = rows(ledger)
    assert result["Status"].to_dict() == {**dict.fromkeys(PAPER, "reproduced"), "pfedmb": "not reproduced"}
    labels = [arm.label for arm in EXPERIMENT.arms if arm.key != "pfedmb"]
    assert all(label in result.loc["pfedmb", "Reason"] for label in labels)


def test_a_run_that_diverged_is_no_result_and_contradicts_nobody(ledger):
    fill(ledger, dict.fromkeys(PAPER, -5), seeds=(0,))
    path = ledger.path(NAME, "local", 0)
    run = ledger.get(NAME, "local", 0)
    run["rounds"][-1]["diverged"] = [0]
    run["final"]["test_accuracy"] = [0.99] * len(run["final"]["test_accuracy"])  # would reverse every order
    path.unlink()
    ledger.write(run)
    found = rows(ledger)["Status"]
    assert found["local"] == "diverged" and set(found.drop("local")) == {"trend only"}


def test_an_empty_ledger_says_not_run_and_why(ledger):
    ledger.write(make_run("local", 50, complete=False))
    result = rows(ledger)
    assert (
        set(result["Status"]) == {"not run"}
        and result["Ours (%)"].isna().all()
        and result["Gap"].isna().all()
    )
    assert result.loc["fedavg", "Reason"] == "no complete run in the ledger"
    assert result.loc["local", "Reason"] == "no complete run in the ledger; unfinished: seed 0"


def test_seeds_differ_in_what_moves_numbers_a_method_s_own_settings_by_name_and_no_machine_s(ledger):
    for seed, device, mu in ((0, "cpu", 0.1), (1, "cuda", 0.1), (2, "cpu", 0.2)):
        run = make_run("local", 87, seed=seed, rounds=EXPERIMENT.rounds)
        config = run["config"] | {"device": device, "method": {"name": "fedprox", "mu": mu}}
        ledger.write(run | {"config": config})
    assert rows(ledger).loc["local", "Reason"].endswith("the seeds of Local differ in mu")


def test_whatever_falls_short_is_in_the_reason(ledger):
    fill(ledger, {}, seeds=EXPERIMENT.seeds[:2], rounds=EXPERIMENT.rounds - 1)
    ledger.write(make_run("local", 87, seed=EXPERIMENT.seeds[2], rounds=EXPERIMENT.rounds, lr=0.5))
    ledger.write(make_run("fedavg", 87, seed=EXPERIMENT.seeds[2], complete=False))
    result = rows(ledger)
    short = f"{EXPERIMENT.rounds - 1} of {EXPERIMENT.rounds} rounds"
    assert (
        f"2 of {len(EXPERIMENT.seeds)} seeds; {short}; unfinished: seed 2" in result.loc["fedavg", "Reason"]
    )
    assert "the seeds of Local differ in lr" in result.loc["local", "Reason"]
    assert result.loc["local", "Rounds"] == f"{EXPERIMENT.rounds - 1}, {EXPERIMENT.rounds}"
    labels = {arm.key: arm.label for arm in EXPERIMENT.arms}
    (note,) = [n for n in table(NAME, ledger).attrs["notes"] if n.startswith("Unequal seeds")]
    assert f"{labels['local']} 3" in note and f"{labels['fedavg']} 2" in note


def test_only_the_seeds_of_the_protocol_count_and_the_others_are_named(ledger):
    for seed in (7, 8, 9):
        ledger.write(make_run("local", PAPER["local"], seed))
        ledger.write(make_run("fedavg", PAPER["fedavg"] - 50, seed))
    for seed in EXPERIMENT.seeds:
        ledger.write(make_run("fedavg", PAPER["fedavg"], seed))
    ledger.write(make_run("fedavg", 50, 6, complete=False))
    result = rows(ledger)
    left_out = "not counted: seed 7, 8, 9, which the protocol does not have"
    assert (result.loc["local", "Seeds"], result.loc["local", "Status"]) == (0, "not run")
    assert result.loc["local", "Reason"] == (
        f"no complete run in the ledger with a seed of the protocol; {left_out}"
    )
    assert (result.loc["fedavg", "Seeds"], result.loc["fedavg", "Status"]) == (5, "reproduced")
    assert result.loc["fedavg", "Reason"] == f"the gap is within 1.00 points; {left_out}"
    assert not any(note.startswith("Unequal") for note in table(NAME, ledger).attrs["notes"])


def test_one_seed_has_no_spread(ledger):
    fill(ledger, {}, seeds=(0,))
    result = rows(ledger)
    assert result["s.d."].isna().all() and result["Reason"].str.contains("no s.d. from one seed").all()
    text = render_table(table(NAME, ledger))
    assert "±" not in text and f"{PAPER['pfedmb']:.2f} (n = 1)" in text


def test_a_row_that_the_paper_lacks_is_our_own_addition(ledger):
    first, *rest = EXPERIMENT.arms
    fill(ledger, {})
    frame = table(replace(EXPERIMENT, arms=(replace(first, paper=None), *rest)), ledger)
    assert frame.loc[0, "Status"] == "own addition" and math.isnan(frame.loc[0, "Gap"])
    assert frame.loc[0, "Reason"] == "not in the paper's table"
    assert set(frame["Status"][1:]) == {"reproduced"}


def test_every_format_holds_every_row(ledger):
    fill(ledger, {})
    (ledger.folder / NAME / f"pfedmb-seed{EXPERIMENT.seeds[0]}.json").unlink()
    frame = table(NAME, ledger)
    text, markdown = render_table(frame), render_table(frame, "markdown")
    for arm in EXPERIMENT.arms:
        assert arm.label in text and arm.label in markdown
    assert f"{PAPER['local']:.2f} ± 0.16 (n = 5)" in markdown
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    assert len(lines) == 2 + len(PAPER) and len({line.count("|") for line in lines}) == 1
    for note in EXPERIMENT.deviations:
        assert note in " ".join(text.split()) and note in markdown  # text is wrapped
    body = text.splitlines()
    head = next(line for line in body if line.startswith("Method"))
    for arm in EXPERIMENT.arms:  # columns start where their heading starts
        line = next(line for line in body if line.startswith(arm.label + " "))
        assert line[head.index("Paper (%)") :].startswith(f"{arm.paper:.2f}")
    back = pd.read_csv(io.StringIO(render_table(frame, "csv")))
    assert list(back) == list(frame) and np.allclose(back["Gap"], frame["Gap"], atol=0.005)
    assert back["Seeds"].tolist() == frame["Seeds"].tolist()


def test_wrong_names_are_answered_with_the_right_ones(ledger):
    with pytest.raises(InputError, match=r"unknown experiment 'pfedmb-tabel1': did you mean pfedmb-table1"):
        table("pfedmb-tabel1", ledger)
    with pytest.raises(InputError, match="unknown format 'html'"):
        render_table(table(NAME, ledger), "html")


def test_a_run_that_is_deleted_from_the_ledger_is_not_run_in_the_table(tmp_path):
    copy = Ledger(tmp_path / "copy")
    shutil.copytree(default_folder() / NAME, copy.folder / NAME)
    before = rows(copy)
    assert before.loc["pfedmb", "Status"] != "not run" and before.loc["pfedmb", "Seeds"] >= 1
    for path in (copy.folder / NAME).glob("pfedmb-seed*.json"):
        path.unlink()
    after = rows(copy)
    assert after.loc["pfedmb", "Status"] == "not run" and math.isnan(after.loc["pfedmb", "Ours (%)"])
    assert after.loc["pfedmb", "Reason"] == "no complete run in the ledger"
    others = [arm for arm in PAPER if arm != "pfedmb"]
    assert after.loc[others, "Ours (%)"].equals(before.loc[others, "Ours (%)"])


def test_the_heading_names_the_budget_and_a_row_the_rounds_that_it_had(ledger):
    fill(ledger, {}, seeds=EXPERIMENT.seeds[:2], rounds=20)
    ledger.write(make_run("local", 60, seed=EXPERIMENT.seeds[2]))
    assert table(NAME, ledger).attrs["title"].endswith("; small budget (30 rounds, 5 seeds planned)")
    assert (
        "small budget (30 rounds, 5 seeds planned)"
        in render_table(table(NAME, ledger), "markdown").splitlines()[0]
    )
    ledger.write(make_run("local", 70, rounds=100) | {"experiment": f"{NAME}-paper"})
    paper = table(NAME, ledger, "paper")  # another folder: nothing of the small budget is in it
    assert "paper budget (until" in paper.attrs["title"] and "100 rounds at most" in paper.attrs["title"]
    assert paper["Seeds"].tolist() == [1, 0, 0, 0]
    assert paper.loc[0, "Ours (%)"] == pytest.approx(70) and paper.loc[0, "Rounds"] == "100"
    assert table(NAME, ledger).loc[0, "Seeds"] == 3 and table(NAME, ledger).loc[0, "Rounds"] == "20, 30"
    assert "20 of 30 rounds" in table(NAME, ledger).loc[1, "Reason"]


def test_an_arm_may_have_rounds_of_its_own(ledger):
    first, *rest = EXPERIMENT.arms
    longer = replace(EXPERIMENT, arms=(replace(first, rounds=50), *rest))
    ledger.write(make_run("local", 80))
    ledger.write(make_run("fedavg", 80))
    reasons = table(longer, ledger)["Reason"]
    assert "30 of 50 rounds" in reasons[0] and "of 50 rounds" not in reasons[1]
    assert "(30 or 50 rounds" in longer.heading


def test_another_network_is_a_trend_at_best(ledger):
    fill(ledger, {"local": 2.5})
    other = replace(EXPERIMENT, stands_in="the network is another")
    frame = table(other, ledger).assign(arm=list(PAPER)).set_index("arm")
    assert (
        frame.loc["fedavg", "Gap"] == pytest.approx(0) and frame.loc["fedavg", "Status"] == "not reproduced"
    )
    assert (
        "the network is another; and the paper's order is reversed against Local"
        in frame.loc["fedavg", "Reason"]
    )
    fill(other_ledger := Ledger(ledger.folder / "other"), {})
    assert set(table(other, other_ledger)["Status"]) == {"trend only"}
    assert order_says(85.0, 88.0, [])[0] == "not reproduced"


def test_what_a_figure_draws_without_a_number_is_no_addition_of_ours(ledger):
    fill(ledger, {})
    arms = tuple(replace(arm, paper=None) for arm in EXPERIMENT.arms)
    drawn = table(replace(EXPERIMENT, arms=arms, drawn=True), ledger)
    assert set(drawn["Status"]) == {"drawn only"} and set(drawn["Reason"]) == {
        "the paper draws it and prints no number"
    }


def test_the_run_of_another_experiment_fills_its_cell(ledger):
    name = "pfedmb-table2-random2-50"
    for seed in (0, 1):
        ledger.write(make_run("pfedmb", 86, seed) | {"experiment": name})
    frame = table("pfedmb-fig5", ledger)
    assert frame["Status"].tolist() == ["not run", "not run", "reproduced", "not run"]
    assert frame.loc[2, "Seeds"] == 1  # the scan asks for seed 0 alone
    assert frame.loc[2, "Ours (%)"] == pytest.approx(86) and frame.loc[2, "Paper (%)"] == 86.73


def test_where_the_data_cannot_be_had_the_row_says_the_command(ledger):
    text = " ".join(render_table(table("fedmn-table2-femnist", ledger, "paper")).split())
    for key in ("local", "pfl_ft", "fedmn"):
        reasons = table("fedmn-table2-femnist", ledger, "paper")["Reason"]
        said = f"`pfl-lite reproduce fedmn-table2-femnist --methods {key} --budget-name paper`"
        assert f"data not available here; where it is: {said}" in set(reasons)
    assert text.count("not run") == 8


def test_a_group_s_tables_follow_each_other(ledger):
    result = call("table", "pfedmb-table2", "--ledger", ledger.folder)
    assert result.exit_code == 0 and result.stdout.count("pFedMB, Table II: ") == 6


def test_a_group_is_one_csv_that_names_the_experiment_of_every_row(ledger):
    for name, rows in (("pfedmb-table2", 54), (NAME, 4)):
        result = call("table", name, "--format", "csv", "--ledger", ledger.folder)
        back = pd.read_csv(io.StringIO(result.stdout))
        assert list(back)[:2] == ["experiment", "Method"] and len(back) == rows
        assert not result.stdout.endswith("\n\n")  # which other programs take for a row
        assert list(back["experiment"].unique()) == list(members(name))


@pytest.mark.parametrize("converged", [True, False])
def test_a_row_that_ended_at_the_limit_says_so(tmp_path, converged):
    name, ledger = "pfedmb-table2-random2-50", Ledger(tmp_path)
    run = make_run("local", 84.0, rounds=300) | {"experiment": f"{name}-paper"}
    run["rounds"][-1]["converged"] = converged
    ledger.write(run)
    reason = table(name, ledger, "paper").set_index("Method")["Reason"]["Local"]
    assert "1 of 3 seeds" in reason and ("limit of 300 rounds" in reason) != converged
