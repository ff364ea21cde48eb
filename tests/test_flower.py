"""Every method as a Flower app, in one process: the same numbers as in the simulation, and what goes wrong said and survived."""

from __future__ import annotations

import copy
import io
import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

flwr = pytest.importorskip("flwr", reason="Flower is not installed: see examples/flower/README.md")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "flower"))

from flwr.app import Context, Error, Message, RecordDict  # noqa: E402
from flwr.serverapp import Grid  # noqa: E402
from flwr.supercore.task_identity import TaskIdentity  # noqa: E402
from pfl_flower import client_app, many, own_data, secure_sum, server_app, shared, tiny  # noqa: E402

from pfl_lite.engine.simulation import Simulation  # noqa: E402
from pfl_lite.errors import InputError  # noqa: E402
from pfl_lite.methods import METHODS  # noqa: E402


class InProcess(Grid):
    """Nodes in this process, each with a context of its own; replies come in reverse, as nothing orders them on a network."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.contexts = {
            100 + i: Context(
                run_id=1,
                node_id=100 + i,
                node_config={"partition-id": i},
                state=RecordDict(),
                run_config=config,
            )
            for i in range(int(config["clients"]))
        }
        self.sent: Counter[str] = Counter()
        self.silent: set[int] = set()
        self.twice = False
        self.spoil: Callable[[Message], None] = lambda reply: (
            None
        )  # of client 1, each reply of the kind `spoiled`
        self.spoiled = "train"

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        replies = []
        for message in messages:
            node, kind = message.metadata.dst_node_id, message.metadata.message_type
            self.sent[kind] += 1
            context = self.contexts[node]
            try:
                if kind.startswith("train") and node - 100 in self.silent:
                    raise RuntimeError("lost")
                reply = client_app.app(message, context)
            except Exception as error:
                reply = Message(Error(code=0, reason=str(error)), reply_to=message)
            if (node, kind) == (101, self.spoiled) and not reply.has_error():
                self.spoil(reply)
            replies += [reply] * (2 if self.twice and kind == "train" else 1)
        return replies[::-1]

    set_run = run = create_message = push_messages = pull_messages = None  # type: ignore[assignment]


InProcess.__abstractmethods__ = frozenset()
TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1


def settings(method: str, **more: Any) -> dict[str, Any]:
    """Of four clients two take part in a round, so that some come late and some come back."""
    return tiny.settings(
        method, **({"clients": 4, "participation": 0.5, "rounds": 3, "eval_every": 1} | more)
    )


def federated(
    config: dict[str, Any], grid: InProcess | None = None
) -> tuple[server_app.Methodical, InProcess]:
    grid = grid or InProcess(config)
    strategy = server_app.Methodical(shared.part(config), grid, timeout=5)
    run = strategy.run
    strategy.start(grid=grid, initial_arrays=shared.packed(run.server), num_rounds=run.config.rounds)
    return strategy, grid


def simulated(config: dict[str, Any]) -> Simulation:
    sim = Simulation(shared.part(config).config)
    sim.run(progress=False)
    return sim


@pytest.mark.parametrize("method", METHODS)
def test_a_method_computes_the_same_bits_over_messages(method: str) -> None:
    config = settings(method)
    strategy, _ = federated(config)
    sim = simulated(config)
    assert strategy.server.keys() == sim.server.keys()
    assert all(torch.equal(strategy.server[name], sim.server[name]) for name in sim.server)
    for entry in strategy.history:
        there = sim.history.rounds[entry["round"]]
        assert there["clients"] == entry["clients"] and entry["missing"] == []
        assert there["per_client"]["personal_accuracy"] == [entry["test_accuracy"][i] for i in range(4)]


def test_clients_that_work_one_after_another_hand_on_over_messages() -> None:
    config = settings("fedmn", schedule="sequential")
    strategy, _ = federated(config)
    sim = simulated(config)
    assert all(torch.equal(strategy.server[name], sim.server[name]) for name in sim.server)


FILLED_UP = {"fedfomo", "fedmn"}
"""Of these, tensors of one shape carry empty places, or blocks not in use, which a leaner message would leave out."""


@pytest.mark.parametrize("method", METHODS)
def test_bytes_on_the_wire_are_the_floats_that_are_counted(method: str) -> None:
    config = settings(method)
    strategy, _ = federated(config)
    for entry, there in zip(strategy.history, simulated(config).history.rounds[1:], strict=True):
        for way in ("down", "up"):
            sent, counted, header = entry[f"floats_{way}"], there[f"floats_{way}"], 200
            assert sent >= counted if method in FILLED_UP else sent == counted
            excess = entry[f"bytes_{way}"] - 4 * sent
            assert 0 <= excess < header * len(strategy.server) * len(entry["clients"]) + header


def test_a_round_goes_on_without_a_client_that_fails() -> None:
    config = settings("fedavg", participation=1.0)
    grid = InProcess(config)
    grid.silent = {2}
    strategy, _ = federated(config, grid)
    assert [entry["missing"] for entry in strategy.history] == [[2]] * 3
    assert [entry["clients"] for entry in strategy.history] == [[0, 1, 3]] * 3
    grid.silent = {0, 1, 2, 3}
    alone, _ = federated(config, grid)
    assert all(torch.equal(alone.server[name], alone.run.server[name]) for name in alone.server)


def test_a_second_answer_of_a_client_does_not_count(log: pytest.LogCaptureFixture) -> None:
    config = settings("fedavg")
    grid = InProcess(config)
    grid.twice = True
    (strategy, _), sim = federated(config, grid), simulated(config)
    assert all(torch.equal(strategy.server[name], sim.server[name]) for name in sim.server)
    assert "answered twice, the first answer counts" in said(log)


def test_a_node_with_other_settings_takes_no_part() -> None:
    config = settings("fedavg", participation=1.0)
    grid = InProcess(config)
    grid.contexts[103].run_config = config | {"lr": 0.2}
    strategy = server_app.Methodical(shared.part(config), grid, timeout=0.1)
    assert sorted(strategy.nodes) == [0, 1, 2]


def test_a_node_that_comes_back_has_its_personal_model(tmp_path: Path) -> None:
    config = settings("ditto", participation=1.0) | {"state-folder": str(tmp_path)}
    strategy, grid = federated(config)
    before = strategy.history[-1]["test_accuracy"]
    for context in grid.contexts.values():  # every node is started anew: memory is gone, the folder is not
        context.state = RecordDict()
    messages = strategy.configure_evaluate(3, shared.packed(strategy.server), None, grid)  # type: ignore[arg-type]
    strategy.aggregate_evaluate(3, grid.send_and_receive(messages))
    assert strategy.history[-1]["test_accuracy"] == before
    assert sorted(path.name for path in tmp_path.rglob("*")) == sorted(
        [next(tmp_path.iterdir()).name, *(f"client-{i}.pt" for i in range(4))]
    )


def test_all_methods_compute_the_same_bits_as_one_run() -> None:
    grid = InProcess(tiny.RUN | {"method": "every"})
    together = many.Together(("pfedmb", "fedavg", "ditto"), grid, timeout=5)
    together.start(grid=grid, initial_arrays=shared.packed({}), num_rounds=tiny.RUN["rounds"])
    for name, one in together.each.items():
        sim = simulated(tiny.settings(name))
        assert all(torch.equal(one.server[key], sim.server[key]) for key in sim.server)
        scores = one.history[-1]["test_accuracy"]
        assert [scores[i] for i in range(3)] == sim.history.rounds[-1]["per_client"]["personal_accuracy"]
    assert grid.sent["train.many"] == 6 and "train" not in grid.sent


@pytest.mark.parametrize("partition", ["dirichlet:1", "concept:2"])
def test_a_client_needs_nothing_but_its_own_file(
    partition: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings("pfedmb", partition=partition, seed=2)
    sim = simulated(config)
    own_data.write_clients(shared.part(config).config, tmp_path)
    shared._built.cache_clear()
    own_data._dealt.cache_clear()
    monkeypatch.setattr(own_data.data, "load", None)  # no machine has the data set
    config |= {"files": str(tmp_path)}
    strategy, _ = federated(config)
    assert all(torch.equal(strategy.server[name], sim.server[name]) for name in sim.server)
    node = shared.part(config, 2).federation
    assert [len(rows) for rows in node.train] == [0, 0, len(sim.federation.train[2]), 0]
    assert len(node.images) == len(sim.federation.train[2]) + len(sim.federation.val[2])
    assert not len(shared.part(config).federation.images)


def test_a_client_without_its_file_takes_no_part(tmp_path: Path) -> None:
    config = settings("fedavg")
    own_data.write_clients(shared.part(config).config, tmp_path)
    (tmp_path / "client-3.npz").unlink()
    (tmp_path / "client-2.npz").write_bytes(b"PK")
    run = config | {"files": str(tmp_path)}
    strategy = server_app.Methodical(shared.part(run), InProcess(run), timeout=0.1)
    assert sorted(strategy.nodes) == [0, 1]


# ---- secure aggregation ---------------------------------------------------------------------------------------------


class Secure(InProcess):
    """Nodes of `secure_sum`; of each reply, what the server could read is kept."""

    def __init__(self, config: dict[str, Any], lost: set[int]) -> None:
        super().__init__(config)
        self.lost, self.tensors, self.masked = lost, 0, []

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        replies = []
        for message in messages:
            node = message.metadata.dst_node_id
            if node - 100 in self.lost and "fitins.parameters" in message.content.array_records:
                replies.append(Message(Error(code=0, reason="lost"), reply_to=message))
                continue
            reply = secure_sum.app(copy.deepcopy(message), self.contexts[node])
            self.tensors += sum(len(record) for record in reply.content.array_records.values())
            for record in reply.content.config_records.values():
                self.masked += [np.load(io.BytesIO(one)) for one in record.get("masked_params", [])]
            replies.append(reply)
        return replies[::-1]


Secure.__abstractmethods__ = frozenset()


@pytest.mark.parametrize("lost", [set(), {2}])
def test_secure_aggregation_gives_the_simulation_s_mean_and_no_upload(lost: set[int]) -> None:
    config = settings("fedavg", participation=1.0)
    grid, run, sim = Secure(config, lost), shared.part(config), Simulation(shared.part(config).config)
    sim.sample = lambda number: torch.tensor([i for i in range(4) if i not in lost])  # type: ignore[method-assign]
    sim.run(progress=False)
    nodes = {i: 100 + i for i in range(4)}
    server = secure_sum.train_securely(run, grid, nodes, int(sim.federation.train_sizes.max()))
    for name, weights in sim.server.items():
        assert (server[name] - weights).abs().max() < 2e-5 < (run.server[name] - weights).abs().max()
    assert grid.tensors == 0 and len(grid.masked) == 3 * (4 - len(lost)) * (1 + len(run.server))
    numbers = np.concatenate([array.ravel() for array in grid.masked])
    assert abs(numbers.mean() / 2**31 - 1) < 0.05, (
        "masked numbers spread over the whole range, uploads would not"
    )


def test_a_method_that_compares_clients_is_not_summed_securely() -> None:
    run = shared.part(settings("fedamp"))
    with pytest.raises(InputError, match="reveals a weighted mean alone"):
        secure_sum.train_securely(run, InProcess(settings("fedamp")), {}, 1)


# ---- what goes wrong ------------------------------------------------------------------------------------------------


def said(log: pytest.LogCaptureFixture) -> str:
    return " | ".join(record.getMessage() for record in log.records)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Flower's own log, which it keeps to itself."""
    logging.getLogger("flwr").addHandler(caplog.handler)
    yield caplog
    logging.getLogger("flwr").removeHandler(caplog.handler)


def test_a_node_with_other_data_than_its_peers_is_left_out(
    log: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    config = settings("fedavg", participation=1.0)
    own_data.write_clients(shared.part(config).config, tmp_path)
    with np.load(tmp_path / "client-3.npz") as arrays:
        changed = dict(arrays) | {"of": np.array("another")}
    np.savez(tmp_path / "client-3.npz", **changed)
    run = config | {"files": str(tmp_path)}
    strategy = server_app.Methodical(shared.part(run), InProcess(run), timeout=0.1)
    assert sorted(strategy.nodes) == [0, 1, 2]
    assert "client 3 has images of other data (another) than its peers" in said(log)


@pytest.mark.parametrize(
    "versions", ["pfl_lite 0.1.0, torch 1.0", f"pfl_lite 9.9, torch {torch.__version__}"]
)
def test_a_node_with_another_torch_or_pfl_lite_is_left_out(
    versions: str, log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings("fedavg", participation=1.0)
    monkeypatch.setattr(client_app, "VERSIONS", versions)
    strategy = server_app.Methodical(shared.part(config), InProcess(config), timeout=0.1)
    assert not strategy.nodes and f"client 0 runs {versions}, the server {shared.VERSIONS}" in said(log)


def test_a_node_whose_state_on_disk_is_damaged_does_not_start_anew(
    log: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    config = settings("ditto", participation=1.0) | {"state-folder": str(tmp_path)}
    strategy, grid = federated(config)
    file = next(tmp_path.rglob("client-1.pt"))
    file.write_bytes(damaged := file.read_bytes()[:-100])
    grid.contexts[101].state = RecordDict()
    replies = grid.send_and_receive(strategy.configure_train(4, shared.packed({}), None, grid))  # type: ignore[arg-type]
    strategy.aggregate_train(4, replies)
    assert strategy.history[-1]["missing"] == [1] and file.read_bytes() == damaged
    assert "client-1.pt is damaged" in said(log)


@pytest.mark.parametrize("harm", ["pickle", "label", "name"])
def test_a_client_s_file_that_could_do_harm_is_refused(harm: str, tmp_path: Path) -> None:
    config = settings("fedavg")
    own_data.write_clients(shared.part(config).config, tmp_path)
    with np.load(tmp_path / "client-3.npz") as arrays:
        changed = dict(arrays)
    if harm == "pickle":
        changed["train_labels"] = changed["train_labels"].astype(object)
    elif harm == "label":
        changed["train_labels"] = changed["train_labels"] + 10
    else:
        changed["../train_labels"] = changed.pop("train_labels")
    np.savez(tmp_path / "client-3.npz", **changed)
    with pytest.raises(InputError):
        shared.part(config | {"files": str(tmp_path)}, 3)


def test_tuning_after_the_last_round_is_refused() -> None:
    with pytest.raises(InputError, match="pfl_ft must have ft_epochs=0 here"):
        shared.part(tiny.settings("pfl_ft", ft_epochs=1))


def test_an_unknown_method_ends_the_run_before_it_starts() -> None:
    with pytest.raises(InputError, match=r"ditot.*ditto"):
        shared.part(tiny.RUN | {"method": "ditot"})


def test_of_two_nodes_with_one_client_the_first_counts(log: pytest.LogCaptureFixture) -> None:
    config = settings("fedavg")
    grid = InProcess(config)
    grid.contexts[103].node_config["partition-id"] = 0
    strategy = server_app.Methodical(shared.part(config), grid, timeout=0.1)
    assert strategy.nodes == {0: 100, 1: 101, 2: 102}
    assert "client 0 is here already" in said(log)


def cut_short(reply: Message) -> None:
    for array in reply.content.array_records["up"].values():
        array.data = array.data[:-3]


def of_other_shape(reply: Message) -> None:
    reply.content["up"] = shared.packed({"fc.weight": torch.zeros(2)})


def of_another_run(reply: Message) -> None:
    reply.content["about"]["series"] = "another"


def of_no_client(reply: Message) -> None:
    del reply.content["about"]


def of_another_client(reply: Message) -> None:
    reply.content["about"]["client"] = 0


def without_its_score(reply: Message) -> None:
    del reply.content["score"]


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (cut_short, "the reply of client 1 is damaged, and is left out"),
        (of_other_shape, "client 1 sent other tensors than its peers, and is left out"),
        (of_another_run, "a reply of client 1 belongs to another run or round"),
        (of_no_client, "a reply does not say whose it is, and is left out"),
        (of_another_client, "a node answers for client 0, which it is not"),
    ],
)
def test_a_bad_reply_is_left_out_and_the_round_goes_on(
    log: pytest.LogCaptureFixture, spoil: Callable[[Message], None], sentence: str
) -> None:
    config = settings("fedavg", participation=1.0, rounds=1)
    grid = InProcess(config)
    grid.spoil = spoil
    strategy, _ = federated(config, grid)
    assert strategy.history[0]["clients"] == [0, 2, 3] and sentence in said(log)
    grid = InProcess(config)
    grid.silent = {1}
    without, _ = federated(config, grid)
    assert all(torch.equal(strategy.server[name], without.server[name]) for name in without.server)


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (without_its_score, "the score of client 1 is damaged, and is left out"),
        (of_another_client, "a node answers for client 0, which it is not"),
        (of_no_client, "a reply does not say whose it is"),
    ],
)
def test_a_bad_score_is_left_out(
    log: pytest.LogCaptureFixture, spoil: Callable[[Message], None], sentence: str
) -> None:
    config = settings("fedavg", participation=1.0, rounds=1)
    grid = InProcess(config)
    grid.spoil, grid.spoiled = spoil, "evaluate"
    strategy, _ = federated(config, grid)
    assert sorted(strategy.history[0]["test_accuracy"]) == [0, 2, 3] and sentence in said(log)


@pytest.mark.parametrize("missing", ["about", "has"])
def test_a_node_that_does_not_say_who_it_is_is_left_out(log: pytest.LogCaptureFixture, missing: str) -> None:
    config = settings("fedavg", participation=1.0)
    grid = InProcess(config)
    grid.spoil, grid.spoiled = (lambda reply: reply.content.pop(missing)), "query"
    strategy = server_app.Methodical(shared.part(config), grid, timeout=0.1)
    assert sorted(strategy.nodes) == [0, 2, 3] and "does not say which client it is" in said(log)


def test_a_message_of_another_run_changes_nothing_on_a_node(tmp_path: Path) -> None:
    config = settings("ditto", participation=1.0) | {"state-folder": str(tmp_path)}
    strategy, grid = federated(config)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.pt")}
    strategy.series = "another"
    messages = strategy.configure_train(4, shared.packed({}), None, grid)  # type: ignore[arg-type]
    replies = list(grid.send_and_receive(messages))
    assert all("has other settings than the server" in reply.error.reason for reply in replies)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.pt")} == before
