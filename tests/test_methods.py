"""What must hold for each method: equalities between methods, what may not change, one step worked out by hand."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from toy import by_hand, five_clients, same, train

from pfl_lite.engine.config import make_config
from pfl_lite.engine.rounds import Simulation
from pfl_lite.errors import InputError
from pfl_lite.methods import METHODS, make_method
from pfl_lite.methods.pfedmb import project_onto_simplex
from pfl_lite.methods.weighted_mean import weighted_mean


@pytest.fixture(scope="module")
def federation() -> Any:
    return five_clients()


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


def test_weighted_mean_keeps_tiny_weights_exact() -> None:
    stacked = {"w": torch.tensor([1.0, 3.0], dtype=torch.float64)}
    weights = torch.tensor([1e-300, 3e-300], dtype=torch.float64)
    assert weighted_mean(stacked, weights, {"w": torch.zeros(())})["w"].item() == pytest.approx(
        2.5, abs=1e-12
    )


# ---- equalities between methods -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("fedprox", {"mu": 0.0}),
        ("fedper", {"head": "none"}),
        ("pfedmb", {"branches": 1}),
        ("pfedmb", {"branches": 1, "aggregation": "plain"}),
        ("pfedmb", {"branches": 1, "simplex": "projection", "alpha_scope": "shared", "rate": "effective"}),
    ],
)
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_equals_fedavg(federation: Any, method: str, settings: dict[str, Any], participation: float) -> None:
    common = {"participation": participation, "momentum": 0.5, "weight_decay": 0.01}
    assert same(
        train(method, federation, **settings, **common).scored_models(),
        train("fedavg", federation, **common).scored_models(),
    )


def test_fedprox_with_one_local_step_is_fedavg_whatever_mu(federation: Any) -> None:
    one_step = {"epochs": 1, "batch_size": 10_000}
    a, b = train("fedprox", federation, mu=5.0, **one_step), train("fedavg", federation, **one_step)
    assert same(a.server, b.server)


def test_fedprox_stays_nearer_to_the_global_model_as_mu_grows(federation: Any) -> None:
    moved = []
    for mu in (0.0, 0.5, 2.0):
        sim = train("fedprox", federation, mu=mu, rounds=1)
        start = sim.start
        moved.append(sum(((sim.server[k] - start[k]) ** 2).sum().item() for k in start))
    assert moved[0] > moved[1] > moved[2] > 0


def test_fedper_with_everything_private_is_local(federation: Any) -> None:
    a = train("fedper", federation, head="conv1")
    assert same(a.scored_models(), train("local", federation).scored_models())
    assert a.history.rounds[-1]["floats_up"] == 0


def test_local_does_not_feel_the_others(federation: Any) -> None:
    changed = replace(federation, train=[federation.train[0], *(rows[:7] for rows in federation.train[1:])])
    a, b = train("local", federation).scored_models(), train("local", changed).scored_models()
    assert all(torch.equal(a[k][0], b[k][0]) and not torch.equal(a[k][1], b[k][1]) for k in a)


def test_fedavg_with_one_full_batch_step_is_centralised_gradient_descent(federation: Any) -> None:
    sim = train("fedavg", federation, rounds=1, epochs=1, batch_size=10_000)
    start = {name: tensor.clone().requires_grad_() for name, tensor in sim.start.items()}
    rows = torch.cat(federation.train)
    loss = torch.nn.functional.cross_entropy(
        sim.network(start, federation.images[rows]), federation.labels[rows]
    )
    gradient = torch.autograd.grad(loss, list(start.values()))
    pooled = {
        name: (tensor - 0.1 * g).detach() for (name, tensor), g in zip(start.items(), gradient, strict=True)
    }
    assert same(sim.server, pooled)


def test_fedavg_does_not_depend_on_the_order_of_clients_under_full_batches(federation: Any) -> None:
    turned = replace(
        federation, train=federation.train[::-1], val=federation.val[::-1], test=federation.test[::-1]
    )
    a, b = (train("fedavg", f, batch_size=10_000).server for f in (federation, turned))
    assert same(a, b)


def test_fedavg_of_copies_of_one_client_is_that_client_alone(federation: Any) -> None:
    copies = replace(federation, train=[federation.train[0]] * 5)
    averaged = train("fedavg", copies, batch_size=10_000).server
    alone = train("local", copies, batch_size=10_000).scored_models()
    assert same(averaged, {name: rows[0] for name, rows in alone.items()})


# ---- pFedMB ---------------------------------------------------------------------------------------------------------


def test_projection_onto_the_simplex_by_hand_and_against_its_definition() -> None:
    by_rule = project_onto_simplex(torch.tensor([[0.6, 0.8], [2.0, 0.0], [0.3, 0.7]], dtype=torch.float64))
    assert torch.allclose(by_rule, torch.tensor([[0.4, 0.6], [1.0, 0.0], [0.3, 0.7]], dtype=torch.float64))
    point = torch.tensor([0.9, -0.3, 0.5, 0.1], dtype=torch.float64)
    nearest = project_onto_simplex(point)
    others = torch.distributions.Dirichlet(torch.ones(4, dtype=torch.float64)).sample((2000,))
    assert nearest.sum().item() == pytest.approx(1) and (nearest >= 0).all()
    assert ((others - point) ** 2).sum(1).min() >= ((nearest - point) ** 2).sum()


@pytest.mark.parametrize("simplex", ["softmax", "projection"])
@pytest.mark.parametrize("scope", ["layer", "shared"])
def test_pfedmb_alpha_stays_on_the_simplex_and_moves(federation: Any, simplex: str, scope: str) -> None:
    sim = train("pfedmb", federation, simplex=simplex, alpha_scope=scope, branches=3, alpha_lr=0.5)
    alpha = sim.state()["alpha"]
    assert alpha.shape == ((5, 3) if scope == "shared" else (5, 4, 3))
    assert (alpha >= 0).all() and (alpha.sum(-1) - 1).abs().max() < 1e-12
    assert (alpha - 1 / 3).abs().max() > 1e-3


def test_pfedmb_uniform_alpha_follows_fedavg_at_a_rate_divided_by_b(federation: Any) -> None:
    sim = train("pfedmb", federation, branches=4, alpha_lr=0.0, lr=0.4, momentum=0.5)
    mean_start = {name: tensor.mean(0) for name, tensor in sim.start.items()}
    plain = Simulation(make_config("fedavg", **(sim_settings() | {"lr": 0.1, "momentum": 0.5})), federation)
    plain.server = mean_start
    plain.run()
    assert same({name: tensor.mean(0) for name, tensor in sim.server.items()}, plain.server)


def sim_settings() -> dict[str, Any]:
    from toy import FAST

    return dict(FAST)


def test_pfedmb_effective_rate_undoes_the_division(federation: Any) -> None:
    sim = train("pfedmb", federation, branches=4, alpha_lr=0.0, lr=0.1, rate="effective")
    plain = Simulation(make_config("fedavg", **sim_settings()), federation)
    plain.server = {name: tensor.mean(0) for name, tensor in sim.start.items()}
    plain.run()
    assert same({name: tensor.mean(0) for name, tensor in sim.server.items()}, plain.server)


def test_pfedmb_both_aggregations_agree_under_uniform_alpha(federation: Any) -> None:
    a, b = (
        train("pfedmb", federation, branches=3, alpha_lr=0.0, aggregation=rule).server
        for rule in ("alpha", "plain")
    )
    assert same(a, b)


def test_pfedmb_one_hot_alpha_is_fedavg_inside_each_group(federation: Any) -> None:
    sim = Simulation(make_config("pfedmb", **(sim_settings() | {"branches": 3, "alpha_lr": 0.0, "alpha_scope": "shared",
                                                                "simplex": "projection"})), federation)  # fmt: skip
    groups = [0, 1, 0, 1, 0]
    sim.clients = {"alpha": torch.eye(3, dtype=torch.float64)[groups]}
    sim.run()
    assert same(
        {k: v[2] for k, v in sim.server.items()}, {k: v[2] for k, v in sim.start.items()}, 0
    )  # branch nobody uses
    for branch in (0, 1):
        members = [i for i, group in enumerate(groups) if group == branch]
        part = {split: [getattr(federation, split)[i] for i in members] for split in ("train", "val", "test")}
        group = Simulation(make_config("fedavg", **(sim_settings() | {"clients": len(members), "batch_size": 10_000})),
                           replace(federation, **part))  # fmt: skip
        group.server = {name: tensor[branch] for name, tensor in group_start(sim).items()}
        full = Simulation(replace(sim.config, batch_size=10_000), federation)
        full.clients = {"alpha": torch.eye(3, dtype=torch.float64)[groups]}
        full.run()
        group.run()
        assert same({name: tensor[branch] for name, tensor in full.server.items()}, group.server)


def group_start(sim: Simulation) -> dict[str, torch.Tensor]:
    return sim.method.initial(sim.network, sim.config.clients, sim.config.seed)


def test_pfedmb_permuting_branches_changes_no_prediction(federation: Any) -> None:
    a = Simulation(make_config("pfedmb", **(sim_settings() | {"branches": 3})), federation)
    b = Simulation(a.config, federation)
    order = [2, 0, 1]
    b.server = {name: tensor[order] for name, tensor in b.server.items()}
    a.run()
    b.run()
    assert same(a.scored_models(), b.scored_models())


def test_pfedmb_phases_touch_only_their_own_parameters(federation: Any) -> None:
    still = train("pfedmb", federation, branches=3, lr=1e-300, alpha_lr=0.5)
    assert same(still.server, still.start, 1e-12)
    assert (still.state()["alpha"] - 1 / 3).abs().max() > 1e-3
    frozen = train("pfedmb", federation, branches=3, alpha_lr=0.0)
    assert torch.equal(frozen.clients["alpha"], torch.zeros(5, 4, 3, dtype=torch.float64))
    assert not same(frozen.server, frozen.start, 1e-6)


def test_pfedmb_ignores_momentum_and_decay_in_the_alpha_phase(federation: Any) -> None:
    settings = {"branches": 3, "lr": 1e-300, "alpha_lr": 0.5, "rounds": 1}
    a = train("pfedmb", federation, **settings)
    b = train("pfedmb", federation, **settings, momentum=0.9, weight_decay=0.1)
    assert torch.equal(a.clients["alpha"], b.clients["alpha"])


# ---- one step worked out by hand ------------------------------------------------------------------------------------
# Two clients of one-pixel images x in {+1, -1}, softmax regression with two classes. From W = 0, b = 0 every probability is
# 1/2, so the gradient of logit c of a sample is p_c - [y = c] = +-1/2. Client 0 holds (x = +1, class a); client 1 holds
# (+1, b), (-1, a), (-1, a).


def zero_start(method: str, **settings: Any) -> Simulation:
    federation = by_hand([255, 255, 0, 0], [0, 1, 0, 0], [[0], [1, 2, 3]])
    config = make_config(method, data="digits", model="linear", clients=2, rounds=1, epochs=1, batch_size=8, lr=1.0,
                         dtype="float64", **settings)  # fmt: skip
    sim = Simulation(config, federation)
    zero = lambda params: {name: torch.zeros_like(tensor) for name, tensor in params.items()}  # noqa: E731
    sim.server = zero(sim.server)
    if method in ("local", "fedper"):
        sim.clients = zero(sim.clients)
    return sim


# gradient of W_a: client 0: (1/2 - 1) * 1 = -1/2; client 1: [(1/2)(1) + (-1/2)(-1) + (-1/2)(-1)] / 3 = 1/2
# gradient of b_a: client 0: -1/2;                 client 1: [1/2 - 1/2 - 1/2] / 3 = -1/6


def test_local_step_by_hand() -> None:
    sim = zero_start("local")
    sim.step()
    assert sim.clients["fc.weight"][:, 0, 0].tolist() == pytest.approx([0.5, -0.5])
    assert sim.clients["fc.bias"][:, 0].tolist() == pytest.approx([0.5, 1 / 6])


def test_fedavg_step_by_hand() -> None:
    sim = zero_start("fedavg")
    sim.step()
    assert sim.server["fc.weight"][:, 0].tolist() == pytest.approx([-0.25, 0.25])  # (1 * 0.5 + 3 * -0.5) / 4
    assert sim.server["fc.bias"].tolist() == pytest.approx([0.25, -0.25])  # (1 * 0.5 + 3 * 1/6) / 4


def test_fedprox_two_steps_by_hand() -> None:
    # client 0, second step: z = W x + b = (1, -1), p_a = 1 / (1 + e^-2), gradient p_a - 1 plus mu * (0.5 - 0)
    sim = zero_start("fedprox", mu=0.4)
    sim.settings = replace(sim.settings, epochs=2)
    sim.everyone = sim.everyone[:1]
    (uploads, _, _), _ = sim.local_work(1, sim.everyone)
    p = 1 / (1 + math.exp(-2))
    assert uploads["fc.weight"][0, 0, 0].item() == pytest.approx(0.5 - (p - 1) - 0.4 * 0.5)


def test_fedper_step_by_hand() -> None:
    sim = zero_start("fedper")
    sim.step()
    assert sim.server == {} and sim.clients["fc.weight"][:, 0, 0].tolist() == pytest.approx([0.5, -0.5])


def test_pfedmb_step_by_hand() -> None:
    # Branches W = (+1, 0) for class a, b = 0, alpha = (1/2, 1/2). Client 0 (x = 1, class a): mixed W_a = 1/2, z = (1/2, 0),
    # p_a = s(1/2), G = dloss/dW_a = p_a - 1. alpha: dloss/dalpha = (G, 0), softmax logits' gradient alpha_b (g_b - mean g) =
    # (1/2)(G/2, -G/2). One step of alpha_lr 1 makes the logits (-G/4, +G/4).
    sim = zero_start("pfedmb", branches=2, alpha_lr=1.0, alpha_scope="shared")
    sim.server["fc.weight"][0, 0, 0] = 1.0
    sigmoid = lambda z: 1 / (1 + math.exp(-z))  # noqa: E731
    gradient = sigmoid(0.5) - 1
    sim.everyone = sim.everyone[:1]
    (uploads, states, _), _ = sim.local_work(1, sim.everyone)
    assert states["alpha"][0].tolist() == pytest.approx([-gradient / 4, gradient / 4])
    alpha = sigmoid(-gradient / 2)  # softmax of the two logits
    step = sigmoid(alpha) - 1  # gradient of the mixed weight, now W_a = alpha * 1
    assert uploads["fc.weight"][0, :, 0, 0].tolist() == pytest.approx([1 - alpha * step, -(1 - alpha) * step])


# ---- every hyper-parameter matters ----------------------------------------------------------------------------------

OFF_DEFAULT: dict[str, dict[str, Any]] = {
    "local": {},
    "fedavg": {},
    "fedprox": {"mu": 0.7},
    "fedper": {"head": "fc1"},
    "pfedmb": {
        "branches": 3,
        "aggregation": "plain",
        "alpha_scope": "shared",
        "simplex": "projection",
        "alpha_lr": 0.5,
        "rate": "effective",
    },
}


def test_the_list_of_hyper_parameters_is_complete() -> None:
    assert {name: {f.name for f in fields(m)} for name, m in METHODS.items()} == {
        name: set(settings) for name, settings in OFF_DEFAULT.items()
    }


@pytest.mark.parametrize(
    ("method", "name"), [(m, n) for m, settings in OFF_DEFAULT.items() for n in settings]
)
def test_every_hyper_parameter_changes_the_result(federation: Any, method: str, name: str) -> None:
    usual = train(method, federation).report()["final"]["test_loss"]
    other = train(method, federation, **{name: OFF_DEFAULT[method][name]}).report()["final"]["test_loss"]
    assert np.abs(np.array(usual) - np.array(other)).max() > 1e-6


@pytest.mark.parametrize(
    ("method", "settings", "says"),
    [
        ("fedprox", {"mu": -1}, "mu must be 0 or more"),
        ("fedprox", {"mu": "much"}, "mu must be a number"),
        ("fedprox", {"nu": 1}, "did you mean mu"),
        ("pfedmb", {"branches": 0}, "branches must be 1 or more"),
        ("pfedmb", {"branches": 2.5}, "branches must be a whole number"),
        ("pfedmb", {"aggregation": "beta"}, "one of alpha, plain"),
        ("fedavgg", {}, "did you mean fedavg"),
    ],
)
def test_bad_settings_are_refused_with_what_would_be_right(
    method: str, settings: dict[str, Any], says: str
) -> None:
    with pytest.raises(InputError, match=says):
        make_method(method, **settings)


def test_fedper_names_the_layers_when_the_head_is_none_of_them(federation: Any) -> None:
    with pytest.raises(InputError, match="last, none, conv1, conv2, fc1, fc2"):
        train("fedper", federation, head="fc9")
