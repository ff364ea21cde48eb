"""A node: it trains and scores one client, whose state never leaves it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor

from pfl_flower.shared import packed, series, simulation, unpacked
from pfl_lite.engine.evaluate import score
from pfl_lite.engine.simulation import Simulation
from pfl_lite.files import atomic_path

app = ClientApp()
OWN = "own"


class Node:
    """One client of a run: its number, its state if it has ever taken part, and where that state is kept.

    Flower keeps `context.state` in memory, where it ends with the node; a copy in the configuration's `state-folder` does not.
    """

    def __init__(self, message: Message, context: Context) -> None:
        self.sim: Simulation = simulation(context.run_config)
        self.id = int(context.node_config["partition-id"])
        self.context, self.message = context, message
        self.series = series(self.sim)
        folder = str(context.run_config.get("state-folder", ""))
        self.file = Path(folder) / self.series / f"client-{self.id}.pt" if folder else None
        asked = message.content.config_records.get("run")
        if asked is not None and asked["series"] != self.series:
            raise ValueError(
                f"client {self.id} has other data, settings or versions than the server: it takes no part in this run"
            )
        self.number = int(asked["round"]) if asked is not None else 0

    @property
    def ids(self) -> Tensor:
        return torch.tensor([self.id])

    def own(self) -> dict[str, Tensor] | None:
        """The client's state after its last training; None if it has never taken part."""
        if OWN in self.context.state.array_records:
            return unpacked(self.context.state.array_records[OWN])
        if self.file is not None and self.file.exists():
            return dict(torch.load(self.file, weights_only=True))
        return None

    def keep(self, own: dict[str, Tensor]) -> None:
        """Keep the client's state, first where it outlives this process."""
        if self.file is not None:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with atomic_path(self.file) as part:
                torch.save(own, part)
        self.context.state.array_records[OWN] = packed(own)

    def rows(self) -> dict[str, Tensor]:
        """The states of all clients as the engine has them: this client's own, and the others' start, which nobody reads."""
        own = self.own()
        if own is None:
            return self.sim.clients
        return {k: rows.index_copy(0, self.ids, own[k][None]) for k, rows in self.sim.clients.items()}

    def mapped(
        self, function: Any, rows: dict[str, Tensor], number: int, part: str = "down"
    ) -> tuple[dict[str, Tensor], ...]:
        """What a function of (what was received in a part of the message, state, work) answers for this client."""
        received = unpacked(self.message.content.array_records[part])
        answers = self.sim.map(function, received, rows, self.ids, number, self.sim.settings)
        return tuple({name: rows[0] for name, rows in answer.items()} for answer in answers)

    def adapted(self, rows: dict[str, Tensor]) -> dict[str, Tensor]:
        """The states after this client, which has never taken part, has done what the method asks of a newcomer."""
        method = self.sim.method
        (own,) = self.mapped(
            lambda down, client, work: (method.adapt_newcomer(down, client, work),),
            rows,
            self.number + 1,
            "newcomer",
        )
        return {k: many.index_copy(0, self.ids, own[k][None]) for k, many in rows.items()}

    def reply(self, records: dict[str, Any]) -> Message:
        about = {"client": self.id, "series": self.series, "round": self.number}
        return Message(RecordDict(records | {"about": ConfigRecord(about)}), reply_to=self.message)


@app.query()
def who(message: Message, context: Context) -> Message:
    """Which client this node is, and which run it would take part in."""
    return Node(message, context).reply({})


@app.query("choose")
def choose(message: Message, context: Context) -> Message:
    """What a newcomer asks the server for, such as the number of the cluster it prefers: whole numbers, never a model."""
    node = Node(message, context)
    own = {k: rows[node.id] for k, rows in node.adapted(node.rows()).items()}
    return node.reply({"choice": packed({k: t for k, t in own.items() if not t.is_floating_point()})})


@app.train()
def train(message: Message, context: Context) -> Message:
    """One client's work in one round: what it keeps stays here, what it sends up is the reply."""
    node = Node(message, context)
    method = node.sim.method
    upload, own = node.mapped(method.local, node.rows(), node.number)
    node.keep(own)
    size = int(node.sim.federation.train_sizes[node.id])
    return node.reply({"up": packed(upload), "size": MetricRecord({"images": size})})


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Score the client's personal model on its own test images; a client that never took part first does what its method asks."""
    node = Node(message, context)
    sim, rows = node.sim, node.rows()
    if node.own() is None and "newcomer" in message.content.array_records:
        rows = node.adapted(rows)  # what a newcomer does is not kept

    def scored(down: Any, client: Any, work: Any) -> tuple[dict[str, Tensor]]:
        model = sim.method.personal(down, client, work)
        return (score(lambda x: sim.method.predict(sim.network, model, x), work, "test"),)

    (sums,) = node.mapped(scored, rows, node.number)
    metrics = {
        "correct": float(sums["correct"]),
        "loss": float(sums["loss"]),
        "images": len(sim.federation.test[node.id]),
    }
    return node.reply({"score": MetricRecord(metrics)})
