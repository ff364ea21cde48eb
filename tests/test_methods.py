"""What must hold for every method: equalities between methods, rules for absent, new and tiny clients, settings that matter.

What a method promises by itself stands with its family: `test_methods_sharing.py`, `_ties`, `_clusters`, `_neighbours`,
`_mixtures`, `_drift`, `_generated`, `_modular`, `_experts`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from toy import (
    FAST,
    FULL_BATCH,
    Dropped,
    five_clients,
    of_class_a,
    row,
    same,
    tiny_clients,
    train,
    untrained,
    work_of,
    zero_start,
)

from pfl_lite import methods
from pfl_lite.config import RunConfig, make_config
from pfl_lite.engine.local_training import epoch_orders
from pfl_lite.engine.simulation import Simulation, run
from pfl_lite.errors import InputError
from pfl_lite.methods import METHODS, FedAvg, Method, make_method
from pfl_lite.methods.apfl import interpolate
from pfl_lite.methods.base import Round, flatten, unpack
from pfl_lite.methods.pfedmb import project_onto_simplex
from pfl_lite.methods.weighted_mean import weighted_mean
from pfl_lite.models import NETWORKS, NetworkSpec

LAYERED = {
    "fedper",
    "fedrep",
    "lg_fedavg",
    "pfl_fb",
    "pfl_mf",
    "pfl_mfe",
}  # methods that cut a network in two need one of several layers


def network_for(method: str) -> str:
    """The cheapest network on which a method shows what it does."""
    return "small_cnn" if method in LAYERED else "linear"


# ---- the weighted mean ----------------------------------------------------------------------------------------------


def test_weighted_mean_by_hand() -> None:
    stacked = {"w": torch.tensor([[1.0, 10.0], [4.0, 40.0]])}
    mean = weighted_mean(stacked, torch.tensor([1.0, 2.0]), {"w": torch.zeros(2)})["w"]
    assert mean.tolist() == pytest.approx([3.0, 30.0])  # (1 + 2*4) / 3, (10 + 2*40) / 3


def test_weighted_mean_weighs_each_branch_by_itself_and_falls_back_where_nobody_has_weight() -> None:
    stacked = {"w": torch.tensor([[[1.0], [5.0]], [[3.0], [7.0]]])}  # [S=2, B=2, 1]
    weights = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    assert weighted_mean(stacked, weights, {"w": torch.tensor([[-1.0], [-2.0]])})["w"].tolist() == [
        [2.0],
        [-2.0],
    ]


def test_weighted_mean_leaves_out_a_row_without_weight_even_where_it_is_lost() -> None:
    stacked = {"w": torch.tensor([[1.0], [3.0], [torch.nan], [torch.inf]])}
    assert weighted_mean(stacked, torch.tensor([1, 1, 0, 0]), {"w": torch.zeros(1)})["w"].tolist() == [2.0]


def test_weighted_mean_refuses_names_that_the_server_does_not_keep() -> None:
    with pytest.raises(InputError, match="the clients sent 'head', which the server does not keep"):
        weighted_mean({"w": torch.zeros(2), "head": torch.zeros(2)}, torch.ones(2), {"w": torch.zeros(())})


def test_weighted_mean_keeps_tiny_weights_exact() -> None:
    stacked = {"w": torch.tensor([1.0, 3.0], dtype=torch.float64)}
    weights = torch.tensor([1e-300, 3e-300], dtype=torch.float64)
    assert weighted_mean(stacked, weights, {"w": torch.zeros(())})["w"].item() == pytest.approx(
        2.5, abs=1e-12
    )


def test_weighted_mean_of_float32_takes_its_weights_in_float64() -> None:
    stacked, tiny = {"w": torch.tensor([1.0, 3.0])}, torch.tensor([1e-40, 3e-40], dtype=torch.float64)
    assert weighted_mean(stacked, tiny, {"w": torch.zeros(())})["w"].item() == pytest.approx(2.5, abs=1e-6)


# ---- local SGD ------------------------------------------------------------------------------------------------------


def test_local_training_is_torch_s_sgd_with_its_momentum_and_weight_decay(federation: Any) -> None:
    settings = {"model": "linear", "momentum": 0.9, "weight_decay": 0.05, "lr": 0.03, "rounds": 1}
    sim = train("local", federation, **settings)
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in sim.start.items()}
    torch_s = torch.optim.SGD(leaves.values(), lr=0.03, momentum=0.9, weight_decay=0.05)
    for order in epoch_orders(3, 1, 2, "weights", 160, 2):
        for places in torch.from_numpy(order).split(32):
            rows = federation.train[2][places]
            torch_s.zero_grad()
            F.cross_entropy(sim.network(leaves, federation.images[rows]), federation.labels[rows]).backward()
            torch_s.step()
    assert same(row(sim.clients, 2), {name: tensor.detach() for name, tensor in leaves.items()})


# ---- settings that turn one method into another ---------------------------------------------------------------------

FEDAVG: list[tuple[str, dict[str, Any]]] = [
    ("fedprox", {"mu": 0.0}),
    ("pfl_ft", {"ft_epochs": 0}),
    ("pfl_fb", {"ft_epochs": 0}),
    ("pfl_fb", {"head": "none"}),
    *((method, {"ft_epochs": 0}) for method in ("pfl_moe", "pfl_mf", "pfl_mfe")),
    ("fedper", {"head": "none"}),
    ("fedrep", {"head": "none", "head_epochs": 0}),
    ("lg_fedavg", {"shared": "conv1"}),
    ("ifca", {"clusters": 1}),
    ("cfl", {"eps1": 0.0, "eps2": 0.0, "warmup": 0}),
    ("fedem", {"components": 1}),
    ("pfedmb", {"branches": 1}),
    ("pfedmb", {"branches": 1, "aggregation": "plain"}),
    ("pfedmb", {"branches": 1, "simplex": "projection", "alpha_scope": "shared", "rate": "effective"}),
    ("apfl", {"alpha": 0.0, "adaptive": False}),
    ("perfedavg", {"inner_lr": 0.0}),
    ("perfedavg", {"inner_lr": 0.0, "variant": "hf"}),
    ("scaffold", {"control": "off", "weights": "size"}),
    ("moon", {"mu": 0.0, "projection": 0}),
]
"""With these settings a method is FedAvg, under every participation, momentum and weight decay."""

LOCAL: list[tuple[str, dict[str, Any]]] = [
    ("fedper", {"head": "conv1"}),
    (
        "fedrep",
        {"head": "conv1", "head_epochs": 2, "batch_size": FULL_BATCH},
    ),  # its head phase has its own order
    ("lg_fedavg", {"shared": "none"}),
    ("fedfomo", {"models": 1}),
    ("fedamp", {"lam": 0.0, "start": "own"}),
    ("ditto", {"lam": 0.0}),
    ("apfl", {"alpha": 1.0, "adaptive": False}),
]
"""With these settings a method is Local for every client that has taken part."""

COMMON = {"momentum": 0.5, "weight_decay": 0.01}


@cache
def reference_run(method: str, model: str, **settings: Any) -> Simulation:
    """A run to compare with, once for all the methods that must equal it."""
    return train(method, five_clients(), model=model, **settings)


@pytest.mark.parametrize(("method", "settings"), FEDAVG)
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_equals_fedavg(federation: Any, method: str, settings: dict[str, Any], participation: float) -> None:
    common = {**COMMON, "participation": participation, "model": network_for(method)}
    a, b = train(method, federation, **common, **settings), reference_run("fedavg", **common)
    scored, wanted = a.scored_models(), b.scored_models()
    assert scored.keys() - {"mixture"} == wanted.keys()
    assert same({name: scored[name].reshape(rows.shape) for name, rows in wanted.items()}, wanted)
    losses = a.report()["final"]["test_loss"]
    assert losses == pytest.approx(b.report()["final"]["test_loss"], abs=1e-12)


@pytest.mark.parametrize(("method", "settings"), LOCAL)
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_equals_local(federation: Any, method: str, settings: dict[str, Any], participation: float) -> None:
    common = {**COMMON, "participation": participation, "model": network_for(method)}
    common |= {"batch_size": settings["batch_size"]} if "batch_size" in settings else {}
    a, b = train(method, federation, **(common | settings)), reference_run("local", **common)
    scored, wanted = a.scored_models(), b.scored_models()
    assert same(row(scored, a.sampled), row(wanted, b.sampled)) and a.sampled.tolist() == b.sampled.tolist()


def test_methods_that_keep_everything_at_home_send_nothing(federation: Any) -> None:
    for method, settings in (("local", {}), ("fedper", {"head": "conv1"}), ("lg_fedavg", {"shared": "none"})):
        entry = train(method, federation, rounds=1, epochs=1, **settings).history.rounds[-1]
        assert entry["floats_up"] == entry["floats_down"] == 0


@pytest.mark.parametrize(
    ("method", "settings"), [("scaffold", {"control": "off"}), ("cfl", {"weights": "uniform", "eps1": 0.0})]
)
def test_uniform_weights_are_those_of_fedavg(federation: Any, method: str, settings: dict[str, Any]) -> None:
    uniform = reference_run("fedavg", "linear", weights="uniform", participation=0.5)
    sim = train(method, federation, model="linear", participation=0.5, **settings)
    assert same(sim.scored_models(), uniform.scored_models())
    assert not same(uniform.server, reference_run("fedavg", "linear", participation=0.5).server, 1e-6)


def test_freezing_nothing_makes_pfl_fb_pfl_ft(federation: Any) -> None:
    a, b = (
        train(method, federation, rounds=1, ft_epochs=2, **settings)
        for method, settings in (("pfl_fb", {"head": "conv1"}), ("pfl_ft", {}))
    )
    assert same(a.scored_models(), b.scored_models())
    assert not same(a.scored_models(), b.personal_models(), 1e-3)


# ---- Local and FedAvg -----------------------------------------------------------------------------------------------


def test_local_does_not_feel_the_others(federation: Any) -> None:
    changed = replace(federation, train=[federation.train[0], *(rows[:7] for rows in federation.train[1:])])
    a, b = (train("local", data, model="linear").scored_models() for data in (federation, changed))
    assert all(torch.equal(a[k][0], b[k][0]) and not torch.equal(a[k][1], b[k][1]) for k in a)


def test_local_is_fedavg_of_one_client(federation: Any) -> None:
    alone = {split: getattr(federation, split)[:1] for split in ("train", "val", "test")}
    fedavg = train("fedavg", replace(federation, **alone), clients=1, model="linear", momentum=0.5)
    local = reference_run("local", "linear", momentum=0.5)
    assert same(fedavg.server, row(local.scored_models(), 0))


def test_fedavg_with_one_full_batch_step_is_centralised_gradient_descent(federation: Any) -> None:
    sim = train("fedavg", federation, rounds=1, epochs=1, batch_size=FULL_BATCH)
    start = {name: tensor.clone().requires_grad_() for name, tensor in sim.start.items()}
    rows = torch.cat(federation.train)
    loss = F.cross_entropy(sim.network(start, federation.images[rows]), federation.labels[rows])
    gradient = torch.autograd.grad(loss, list(start.values()))
    pooled = {
        name: (tensor - 0.1 * g).detach() for (name, tensor), g in zip(start.items(), gradient, strict=True)
    }
    assert same(sim.server, pooled)


def test_fedavg_does_not_depend_on_the_order_of_clients_under_full_batches(federation: Any) -> None:
    turned = replace(
        federation, train=federation.train[::-1], val=federation.val[::-1], test=federation.test[::-1]
    )
    settings = {"batch_size": FULL_BATCH, "model": "linear"}
    a, b = (train("fedavg", data, **settings).server for data in (federation, turned))
    assert same(a, b)


def test_fedavg_of_copies_of_one_client_is_that_client_alone(federation: Any) -> None:
    copies = replace(federation, train=[federation.train[0]] * 5)
    settings = {"batch_size": FULL_BATCH, "model": "linear"}
    averaged = train("fedavg", copies, **settings).server
    alone = train("local", copies, **settings).scored_models()
    assert same(averaged, row(alone, 0))


def test_fedavg_stays_where_it_is_at_a_rate_of_nothing(federation: Any) -> None:
    sim = train("fedavg", federation, lr=1e-300, model="linear", participation=0.5)
    assert same(sim.server, sim.start, 1e-15)


def test_local_step_by_hand() -> None:
    sim = zero_start("local")
    sim.step()
    assert of_class_a(sim.clients) == [pytest.approx([0.5, -0.5]), pytest.approx([0.5, 1 / 6])]


@pytest.mark.parametrize(
    ("weights", "w_a", "b_a"),
    [("size", -0.25, 0.25), ("uniform", 0.0, 1 / 3)],  # (1 * 0.5 + 3 * -0.5) / 4 and (1 * 0.5 + 3 * 1/6) / 4
)
def test_fedavg_step_by_hand(weights: str, w_a: float, b_a: float) -> None:
    sim = zero_start("fedavg", weights=weights)
    sim.step()
    assert of_class_a(sim.server) == pytest.approx([w_a, b_a], abs=1e-15)
    assert sim.server["fc.weight"][1, 0].item() == pytest.approx(-w_a)


# ---- clients that are absent, new, tiny, or lack a class ------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_absent_clients_keep_their_state_to_the_last_bit(federation: Any, method: str) -> None:
    settings = {"model": network_for(method), "participation": 0.4, "epochs": 1}
    sim = untrained(method, federation, **settings, **QUICK.get(method, {}))
    for _ in range(2):
        before = {name: rows.clone() for name, rows in sim.clients.items()}
        taking_part = sim.step()["clients"]
        absent = [i for i in range(5) if i not in taking_part]
        assert len(taking_part) == 2 and same(row(sim.clients, absent), row(before, absent), 0)


def best_on_training_images(
    sim: Simulation, models: dict[str, torch.Tensor], client: int
) -> dict[str, torch.Tensor]:
    """The one of stacked models with the lowest loss on a client's training images."""
    rows = sim.federation.train[client]
    x, y = sim.federation.images[rows], sim.federation.labels[rows]
    count = len(next(iter(models.values())))
    losses = [F.cross_entropy(sim.network(row(models, j), x), y).item() for j in range(count)]
    return row(models, int(np.argmin(losses)))


def after_one_client_round(sim: Simulation, client: int) -> dict[str, torch.Tensor]:
    """The state of a client that takes part by itself, without upload, in the round to come."""
    with torch.no_grad():
        return sim.method.local(sim.server, row(sim.clients, client), work_of(sim, client, sim.round + 1))[1]


def after_the_head_phase(sim: Simulation, client: int) -> dict[str, torch.Tensor]:
    work, head = work_of(sim, client, sim.round + 1), row(sim.clients, client)
    loss = lambda h, batch: work.loss(sim.server | h, batch)  # noqa: E731
    with torch.no_grad():
        return sim.server | work.sgd(loss, head, phase="head", epochs=2)


def adapted_on_training_images(sim: Simulation, client: int) -> dict[str, torch.Tensor]:
    rows = sim.federation.train[client]
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in sim.server.items()}
    loss = F.cross_entropy(sim.network(leaves, sim.federation.images[rows]), sim.federation.labels[rows])
    gradient = torch.autograd.grad(loss, list(leaves.values()))
    return {name: w.detach() - 0.01 * g for (name, w), g in zip(leaves.items(), gradient, strict=True)}


def one_e_step_from_uniform_weights(sim: Simulation, client: int) -> dict[str, torch.Tensor]:
    rows = sim.federation.train[client]
    x, y = sim.federation.images[rows], sim.federation.labels[rows]
    models = [row(sim.server, m) for m in range(3)]
    likelihood = torch.stack([sim.network(w, x).softmax(1)[torch.arange(len(y)), y] for w in models], 1)
    return sim.server | {"mixture": (likelihood / likelihood.sum(1, keepdim=True)).mean(0)}


def after_one_federated_update(sim: Simulation, client: int) -> dict[str, torch.Tensor]:
    """FedFomo's eqs 3 and 4 for a client whose own model is still the common start."""
    rows = sim.federation.val[client]
    x, y = sim.federation.images[rows], sim.federation.labels[rows]
    loss = lambda w: F.cross_entropy(sim.network(w, x), y)  # noqa: E731
    before, models = sim.start, unpack("model", sim.server)
    others = [row(models, n) for n in sim.server["candidates"][client].tolist() if n >= 0]
    distance = [sum(((w[k] - before[k]) ** 2).sum() for k in w).sqrt() for w in others]
    worth = [max(0.0, ((loss(before) - loss(w)) / d).item()) for w, d in zip(others, distance, strict=True)]
    assert sum(worth) > 0
    steps = [{k: w[k] - before[k] for k in w} for w in others]
    share = [value / sum(worth) for value in worth]
    return {k: w + sum(p * step[k] for p, step in zip(share, steps, strict=True)) for k, w in before.items()}


FEW_BLOCKS: dict[str, Any] = {"encoder_width": 6, "width": 5, "router_width": 4, "label_width": 3}

NEWCOMER: dict[str, Callable[[Simulation, int], dict[str, torch.Tensor]]] = {
    "local": lambda sim, i: sim.start,
    **dict.fromkeys(
        ("fedavg", "fedprox", "pfl_ft", "pfl_fb", "pfl_moe", "pfl_mf", "pfl_mfe"), lambda sim, i: sim.server
    ),
    **dict.fromkeys(("fedper", "lg_fedavg"), lambda sim, i: sim.start | sim.server),
    "pfedme": after_one_client_round,
    "ifca": lambda sim, i: best_on_training_images(sim, sim.server, i),
    "cfl": lambda sim, i: best_on_training_images(sim, unpack("cell", sim.server), i),
    "fedfomo": after_one_federated_update,
    "fedamp": lambda sim, i: sim.start,
    "fedem": one_e_step_from_uniform_weights,
    "pfedmb": lambda sim, i: {name: tensor.mean(0) for name, tensor in sim.server.items()},
    "ditto": after_one_client_round,
    "apfl": lambda sim, i: interpolate(
        (state := after_one_client_round(sim, i))["alpha"], unpack("own", state), sim.server
    ),
    "perfedavg": adapted_on_training_images,
    "scaffold": lambda sim, i: {k: w for k, w in sim.server.items() if not k.startswith("control/")},
    "moon": lambda sim, i: sim.server,
    "fedrep": after_the_head_phase,
    "pfedhn": lambda sim, i: sim.method.generate(sim.server, sim.start["embedding"][i]),
    "fedmn": lambda sim, i: sim.server | {"bits": sim.method.decide(sim.server, work_of(sim, i))[1]},
}
"""The model under which a client is scored that has never taken part."""

QUICK: dict[str, dict[str, Any]] = {
    "cfl": {"gamma": 0.9, "warmup": 0},  # it splits at once
    "fedrep": {"head_epochs": 2},
    "fedmn": FEW_BLOCKS,
}


@pytest.mark.parametrize("method", METHODS)
def test_a_client_that_never_took_part_is_scored_by_the_method_s_rule(federation: Any, method: str) -> None:
    assert method in NEWCOMER, f"no entry in NEWCOMER of tests/test_methods.py: {method}"
    settings = {"model": network_for(method), "participation": 0.4, "epochs": 1, "ft_epochs": 0}
    if method == "cfl":
        settings |= {"participation": 0.6, "rounds": 1}  # three take part, and part in the first round
    if method == "pfedhn":
        settings |= {"server_decay": 0.0}  # which reaches every embedding
    sim = train(method, federation, **settings, **QUICK.get(method, {}))
    new = (~sim.sampled).nonzero().flatten().tolist()
    assert new
    scored = sim.personal_models()
    for i in new:
        assert same(row(scored, i), NEWCOMER[method](sim, i))


@pytest.mark.parametrize("method", METHODS)
def test_unseen_clients_are_scored_but_leave_no_trace_in_anybody_s_training(
    federation: Any, method: str
) -> None:
    settings = {"model": network_for(method), "unseen": 2, "participation": 0.7, "epochs": 1}
    settings |= QUICK.get(method, {})
    sim = train(method, federation, **settings)
    unseen = sim.unseen.tolist()
    assert len(unseen) == 2 and sim.history.unseen == unseen
    taking_part = {i for entry in sim.history.rounds for i in entry["clients"]}
    assert taking_part <= set(range(5)) - set(unseen)
    assert all(len(entry["clients"]) == 2 for entry in sim.history.rounds[1:])  # round(0.7 * 3)
    accuracies = sim.report()["final"]["test_accuracy"]
    assert len(accuracies) == 5 and all(0 <= a <= 1 for a in accuracies)
    other = replace(federation, train=[t[:9] if i in unseen else t for i, t in enumerate(federation.train)])
    again = train(method, other, **settings)
    assert same(sim.server, again.server, 0)
    seen = [i for i in range(5) if i not in unseen]
    assert same(row(sim.scored_models(), seen), row(again.scored_models(), seen), 0)


@pytest.mark.parametrize("method", METHODS)
def test_clients_of_one_to_four_images_and_of_one_class_train_and_are_scored(method: str) -> None:
    settings = {
        "clients": 4, "model": "linear", "batch_size": 2, "rounds": 3, "participation": 0.75, "lr": 0.05,
    }  # fmt: skip
    settings |= {"fedamp": {"lam": 0.5}}.get(method, {}) | QUICK.get(method, {})
    a, b = (train(method, tiny_clients(), engine=engine, **settings) for engine in ("loop", "vmap"))
    assert all(torch.isfinite(tensor.double()).all() for tensor in (a.server | a.scored_models()).values())
    assert same(a.scored_models(), b.scored_models(), 1e-10) and same(a.server, b.server, 1e-10)
    assert all(loss > 0 for loss in a.report()["final"]["test_loss"])  # every class keeps its logit


@pytest.mark.parametrize("method", METHODS)
def test_images_of_a_class_nobody_else_has_still_have_a_probability(method: str) -> None:
    sim = train(method, tiny_clients(), clients=4, model="linear", lr=0.05, epochs=1, ft_epochs=0)
    work = work_of(sim, 0)
    with torch.no_grad():
        scored = row(sim.personal_models(), 0)
        logits = sim.method.predict(sim.network, scored, work.federation.images)
    assert logits.shape == (10, 2) and (logits.softmax(1) > 1e-3).all()


# ---- every hyper-parameter matters ----------------------------------------------------------------------------------

OFF_DEFAULT_OF_GATES: dict[str, Any] = {
    "weights": "uniform", "mix": "probs", "schedule": "sequential", "gate_optimizer": "adam", "gate_lr": 0.05,
    "gate_decay": 0.1, "gate": "global", "gate_experts": "train",
}  # fmt: skip

OFF_DEFAULT: dict[str, dict[str, Any]] = {
    "local": {},
    "fedavg": {"weights": "uniform"},
    "fedprox": {"weights": "uniform", "mu": 0.7},
    "pfl_ft": {"weights": "uniform"},
    "pfl_fb": {"weights": "uniform", "head": "last", "part": "per"},
    "fedper": {"head": "fc1"},
    "pfedme": {"lam": 5.0, "inner_steps": 2, "inner_lr": 0.05, "beta": 0.5},
    "ifca": {"clusters": 2, "draw": 3},
    "cfl": {"eps1": 0.1, "eps2": 50.0, "gamma": 1e-9, "warmup": 2, "weights": "uniform"},
    "fedfomo": {"models": 2, "epsilon": 1.0},
    "fedamp": {"lam": 0.2, "sigma": 0.5, "quantile": 0.1, "self_weight": 0.1, "start": "own"},
    "fedem": {"components": 2},
    "pfedmb": {
        "branches": 3, "aggregation": "plain", "alpha_scope": "shared", "simplex": "projection",
        "alpha_lr": 0.5, "rate": "effective",
    },
    "ditto": {"weights": "uniform", "lam": 0.2},
    "apfl": {"weights": "uniform", "alpha": 0.8, "adaptive": False},
    "perfedavg": {"weights": "uniform", "inner_lr": 0.1, "variant": "hf"},
    "scaffold": {"weights": "size", "server_lr": 0.5, "control": "off"},
    "moon": {"weights": "uniform", "mu": 1.0, "temperature": 2.0, "projection": 16},
    "fedrep": {"head": "fc1", "head_epochs": 2},
    "lg_fedavg": {"shared": "fc1"},
    "pfedhn": {
        "embedding": 5, "hidden": 20, "depth": 1, "server_lr": 0.1, "server_momentum": 0.0,
        "server_decay": 0.1, "clip": 0.01,
    },
    "pfl_moe": OFF_DEFAULT_OF_GATES,
    "pfl_mf": OFF_DEFAULT_OF_GATES | {"head": "last"},
    "pfl_mfe": OFF_DEFAULT_OF_GATES | {"head": "last"},
    "fedmn": {
        "blocks": "1x2x2", "encoder_width": 7, "width": 6, "router_width": 5, "label_width": 4,
        "dropout": 0.2, "block_std": 0.1, "codes": "product", "normalize": "each", "centre": True,
        "router_lr": 5.0, "router_part": "head", "output_scale": 2.0, "gate": "st", "aggregation": "code",
        "schedule": "sequential", "infer": "last_sample", "routing": "all", "tau_start": 2.0, "tau_end": 0.5,
        "pretrain": 1, "pretrain_lr": 2.0, "plant": "body", "plant_noise": 0.3,
    },
}  # fmt: skip

USUAL: dict[str, dict[str, Any]] = {
    "cfl": {"warmup": 0, "eps1": 0.7, "eps2": 0.8},  # it splits in the first round
    "fedfomo": {"models": 3, "rounds": 3},
    "pfedmb": {"model": "small_cnn"},  # a layer's own alpha needs layers
    "pfedhn": {"rounds": 3},
    "fedmn": FEW_BLOCKS | {"gate": "soft", "lr": 0.5},  # every gate's value counts
    "fedrep": {"head_epochs": 3},
    **{key: {"ft_epochs": 2, "gate_lr": 0.1} for key in ("pfl_moe", "pfl_mf", "pfl_mfe")},
}


def final_losses(method: str, **settings: Any) -> np.ndarray:
    """Every client's test loss after a short run on the cheapest network that will do."""
    usual = {"model": network_for(method), "epochs": 1, "lr": 0.05} | USUAL.get(method, {})
    return np.array(train(method, five_clients(), **(usual | settings)).report()["final"]["test_loss"])


usual_losses = cache(final_losses)


def far(name: str) -> dict[str, Any]:
    """What else a run needs for this hyper-parameter to count."""
    wide = {"model": "mlp", "encoder_width": 64, "width": 64}
    special = {"gate_experts": {"model": "dropped", "gate_lr": 1.0}, "pretrain": wide}
    special |= dict.fromkeys(("pretrain_lr", "plant", "plant_noise"), wide | {"pretrain": 1})
    return special.get(name, {})


def test_no_hyper_parameter_has_the_name_of_a_run_s_setting() -> None:
    run = {f.name for f in fields(RunConfig)}  # it could not be set by `run` or on the command line
    assert all(run.isdisjoint(f.name for f in fields(method)) for method in METHODS.values())


def test_every_method_has_the_name_of_its_file_and_of_its_entry() -> None:
    for name, method in METHODS.items():
        assert (method.name, method.__module__) == (name, f"pfl_lite.methods.{name}")


def test_the_classes_of_methods_are_names_of_the_package_of_methods() -> None:
    assert {method.__name__ for method in METHODS.values()} <= {*methods.__all__} <= {*dir(methods)}
    assert all(getattr(methods, name) is not None for name in methods.__all__)
    with pytest.raises(AttributeError, match="no attribute 'FedAvgg'"):
        methods.FedAvgg  # noqa: B018


def test_every_method_has_its_hyper_parameters_listed() -> None:
    listed = {name: set(settings) for name, settings in OFF_DEFAULT.items()}
    for name, method in METHODS.items():
        assert name in listed, f"no entry in OFF_DEFAULT of tests/test_methods.py: {name}"
        own = {f.name for f in fields(method)}
        assert listed[name] == own, (
            f"OFF_DEFAULT['{name}'] must have other values of {', '.join(sorted(own))}"
        )
    assert not (gone := listed.keys() - METHODS.keys()), f"no such method: {', '.join(sorted(gone))}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "name"), [(m, n) for m, settings in OFF_DEFAULT.items() for n in settings]
)
def test_every_hyper_parameter_changes_the_result(
    monkeypatch: pytest.MonkeyPatch, method: str, name: str
) -> None:
    monkeypatch.setitem(NETWORKS, "dropped", NetworkSpec(Dropped, ""))
    common = far(name)
    losses = final_losses(method, **(common | {name: OFF_DEFAULT[method][name]}))
    assert np.abs(usual_losses(method, **common) - losses).max() > 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "name"), [(m, n) for m, settings in OFF_DEFAULT.items() for n in settings]
)
def test_with_every_hyper_parameter_a_run_goes_on_from_its_checkpoint(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, method: str, name: str
) -> None:
    # a server may hold other tensors late in a run than early in it
    monkeypatch.setitem(NETWORKS, "dropped", NetworkSpec(Dropped, ""))
    settings = {"model": network_for(method), "epochs": 1} | USUAL.get(method, {}) | far(name)
    settings |= {name: OFF_DEFAULT[method][name], "rounds": 3}
    federation = five_clients()
    whole = untrained(method, federation, **settings)
    whole.step()
    whole.save(tmp_path / "run.pt")
    whole.step()
    rest = untrained(method, federation, **settings)
    rest.load(tmp_path / "run.pt")
    rest.step()
    assert same(whole.server, rest.server, 0) and same(whole.clients, rest.clients, 0)


@pytest.mark.parametrize("method", METHODS)
def test_every_hyper_parameter_has_a_line_about_it_and_none_is_kept_by_reference(method: str) -> None:
    defaults = [f.default for f in fields(METHODS[method])]
    assert all(isinstance(value, (int, float, str, bool)) for value in defaults)


@pytest.mark.parametrize(
    ("method", "settings", "says"),
    [
        ("fedavg", {"weights": "sizes"}, "weights must be one of size, uniform, not 'sizes'"),
        ("fedprox", {"mu": -1}, "mu must be 0 or more"),
        ("fedprox", {"mu": "much"}, "mu must be a number"),
        ("fedprox", {"nu": 1}, "did you mean mu"),
        ("fedprox", {"weights": "n"}, "one of size, uniform"),
        ("pfl_ft", {"weights": "n"}, "one of size, uniform"),
        ("pfl_fb", {"part": "gate"}, "part must be one of all, per"),
        ("pfl_fb", {"weights": "n"}, "one of size, uniform"),
        ("pfedme", {"lam": -1}, "lam must be 0 or more"),
        ("pfedme", {"inner_steps": 0}, "inner_steps must be 1 or more"),
        ("pfedme", {"inner_lr": 0}, "inner_lr must be above 0"),
        ("pfedme", {"beta": -0.5}, "beta must be 0 or more"),
        ("ifca", {"clusters": 0}, "clusters must be 1 or more"),
        ("cfl", {"eps1": -1}, "eps1 must be 0 or more"),
        ("cfl", {"eps2": -1, "eps1": 0}, "eps2 must be 0 or more"),
        ("cfl", {"gamma": -1}, "gamma must be 0 or more"),
        ("cfl", {"warmup": -1}, "warmup must be 0 or more"),
        ("cfl", {"eps1": 2, "eps2": 1}, r"eps1 \(2\) must not be above eps2 \(1\)"),
        ("cfl", {"weights": "n"}, "one of size, uniform"),
        ("fedfomo", {"models": 0}, "models must be 1 or more"),
        ("fedfomo", {"epsilon": 1.5}, "epsilon must be between 0 and 1"),
        ("fedamp", {"lam": -1}, "lam must be 0 or more"),
        ("fedamp", {"sigma": -1}, "sigma must be 0 or more"),
        ("fedamp", {"quantile": 1.5}, "quantile must be between 0 and 1, not 1.5"),
        ("ifca", {"draw": -1}, "draw must be 0 or more"),
        ("fedamp", {"self_weight": -0.1}, "self_weight must be 0 or more"),
        ("fedamp", {"self_weight": 1}, "self_weight must be below 1"),
        ("fedamp", {"start": "w"}, "start must be one of cloud, own"),
        ("fedem", {"components": 0}, "components must be 1 or more"),
        ("pfedmb", {"branches": 0}, "branches must be 1 or more"),
        ("pfedmb", {"branches": 2.5}, "branches must be a whole number"),
        ("pfedmb", {"alpha_lr": -1}, "alpha_lr must be 0 or more"),
        ("pfedmb", {"aggregation": "beta"}, "one of alpha, plain"),
        ("pfedmb", {"alpha_scope": "model"}, "one of layer, shared"),
        ("pfedmb", {"simplex": "clip"}, "one of softmax, projection"),
        ("pfedmb", {"rate": "slow"}, "one of plain, effective"),
        ("ditto", {"lam": -1}, "lam must be 0 or more"),
        ("ditto", {"weights": "n"}, "one of size, uniform"),
        ("apfl", {"alpha": 1.01}, "alpha must be between 0 and 1"),
        ("apfl", {"alpha": -0.01}, "alpha must be between 0 and 1"),
        ("apfl", {"adaptive": "perhaps"}, "adaptive must be true or false"),
        ("perfedavg", {"inner_lr": -1}, "inner_lr must be 0 or more"),
        ("perfedavg", {"variant": "maml"}, "variant must be one of fo, hf"),
        ("scaffold", {"server_lr": 0}, "server_lr must be above 0"),
        ("scaffold", {"control": "maybe"}, "control must be one of on, off"),
        ("moon", {"mu": -1}, "mu must be 0 or more"),
        ("moon", {"temperature": 0}, "temperature must be above 0"),
        ("moon", {"projection": -1}, "projection must be 0 or more"),
        ("fedrep", {"head_epochs": -1}, "head_epochs must be 0 or more"),
        ("pfedhn", {"embedding": -1}, "embedding must be 0 or more"),
        ("pfedhn", {"hidden": 0}, "hidden must be 1 or more"),
        ("pfedhn", {"depth": -1}, "depth must be 0 or more"),
        ("pfedhn", {"server_lr": 0}, "server_lr must be above 0"),
        ("pfedhn", {"server_momentum": -0.1}, "server_momentum must be 0 or more"),
        ("pfedhn", {"server_decay": -0.1}, "server_decay must be 0 or more"),
        ("pfedhn", {"clip": 0}, "clip must be above 0"),
        ("pfl_moe", {"mix": "votes"}, "mix must be one of logits, probs"),
        ("pfl_moe", {"schedule": "parallel"}, "schedule must be one of interleaved, sequential"),
        ("pfl_moe", {"gate_optimizer": "lion"}, "gate_optimizer must be one of sgd, adam"),
        ("pfl_moe", {"gate_lr": -1}, "gate_lr must be 0 or more"),
        ("pfl_moe", {"gate_decay": -1}, "gate_decay must be 0 or more"),
        ("pfl_moe", {"gate": "half"}, "gate must be one of learned, global, personal, equal, not 'half'"),
        ("pfl_moe", {"gate_experts": "test"}, "gate_experts must be one of eval, train"),
        ("pfl_moe", {"head": "last"}, "unknown setting of pfl_moe 'head'"),
        ("pfl_mf", {"weights": "n"}, "one of size, uniform"),
        ("fedmn", {"blocks": "2x0x2"}, "such as 2x2x2, not '2x0x2'"),
        ("fedmn", {"encoder_width": 0}, "encoder_width must be 1 or more"),
        ("fedmn", {"width": 0}, "fedmn: width must be 1 or more"),
        ("fedmn", {"router_width": 0}, "router_width must be 1 or more"),
        ("fedmn", {"label_width": 0}, "label_width must be 1 or more"),
        ("fedmn", {"dropout": -0.1}, "dropout must be 0 or more"),
        ("fedmn", {"dropout": 1}, "dropout must be below 1, not 1"),
        ("fedmn", {"block_std": -1}, "block_std must be 0 or more"),
        ("fedmn", {"gate": "hard"}, "gate must be one of st, soft, sample"),
        ("fedmn", {"aggregation": "mean"}, "one of normalized, literal, delta, code"),
        ("fedmn", {"schedule": "cyclic"}, "one of parallel, sequential"),
        ("fedmn", {"infer": "mean"}, "one of threshold, last_sample"),
        ("fedmn", {"routing": "none"}, "one of learned, random, all"),
        ("fedmn", {"tau_start": 0}, "tau_start must be above 0"),
        ("fedmn", {"tau_end": -1}, "tau_end must be above 0"),
        ("fedmn", {"pretrain": -1}, "pretrain must be 0 or more"),
        ("fedavgg", {}, "did you mean fedavg"),
    ],
)
def test_bad_settings_are_refused_with_what_would_be_right(
    method: str, settings: dict[str, Any], says: str
) -> None:
    with pytest.raises(InputError, match=says) as refusal:
        make_method(method, **settings)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("method", "settings", "says"),
    [
        ("ifca", {"clusters": 6}, r"clusters must be at most the number of clients \(5\), not 6"),
        ("fedem", {"ft_epochs": 1}, "no single model to fine-tune: leave ft_epochs at 0"),
        ("fedper", {"head": "fc9"}, "fedper: head must be one of last, none, dense, conv1, conv2, fc1, fc2"),
        ("fedrep", {"head": "fc9"}, "fedrep: head must be one of last, none, dense, conv1, conv2, fc1, fc2"),
        ("pfl_fb", {"head": "fc9"}, "pfl_fb: head must be one of last, none, dense, conv1, conv2, fc1, fc2"),
        ("pfl_mf", {"head": "fc9"}, "pfl_mf: head must be one of last, none, dense, conv1, conv2, fc1, fc2"),
        ("pfl_mfe", {"head": "fc9"}, "pfl_mfe: head must be one of last, none, dense, conv1, conv2, fc1"),
        ("pfl_mfe", {"head": "conv2"}, "pfl_mfe: head must be dense, last or conv1, whose .* not 'conv2'"),
        ("lg_fedavg", {"shared": "fc9"}, "lg_fedavg: shared must be one of last, none, dense, conv1, conv2"),
    ],
)
def test_settings_that_do_not_fit_the_run_are_refused_before_any_work(
    federation: Any, method: str, settings: dict[str, Any], says: str
) -> None:
    with pytest.raises(InputError, match=says):
        untrained(method, federation, **settings)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"lr": 0.2, "inner_lr": 0.001}, r"lr \* lam is 3, with which the tie overshoots .* a smaller lr$"),
        (
            {"lr": 0.05, "inner_lr": 0.2},
            r"inner_lr \* lam is 3, with which the tie overshoots .* a smaller inner_lr$",
        ),
    ],
)
def test_pfedme_warns_in_one_sentence_where_the_tie_would_overshoot(
    settings: dict[str, float], says: str
) -> None:
    with pytest.warns(UserWarning, match=says):
        make_config("pfedme", **settings)


@pytest.mark.filterwarnings("error")
def test_pfedme_is_silent_where_the_inner_steps_damp_what_the_outer_step_overshoots() -> None:
    make_config("pfedme", lr=1 / 15)
    make_config("pfedme", lr=0.2, inner_lr=1 / 15)  # theta is brought onto w: |1 - 3| * 0 < 1


@pytest.mark.parametrize(
    ("lr", "inner_lr"), [(0.2, 0.01), (0.3, 0.01), (0.05, 0.2), (0.12, 0.13), (0.4, 0.02)]
)
def test_pfedme_warns_where_theta_minus_w_grows_and_only_there(lr: float, inner_lr: float) -> None:
    theta, w, lam = 1.0, 0.0, 15.0
    for _ in range(40):  # mini-batches whose data say nothing
        for _ in range(5):
            theta -= inner_lr * lam * (theta - w)
        w -= lr * lam * (w - theta)
    method = METHODS["pfedme"](inner_lr=inner_lr)
    assert (method.advise(RunConfig(lr=lr)) is not None) == (abs(theta - w) > 1)


def test_scaffold_warns_in_one_sentence_of_momentum() -> None:
    with pytest.warns(UserWarning, match=r"momentum 0.9 .* up to 10 times too long.* momentum 0 is what"):
        make_config("scaffold", momentum=0.9)


def test_ifca_draws_its_starting_models_anew(federation: Any) -> None:
    starts = [untrained("ifca", federation, clusters=2, draw=draw).server for draw in (0, 1)]
    assert not same(*starts, 1e-2)
    four = untrained("ifca", federation, clusters=4).server  # the same stream: models 0, 1 | 2, 3
    assert all(
        same(start, {k: t[2 * d : 2 * d + 2] for k, t in four.items()}, 0) for d, start in enumerate(starts)
    )


def test_fedamp_takes_the_quantile_of_the_distances_that_it_is_told(federation: Any) -> None:
    sigmas = [train("fedamp", federation, rounds=1, quantile=q).server["sigma"] for q in (0, 0.5, 1)]
    w = flatten(train("fedamp", federation, rounds=1).clients)
    pairs = torch.pdist(w) ** 2
    assert torch.allclose(
        torch.stack(sigmas), torch.stack([pairs.min(), pairs.median(), pairs.max()]), rtol=0.2
    )
    assert torch.allclose(torch.stack(sigmas)[[0, 2]], torch.stack([pairs.min(), pairs.max()]), rtol=1e-10)


def test_projection_survives_large_numbers_and_keeps_nan() -> None:
    large = torch.tensor([[1e8, 3e7, -5e7], [0.2, 0.3, 0.9]])
    assert torch.allclose(
        project_onto_simplex(large), torch.tensor([[1, 0, 0], [1 / 15, 1 / 6, 23 / 30]]), atol=1e-6
    )
    assert project_onto_simplex(torch.full((2, 3), torch.nan)).isnan().all()


@pytest.mark.parametrize("method", ["ditto", "fedrep", "apfl"])
def test_looking_at_newcomers_is_not_counted_as_training(federation: Any, method: str) -> None:
    often, rarely = (
        train(method, federation, rounds=4, participation=0.2, eval_every=every) for every in (1, 4)
    )
    assert often.map.images_trained == rarely.map.images_trained


def test_a_run_refuses_what_its_method_refuses_however_it_was_configured(federation: Any) -> None:
    with pytest.raises(InputError, match="fedem scores a mixture"):
        Simulation(replace(make_config("fedem", **FAST), ft_epochs=1), federation)
    with pytest.raises(InputError, match="fedprox: mu must be 0 or more, not inf"):
        METHODS["fedprox"](mu=float("inf"))
    with pytest.raises(InputError, match="clients must be a whole number, not 'True'"):
        make_config("fedavg", clients=True)
    with pytest.raises(InputError, match="server_momentum must be below 1, not 1"):
        METHODS["pfedhn"](server_momentum=1.0)


def test_a_client_without_training_images_is_refused(federation: Any) -> None:
    bare = replace(federation, train=[federation.train[0][:0], *federation.train[1:]])
    with pytest.raises(InputError, match="client 0 has no training images: leave it out"):
        Simulation(make_config("fedavg", **FAST), bare)


def test_pfedmb_aggregates_every_layer_by_its_own_alpha(federation: Any) -> None:
    sim = Simulation(make_config("pfedmb", **FAST, branches=2, model="small_cnn"), federation)  # four layers
    g = torch.Generator().manual_seed(0)
    uploads = {k: torch.randn(5, *v.shape, generator=g, dtype=v.dtype) for k, v in sim.server.items()}
    alpha = torch.rand(5, 4, 2, generator=g, dtype=torch.float64).softmax(-1)
    n = federation.train_sizes
    after = sim.method.aggregate(sim.server, uploads | {"alpha": alpha}, Round(1, torch.arange(5), n, 5))
    for layer, names in enumerate(sim.network.layers.values()):
        for name in names:
            for b in (0, 1):
                a = n * alpha[:, layer, b]
                by_hand = torch.einsum("i,i...->...", a / a.sum(), uploads[name][:, b])
                assert torch.allclose(after[name][b], by_hand, rtol=0, atol=1e-12)


# ---- mistakes in one's own method -----------------------------------------------------------------------------------


def without(hook: str) -> type[Method]:
    """FedAvg, written anew but for one hook."""
    hooks = {name: vars(FedAvg)[name] for name in ("init", "local", "personal") if name != hook}
    return type("Mine", (Method,), {"name": "mine", "about": "", "weights": "size", **hooks})


@pytest.mark.parametrize("hook", ["init", "local", "personal"])
def test_a_method_that_leaves_a_hook_out_is_told_which(federation: Any, hook: str) -> None:
    with pytest.raises(InputError, match=f"^Mine has no `{hook}`: a method answers"):
        run(without(hook)(), federation=federation, **FAST)


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize("hook", ["init", "local"])
@pytest.mark.parametrize("answer", ["one dict", "a list", "three", "no dict", "nothing"])
def test_an_answer_that_is_not_two_dicts_is_refused(
    federation: Any, engine: str, hook: str, answer: str
) -> None:
    def wrong(self: Method, *args: Any) -> Any:
        a, b = getattr(FedAvg, hook)(self, *args)
        return {"one dict": a, "a list": [a, b], "three": (a, b, b), "no dict": (a, None), "nothing": None}[
            answer
        ]

    mine = type("Mine", (FedAvg,), {"name": "mine", hook: wrong})
    with pytest.raises(InputError, match=f"^Mine.{hook} must return two dicts of tensors, what .* keep"):
        run(mine(), federation=federation, **FAST, engine=engine)


@pytest.mark.parametrize("hook", ["aggregate", "download", "personal"])
def test_an_answer_that_is_no_dict_is_refused(federation: Any, hook: str) -> None:
    mine = type("Mine", (FedAvg,), {hook: lambda self, *args: None})
    with pytest.raises(InputError, match=f"^Mine.{hook} must return a dict of tensors, .*, not NoneType"):
        run(mine(), federation=federation, **FAST)


def test_a_client_state_without_a_row_a_client_is_refused(federation: Any) -> None:
    mine = type("Mine", (FedAvg,), {"init": lambda self, start, *_: (start, {"a": torch.zeros(7)})})
    with pytest.raises(InputError, match=r"a row for each of 5 clients, not \[7\]: stack\(own, clients\)"):
        run(mine(), federation=federation, **FAST)


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_a_client_that_does_not_return_what_it_keeps_is_refused(federation: Any, engine: str) -> None:
    mine = type("Mine", (METHODS["ditto"],), {"local": lambda self, received, client, work: (received, {})})
    with pytest.raises(
        InputError, match=r"^Mine\.local must return all that its client keeps, as init gave it"
    ):
        run(mine(), federation=federation, **FAST, engine=engine)


def test_what_cannot_be_done_as_one_batch_is_refused_with_what_would_be_right(federation: Any) -> None:
    def local(self: Method, received: Any, client: Any, work: Any) -> Any:
        up = {name: -tensor for name, tensor in received.items()}
        return (up if work.size("train") > 100 else received), {}

    mine = type("Mine", (FedAvg,), {"local": local})
    run(mine(), federation=federation, **FAST, engine="loop")
    with pytest.raises(InputError, match=r"write torch\.where for an `if` on tensors, .* engine='loop'"):
        run(mine(), federation=federation, **FAST, engine="vmap")


@pytest.mark.parametrize("name", METHODS)
def test_all_clients_start_from_one_copy_of_their_first_state(name: str, federation: Any) -> None:
    sim = untrained(name, federation, model=network_for(name), **QUICK.get(name, {}))
    clients = sim.method.init(sim.start, sim.network, 40)[1]
    assert all(torch.equal(rows, rows[:1].expand_as(rows)) for rows in clients.values())
    held = {rows.untyped_storage().data_ptr(): rows.untyped_storage().nbytes() for rows in clients.values()}
    one = sum(tensor.untyped_storage().nbytes() for tensor in sim.start.values())
    assert (
        sum(held.values()) <= 2 * one + 2 * 8 * 40
    )  # two numbers a client aside, but none a pair of clients
