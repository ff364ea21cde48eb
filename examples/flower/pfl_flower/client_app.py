"""A node: it trains and scores one client, whose state never leaves it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor

from pfl_flower.own_data import digest
from pfl_flower.shared import VERSIONS, joined, packed, part, series, split, unpacked
from pfl_flower.tiny import ASKED, settings
from pfl_lite.atomic_files import atomic_path
from pfl_lite.engine.evaluate import score
from pfl_lite.engine.rounds import Part
from pfl_lite.methods.base import select

app = ClientApp()


class Node:
    """One client of a run: its number, its state if it has ever taken part, and where that state is kept.

    Flower keeps `context.state` in memory, where it ends with the node; a copy in the configuration's `state-folder` does not.
    """

    def __init__(self, content: RecordDict, context: Context, words: Mapping[str, Any] | None = None) -> None:
        self.id = int(context.node_config["partition-id"])
        self.context, self.content, config = context, content, {**context.run_config, **(words or {})}
        if config["method"] == "every":
            config |= settings(ASKED)
        self.run: Part = part(config, self.id)
        self.series = series(self.run)
        self.key = f"own-{self.series}"
        self.data = digest(self.run.config, self.id, str(config.get("files", "")))
        folder = str(config.get("state-folder", ""))
        place = Path(folder) / f"{self.series}-{self.data}" if folder else None
        self.file = place / f"client-{self.id}.pt" if place else None
        asked = content.config_records.get("run")
        if asked is not None and asked["series"] != self.series:
            raise ValueError(
                f"client {self.id} has other settings than the server: it takes no part in this run"
            )
        self.number = int(asked["round"]) if asked is not None else 0

    def own(self) -> dict[str, Tensor] | None:
        """The client's state after its last training; None if it has never taken part."""
        if self.key in self.context.state.array_records:
            return unpacked(self.context.state.array_records[self.key])
        if self.file is not None and self.file.exists():
            try:
                return dict(torch.load(self.file, weights_only=True))
            except Exception as error:  # zip, pickle and torch each have their own words for it
                raise ValueError(
                    f"{self.file} is damaged: delete it, and client {self.id} starts anew, or bring back a copy"
                ) from error
        return None

    def keep(self, own: dict[str, Tensor]) -> None:
        """Keep the client's state, first where it outlives this process."""
        if self.file is not None:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with atomic_path(self.file) as temporary:
                torch.save(own, temporary)
        self.context.state.array_records[self.key] = packed(own)

    def state(self) -> dict[str, Tensor]:
        """What the method works on: the state that was kept, or the one that every client starts with."""
        own = self.own()
        return select(self.run.clients, self.id) if own is None else own

    def asked(self, hook: Any, state: dict[str, Tensor], number: int, part: str = "down") -> Any:
        """What a method's function of (what was received in a part of the message, state, work) answers for this client."""
        received = unpacked(self.content.array_records[part])
        with torch.no_grad():  # gradients are taken where local SGD asks for them
            return hook(received, state, self.run.map.work_of(self.run.settings, number, [self.id]))

    def adapted(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """The state after this client, which has never taken part, has done what the method asks of a newcomer."""
        return dict(self.asked(self.run.method.adapt_newcomer, state, self.number + 1, "newcomer"))

    def answer(self, records: dict[str, Any]) -> RecordDict:
        about = {"client": self.id, "series": self.series, "round": self.number}
        return RecordDict(records | {"about": ConfigRecord(about)})


def who(node: Node) -> RecordDict:
    """Which client this node is, and which run it would take part in."""
    return node.answer({"has": ConfigRecord({"data": node.data, "versions": VERSIONS})})


def choose(node: Node) -> RecordDict:
    """What a newcomer asks the server for, such as the number of the cluster it prefers: whole numbers, never a model."""
    own = node.adapted(node.state())
    return node.answer({"choice": packed({k: t for k, t in own.items() if not t.is_floating_point()})})


def train(node: Node) -> RecordDict:
    """One client's work in one round: what it keeps stays here, what it sends up is the reply."""
    upload, own = node.asked(node.run.method.local, node.state(), node.number)
    node.keep(own)
    size = len(node.run.federation.train[node.id])
    return node.answer({"up": packed(upload), "size": MetricRecord({"images": size})})


def evaluate(node: Node) -> RecordDict:
    """Score the client's personal model on its own test images; a client that never took part first does what its method asks."""
    run, state = node.run, node.state()
    if node.own() is None and "newcomer" in node.content.array_records:
        state = node.adapted(state)  # what a newcomer does is not kept

    def scored(down: Any, client: Any, work: Any) -> dict[str, Tensor]:
        model = run.method.personal(down, client, work)
        return score(lambda x: run.method.predict(run.network, model, x), work, "test")

    sums = node.asked(scored, state, node.number)
    metrics = {
        "correct": float(sums["correct"]),
        "loss": float(sums["loss"]),
        "images": len(run.federation.test[node.id]),
    }
    return node.answer({"score": MetricRecord(metrics)})


def handler(answer: Callable[[Node], RecordDict]) -> Callable[[Message, Context], Message]:
    """What Flower calls for a message to one method."""
    return lambda message, context: Message(answer(Node(message.content, context)), reply_to=message)


def handler_of_many(answer: Callable[[Node], RecordDict]) -> Callable[[Message, Context], Message]:
    """What Flower calls for a message to several methods (`pfl_flower.many`), each with its settings of `pfl_flower.tiny`."""

    def answers(message: Message, context: Context) -> Message:
        parts = split(message.content).items()
        return Message(
            joined({name: answer(Node(content, context, settings(name))) for name, content in parts}),
            reply_to=message,
        )

    return answers


app.query()(handler(who))
app.query("choose")(handler(choose))
app.train()(handler(train))
app.evaluate()(handler(evaluate))
app.train("many")(handler_of_many(train))
app.evaluate("many")(handler_of_many(evaluate))
