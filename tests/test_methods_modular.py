"""FedMN: blocks, links and activity; the router and its gradient; what is averaged, sent, counted and scored."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from toy import FULL_BATCH, by_hand, five_clients, restart, row, same, train, untrained, work_of, worked

from pfl_lite.config import make_config, with_defaults
from pfl_lite.engine.report import load_model
from pfl_lite.engine.simulation import Simulation, run
from pfl_lite.errors import InputError
from pfl_lite.methods import FedAvg, FedMN
from pfl_lite.methods.base import Round, unpack
from pfl_lite.methods.fedmn import PROGRAM
from pfl_lite.models import NETWORKS, NetworkSpec
from pfl_lite.models.modular import (
    activity,
    decisions,
    held,
    in_use,
    on_path,
    routing_report,
    safety_path,
    split_decisions,
    through_blocks,
)
from pfl_lite.models.router import concrete
from pfl_lite.seeds import generator

SMALL: dict[str, Any] = {
    "model": "linear", "encoder_width": 6, "width": 5, "router_width": 4, "label_width": 3, "epochs": 1,
}  # fmt: skip
WIDE: dict[str, Any] = {"model": "small_cnn", "encoder_width": 36, "width": 34}  # it hands on 32 numbers
WIDE_RUN: dict[str, Any] = {"model": "small_cnn", "epochs": 1}
EVERYTHING = {"participation": 0.6, "momentum": 0.5, "weight_decay": 0.01}


def small(federation: Any, **settings: Any) -> Simulation:
    return train("fedmn", federation, **(SMALL | settings))


def start(federation: Any, **settings: Any) -> Simulation:
    return untrained("fedmn", federation, **(SMALL | settings))


def vector(*bits: float) -> Tensor:
    return torch.tensor(bits, dtype=torch.float64)


# ---- decisions, activity, the safety path ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layers", "count"), [((2, 2, 2), 10), ((3, 3, 3), 21), ((1, 4, 3), 19), ((2, 3), 9), ((1, 1, 1, 1), 4)]
)
def test_number_of_decisions(layers: tuple[int, ...], count: int) -> None:
    assert decisions(layers) == count
    links, outputs = split_decisions(torch.arange(count), layers)
    assert [tuple(link.shape) for link in links] == [(m, n) for n, m in pairwise(layers)]
    assert torch.cat([*(link.flatten() for link in links), outputs]).tolist() == list(range(count))


def test_activity_follows_links_from_active_blocks_only() -> None:
    # 2 encoders -> blocks a, b: b has no link; a, b -> blocks c, d: c reads b alone, d reads both
    bits = vector(0, 1, 0, 0, 0, 1, 1, 1, 1, 1)
    assert [a.tolist() for a in activity(bits, (2, 2, 2))] == [[1, 1], [1, 0], [0, 1]]
    assert in_use(bits, (2, 2, 2)).tolist() == [1, 0, 0, 1]
    unread = bits.clone()
    unread[-1] = 0  # d's output is not read: it need not travel; a is active all the same
    assert in_use(unread, (2, 2, 2)).tolist() == [1, 0, 0, 0]


def test_bits_on_no_path_to_the_output_make_no_difference() -> None:
    layers, draw = (2, 3, 2), torch.Generator().manual_seed(0)
    blocks, h = random_blocks(layers, [3, 5, 4])
    fewer = 0
    for _ in range(50):
        drawn = (torch.rand(decisions(layers), generator=draw) < 0.4).double()
        bits, _ = safety_path(drawn, drawn, layers)
        kept = on_path(bits, layers)
        outputs = [through_blocks(blocks, h, b, held(b, layers)) for b in (bits, kept)]
        assert torch.allclose(*outputs, atol=1e-12) and (kept <= bits).all()
        fewer += int(kept.sum() < bits.sum())
        for place in kept.nonzero():  # each of the others is needed
            less = kept.clone()
            less[place] = 0
            assert not torch.equal(on_path(less, layers), kept)
    assert fewer > 10


def test_routing_report_by_hand() -> None:
    logits = vector(2, 2, -2, -2).repeat(4, 1)  # 1x2: links, then output bits
    logits[:2] = vector(2, -2, 2, 2)
    logits[2:] = vector(-2, 2, -2, 2)
    found = routing_report(logits, (1, 2), [0, 0, 1, 1])
    assert found == {"spread": pytest.approx(1.5), "routes": 2.0, "active": 0.5, "ari": 1.0}
    logits[3] = vector(2, -2, 2, -2)  # the route of the first group, by other bits
    assert routing_report(logits, (1, 2))["routes"] == 2.0
    assert routing_report(logits, (1, 2), [0, 0, 1, 1])["ari"] < 0.5


def test_the_safety_path_switches_on_the_likeliest_link_from_an_active_block() -> None:
    scores = vector(0.1, 0.9, 0.3, 0.2, 0.5, 7.0, 0.6, 9.0, 2.0, 1.0)
    safe, switches = safety_path(torch.zeros(10, dtype=torch.float64), scores, (2, 2, 2))
    # layer 2: link 0 <- 1 (0.9); layer 3: only block 0 is active, so 1 <- 0 (0.6); then its own output bit
    assert safe.tolist() == [0, 1, 0, 0, 0, 0, 1, 0, 0, 1] and switches == 3
    again, none = safety_path(safe, scores, (2, 2, 2))
    assert torch.equal(again, safe) and none == 0


def test_the_safety_path_takes_the_first_of_equals_and_only_what_is_missing() -> None:
    scores, layers = torch.zeros(10, dtype=torch.float64), (2, 2, 2)
    safe, switches = safety_path(vector(0, 0, 0, 0, 1, 1, 1, 1, 0, 1), scores, layers)
    assert safe.tolist() == [1, 0, 0, 0, 1, 1, 1, 1, 0, 1] and switches == 1
    # block d alone is active in the last layer, but only c's output bit is 1
    safe, switches = safety_path(vector(1, 1, 1, 1, 0, 0, 1, 0, 1, 0), scores, layers)
    assert safe.tolist() == [1, 1, 1, 1, 0, 0, 1, 0, 1, 1] and switches == 1


def test_every_routing_reaches_the_output_after_the_safety_path() -> None:
    layers, draw = (2, 3, 2), torch.Generator().manual_seed(0)
    for _ in range(200):
        bits = (torch.rand(decisions(layers), generator=draw) < 0.15).double()
        safe, switches = safety_path(bits, torch.rand(len(bits), generator=draw).double(), layers)
        active = activity(safe, layers)
        assert all(a.sum() > 0 for a in active) and (active[-1] * safe[-2:]).sum() > 0
        assert (safe - bits).sum() == switches and (safe >= bits).all()


# ---- eq. 11 ---------------------------------------------------------------------------------------------------------


def random_blocks(layers: tuple[int, ...], widths: list[int]) -> tuple[dict[str, Tensor], Tensor]:
    """Blocks of layers 2 to L and encodings [n_1, 4, widths[0]]."""
    draw = torch.Generator().manual_seed(1)
    blocks = {}
    for number, (n, inputs, outputs) in enumerate(zip(layers[1:], widths, widths[1:], strict=False), 2):
        blocks[f"block{number}/weight"] = torch.randn(n, outputs, inputs, generator=draw, dtype=torch.float64)
        blocks[f"block{number}/bias"] = torch.randn(n, outputs, generator=draw, dtype=torch.float64)
    return blocks, torch.randn(layers[0], 4, widths[0], generator=draw, dtype=torch.float64).relu()


def test_equation_11_by_hand() -> None:
    blocks, h = random_blocks((2, 2, 2), [3, 5, 4])
    w2, b2, w3, b3 = blocks.values()
    bits = vector(1, 1, 0, 1, 1, 0, 1, 1, 1, 1)
    a = F.relu((h[0] + h[1]) / 2 @ w2[0].T + b2[0])
    b = F.relu(h[1] @ w2[1].T + b2[1])
    c, d = a @ w3[0].T + b3[0], (a + b) / 2 @ w3[1].T + b3[1]
    active = activity(bits, (2, 2, 2))
    assert torch.allclose(through_blocks(blocks, h, bits, active), (c + d) / 2, atol=1e-12)
    soft = vector(0.5, 0.25, 0.1, 0.9, 0.3, 0.6, 0.7, 0.2, 0.8, 0.4)
    a = F.relu((0.5 * h[0] + 0.25 * h[1]) / 0.75 @ w2[0].T + b2[0])
    b = F.relu((0.1 * h[0] + 0.9 * h[1]) / 1.0 @ w2[1].T + b2[1])
    c, d = (0.3 * a + 0.6 * b) / 0.9 @ w3[0].T + b3[0], (0.7 * a + 0.2 * b) / 0.9 @ w3[1].T + b3[1]
    ones = activity(torch.ones(10, dtype=torch.float64), (2, 2, 2))
    assert torch.allclose(through_blocks(blocks, h, soft, ones), (0.8 * c + 0.4 * d) / 1.2, atol=1e-12)


def test_inactive_blocks_have_no_say_and_no_gradient() -> None:
    layers = (2, 2, 2)
    blocks, h = random_blocks(layers, [3, 5, 4])
    bits = vector(
        1, 1, 0, 0, 1, 1, 0, 1, 1, 1
    )  # block 1 of layer 2 has no link, so that block 1 of layer 3 has none
    active = activity(bits, layers)
    assert in_use(bits, layers).tolist() == [1, 0, 1, 0]
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in blocks.items()}
    out = through_blocks(leaves, h, bits, active)
    (out**2).sum().backward()
    for name, leaf in leaves.items():
        assert (leaf.grad[1] == 0).all() and (leaf.grad[0] != 0).any()
        other = blocks | {name: blocks[name].clone()}
        other[name][1] += 100
        assert torch.equal(through_blocks(other, h, bits, active), out)


def test_a_block_that_is_reached_but_not_read_has_no_part_in_any_slope() -> None:
    """Straight-through gradients: the client has not got that block, so that its content cannot tell a bit anything."""
    layers = (2, 2, 2)
    blocks, h = random_blocks(layers, [3, 5, 4])
    bits = vector(1, 1, 1, 1, 1, 1, 1, 1, 1, 0)
    assert [a.tolist() for a in held(bits, layers)] == [[1, 1], [1, 1], [1, 0]]
    other = blocks | {name: blocks[name] + torch.tensor([0.0, 9.0]).reshape(-1, *[1] * (blocks[name].dim() - 1))
                      for name in ("block3/weight", "block3/bias")}  # fmt: skip
    slopes = []
    for version in (blocks, other):
        gates = bits.clone().requires_grad_()
        (through_blocks(version, h, gates, held(bits, layers)) ** 2).sum().backward()
        slopes.append(gates.grad)
    assert torch.equal(*slopes) and (slopes[0][:4] != 0).any()


def test_identical_blocks_make_predictions_independent_of_the_routing() -> None:
    layers = (2, 3, 2)
    blocks, h = random_blocks(layers, [3, 5, 4])
    blocks = {name: rows[:1].expand_as(rows) for name, rows in blocks.items()}
    h, draw = h[:1].expand_as(h), torch.Generator().manual_seed(0)
    scores = torch.zeros(decisions(layers), dtype=torch.float64)
    outputs = []
    for _ in range(50):
        bits, _ = safety_path((torch.rand(len(scores), generator=draw) < 0.4).double(), scores, layers)
        outputs.append(through_blocks(blocks, h, bits, activity(bits, layers)))
    assert all(torch.allclose(out, outputs[0], atol=1e-12) for out in outputs)


def test_dropout_is_in_hidden_blocks_and_the_same_beside_padding() -> None:
    layers = (2, 2, 2)
    blocks, h = random_blocks(layers, [3, 5, 4])
    gates, key = torch.ones(10, dtype=torch.float64), torch.tensor(5)
    active = activity(gates, layers)
    plain = through_blocks(blocks, h, gates, active, rate=0.5)
    dropped = through_blocks(blocks, h, gates, active, rate=0.5, key=key)
    assert not torch.allclose(plain, dropped)
    padded = torch.cat([h, torch.ones(2, 3, 3, dtype=torch.float64)], 1)
    assert torch.allclose(through_blocks(blocks, padded, gates, active, rate=0.5, key=key)[:4], dropped)
    two = {name.replace("3", "2"): t for name, t in blocks.items() if name.startswith("block3")}
    h2, gates2 = torch.ones(2, 4, 5, dtype=torch.float64), torch.ones(6, dtype=torch.float64)
    only = [through_blocks(two, h2, gates2, activity(gates2, (2, 2)), rate=r, key=key) for r in (0.0, 0.5)]
    assert torch.equal(*only)  # encoders and output blocks have none


# ---- one block a layer is FedAvg ------------------------------------------------------------------------------------


class Chain(nn.Module):
    """The network that FedMN is with one block a layer."""

    def __init__(self, channels: int, size: int, classes: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(channels * size * size, 6)
        self.fc2 = nn.Linear(6, 5)
        self.fc3 = nn.Linear(5, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x.flatten(1))))))


AS_CHAIN = {"encoder/fc": "fc1", "block2/": "fc2.", "block3/": "fc3."}


def as_chain(params: dict[str, Tensor]) -> dict[str, Tensor]:
    """The modules' parameters [..., 1, ...] under the chain's names."""
    renamed = {}
    for name, tensor in params.items():
        for old, new in AS_CHAIN.items():
            if name.startswith(old):
                renamed[name.replace(old, new)] = tensor[0]
    return renamed


@dataclass(frozen=True)
class FedAvgOnChain(FedAvg):
    """FedAvg from the parameters that FedMN starts from."""

    def initial(self, network: Any, clients: int, seed: int) -> dict[str, Tensor]:
        return as_chain(untrained("fedmn", five_clients(), **SMALL, blocks="1x1x1", seed=seed).start)


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize("aggregation", ["normalized", "literal", "delta"])
def test_fedmn_of_one_block_a_layer_without_a_router_is_fedavg_on_the_chain(
    federation: Any, monkeypatch: pytest.MonkeyPatch, engine: str, aggregation: str
) -> None:
    monkeypatch.setitem(NETWORKS, "chain", NetworkSpec(Chain, ""))
    common = {**EVERYTHING, "rounds": 3, "engine": engine, "seed": 3, "dtype": "float64", "batch_size": 32}
    common |= {"data": "digits", "partition": "dirichlet:0.4", "clients": 5}
    alone = {"blocks": "1x1x1", "routing": "all", "dropout": 0.0, "aggregation": aggregation}
    a = run("fedmn", federation=federation, **common, **SMALL, **alone)
    b = run(FedAvgOnChain(), federation=federation, **common, model="chain", epochs=1)
    assert same(as_chain(a.server), b.server)
    for name in ("test_loss", "test_accuracy", "val_accuracy"):
        assert a.report()["final"][name] == pytest.approx(b.report()["final"][name], abs=1e-9)
    floats = [[(e["floats_down"], e["floats_up"]) for e in sim.history.rounds] for sim in (a, b)]
    assert floats[0] == floats[1]


# ---- the binary concrete distribution -------------------------------------------------------------------------------


@pytest.mark.parametrize("tau", [1.0, 0.5, 0.1])
def test_fedmn_bit_is_1_with_probability_pi_at_every_temperature(tau: float) -> None:
    pi = vector(0.05, 0.3, 0.5, 0.8)
    eps = torch.from_numpy(np.random.default_rng(0).random((200_000, 4)))
    share = (concrete(eps, pi.logit(), tau) > 0.5).double().mean(0)
    assert share.tolist() == pytest.approx(pi.tolist(), abs=0.005)


def test_fedmn_s_temperature_falls_exponentially_and_makes_gates_harder(federation: Any) -> None:
    sim = start(federation, rounds=5, tau_start=2.0, tau_end=0.125)
    taus = [sim.method.temperature(work_of(sim, 0, number=t)) for t in range(1, 7)]
    assert taus == pytest.approx([2, 1, 0.5, 0.25, 0.125, 0.125])  # fine-tuning after round 5 has the last
    one = start(federation, rounds=1)
    assert one.method.temperature(work_of(one, 0)) == 1.0
    after = start(federation, rounds=5, pretrain=2, model="small_cnn", plant="body")
    assert after.method.temperature(work_of(after, 0, number=3)) == 1.0
    assert after.method.temperature(work_of(after, 0, number=5)) == pytest.approx(0.1)
    eps = torch.from_numpy(np.random.default_rng(0).random(20_000))
    soft = []
    for tau in taus[:5]:
        v = concrete(eps, torch.zeros_like(eps), tau)
        soft.append(((v > 0.1) & (v < 0.9)).double().mean().item())
    assert all(a > b + 0.05 for a, b in pairwise(soft))


# ---- the router -----------------------------------------------------------------------------------------------------


def router_s_mean(sim: Simulation, model: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
    """logit Pi [E] of some images and labels, written with torch's layers."""
    router = unpack("router", model)
    h_x = sim.network.resized(sim.method.router_width)(unpack("x", router), x)
    h_y = F.one_hot(y, 10).double() @ router["y/weight"].T + router["y/bias"]
    h = torch.cat([h_x, h_y], 1)
    z = (h / h.norm(dim=1, keepdim=True).clamp_min(1e-12)).relu()
    return (z @ router["out/weight"].T + router["out/bias"]).mean(0)


def test_fedmn_decisions_come_from_all_training_images_whatever_their_order_or_number(
    federation: Any,
) -> None:
    rows = federation.train[0]
    shuffled, doubled = rows.flip(0), torch.cat([rows, rows])
    variants = replace(federation, train=[rows, shuffled, doubled, rows, federation.train[4]])
    sim = start(variants)
    pi = [sim.method.decide(sim.server, work_of(sim, i))[0] for i in range(5)]
    assert all(torch.allclose(pi[0], pi[i], atol=1e-12, rtol=0) for i in (1, 2, 3))
    assert not torch.allclose(pi[0], pi[4], atol=1e-6)
    wanted = router_s_mean(sim, sim.server, federation.images[rows], federation.labels[rows])
    assert torch.allclose(pi[0], wanted, atol=1e-12)


def test_fedmn_s_router_sees_images_and_labels_but_not_which_belong_together(federation: Any) -> None:
    """Its last layer is linear and its inputs are set side by side, so that a mean over images parts them: a client whose labels
    are exchanged among its images, a concept shift, gets the same Pi."""
    rows = federation.train[0]
    labels = federation.labels.clone()
    labels[rows] = labels[rows].flip(0)
    assert (labels[rows] != federation.labels[rows]).double().mean() > 0.5
    split = {"normalize": "each"}
    sims = start(federation, **split), start(replace(federation, labels=labels), **split)
    pi = [sim.method.decide(sim.server, work_of(sim, 0))[0] for sim in sims]
    assert torch.allclose(*pi, rtol=0, atol=1e-12)


def test_fedmn_labels_matter_to_the_router_and_test_labels_do_not(federation: Any) -> None:
    sim = start(federation)
    other = start(replace(federation, labels=(federation.labels + 1) % 10))
    a, b = (s.method.decide(s.server, work_of(s, 0))[0] for s in (sim, other))
    assert not torch.allclose(a, b, atol=1e-6)
    blind = start(replace(federation, test_labels=torch.zeros_like(federation.test_labels)))
    assert same(blind.personal_models(), sim.personal_models(), 0)


@pytest.mark.parametrize("gate", ["st", "soft", "sample"])
def test_fedmn_gradient_reaches_every_tensor_of_the_router(federation: Any, gate: str) -> None:
    sim = start(federation, gate=gate, model="small_cnn")
    uploads, _ = worked(sim)
    for name, tensor in sim.server.items():
        if name.startswith("router/"):
            assert any((uploads[name][i] != tensor).any() for i in range(5)), name


def test_fedmn_routing_all_and_random_have_no_router(federation: Any) -> None:
    for routing in ("all", "random"):
        sim = start(federation, routing=routing)
        assert not any(name.startswith("router") for name in sim.start)
        bits = sim.personal_models()["bits"]
        assert bits.shape == (5, 10)
        if routing == "all":
            assert (bits == 1).all()
            continue
        fair = [(generator(3, "fixed routes", i).random(10) > 0.5) * 1.0 for i in range(5)]
        scores = torch.zeros(10, dtype=torch.float64)
        for i, drawn in enumerate(fair):
            assert torch.equal(bits[i], safety_path(torch.from_numpy(drawn), scores, (2, 2, 2))[0])
        assert torch.equal(small(federation, routing="random").clients["bits"], bits)


# ---- a step worked out by hand --------------------------------------------------------------------------------------
# One client, one image x = +1 of class a; 1 encoder of width 1, two output blocks; E = 4: two links, two output bits.
# Encoder: w = 2, bias 0, so e = 2. Output block 1: W = (0.5, -0.5), block 2: W = (-0.25, 0.25), no biases: outputs (1, -1) and
# (-0.5, 0.5). The router's last layer has weight 0 and bias beta, so that logit pi = beta for any image.


def hand(beta: list[float], **settings: Any) -> Simulation:
    data = by_hand([255], [0], [[0]])
    sim = Simulation(
        make_config(
            "fedmn", data="digits", model="linear", clients=1, rounds=1, lr=1.0, dtype="float64", blocks="1x2",
            encoder_width=1, router_width=1, label_width=1, batch_size=8, **settings,
        ),
        data,
    )  # fmt: skip
    begin = {name: torch.zeros_like(tensor) for name, tensor in sim.start.items()}
    begin["encoder/fc.weight"] += 2
    begin["block2/weight"] = torch.tensor([[[0.5], [-0.5]], [[-0.25], [0.25]]], dtype=torch.float64)
    if "router/out/bias" in begin:
        begin["router/out/bias"] = vector(*beta)
    restart(sim, begin)
    return sim


def test_fedmn_step_of_encoder_blocks_and_router_by_hand() -> None:
    sim = hand([50.0, 50.0, 1.3, 3.0])
    eps = generator(0, "gates", 1, 0).random(4)
    logit = np.log(eps) - np.log(1 - eps) + np.array([50, 50, 1.3, 3])
    assert (logit > 0).all()  # all bits are 1
    sim.step()
    y = (0.25, -0.25)  # the mean of the two blocks' outputs
    p = 1 / (1 + math.exp(y[1] - y[0]))
    g = p - 1  # gradient of the logit of class a; that of b is -g
    w = sim.server["block2/weight"][:, :, 0]
    # each block has half of the output: its weights move by lr * g / 2 * e
    assert w.flatten().tolist() == pytest.approx([0.5 - g, -0.5 + g, -0.25 - g, 0.25 + g], abs=1e-12)
    # e's gradient: the blocks' mean weight (0.125, -0.125) times (g, -g); x = 1
    assert sim.server["encoder/fc.weight"].item() == pytest.approx(2 - 0.25 * g, abs=1e-12)
    # output gate j: (out_j - y) / sum v = (+-0.75, -+0.75) / 2, so (g * 0.75 - g * -0.75) / 2 = +-0.75 g; v' = v (1 - v) / tau
    v = 1 / (1 + np.exp(-logit))
    slope = np.array([0, 0, 0.75 * g, -0.75 * g]) * v * (1 - v)
    wanted = np.array([50, 50, 1.3, 3]) - slope  # one link a block: its gate cancels
    assert sim.server["router/out/bias"].tolist() == pytest.approx(wanted.tolist(), abs=1e-12)
    assert sim.clients["bits"].tolist() == [[1, 1, 1, 1]] and sim.clients["active"].tolist() == [[1, 1]]


def test_fedmn_block_that_is_not_chosen_stays_by_hand() -> None:
    sim = hand([50.0, 50.0, 50.0, -50.0], weight_decay=0.1)
    before = sim.server["block2/weight"][1].clone()
    entry = sim.step()
    assert torch.equal(sim.server["block2/weight"][1], before)  # no decay either
    assert sim.clients["active"].tolist() == [[1, 0]] and sim.clients["safety"].tolist() == [0]
    router = (1 + 1) + (2 + 1) + (4 * 2 + 4)  # x, y and out
    assert entry["floats_down"] == entry["floats_up"] == (1 + 1) + router + (2 * 1 + 2)


def test_fedmn_soft_gates_use_every_block_by_hand() -> None:
    sim = hand([50.0, -2.0, 50.0, 50.0], gate="soft")
    sim.step()
    assert sim.clients["bits"].tolist() == [
        [1, 0, 1, 1]
    ]  # hard bits would leave block 2 without its only link
    g = (
        1 / (1 + math.exp(-0.5)) - 1
    )  # but a block's single link cancels in eq. 11, so that both are heard as above
    w = sim.server["block2/weight"][:, :, 0]
    assert w.flatten().tolist() == pytest.approx([0.5 - g, -0.5 + g, -0.25 - g, 0.25 + g], abs=1e-12)


def test_fedmn_safety_path_acts_in_rounds_and_is_counted_by_hand() -> None:
    sim = hand([-50.0, -40.0, -30.0, -20.0])
    sim.step()
    # no link: that of the largest pi, into block 2; no output: block 2's, the only active one
    assert sim.clients["bits"].tolist() == [[0, 1, 0, 1]] and sim.clients["safety"].tolist() == [2]
    assert sim.personal_models()["bits"].tolist() == [[0, 1, 0, 1]]
    assert torch.isfinite(sim.server["block2/weight"]).all()


# ---- aggregation ----------------------------------------------------------------------------------------------------


def average(sim: Simulation, uploads: dict[str, Tensor], used: Tensor) -> dict[str, Tensor]:
    n = sim.federation.train_sizes
    return sim.method.aggregate(sim.server, uploads | {"active": used}, Round(1, torch.arange(5), n, 5))


def noisy_uploads(sim: Simulation) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(0)
    return {k: torch.randn(5, *w.shape, generator=draw, dtype=w.dtype) for k, w in sim.server.items()}


USED = torch.tensor(
    [[1, 0, 1, 0], [1, 0, 0, 0], [1, 0, 1, 0], [1, 1, 1, 0], [1, 1, 1, 0]], dtype=torch.float64
)


@pytest.mark.parametrize("aggregation", ["normalized", "literal", "delta", "code"])
def test_fedmn_every_rule_of_aggregation_by_its_formula(federation: Any, aggregation: str) -> None:
    sim = start(federation, aggregation=aggregation)
    uploads, n = noisy_uploads(sim), federation.train_sizes.double()
    after = average(sim, uploads, USED)
    for name, old in sim.server.items():
        if not name.startswith("block"):
            n_m = torch.ones(5, dtype=torch.float64) if aggregation == "code" else n
            wanted = torch.einsum("s,s...->...", n_m / n_m.sum(), uploads[name])
            assert torch.allclose(after[name], wanted, atol=1e-12)
            continue
        for i in range(2):
            a = USED[:, i + (2 if name.startswith("block3") else 0)]
            theta, before = uploads[name][:, i], old[i]
            total = lambda weights, theta=theta: torch.einsum("s,s...->...", weights, theta)  # noqa: E731
            wanted = {
                "normalized": total(n * a / (n * a).sum()) if a.any() else before,
                "literal": total(n / n.sum() * a),
                "delta": before + total(n / n.sum() * a) - (n * a).sum() / n.sum() * before,
                "code": total(a / a.sum()) if a.any() else torch.zeros_like(before),
            }[aggregation]
            assert torch.allclose(after[name][i], wanted, atol=1e-12), (name, i)


def test_fedmn_printed_rule_shrinks_blocks_and_the_others_leave_unused_ones(federation: Any) -> None:
    for aggregation in ("normalized", "literal", "delta"):
        sim = start(federation, aggregation=aggregation)
        constant = {k: w.expand(5, *w.shape) for k, w in sim.server.items()}
        after, n = average(sim, constant, USED), federation.train_sizes.double()
        rho = (n / n.sum()) @ USED if aggregation == "literal" else torch.ones(4, dtype=torch.float64)
        for layer, part in (("block2", rho[:2]), ("block3", rho[2:])):
            shrunk = part[:, None, None] * sim.server[f"{layer}/weight"]
            assert torch.allclose(after[f"{layer}/weight"], shrunk, atol=1e-12)


def test_fedmn_with_every_block_in_use_the_mean_is_fedavg_s(federation: Any) -> None:
    everything = torch.ones(5, 4, dtype=torch.float64)
    for aggregation in ("normalized", "literal", "delta"):
        sim = start(federation, aggregation=aggregation)
        uploads, n = noisy_uploads(sim), federation.train_sizes.double()
        wanted = {k: torch.einsum("s,s...->...", n / n.sum(), rows) for k, rows in uploads.items()}
        assert same(average(sim, uploads, everything), wanted)


# ---- what travels ---------------------------------------------------------------------------------------------------


def test_fedmn_counted_floats_are_encoders_router_and_active_blocks(federation: Any) -> None:
    sim = small(federation, participation=0.6, rounds=3)
    encoders, router = 2 * (64 * 6 + 6), (64 * 4 + 4) + (10 * 3 + 3) + (7 * 10 + 10)
    sizes = vector(6 * 5 + 5, 6 * 5 + 5, 5 * 10 + 10, 5 * 10 + 10)
    again = start(federation, participation=0.6, rounds=3)
    seen = set()
    for entry in sim.history.rounds[1:]:
        again.step()
        blocks = (again.clients["active"][entry["clients"]] @ sizes).sum().item()
        wanted = 3 * (encoders + router) + blocks
        assert entry["floats_down"] == entry["floats_up"] == wanted
        seen.add(blocks)
    assert min(seen) < 3 * sizes.sum()


@pytest.mark.parametrize(
    ("settings", "saves"), [({}, True), ({"gate": "soft"}, False), ({"gate": "sample"}, False)]
)
def test_fedmn_only_hard_gates_fixed_for_a_round_save_floats(
    federation: Any, settings: dict[str, Any], saves: bool
) -> None:
    sim = small(federation, rounds=1, **settings)
    everything = 5 * sum(tensor.numel() for tensor in sim.start.values())
    assert (sim.history.rounds[1]["floats_up"] < everything) == saves
    assert (sim.clients["active"].min() < 1) == saves


def test_fedmn_inactive_blocks_are_sent_back_untouched(federation: Any) -> None:
    sim = start(federation, momentum=0.9, weight_decay=0.1)
    uploads, states = worked(sim)
    assert (states["active"] == 0).any() and (states["active"] == 1).any()
    for i in range(5):
        for layer, used in (("block2", states["active"][i, :2]), ("block3", states["active"][i, 2:])):
            weight, bias = f"{layer}/weight", f"{layer}/bias"
            moved = (uploads[weight][i] != sim.server[weight]).flatten(1).any(1)
            assert torch.equal(moved, used > 0)  # decay moves weights that are in use but unread
            assert torch.equal(uploads[bias][i][used == 0], sim.server[bias][used == 0])


def test_fedmn_blocks_and_encoders_are_distinct_parameters(federation: Any) -> None:
    begin = start(federation, blocks="2x3x2").start
    for name in ("encoder/fc.weight", "block2/weight", "block3/weight"):
        rows = begin[name]
        assert all(not torch.equal(a, b) for i, a in enumerate(rows) for b in rows[:i])
    assert [len(begin[n]) for n in ("encoder/fc.weight", "block2/weight", "block3/weight")] == [2, 3, 2]
    assert begin["block2/weight"].std().item() == pytest.approx((2 / 6) ** 0.5, rel=0.25)
    assert begin["block3/weight"].std().item() == pytest.approx((2 / 5) ** 0.5, rel=0.25)
    assert (begin["block2/bias"] == 0).all()
    after = small(federation, rounds=1, routing="all").server["block2/weight"]
    assert not torch.equal(after[0], after[1])


# ---- loop and vmap, schedules, pre-training, scoring ----------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"gate": "soft"},
        {"gate": "sample"},
        {"routing": "random", "infer": "last_sample"},
        {"routing": "all"},
        {"infer": "last_sample", "aggregation": "delta", "blocks": "1x3"},
        {"pretrain": 1, "aggregation": "literal", "model": "small_cnn", "plant": "body", "pretrain_lr": 2.0},
        WIDE | {"pretrain": 1, "codes": "product", "centre": True, "router_part": "head", "router_lr": 3.0},
        {"centre": True, "normalize": "each", "router_lr": 0.0, "output_scale": 2.0},
        {"codes": "product", "centre": True, "gate": "sample", "ft_epochs": 1},
        {"model": "small_cnn", "unseen": 1, "blocks": "1x2x3", "aggregation": "code"},
        {"gate": "sample", "ft_epochs": 1, "ft_mode": "plain_sgd", "rounds": 2},
    ],
)
def test_fedmn_vmap_equals_loop(federation: Any, settings: dict[str, Any]) -> None:
    settings = {"rounds": 3, **EVERYTHING, **settings}
    a, b = (small(federation, engine=engine, **settings) for engine in ("loop", "vmap"))
    assert same(a.server, b.server, 1e-10) and same(a.clients, b.clients, 1e-10)
    assert same(a.scored_models(), b.scored_models(), 1e-10)
    floats = [[(e["floats_down"], e["floats_up"]) for e in sim.history.rounds] for sim in (a, b)]
    assert floats[0] == floats[1]


def test_fedmn_sequential_clients_start_from_what_the_one_before_them_sent(federation: Any) -> None:
    sim = start(federation, schedule="sequential", routing="random")
    uploads, states = worked(sim)
    server = sim.server
    for i in range(5):
        upload, _ = no_grad(sim.method.local, server, row(sim.clients, i), work_of(sim, i))
        assert same(upload, row(uploads, i), 0)
        for layer, used in (("block2", states["active"][i, :2]), ("block3", states["active"][i, 2:])):
            for name in (
                f"{layer}/weight",
                f"{layer}/bias",
            ):  # what it did not train is as those before it left it
                assert all(torch.equal(upload[name][j], server[name][j]) for j in range(2) if not used[j])
        server = {name: w for name, w in upload.items() if name != "active"}
    parallel, _ = worked(start(federation, routing="random"))
    assert same(row(parallel, 0), row(uploads, 0), 0) and not same(row(parallel, 1), row(uploads, 1), 1e-9)
    sim.step()
    n = federation.train_sizes.double()
    mean = torch.einsum("s,s...->...", n / n.sum(), uploads["encoder/fc.weight"])
    assert torch.allclose(sim.server["encoder/fc.weight"], mean, atol=1e-12)


def no_grad(function: Any, *args: Any) -> Any:
    with torch.no_grad():
        return function(*args)


def test_fedmn_pretraining_is_fedavg_and_starts_every_encoder(federation: Any) -> None:
    settings = {"model": "small_cnn", "epochs": 1, "rounds": 3, "momentum": 0.5}
    fedavg = untrained("fedavg", federation, **settings)
    sim = start(federation, pretrain=2, plant="body", **settings)
    for _ in range(2):
        entries = [s.step() for s in (sim, fedavg)]
        assert [entries[0][k] for k in ("floats_down", "floats_up")] == [entries[1]["floats_up"]] * 2
        assert entries[0]["clients"] == entries[1]["clients"]
        if sim.round == 1:
            assert same(unpack("plain", sim.server), fedavg.server, 0)
            assert same(row(unpack("plain", sim.personal_models()), 1), fedavg.server, 0)
            losses = [s.history.rounds[-1]["personal_loss"] for s in (sim, fedavg)]
            assert losses[0] == pytest.approx(losses[1], abs=1e-12)
    assert not unpack("plain", sim.server)
    for name, tensor in fedavg.server.items():
        encoders, router = sim.server[f"encoder/{name}"], sim.server[f"router/x/{name}"]
        if name.startswith("fc2"):  # the last layers stay as they were initialised
            assert torch.equal(encoders, sim.start[f"encoder/{name}"])
            assert torch.equal(router, sim.start[f"router/x/{name}"])
        else:
            assert all(torch.equal(encoder, tensor) for encoder in encoders) and torch.equal(router, tensor)
    assert (sim.clients["active"] == 0).all()
    sim.step()
    assert (sim.clients["active"].sum(1) > 0).all()


def test_fedmn_scored_is_the_threshold_of_the_final_router_on_training_images(federation: Any) -> None:
    sim = small(federation, rounds=2, participation=0.6)
    models = sim.personal_models()
    assert same({k: w[2] for k, w in models.items() if k != "bits"}, sim.server, 0)
    for i in range(5):
        rows = federation.train[i]
        pi = router_s_mean(sim, sim.server, federation.images[rows], federation.labels[rows])
        wanted, _ = safety_path((pi > 0).double(), pi, (2, 2, 2))
        assert torch.equal(models["bits"][i], wanted)
    last = small(federation, rounds=1, participation=0.6, infer="last_sample")
    bits, took_part = last.personal_models()["bits"], last.sampled
    assert torch.equal(bits[took_part], last.clients["bits"][took_part])
    by_threshold = small(federation, rounds=1, participation=0.6).personal_models()["bits"]
    assert torch.equal(bits[~took_part], by_threshold[~took_part])
    assert not torch.equal(bits[took_part], by_threshold[took_part])


def test_fedmn_client_s_bits_are_what_its_noise_and_its_data_say(federation: Any) -> None:
    sim = start(federation)
    _, states = worked(sim)
    for i in range(5):
        rows = federation.train[i]
        pi = router_s_mean(sim, sim.server, federation.images[rows], federation.labels[rows])
        eps = torch.from_numpy(generator(3, "gates", 1, i).random(10))
        wanted, switches = safety_path((concrete(eps, pi, 1.0) > 0.5).double(), pi, (2, 2, 2))
        assert torch.equal(states["bits"][i], wanted) and states["safety"][i] == switches
        assert torch.allclose(states["logits"][i], pi, atol=1e-12)
        assert torch.equal(states["active"][i], in_use(wanted, (2, 2, 2)))


def test_fedmn_bits_of_gate_sample_change_with_every_mini_batch(federation: Any) -> None:
    sim = start(federation, gate="sample", lr=1e-12, batch_size=FULL_BATCH, epochs=2)
    _, states = worked(sim)
    for i in range(5):
        rows = federation.train[i]
        pi = router_s_mean(sim, sim.server, federation.images[rows], federation.labels[rows])
        eps = torch.from_numpy(generator(3, "gates", 1, i).random((2, 10)))
        bits = [safety_path((concrete(e, pi, 1.0) > 0.5).double(), pi, (2, 2, 2)) for e in eps]
        assert torch.equal(states["bits"][i], bits[1][0])
        assert states["safety"][i] == bits[0][1] + bits[1][1]


def test_fedmn_dropout_acts_in_training_only(federation: Any) -> None:
    a, b = (small(federation, rounds=1, dropout=rate) for rate in (0.0, 0.5))
    assert not same(a.server, b.server, 1e-9)
    x = federation.images[:9]
    model = row(b.personal_models(), 0)
    first = b.method.predict(b.network, model, x)
    assert torch.equal(first, b.method.predict(b.network, model, x))
    bits, modules = model["bits"], b.method.modules(b.network)
    assert torch.equal(modules(model, x, bits, held(bits, (2, 2, 2))), first)
    assert not torch.allclose(modules(model, x, bits, held(bits, (2, 2, 2)), torch.tensor(4)), first)


def test_fedmn_s_block_std_scales_the_first_weights_of_blocks_alone(federation: Any) -> None:
    usual, wide = start(federation, block_std=0.01), start(federation, block_std=0.1)
    for name, weight in usual.start.items():
        scale = 10.0 if name in ("block2/weight", "block3/weight") else 1.0
        assert torch.allclose(wide.start[name], scale * weight, rtol=1e-6, atol=0)


def test_fedmn_batch_norm_in_encoders_and_router_follows_the_batches(
    federation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from test_training_mode import Normed

    monkeypatch.setitem(NETWORKS, "noisy", NetworkSpec(lambda c, s, k: Normed(c, s, k, rate=0.3), ""))
    settings = {**EVERYTHING, "model": "noisy", "batch_size": 200}
    a, b = (small(federation, engine=engine, **settings) for engine in ("loop", "vmap"))
    assert same(a.server, b.server, 1e-10) and same(a.scored_models(), b.scored_models(), 1e-10)
    for name in ("encoder/norm.running_mean", "router/x/norm.running_mean"):
        assert (a.server[name] != a.start[name]).all()


def test_fedmn_saved_models_have_the_agreed_names_and_load_into_torch(federation: Any, tmp_path: Any) -> None:
    sim = small(federation, rounds=1)
    sim.save_models(tmp_path / "models.npz")
    parts = {
        "encoder/fc.weight": (2, 6, 64), "encoder/fc.bias": (2, 6), "block2/weight": (2, 5, 6), "block2/bias": (2, 5),
        "block3/weight": (2, 10, 5), "block3/bias": (2, 10), "router/x/fc.weight": (4, 64), "router/x/fc.bias": (4,),
        "router/y/weight": (3, 10), "router/y/bias": (3,), "router/out/weight": (10, 7), "router/out/bias": (10,),
    }  # fmt: skip
    wanted = {f"{group}/{name}": shape for group in ("initial", "global") for name, shape in parts.items()}
    wanted |= {f"personal/{name}": (5, *shape) for name, shape in parts.items()}
    wanted |= {"personal/bits": (5, 10), "state/logits": (5, 10), "state/bits": (5, 10)}
    wanted |= {"state/active": (5, 4), "state/safety": (5,), "method": (), "network": ()}
    with np.load(tmp_path / "models.npz") as file:
        assert {name: file[name].shape for name in file.files} == wanted
    module = load_model(tmp_path / "models.npz", sim.network, client=3)
    x = federation.test_images[federation.test[3]]
    logits = sim.method.predict(sim.network, row(sim.scored_models(), 3), x)
    assert torch.allclose(module(x), logits, atol=1e-12)


def test_fedmn_fine_tuning_by_plain_sgd_keeps_the_bits(federation: Any) -> None:
    sim = small(federation, rounds=1, ft_epochs=1, ft_mode="plain_sgd")
    before, after = sim.personal_models(), sim.scored_models()
    assert torch.equal(before["bits"], after["bits"])
    assert torch.equal(before["router/out/bias"], after["router/out/bias"])
    assert not torch.equal(before["encoder/fc.weight"], after["encoder/fc.weight"])


def test_fedmn_run_that_anneals_cannot_be_continued_for_more_rounds(federation: Any, tmp_path: Any) -> None:
    start(federation, rounds=2).save(tmp_path / "run.pt")
    with pytest.raises(InputError, match=r"another configuration \(it differs in rounds\)"):
        start(federation, rounds=3).load(tmp_path / "run.pt")


# ---- a start that keeps what was learned, and a router that tells clients apart ---------------------------------------


@pytest.mark.parametrize("blocks", ["2x2x2", "1x3", "2x2x3x2"])
def test_fedmn_planted_as_a_function_every_route_is_the_plain_network(federation: Any, blocks: str) -> None:
    sim = start(federation, **WIDE, blocks=blocks, pretrain=1, plant_noise=0.0, rounds=2)
    plain = untrained("fedavg", federation, **WIDE_RUN, rounds=2)
    assert sim.step()["personal_accuracy"] == plain.step()["personal_accuracy"]
    x, draw = federation.images[:20], torch.Generator().manual_seed(0)
    wanted = plain.network(plain.server, x)
    layers = sim.method.layers
    for _ in range(10):
        drawn = (torch.rand(decisions(layers), generator=draw) < 0.5).double()
        bits, _ = safety_path(drawn, drawn, layers)
        found = sim.method.predict(sim.network, sim.server | {"bits": bits}, x)
        assert torch.allclose(found, wanted, atol=1e-12)


def test_fedmn_plant_noise_is_a_part_of_each_block_s_own_first_weights(federation: Any) -> None:
    none, some = (start(federation, **WIDE, pretrain=1, plant_noise=noise, rounds=2) for noise in (0, 0.3))
    for sim in (none, some):
        sim.step()
    for name in ("encoder/fc2.weight", "encoder/fc2.bias", "block2/weight", "block3/weight"):
        assert torch.allclose(some.server[name], none.server[name] + 0.3 * some.start[name], atol=1e-12)
    assert torch.equal(some.server["encoder/fc1.weight"], none.server["encoder/fc1.weight"])


def test_fedmn_planted_as_a_function_needs_room_for_what_the_last_layer_reads(federation: Any) -> None:
    with pytest.raises(
        InputError, match="must be 32 or more, which is what the last layer of small_cnn reads"
    ):
        start(federation, model="small_cnn", pretrain=1, rounds=2)


def test_fedmn_rates_of_pretraining_and_router_are_multiples_of_the_run_s(federation: Any) -> None:
    slow = start(federation, model="small_cnn", plant="body", pretrain=1, rounds=2, lr=0.05, pretrain_lr=2.0)
    fast = untrained("fedavg", federation, **WIDE_RUN, rounds=2, lr=0.1)
    slow.advance(), fast.advance()
    body = {name: tensor for name, tensor in fast.server.items() if not name.startswith("fc2")}
    assert all(torch.equal(slow.server[f"encoder/{name}"][0], tensor) for name, tensor in body.items())
    one, three, none = (
        worked(start(federation, router_lr=rate, batch_size=FULL_BATCH))[0] for rate in (1, 3, 0)
    )
    before = start(federation).server
    for name, tensor in before.items():
        if name.startswith("router/"):
            moved = one[name] - tensor
            assert torch.allclose(three[name] - tensor, 3 * moved, atol=1e-12) and moved.abs().max() > 0
            assert name not in none
        else:
            assert torch.equal(one[name], three[name])


def test_fedmn_product_of_codes_sees_which_labels_go_with_which_images(federation: Any) -> None:
    rows, labels = federation.train[0], federation.labels.clone()
    labels[rows] = labels[rows].flip(0)
    for codes, blind in (("concat", True), ("product", False)):
        settings = {"codes": codes, "normalize": "each"}
        sims = start(federation, **settings), start(replace(federation, labels=labels), **settings)
        a, b = (sim.method.decide(sim.server, work_of(sim, 0))[0] for sim in sims)
        assert torch.allclose(a, b, rtol=0, atol=1e-12) == blind
    router = sims[0].method.router(sims[0].network)
    params, x, y = unpack("router", sims[0].server), federation.images[:6], federation.labels[:6]
    h_x = F.normalize(router.network(unpack("x", params), x), dim=1)
    hot = F.one_hot(y, 10).double() - 0.1
    wanted = torch.stack([torch.outer(a, b).flatten() for a, b in zip(h_x, hot, strict=True)])
    assert torch.allclose(router.code(params, x, y), wanted, atol=1e-12)


def test_fedmn_centred_router_reads_how_far_a_client_is_from_the_mean_of_all(federation: Any) -> None:
    sim = start(federation, centre=True, codes="product", participation=0.6)
    assert (sim.server["router/mean"] == 0).all() and sim.server["router/spread"] == 1
    router, ids = sim.method.router(sim.network), sim.advance()["clients"]
    first = start(federation, centre=True, codes="product")
    codes = torch.stack(
        [first.method.code(first.server, work_of(first, i)) for i in range(5)]
    )  # before training
    mean = codes[ids].mean(0)
    spread = (codes[ids] - mean).square().mean().sqrt()
    assert torch.allclose(sim.server["router/mean"], mean, atol=1e-12)
    assert torch.allclose(sim.server["router/spread"], spread, atol=1e-12)
    params = unpack("router", sim.server)
    wanted = (codes[1] - mean) / spread @ params["out/weight"].T + params["out/bias"]
    assert torch.allclose(router.logits(params, codes[1]), wanted, atol=1e-12)
    alone = start(federation, centre=True, participation=0.2)
    alone.advance()  # one client: no spread to divide by
    assert alone.server["router/spread"] == 1


def test_fedmn_router_s_head_alone_learns_and_travels_up(federation: Any) -> None:
    sim = start(federation, router_part="head", centre=True)
    everything = sum(tensor.numel() for name, tensor in sim.server.items() if not name.startswith("block"))
    uploads, _ = worked(sim)
    still = [
        name
        for name in sim.server
        if name.startswith(("router/x", "router/y", "router/mean", "router/spread"))
    ]
    assert not set(still) & uploads.keys() and "router/out/weight" in uploads
    entry, before = sim.step(), sim.start
    assert all(torch.equal(sim.server[name], before[name]) for name in still[:4])
    blocks = (sim.clients["active"] @ vector(35, 35, 60, 60)).sum().item()
    fixed = sum(sim.server[name].numel() for name in still)
    assert entry["floats_down"] == 5 * everything + blocks
    assert entry["floats_up"] == 5 * (everything - fixed + 7) + blocks  # and a mean code of 7 numbers


def test_fedmn_output_scale_multiplies_the_logits(federation: Any) -> None:
    sim = small(federation, rounds=1)
    bits, x = row(sim.personal_models(), 0)["bits"], federation.images[:5]
    one, more = (
        replace(sim.method, output_scale=scale).predict(sim.network, sim.server | {"bits": bits}, x)
        for scale in (1.0, 3.5)
    )
    assert torch.allclose(more, 3.5 * one, atol=1e-12)


def test_fedmn_preset_of_the_released_program_runs(federation: Any) -> None:
    sim = start(federation, **PROGRAM | {"pretrain": 1, "rounds": 2, "model": "small_cnn"})
    assert sim.method.schedule == "sequential" and not any(name.startswith("router/") for name in sim.start)
    sim.run(progress=False)
    assert sim.report()["complete"] and sim.clients["active"].min() == 1


# ---- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"blocks": "2x0x2"}, "two or more whole numbers above 0, one a layer, such as 2x2x2, not '2x0x2'"),
        ({"blocks": "3"}, "blocks must be two or more"),
        ({"blocks": "2x-1"}, "blocks must be two or more"),
        ({"blocks": "2x2.5"}, "blocks must be two or more"),
        ({"blocks": ""}, "blocks must be two or more"),
        ({"gates": "st"}, "unknown setting of fedmn 'gates'"),
        ({"schedule": "sequential", "engine": "vmap"}, "use --engine loop"),
        ({"pretrain": 2}, r"rounds must be more than pretrain \(2\), not 2"),
        ({"router_lr": -1}, "router_lr must be 0 or more, not -1"),
        ({"plant": "head"}, "plant must be one of function, body"),
        ({"codes": "sum"}, "codes must be one of concat, product"),
        ({"output_scale": 0}, "output_scale must be above 0"),
        ({"blocks": "99999x99999"}, "has 9,999,900,000 decisions, more than 1,000,000"),
    ],
)
def test_fedmn_bad_settings_are_refused_in_one_sentence(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says) as refusal:
        make_config("fedmn", rounds=2, **settings)
    assert "\n" not in str(refusal.value)


def test_fedmn_pretraining_needs_layers_below_the_last(federation: Any) -> None:
    with pytest.raises(
        InputError, match="trains the layers below the last, and linear has none: use pretrain=0"
    ):
        start(federation, rounds=3, pretrain=1)


def test_fedmn_fine_tuned_bits_come_from_the_tuned_router_or_from_its_last_draw(federation: Any) -> None:
    tuned = {}
    for infer in ("threshold", "last_sample"):
        sim = start(federation, ft_epochs=1, infer=infer)
        sim.step()
        tuned[infer] = sim.tuned_models()
        for i in range(5) if infer == "threshold" else ():
            model = row(tuned[infer], i)
            work = work_of(sim, i, number=2)
            assert torch.equal(model["bits"], no_grad(sim.method.decide, model, work)[1])
    assert not same(tuned["threshold"], tuned["last_sample"], 1e-9)


def test_fedmn_s_defaults_are_the_paper_s() -> None:
    assert decisions(FedMN().layers) == 10 and (FedMN().tau_start, FedMN().tau_end) == (1.0, 0.1)
    assert (FedMN().codes, FedMN().normalize) == ("concat", "joint")


def test_fedmn_stored_before_a_setting_existed_is_read_as_it_ran() -> None:
    stored = {"method": {"name": "fedmn", "dropout": 0.5}}
    method = with_defaults(stored)["method"]
    assert (method["normalize"], method["plant"], method["block_std"]) == ("each", "body", 0.01)
    assert with_defaults({"method": {"name": "fedmn", "plant": "function"}})["method"]["plant"] == "function"
