"""A submitted row is trained again in part: what was trained so is repeated, and what was not is found."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import retrain

from pfl_lite.atomic_files import read_json
from pfl_lite.results.ledger import default_folder

ROW = "when-concept-shift/fedavg-seed0.json"


def honest(entry: dict[str, Any]) -> None:
    pass


def better(entry: dict[str, Any]) -> None:
    for one in entry["rounds"]:
        if "personal_accuracy" in one:
            one["personal_accuracy"] = min(1.0, one["personal_accuracy"] + 0.05)


def better_clients(entry: dict[str, Any]) -> None:
    for one in entry["rounds"]:
        if "per_client" in one:
            one["per_client"]["personal"] = [0.99] * len(one["per_client"]["personal"])


def other_rate(entry: dict[str, Any]) -> None:
    entry["config"]["lr"] /= 20


def fewer_clients(entry: dict[str, Any]) -> None:
    entry["rounds"][1]["clients"].pop()


def less_traffic(entry: dict[str, Any]) -> None:
    entry["rounds"][2]["floats_up"] //= 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        (honest, 0, "rounds 0 to 4: repeated"),
        (better, 1, "round 0: personal_accuracy is"),
        (better_clients, 1, "round 0: personal accuracies of the clients differ by 0."),
        (other_rate, 1, "round 4: "),
        (fewer_clients, 1, "round 1: other clients"),
        (less_traffic, 1, "round 2: other floats_up"),
    ],
)
def test_a_row_is_repeated_or_not(
    change: Callable[[dict[str, Any]], None],
    code: int,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    entry = json.loads((default_folder() / ROW).read_text())
    change(entry)
    path = tmp_path / ROW
    path.parent.mkdir()
    path.write_text(json.dumps(entry))
    monkeypatch.setattr(sys, "argv", ["retrain.py", str(path)])
    assert retrain.main() == code
    assert says in capsys.readouterr().out


def test_a_setting_that_came_later_is_as_it_was_before(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(retrain, "Simulation", lambda config: asked.append(config) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        retrain.again({"config": {"method": {"name": "fedmn"}}, "rounds": []}, 1)
    assert (asked[0].method.block_std, asked[0].method.normalize, asked[0].method.plant) == (
        0.01,
        "each",
        "body",
    )


def test_a_setting_that_is_gone_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(retrain, "Simulation", lambda config: asked.append(config) or 1 / 0)
    for path in sorted(default_folder().glob("*/*-seed0.json*")):
        with pytest.raises(ZeroDivisionError):
            retrain.again(read_json(path), 1)
    assert len(asked) > 100


@pytest.mark.parametrize("content", [None, "", "[]", '{"kind": "run"}'])
def test_another_file_is_no_row(
    content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "results" / "an-experiment" / "fedavg-seed0.json"
    path.parent.mkdir(parents=True)
    if content is not None:
        path.write_text(content)
    monkeypatch.setattr(sys, "argv", ["retrain.py", str(path)])
    assert retrain.main() == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_workflow_trains_submitted_rows_again() -> None:
    root = Path(__file__).resolve().parents[1]
    assert "tools/retrain.py" in (root / ".github/workflows/test.yml").read_text()
    assert "tools/retrain.py" in (root / "book/submit-a-row.md").read_text()
