"""The comparison with other packages: its table, the file that everybody reads, the scripts; nothing is installed or timed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pfl_lite.config import make_config
from pfl_lite.data.federation import Federation, make_federation
from pfl_lite.engine.simulation import Simulation
from pfl_lite.errors import InputError
from tests.scripts import benchmark

ROOT = Path(__file__).resolve().parent.parent
BENCHMARKS = ROOT / "benchmarks"
CLIENTS = 5


compare, work, lenet = benchmark("compare"), benchmark("common/work"), benchmark("common/lenet")


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a clients file that was made from 400 training and 100 test images of noise."""
    rng = np.random.default_rng(0)
    arrays = {}
    for part, size in (("train", 400), ("test", 100)):
        arrays[f"{part}_images"] = rng.integers(256, size=(size, 32, 32, 3), dtype=np.uint8)
        arrays[f"{part}_labels"] = np.arange(size) % 10
    np.savez(tmp_path / "cifar10.npz", **arrays)
    monkeypatch.setenv("PFL_LITE_DATA", str(tmp_path))
    compare.write_clients(tmp_path / "clients.npz", "cifar10", CLIENTS)
    return tmp_path


def federation() -> Federation:
    return make_federation("cifar10", "classes:2", CLIENTS, 0)


SETTINGS = {"rounds": 2, "epochs": 1, "batch_size": 64, "lr": 0.05, "data": "cifar10"}


# ---- the work -----------------------------------------------------------------------------------------------------


def test_clients_and_start_are_those_of_our_own_runs(written: Path) -> None:
    data, ours = work.Clients.read(str(written / "clients.npz")), federation()
    assert len(data.train) == len(data.test) == CLIENTS
    for i in range(CLIENTS):
        assert (data.train[i] == ours.train[i].numpy()).all() and len(
            np.unique(data.labels[data.train[i]])
        ) == 2
        assert (data.test[i] == ours.test[i].numpy()).all()
    assert np.allclose(data.images, ours.images, atol=1e-6) and (data.labels == ours.labels.numpy()).all()
    assert np.allclose(data.test_images, ours.test_images, atol=1e-6)
    sim = Simulation(make_config("fedavg", data="cifar10", partition="classes:2", clients=CLIENTS), ours)
    assert data.start.keys() == sim.start.keys()
    assert all((data.start[name] == tensor.numpy()).all() for name, tensor in sim.start.items())
    x = ours.images[:7]
    assert torch.allclose(lenet.LeNet(data.start)(x), sim.network(sim.start, x), atol=1e-6)


def test_clients_that_cannot_be_made_are_named(written: Path) -> None:
    with pytest.raises(InputError, match="pfl-lite partition failed"):
        compare.write_clients(written / "clients.npz", "cifar10", 0)


def test_the_first_round_warms_up(written: Path) -> None:
    asked = work.Work(
        str(written / "clients.npz"), "", "cifar10", "fedavg", 1, 1, rounds=3, epochs=5, batch_size=64, lr=0.1
    )
    clock = work.Clock(asked, ends=[100.0, 101.0, 104.0])
    assert clock.images_per_second == 5 * sum(map(len, federation().train)) * 2 / 4


def test_our_run_answers_and_a_run_that_fails_is_named(written: Path) -> None:
    answer = compare.play(compare.Item("ours", "fedavg", 1, 1), written, SETTINGS, listen=True)
    assert answer["images_per_second"] > 0 and answer["seconds"] > 0 and answer["memory"] > 10
    config = make_config(
        "fedavg", model="lenet", partition="classes:2", clients=CLIENTS, **SETTINGS, engine="loop"
    )
    sim = Simulation(config, federation())
    sim.run()
    assert answer["accuracy"] == pytest.approx(sim.history.rounds[-1]["personal_accuracy"])
    failed = compare.play(compare.Item("ours", "fedfoo", 1, 1), written, SETTINGS, listen=False)
    assert "InputError" in failed["error"] and "fedfoo" in failed["error"]


# ---- the table ----------------------------------------------------------------------------------------------------


def answers() -> dict[Any, list[dict[str, Any]]]:
    """Given numbers: one turn that listens and three timed ones."""

    def given(*rates: float, accuracy: float | None = 0.5, memory: float = 100.0) -> list[dict[str, Any]]:
        return [
            {"images_per_second": rate, "accuracy": accuracy, "version": "x 1", "seconds": 9.0} | heard
            for rate, heard in zip(rates, [{"memory": memory}, {}, {}, {}], strict=True)
        ]

    item = compare.Item
    return {
        item("ours", "bare", 2, 1): given(1, 200, 220, 210, accuracy=None),
        item("ours", "fedavg", 1, 1): given(900, 100, 120, 110),
        item("ours", "fedavg", 2, 1): given(1, 190, 200, 210, memory=1234),
        item("fluke", "fedavg", 1, 2): given(1, 150, 150, 150),
        item("flower", "fedavg", 2, 1): [{"error": "does not run (exit status 1): ImportError: no ray"}],
        item("fluke", "fedper", 1, 2): given(1, 80, 70, 90),
        item("ours", "fedper", 1, 1): given(1, 100, 160, 90),
    }


def test_medians_of_the_timed_turns_and_ratios_to_our_fastest() -> None:
    rows = {(row.peer, row.method, row.processes, row.threads): row for row in compare.summary(answers())}
    assert rows["ours", "fedavg", 1, 1].images_per_second == 110
    assert rows["ours", "fedavg", 1, 1].of_ours == pytest.approx(110 / 200)
    assert rows["ours", "fedavg", 2, 1].of_ours == 1 and rows["ours", "fedavg", 2, 1].memory == 1234
    assert rows["ours", "bare", 2, 1].of_ours == pytest.approx(210 / 200)
    assert rows["fluke", "fedavg", 1, 2].of_ours == 0.75 and rows["fluke", "fedper", 1, 2].of_ours == 0.8
    assert rows["flower", "fedavg", 2, 1].of_ours is None


def test_the_table_shows_the_numbers_and_names_the_errors() -> None:
    shown = compare.table(compare.summary(answers()))
    lines = [line.split() for line in shown.splitlines()]
    assert ["pfl-lite", "2", "x", "1", "200", "1.00", "9.0", "s", "1,234", "50.0%", "*"] in lines
    assert ["pfl-lite", "1", "x", "1", "110", "0.55", "9.0", "s", "100", "50.0%"] in lines
    assert ["bare", "2", "x", "1", "210", "1.05", "9.0", "s", "100", "*"] in lines
    assert "Flower                     2 x 1  does not run (exit status 1): ImportError: no ray" in shown
    assert [line[0] for line in lines if line[-1] == "accuracy"] == ["fedavg", "fedper"]
    for peer in ("fluke", "flower", "ours"):
        assert f"{compare.PEERS[peer].title}: {compare.PEERS[peer].apart}" in shown
    assert compare.PEERS["fedjax"].apart not in shown


def test_without_a_number_of_ours_there_is_no_ratio() -> None:
    known = {item: given for item, given in answers().items() if item.peer != "ours"}
    assert all(row.of_ours is None for row in compare.summary(known))


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ("Traceback\n  File x\nray.exceptions.RayError: gone\n", "ray.exceptions.RayError: gone"),
        ("ValueError: 1\n\nChildFailed\n  rank 0\n", "ValueError: 1"),
        ("Killed\n\n", "Killed"),
        ("", "it said nothing"),
    ],
)
def test_what_went_wrong_is_one_line(said: str, line: str) -> None:
    assert compare.complaint(said) == line


def test_a_peer_is_run_beside_ours_of_the_same_name() -> None:
    items = compare.chosen(["fedjax"], ["fedavg", "fedper", "apfl"])
    ours = {item.method for item in items if item.peer == "ours"}
    assert ours == {"bare", "bare-channels-last", "fedavg", "apfl"}
    assert {item.method for item in items if item.peer == "fedjax"} == {"fedavg", "apfl"}
    assert not [item for item in compare.chosen(["fedjax"], ["apfl"]) if item.method.startswith("bare")]


# ---- the scripts --------------------------------------------------------------------------------------------------


def test_every_peer_has_a_script_that_compiles_and_exact_versions() -> None:
    folders = {path.name for path in (BENCHMARKS / "peers").iterdir() if path.is_dir()}
    assert folders == set(compare.PEERS)
    for name, peer in compare.PEERS.items():
        script = BENCHMARKS / "peers" / name / "run.py"
        compile(script.read_text(), script, "exec")
        assert set(peer.methods) <= set(compare.PEERS["ours"].methods)
        if name != "ours":
            for line in script.with_name("requirements.txt").read_text().splitlines():
                assert re.fullmatch(r"[a-z0-9][a-z0-9-]*(\[[a-z,-]+\])?==[0-9][0-9a-z.!+]*( ; .+)?", line), (
                    line
                )
