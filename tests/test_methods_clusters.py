"""IFCA and Clustered FL: who is in which cluster, and what a cluster learns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from toy import (
    by_hand,
    model,
    of_class_a,
    opposed,
    row,
    s,
    same,
    tiny_clients,
    train,
    untrained,
    work_of,
    worked,
    zero_start,
)

from pfl_lite.engine.simulation import Simulation
from pfl_lite.methods import make_method
from pfl_lite.methods.base import Round, pack, unpack
from pfl_lite.methods.clusters import best_model, bipartition, mean_by_cluster, nearer_half

LINEAR = {"model": "linear"}


def stacked(*models: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: torch.stack([one[name] for one in models]) for name in models[0]}


def two_concepts() -> Any:
    """Clients 0, 2, 4 hold (+1, a) and (-1, b); clients 1, 3, 5 hold (+1, b) and (-1, a)."""
    labels = [0, 1, 1, 0] * 3
    return by_hand([255, 0] * 6, labels, [[2 * i, 2 * i + 1] for i in range(6)])


# ---- the mean in every cluster --------------------------------------------------------------------------------------


def test_mean_by_cluster_by_hand() -> None:
    uploads = {"w": torch.tensor([[1.0], [2.0], [5.0]])}
    previous = {"w": torch.tensor([[-1.0], [-2.0], [-3.0]])}
    means = mean_by_cluster(uploads, torch.tensor([2, 0, 2]), torch.tensor([1.0, 9.0, 3.0]), previous)
    assert means["w"].flatten().tolist() == pytest.approx([2.0, -2.0, 4.0])  # cluster 1 is empty


# ---- IFCA -----------------------------------------------------------------------------------------------------------


def test_ifca_s_models_start_from_different_draws(federation: Any) -> None:
    start = untrained("ifca", federation, **LINEAR).start
    assert all(not torch.equal(t[a], t[b]) for t in start.values() for a, b in ((0, 1), (0, 2), (1, 2)))


def test_ifca_relabelling_the_models_permutes_the_result(federation: Any) -> None:
    a, b = (untrained("ifca", federation, **LINEAR, epochs=1) for _ in range(2))
    order = [2, 0, 1]
    b.server = row(b.server, order)
    a.run()
    b.run()
    assert same(row(a.server, order), b.server) and same(a.scored_models(), b.scored_models())
    assert [order[j] for j in b.state()["cluster"].tolist()] == a.state()["cluster"].tolist()


def test_ifca_separates_clients_whose_labels_contradict(federation: Any) -> None:
    sim = zero_start("ifca", two_concepts(), clusters=2, rounds=3)
    sim.server = stacked(
        model(-0.1, 0.2), model(0.1, 0.1)
    )  # a little on either side: equal or extreme starts may collapse
    sim.run()
    assert sim.state()["cluster"].tolist() == [1, 0] * 3
    assert sim.report()["final"]["test_accuracy"] == [1.0] * 6


def test_ifca_puts_every_client_in_one_cluster_and_an_empty_cluster_keeps_its_model() -> None:
    sim = zero_start("ifca", clusters=2)
    start = stacked(model(0.0), model(5.0, 40.0))  # the second is wrong by far on the images of class b
    sim.server = start
    sim.federation = by_hand([255, 0], [1, 1], [[0], [1]])
    sim.map.federation = sim.federation
    sim.step()
    assert sim.state()["cluster"].tolist() == [0, 0]
    assert same(row(sim.server, 1), row(start, 1), 0) and not same(row(sim.server, 0), row(start, 0), 0.1)


def test_ifca_takes_the_first_of_equal_models() -> None:
    sim = zero_start("ifca", clusters=2)
    _, states = worked(sim)
    assert states["cluster"].tolist() == [0, 0]


def test_ifca_never_takes_a_model_that_is_lost() -> None:
    sim = zero_start("ifca", clusters=2)
    lost = {name: torch.stack([tensor * torch.nan, tensor]) for name, tensor in model(1).items()}
    assert best_model(lost, work_of(sim, 0)) == 1


def test_ifca_chooses_on_training_images_and_never_on_test_images(federation: Any) -> None:
    others = replace(federation, test=[rows[:4] for rows in federation.test[::-1]], val=federation.val[::-1])
    a, b = (train("ifca", data, **LINEAR, epochs=1) for data in (federation, others))
    assert same(a.scored_models(), b.scored_models(), 0)


def test_ifca_scores_the_cluster_chosen_over_the_final_models() -> None:
    sim = zero_start("ifca", clusters=2)
    sim.server = stacked(model(1.0), model(-1.0))
    sim.step()
    sim.server = row(sim.server, [1, 0])  # the choice is made anew, so that the models may change places
    assert of_class_a(sim.personal_models())[0] == pytest.approx([1 + s(-2), -1 - s(-2)])


def test_ifca_step_by_hand() -> None:
    # W_a = +1 suits client 0, whose gradient by the logit of a is -s(-1) where only W_a is set; W_a = -1 suits client 1: (+1, b)
    # has +s(-1), (-1, a) has -s(-1), so that the gradient by W_a is +s(-1) and by b_a (s(-1) - 2 s(-1)) / 3.
    sim = zero_start("ifca", clusters=2)
    sim.server = stacked(model(1.0, w_b=0.0), model(-1.0, w_b=0.0))
    sim.step()
    assert sim.state()["cluster"].tolist() == [0, 1]
    weight, bias = of_class_a(sim.server)
    assert weight == pytest.approx([1 + s(-1), -1 - s(-1)]) and bias == pytest.approx([s(-1), s(-1) / 3])


def test_ifca_weighs_members_by_their_images() -> None:
    # both clients choose the only model that fits, where FedAvg's mean by hand is (1 * 0.5 + 3 * -0.5) / 4
    sim = zero_start("ifca", clusters=2)
    sim.server = stacked(model(0.0), model(0.0, 99.0, b_b=-99.0))
    sim.federation = replace(sim.federation)
    sim.step()
    cluster = sim.state()["cluster"].tolist()
    assert cluster[1] == 0
    mine = [of_class_a(row(worked(zero_start("fedavg"))[0], i))[0] for i in (0, 1) if cluster[i] == 0]
    sizes = [size for size, j in zip((1, 3), cluster, strict=True) if j == 0]
    assert of_class_a(sim.server)[0][0] == pytest.approx(float(np.average(mine, weights=sizes)))


def test_ifca_counts_k_models_down_and_one_up(federation: Any) -> None:
    entry = train("ifca", federation, rounds=1, epochs=1, **LINEAR, clusters=2).history.rounds[1]
    assert (entry["floats_down"], entry["floats_up"]) == (5 * 2 * 650, 5 * 650)


# ---- Clustered FL ---------------------------------------------------------------------------------------------------


def test_bipartition_separates_opposite_directions_whatever_their_length() -> None:
    rng = torch.Generator().manual_seed(0)
    u = torch.randn(50, generator=rng, dtype=torch.float64)
    signs = torch.tensor([1.0, -1, -1, 1, -1, 1, 1])
    lengths = torch.tensor([1.0, 5, 0.01, 3, 1, 100, 0.2])
    noise = 0.05 * torch.randn(7, 50, generator=rng, dtype=torch.float64)
    halves = bipartition((signs * lengths)[:, None] * (u + noise))
    assert halves.tolist() == (signs < 0).tolist()  # False for the half of the first


def cells(sim: Simulation) -> list[list[int]]:
    """Every cell's members."""
    cluster = sim.server["cluster"]
    return [
        (cluster == c).nonzero().flatten().tolist()
        for c in range(len(unpack("cell", sim.server)["fc.weight"]))
    ]


SPLITS = {"eps1": 0.1, "eps2": 0.5, "warmup": 0}


def test_cfl_step_by_hand() -> None:
    # Updates +-u of norm 1 (four numbers of 1/2), whose mean is 0: the cell splits, and each half then moves by its own mean.
    sim = zero_start("cfl", opposed([+1, -1, -1, +1]), **SPLITS)
    sim.step()
    assert cells(sim) == [[0, 3], [1, 2]]
    weight, bias = of_class_a(unpack("cell", sim.server))
    assert weight == pytest.approx([0.5, -0.5]) and bias == pytest.approx([0.5, -0.5])
    assert of_class_a(sim.personal_models())[0] == pytest.approx([0.5, -0.5, -0.5, 0.5])


@pytest.mark.parametrize(
    ("settings", "splits"),
    [
        (
            {"eps1": 0.1, "eps2": 0.9},
            True,
        ),  # ||mean|| = 0, the norm over all four numbers is 1, no single one above 1/2
        ({"eps1": 0.1, "eps2": 1.1}, False),
        ({"eps1": 0.0, "eps2": 0.5}, False),  # 0 < 0 does not hold
        ({"gamma": 0.01}, True),  # in the place of both
        ({"gamma": 0.01, "eps1": 0.0}, True),
    ],
)
def test_cfl_compares_norms_over_all_parameters_with_its_thresholds(
    settings: dict[str, Any], splits: bool
) -> None:
    sim = zero_start("cfl", opposed([+1, -1, -1, +1]), **(SPLITS | settings))
    sim.step()
    assert len(cells(sim)) == (2 if splits else 1)


@pytest.mark.parametrize(("signs", "gamma", "splits"), [([1, 1, -1], 0.3, False), ([1, 1, -1], 0.4, True)])
def test_cfl_s_gamma_bounds_the_mean_relative_to_the_largest_update(
    signs: list[int], gamma: float, splits: bool
) -> None:
    sim = zero_start("cfl", opposed(signs), warmup=0, gamma=gamma)  # ||mean|| / max = 1/3
    sim.step()
    assert len(cells(sim)) == (2 if splits else 1)


@pytest.mark.parametrize("warmup", [0, 1, 2])
def test_cfl_splits_in_the_round_after_the_warm_up_and_not_before(warmup: int) -> None:
    sim = zero_start("cfl", opposed([+1, -1, -1, +1]), **(SPLITS | {"warmup": warmup}))
    counts = []
    for _ in range(3):
        sim.step()
        counts.append(len(cells(sim)))
    assert counts == [1] * warmup + [2] * (3 - warmup)


def test_cfl_never_splits_a_cell_of_two() -> None:
    sim = zero_start("cfl", opposed([+1, -1]), **SPLITS)
    sim.step()
    assert cells(sim) == [[0, 1]]


def test_cfl_s_cells_stay_a_partition_of_the_clients_over_several_levels() -> None:
    # hand-made updates: clients 1, 4, 6 point one way, the others another; inside each half two directions again
    method = make_method("cfl", gamma=0.99, warmup=0)
    angles = torch.tensor([0.0, 180, 5, 60, 240, 65, 185, 2])
    server, _ = method.init({"w": torch.zeros(2, dtype=torch.float64)}, None, 8)  # type: ignore[arg-type]
    sizes, ids = torch.ones(8), torch.arange(8)
    found = []
    for number in (1, 2):
        turned = torch.deg2rad(angles).double()
        updates = torch.stack([turned.cos(), turned.sin()], 1)
        uploads = {"w": unpack("cell", server)["w"][server["cluster"]] + updates}
        server = method.aggregate(server, uploads, Round(number, ids, sizes, 8))
        cluster = server["cluster"].tolist()
        found.append(
            [[i for i in range(8) if cluster[i] == c] for c in range(len(unpack("cell", server)["w"]))]
        )
        assert sorted(i for cell in found[-1] for i in cell) == list(range(8))
    assert found == [[[0, 2, 3, 5, 7], [1, 4, 6]], [[0, 2, 7], [1, 6], [3, 5], [4]]]
    start = torch.zeros(2, dtype=torch.float64)
    for cell, moved in zip(found[1], unpack("cell", server)["w"], strict=True):
        first = updates[
            [i for i in range(8) if any(i in half and cell[0] in half for half in found[0])]
        ].mean(0)
        assert torch.allclose(moved, start + first + updates[cell].mean(0), rtol=0, atol=1e-12)


@pytest.mark.parametrize("weights", ["size", "uniform"])
def test_cfl_s_means_have_one_kind_of_weights_in_the_test_and_in_the_step(weights: str) -> None:
    # updates (+1, -1, -1) of clients with 2, 1, 1 images: the weighted mean is 0, the uniform one -1/3
    method = make_method("cfl", eps1=0.1, eps2=0.5, warmup=0, weights=weights)
    server, _ = method.init({"w": torch.zeros(1, dtype=torch.float64)}, None, 3)  # type: ignore[arg-type]
    uploads = {"w": torch.tensor([[1.0], [-1.0], [-1.0]], dtype=torch.float64)}
    server = method.aggregate(server, uploads, Round(1, torch.arange(3), torch.tensor([2, 1, 1]), 3))
    moved = unpack("cell", server)["w"].flatten().tolist()
    assert moved == pytest.approx([1.0, -1.0] if weights == "size" else [-1 / 3])


def test_cfl_an_absent_client_follows_its_last_update_and_an_unknown_one_the_larger_half() -> None:
    updates = torch.tensor([[1.0, 0.0], [1, 0.1], [-1, 0.0]])
    second = torch.tensor([False, False, True])
    memory = {
        "known": torch.tensor([True, True, False]),
        "updates": torch.tensor([[-2.0, 0.1], [3, 0], [0, 0]]),
    }
    assert [nearer_half(memory, i, updates, second) for i in range(3)] == [True, False, False]
    assert nearer_half(memory, 2, updates, ~second)


def test_cfl_under_partial_participation_moves_absent_clients_with_their_like() -> None:
    method = make_method("cfl", gamma=0.5, warmup=1)
    server, _ = method.init({"w": torch.zeros(1, dtype=torch.float64)}, None, 6)  # type: ignore[arg-type]
    signs = torch.tensor([1.0, -1, 1, -1, -1, 1], dtype=torch.float64)[:, None]

    def after(server: dict[str, torch.Tensor], number: int, ids: list[int]) -> dict[str, torch.Tensor]:
        here = torch.tensor(ids)
        uploads = {"w": unpack("cell", server)["w"][server["cluster"][here]] + signs[here]}
        return method.aggregate(server, uploads, Round(number, here, torch.ones(len(ids)), 6))

    server = after(server, 1, [3, 4])
    server = after(server, 2, [0, 1, 2])
    # 3 and 4 were seen with -1; 5 never was and joins the larger half
    assert server["cluster"].tolist() == [0, 1, 0, 1, 1, 0]
    known = server["known"].tolist()
    assert known == [True] * 5 + [False]
    assert "updates" not in after(
        method.init({"w": torch.zeros(1, dtype=torch.float64)}, None, 6)[0], 1, list(range(6))
    )  # type: ignore[arg-type]


def test_cfl_clients_train_the_model_of_their_own_cell(federation: Any) -> None:
    sim = zero_start("cfl", opposed([+1, -1, -1, +1]), **SPLITS, rounds=2)
    sim.step()
    uploads, _ = worked(sim, 2)
    step = s(-2)  # from W_a = 1/2, b_a = 1/2 and the opposite for class b: z_a - z_b = 2
    assert of_class_a(uploads)[0] == pytest.approx([0.5 + step, -0.5 - step, -0.5 - step, 0.5 + step])


def test_cfl_a_newcomer_chooses_its_cell_on_training_images_and_a_member_stays_by_hand() -> None:
    # both hold (+1, b), which W_a = -1 suits; the server counts both to the cell of W_a = +1; only client 0 ever took part
    sim = zero_start("cfl", opposed([-1, -1]))
    sim.server = sim.server | pack("cell", stacked(model(1.0), model(-1.0)))
    sim.round, sim.sampled = 1, torch.tensor([True, False])
    assert of_class_a(sim.personal_models())[0] == [1.0, -1.0]
    assert sim.state()["cluster"].tolist() == [0, 0] and sim.clients["chosen"].tolist() == [
        -1,
        -1,
    ]  # looking keeps nothing


def test_cfl_finds_the_two_concepts_and_is_right_on_both() -> None:
    sim = zero_start("cfl", two_concepts(), gamma=0.1, warmup=0, rounds=3)
    sim.run()
    assert sim.state()["cluster"].tolist() == [0, 1] * 3
    assert sim.report()["final"]["test_accuracy"] == [1.0] * 6


def test_cfl_s_scored_models_are_never_those_of_test_images() -> None:
    data = tiny_clients()
    others = replace(data, test=[rows[:1] for rows in data.test[::-1]])
    settings = {"clients": 4, **LINEAR, "gamma": 0.9, "warmup": 0, "participation": 0.75, "epochs": 1}
    a, b = (train("cfl", one, **settings) for one in (data, others))
    assert same(a.scored_models(), b.scored_models(), 0)


def test_cfl_s_server_holds_one_model_a_cell_and_counts_one_model_each_way(federation: Any) -> None:
    sim = train("cfl", federation, **LINEAR, gamma=0.9, warmup=0, epochs=1)
    models = sim.method.inspect(sim.server, sim.clients)[0]
    assert len(models["fc.weight"]) == len(sim.state()["cluster"].unique()) > 1
    assert same(pack("cell", models), {k: t for k, t in sim.server.items() if k.startswith("cell/")}, 0)
    last = sim.history.rounds[-1]
    assert last["floats_down"] == last["floats_up"] == 5 * 650
