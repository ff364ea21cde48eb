"""pFedMe, Ditto, APFL, Per-FedAvg: a personal model and what ties it to the global one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from toy import (
    FULL_BATCH,
    FlatWork,
    five_clients,
    model,
    of_class_a,
    row,
    s,
    same,
    train,
    untrained,
    work_of,
    worked,
    zero_start,
)

from pfl_lite.engine.local_training import LoopWork
from pfl_lite.methods.base import pack, train_gradient, unpack

LINEAR = {"model": "linear"}


@pytest.fixture(scope="module")
def fedavg(federation: Any) -> Any:
    return train("fedavg", federation, **LINEAR)


# ---- pFedMe ---------------------------------------------------------------------------------------------------------


def test_pfedme_with_one_inner_step_and_a_full_outer_one_is_fedavg_at_the_inner_rate(federation: Any) -> None:
    # K = 1 and eta lam = 1: w lands on theta, which has taken one plain step of eta_p from it
    settings = {**LINEAR, "lr": 0.1, "lam": 10.0, "inner_steps": 1, "inner_lr": 0.3, "participation": 0.6}
    fedavg = train("fedavg", federation, **LINEAR, lr=0.3, participation=0.6)
    assert same(train("pfedme", federation, **settings).server, fedavg.server)


@pytest.mark.parametrize("settings", [{"beta": 0.0}, {"lam": 0.0}])
def test_pfedme_s_global_model_stays_without_beta_or_tie(federation: Any, settings: dict[str, Any]) -> None:
    sim = train("pfedme", federation, **LINEAR, rounds=1, **({"lam": 5.0} | settings))
    assert same(sim.server, sim.start, 1e-15) and not same(row(sim.personal_models(), 0), sim.start, 1e-3)


def test_pfedme_moves_the_server_beta_times_as_far(federation: Any) -> None:
    settings = {**LINEAR, "rounds": 1, "lam": 5.0}
    full, double = (train("pfedme", federation, beta=beta, **settings) for beta in (1.0, 2.0))
    assert same({k: full.start[k] + 2 * (full.server[k] - full.start[k]) for k in full.start}, double.server)


class QuadraticWork(LoopWork):
    """f(theta) = 1/2 sum_j h_j (theta_j - 1)^2 with h = 1, 2, ... along every tensor."""

    def loss(self, params: dict[str, torch.Tensor], batch: Any) -> torch.Tensor:
        parts = [(torch.arange(1, w.numel() + 1) * (w.flatten() - 1) ** 2).sum() / 2 for w in params.values()]
        return torch.stack(parts).sum()


def test_pfedme_s_inner_steps_find_the_minimum_of_the_envelope() -> None:
    # grad: h (theta - 1) + lam (theta - w) = 0, so theta = (h + lam w) / (h + lam)
    sim = zero_start("pfedme", lam=0.5, inner_steps=300, inner_lr=0.2)
    w = model(0.3, -0.2)
    with torch.no_grad():
        _, theta = sim.method.local(w, row(sim.clients, 0), work_of(sim, 0, kind=QuadraticWork))
    h = torch.tensor([1.0, 2.0], dtype=torch.float64)
    assert torch.allclose(theta["fc.bias"], (h + 0.5 * w["fc.bias"]) / (h + 0.5), rtol=0, atol=1e-12)


def test_pfedme_scores_theta_and_not_the_w_that_was_sent(federation: Any) -> None:
    sim = untrained("pfedme", federation, **LINEAR, lam=5.0)
    uploads, _ = worked(sim)
    sim.step()
    scored = sim.personal_models()
    assert all(not same(row(scored, i), row(uploads, i), 1e-3) for i in range(5))
    assert all(not same(row(scored, i), sim.server, 1e-3) for i in range(5))
    kept = {name: rows.clone() for name, rows in scored.items()}
    sim.server = {name: tensor * 0 for name, tensor in sim.server.items()}  # a broadcast reaches no theta
    assert same(sim.personal_models(), kept, 0)


def test_pfedme_s_theta_goes_on_from_batch_to_batch() -> None:
    # two mini-batches of one image: with lam = 0 theta takes plain steps, one after the other
    sim = zero_start("pfedme", lam=0.0, inner_steps=1, inner_lr=0.5, batch_size=1)
    _, states = worked(sim)
    local = zero_start("local", batch_size=1, lr=0.5)
    local.step()
    assert same(row(states, 1), row(local.clients, 1))


def test_pfedme_step_by_hand() -> None:
    # K = 2 steps of a = 0.1 on theta, from w = 0. Client 0: theta = a/2, then z_a - z_b = 4 a/2: gradient -s(-2a) + lam a/2.
    # Client 1: W_a = -a/2, b_a = a/6, then (+1, b): z_a - z_b = 2 (-a/2 + a/6) = -2a/3; (-1, a): 2 (a/2 + a/6) = 4a/3.
    a, lam, eta, beta = 0.1, 0.8, 0.5, 0.5
    sim = zero_start("pfedme", lam=lam, inner_steps=2, inner_lr=a, lr=eta, beta=beta)
    sim.step()
    first = a / 2 - a * (-s(-2 * a) + lam * a / 2)
    gradient = (s(-2 * a / 3) + 2 * s(-4 * a / 3)) / 3
    second = -a / 2 - a * (gradient - lam * a / 2)
    assert of_class_a(sim.clients)[0] == pytest.approx([first, second])
    w = [eta * lam * first, eta * lam * second]  # w - eta lam (w - theta)
    assert of_class_a(sim.server)[0] == pytest.approx(beta * (w[0] + 3 * w[1]) / 4)


# ---- Ditto ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lam", [0.0, 0.5, 2.0])
def test_ditto_s_global_model_is_fedavg_s_whatever_lam(federation: Any, fedavg: Any, lam: float) -> None:
    assert same(train("ditto", federation, **LINEAR, lam=lam).server, fedavg.server, 0)


def test_ditto_s_personal_model_stays_nearer_to_the_global_one_as_lam_grows(federation: Any) -> None:
    away = []
    for lam in (0.0, 1.0, 5.0):
        sim = train("ditto", federation, **LINEAR, lam=lam)
        away.append(sum(((sim.clients[k] - sim.server[k]) ** 2).sum().item() for k in sim.server))
    assert away[0] > away[1] > away[2] > 0


@pytest.mark.parametrize("method", ["ditto", "fedprox"])
def test_a_pull_of_one_over_eta_leads_back_in_one_step_where_nothing_else_pulls(method: str) -> None:
    name = "lam" if method == "ditto" else "mu"
    sim = zero_start(method, **{name: 2.0}, lr=0.5)
    anchor, away = model(0.3, 0.1), model(-1.0, 2.0)
    work = work_of(sim, 1, kind=FlatWork)
    with torch.no_grad():
        if method == "ditto":
            reached = sim.method.local(anchor, away, work)[1]
        else:
            from pfl_lite.methods.base import pulled

            reached = work.sgd(pulled(work.loss, 2.0, anchor), away)
    assert same(reached, anchor)


def test_ditto_is_pulled_towards_the_model_as_received_and_not_as_trained(federation: Any) -> None:
    # by many steps of a flat loss v reaches the received w, not the w that the same round trained
    sim = zero_start("ditto", lam=0.5, lr=1.0, epochs=60)
    anchor = model(0.7, -0.4)
    with torch.no_grad():
        upload, v = sim.method.local(anchor, model(3.0), work_of(sim, 0, kind=FlatWork))
        trained, _ = sim.method.local(anchor, model(3.0), work_of(sim, 0))
    assert same(v, anchor) and same(upload, anchor, 0) and not same(trained, anchor, 1e-2)


def test_ditto_step_by_hand() -> None:
    # v: W_a = 1/4 and the rest 0, w = 0. Client 0: z_a - z_b = 1/4. Client 1: (+1, b): 1/4, (-1, a): -1/4.
    sim = zero_start("ditto", lam=0.6)
    quarter = model(0.25, w_b=0.0)
    sim.clients = {name: torch.stack([tensor, tensor]) for name, tensor in quarter.items()}
    sim.step()
    first = 0.25 + s(-0.25) - 0.6 * 0.25
    second = 0.25 - s(0.25) - 0.6 * 0.25
    assert of_class_a(sim.clients)[0] == pytest.approx([first, second])
    assert of_class_a(sim.clients)[1] == pytest.approx([s(-0.25), s(0.25) / 3])
    assert of_class_a(sim.server) == pytest.approx([-0.25, 0.25])  # FedAvg's


# ---- APFL -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"alpha": 0.9, "adaptive": False}])
def test_apfl_s_global_model_is_fedavg_s_whatever_alpha(
    federation: Any, fedavg: Any, settings: dict[str, Any]
) -> None:
    assert same(train("apfl", federation, **LINEAR, **settings).server, fedavg.server)


def test_apfl_mixes_parameters_and_not_logits(federation: Any) -> None:
    sim = train("apfl", federation, rounds=1, epochs=1)  # a network with hidden layers, where the two differ
    alpha, own = sim.clients["alpha"], unpack("own", sim.clients)
    wide = {name: alpha.reshape(-1, *(1,) * tensor.dim()) for name, tensor in sim.server.items()}
    mixed = {k: wide[k] * own[k] + (1 - wide[k]) * sim.server[k] for k in sim.server}
    assert same(sim.scored_models(), mixed)


@pytest.mark.parametrize("start", [0.0, 0.5, 1.0])
def test_apfl_s_share_stays_between_0_and_1_and_moves(federation: Any, start: float) -> None:
    sim = train("apfl", federation, **LINEAR, alpha=start, lr=1.0, rounds=3, epochs=1)
    alpha = sim.state()["alpha"]
    assert ((alpha >= 0) & (alpha <= 1)).all() and alpha.dtype == torch.float64
    assert (
        alpha != start
    ).any() or start == 0  # at 0 the own model does not learn, and nothing speaks for it
    fixed = train("apfl", federation, **LINEAR, alpha=start, adaptive=False, rounds=1)
    assert (fixed.state()["alpha"] == start).all()


def test_apfl_s_share_moves_once_a_round_however_many_steps(federation: Any) -> None:
    sim = train("apfl", federation, **LINEAR, rounds=1, epochs=1)
    alphas = []
    for epochs in (1, 4):
        sim.settings = replace(sim.settings, epochs=epochs)
        alphas.append(worked(sim, 2)[1]["alpha"])
    assert torch.equal(alphas[0], alphas[1]) and not torch.equal(alphas[0], sim.clients["alpha"])


@pytest.mark.parametrize("adaptive", [False, True])
def test_apfl_step_by_hand(adaptive: bool) -> None:
    # client 0: w = 0, v: W_a = 1, alpha = 1/4, so vbar has W_a = 1/4 and the gradient -s(-1/4). The share moves first, by
    # -<v - w, gradient> = s(-1/4); then w by its own gradient -1/2 and v by alpha times that of vbar with w before its step.
    sim = zero_start("apfl", alpha=0.25, adaptive=adaptive)
    v = model(1.0, w_b=0.0)
    sim.clients = pack("own", {name: torch.stack([t, t]) for name, t in v.items()}) | {
        "alpha": torch.full((2,), 0.25, dtype=torch.float64)
    }
    uploads, states = worked(sim)
    share = 0.25 + s(-0.25) if adaptive else 0.25
    assert states["alpha"][0].item() == pytest.approx(share)
    assert of_class_a(row(uploads, 0)) == pytest.approx([0.5, 0.5])
    own = unpack("own", row(states, 0))
    assert of_class_a(own) == pytest.approx([1 + share * s(-share), share * s(-share)])
    # client 1: its gradient by W_a is s(1/4): the share falls by as much, to 0 and no further
    assert states["alpha"][1].item() == pytest.approx(0.0 if adaptive else 0.25)
    sim.step()
    scored = row(sim.personal_models(), 0)
    assert of_class_a(scored)[0] == pytest.approx(share * (1 + share * s(-share)) + (1 - share) * -0.25)


# ---- Per-FedAvg -----------------------------------------------------------------------------------------------------


def test_perfedavg_s_variants_agree_where_the_loss_has_no_curvature() -> None:
    class LinearLoss(LoopWork):
        def loss(self, params: dict[str, torch.Tensor], batch: Any) -> torch.Tensor:
            return torch.stack([(3 * tensor).sum() for tensor in params.values()]).sum() * batch.x.mean()

    reached = []
    for variant in ("fo", "hf"):
        sim = zero_start("perfedavg", variant=variant, inner_lr=0.3)
        with torch.no_grad():
            reached.append(sim.method.local(model(0.2), {}, work_of(sim, 1, kind=LinearLoss))[0])
    assert same(*reached) and not same(reached[0], model(0.2), 1e-3)
    curved = [
        train("perfedavg", five_clients(), **LINEAR, variant=v, inner_lr=0.3).server for v in ("fo", "hf")
    ]
    assert not same(*curved, 1e-6)


@pytest.mark.parametrize("variant", ["fo", "hf"])
def test_perfedavg_step_by_hand(variant: str) -> None:
    # client 0 sees its one image in both mini-batches: f = log(1 + e^-m), m = 4 t along t = W_a = -W_b = b_a = -b_b. From t = 0
    # the inner step reaches t = a/2, where the gradient by t's coordinates is -s(-2a). The Hessian at 0 is 1/4 in every entry,
    # up to signs, so that I - a H shrinks this direction by 1 - a.
    a = 0.3
    sim = zero_start("perfedavg", variant=variant, inner_lr=a)
    uploads, _ = worked(sim)
    step = s(-2 * a) * (1 if variant == "fo" else 1 - a)
    assert of_class_a(row(uploads, 0)) == pytest.approx([step, step])


def test_perfedavg_is_scored_after_one_step_on_training_data_from_the_server_s_model() -> None:
    # FedAvg's step (inner_lr so small that only it remains) leaves W_a = -1/4, b_a = 1/4; then client 0: z = 0, gradient -1/2
    sim = zero_start("perfedavg", inner_lr=1e-9)
    sim.step()
    sim.method.__dict__["inner_lr"] = 0.4
    weight, bias = of_class_a(sim.personal_models())
    assert weight[0] == pytest.approx(-0.25 + 0.4 / 2, abs=1e-8) and bias[0] == pytest.approx(0.45, abs=1e-8)


def test_perfedavg_never_adapts_on_test_images(federation: Any) -> None:
    others = replace(federation, test=[rows[:3] for rows in federation.test[::-1]])
    a, b = (train("perfedavg", data, **LINEAR, inner_lr=0.1).scored_models() for data in (federation, others))
    assert same(a, b, 0)


def test_perfedavg_draws_its_inner_gradient_from_other_batches(federation: Any) -> None:
    # with full batches there is only one order of images that matters: fo is then a plain function of the data
    sim = untrained("perfedavg", federation, **LINEAR, inner_lr=0.2, batch_size=FULL_BATCH, epochs=1)
    uploads, _ = worked(sim)
    with torch.no_grad():
        work = work_of(sim, 0)
        inner = sim.method.adapt(sim.server, train_gradient(sim.server, work))
        outer = train_gradient(inner, work)
    assert same(row(uploads, 0), {k: sim.server[k] - 0.1 * outer[k] for k in outer})
    # in smaller ones the two gradients of a step see different images, in two orders of the whole epoch
    small = untrained("perfedavg", federation, **LINEAR, inner_lr=0.2, batch_size=100, epochs=1)
    uploads, _ = worked(small)
    work, w = work_of(small, 0), small.server
    with torch.no_grad():
        for batch, inner in zip(
            *(work.batches(phase, 1, "all") for phase in ("weights", "inner")), strict=True
        ):
            assert not torch.equal(batch.place, inner.place)
            outer = work.grad(work.loss, small.method.adapt(w, work.grad(work.loss, w, inner)), batch)
            w = {k: w[k] - 0.1 * outer[k] for k in w}
    assert same(row(uploads, 0), w)
