"""pFedHN: models written by a network at the server."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from toy import (
    five_clients,
    model,
    of_class_a,
    restart,
    row,
    same,
    train,
    untrained,
    work_of,
    worked,
    zero_start,
)

from pfl_lite.methods.base import unpack

LINEAR = {"model": "linear"}
PLAIN = {"server_momentum": 0.0, "server_decay": 0.0}


def linear_writer(slopes: dict[str, torch.Tensor], **settings: Any) -> Any:
    """theta = V e + c with one number an embedding, e = (2, -1), c = 0 and the given V, for the two clients."""
    sim = zero_start("pfedhn", depth=0, embedding=1, **(PLAIN | settings))
    start = dict(sim.start) | {"embedding": torch.tensor([[2.0], [-1.0]], dtype=torch.float64)}
    start |= {f"hyper/{name}.weight": tensor.reshape(-1, 1) for name, tensor in slopes.items()}
    restart(sim, start)
    return sim


def written(sim: Any) -> tuple[Any, Any]:
    """([W_a, b_a] of V, [W_a, b_a] of c)."""
    name = {"weight": "hyper/fc.weight.weight", "bias": "hyper/fc.bias.weight"}
    slope = [sim.server[name["weight"]][0, 0].item(), sim.server[name["bias"]][0, 0].item()]
    return slope, [
        sim.server["hyper/fc.weight.bias"][0, 0].item(),
        sim.server["hyper/fc.bias.bias"][0].item(),
    ]


def test_pfedhn_step_by_hand() -> None:
    # theta = 0 for both, so that delta is lr times the gradients (-1/2, -1/2) and (1/2, -1/6) of (W_a, b_a). The mean over the
    # two: V moves by -eta (1/2) sum_i e_i delta_i, c by -eta (1/2) sum_i delta_i, and e_i by V . delta_i = 0.
    sim = linear_writer(model(0.0), server_lr=0.8)
    uploads, _ = worked(sim)
    assert of_class_a(uploads) == [pytest.approx([-0.5, 0.5]), pytest.approx([-0.5, -1 / 6])]
    sim.step()
    slope, constant = written(sim)
    assert slope == pytest.approx([0.8 / 2 * (2 * 0.5 + 0.5), 0.8 / 2 * (2 * 0.5 - 1 / 6)])
    assert constant == pytest.approx([0.0, 0.8 / 2 * (0.5 + 1 / 6)])
    assert sim.server["embedding"].flatten().tolist() == [2.0, -1.0]
    assert of_class_a(sim.personal_models())[0] == pytest.approx([2 * slope[0], -slope[0]])


def test_pfedhn_moves_an_embedding_along_what_its_model_asked_for() -> None:
    # delta of client i is theta_i minus what it trained to; e_i's gradient is V . delta_i over all four numbers, times 1/S
    sim = linear_writer(model(0.3, 0.1), server_lr=0.5)
    uploads, _ = worked(sim)
    asked = [sum((model(0.3, 0.1)[k] * uploads[k][i]).sum().item() for k in uploads) for i in range(2)]
    sim.step()
    assert sim.server["embedding"].flatten().tolist() == pytest.approx(
        [2 - 0.25 * asked[0], -1 - 0.25 * asked[1]]
    )


def test_pfedhn_of_one_client_with_a_free_constant_is_sgd_at_the_product_of_the_rates(
    federation: Any,
) -> None:
    # e = 0: nothing but c writes the model, and c -= eta_server (theta - trained) = eta_server eta gradient
    one = five_clients()
    one = type(one)(**{**vars(one), "train": one.train[:1], "val": one.val[:1], "test": one.test[:1]})
    settings = {**LINEAR, "clients": 1, "batch_size": 10_000, "epochs": 1, "rounds": 3}
    sim = untrained("pfedhn", one, **settings, depth=0, embedding=1, server_lr=0.25, **PLAIN, lr=0.4)
    restart(sim, {name: torch.zeros_like(t) for name, t in sim.start.items()})
    plain = untrained("fedavg", one, **settings, lr=0.1)
    restart(plain, {name: torch.zeros_like(t) for name, t in plain.start.items()})
    sim.run()
    plain.run()
    assert same(row(sim.personal_models(), 0), plain.server)


def test_pfedhn_s_server_step_is_torch_s_sgd_on_the_chain_rule(federation: Any) -> None:
    """With momentum, weight decay and a clipped norm, over two rounds of some of the clients."""
    settings = {
        "server_lr": 0.3, "server_momentum": 0.5, "server_decay": 0.01, "clip": 0.02, "depth": 2, "hidden": 7,
    }  # fmt: skip
    sim = untrained("pfedhn", federation, **LINEAR, **settings, participation=0.6, epochs=1)
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in sim.start.items()}
    torch_s = torch.optim.SGD(leaves.values(), lr=0.3, momentum=0.5, weight_decay=0.01)
    for number in (1, 2):
        uploads, _ = worked(sim, number)
        ids = sim.sample(number).tolist()
        torch_s.zero_grad()
        for i in ids:
            x = leaves["embedding"][i]
            for layer in ("hidden1", "hidden2"):
                x = F.relu(leaves[f"hyper/{layer}.weight"] @ x + leaves[f"hyper/{layer}.bias"])
            for name in ("fc.weight", "fc.bias"):
                theta = (leaves[f"hyper/{name}.weight"] @ x).reshape(uploads[name][i].shape) + leaves[
                    f"hyper/{name}.bias"
                ]
                theta.backward(uploads[name][i] / len(ids), retain_graph=True)
        gradients = [tensor.grad for tensor in leaves.values()]
        norm = torch.cat([gradient.flatten() for gradient in gradients]).norm()
        assert norm > 0.02  # it is clipped
        for gradient in gradients:
            gradient *= 0.02 / norm
        torch_s.step()
        sim.step()
        assert same({k: sim.server[k] for k in leaves}, {k: t.detach() for k, t in leaves.items()})


def test_pfedhn_does_not_clip_what_is_short_enough(federation: Any) -> None:
    settings = {**LINEAR, "epochs": 1, "rounds": 1}
    a, b = (train("pfedhn", federation, clip=clip, **settings).server for clip in (50.0, 1e6))
    assert same(a, b, 0)


def test_pfedhn_embeddings_have_one_number_and_one_more_for_every_four_clients(federation: Any) -> None:
    assert untrained("pfedhn", federation, **LINEAR).server["embedding"].shape == (5, 2)
    assert untrained("pfedhn", federation, **LINEAR, embedding=7).server["embedding"].shape == (5, 7)
    start = untrained("pfedhn", federation, **LINEAR).start["embedding"]
    assert len({tuple(e.tolist()) for e in start}) == 5


def test_pfedhn_writes_another_model_for_every_client_and_sends_only_that(federation: Any) -> None:
    sim = train("pfedhn", federation, rounds=1, epochs=1)
    models = sim.personal_models()
    assert models.keys() == sim.network.init(0).keys()
    assert all(len({tuple(one.flatten().tolist()) for one in rows}) == 5 for rows in models.values())
    entry = sim.history.rounds[1]
    assert entry["floats_down"] == entry["floats_up"] == 5 * 3_658
    assert sim.clients == {}  # embeddings and hypernetwork never leave the server


def test_pfedhn_clients_train_the_model_as_written_and_answer_with_how_far_they_went(federation: Any) -> None:
    sim = train("pfedhn", federation, **LINEAR, rounds=1, momentum=0.5)
    uploads, _ = worked(sim, 2)
    with torch.no_grad():
        theta = sim.method.generate(sim.server, sim.server["embedding"][3])
        work = work_of(sim, 3, 2)
        trained = work.sgd(work.loss, theta)
    assert same(row(uploads, 3), {k: theta[k] - trained[k] for k in theta}, 0)


def test_pfedhn_keeps_the_momentum_of_its_server_from_round_to_round(federation: Any) -> None:
    sim = train("pfedhn", federation, **LINEAR, rounds=1, epochs=1)
    before, velocity = dict(sim.server), unpack("velocity", sim.server)
    zero = {name: torch.zeros(5, *t.shape, dtype=t.dtype) for name, t in sim.network.init(0).items()}
    from pfl_lite.methods.base import Round

    after = sim.method.aggregate(before, zero, Round(2, torch.arange(5), torch.ones(5), 5))
    for name, v in velocity.items():  # nothing was asked for: momentum and decay alone
        step = 0.9 * v + 0.001 * before[name]
        assert torch.allclose(after[name], before[name] - 0.01 * step, rtol=0, atol=1e-15)


def test_pfedhn_decay_reaches_every_embedding_and_nothing_else_reaches_an_absent_one(federation: Any) -> None:
    for decay in (0.0, 0.1):
        sim = untrained("pfedhn", federation, **LINEAR, server_decay=decay, participation=0.4, epochs=1)
        ids = sim.step()["clients"]
        for i in set(range(5)) - set(ids):
            expected = sim.start["embedding"][i] * (1 - 0.01 * decay)
            assert torch.allclose(sim.server["embedding"][i], expected, rtol=0, atol=1e-15)
