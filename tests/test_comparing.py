"""`compare`: the table's numbers are those of the runs, and what cannot be compared is refused before any run."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from pfl_lite import compare, make_federation, run
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
        (["fedavg"], {"seeds": 0}, "seeds must be a number of 1 or more"),
        (["fedavg"], {"seeds": [1, 1]}, "or different seeds such as"),
        (["fedavg"], {"seeds": "3"}, "not '3'"),
        (["fedavg"], {"seeds": [0, -1]}, "seed must be 0 or more, not -1"),
        (["fedavg"], {"workers": 0}, "workers"),
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
