"""The engine: two mappings agree, looking changes nothing, runs repeat and resume, floats and scores are counted right."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from toy import FAST, five_clients, same, tiny_clients, train

from pfl_lite import __version__
from pfl_lite.config import make_config
from pfl_lite.data.federation import make_federation
from pfl_lite.data.images import load
from pfl_lite.engine.history import DIVERGED
from pfl_lite.engine.local_training import epoch_orders
from pfl_lite.engine.report import code_version, load_model
from pfl_lite.engine.rounds import finite
from pfl_lite.engine.simulation import Simulation, run
from pfl_lite.errors import InputError
from pfl_lite.methods import METHODS, FedAvg, FedProx
from pfl_lite.models import NETWORKS, make_network

LAYERED = {"pfl_fb", "fedper", "fedrep", "lg_fedavg", "pfedmb", "moon", "pfl_mf", "pfl_mfe"}


def quick(method: str, **settings: Any) -> dict[str, Any]:
    """One local epoch on softmax regression, but on several layers for a method that tells layers apart; no fine-tuning
    for the one method whose scored model cannot be tuned.
    """
    usual: dict[str, Any] = {"epochs": 1, "model": "small_cnn" if method in LAYERED else "linear"}
    usual |= {
        "cfl": {"gamma": 0.9, "warmup": 0},
        "fedrep": {"head_epochs": 2},
        "moon": {"projection": 8},
        "fedmn": {"encoder_width": 6, "width": 5, "router_width": 4, "label_width": 3},
    }.get(method, {})
    kept = {name: value for name, value in settings.items() if method != "fedem" or name[:3] != "ft_"}
    return usual | kept


def simulation(federation: Any, method: str | FedAvg = "fedavg", **settings: Any) -> Simulation:
    return Simulation(make_config(method, **(FAST | settings)), federation)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("mode", ["own_update", "plain_sgd"])
def test_vmap_equals_loop(federation: Any, method: str, mode: str) -> None:
    settings = {"participation": 0.6, "momentum": 0.5, "weight_decay": 0.01}
    settings = quick(method, **settings, ft_epochs=1, ft_mode=mode)
    a, b = (train(method, federation, engine=engine, **settings) for engine in ("loop", "vmap"))
    assert same(a.scored_models(), b.scored_models(), 1e-10) and same(a.server, b.server, 1e-10)
    for name in ("test_loss", "test_accuracy"):
        assert a.report()["final"][name] == pytest.approx(b.report()["final"][name], abs=1e-10)
    assert a.map.images_trained == b.map.images_trained
    floats = [(entry["floats_down"], entry["floats_up"]) for entry in a.history.rounds]
    assert floats == [(entry["floats_down"], entry["floats_up"]) for entry in b.history.rounds]


def test_vmap_equals_loop_where_a_client_has_no_validation_or_test_images(federation: Any) -> None:
    none = torch.tensor([], dtype=torch.int64)
    bare = replace(federation, val=[none] * 5, test=[none, *federation.test[1:]])
    a, b = (
        train("pfedmb", bare, engine=engine).report()["final"]["test_loss"] for engine in ("loop", "vmap")
    )
    assert a[0] is None and b[0] is None and a[1:] == pytest.approx(b[1:], abs=1e-10)


@pytest.mark.parametrize("method", METHODS)
def test_looking_changes_no_model(federation: Any, method: str) -> None:
    often = train(method, federation, **quick(method, rounds=3, eval_every=1, ft_epochs=1, ft_every=1))
    seldom = train(method, federation, **quick(method, rounds=3, eval_every=3, ft_epochs=1))
    assert often.diverged_in is None  # nor does any method keep numbers that are not finite
    assert same(often.server, seldom.server, 0) and same(often.clients, seldom.clients, 0)
    assert same(often.scored_models(), seldom.scored_models(), 0)


@pytest.mark.parametrize("method", ["fedavg", "pfedmb"])
def test_fine_tuning_that_is_the_next_round_s_work_is_done_once_and_exactly(
    federation: Any, method: str
) -> None:
    ahead = train(method, federation, ft_epochs=2, ft_every=1)
    apart = simulation(federation, method, ft_epochs=2)
    apart.run()
    assert same(apart.personal_models(), ahead.personal_models(), 0)
    by_itself = Simulation(
        replace(apart.config, ft_epochs=3, epochs=2), federation
    )  # 3 epochs: cannot be shared
    by_itself.run()
    assert not same(by_itself.scored_models(), ahead.scored_models(), 1e-9)
    by_itself.config = replace(by_itself.config, ft_epochs=2, epochs=3)
    assert same(by_itself.tuned_models(), ahead.scored_models(), 0)


OTHER_TUNING = {"ft_lr": 0.02, "ft_momentum": 0.7, "ft_weight_decay": 0.05, "ft_batch_size": 16}


@pytest.mark.parametrize("names", [(name,) for name in OTHER_TUNING] + [tuple(OTHER_TUNING)])
def test_fine_tuning_has_its_own_sgd_and_training_keeps_the_run_s(
    federation: Any, names: tuple[str, ...]
) -> None:
    common = {"model": "linear", "epochs": 1, "ft_epochs": 1, "momentum": 0.5}
    plain = train("fedavg", federation, **common)
    sim = train("fedavg", federation, **common, **{name: OTHER_TUNING[name] for name in names})
    assert same(sim.server, plain.server, 0)
    assert not same(sim.scored_models(), plain.scored_models(), 1e-6)
    # the same as a run that goes on from there under those settings
    onward = simulation(
        federation, **common | {name.removeprefix("ft_"): OTHER_TUNING[name] for name in names}
    )
    onward.server, onward.round = sim.server, sim.round
    (_, _, models), _ = onward.local_work(3, onward.everyone)
    assert same(sim.scored_models(), models, 0)


@pytest.mark.parametrize("settings", [{"patience": 2}, {"ft_epochs": 1, "ft_factors": "0,1"}])
def test_what_looks_at_validation_images_is_refused_where_there_are_none(settings: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"{[*settings][-1]} must be left out where there are no validation"):
        Simulation(make_config("fedavg", **(FAST | settings | {"clients": 4})), tiny_clients())


def test_a_run_that_diverges_says_once_who_and_when_and_what_may_help(
    federation: Any, tmp_path: Path
) -> None:
    sim = simulation(federation, model="linear", epochs=1, rounds=3, lr=0.1)
    sim.step()
    sim.settings = replace(sim.settings, lr=np.inf)
    said = r"fedavg diverged: after round 2 5 clients, 0 the first of them, had weights .*below 0\.1$"
    with pytest.warns(UserWarning, match=said) as told:
        sim.run(checkpoint=tmp_path / "a.pt")
    assert len(told) == 1 and sim.diverged_in == 2
    assert [entry.get("diverged") for entry in sim.report()["rounds"]] == [
        None,
        None,
        list(range(5)),
        list(range(5)),
    ]
    again = simulation(federation, model="linear", epochs=1, rounds=3, lr=0.1)
    again.load(tmp_path / "a.pt")
    assert again.diverged_in == 2


def test_a_client_is_lost_with_one_number_in_what_it_sends_or_keeps() -> None:
    ids = torch.tensor([3, 5, 8])
    sent = {"w": torch.zeros(3, 2, 2), "none": torch.zeros(3, 0), "count": torch.ones(3, dtype=torch.int64)}
    kept = {"alpha": torch.zeros(3), "seen": torch.tensor([True, False, True])}
    assert finite(ids, sent, kept).tolist() == [True, True, True]
    sent["w"][0, 1, 1], kept["alpha"][2] = -torch.inf, torch.nan
    assert finite(ids, sent, kept).tolist() == [False, True, False]
    assert finite(ids, {}, {}).tolist() == [True, True, True]


def test_same_configuration_same_numbers_and_another_seed_others(federation: Any) -> None:
    a, b = train("fedavg", federation), train("fedavg", federation)
    assert same(a.server, b.server, 0)
    assert not same(a.server, train("fedavg", federation, seed=4).server, 1e-3)


PRETRAINED = {"pretrain": 1, "model": "mlp", "encoder_width": 64, "width": 64}


@pytest.mark.parametrize(("method", "own"), [*((method, {}) for method in METHODS), ("fedmn", PRETRAINED)])
def test_stopped_and_resumed_is_bit_equal(
    federation: Any, method: str, own: dict[str, Any], tmp_path: Path
) -> None:
    settings = quick(method, rounds=3, participation=0.6, momentum=0.9, ft_epochs=1, ft_every=1, **own)
    whole = train(method, federation, **settings)
    first = simulation(federation, method, **settings)
    first.step()
    first.save(tmp_path / "run.pt")
    second = simulation(federation, method, **settings)
    assert second.run(checkpoint=tmp_path / "run.pt")
    assert same(whole.server, second.server, 0) and same(whole.clients, second.clients, 0)
    assert (
        whole.report()["rounds"] == second.report()["rounds"]
        and whole.report()["final"] == second.report()["final"]
    )


def test_the_round_that_tuning_computes_ahead_is_counted_once_over_a_stop(
    federation: Any, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"model": "linear", "rounds": 3, "ft_epochs": FAST["epochs"], "ft_every": 1}
    whole, first = train("local", federation, **settings), simulation(federation, "local", **settings)
    assert whole.tuning_is_next_round
    assert not first.run(checkpoint=tmp_path / "run.pt", stop=lambda: first.round == 2)
    second = simulation(federation, "local", **settings)
    assert second.run(checkpoint=tmp_path / "run.pt")
    assert second.map.images_trained == whole.map.images_trained


@pytest.mark.parametrize(
    "settings",
    [
        {"eval_every": 4},
        {"ft_epochs": 1},
        {"whole_test": True},
        {"ft_epochs": 1, "ft_every": 1, "ft_factors": "0,1"},
    ],
)
def test_a_run_that_goes_on_for_more_rounds_has_the_scores_of_a_whole_one(
    federation: Any, settings: dict[str, Any], tmp_path: Path
) -> None:
    settings = {"model": "linear", "epochs": 1, **settings}
    train("ifca", federation, rounds=3, **settings).save(tmp_path / "run.pt")
    longer = simulation(federation, "ifca", rounds=5, **settings)
    assert longer.run(checkpoint=tmp_path / "run.pt")
    whole = train("ifca", federation, rounds=5, **settings)
    assert longer.history == whole.history and same(longer.scored_models(), whole.scored_models(), 0)


def test_a_stop_comes_between_rounds_and_the_checkpoint_goes_on(federation: Any, tmp_path: Path) -> None:
    sim = simulation(federation)
    assert not sim.run(checkpoint=tmp_path / "run.pt", stop=lambda: True) and sim.round == 0
    assert sim.run(checkpoint=tmp_path / "run.pt") and sim.round == sim.config.rounds


def test_checkpoints_of_other_runs_and_damaged_ones_are_refused(federation: Any, tmp_path: Path) -> None:
    path = tmp_path / "run.pt"
    simulation(federation).save(path)
    with pytest.raises(InputError, match=r"another configuration \(it differs in lr\)"):
        simulation(federation, lr=0.2).load(path)
    longer = simulation(federation)
    longer.run()
    longer.save(tmp_path / "longer.pt")
    rounds = longer.round
    with pytest.raises(
        InputError, match=rf"already at round {rounds}: .* or more, or name another checkpoint"
    ):
        simulation(federation, rounds=rounds - 1).load(tmp_path / "longer.pt")
    # A checkpoint of before a setting existed belongs to the run that has it at its default, and to no other.
    content = torch.load(path, weights_only=True)
    del content["config"]["split"]
    torch.save(content, path)
    simulation(federation).load(path)
    with pytest.raises(InputError, match=r"it differs in split"):
        simulation(replace(federation, split=None), split="fedem").load(path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(
        InputError, match="cannot be read: name another file, or delete this one if it is a checkpoint"
    ):
        simulation(federation).load(path)
    for foreign in ({"w": torch.zeros(3)}, torch.zeros(3)):  # of torch, but no checkpoint
        torch.save(foreign, path)
        with pytest.raises(InputError, match="cannot be read: name another file"):
            simulation(federation).load(path)


def test_a_checkpoint_of_other_clients_of_the_same_sizes_is_refused(federation: Any, tmp_path: Path) -> None:
    simulation(federation).save(tmp_path / "run.pt")
    moved = replace(federation, train=[part.flip(0) for part in federation.train])
    with pytest.raises(
        InputError,
        match=r"other images or labels: name another checkpoint \(or folder of kept runs\), or delete this one",
    ):
        simulation(moved).load(tmp_path / "run.pt")


def test_files_are_named_by_words_too_and_run_keeps_a_checkpoint(tmp_path: Path) -> None:
    path, settings = str(tmp_path / "run.pt"), {"data": "digits", "model": "linear", "clients": 3}
    run("fedavg", checkpoint=path, rounds=1, **settings)
    on = run("fedavg", checkpoint=path, rounds=2, **settings)
    assert on.history.rounds == run("fedavg", rounds=2, **settings).history.rounds
    on.save(path)
    on.load(path)
    on.save_models(str(tmp_path / "models.npz"))
    load_model(str(tmp_path / "models.npz"), on.network)
    with pytest.raises(InputError, match=r"load_model needs a network of make_network.*, not Linear"):
        load_model(str(tmp_path / "models.npz"), on.network.to_module(on.server))  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["fedavg", "pfl_moe"])
def test_tuned_models_of_other_tensors_are_refused(method: str, federation: Any, tmp_path: Path) -> None:
    path, settings = tmp_path / "run.pt", {"model": "small_cnn", "ft_epochs": 1, "ft_every": 1}
    train(method, federation, rounds=1, **settings).save(path)
    good = torch.load(path, weights_only=True)
    simulation(federation, method, rounds=2, **settings).load(path)
    name, rows = next(iter(good["tuned"].items()))
    for planted in ({name: rows[..., :-1]}, {name: rows[1:]}, {name: rows.half()}, {"more": rows}):
        torch.save(good | {"tuned": good["tuned"] | planted}, path)
        with pytest.raises(InputError, match="tuned models are not those of this run's clients"):
            simulation(federation, method, rounds=2, **settings).load(path)
    torch.save(good | {"tuned": None}, path)  # a finished run would report what it did not score
    with pytest.raises(InputError, match="tuned models are not those that its last round scored"):
        simulation(federation, method, rounds=2, **settings).load(path)


def test_an_heir_that_tunes_nothing_keeps_no_tuned_models(federation: Any, tmp_path: Path) -> None:
    path, base = tmp_path / "run.pt", train("pfl_ft", federation, ft_epochs=1)
    base.save(path)
    heir = simulation(federation, "fedavg")
    heir.load(path, base.config)
    assert same(heir.scored_models(), heir.personal_models(), 0)


def test_a_training_is_taken_over_only_where_it_would_be_the_same(federation: Any, tmp_path: Path) -> None:
    path, base = tmp_path / "fedavg.pt", train("fedavg", federation, model="small_cnn", participation=0.6)
    base.save(path)
    settings: dict[str, Any] = {"model": "small_cnn", "participation": 0.6, "ft_epochs": 1}
    for method, tuning in (("pfl_mf", {"ft_lr": 0.03}), ("pfl_ft", {})):
        alone = train(method, federation, **settings, **tuning)
        heir = simulation(federation, method, **settings, **tuning)
        heir.load(path, base.config)
        assert heir.run() and heir.report()["rounds"] == alone.report()["rounds"]
        assert same(heir.scored_models(), alone.scored_models(), 0) and heir.report()["complete"]
        assert heir.map.images_trained == alone.map.images_trained
    longer = simulation(federation, "pfl_mf", **settings, rounds=3)
    longer.load(path, base.config)
    assert longer.run() and same(longer.server, train("pfl_mf", federation, **settings, rounds=3).server, 0)
    for method, other in (
        ("pfl_mf", {"lr": 0.2}),
        ("pfl_mf", {"weights": "uniform"}),
        ("fedprox", {}),
        ("ditto", {}),
        ("local", {}),
    ):
        with pytest.raises(
            InputError, match=f"{method} does not train as fedavg does: it needs a run of its own"
        ):
            simulation(federation, method, **(settings | other)).load(path, base.config)


def test_participation_counts_and_never_sampled_clients_keep_their_state(federation: Any) -> None:
    sim = train("fedper", federation, participation=0.4, rounds=1)
    ids = sim.history.rounds[1]["clients"]
    assert len(ids) == 2 == len(set(ids))
    absent = [i for i in range(5) if i not in ids]
    start = sim.start["fc2.weight"]
    assert all(torch.equal(sim.clients["fc2.weight"][i], start) for i in absent)
    assert not any(torch.equal(sim.clients["fc2.weight"][i], start) for i in ids)


def test_batches_of_one_phase_do_not_depend_on_other_phases_rounds_or_clients() -> None:
    a = epoch_orders(0, 1, 2, "weights", 20, 3)
    assert a.shape == (3, 20) and all(sorted(row) == list(range(20)) for row in a)
    assert not np.array_equal(a[0], a[1])  # every epoch has an order of its own
    others = [(1, 1, 2, "weights"), (0, 2, 2, "weights"), (0, 1, 3, "weights"), (0, 1, 2, "alpha")]
    assert all(not np.array_equal(a, epoch_orders(*key, 20, 3)) for key in others)
    assert np.array_equal(a[:2], epoch_orders(0, 1, 2, "weights", 20, 2))
    assert epoch_orders(0, 1, 2, "weights", 20, 0).shape == (0, 20)


@pytest.mark.parametrize(
    ("method", "settings", "down", "up"),
    [
        ("local", {}, 0, 0),
        ("fedavg", {}, 3_658, 3_658),
        ("fedper", {}, 3_658 - 330, 3_658 - 330),
        ("pfedmb", {"branches": 3}, 3 * 3_658, 3 * 3_658 + 3 * 4),
        ("pfedmb", {"branches": 3, "alpha_scope": "shared"}, 3 * 3_658, 3 * 3_658 + 3),
    ],
)
def test_floats_are_counted_from_what_travels(
    federation: Any, method: str, settings: dict[str, Any], down: int, up: int
) -> None:
    entry = train(method, federation, rounds=1, participation=0.6, **settings).history.rounds[1]
    assert (entry["floats_down"], entry["floats_up"]) == (3 * down, 3 * up)  # three sampled clients


def test_scores_are_what_torch_says(federation: Any) -> None:
    sim = train("fedavg", federation)
    rows = federation.test[2]
    logits = sim.network(sim.server, federation.test_images[rows])
    final = sim.report()["final"]
    assert final["test_accuracy"][2] == pytest.approx(
        (logits.argmax(1) == federation.test_labels[rows]).double().mean().item()
    )
    loss = torch.nn.functional.cross_entropy(logits, federation.test_labels[rows]).item()
    assert final["test_loss"][2] == pytest.approx(loss, abs=1e-12)
    last = sim.history.rounds[-1]
    assert last["personal_accuracy"] == pytest.approx(np.mean(final["test_accuracy"]))
    assert last["personal_accuracy_weighted"] == pytest.approx(
        np.average(final["test_accuracy"], weights=final["test_size"])
    )
    assert last["global_loss"] == last["personal_loss"]


def test_history_frame_is_tidy(federation: Any) -> None:
    frame = train("fedavg", federation, ft_epochs=1).history.frame()
    assert set(frame["model"]) == {"personal", "global", "tuned"} and set(frame["split"]) == {"test", "val"}
    assert (
        len(frame) == (3 * 2 + 1) * 2 * 2 * 5
    )  # rounds 0-2 of two models, one tuned; splits, quantities, clients
    assert frame["value"].notna().all()


def test_saved_models_load_into_plain_torch(federation: Any, tmp_path: Path) -> None:
    sim = train("pfedmb", federation, branches=2, ft_epochs=1)
    sim.save_models(tmp_path / "models.npz")
    with np.load(tmp_path / "models.npz") as file:
        assert file["initial/fc1.weight"].shape == (2, 32, 64) == file["global/fc1.weight"].shape
        assert file["personal/fc1.weight"].shape == (5, 32, 64) and file["state/alpha"].shape == (5, 4, 2)
    module = load_model(tmp_path / "models.npz", sim.network, client=3)
    rows = federation.test[3]
    right = (
        (module(federation.test_images[rows]).argmax(1) == federation.test_labels[rows])
        .double()
        .mean()
        .item()
    )
    assert right == pytest.approx(sim.report()["final"]["test_accuracy"][3])
    with pytest.raises(InputError, match="clients 0 to 4, not 5"):
        load_model(tmp_path / "models.npz", sim.network, client=5)
    with pytest.raises(InputError, match="holds no model that serves all clients as it is: add client=0"):
        load_model(tmp_path / "models.npz", sim.network)
    other = make_network("linear", 1, 8, 10)
    with pytest.raises(InputError, match="do not fit the network linear"):
        load_model(tmp_path / "models.npz", other)
    with pytest.raises(InputError, match=r"there is no file .*other\.npz: name one that"):
        load_model(tmp_path / "other.npz", sim.network)


def test_a_file_of_models_names_its_network_and_how_its_images_are_normalized(
    federation: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sim, path = train("ditto", federation, model="mlp"), tmp_path / "models.npz"
    sim.save_models(path)
    x = federation.test_images[:5]
    for client in (None, 3):
        given, found = load_model(path, sim.network, client), load_model(path, client=client)
        assert torch.equal(given(x), found(x))
    with np.load(path) as file:
        arrays = dict(file)
    said = json.loads(str(arrays["network"]))
    card = federation.card
    shape = {"name": "mlp", "channels": 1, "size": 8, "classes": 10}
    assert said == shape | {"mean": list(card.mean), "std": list(card.std)}
    odd = [said | {"size": 2**20}, said | {"classes": -1}, said | {"channels": []}, {"name": "mlp"}, 5]
    for text in ("[" * 100_000, *map(json.dumps, odd)):
        np.savez(path, **(arrays | {"network": np.array(text)}))
        with pytest.raises(InputError, match=r"does not say of which network it is: add make_network\("):
            load_model(path, client=3)
    del arrays["network"]  # as in a file of an earlier version
    np.savez(path, **arrays)
    assert torch.equal(load_model(path, sim.network, 3)(x), found(x))
    with pytest.raises(InputError, match="does not say of which network it is"):
        load_model(path, client=3)
    monkeypatch.delitem(NETWORKS, "mlp")  # as one's own that is not registered here
    sim.save_models(path)
    with pytest.raises(InputError, match=r"unknown model 'mlp'.* register adds your own in a script"):
        load_model(path)
    assert torch.equal(load_model(path, sim.network, 3)(x), found(x))


def test_models_that_are_clients_own_are_asked_for_by_client(federation: Any, tmp_path: Path) -> None:
    sim = train("local", federation)
    sim.save_models(tmp_path / "models.npz")
    with pytest.raises(InputError, match="holds no global model: add client=0"):
        load_model(tmp_path / "models.npz", sim.network)


@pytest.mark.parametrize("kind", ["int64", "bool", "float16", "complex64"])
def test_stored_models_are_floats_of_one_kind(kind: str, federation: Any, tmp_path: Path) -> None:
    sim, path = train("fedem", federation), tmp_path / "models.npz"
    sim.save_models(path)
    with np.load(path) as file:
        arrays = dict(file)
    arrays["personal/mixture"] = arrays["personal/mixture"].astype(kind)
    np.savez(path, **arrays)
    with pytest.raises(InputError, match=f"holds a personal model of .*{kind}"):
        load_model(path, sim.network, client=0)


def test_models_of_a_method_of_one_s_own_need_its_class(
    federation: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @dataclass(frozen=True)
    class Mine(FedAvg):
        name: ClassVar[str] = "mine"

    sim, path = simulation(federation, Mine()), tmp_path / "models.npz"
    sim.save_models(path)
    with pytest.raises(
        InputError, match=r"of the method 'mine', which is not known here: .* METHODS\['mine'\] = "
    ):
        load_model(path, sim.network)
    monkeypatch.setitem(METHODS, "mine", Mine)
    assert load_model(path, sim.network) is not None
    np.save(tmp_path / "array.npy", np.zeros(3))
    with pytest.raises(InputError, match="holds no trained models"):
        load_model(tmp_path / "array.npy", sim.network)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"participation": 0.0}, r"participation must be in \(0, 1\]"),
        ({"participation": 1.5}, r"participation must be in \(0, 1\]"),
        ({"rounds": 0}, "rounds must be 1 or more"),
        ({"lr": -1}, "lr must be positive"),
        ({"lr": "nan"}, "lr must be a number"),
        ({"epochs": 1.5}, "epochs must be a whole number"),
        ({"momentum": 1.0}, "momentum must be below 1"),
        ({"engine": "jit"}, "engine must be one of loop, vmap, auto"),
        ({"dtype": "float16"}, "dtype must be one of float32, float64"),
        ({"ft_every": 2}, "ft_every must be 0 unless"),
        ({"ft_lr": 0.1}, "ft_lr must be left out unless ft_epochs is positive$"),
        ({"patience": 1, "eval_every": 2}, r"two looks at the scored models \(2\)$"),
        ({"seed": 10**22}, f"seed must be at most 2147483647, not {10**22}$"),
        ({"ft_epochs": 1, "ft_lr": -1e31}, r"ft_lr must be at most 1e\+30 in size, not -1e\+31"),
        ({"ft_epochs": 1, "ft_lr": 0}, "ft_lr must be positive"),
        ({"ft_epochs": 1, "ft_lr": "slow"}, "ft_lr must be a number"),
        ({"ft_epochs": 1, "ft_momentum": 1}, "ft_momentum must be below 1"),
        ({"ft_epochs": 1, "ft_weight_decay": -1}, "ft_weight_decay must be 0 or more"),
        ({"ft_epochs": 1, "ft_batch_size": 0}, "ft_batch_size must be 1 or more"),
        ({"ft_epochs": 1, "ft_batch_size": 1.5}, "ft_batch_size must be a whole number"),
        ({"rounds": None}, "rounds must be a whole number"),
        ({"mo": 1}, "unknown setting of fedavg 'mo'"),
        (
            {"round": 3},
            r"did you mean rounds\? \(its own: weights; `pfl-lite run --help` lists those of every run\)$",
        ),
        (
            {"device": "cuda:1"},
            "device cuda:1 is called cuda here: the variable CUDA_VISIBLE_DEVICES=1 chooses",
        ),
    ],
)
def test_bad_settings_are_refused_before_any_work(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        make_config("fedavg", **settings)


def test_a_method_s_class_is_told_from_a_method() -> None:
    with pytest.raises(InputError, match=r"by its name or with its settings: write FedAvg\(\)"):
        make_config(FedAvg)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["fedavg", "pfedmb", "fedfomo", "scaffold"])
def test_a_run_goes_on_beside_another_copy_of_its_federation(federation: Any, method: str) -> None:
    settings = quick(method, rounds=4, participation=0.6, ft_epochs=1)
    straight = train(method, federation, **settings)
    halved = simulation(federation, method, **settings)
    halved.step()
    halved.step()
    moved = halved.beside(replace(federation, images=federation.images.clone()))
    assert halved.beside(federation) is halved and moved is not halved
    assert moved.round == 2 and moved.trained_on == halved.trained_on
    moved.run()
    assert same(moved.server, straight.server, 0) and same(moved.scored_models(), straight.scored_models(), 0)
    assert moved.report()["rounds"] == straight.report()["rounds"]
    assert halved.round == 2  # the first one was left as it was


def test_auto_is_the_device_of_the_federation_that_is_given(
    federation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert make_config("fedavg", **FAST).resolved().device == "cuda"  # with nothing given
    sim = simulation(federation)
    assert sim.config.device == "cpu" and sim.config.engine == "loop"
    sim.step()


def test_a_federation_moves_whole() -> None:
    cpu = five_clients()
    assert cpu.to("cpu") is cpu
    there = replace(cpu, test_images=cpu.images).to("meta")
    tensors = [there.images, there.labels, there.test_labels, *there.train, *there.val, *there.test]
    assert {one.device.type for one in tensors} == {"meta"} and there.test_images is there.images
    photos = cpu.images.expand(-1, 3, -1, -1).contiguous(memory_format=torch.channels_last)
    assert replace(cpu, images=photos, test_images=photos).to("meta").images.is_contiguous()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_a_run_on_a_gpu_comes_back_to_the_federation_that_was_given(federation: Any) -> None:
    here, there = (train("fedavg", federation, device=device, engine="vmap") for device in ("cpu", "cuda"))
    assert there.server["fc.weight"].device.type == "cpu" and there.trained_on != here.trained_on
    assert same(here.server, there.server, 1e-8)


def test_cuda_is_refused_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="finds no CUDA device"):
        make_config("fedavg", device="cuda")


def test_a_diverged_run_says_so_and_keeps_its_numbers(federation: Any) -> None:
    with pytest.warns(UserWarning, match="fedavg diverged"):
        sim = train("fedavg", federation, lr=1e12)
    report = sim.report()
    assert report["rounds"][-1]["personal_loss"] is None and report["final"]["test_loss"] == [None] * 5


def test_an_exploded_run_is_told_once(federation: Any) -> None:
    with pytest.warns(
        UserWarning, match="fedavg diverged: after round .* the mean loss is .*; try a .* below 1e"
    ) as told:
        train("fedavg", federation, model="linear", lr=1e8, rounds=3)
    assert len(told) == 1


@pytest.mark.parametrize(("lr", "told"), [(0.5, False), (1e3, True)])
def test_a_loss_that_ends_far_above_the_first_is_told(
    lr: float, told: bool, federation: Any, recwarn: pytest.WarningsRecorder
) -> None:
    entries = train("fedavg", federation, model="linear", lr=lr, rounds=3).history.rounds
    assert entries[-1]["personal_loss"] < DIVERGED  # it is no number without use
    said = [str(one.message) for one in recwarn]
    assert (
        said
        == [
            f"fedavg diverged: after round 3 the mean loss is {entries[-1]['personal_loss']:.4g}, before any training "
            f"{entries[0]['personal_loss']:.4g}; try a learning rate below 1000"
        ]
        * told
    )


def test_a_curve_that_no_round_has_is_refused(federation: Any) -> None:
    history = train("fedavg", federation, model="linear").history
    with pytest.raises(InputError, match=r"unknown curve 'test_accuracy': did you mean .*personal_accuracy"):
        history.curve("test_accuracy")


def test_words_of_other_libraries_are_answered_with_ours() -> None:
    with pytest.raises(InputError, match=r"'learning_rate': here it is lr \("):
        make_config("fedavg", learning_rate=0.1)
    with pytest.raises(InputError, match="not RunConfig: Simulation"):
        make_config(make_config("fedavg"))  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"data must be a name: give Images\(digits, 1438 for training"):
        make_config("fedavg", data=load("digits"))  # type: ignore[arg-type]
    with pytest.raises(
        InputError, match="'criterion': here it is cross-entropy, unless a method of your own"
    ):
        make_config("fedavg", criterion="x")


def test_values_of_another_kind_are_refused_in_one_short_sentence(federation: Any) -> None:
    many = list(range(10_000))
    for settings, said in (
        ({"lr": [0.1, 0.5]}, r"lr must be a number, not '\[0.1, 0.5\]': compare trains a row for each value"),
        ({"rounds": many}, "rounds must be a whole number"),
        (
            {"partition": many},
            r"partition must be a name, not list: clients of your own are run\(federation=",
        ),
        ({"data": federation}, "data must be a name, not Federation: clients of your own"),
        ({"model": lambda *_: None}, r"model must be a name: `pfl_lite.models.register` gives one"),
        ({"workers": "2"}, "workers must be 1 to 1,000, not '2'"),
    ):
        with pytest.raises(InputError, match=said) as refused:
            run("fedavg", **settings)  # type: ignore[arg-type]
        assert len(str(refused.value)) < 250
    with pytest.raises(InputError, match="ditto: lam must be a number, not 'strong'"):
        METHODS["ditto"](lam="strong")
    with pytest.raises(InputError, match="the number of clients must be a whole number, not str"):
        make_federation("digits", "iid", "3", 0)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"models.pt must end in .npz or .safetensors"):
        run("local", federation=federation, model="linear", rounds=1).save_models("models.pt")
    with pytest.raises(
        InputError, match=r'takes a configuration, as make_config\("fedavg", rounds=5\) makes'
    ):
        Simulation("fedavg")  # type: ignore[arg-type]


def test_a_method_s_own_slips_are_named(federation: Any) -> None:
    class EachImage(FedAvg):
        def local(self, received: Any, client: Any, work: Any) -> Any:
            return work.sgd(lambda w, batch: batch.losses(work.training(batch)(w, batch.x)), received), client

    class OneRow(FedAvg):
        def local(self, received: Any, client: Any, work: Any) -> Any:
            return {name: tensor[:1] for name, tensor in received.items()}, client

    with pytest.raises(InputError, match=r"a loss must be one number, not \[\d+\]: batch.mean\(each\)"):
        train(EachImage(), federation, model="linear", rounds=1)
    with pytest.raises(InputError, match=r"the clients sent '.*' as \[1.*\], which the server keeps as \[10"):
        train(OneRow(), federation, model="linear", rounds=1)


def test_images_in_the_place_of_a_federation_are_refused() -> None:
    images: Any = load("digits")
    for start in (
        lambda: run("fedavg", federation=images),
        lambda: Simulation(make_config("fedavg"), images),
    ):
        with pytest.raises(InputError, match=r"as make_federation\(images, \.\.\.\) makes one, not Images"):
            start()


def test_a_subclass_s_own_personal_is_asked_and_its_name_is_its_own(federation: Any) -> None:
    class Zero(FedAvg):
        def personal(self, received: Any, client: Any, work: Any) -> Any:
            return {name: 0 * tensor for name, tensor in received.items()}

    sim = simulation(federation, Zero(), model="linear")
    assert sim.evaluate()["personal_loss"] == pytest.approx(np.log(10)) and Zero.name == "zero"
    assert sim.evaluate()["global_loss"] != sim.evaluate()["personal_loss"]


def test_a_method_changed_by_a_reader_stays_that_method(federation: Any) -> None:
    class Stronger(FedProx):
        """Twice the pull."""

    config = make_config(Stronger(), **(FAST | {"mu": "0.5"}))
    assert type(config.method) is Stronger and config.method.mu == 0.5


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"clients": 4}, "has clients 5, but the run asks for clients 4"),
        ({"dtype": "float32"}, "has dtype float64"),
        ({"data": "glyphs"}, "has data digits"),
        ({"partition": "iid"}, "has partition dirichlet:0.4, but the run asks for partition iid"),
        ({"val_fraction": 0.5}, "has val_fraction 0.2"),
    ],
)
def test_a_federation_that_does_not_fit_is_refused(
    federation: Any, settings: dict[str, Any], says: str
) -> None:
    with pytest.raises(InputError, match=says):
        simulation(federation, **settings)


def test_an_unfinished_run_can_be_reported_and_has_no_stale_tuned_models(federation: Any) -> None:
    sim = simulation(federation, rounds=4, ft_epochs=1, ft_every=2, eval_every=4)
    with pytest.raises(InputError, match="nothing to report before the first round: call run"):
        sim.report()
    sim.step()
    assert sim.report()["final"] is None and not sim.report()["complete"]
    sim.step()
    tuned = sim.scored_models()
    sim.step()
    assert not same(sim.scored_models(), tuned, 1e-9) and same(sim.scored_models(), sim.personal_models(), 0)


def test_a_federation_given_says_what_the_run_is_of() -> None:
    given = make_federation("digits", "iid", 6, 0, size=4, dtype=torch.float64)
    sim = run("fedavg", federation=replace(given, name="mine"), rounds=1)
    config = sim.config
    assert (config.data, config.clients, config.dtype, config.model) == ("mine", 6, "float64", "small_cnn")
    assert config.partition == "iid"
    by_hand = replace(given, partition="given", split=None, val_fraction=None)
    assert run("fedavg", federation=by_hand, rounds=1).config.partition == "given"
    with pytest.raises(InputError, match="has partition given, but the run asks for partition pairs"):
        run("fedavg", federation=by_hand, partition="pairs")
    with pytest.raises(InputError, match="has clients 6, but the run asks for clients 10"):
        run("fedavg", federation=given, clients=10)
    with pytest.raises(InputError, match="has dtype float64, but the run asks for dtype float32"):
        run("fedavg", federation=given, dtype="float32")


@pytest.mark.parametrize(
    ("data", "size", "network"),
    [
        ("digits", None, "small_cnn"), ("digits", 32, "small_cnn"), ("cifar10", None, "lenet"), ("cifar10", 32, "lenet"),
        ("mine", 32, "lenet"), ("mine", 28, "small_cnn"), ("mine", 4, "small_cnn"), ("mine", 3, "mlp"), ("mine", 1, "mlp"),
    ],
)  # fmt: skip
def test_auto_is_a_network_that_fits_the_images(data: str, size: int | None, network: str) -> None:
    assert make_config("fedavg", data=data).resolved(size).model == network
    if size is not None:
        make_network(network, 1, size, 10).init(0)


def test_every_report_says_which_code_made_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = run("fedavg", data="digits", model="linear", clients=3, rounds=1).report()["code"]
    assert isinstance(code, str) and code
    code_version.cache_clear()
    monkeypatch.setenv("PATH", str(tmp_path))  # no git there
    assert code_version() == __version__
    code_version.cache_clear()


def test_evaluate_scores_what_is_there_and_keeps_nothing(federation: Any) -> None:
    sim = Simulation(make_config("pfedmb", **(FAST | quick("pfedmb"))), federation)
    sim.step()
    before = [dict(entry) for entry in sim.history.rounds]
    entry = sim.evaluate()
    assert sim.history.rounds == before and sim.round == 1
    assert entry["per_client"] == before[-1]["per_client"]
    assert entry["personal_loss"] == before[-1]["personal_loss"]
