"""The file without the package is made from the units' cells, and gives the package's numbers."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import one_file
import pytest
import torch

from pfl_lite import Federation, make_federation, run

ROOT = Path(__file__).resolve().parent.parent
ROUNDS, E, B, LR = 2, 1, 32, 0.1


@pytest.fixture(scope="module")
def alone() -> Any:
    """The file as a module."""
    spec = importlib.util.spec_from_file_location("alone", ROOT / "book/_extra/pfl_in_one_file.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def federation() -> Federation:
    return make_federation("digits", "pairs", clients=10, seed=0, dtype=torch.float64)


def packaged(federation: Federation, method: str, model: str = "linear", **options: Any) -> Any:
    where = dict(data="digits", partition="pairs", clients=10, seed=0, dtype="float64", federation=federation)
    return run(method, model=model, rounds=ROUNDS, epochs=E, batch_size=B, **{"lr": LR} | where | options)


CASES: dict[str, tuple[Any, str, str, dict[str, Any]]] = {
    "Local": (
        lambda m, f, s: m.local_or_tuned(f, s, ROUNDS, E, B, LR), "local", "linear", {}),
    "FedAvg": (
        lambda m, f, s: m.fedavg(f, s, ROUNDS, E, B, LR), "fedavg", "linear", {}),
    "PFL-FT": (
        lambda m, f, s: m.local_or_tuned(f, s, ROUNDS, E, B, LR, tune=True), "pfl_ft", "linear", {"ft_epochs": E}),
    "FedProx": (
        lambda m, f, s: m.with_less_drift(f, s, ROUNDS, E, B, LR, mu=0.1), "fedprox", "mlp", {"mu": 0.1, "weights": "uniform"}),
    "SCAFFOLD": (
        lambda m, f, s: m.with_less_drift(f, s, ROUNDS, E, B, LR), "scaffold", "mlp", {}),
    "FedPer": (
        lambda m, f, s: m.sharing_a_part(f, s, ROUNDS, E, B, LR), "fedper", "mlp", {"head": "fc2"}),
    "FedRep": (
        lambda m, f, s: m.sharing_a_part(f, s, ROUNDS, E, B, LR, head_first=True), "fedrep", "mlp",
        {"head": "fc2", "head_epochs": 3}),
    "LG-FedAvg": (
        lambda m, f, s: m.sharing_a_part(f, s, ROUNDS, E, B, LR, private=("fc1",)), "lg_fedavg", "mlp", {"shared": "fc2"}),
    "Ditto": (
        lambda m, f, s: m.tied(f, s, ROUNDS, B, LR, lam=0.5), "ditto", "linear", {"lam": 0.5}),
    "pFedMe": (
        lambda m, f, s: m.tied(f, s, ROUNDS, B, LR, "pfedme", lam=2.0, K=3, inner_lr=0.1), "pfedme", "linear",
        {"lam": 2.0, "inner_steps": 3, "inner_lr": 0.1}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_method_gives_the_packages_models(alone: Any, federation: Federation, name: str) -> None:
    play, method, model, options = CASES[name]
    sim = packaged(federation, method, model, **options)
    start = {key: sim.start[key] for key in packaged(federation, "local", model).start}
    models, theirs = play(alone, federation, start), sim.scored_models()
    for i, w in enumerate(models):
        assert all((p - theirs[key][i]).abs().max() < 1e-10 for key, p in w.items())
        assert any((p - start[key]).abs().max() > 1e-3 for key, p in w.items()), "nothing was trained"


def test_groups_mixtures_and_branches_are_the_packages(alone: Any, federation: Federation) -> None:
    ifca = packaged(federation, "ifca", clusters=3)
    starts = [{key: p[j] for key, p in ifca.start.items()} for j in range(3)]
    for i, w in enumerate(alone.clustered(federation, starts, ROUNDS, E, B, LR)):
        assert all((p - ifca.personal_models()[key][i]).abs().max() < 1e-10 for key, p in w.items())
    fedem = packaged(federation, "fedem", components=3)
    models, pi = alone.blended(federation, fedem.start, ROUNDS, E, B, LR)
    assert all((models[key] - p).abs().max() < 1e-10 for key, p in fedem.server.items())
    assert (pi - fedem.state()["mixture"]).abs().max() < 1e-10
    rates = {"lr": 0.5, "alpha_lr": 0.3}
    pfedmb = packaged(federation, "pfedmb", branches=5, alpha_scope="shared", **rates)
    mine, alpha = alone.branched(federation, pfedmb.network, pfedmb.start, ROUNDS, E, B, 0.5, 0.3)
    assert (alpha - pfedmb.clients["alpha"].softmax(-1)).abs().max() < 1e-10
    assert len(mine) == 10 and alpha.std() > 1e-3


@pytest.mark.slow
def test_it_is_made_from_the_units_and_runs_without_the_package() -> None:
    text = one_file.FILE.read_text(encoding="utf-8")
    assert text == one_file.made(), "make reference"
    assert (
        "pfl_lite" not in text.split('"""')[2] and sum(bool(line.strip()) for line in text.splitlines()) < 350
    )
