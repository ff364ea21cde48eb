"""PFL-MoE, PFL-MF and PFL-MFE: two experts and a gate; and what came with them: cached extractors, augmentation, whole test."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from toy import Dropped, by_hand, model, row, s, same, tiny_clients, train, untrained, work_of, zero_start

from pfl_lite.data.federation import make_federation
from pfl_lite.engine.augment import crop_flip, random_crops
from pfl_lite.engine.evaluate import whole_test
from pfl_lite.engine.local_training import epoch_orders, part_of
from pfl_lite.engine.report import load_model
from pfl_lite.engine.simulation import Simulation, run
from pfl_lite.errors import InputError
from pfl_lite.methods import make_method
from pfl_lite.methods.base import unpack
from pfl_lite.methods.pfl_moe import PFLMoE
from pfl_lite.methods.split import Cut
from pfl_lite.models import NETWORKS, Network, NetworkSpec, Params
from pfl_lite.results.ledger import Ledger
from pfl_lite.seeds import generator

MOE = ("pfl_moe", "pfl_mf", "pfl_mfe")
SHORT = {
    "model": "small_cnn", "rounds": 1, "epochs": 1, "ft_epochs": 2, "momentum": 0.5, "weight_decay": 0.01,
}  # fmt: skip
CODE = {"schedule": "sequential", "gate_optimizer": "adam", "gate_decay": 0.0005}


def expert(models: Params) -> Params:
    return unpack("expert", models)


# ---- two experts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", MOE)
def test_a_gate_held_at_the_global_model_is_fedavg_and_at_the_personal_one_pfl_fb(
    federation: Any, method: str
) -> None:
    common = SHORT | {"participation": 0.5}
    head = "conv1" if method == "pfl_moe" else "dense"
    twins: list[tuple[str, str, dict[str, Any]]] = [
        ("global", "fedavg", {"ft_epochs": 0}),
        ("personal", "pfl_fb", {"part": "per", "head": head}),
    ]
    for gate, twin, settings in twins:
        mixed, alone = (
            train(method, federation, **common, gate=gate),
            train(twin, federation, **(common | settings)),
        )
        for name in ("test_loss", "test_accuracy"):
            assert mixed.report()["final"][name] == alone.report()["final"][name]
        assert same(mixed.server, alone.server, 0)
    assert same(expert(mixed.scored_models()), alone.scored_models(), 0)


@pytest.mark.parametrize("mix", ["logits", "probs"])
def test_a_mixture_lies_between_its_experts_and_a_bias_without_end_leaves_one(
    federation: Any, mix: str
) -> None:
    sim = train("pfl_mfe", federation, **SHORT, gate_lr=0.5, mix=mix)
    models, x = row(sim.scored_models(), 3), federation.test_images[:50]
    general, own = (sim.network(unpack(kind, models), x) for kind in ("global", "expert"))
    g = sim.method.share(sim.network, models, x)
    scores = sim.method.predict(sim.network, models, x)
    assert g.shape == (50,) and 0 < g.min() < g.max() < 1
    if mix == "logits":
        low, high = torch.minimum(general, own), torch.maximum(general, own)
        assert torch.allclose(scores, g[:, None] * general + (1 - g[:, None]) * own, rtol=0, atol=1e-12)
        assert (scores >= low - 1e-12).all() and (scores <= high + 1e-12).all()
    else:
        mixed = g[:, None] * general.softmax(1) + (1 - g[:, None]) * own.softmax(1)
        assert torch.allclose(scores, mixed.log(), rtol=0, atol=1e-12)
    for bias, alone in ((torch.inf, general), (-torch.inf, own)):
        held = models | {"gate/bias": torch.full_like(models["gate/bias"], bias)}
        wanted = alone if mix == "logits" else alone.log_softmax(1)
        assert torch.equal(sim.method.predict(sim.network, held, x), wanted)


@pytest.mark.parametrize("method", MOE)
def test_a_run_keeps_how_much_of_its_clients_answers_comes_from_the_global_expert(
    federation: Any, method: str, tmp_path: Path
) -> None:
    none = replace(federation, test=[rows[: len(rows) * (i != 1)] for i, rows in enumerate(federation.test)])
    learned = SHORT | {"gate_lr": 0.5, "rounds": 2}
    for engine in ("loop", "vmap"):
        train(method, none, **learned | {"rounds": 1}, engine=engine, checkpoint=tmp_path / f"{engine}.pt")
        sim = train(method, none, **learned, engine=engine, checkpoint=tmp_path / f"{engine}.pt")
        models = sim.scored_models()
        g = [sim.method.share(sim.network, row(models, i), none.test_images[none.test[i]]) for i in range(5)]
        kept = sim.history.watch["share"]["2"]
        assert sim.history.watch.keys() == {"share"} and sim.history.watch["share"].keys() == {"2"}
        assert np.allclose(kept, [float(each.mean()) for each in g], rtol=0, atol=1e-12, equal_nan=True)
        assert np.isnan(kept[1]) and len({round(share, 6) for share in kept}) == 5
    entry = {"experiment": "own", "arm": method, "seed": 3} | sim.report()
    stored = json.loads(Ledger(tmp_path).write(entry).read_text())["watch"]["share"]["2"]
    assert stored == [None if i == 1 else round(share, 4) for i, share in enumerate(kept)]
    for settings, g_of_all in (({"gate": "equal"}, 0.5), ({"gate": "personal"}, 0), ({"ft_factors": "0"}, 1)):
        sim = train(method, federation, **SHORT, **settings)
        assert sim.history.watch == {"share": {"1": [g_of_all] * 5}}
    assert not train(method, federation, **SHORT | {"ft_epochs": 0}).history.watch


@pytest.mark.parametrize("method", MOE)
@pytest.mark.parametrize("settings", [{}, CODE])
def test_the_gate_touches_nothing_but_itself_and_the_expert_only_its_head(
    federation: Any, method: str, settings: dict[str, Any]
) -> None:
    sim = untrained(method, federation, **SHORT, **settings, gate_lr=0.1)
    sim.advance()
    before = {name: tensor.clone() for name, tensor in sim.server.items()}
    models = sim.tuned_models()
    assert same(sim.server, before, 0)
    assert all(same(unpack("global", row(models, i)), before, 0) for i in range(5))
    head = {"fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"} if method != "pfl_moe" else set(before)
    for name, rows in expert(models).items():
        moved = [not torch.equal(tensor, before[name]) for tensor in rows]
        assert all(moved) if name in head else not any(moved)
    assert all(not torch.equal(w, sim.start["gate/weight"]) for w in models["gate/weight"])
    other = replace(sim.method, schedule="sequential", gate_lr=0.7, gate="learned")
    again = Simulation(replace(sim.config, method=other), federation)
    again.server, again.round = sim.server, sim.round
    assert same(expert(again.tuned_models()), expert(models))  # whatever its gate does, and whenever


def test_with_nothing_to_extract_pfl_mf_is_pfl_moe(federation: Any) -> None:
    for settings in ({}, CODE):
        a = train("pfl_moe", federation, **SHORT, **settings)
        b = train("pfl_mf", federation, **SHORT, **settings, head="conv1")
        assert same(a.scored_models(), b.scored_models(), 0)
        c = train("pfl_mfe", federation, **SHORT, **settings, head="conv1")
        assert same(a.scored_models(), c.scored_models())  # what a head reads that is everything: pixels


def test_what_each_gate_reads(federation: Any) -> None:
    start = {method: untrained(method, federation, **SHORT).start for method in MOE}
    widths = {method: tuple(params["gate/weight"].shape) for method, params in start.items()}
    assert widths == {
        "pfl_moe": (1, 64),
        "pfl_mf": (1, 64),
        "pfl_mfe": (1, 64),
    }  # 8 x 8 pixels; 16 filters of 2 x 2
    last = untrained("pfl_mfe", federation, **SHORT, head="last")
    assert tuple(last.start["gate/weight"].shape) == (1, 32)
    models = row(last.tuned_models(), 0)
    x = federation.test_images[:9]
    z = last.network.features(unpack("global", models), x) @ models["gate/weight"][0] + models["gate/bias"]
    assert torch.allclose(last.method.share(last.network, models, x), z.sigmoid(), rtol=0, atol=1e-12)
    for method, reads in (("pfl_mf", lambda net, p, x: x.flatten(1)), ("pfl_mfe", Network.extract)):
        sim = untrained(method, federation, **SHORT)
        models = row(sim.tuned_models(), 0)
        z = reads(sim.network, unpack("global", models), x) @ models["gate/weight"][0] + models["gate/bias"]
        assert torch.allclose(sim.method.share(sim.network, models, x), z.sigmoid(), rtol=0, atol=1e-12)


def test_all_gates_start_alike_and_differ_by_the_seed(federation: Any) -> None:
    sims = [untrained("pfl_mf", federation, **SHORT, seed=seed) for seed in (3, 3, 4)]
    a, b, c = (sim.start["gate/weight"] for sim in sims)
    assert torch.equal(a, b) and not torch.equal(a, c) and a.abs().max() <= 1 / 8 and a.std() > 0.04
    assert all(torch.equal(rows, a) for rows in sims[0].clients["gate/weight"])
    assert same(
        {k: v for k, v in sims[0].start.items() if k[:4] != "gate"},
        untrained("fedavg", federation, **SHORT).start,
        0,
    )


def test_only_the_model_travels(federation: Any) -> None:
    moe, plain = (train(method, federation, **SHORT).history.rounds[-1] for method in ("pfl_mfe", "fedavg"))
    assert (moe["floats_down"], moe["floats_up"]) == (plain["floats_down"], plain["floats_up"])


# ---- training step for step -----------------------------------------------------------------------------------------


def test_a_step_of_expert_and_gate_by_hand() -> None:
    # Four images x = +1 of class a: three for the expert, one for the gate. From zero every gradient of the expert is
    # p_a - 1 = -1/2, so its logits become (W_a + b_a, -W_a - b_a) = (1, -1). With w = b = 0 the gate is g = 1/2 and mixes (0, 0)
    # with (1, -1) to y = (1/2, -1/2): p_b = s(-1), dloss/dg = -(p_a - 1) + p_b = 2 s(-1), dg/dz = 1/4. One step of rate beta:
    # w = b = -beta s(-1) / 2.
    sim = zero_start("pfl_moe", by_hand([255] * 4, [0] * 4, [[0, 1, 2, 3]]), ft_epochs=1, gate_lr=0.6)
    models = row(sim.tuned_models(), 0)
    assert same(expert(models), model(0.5, 0.5)) and same(unpack("global", models), model(0.0))
    moved = -0.6 * s(-1) / 2
    assert models["gate/weight"].item() == pytest.approx(moved) and models[
        "gate/bias"
    ].item() == pytest.approx(moved)
    logits = sim.method.predict(sim.network, models, sim.federation.images[:1])
    assert logits[0].tolist() == pytest.approx([1 - s(2 * moved), s(2 * moved) - 1])
    # by Adam the first step is beta along the sign of the gradient; decay adds nothing to a gate of zeros
    sim = zero_start("pfl_moe", by_hand([255] * 4, [0] * 4, [[0, 1, 2, 3]]), ft_epochs=1, gate_lr=0.6, **CODE)
    assert row(sim.tuned_models(), 0)["gate/bias"].item() == pytest.approx(-0.6, abs=1e-6)


@pytest.mark.parametrize("schedule", ["interleaved", "sequential"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("method", ["pfl_mf", "pfl_mfe"])
def test_training_is_torch_s_sgd_and_adam(
    federation: Any, method: str, optimizer: str, schedule: str
) -> None:
    gate = {"gate_optimizer": optimizer, "gate_lr": 0.03, "gate_decay": 0.05, "schedule": schedule}
    sim = untrained(method, federation, **(SHORT | {"ft_epochs": 3, "ft_lr": 0.07}), **gate)
    found, client = row(sim.tuned_models(), 2), 2
    theta = {name: tensor for name, tensor in sim.start.items() if name[:4] != "gate"}
    general, own = (sim.network.to_module(theta) for _ in range(2))
    for layer in (own.conv1, own.conv2):
        layer.requires_grad_(False)
    head = [*own.fc1.parameters(), *own.fc2.parameters()]
    w = nn.Linear(64, 1).double()
    w.load_state_dict(unpack("gate", sim.start))
    sgd = torch.optim.SGD(head, lr=0.07, momentum=0.5, weight_decay=0.01)
    kind = torch.optim.SGD if optimizer == "sgd" else torch.optim.Adam
    of_gate = kind(w.parameters(), lr=0.03, weight_decay=0.05)

    def batches(part: str, phase: str, epoch: int) -> list[tuple[Tensor, Tensor]]:
        places = part_of(3, client, 160, part)
        order = places[epoch_orders(3, 1, client, phase, len(places), 3)[epoch]]
        rows = [federation.train[client][chunk] for chunk in torch.from_numpy(order).split(32)]
        return [(federation.images[each], federation.labels[each]) for each in rows]

    def tune(epoch: int) -> None:
        for x, y in batches("per", "weights", epoch):
            sgd.zero_grad()
            F.cross_entropy(own(x), y).backward()
            sgd.step()

    def gate_learns(epoch: int) -> None:
        for x, y in batches("gate", "gate", epoch):
            g = w(x.flatten(1) if method == "pfl_mf" else general.extract(x)).sigmoid()
            of_gate.zero_grad()
            F.cross_entropy(g * general(x).detach() + (1 - g) * own(x).detach(), y).backward()
            of_gate.step()

    for epoch in range(3):
        tune(epoch)
        if schedule == "interleaved":
            gate_learns(epoch)
    for epoch in range(3 if schedule == "sequential" else 0):
        gate_learns(epoch)
    assert same(expert(found), {name: p.detach() for name, p in own.named_parameters()}, 1e-10)
    assert same(unpack("gate", found), {name: p.detach() for name, p in w.named_parameters()}, 1e-10)


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("pfl_moe", {"mix": "probs"}),
        ("pfl_moe", {"gate_optimizer": "adam", "augment": "crop_flip"}),
        ("pfl_mf", CODE),
        ("pfl_mf", {"head": "last", "augment": "crop_flip"}),
        ("pfl_mf", {"gate": "global"}),
        ("pfl_mfe", CODE | {"augment": "crop_flip", "mix": "probs"}),
        ("pfl_mfe", {"head": "last", "gate_decay": 0.1, "ft_batch_size": 7}),
        ("pfl_mfe", {"model": "dropped", "gate_experts": "train"}),
        ("pfl_mfe", {"model": "dropped", "gate_experts": "train", "schedule": "sequential"}),
    ],
)
def test_vmap_equals_loop_for_unequal_and_unseen_clients(
    federation: Any, monkeypatch: pytest.MonkeyPatch, method: str, settings: dict[str, Any]
) -> None:
    monkeypatch.setitem(NETWORKS, "dropped", NetworkSpec(Dropped, ""))
    sizes = (40, 3, 97, 5, 64)  # one has no image for a gate
    uneven = replace(federation, train=[rows[:n] for rows, n in zip(federation.train, sizes, strict=True)])
    settings = SHORT | {"unseen": 1, "participation": 0.5, "gate_lr": 0.1, "whole_test": True} | settings
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        a, b = (train(method, uneven, engine=engine, **settings) for engine in ("loop", "vmap"))
    assert same(a.scored_models(), b.scored_models(), 1e-10)
    for name in ("test_loss", "global_test_clients", "local_test_clients"):
        assert a.report()["final"][name] == pytest.approx(b.report()["final"][name], abs=1e-10)
    if settings.get("gate") != "global":
        share = a.method.share(a.network, row(a.scored_models(), 1), federation.test_images)
        assert (share == 0).all() and a.map.images_trained == b.map.images_trained


def test_clients_too_small_for_a_gate_use_their_expert_and_are_counted_once() -> None:
    settings = {"clients": 4, "model": "linear", "batch_size": 2, "lr": 0.05}
    with pytest.warns(UserWarning, match="3 of 4 clients have fewer than 4 training images.*g = 0") as said:
        sim = train("pfl_moe", tiny_clients(), **settings)
    assert len(said) == 1 and "\n" not in str(said[0].message)
    alone = train("pfl_fb", tiny_clients(), **settings, head="fc", part="per")
    losses, wanted = (each.report()["final"]["test_loss"] for each in (sim, alone))
    assert losses[:3] == wanted[:3] and losses[3] != wanted[3]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train("pfl_moe", tiny_clients(), **settings, gate="personal")
        train("pfl_moe", tiny_clients(), **settings, ft_epochs=0)


def test_dropout_of_the_experts_stays_out_of_the_gate_s_phase_unless_asked_for(
    federation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(NETWORKS, "dropped", NetworkSpec(Dropped, ""))
    common = SHORT | {"model": "dropped", "gate_lr": 0.5}
    eval_, train_ = (
        train("pfl_mf", federation, **common, gate_experts=how).scored_models() for how in ("eval", "train")
    )
    assert same(expert(eval_), expert(train_), 0) and not same(
        unpack("gate", eval_), unpack("gate", train_), 1e-6
    )


def test_models_are_saved_with_where_the_gates_began_and_loaded_again(
    federation: Any, tmp_path: Path
) -> None:
    sim = train("pfl_mfe", federation, **SHORT)
    sim.save_models(tmp_path / "models.npz")
    with np.load(tmp_path / "models.npz") as file:
        shapes = {name: file[name].shape for name in file.files if "gate" in name}
        assert not any(name.startswith("state/") for name in file.files)
    assert shapes == {
        "initial/gate/weight": (1, 64), "initial/gate/bias": (1,),
        "personal/gate/weight": (5, 1, 64), "personal/gate/bias": (5, 1),
    }  # fmt: skip
    x = federation.test_images[:20]
    module = load_model(tmp_path / "models.npz", sim.network, client=4).double()
    wanted = sim.method.predict(sim.network, row(sim.scored_models(), 4), x)
    assert torch.allclose(module(x), wanted, rtol=0, atol=1e-12)
    plain = load_model(tmp_path / "models.npz", sim.network)
    assert torch.equal(plain(x), sim.network(sim.server, x))


# ---- an extractor that is asked once --------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "settings"), [("pfl_fb", {}), ("pfl_mf", {}), ("pfl_mfe", CODE)])
def test_what_a_frozen_extractor_sees_is_computed_once_and_changes_no_number(
    federation: Any, monkeypatch: pytest.MonkeyPatch, method: str, settings: dict[str, Any]
) -> None:
    seen, extract = [], Network.extract
    monkeypatch.setattr(Network, "extract", lambda net, p, x: (seen.append(len(x)), extract(net, p, x))[1])
    sim = untrained(method, federation, **(SHORT | {"ft_epochs": 5}), **settings)
    seen.clear()
    quick = sim.tuned_models()
    assert sum(seen) == federation.train_sizes.sum()
    cut = Cut.__init__
    monkeypatch.setattr(Cut, "__init__", lambda self, *a: (cut(self, *a), setattr(self, "dense", False))[0])
    if method == "pfl_mfe":  # whose gate then reads them in another way
        monkeypatch.setattr(type(sim.method), "gate_reads", lambda m, c, p, x, read: c.network.extract(p, x))
    assert same(sim.tuned_models(), quick)


@pytest.mark.parametrize(
    "name", ["linear", "mlp", "small_cnn", "lenet", "femnist_cnn", "mlp256x8", "vgg16", "mobilenet_v2"]
)
def test_a_network_is_its_extractor_and_its_head(name: str) -> None:
    from pfl_lite.models import make_network

    size = NETWORKS[name].size or 8
    network = make_network(name, 3, 32 if name == "mobilenet_v2" else size, 10, dtype=torch.float64)
    params = network.init(0)
    x = torch.rand(2, *network.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    cut = Cut(network, "dense", "head")
    a = network.extract(params, x)
    assert cut.dense and a.dim() == 2 and torch.equal(network.classify(params, a), network(params, x))
    last = {
        k.removeprefix(f"{network.last}."): v for k, v in params.items() if k.startswith(f"{network.last}.")
    }
    assert torch.allclose(
        F.linear(network.features(params, x), **last), network(params, x), rtol=0, atol=1e-12
    )
    noise = {k: v + 1 if k in cut.head else v for k, v in params.items()}
    assert torch.equal(network.extract(noise, x), a)  # none of the head's parameters
    noise = {k: v if k in cut.head else v + 1 for k, v in params.items()}
    assert torch.equal(network.classify(noise, a), network(params, x))  # and none of the base's


# ---- augmentation ---------------------------------------------------------------------------------------------------


def test_augmentation_is_torchvision_s_pad_crop_and_flip() -> None:
    from torchvision.transforms import functional as tv

    crops = torch.tensor([(i, j, m) for i in range(9) for j in range(9) for m in (0, 1)])
    x = torch.rand(len(crops), 3, 10, 10, generator=torch.Generator().manual_seed(0))
    black = torch.tensor([-0.5, 0.25, -1.0])
    found = crop_flip(x, crops, black)
    for image, (i, j, mirror), result in zip(x, crops.tolist(), found, strict=True):
        padded = torch.cat([tv.pad(c[None], [4], fill=b.item()) for c, b in zip(image, black, strict=True)])
        cropped = tv.crop(padded, i, j, 10, 10)
        assert torch.equal(result, tv.hflip(cropped) if mirror else cropped)


def test_every_client_phase_and_round_has_crops_of_its_own(federation: Any) -> None:
    sim = untrained("fedavg", federation, augment="crop_flip")
    orders = [np.tile(np.arange(20), (2, 1))]  # [E, n]
    found = [
        work_of(sim, client, number=number).crops(phase, orders)
        for client in (0, 1)
        for phase in ("weights", "gate")
        for number in (1, 2)
    ]
    assert all(crops is not None and crops.shape == (1, 2, 20, 3) for crops in found)
    assert not any(torch.equal(a, b) for a, b in combinations(found, 2))
    assert all((crops[0, 0] != crops[0, 1]).any() for crops in found)


def test_what_augmentation_changes_is_computed_anew(federation: Any) -> None:
    def pixels(batch: Any) -> Tensor:
        return batch.x

    still, shifted = (untrained("fedavg", federation, augment=name) for name in ("none", "crop_flip"))
    assert work_of(still, 0).fixed(pixels) is not pixels
    batch = next(work_of(shifted, 0).batches("weights", None, "all"))
    assert torch.equal(work_of(shifted, 0).fixed(pixels)(batch), batch.x)


def test_crops_are_uniform_and_come_again() -> None:
    crops = random_crops(generator(0, "augment", 1, 2, "weights"), (3, 3000))
    assert crops.shape == (3, 3000, 3) and np.array_equal(
        crops, random_crops(generator(0, "augment", 1, 2, "weights"), (3, 3000))
    )
    for axis, values in enumerate((9, 9, 2)):
        counts = np.bincount(crops[..., axis].ravel(), minlength=values)
        assert len(counts) == values and np.abs(counts - 9000 / values).max() < 5 * np.sqrt(9000 / values)


@pytest.mark.parametrize("method", ["fedavg", "fedem", "pfedmb", "pfl_fb"])
def test_augmented_training_is_equal_under_both_engines_and_differs_from_plain(
    federation: Any, method: str
) -> None:
    settings = {"model": "small_cnn", "rounds": 1, "epochs": 2, "ft_epochs": 0 if method == "fedem" else 1}
    a, b = (train(method, federation, **settings, engine=e, augment="crop_flip") for e in ("loop", "vmap"))
    assert same(a.server, b.server, 1e-10) and same(a.scored_models(), b.scored_models(), 1e-10)
    plain = train(method, federation, **settings)
    assert not same(a.server, plain.server, 1e-4) and not same(a.scored_models(), plain.scored_models(), 1e-4)


@pytest.mark.parametrize(
    ("method", "settings"), [("fedavg", {}), ("fedem", {"ft_epochs": 0}), ("ifca", {}), ("pfl_mfe", {})]
)
def test_scores_and_decisions_see_images_as_they_are(
    federation: Any, method: str, settings: dict[str, Any]
) -> None:
    still = SHORT | {"lr": 1e-300, "weight_decay": 0.0, "whole_test": True} | settings
    still |= {"gate_lr": 0.0} if method == "pfl_mfe" else {}
    plain, augmented = (train(method, federation, **still, augment=how) for how in ("none", "crop_flip"))
    assert plain.report()["final"] == augmented.report()["final"]
    assert same(plain.state(), augmented.state(), 1e-12)  # FedEM's weights, IFCA's clusters


def test_every_epoch_client_and_phase_is_shifted_its_own_way(federation: Any) -> None:
    sim = untrained("pfl_mf", federation, **SHORT, augment="crop_flip")
    settings = replace(sim.settings, augment="crop_flip", epochs=2)

    def shifts(client: int, phase: str, number: int = 1) -> Tensor:
        work = sim.map.work(sim.network, federation, settings, 3, number, [client])
        crops = work.crops(phase, work.orders(phase, None, "all"))
        assert crops is not None
        return crops[0, :, :30]

    first = shifts(0, "weights")
    others = [shifts(1, "weights"), shifts(0, "gate"), shifts(0, "weights", 2)]
    assert all(not torch.equal(first, other) for other in others) and not torch.equal(first[0], first[1])
    assert torch.equal(first, shifts(0, "weights"))


def test_black_borders_are_black_after_normalisation() -> None:
    sim = untrained(
        "fedavg",
        by_hand([255] * 40, [0, 1] * 20, [list(range(40))]),
        clients=1,
        model="linear",
        augment="crop_flip",
    )
    batches = sim.map.work(sim.network, sim.federation, sim.settings, 3, 1, [0]).batches("weights", 9, "all")
    pixels = torch.cat([batch.x.flatten() for batch in batches])
    assert set(pixels.tolist()) == {-1.0, 1.0} and 0 < (pixels == 1).double().mean() < 0.05  # 1 of 81 places


# ---- all test images ------------------------------------------------------------------------------------------------


def scores(right: np.ndarray, held: np.ndarray, trained: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    found = whole_test(right, held, trained)
    return found["global_test"], found["local_test"]


def test_whole_test_by_hand() -> None:
    # 10 images of class a, 30 of b, none of c. Model: 5 and 27 right: accuracies 1/2 and 9/10; overall 32/40.
    right, held = np.array([[5.0, 27.0, 0.0]] * 3), np.array([10, 30, 0])
    trained = np.array([[2, 2, 0], [1, 3, 4], [0, 0, 7]])
    overall, local = scores(right, held, trained)
    assert overall.tolist() == [0.8] * 3
    assert local[:2].tolist() == pytest.approx([0.7, 0.8])  # (1/2 + 9/10) / 2; class c left out: 1/4 and 3/4
    assert np.isnan(local[2])


def test_local_test_with_equal_shares_is_the_global_test_of_balanced_test_images() -> None:
    right = np.random.default_rng(0).integers(0, 101, (7, 10)).astype(float)
    overall, local = scores(right, np.full(10, 100), np.full((7, 10), 5))
    assert np.allclose(overall, local, rtol=0, atol=1e-12)


def test_sizes_turn_the_local_tests_of_one_model_into_its_global_test_and_a_plain_mean_does_not() -> None:
    rng = np.random.default_rng(1)
    trained = np.stack(
        [rng.multinomial(300, rng.dirichlet([0.5] * 20)) for _ in range(10)], 1
    )  # balanced: 300 a class
    right = np.repeat(rng.integers(0, 101, (1, 10)), 20, 0).astype(float)
    overall, local = scores(right, np.full(10, 100), trained)
    assert np.average(local, weights=trained.sum(1)) == pytest.approx(overall[0], abs=1e-12)
    assert abs(local.mean() - overall[0]) > 1e-3


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("fedavg", {}),
        ("local", {}),
        ("ditto", {}),
        ("fedem", {"ft_epochs": 0}),
        ("pfl_mfe", {}),
        ("pfedmb", {}),
    ],
)
def test_final_models_are_scored_on_all_test_images(
    federation: Any, method: str, settings: dict[str, Any]
) -> None:
    sim = train(method, federation, **(SHORT | settings), whole_test=True, unseen=1)
    plain = train(method, federation, **(SHORT | settings), unseen=1)
    assert same(sim.scored_models(), plain.scored_models(), 0)
    x, y = federation.test_images, federation.test_labels
    shares = federation.class_counts("train").double()
    shares = shares / shares.sum(1, keepdim=True)
    kinds = {"final": sim.scored_models()} | (
        {"final_before_ft": sim.personal_models()} if sim.config.ft_epochs else {}
    )
    for kind, models in kinds.items():
        found = sim.report()[kind]
        for i in range(5):
            right = (sim.method.predict(sim.network, row(models, i), x).argmax(1) == y).double()
            by_class = torch.stack([right[y == c].mean() for c in range(10)])
            assert found["global_test_clients"][i] == pytest.approx(right.mean().item(), abs=1e-12)
            assert found["local_test_clients"][i] == pytest.approx((shares[i] @ by_class).item(), abs=1e-12)
        seen = [i for i in range(5) if i not in sim.unseen.tolist()]
        for name in ("global_test", "local_test"):
            assert found[name] == pytest.approx(
                np.mean([found[f"{name}_clients"][i] for i in seen]), abs=1e-12
            )
    last = sim.history.rounds[-1]["whole_test"]
    assert set(last) - {"global"} == ({"personal", "tuned"} if sim.config.ft_epochs else {"personal"})
    assert ("global" in last) == (sim.method.global_model(sim.server) is not None)
    assert "whole_test" not in sim.history.rounds[0] and "local_test" not in plain.report()["final"]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            {"partition": "concept:2"},
            "labels that mean the same to all clients, but some of these see labels changed",
        ),
        ({"split": "fedem"}, "test images apart from the training images, which digits lacks here"),
        ({"whole_test": "perhaps"}, "whole_test must be true or false"),
        ({"augment": "rotate"}, "augment must be one of none, crop_flip, not rotate"),
    ],
)
def test_what_cannot_be_scored_or_augmented_is_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        untrained("fedavg", **({"whole_test": True} | settings))


def test_a_federation_that_relabels_is_not_scored_on_all_test_images() -> None:
    given = make_federation("digits", "concept:2", 4, 0)
    assert given.relabeled and not make_federation("digits", "iid", 4, 0).relabeled
    with pytest.raises(InputError, match="some of these see labels changed: leave it out"):
        run("fedavg", federation=given, rounds=1, whole_test=True)


def test_the_code_s_preset_is_what_the_docstring_says() -> None:
    paper, code = make_method("pfl_mf"), make_method("pfl_mf", **CODE)
    assert isinstance(paper, PFLMoE) and isinstance(code, PFLMoE)
    assert (paper.schedule, paper.gate_optimizer, paper.gate_lr, paper.gate_decay) == (
        "interleaved",
        "sgd",
        0.001,
        0,
    )
    assert all(f"{name}={value}" in (PFLMoE.__doc__ or "") for name, value in CODE.items())
