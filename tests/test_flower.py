"""Every method as a Flower app, in one process: the same numbers as in the simulation, and what goes wrong said and survived."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

flwr = pytest.importorskip("flwr", reason="Flower is not installed: see examples/flower/README.md")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "flower"))

from flwr.app import Context, Error, Message, RecordDict  # noqa: E402
from flwr.serverapp import Grid  # noqa: E402
from flwr.supercore.task_identity import TaskIdentity  # noqa: E402
from pfl_flower import client_app, server_app, shared  # noqa: E402

from pfl_lite.engine.simulation import Simulation  # noqa: E402
from pfl_lite.methods import METHODS  # noqa: E402

RUN: dict[str, Any] = {
    "data": "digits", "partition": "dirichlet:1", "clients": 4, "participation": 0.5, "rounds": 3, "lr": 0.1,
    "batch_size": 64, "seed": 1, "model": "linear",
}  # fmt: skip
LAYERED = {
    "pfl_fb",
    "fedper",
    "fedrep",
    "lg_fedavg",
    "pfedmb",
    "moon",
    "pfl_mf",
    "pfl_mfe",
    "pfl_moe",
    "pfedhn",
}
OWN: dict[str, dict[str, Any]] = {
    "fedmn": {"encoder_width": 6, "width": 5, "router_width": 4, "label_width": 3},
    "cfl": {"warmup": 0},
    "fedfomo": {"models": 3},
}


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
        self.silent: set[int] = set()
        self.twice = False

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        replies = []
        for message in messages:
            node = message.metadata.dst_node_id
            context = self.contexts[node]
            try:
                if message.metadata.message_type == "train" and node - 100 in self.silent:
                    raise RuntimeError("lost")
                reply = client_app.app(message, context)
            except Exception as error:
                reply = Message(Error(code=0, reason=str(error)), reply_to=message)
            replies += [reply] * (2 if self.twice and message.metadata.message_type == "train" else 1)
        return replies[::-1]

    set_run = run = create_message = push_messages = pull_messages = None  # type: ignore[assignment]


InProcess.__abstractmethods__ = frozenset()
TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1


def settings(method: str, **more: Any) -> dict[str, Any]:
    model = "small_cnn" if method in LAYERED else "linear"
    return RUN | {"method": method, "model": model} | OWN.get(method, {}) | more


def federated(
    config: dict[str, Any], grid: InProcess | None = None
) -> tuple[server_app.Methodical, InProcess]:
    grid = grid or InProcess(config)
    strategy = server_app.Methodical(shared.simulation(config), grid, timeout=5)
    sim = strategy.sim
    strategy.start(grid=grid, initial_arrays=shared.packed(sim.server), num_rounds=sim.config.rounds)
    return strategy, grid


def simulated(config: dict[str, Any]) -> Simulation:
    sim = Simulation(shared.simulation(config).config)
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


def test_bytes_on_the_wire_are_the_floats_that_are_counted() -> None:
    config = settings("fedavg")
    strategy, _ = federated(config)
    for entry, there in zip(strategy.history, simulated(config).history.rounds[1:], strict=True):
        for way in ("down", "up"):
            excess = entry[f"bytes_{way}"] - 4 * there[f"floats_{way}"]
            assert 0 <= excess < 300 * 2 * len(entry["clients"])  # a header per tensor


def test_a_round_goes_on_without_a_client_that_fails() -> None:
    config = settings("fedavg", participation=1.0)
    grid = InProcess(config)
    grid.silent = {2}
    strategy, _ = federated(config, grid)
    assert [entry["missing"] for entry in strategy.history] == [[2]] * 3
    assert [entry["clients"] for entry in strategy.history] == [[0, 1, 3]] * 3
    grid.silent = {0, 1, 2, 3}
    alone, _ = federated(config, grid)
    assert all(torch.equal(alone.server[name], alone.sim.server[name]) for name in alone.server)


def test_a_second_answer_of_a_client_does_not_count() -> None:
    config = settings("fedavg")
    grid = InProcess(config)
    grid.twice = True
    (strategy, _), sim = federated(config, grid), simulated(config)
    assert all(torch.equal(strategy.server[name], sim.server[name]) for name in sim.server)


def test_a_node_with_other_settings_takes_no_part() -> None:
    config = settings("fedavg", participation=1.0)
    grid = InProcess(config)
    grid.contexts[103].run_config = config | {"lr": 0.2}
    strategy = server_app.Methodical(shared.simulation(config), grid, timeout=0.1)
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
        [strategy.series, *(f"client-{i}.pt" for i in range(4))]
    )
