"""FedFomo and FedAMP: whose models a client listens to."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from toy import (
    LoopWork,
    by_hand,
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

from pfl_lite.methods import make_method
from pfl_lite.methods.base import Round, pack, unpack

LINEAR = {"model": "linear", "epochs": 1}


# ---- FedFomo --------------------------------------------------------------------------------------------------------


def meeting(
    own: float, others: list[float], before: float = 0.0, kind: type[LoopWork] = LoopWork, **settings: Any
) -> Any:
    """Client 0 of the two, whose one image is (+1, a), with models that set W_a alone; what `mix` answers."""
    sim = zero_start("fedfomo", models=1 + len(others), **settings)
    received = {k: torch.stack([model(w, w_b=0.0)[k] for w in others]) for k in model(0)}
    received |= {"places": torch.tensor([0] + [1] * len(others))}
    client = pack("own", model(own, w_b=0.0)) | pack("before", model(before, w_b=0.0))
    client |= {"weights": torch.zeros(2, dtype=torch.float64)}
    with torch.no_grad():
        return sim.method.updated(received, client, work_of(sim, 0, kind=kind))


def loss_at(w: float) -> float:
    """Cross-entropy of (+1, a) where only W_a is set."""
    return math.log(1 + math.exp(-w))


def test_fedfomo_update_by_hand() -> None:
    # from 0: the own model W_a = 1 gains log 2 - log(1 + 1/e) over a distance of 1, the other, W_a = 3, over a distance of 3
    mixed, _, scores = meeting(own=1.0, others=[3.0])
    gains = [loss_at(0) - loss_at(1), (loss_at(0) - loss_at(3)) / 3]
    assert scores.tolist() == pytest.approx(gains)
    expected = (gains[0] * 1 + gains[1] * 3) / sum(gains)
    assert of_class_a(mixed)[0] == pytest.approx(expected)


def test_fedfomo_step_by_hand() -> None:
    # round 1 is Local's: everybody's baseline is its own model. Then client 0 (+1, a) has W_a = b_a = 1/2 and client 1 has
    # W_a = -1/2, b_a = 1/6: for client 0 z_a - z_b is 2 and -2/3, so that it listens to itself alone and steps by s(-2).
    sim = zero_start("fedfomo", models=2, rounds=2)
    sim.step()
    assert of_class_a(unpack("own", sim.clients))[0] == pytest.approx([0.5, -0.5])
    assert sim.server["candidates"].tolist() == [[1], [0]]
    sim.step()
    assert sim.state()["weights"][0].tolist() == [1.0, 0.0]
    assert of_class_a(unpack("own", row(sim.clients, 0))) == pytest.approx([0.5 + s(-2), 0.5 + s(-2)])
    assert of_class_a(unpack("before", row(sim.clients, 0))) == pytest.approx([0.5, 0.5])
    gain, distance = math.log(2) - loss_at(-2 / 3), math.sqrt(2 * (1 / 4 + 1 / 36))
    assert sim.server["affinity"][0, 1].item() == pytest.approx(gain / distance)  # unclipped: below 0


def test_fedfomo_gives_no_weight_to_what_harms_and_none_to_its_own_baseline() -> None:
    _, state, scores = meeting(own=1.0, others=[-1.0, 0.0])
    assert scores[1] < 0 and scores[2] == 0 and scores[0] > 0
    assert state["weights"].tolist() == [1.0, 0.0]


def test_fedfomo_keeps_its_current_model_where_no_weight_is_positive() -> None:
    mixed, state, _ = meeting(own=-2.0, others=[-1.0])
    assert of_class_a(mixed)[0] == -2.0 and state["weights"].tolist() == [0.0, 0.0]
    assert same(unpack("before", state), mixed, 0) and same(unpack("own", state), mixed, 0)


@pytest.mark.parametrize("lost", [math.nan, math.inf])
def test_fedfomo_does_not_listen_to_a_model_that_is_lost(lost: float) -> None:
    mixed, state, scores = meeting(own=1.0, others=[lost, 3.0])
    assert scores[1] == 0 and state["weights"].isfinite().all()
    assert same(mixed, meeting(own=1.0, others=[3.0])[0])


def test_fedfomo_s_weights_do_not_feel_the_scale_of_the_loss() -> None:
    class Tripled(LoopWork):
        def held_out_loss(self, params: dict[str, torch.Tensor]) -> torch.Tensor:
            return 3 * super().held_out_loss(params)

    plain, tripled = meeting(1.0, [3.0]), meeting(1.0, [3.0], kind=Tripled)
    assert same(plain[0], tripled[0]) and torch.allclose(3 * plain[2], tripled[2])


def test_fedfomo_s_weights_are_a_distribution_or_all_zero(federation: Any) -> None:
    sim = train("fedfomo", federation, **LINEAR, rounds=4, participation=0.6)
    weights = sim.state()["weights"]
    total = weights.sum(1)
    assert (weights >= 0).all() and ((total == 0) | ((total - 1).abs() < 1e-12)).all() and (total > 0).any()


def test_fedfomo_clients_of_contradictory_groups_do_not_listen_to_each_other() -> None:
    labels = [0, 1, 1, 0] * 2
    data = by_hand([255, 0] * 4, labels, [[0, 1], [2, 3], [4, 5], [6, 7]])
    sim = train("fedfomo", data, clients=4, model="linear", lr=0.5, rounds=3, models=4)
    weights = sim.state()["weights"]
    across = torch.tensor([[0, 1, 0, 1], [1, 0, 1, 0]] * 2, dtype=torch.bool)
    assert (weights[across] == 0).all() and (weights.sum(1) > 0).all()


def test_fedfomo_judges_by_validation_images_where_there_are_any(federation: Any) -> None:
    for split in ("test", "val"):
        others = replace(federation, **{split: [rows[:4] for rows in getattr(federation, split)]})
        a, b = (train("fedfomo", data, **LINEAR).scored_models() for data in (federation, others))
        assert same(a, b, 0) == (split == "test")


def test_fedfomo_candidates_took_part_in_the_last_round_and_are_never_oneself(federation: Any) -> None:
    sim = untrained("fedfomo", federation, **LINEAR, participation=0.6, rounds=4, models=3)
    assert (sim.server["candidates"] == -1).all()
    for _ in range(3):
        ids = set(sim.step()["clients"])
        for i, chosen in enumerate(sim.server["candidates"].tolist()):
            named = [n for n in chosen if n >= 0]
            assert set(named) <= ids - {i} and len(set(named)) == len(named) == min(2, len(ids - {i}))


def test_fedfomo_sends_the_models_it_names_and_zeros_in_other_places(federation: Any) -> None:
    sim = untrained("fedfomo", federation, **LINEAR, participation=0.4, rounds=2, models=4)
    empty = 0
    for _ in range(2):
        sim.step()
        for i, chosen in enumerate(sim.server["candidates"].tolist()):
            received = sim.method.download(sim.server, {}, i)
            for name, models in unpack("model", sim.server).items():
                assert models.abs().sum() > 0
                for place, n in enumerate(chosen):
                    assert torch.equal(
                        received[name][place], models[n] if n >= 0 else torch.zeros_like(models[0])
                    )
            empty += sum(n < 0 for n in chosen)
    assert empty > 0


def test_fedfomo_asks_those_with_the_highest_summed_weights() -> None:
    method = make_method("fedfomo", models=3, epsilon=0.0)
    affinity = torch.tensor([[0.0, 3, 1, 2], [5, 0, -1, -2], [0, 0, 0, 1], [1, 2, 3, 0]])
    chosen = method.choose(affinity, Round(1, torch.arange(4), torch.ones(4), 4))
    assert chosen.tolist() == [[1, 3], [0, 2], [3, 0], [2, 1]]
    assert method.choose(affinity, Round(1, torch.tensor([2]), torch.ones(1), 4)).tolist() == [
        [2, -1],
        [2, -1],
        [-1, -1],
        [2, -1],
    ]


def test_fedfomo_explores_at_first_and_no_more_when_epsilon_has_fallen_to_0() -> None:
    method = make_method("fedfomo", models=2, epsilon=0.3)
    affinity = torch.eye(40).roll(1, 1)  # client i likes i + 1 best
    best = (torch.arange(40) + 1) % 40
    shares = []
    for number in (1, 3, 6):
        chosen = method.choose(affinity, Round(number, torch.arange(40), torch.ones(40), 40)).flatten()
        shares.append((chosen != best).double().mean().item())
    assert 0.05 < shares[0] < 0.5 and shares[2] == 0.0  # 0.25, 0.15 and 0 of the places
    again = method.choose(affinity, Round(1, torch.arange(40), torch.ones(40), 40)).flatten()
    assert (again != best).double().mean().item() == shares[0]


def test_fedfomo_counts_the_models_of_real_candidates_only(federation: Any) -> None:
    sim = train("fedfomo", federation, **LINEAR, models=3, rounds=2, participation=0.6)
    floats = [(entry["floats_down"], entry["floats_up"]) for entry in sim.history.rounds]
    assert floats == [(0, 0), (0, 3 * (650 + 3)), (floats[2][0], 3 * (650 + 3))]
    assert floats[2][0] % 650 == 0 and 0 < floats[2][0] <= 3 * 2 * 650


def test_fedfomo_keeps_the_model_that_was_uploaded_last(federation: Any) -> None:
    sim = untrained("fedfomo", federation, **LINEAR, participation=0.6)
    uploads, _ = worked(sim)
    ids = sim.step()["clients"]
    for i in range(5):
        stored = row(unpack("model", sim.server), i)
        expected = {k: uploads[k][i] for k in stored} if i in ids else sim.start
        assert same(stored, expected, 0)


def test_fedfomo_s_local_training_starts_from_the_mix_and_does_not_reach_the_baseline(
    federation: Any,
) -> None:
    sim = train("fedfomo", federation, **LINEAR)
    for i in range(5):
        client = row(sim.clients, i)
        with torch.no_grad():
            work = work_of(sim, i, 3)
            mixed, _, _ = sim.method.updated(sim.method.download(sim.server, client, i), client, work)
            trained = work.sgd(work.loss, mixed)
            upload, state = sim.method.local(
                sim.method.download(sim.server, client, i), client, work_of(sim, i, 3)
            )
        assert same(unpack("own", state), trained, 0) and same(unpack("before", state), mixed, 0)
        assert same({k: upload[k] for k in trained}, trained, 0)
    assert same(sim.personal_models(), unpack("own", sim.clients), 0)


# ---- FedAMP ---------------------------------------------------------------------------------------------------------


def attention(
    distance: list[list[float]], sigma: float, uploaded: list[bool], self_weight: float
) -> torch.Tensor:
    method = make_method("fedamp", self_weight=self_weight)
    return method.attention(
        torch.tensor(distance, dtype=torch.float64),
        torch.tensor(sigma, dtype=torch.float64),
        torch.tensor(uploaded),
    )


SQUARES = [[0.0, 1, 4], [1, 0, 9], [4, 9, 0]]


def test_fedamp_attention_by_hand() -> None:
    xi = attention(SQUARES, 2.0, [True] * 3, 0.4)
    near = [[math.exp(-d / 2) / 2 if d else 0.0 for d in line] for line in SQUARES]
    alpha = 0.6 / max(map(sum, near))  # client 1 or 0 has the nearest neighbours and keeps 0.4
    expected = [[alpha * v for v in line] for line in near]
    for i, line in enumerate(expected):
        line[i] = 1 - sum(line)
    assert xi.flatten().tolist() == pytest.approx([v for line in expected for v in line])
    assert min(xi.diagonal()).item() == pytest.approx(0.4) and (xi >= 0).all()
    assert torch.equal(xi, xi.T)


@pytest.mark.parametrize("sigma", [1e-12, 1e-3, 1.0, 1e6])
@pytest.mark.parametrize("self_weight", [0.0, 0.5])
def test_fedamp_attention_is_a_distribution_for_every_width(sigma: float, self_weight: float) -> None:
    distances = [[0.0, 0, 4], [0, 0, 1e6], [4, 1e6, 0]]  # two equal models, one far away
    xi = attention(distances, sigma, [True] * 3, self_weight)
    assert (xi >= -1e-15).all() and (xi.sum(1) - 1).abs().max() < 1e-12


def test_fedamp_attention_leaves_out_those_who_never_uploaded() -> None:
    xi = attention(SQUARES, 2.0, [True, False, True], 0.4)
    assert xi[1].tolist() == [0, 1, 0] and xi[:, 1].tolist() == [0, 1, 0] and xi[0, 2] == pytest.approx(0.6)


def test_fedamp_narrow_attention_is_the_identity_and_wide_attention_the_mean() -> None:
    assert torch.equal(attention(SQUARES, 1e-4, [True] * 3, 0.4), torch.eye(3, dtype=torch.float64))
    wide = attention(SQUARES, 1e12, [True] * 3, 1 / 3)
    assert torch.allclose(wide, torch.full((3, 3), 1 / 3, dtype=torch.float64), rtol=0, atol=1e-10)


def test_fedamp_width_is_the_median_squared_distance_after_the_first_round_and_then_fixed(
    federation: Any,
) -> None:
    sim = untrained("fedamp", federation, **LINEAR, rounds=3)
    uploads, _ = worked(sim)
    sim.step()
    flat = torch.cat([rows.flatten(1) for rows in uploads.values()], 1)
    squares = sorted(((flat[i] - flat[j]) ** 2).sum().item() for i in range(5) for j in range(i))
    median = (squares[4] + squares[5]) / 2
    assert sim.server["sigma"].item() == pytest.approx(median, abs=1e-12)
    sim.step()
    assert sim.server["sigma"].item() == pytest.approx(median, abs=1e-12)
    given = train("fedamp", federation, **LINEAR, rounds=1, sigma=0.7)
    assert given.server["sigma"].item() == 0.7


def test_fedamp_step_by_hand() -> None:
    # Round 1 pulls at nothing: u = w^0 = 0, where training starts. w_0 = (1/2, 1/2), w_1 = (-1/2, 1/6) for (W_a, b_a); a single
    # pair has xi_01 = 1 - 1/4. Client 0 then receives u = (1/4) w_0 + (3/4) w_1 = (-1/4, 1/4): z = 0, one step of 1/2.
    sim = zero_start("fedamp", self_weight=0.25, rounds=2, lam=0.3)
    sim.step()
    assert of_class_a(sim.clients) == [pytest.approx([0.5, -0.5]), pytest.approx([0.5, 1 / 6])]
    assert sim.server["sigma"].item() == pytest.approx(2 * 1 + 2 / 9)
    assert sim.state()["attention"].flatten().tolist() == pytest.approx([0.25, 0.75, 0.75, 0.25])
    uploads, _ = worked(sim, 2)
    assert of_class_a(row(uploads, 0)) == pytest.approx([0.25, 0.75])


def test_fedamp_from_its_own_model_is_pulled_to_the_mix_by_hand() -> None:
    # client 0 stands at (1/2, 1/2), z_a - z_b = 2, and u = (-1/4, 1/4): W_a moves by s(-2) - lam (1/2 + 1/4)
    sim = zero_start("fedamp", self_weight=0.25, rounds=2, lam=0.3, start="own")
    sim.step()
    uploads, _ = worked(sim, 2)
    assert of_class_a(row(uploads, 0)) == pytest.approx([0.5 + s(-2) - 0.3 * 0.75, 0.5 + s(-2) - 0.3 * 0.25])


def test_fedamp_is_not_local_and_lam_matters(federation: Any) -> None:
    settings = {**LINEAR, "lr": 0.05}
    local = train("local", federation, **settings).scored_models()
    mixed = [
        train("fedamp", federation, lam=lam, start="own", **settings).scored_models()
        for lam in (0.0, 1.0, 5.0)
    ]
    assert same(mixed[0], local) and not same(mixed[1], local, 1e-4) and not same(mixed[2], mixed[1], 1e-4)


def test_fedamp_absent_clients_stay_in_the_mix_with_their_last_model(federation: Any) -> None:
    sim = untrained("fedamp", federation, **LINEAR, participation=0.6, rounds=4)
    last = {i: sim.start for i in range(5)}
    seen: set[int] = set()
    for number in (1, 2):
        uploads, _ = worked(sim, number)
        ids = sim.step()["clients"]
        last |= {i: row(uploads, i) for i in ids}
        seen |= set(ids)
        xi = sim.state()["attention"]
        never = [i for i in range(5) if i not in seen]
        assert all(same(row(unpack("model", sim.server), i), last[i], 0) for i in range(5))
        assert torch.equal(xi[never], torch.eye(5, dtype=torch.float64)[never])
        assert all((xi[i, list(seen)] > 0).all() for i in seen)
        with torch.no_grad():
            u = sim.method.download(sim.server, row(sim.clients, ids[0]), ids[0])
        assert same(u, {k: sum(xi[ids[0], j] * last[j][k] for j in range(5)) for k in sim.start})


@pytest.mark.parametrize("when", [1, 2])
def test_fedamp_keeps_the_last_model_of_a_client_whose_upload_is_lost(federation: Any, when: int) -> None:
    method = make_method("fedamp")
    w = torch.tensor([[0.0, 0], [1, 0], [5, 5], [6, 5]])
    server, _ = method.init({"w": torch.zeros(2)}, untrained("fedamp", federation).network, 4)
    for number in (1, 2):
        sent = w.index_fill(0, torch.tensor([3]), torch.nan) if number == when else w
        server = method.aggregate(server, {"w": sent}, Round(number, torch.arange(4), torch.ones(4), 4))
        kept = torch.zeros(2) if number == when == 1 else w[3]
        assert torch.equal(server["model/w"][3], kept)
        assert (server["attention"][:3, 3] > 0).any() == (not number == when == 1)
    assert server["sigma"] > 0 and server["attention"].isfinite().all()


def test_fedamp_scores_the_client_s_own_model_and_sends_one_each_way(federation: Any) -> None:
    sim = train("fedamp", federation, **LINEAR)
    assert same(sim.personal_models(), sim.clients, 0) and same(sim.clients, unpack("model", sim.server), 0)
    last = sim.history.rounds[-1]
    assert last["floats_down"] == last["floats_up"] == 5 * 650
