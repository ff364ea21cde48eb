"""FedProx, SCAFFOLD, MOON: what keeps the clients from drifting apart."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from toy import (
    FULL_BATCH,
    TwoLayers,
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

from pfl_lite.methods.base import pack, train_gradient, unpack
from pfl_lite.models import NETWORKS, NetworkSpec

LINEAR = {"model": "linear"}


# ---- FedProx --------------------------------------------------------------------------------------------------------


def test_fedprox_with_one_local_step_is_fedavg_whatever_mu(federation: Any) -> None:
    one_step = {**LINEAR, "epochs": 1, "batch_size": FULL_BATCH}
    a, b = train("fedprox", federation, mu=5.0, **one_step), train("fedavg", federation, **one_step)
    assert same(a.server, b.server)


def test_fedprox_stays_nearer_to_the_global_model_as_mu_grows(federation: Any) -> None:
    moved = []
    for mu in (0.0, 0.5, 2.0):
        sim = train("fedprox", federation, mu=mu, rounds=1)
        start = sim.start
        moved.append(sum(((sim.server[k] - start[k]) ** 2).sum().item() for k in start))
    assert moved[0] > moved[1] > moved[2] > 0


def test_fedprox_two_steps_by_hand() -> None:
    # client 0, second step: z = W x + b = (1, -1), p_a = 1 / (1 + e^-2), gradient p_a - 1 plus mu * (0.5 - 0)
    sim = zero_start("fedprox", mu=0.4, epochs=2)
    uploads, _ = worked(sim)
    assert of_class_a(row(uploads, 0))[0] == pytest.approx(0.5 + s(-2) - 0.4 * 0.5)


def test_fedprox_fine_tunes_without_the_pull(federation: Any) -> None:
    settings = {**LINEAR, "rounds": 1, "ft_epochs": 3}
    a, b = train("fedprox", federation, mu=3.0, **settings), train("fedavg", federation, **settings)
    b.server = a.server
    assert same(a.tuned_models(), b.tuned_models())


# ---- SCAFFOLD -------------------------------------------------------------------------------------------------------


def controls(sim: Any) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """c and all c_i [N, ...]."""
    return unpack("control", sim.server), unpack("control", sim.clients)


@pytest.mark.parametrize("participation", [1.0, 0.4])
def test_scaffold_s_control_is_the_mean_of_the_clients_controls(
    federation: Any, participation: float
) -> None:
    # c moves by S/N of the mean change of those who took part, so that it stays the mean over all N
    sim = untrained("scaffold", federation, **LINEAR, participation=participation, rounds=4)
    for _ in range(4):
        sim.step()
        c, own = controls(sim)
        assert same(c, {name: rows.mean(0) for name, rows in own.items()})
        assert any(tensor.abs().max() > 1e-3 for tensor in c.values())


def test_scaffold_s_control_follows_the_weights_of_the_model_s_mean(federation: Any) -> None:
    sim = train("scaffold", federation, **LINEAR, weights="size", rounds=3)
    c, own = controls(sim)
    share = federation.train_sizes.double() / federation.train_sizes.sum()
    assert same(c, {name: torch.tensordot(share, rows, dims=1) for name, rows in own.items()})


def test_scaffold_s_first_round_is_fedavg_s_and_its_second_is_not(federation: Any) -> None:
    a, b = (untrained(method, federation, **LINEAR, **extra) for method, extra in
            (("scaffold", {}), ("fedavg", {"weights": "uniform"})))  # fmt: skip
    a.step(), b.step()
    assert same(a.method.inspect(a.server, a.clients)[0], b.server)
    a.step(), b.step()
    assert not same(a.method.inspect(a.server, a.clients)[0], b.server, 1e-4)


def test_scaffold_of_identical_clients_under_full_batches_is_fedavg(federation: Any) -> None:
    copies = replace(federation, train=[federation.train[0]] * 5)
    settings = {**LINEAR, "batch_size": FULL_BATCH, "rounds": 4}
    a, b = train("scaffold", copies, **settings), train("fedavg", copies, **settings)
    assert same(a.method.inspect(a.server, a.clients)[0], b.server)


def test_scaffold_s_control_after_one_step_is_the_client_s_gradient_at_the_received_model(
    federation: Any,
) -> None:
    sim = untrained("scaffold", federation, **LINEAR, batch_size=FULL_BATCH, epochs=1, rounds=2)
    for number in (1, 2):  # the second time the step was corrected, which option II takes out again
        with torch.no_grad():
            w = sim.method.inspect(sim.server, sim.clients)[0]
            gradients = [train_gradient(w, work_of(sim, i, number)) for i in range(5)]
        sim.step()
        _, own = controls(sim)
        assert all(same(row(own, i), gradients[i]) for i in range(5))


def test_scaffold_step_by_hand() -> None:
    # c = 1/10 everywhere, c_0 = 3/10, c_1 = 0. Client 0: y = 0 - (-1/2 + 1/10 - 3/10) = 7/10, c_0+ = 3/10 - 1/10 - 7/10 = -1/2.
    # Client 1: W_a: y = -(1/2 + 1/10) = -6/10, c_1+ = 0 - 1/10 + 6/10 = 1/2. Both are the gradients at 0.
    # w moves by eta_g times the mean change (1/2)(7/10 - 6/10); c by the mean of (-1/2 - 3/10) and (1/2 - 0).
    sim = zero_start("scaffold", server_lr=0.6)
    sim.server = sim.server | pack("control", {k: torch.full_like(t, 0.1) for k, t in model(0).items()})
    own = {k: torch.stack([torch.full_like(t, 0.3), torch.zeros_like(t)]) for k, t in model(0).items()}
    sim.clients = pack("control", own)
    uploads, states = worked(sim)
    assert of_class_a(uploads)[0] == pytest.approx([0.7, -0.6])
    assert of_class_a(unpack("control", states))[0] == pytest.approx([-0.5, 0.5])
    sim.step()
    assert of_class_a(sim.method.inspect(sim.server, sim.clients)[0])[0] == pytest.approx(0.6 * 0.05)
    assert of_class_a(unpack("control", sim.server))[0] == pytest.approx(0.1 + (-0.8 + 0.5) / 2)


def test_scaffold_divides_by_the_number_of_its_own_steps_and_the_rate() -> None:
    # client 1 has three images in batches of one and two epochs: K = 6
    sim = zero_start("scaffold", batch_size=1, epochs=2, lr=0.25)
    uploads, states = worked(sim)
    expected = [
        -change / (steps * 0.25) for change, steps in zip(of_class_a(uploads)[0], (2, 6), strict=True)
    ]
    assert of_class_a(unpack("control", states))[0] == pytest.approx(expected)


def test_scaffold_sends_twice_the_model_each_way(federation: Any) -> None:
    for control, factor in (("on", 2), ("off", 1)):
        entry = train("scaffold", federation, **LINEAR, rounds=1, epochs=1, control=control).history.rounds[1]
        assert entry["floats_down"] == entry["floats_up"] == factor * 5 * 650


# ---- MOON -----------------------------------------------------------------------------------------------------------


class TwoFeatures(TwoLayers):
    """h has two numbers, so that it has a direction."""

    width = 2


@pytest.fixture
def two_features(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NETWORKS, "two_features", NetworkSpec(TwoFeatures, "for tests"))


@pytest.mark.usefixtures("two_features")
@pytest.mark.parametrize("seen", [True, False])
def test_moon_step_by_hand(seen: bool) -> None:
    # z = (1, 0) x now and for the received model, (0, 1) x for the previous one. The cosine with the received one is at its
    # maximum, and that with the previous one grows along (0, 1), from 0: the term's gradient is s(-1/T)/T along it (x = +1
    # and x = -1 give the same to the weight). The classifier is 0, so that cross-entropy does not move the features.
    mu, temperature = 0.8, 0.5
    sim = zero_start("moon", model="two_features", mu=mu, temperature=temperature, projection=0)
    start = dict(sim.start) | {"fc1.weight": torch.tensor([[1.0], [0.0]], dtype=torch.float64)}
    restart(sim, start)
    previous = start | {"fc1.weight": torch.tensor([[0.0], [1.0]], dtype=torch.float64)}
    sim.clients = pack("previous", {k: torch.stack([t, t]) for k, t in previous.items()}) | {
        "seen": torch.tensor([seen] * 2)
    }
    uploads, states = worked(sim)
    push = mu * s(-1 / temperature) / temperature if seen else 0.0
    assert uploads["fc1.weight"][:, 0, 0].tolist() == pytest.approx([1.0, 1.0])
    assert uploads["fc1.weight"][:, 1, 0].tolist() == pytest.approx([-push, -push])
    assert uploads["fc1.bias"][0].tolist() == pytest.approx([0.0, -push])
    assert uploads["fc2.weight"][0, 0, 0].item() == pytest.approx(0.5)
    assert states["seen"].tolist() == [True, True] and same(unpack("previous", states), uploads, 0)


@pytest.mark.parametrize("projection", [0, 16])
def test_moon_s_first_participation_has_a_term_of_mu_log_2_without_gradient(
    federation: Any, projection: int
) -> None:
    # received and previous models are one, so that whatever mu, a client learns the same ...
    a, b = (train("moon", federation, **LINEAR, mu=mu, projection=projection, rounds=1) for mu in (0.0, 5.0))
    assert same(a.server, b.server)
    # ... and from its second participation on it does not
    if projection:
        a.step(), b.step()
        assert not same(a.server, b.server, 1e-6)


def test_moon_s_contrast_is_log_2_where_both_models_are_one() -> None:
    z = torch.randn(4, 3, dtype=torch.float64)
    near = F.cosine_similarity(z, z)
    assert F.softplus(near - near).tolist() == pytest.approx([math.log(2)] * 4)


def test_moon_without_the_term_is_fedavg_of_the_network_with_its_projection_head(federation: Any) -> None:
    sim = untrained("moon", federation, **LINEAR, mu=0.0, projection=16, epochs=1)
    work = work_of(sim, 1)
    with torch.no_grad():
        plain = work.sgd(lambda w, batch: batch.loss(sim.method.predict(sim.network, w, batch.x)), sim.server)
    uploads, _ = worked(sim)
    assert same(row(uploads, 1), plain, 0)
    share = federation.train_sizes.double() / federation.train_sizes.sum()
    sim.step()
    assert same(sim.server, {k: torch.tensordot(share, rows, dims=1) for k, rows in uploads.items()})


def test_moon_s_projection_head_stands_between_features_and_classifier(federation: Any) -> None:
    sim = untrained("moon", federation, projection=16)
    shapes = {
        name: tuple(tensor.shape) for name, tensor in sim.start.items() if name[:3] not in ("con", "fc1")
    }
    assert shapes == {
        "fc2.weight": (10, 16), "fc2.bias": (10,), "projection1.weight": (16, 32), "projection1.bias": (16,),
        "projection2.weight": (16, 16), "projection2.bias": (16,),
    }  # fmt: skip
    x, w = federation.images[:7], sim.start
    h = sim.network.features(w, x)
    z = F.linear(
        F.relu(F.linear(h, w["projection1.weight"], w["projection1.bias"])),
        w["projection2.weight"],
        w["projection2.bias"],
    )
    logits = F.linear(z, w["fc2.weight"], w["fc2.bias"])
    assert torch.equal(sim.method.predict(sim.network, w, x), logits)
    assert torch.equal(sim.method.to_module(sim.network, w)(x), logits)


def test_moon_remembers_the_client_s_own_last_model_and_not_the_mean(federation: Any) -> None:
    sim = untrained("moon", federation, **LINEAR, projection=8, participation=0.6, epochs=1, rounds=3)
    last = {}
    for number in (1, 2):
        uploads, _ = worked(sim, number)
        ids = sim.step()["clients"]
        last |= {i: row(uploads, i) for i in ids}
    assert sim.clients["seen"].tolist() == [i in last for i in range(5)] and len(last) >= 3
    previous = unpack("previous", sim.clients)
    for i, uploaded in last.items():
        assert same(row(previous, i), uploaded, 0) and not same(uploaded, sim.server, 1e-6)
