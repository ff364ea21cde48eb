"""`compare`: the table's numbers are those of the runs, and what cannot be compared is refused before any run."""

from __future__ import annotations

import contextlib
import io
import json
import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from pfl_lite import compare, make_federation, run
from pfl_lite.atomic_files import locked
from pfl_lite.cli import app
from pfl_lite.data.csv_clients import read_tables
from pfl_lite.errors import InputError
from pfl_lite.methods import FedProx
from pfl_lite.papers.statement import by_unit, estimate

SHORT: dict[str, Any] = {"data": "digits", "model": "linear", "clients": 4, "rounds": 2, "lr": 0.5}


def scores(method: str, seeds: tuple[int, ...], **settings: Any) -> np.ndarray:
    """Test accuracies in percent, [seeds, clients], run by run."""
    ends = [run(method, seed=seed, **settings).report()["final"]["test_accuracy"] for seed in seeds]
    return 100 * np.array(ends, dtype=float)


def test_a_row_is_the_mean_of_its_runs_and_their_paired_difference_from_the_first(
    capsys: pytest.CaptureFixture[str],
) -> None:
    frame = compare(["local", "fedavg"], seeds=3, **SHORT)
    local, fedavg = (scores(method, (0, 1, 2), **SHORT) for method in ("local", "fedavg"))
    assert frame.index.tolist() == ["local", "fedavg"] and frame.index.name == "method"
    assert frame["accuracy"].tolist() == [local.mean(), fedavg.mean()]
    assert frame.loc["local", ["difference", "low", "high"]].isna().all()
    lead = estimate(fedavg - local)
    assert frame.loc["fedavg", ["difference", "low", "high"]].tolist() == [lead.value, *lead.interval]
    assert frame["deviation"].tolist() == pytest.approx([x.mean(1).std(ddof=1) for x in (local, fedavg)])
    clients = pd.DataFrame(frame.attrs["clients"]).pivot_table("value", ["method", "seed"], "client")
    assert np.array_equal(100 * clients.loc["fedavg"], fedavg) and np.array_equal(
        100 * clients.loc["local"], local
    )
    curves = [point for point in frame.attrs["curves"] if (point["method"], point["seed"]) == ("fedavg", 2)]
    rounds, values = run("fedavg", seed=2, **SHORT).history.curve()
    assert [point["round"] for point in curves] == rounds == [0, 1, 2]
    assert [point["value"] for point in curves] == values and len(frame.attrs["curves"]) == 2 * 3 * 3
    lines = capsys.readouterr().err.splitlines()
    told = [line for line in lines if re.fullmatch(r"\w+ seed \d: [\d.]+% after [\d.]+ s, run \d of 6", line)]
    assert len(told) == 6 and told[0].startswith("local seed 0") and told[5].startswith("fedavg seed 2")


def test_a_row_may_have_settings_and_a_name_of_its_own() -> None:
    rows = {"fedavg": {}, "pfl_ft": {"ft_epochs": 2}, "tied": {"method": "fedprox", "mu": 0.5}}
    frame = compare(rows, seeds=[5], **SHORT)
    assert frame.index.tolist() == list(rows)
    for name, settings in (("pfl_ft", {"ft_epochs": 2}), ("fedprox", {"mu": 0.5})):
        row = "tied" if name == "fedprox" else name
        assert frame.loc[row, "accuracy"] == scores(name, (5,), **SHORT, **settings).mean()
    given = compare([FedProx(mu=0.5)], seeds=[5], **SHORT)
    assert given.index.tolist() == ["FedProx(weights='size', mu=0.5)"]
    assert given["accuracy"].tolist() == [frame.loc["tied", "accuracy"]]


def test_a_client_without_test_images_counts_in_no_difference_and_twins_count_as_one() -> None:
    federation = make_federation("digits", "pairs", 10, 0)
    federation.test[3] = federation.test[3][:0]
    short = {"rounds": 2, "lr": 0.5, "model": "linear"}
    frame = compare(["local", "fedavg"], seeds=2, federation=federation, **short)
    first, second = (scores(one, (0, 1), federation=federation, **short) for one in ("local", "fedavg"))
    assert frame["accuracy"].tolist() == [np.nanmean(first), np.nanmean(second)]
    twins = by_unit(second - first, {"config": {"partition": "pairs"}})
    assert twins.shape == (2, 5) and np.isnan(twins[:, 1]).all()
    lead = estimate(np.delete(twins, 1, 1))
    shown = frame.loc["fedavg", ["difference", "low", "high"]].tolist()
    assert shown == pytest.approx([lead.value, *lead.interval])


def test_a_number_of_seeds_may_come_from_numpy() -> None:
    shown = compare(["local"], seeds=np.int64(1), **SHORT)
    assert shown.equals(compare(["local"], seeds=[0], **SHORT))


@pytest.mark.parametrize(
    ("methods", "more", "says"),
    [
        ("fedavg", {}, r"compare takes several methods, e\.g\. \['local', 'fedavg'\]"),
        ([], {}, "needs at least one method"),
        (["fedavg", "fedavg"], {}, "fedavg is there twice"),
        (["fedavg", "fedavgg"], {}, "unknown method 'fedavgg'"),
        ({"fedavg": 3}, {}, "the settings of 'fedavg' must be a dict"),
        ({"fedavg": {}, "mine": {"mu": 1}}, {}, "unknown method 'mine'"),
        ({"fedavg": {}, "local": {"clients": 5}}, {}, "clients of 'local' must be that of all methods"),
        ({"fedavg": {}, "local": {"mu": 1}}, {}, "unknown setting of local 'mu'"),
        (["fedavg", "fedper"], {"head": "last"}, "unknown setting of fedavg 'head'"),
        ({"fedavg": {}, "fedper": {"head": "fc9"}}, {}, "fc9"),
        (["fedavg"], {"seed": 3}, r"compare takes seeds, not seed: write seeds=\[3\]"),
        (["fedavg"], {"seeds": 0}, "seeds must be a number from 1 to 1,000, .*: seed 0 alone is"),
        (["fedavg"], {"seeds": [1, 1]}, "or different seeds such as"),
        (["fedavg"], {"seeds": "3"}, "not '3'"),
        (["fedavg"], {"seeds": [0, -1]}, "seed must be 0 or more, not -1"),
        (["fedavg"], {"workers": 0}, "workers"),
        (["fedavg"], {"on": "train"}, "on must be test or val, not 'train'"),
        (["fedavg"], {"on": "val", "val_fraction": 0}, "no client has validation images"),
        (
            ["local", "fedavg"],
            {"clients": 2, "unseen": 1},
            "takes part with each of the seeds 0, 1, 2: there is",
        ),
        (["fedavg"], {"data": "digit"}, "unknown data set 'digit'"),
        (["fedavg"], {"checkpoint": "a.npz"}, "unknown setting of fedavg 'checkpoint'"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_any_run(
    capsys: pytest.CaptureFixture[str], methods: Any, more: dict[str, Any], says: str
) -> None:
    with pytest.raises(InputError, match=says) as error:
        compare(methods, **(SHORT | more))
    assert len(str(error.value).splitlines()) == 1 and not capsys.readouterr().err


def test_the_command_line_prints_the_same_table_and_gives_a_method_its_own_settings() -> None:
    short = [f"--{name}={value}" for name, value in SHORT.items()]
    asked = ["compare", "local", "ditto:lam=0.1,ft_epochs=2", "--seeds", "2,5", "--format", "csv", *short]
    result = CliRunner().invoke(app, asked)
    rows = {"local": {}, "ditto:lam=0.1,ft_epochs=2": {"method": "ditto", "lam": 0.1, "ft_epochs": 2}}
    expected = compare(rows, seeds=[2, 5], **SHORT).reset_index()
    assert result.exit_code == 0 and result.stdout == expected.to_csv(index=False, float_format="%.2f")
    assert len(result.stderr.splitlines()) == 4
    text = CliRunner().invoke(app, ["compare", "local", "fedavg", "--seeds", "1", *short]).stdout
    assert "points from local" in text and len(re.findall("^(?:local|fedavg) ", text, re.MULTILINE)) == 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["local", "local"], "local is there twice"),
        (["local", "ditto:lam"], "ditto: takes name=value, e.g. ditto:lam=1.0, not 'lam'"),
        (["local", "ditto:lam=1,lam=2"], "ditto:lam is given twice: 1 and 2"),
        (["local", "fedavg:lam=2"], "unknown setting of fedavg 'lam'"),
        (["local", "ditto", "--lam", "2"], "write ditto:lam=..."),
        (["local", "fedprox:mu=1", "fedamp:sigma=1", "--lam", "2"], "write fedamp:lam=..."),
        (["local", "fedavg", "--lam", "2"], "write pfedme:lam=..."),
        (["local", "fedavg", "--seeds", "x"], "--seeds takes whole numbers separated by commas"),
        (["local", "fedavg", "--format", "x"], "unknown format 'x'"),
        (["local", "fedavg:clients=3"], "clients of 'fedavg:clients=3' must be that of all methods"),
    ],
)
def test_the_command_line_refuses_in_one_sentence(arguments: list[str], says: str) -> None:
    result = CliRunner().invoke(app, ["compare", *arguments])
    assert result.exit_code == 2 and says in result.stderr and len(result.stderr.splitlines()) == 1


def test_the_block_of_the_readme_runs() -> None:
    readme = Path(__file__).resolve().parent.parent / "README.md"
    blocks = re.findall(r"^```python\n(.*?)^```$", readme.read_text(), re.MULTILINE | re.DOTALL)
    (block,) = [one for one in blocks if "compare(" in one]
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        exec(block, {})
    assert [line.split()[0] for line in told.getvalue().splitlines()[2:]] == ["local", "fedavg", "ditto"]


def test_the_block_of_the_first_page_prints_what_stands_below_it() -> None:
    page = (Path(__file__).resolve().parent.parent / "book/intro.md").read_text()
    ((block, printed),) = re.findall(
        r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", page, re.MULTILINE | re.DOTALL
    )
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        exec(block, {})
    for ours, theirs in zip(told.getvalue().splitlines(), printed.splitlines(), strict=True):
        assert ours[:11] == theirs[:11]
        assert float(ours[11:-1]) == pytest.approx(
            float(theirs[11:-1]), abs=1.5
        )  # another processor, another last digit


def test_newcomers_do_not_count_and_are_the_same_for_every_method() -> None:
    frame = compare(["local", "fedavg"], seeds=[3], unseen=1, **SHORT)
    ends = [run(one, seed=3, unseen=1, **SHORT) for one in ("local", "fedavg")]
    there = [i for i in range(4) if i not in ends[0].history.unseen]
    first, second = (100 * np.array(sim.report()["final"]["test_accuracy"])[there] for sim in ends)
    assert len(there) == 3 and frame["accuracy"].tolist() == pytest.approx([first.mean(), second.mean()])
    assert frame.loc["fedavg", "difference"] == pytest.approx((second - first).mean())
    with pytest.raises(InputError, match="unseen of 'local' must be that of all methods"):
        compare({"fedavg": {}, "local": {"unseen": 2}}, **SHORT)


def test_a_method_that_lost_a_client_has_no_mean_and_nothing_to_score_is_refused(tmp_path: Path) -> None:
    for i in range(3):
        rows = "\n".join(f"{x},{(i + 1) * x + x % 3}" for x in range(20))
        (tmp_path / f"{i}.csv").write_text(f"a,y\n{rows}\n")
    tables = read_tables(sorted(tmp_path.glob("*.csv")), "y")
    settings: dict[str, Any] = {"rounds": 2, "model": "linear", "federation": tables, "seeds": [0]}
    with warnings.catch_warnings(action="ignore"):
        frame = compare({"local": {}, "wild": {"method": "local", "lr": 1e30}}, **settings)
    assert np.isfinite(frame.loc["local", "r2"]) and frame.loc["wild", ["r2", "difference"]].isna().all()
    nothing = replace(tables, test=[rows[:0] for rows in tables.test])
    with pytest.raises(InputError, match=r"^no client has test images: there is nothing to compare"):
        compare(["local", "fedavg"], **(settings | {"federation": nothing}))


def test_what_is_kept_is_not_trained_again_and_belongs_to_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = {"local": {}, "a/b": {"method": "fedprox", "mu": 0.5}}
    first = compare(rows, seeds=2, keep=tmp_path / "runs", **SHORT)
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {
        f"{name}-seed{seed}.{kind}"
        for name in ("local", "a-b")
        for seed in (0, 1)
        for kind in ("json", "checkpoint")
    }
    report = json.loads((tmp_path / "runs" / "a-b-seed1.json").read_text())
    assert report["complete"] and report["config"]["seed"] == 1 and report["config"]["method"]["mu"] == 0.5
    with monkeypatch.context() as none:
        none.setattr("pfl_lite.engine.rounds.Rounds.advance", lambda self: pytest.fail("was trained again"))
        assert compare(rows, seeds=2, keep=tmp_path / "runs", **SHORT).equals(first)
    with pytest.raises(InputError, match=r"kept in the same files: give them names that differ"):
        compare(rows | {"A b": {"method": "local"}}, seeds=1, keep=tmp_path / "others", **SHORT)
    assert not (tmp_path / "others").exists()
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"file cannot be written"):
        compare(rows, seeds=1, keep=tmp_path / "file", **SHORT)
    compare(
        {"弱": {"method": "local"}, "強": {"method": "fedavg"}}, seeds=1, keep=tmp_path / "others", **SHORT
    )
    with pytest.raises(InputError, match=r"another configuration \(it differs in lr"):
        compare(rows, seeds=2, keep=tmp_path / "runs", **SHORT | {"lr": 0.1})
    (tmp_path / "runs" / "local-seed0.checkpoint").unlink()
    with pytest.raises(InputError, match=r"local-seed0\.json is there without its checkpoint"):
        compare(rows, seeds=2, keep=tmp_path / "runs", **SHORT)


def test_a_run_and_a_comparison_leave_to_another_call_what_it_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, path = tmp_path / "new" / "kept", tmp_path / "run.pt"
    calls: dict[Path, Callable[[], object]] = {
        path: lambda: run("local", checkpoint=path, **SHORT),
        kept: lambda: compare(["local"], seeds=1, keep=kept, **SHORT),
    }
    with monkeypatch.context() as none:
        none.setattr("pfl_lite.engine.rounds.Rounds.advance", lambda self: pytest.fail("was trained"))
        for held, call in calls.items():
            with (
                locked(held, inside=held == kept),
                pytest.raises(InputError, match=rf"another call trains into {held}: wait for its end, or"),
            ):
                call()
        assert not list(tmp_path.iterdir())
    for call in calls.values():
        call()
    assert path.exists() and not list(tmp_path.rglob(".*"))


def test_a_report_says_which_clients_were_held_out() -> None:
    sim = run("fedavg", seed=3, unseen=2, **SHORT)
    final = sim.report()["final"]["test_accuracy"]
    newcomers = sim.report()["unseen"]
    assert newcomers == sim.history.unseen and len(newcomers) == 2
    mean = sim.report()["rounds"][-1]["unseen_personal_accuracy"]
    assert mean == pytest.approx(np.mean([final[i] for i in newcomers]))
    assert "unseen" not in run("fedavg", seed=3, **SHORT).report()


def test_a_client_without_validation_images_does_not_count_where_these_decide() -> None:
    federation = make_federation("digits", "dirichlet:1", 4, 0)
    federation.val[3] = federation.val[3][:0]
    short: dict[str, Any] = {"federation": federation, "rounds": 2, "lr": 0.5, "model": "linear"}
    frame = compare(["local", "fedavg"], seeds=[0], on="val", **short)
    ends = [run(one, **short).report()["final"] for one in ("local", "fedavg")]
    first, second = (100 * np.array(end["val_accuracy"], dtype=float)[:3] for end in ends)
    assert frame["accuracy"].tolist() == pytest.approx([first.mean(), second.mean()])
    assert frame.loc["fedavg", "difference"] == pytest.approx((second - first).mean())


def test_rates_are_chosen_on_validation_images() -> None:
    rows = {f"lr {lr}": {"method": "fedavg", "lr": lr} for lr in (0.01, 0.5)}
    frame = compare(rows, seeds=[100], on="val", **SHORT)
    for name, own in rows.items():
        final = run(seed=100, **SHORT | own).report()["final"]
        assert frame.loc[name, "accuracy"] == pytest.approx(100 * np.nanmean(final["val_accuracy"]))
        assert frame.loc[name, "accuracy"] != pytest.approx(100 * np.nanmean(final["test_accuracy"]))
    short = [f"--{name}={value}" for name, value in SHORT.items() if name != "lr"]
    asked = ["compare", "fedavg:lr=0.01", "fedavg:lr=0.5", "--seeds", "1", "--on", "val", *short]
    shown = CliRunner().invoke(app, asked).stdout
    assert "In percent of validation images" in shown
    assert all(
        len(number.partition(".")[2]) == 2 for number in re.findall(r"(?<= )-?[\d.]+", shown.splitlines()[-1])
    )
