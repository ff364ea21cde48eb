"""pFedMB and FedEM: shared models, mixed by each client's own weights."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from toy import (
    FAST,
    FULL_BATCH,
    model,
    of_class_a,
    restart,
    row,
    s,
    same,
    train,
    untrained,
    work_of,
    worked,
    zero_start,
)

from pfl_lite.config import make_config
from pfl_lite.engine.simulation import Simulation
from pfl_lite.methods.pfedmb import project_onto_simplex

LINEAR = {"model": "linear"}


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
    plain = Simulation(make_config("fedavg", **(FAST | {"lr": 0.1, "momentum": 0.5})), federation)
    plain.server = mean_start
    plain.run()
    assert same({name: tensor.mean(0) for name, tensor in sim.server.items()}, plain.server)


def test_pfedmb_effective_rate_undoes_the_division(federation: Any) -> None:
    sim = train("pfedmb", federation, branches=4, alpha_lr=0.0, lr=0.1, rate="effective")
    plain = Simulation(make_config("fedavg", **FAST), federation)
    plain.server = {name: tensor.mean(0) for name, tensor in sim.start.items()}
    plain.run()
    assert same({name: tensor.mean(0) for name, tensor in sim.server.items()}, plain.server)


def test_pfedmb_both_aggregations_agree_under_uniform_alpha(federation: Any) -> None:
    a, b = (
        train("pfedmb", federation, **LINEAR, branches=3, alpha_lr=0.0, aggregation=rule).server
        for rule in ("alpha", "plain")
    )
    assert same(a, b)


def test_pfedmb_one_hot_alpha_is_fedavg_inside_each_group(federation: Any) -> None:
    sim = Simulation(make_config("pfedmb", **(FAST | LINEAR | {"branches": 3, "alpha_lr": 0.0, "alpha_scope": "shared",
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
        group = Simulation(make_config("fedavg", **(FAST | LINEAR | {"clients": len(members), "batch_size": 10_000})),
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
    a = Simulation(make_config("pfedmb", **(FAST | LINEAR | {"branches": 3})), federation)
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


def test_pfedmb_step_by_hand() -> None:
    # Branches W = (+1, 0) for class a, b = 0, alpha = (1/2, 1/2). Client 0 (x = 1, class a): mixed W_a = 1/2, z = (1/2, 0),
    # p_a = s(1/2), G = dloss/dW_a = p_a - 1. alpha: dloss/dalpha = (G, 0), softmax logits' gradient alpha_b (g_b - mean g) =
    # (1/2)(G/2, -G/2). One step of alpha_lr 1 makes the logits (-G/4, +G/4).
    sim = zero_start("pfedmb", branches=2, alpha_lr=1.0, alpha_scope="shared")
    sim.server["fc.weight"][0, 0, 0] = 1.0
    gradient = s(0.5) - 1
    uploads, states = worked(sim)
    assert states["alpha"][0].tolist() == pytest.approx([-gradient / 4, gradient / 4])
    alpha = s(-gradient / 2)  # softmax of the two logits
    step = s(alpha) - 1  # gradient of the mixed weight, now W_a = alpha * 1
    assert uploads["fc.weight"][0, :, 0, 0].tolist() == pytest.approx([1 - alpha * step, -(1 - alpha) * step])


def test_pfedmb_aggregation_by_hand() -> None:
    # eq. 5: branch 0 with weights 1 * 0.2 and 3 * 0.6, branch 1 with 1 * 0.8 and 3 * 0.4; eq. 6: with 1 and 3
    for rule, expected in (
        ("alpha", [(0.2 * 1 + 1.8 * 5) / 2.0, (0.8 * 2 + 1.2 * 7) / 2.0]),
        ("plain", [4.0, 5.75]),
    ):
        sim = zero_start("pfedmb", branches=2, aggregation=rule, alpha_scope="shared")
        uploads = {
            name: torch.zeros(2, *tensor.shape, dtype=torch.float64) for name, tensor in sim.server.items()
        }
        uploads["fc.weight"][:, :, 0, 0] = torch.tensor([[1.0, 2.0], [5.0, 7.0]])
        uploads["alpha"] = torch.tensor([[0.2, 0.8], [0.6, 0.4]], dtype=torch.float64)
        from pfl_lite.methods.base import Round

        server = sim.method.aggregate(sim.server, uploads, Round(1, torch.arange(2), torch.tensor([1, 3]), 2))
        assert server["fc.weight"][:, 0, 0].tolist() == pytest.approx(expected)


def test_pfedmb_branches_start_from_different_draws(federation: Any) -> None:
    start = untrained("pfedmb", federation, **LINEAR).start
    assert all(
        not torch.equal(tensor[a], tensor[b]) for tensor in start.values() for a in range(5) for b in range(a)
    )


def test_pfedmb_logits_stay_where_the_softmax_does_not_underflow(federation: Any) -> None:
    sim = train("pfedmb", federation, **LINEAR, alpha_lr=1e6, branches=3)
    assert sim.clients["alpha"].abs().max() == 30 and (sim.state()["alpha"] > 0).all()


# ---- FedEM ----------------------------------------------------------------------------------------------------------


def test_fedem_step_by_hand() -> None:
    # Components W_a = +1 and -1. Client 0 (+1, a) has the likelihoods s(1) and s(-1), which sum to 1: pi = (s(1), s(-1)). Then
    # component 1 steps by s(1) s(-1) and component 2 by s(-1) s(1). Client 1 has s(-1), s(1) on all of its three images.
    sim = zero_start("fedem", components=2)
    restart(sim, {k: torch.stack([model(1.0, w_b=0.0)[k], model(-1.0, w_b=0.0)[k]]) for k in model(0)})
    uploads, states = worked(sim)
    assert states["mixture"].flatten().tolist() == pytest.approx([s(1), s(-1), s(-1), s(1)])
    both = s(1) * s(-1)
    weight, bias = of_class_a(uploads)
    assert weight[0] == pytest.approx([1 + both, -1 + both]) and bias[0] == pytest.approx([both, both])
    assert weight[1] == pytest.approx([1 - both, -1 - both]) and bias[1] == pytest.approx(
        [both / 3, both / 3]
    )
    sim.step()
    assert of_class_a(sim.server)[0] == pytest.approx(
        [1 - both / 2, -1 - both / 2]
    )  # (1 * both - 3 * both) / 4


def test_fedem_e_step_starts_from_the_mixture_so_far_by_hand() -> None:
    sim = zero_start("fedem", components=2)
    restart(sim, {k: torch.stack([model(1.0, w_b=0.0)[k], model(-1.0, w_b=0.0)[k]]) for k in model(0)})
    sim.clients = {"mixture": torch.tensor([[0.2, 0.8], [0.5, 0.5]], dtype=torch.float64)}
    _, states = worked(sim)
    assert states["mixture"][0, 0].item() == pytest.approx(0.2 * s(1) / (0.2 * s(1) + 0.8 * s(-1)))


def test_fedem_mixes_probabilities_and_not_logits_by_hand() -> None:
    sim = zero_start("fedem", components=2)
    mixture = torch.tensor([0.3, 0.7], dtype=torch.float64)
    scored = {k: torch.stack([model(1.0)[k], model(-2.0)[k]]) for k in model(0)} | {"mixture": mixture}
    x = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    probability = sim.method.predict(sim.network, scored, x).exp()[0].tolist()
    expected = 0.3 * s(2) + 0.7 * s(-4)
    assert probability == pytest.approx([expected, 1 - expected])
    assert sim.method.to_module(sim.network, scored)(x).exp()[0].tolist() == pytest.approx(probability)


def test_fedem_responsibilities_and_mixtures_are_distributions(federation: Any) -> None:
    sim = train("fedem", federation, **LINEAR)
    mixture = sim.state()["mixture"]
    assert (
        (mixture >= 0).all()
        and (mixture.sum(1) - 1).abs().max() < 1e-12
        and (mixture - 1 / 3).abs().max() > 1e-3
    )
    with torch.no_grad():
        q = sim.method.responsibilities(sim.server, row(sim.clients, 1), work_of(sim, 1))
    assert q.shape == (264, 3) and (q >= 0).all() and (q.sum(1) - 1).abs().max() < 1e-12


def test_fedem_survives_losses_whose_exponentials_underflow() -> None:
    sim = zero_start("fedem", components=2)
    restart(sim, {k: torch.stack([model(-900.0)[k], model(-901.0)[k]]) for k in model(0)})
    with torch.no_grad():
        q = sim.method.responsibilities(sim.server, row(sim.clients, 0), work_of(sim, 0))
    assert q[0].tolist() == pytest.approx([s(2), s(-2)])  # losses of 1800 and 1802


def test_fedem_permuting_components_permutes_everything(federation: Any) -> None:
    a, b = (untrained("fedem", federation, **LINEAR) for _ in range(2))
    order = [2, 0, 1]
    b.server = row(b.server, order)
    a.run()
    b.run()
    assert same(row(a.server, order), b.server)
    assert torch.allclose(a.clients["mixture"][:, order], b.clients["mixture"], rtol=0, atol=1e-12)
    assert a.report()["final"]["test_loss"] == pytest.approx(b.report()["final"]["test_loss"], abs=1e-12)


def test_fedem_components_start_from_different_draws_and_equal_ones_stay_equal(federation: Any) -> None:
    sim = untrained("fedem", federation, **LINEAR)
    assert all(not torch.equal(t[0], t[1]) and not torch.equal(t[1], t[2]) for t in sim.start.values())
    restart(
        sim, {name: tensor[:1].repeat(3, *(1,) * (tensor.dim() - 1)) for name, tensor in sim.start.items()}
    )
    sim.step()
    assert all(torch.allclose(tensor[0], tensor[2], rtol=0, atol=1e-12) for tensor in sim.server.values())


def negative_log_likelihood(sim: Simulation) -> float:
    """-sum_s log sum_m pi_im p_m(y_s | x_s) over everybody's training images."""
    total = 0.0
    for i, rows in enumerate(sim.federation.train):
        x, y = sim.federation.images[rows], sim.federation.labels[rows]
        likelihood = sum(
            sim.clients["mixture"][i, m]
            * sim.network(row(sim.server, m), x).softmax(1)[torch.arange(len(y)), y]
            for m in range(3)
        )
        total -= torch.as_tensor(likelihood).log().sum().item()
    return total


def test_fedem_full_batches_in_small_steps_never_make_the_data_less_likely(federation: Any) -> None:
    sim = untrained("fedem", federation, **LINEAR, lr=0.05, batch_size=FULL_BATCH, epochs=1, rounds=6)
    values = [negative_log_likelihood(sim)]
    for _ in range(6):
        sim.advance()
        values.append(negative_log_likelihood(sim))
    assert all(later < earlier for earlier, later in pairwise(values))


def test_fedem_responsibilities_stay_with_their_images_under_any_shuffle(federation: Any) -> None:
    # one image a step at a rate of nothing: the sum of the steps is n times the mean gradient, if each has its own weight
    sim = untrained("fedem", federation, **LINEAR, epochs=1, batch_size=1, lr=1e-9)
    sim.server = {name: 5 * tensor for name, tensor in sim.server.items()}  # far apart: q is far from uniform
    work, start = work_of(sim, 2), sim.server
    with torch.no_grad():
        upload, _ = sim.method.local(start, row(sim.clients, 2), work)
        q = sim.method.responsibilities(start, row(sim.clients, 2), work)
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in start.items()}
    rows = federation.train[2]
    loss = sum(
        (
            q[:, m]
            * F.cross_entropy(
                sim.network(row(leaves, m), federation.images[rows]),
                federation.labels[rows],
                reduction="none",
            )
        ).sum()
        for m in range(3)
    )
    gradient = torch.autograd.grad(loss, list(leaves.values()))
    for name, slope in zip(leaves, gradient, strict=True):
        assert torch.allclose((start[name] - upload[name]) / 1e-9, slope, rtol=0, atol=1e-4)


def test_fedem_an_absent_client_keeps_its_mixture_and_a_scored_one_uses_the_stored(federation: Any) -> None:
    sim = train("fedem", federation, **LINEAR, epochs=1)
    assert torch.equal(sim.personal_models()["mixture"], sim.clients["mixture"])
    last = sim.history.rounds[-1]
    assert last["floats_down"] == last["floats_up"] - 0 == 5 * 3 * 650
