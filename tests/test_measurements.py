"""The scripts behind the chapter on speed measure what they say."""

from __future__ import annotations

import copy
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pfl_lite.models import NETWORKS
from pfl_lite.results.ledger import Ledger
from tests.scripts import benchmark


@pytest.mark.parametrize("variant", ["relu_first", "pool_first", "pool_in_convolution", "unfolded"])
def test_all_variants_of_the_step_are_the_network(variant: str) -> None:
    tries = benchmark("tries")
    network = NETWORKS["lenet"].module(3, 32, 10).double()
    x, y = torch.randn(5, 3, 32, 32, dtype=torch.float64), torch.tensor([0, 3, 9, 9, 1])
    start = {name: tensor.detach() for name, tensor in network.named_parameters()}
    step = tries.Step(getattr(tries, variant), start, x, y)
    loss = torch.nn.functional.cross_entropy(network(x), y)
    truth = torch.autograd.grad(loss, list(network.parameters()))
    for name, ours, theirs in zip(start, step.gradient(), truth, strict=True):
        # the steps compute the loss in float32
        assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-7), name


@pytest.mark.parametrize("channels", [8, 16])
def test_channels_of_zeros_change_nothing(channels: int) -> None:
    network = NETWORKS["lenet"].module(3, 32, 10).double()
    x = torch.randn(5, 3, 32, 32, dtype=torch.float64)
    padded = benchmark("fused").padded(channels, dict(network.named_parameters()), x)
    assert torch.allclose(padded, network(x), atol=1e-12)


def test_arithmetic_of_an_image_is_counted_by_hand() -> None:
    # conv1 4704 outputs of 75 products, conv2 1600 of 150, then 400 x 120, 120 x 84, 84 x 10
    by_hand = 2 * (2 * 4704 * 75 + 3 * 1600 * 150 + 3 * (48000 + 10080 + 840))
    assert sum(benchmark("tries").flops_per_image().values()) == by_hand


def test_a_point_of_a_curve_counts_images_and_states() -> None:
    settings: dict[str, Any] = {
        "data": "digits",
        "model": "linear",
        "clients": 20,
        "batch_size": 8,
        "epochs": 2,
    }
    found = benchmark("growth").point("ditto", settings, 2)
    assert found["parameters"] == 650
    # the global model and one a client, of 650 floats of four bytes
    assert found["state_mib"] == round(21 * 650 * 4 / 2**20, 3)
    assert found["round_seconds"] > 0 and found["peak_gib"] >= found["built_gib"] > 0


def test_curves_grow_in_one_thing_at_a_time() -> None:
    for name, points in benchmark("growth").points("digits", 1000, 5).items():
        varied = [
            {key for key in a if a[key] != b[key]} for (m, a), (n, b) in itertools.pairwise(points) if m == n
        ]
        assert varied and all(keys == {name} for keys in varied)


def test_a_machine_is_named() -> None:
    named = benchmark("engines").machine("cpu")
    assert named["processor"] and named["cores"] >= 1 and named["versions"]["torch"] == torch.__version__


def test_a_row_that_was_trained_again_is_held_beside_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    again, stored, copied = benchmark("again"), Ledger(), Ledger(tmp_path / "again")
    first, other = (stored.get("pfedmb-table1", arm, 0) for arm in ("local", "fedavg"))
    assert first is not None and other is not None
    second = copy.deepcopy(first) | {"seconds": first["seconds"] + 1}
    accuracies = second["final"]["test_accuracy"]
    accuracies[1] = accuracies[1] - 0.05
    for run in (second, other):  # what is only a copy is no second training
        copied.write(run)
    monkeypatch.setattr("sys.argv", ["again.py", str(copied.folder), "--json", str(tmp_path / "again.json")])
    again.main()
    (row,) = json.loads((tmp_path / "again.json").read_text())["rows"]
    assert (row["arm"], row["seed"]) == ("local", 0) and "fedavg" not in capsys.readouterr().out
    assert row["largest gap of a client"] == pytest.approx(5)
    assert row["ends"][0] - row["ends"][1] == pytest.approx(5 / len(accuracies))
    assert row["ends"][0] == pytest.approx(100 * np.mean(first["final"]["test_accuracy"]))
    assert row["curves"] and all(here == there for here, there in row["curves"].values())
