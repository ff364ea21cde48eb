"""PFL-FT, PFL-FB, FedPer, FedRep, LG-FedAvg: what is shared, what is frozen, what stays at home."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from toy import TwoLayers, by_hand, of_class_a, restart, row, s, same, train, work_of, worked, zero_start

from pfl_lite.errors import InputError
from pfl_lite.methods.split import layers_from
from pfl_lite.models import NETWORKS, NetworkSpec, make_network, register

# ---- PFL-FT and PFL-FB: one model, tuned ----------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["pfl_ft", "pfl_fb"])
def test_tuning_is_one_epoch_unless_the_run_says_otherwise(federation: Any, method: str) -> None:
    usual = train(method, federation, rounds=1, epochs=3)
    assert usual.config.ft_epochs == 1
    assert same(
        usual.scored_models(), train(method, federation, rounds=1, epochs=3, ft_epochs=1).scored_models(), 0
    )
    assert not same(usual.scored_models(), usual.personal_models(), 1e-3)


def test_training_of_pfl_ft_and_pfl_fb_is_fedavg_s(federation: Any) -> None:
    fedavg = train("fedavg", federation, model="linear")
    for method in ("pfl_ft", "pfl_fb"):
        sim = train(method, federation, model="linear", ft_epochs=3)
        assert same(sim.server, fedavg.server, 0)
        floats = [(e["floats_down"], e["floats_up"]) for e in sim.history.rounds]
        assert floats == [(e["floats_down"], e["floats_up"]) for e in fedavg.history.rounds]


def test_tuning_at_a_rate_of_nothing_is_fedavg(federation: Any) -> None:
    sim = train("pfl_ft", federation, model="linear")
    sim.settings = replace(sim.settings, lr=1e-300)
    assert all(same(row(sim.tuned_models(), i), sim.server, 1e-15) for i in range(5))


def test_a_tuned_model_depends_on_the_others_through_the_global_one_only(federation: Any) -> None:
    sim = train("pfl_ft", federation, model="linear")
    others = [federation.train[0], *(rows[:5] for rows in federation.train[1:])]
    elsewhere = zero = train("pfl_ft", replace(federation, train=others), model="linear")
    zero.server = sim.server
    a, b = sim.tuned_models(), elsewhere.tuned_models()
    assert same(row(a, 0), row(b, 0), 0) and not same(row(a, 1), row(b, 1), 1e-3)


def test_pfl_ft_step_by_hand() -> None:
    # After FedAvg's step W_a = -1/4, b_a = 1/4. Client 0 (+1, a): z = 0, so W_a and b_a gain 1/2. Client 1: z = 0 for (+1, b),
    # z_a - z_b = 1 for (-1, a), whose gradients by the logit of a are 1/2 and -s(-1).
    sim = zero_start("pfl_ft")
    sim.step()
    weight, bias = of_class_a(sim.scored_models())
    assert weight == pytest.approx([0.25, -0.25 - (0.5 + 2 * s(-1)) / 3])
    assert bias == pytest.approx([0.75, 0.25 - (0.5 - 2 * s(-1)) / 3])


@pytest.mark.parametrize(
    ("head", "frozen"),
    [("last", ("conv1", "conv2", "fc1")), ("dense", ("conv1", "conv2")), ("fc1", ("conv1", "conv2"))],
)
def test_pfl_fb_tunes_the_head_and_leaves_the_base_to_the_last_bit(
    federation: Any, head: str, frozen: tuple[str, ...]
) -> None:
    sim = train("pfl_fb", federation, head=head, rounds=1, epochs=1, momentum=0.9, weight_decay=0.1)
    for name, rows in sim.scored_models().items():
        unchanged = [torch.equal(one, sim.server[name]) for one in rows]
        assert all(unchanged) if name.startswith(frozen) else not any(unchanged)


def test_pfl_fb_learns_the_head_that_training_on_stored_features_gives(federation: Any) -> None:
    sim = train("pfl_fb", federation, head="last", rounds=1, epochs=1, ft_epochs=2, momentum=0.5)
    sim.settings = replace(sim.settings, epochs=2)
    scored, rows = sim.scored_models(), federation.train[2]
    work = work_of(sim, 2, number=2)  # tuning after round 1 visits the mini-batches of round 2
    with torch.no_grad():
        features = sim.network.features(sim.server, federation.images[rows])

        def loss(head: dict[str, torch.Tensor], batch: Any) -> torch.Tensor:
            logits = torch.nn.functional.linear(features[batch.place], head["fc2.weight"], head["fc2.bias"])
            return batch.loss(logits)

        head = work.sgd(loss, {name: sim.server[name] for name in ("fc2.weight", "fc2.bias")})
    assert same(head, {name: scored[name][2] for name in head})


def test_pfl_fb_leaves_a_fixed_quarter_of_the_images_out_when_asked(federation: Any) -> None:
    sim = train("pfl_fb", federation, model="linear", part="per", rounds=1)
    visited = {}
    for number in (1, 2):
        work = work_of(sim, 0, number)
        (order,) = work.orders("weights", 1, "per")
        visited[number] = sorted(order[0])
    assert visited[1] == visited[2] and len(visited[1]) == 220 - 220 // 4
    assert not same(
        sim.scored_models(), train("pfl_fb", federation, model="linear", rounds=1).scored_models(), 1e-6
    )


def test_pfl_fb_uses_every_image_of_a_client_with_fewer_than_four() -> None:
    three_and_eight = by_hand(
        [255, 0, 90] + 8 * [30], [0, 1, 1] + [0, 1] * 4, [[0, 1, 2], list(range(3, 11))]
    )
    a, b = (zero_start("pfl_fb", three_and_eight, part=part) for part in ("all", "per"))
    for sim in (a, b):
        sim.step()
    assert same(row(a.scored_models(), 0), row(b.scored_models(), 0), 0)
    assert work_of(b, 1).orders("weights", 1, "per")[0].shape == (1, 6)


# ---- FedPer, FedRep, LG-FedAvg: two layers worked out by hand -------------------------------------------------------
# h = u x, logits = V h + c with V_a = 1 and everything else of fc2 0, u = 1, biases 0: client 0 (+1, a) has z_a - z_b = 1, so
# the gradient of z_a is -s(-1); client 1 has (+1, b) with +s(1) and twice (-1, a) with -s(1).
#   V_a: client 0: -s(-1); client 1: [s(1) + 2 s(1)] / 3 = s(1)
#   u (= V_a times the same, V_b being 0): the same two numbers
#   biases: of class a -s(-1) and [s(1) - 2 s(1)] / 3 = -s(1) / 3; of fc1 the same


@pytest.fixture
def two_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NETWORKS, "two_layers", NetworkSpec(TwoLayers, "for tests"))


def from_one(method: str, **settings: Any) -> Any:
    sim = zero_start(method, model="two_layers", **settings)
    start = dict(sim.start)
    start["fc1.weight"] = torch.ones(1, 1, dtype=torch.float64)
    start["fc2.weight"] = torch.tensor([[1.0], [0.0]], dtype=torch.float64)
    restart(sim, start)
    return sim


def numbers(params: dict[str, torch.Tensor], name: str) -> Any:
    """u, V_a, the bias of h or that of class a, of one model or of stacked ones."""
    tensor = params[{"u": "fc1.weight", "V_a": "fc2.weight", "b": "fc1.bias", "c_a": "fc2.bias"}[name]]
    return tensor[..., 0, 0].tolist() if name in ("u", "V_a") else tensor[..., 0].tolist()


@pytest.mark.usefixtures("two_layers")
def test_fedper_step_by_hand() -> None:
    sim = from_one("fedper")
    sim.step()
    assert numbers(sim.server, "u") == pytest.approx(1 + (s(-1) - 3 * s(1)) / 4)
    assert numbers(sim.server, "b") == pytest.approx((s(-1) + 3 * s(1) / 3) / 4)
    assert numbers(sim.clients, "V_a") == pytest.approx([1 + s(-1), 1 - s(1)])
    assert numbers(sim.clients, "c_a") == pytest.approx([s(-1), s(1) / 3])
    scored = sim.personal_models()
    assert numbers(scored, "u") == [numbers(sim.server, "u")] * 2
    assert numbers(scored, "V_a") == numbers(sim.clients, "V_a")


@pytest.mark.usefixtures("two_layers")
def test_lg_fedavg_step_by_hand() -> None:
    sim = from_one("lg_fedavg")
    sim.step()
    assert numbers(sim.server, "V_a") == pytest.approx(1 + (s(-1) - 3 * s(1)) / 4)
    assert numbers(sim.server, "c_a") == pytest.approx((s(-1) + 3 * s(1) / 3) / 4)
    assert numbers(sim.clients, "u") == pytest.approx([1 + s(-1), 1 - s(1)])
    assert sim.server.keys() == {"fc2.weight", "fc2.bias"} and sim.clients.keys() == {
        "fc1.weight",
        "fc1.bias",
    }


@pytest.mark.usefixtures("two_layers")
def test_fedrep_step_by_hand() -> None:
    # head first: client 0's V_a = 1 + s(-1), V_b = -s(-1), c_a = s(-1), c_b = -s(-1), so that z_a - z_b = m = 1 + 4 s(-1);
    # then the base, through the new head: u gains s(-m) (V_a - V_b)
    sim = from_one("fedrep", head_epochs=1)
    uploads, states = worked(sim)
    assert numbers(states, "V_a") == pytest.approx([1 + s(-1), 1 - s(1)])
    m = 1 + 4 * s(-1)
    assert numbers(uploads, "u")[0] == pytest.approx(1 + s(-m) * (1 + 2 * s(-1)))
    assert uploads.keys() == {"fc1.weight", "fc1.bias"}


# ---- what travels and what does not ---------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fedper", "fedrep", "lg_fedavg"])
def test_shared_and_private_layers_make_up_the_network_once(federation: Any, method: str) -> None:
    sim = train(method, federation, rounds=1, epochs=1)
    assert sim.server.keys() & sim.clients.keys() == set()
    assert sim.server.keys() | sim.clients.keys() == sim.start.keys()
    head = {"fc2.weight", "fc2.bias"}
    assert sim.server.keys() == (head if method == "lg_fedavg" else sim.start.keys() - head)


@pytest.mark.parametrize("method", ["fedper", "fedrep", "lg_fedavg"])
def test_only_the_private_part_differs_between_clients(federation: Any, method: str) -> None:
    sim = train(method, federation, rounds=1, epochs=1)
    for name, rows in sim.personal_models().items():
        alike = [torch.equal(one, rows[0]) for one in rows[1:]]
        assert all(alike) if name in sim.server else not any(alike)


def test_a_head_persists_between_participations(federation: Any) -> None:
    sim = train("fedper", federation, rounds=4, epochs=1, participation=0.4)
    seen = [entry["clients"] for entry in sim.history.rounds[1:]]
    client = next(i for i in seen[-1] if any(i in ids for ids in seen[:-1]))
    once = train("fedper", federation, rounds=3, epochs=1, participation=0.4)
    kept = row(once.clients, client)
    assert not same(kept, {name: once.start[name] for name in kept}, 1e-6)
    with torch.no_grad():
        again = once.method.local(once.server, kept, work_of(once, client, 4))[1]
    assert same(again, row(sim.clients, client), 0)


def test_fedrep_s_base_does_not_move_in_the_head_phase(federation: Any) -> None:
    sim = train("fedrep", federation, rounds=1, epochs=1, head_epochs=3)
    with torch.no_grad():
        work, base, head = work_of(sim, 0, 2), sim.server, row(sim.clients, 0)
        fitted = sim.method.fit_head(base, head, work)
        upload, kept = sim.method.local(base, head, work_of(sim, 0, 2))
    assert fitted.keys() == head.keys() and not same(fitted, head, 1e-6)
    assert same(fitted, kept, 0)  # and the head does not move in the base phase
    assert not same(upload, base, 1e-6)


def test_fedrep_without_head_epochs_keeps_the_common_head(federation: Any) -> None:
    sim = train("fedrep", federation, rounds=1, epochs=1, head_epochs=0)
    assert all(torch.equal(one, sim.start[name]) for name, rows in sim.clients.items() for one in rows)
    assert not same(sim.server, {name: sim.start[name] for name in sim.server}, 1e-6)


def test_the_base_is_the_size_weighted_mean(federation: Any) -> None:
    for method in ("fedper", "fedrep", "lg_fedavg"):
        sim = train(method, federation, rounds=1, epochs=1)
        uploads, _ = worked(sim, 2)
        sim.step()
        sizes = federation.train_sizes.double()
        mean = {name: torch.tensordot(sizes / sizes.sum(), rows, dims=1) for name, rows in uploads.items()}
        assert same(sim.server, mean)


def test_a_cut_that_leaves_nothing_to_share_is_told(federation: Any) -> None:
    """FedPer keeps the last layer at home, which of a linear model is all of it."""
    with pytest.warns(UserWarning, match="every layer of linear stays at its client"):
        sim = train("fedper", federation, model="linear")
    assert same(sim.personal_models(), train("local", federation, model="linear").personal_models(), 0)


def test_a_network_may_be_cut_before_a_stage_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Staged(nn.Module):
        def __init__(self, channels: int, size: int, classes: int) -> None:
            super().__init__()
            self.one = nn.Sequential(nn.Linear(channels * size**2, 9), nn.ReLU(), nn.Linear(9, 8))
            self.one_more = nn.Linear(8, classes)

        def forward(self, x: Tensor) -> Tensor:
            return self.one_more(self.one(x.flatten(1)))

    monkeypatch.setattr("pfl_lite.models.registry.NETWORKS", {**NETWORKS})  # it is this test's alone
    register("staged", Staged, "two stages")
    network = make_network("staged", 1, 8, 10)
    assert (
        layers_from(network, "one", "head") == layers_from(network, "one.0", "head") == set(network.init(0))
    )
    assert layers_from(network, "one_more", "head") == layers_from(network, "last", "head")
    with pytest.raises(InputError, match=r"head must be one of .*, not 'on'"):
        layers_from(network, "on", "head")
