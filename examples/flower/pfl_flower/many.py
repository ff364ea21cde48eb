"""Several methods as one run: in every round a node gets the messages of all of them at once.

A SuperNode starts a process for every message, which takes much longer than a tiny round. So this is how all methods are
compared with the simulation in minutes. Each computes as it does alone: its messages travel as they are, under its name.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from pfl_flower.server_app import Methodical
from pfl_flower.shared import joined, packed, part, split
from pfl_flower.tiny import ASKED, settings


class Together(Strategy):
    """The strategies of several methods, round by round."""

    def __init__(self, methods: Iterable[str], grid: Grid, timeout: float) -> None:
        first = Methodical(part(settings(ASKED)), grid, timeout)
        self.each = {ASKED: first}
        self.each |= {m: Methodical(part(settings(m)), grid, timeout, first) for m in methods if m != ASKED}

    def together(self, messages: dict[str, Iterable[Message]]) -> list[Message]:
        bundles: dict[int, dict[str, RecordDict]] = {}
        kind = "train"
        for method, own in messages.items():
            for message in own:
                kind = message.metadata.message_type
                bundles.setdefault(message.metadata.dst_node_id, {})[method] = message.content
        return [
            Message(joined(bundle), dst_node_id=node, message_type=f"{kind}.many")
            for node, bundle in bundles.items()
        ]

    def apart(self, replies: Iterable[Message]) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = {name: [] for name in self.each}
        for reply in replies:
            parts = {name: reply for name in self.each} if reply.has_error() else split(reply.content)
            for name, content in parts.items():
                whole = SimpleNamespace(content=content, metadata=reply.metadata, has_error=lambda: False)
                found[name].append(reply if reply.has_error() else whole)
        return found

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return self.together(
            {name: one.configure_train(server_round, arrays, config, grid) for name, one in self.each.items()}
        )

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        for name, own in self.apart(replies).items():
            self.each[name].aggregate_train(server_round, own)
        return packed({}), None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return self.together(
            {
                name: one.configure_evaluate(server_round, arrays, config, grid)
                for name, one in self.each.items()
            }
        )

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        for name, own in self.apart(replies).items():
            self.each[name].aggregate_evaluate(server_round, own)
        return None

    def summary(self) -> None:
        """Nothing to say: the configuration is that of `tiny`."""
