"""The server: a Flower strategy that asks a method of pfl_lite what to send down and what to make of the replies."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.common import log
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Strategy
from torch import Tensor

from pfl_flower.shared import packed, series, simulation, unpacked, wire_bytes
from pfl_lite.engine.simulation import Simulation
from pfl_lite.methods.base import Newcomers, Round, Sequential, select

app = ServerApp()
WAIT_SECONDS = 3600.0


class Methodical(Strategy):
    """Runs one method: samples by the run's seed, sends each client what its method downloads, aggregates by client number.

    A client that fails or does not answer in time is left out of its round: the method aggregates those who answered.
    """

    def __init__(self, sim: Simulation, grid: Grid, timeout: float = WAIT_SECONDS) -> None:
        self.sim, self.method, self.series, self.timeout = sim, sim.method, series(sim), timeout
        self.server: dict[str, Tensor] = sim.server
        self.history: list[dict[str, Any]] = []
        self.ids: list[int] = []
        self.seen: set[int] = set()  # who has ever taken part
        self.choices: dict[int, dict[str, Tensor]] = {}  # what newcomers ask for
        self.waiting: list[Message] = []  # replies of clients that worked one after another
        self.nodes = self.find_nodes(grid)

    def find_nodes(self, grid: Grid) -> dict[int, int]:
        """Which node is which client: ids of nodes are random, so each is asked."""
        wanted, nodes = len(self.sim.federation), {}
        until = time.monotonic() + self.timeout
        while True:
            asked = [
                Message(RecordDict(), dst_node_id=node, message_type="query")
                for node in grid.get_node_ids()
                if node not in nodes.values()
            ]
            for reply in grid.send_and_receive(asked, timeout=self.timeout) if asked else ():
                if reply.has_error():
                    log(WARNING, "a node cannot take part: %s", reply.error.reason)
                    continue
                about = reply.content.config_records["about"]
                if about["series"] != self.series:
                    log(
                        WARNING,
                        "client %s has other data, settings or versions: it is left out",
                        about["client"],
                    )
                elif about["client"] in nodes:
                    log(WARNING, "two nodes say that they are client %s: the first is kept", about["client"])
                else:
                    nodes[int(str(about["client"]))] = reply.metadata.src_node_id
            if len(nodes) >= wanted or time.monotonic() > until:
                return nodes
            time.sleep(1)

    def message(self, kind: str, client: int, server: dict[str, Tensor], number: int) -> Message:
        client_row = select(self.sim.clients, client) | self.choices.get(
            client, {}
        )  # its start, and what it asked for
        content: dict[str, Any] = {"down": packed(self.method.download(server, client_row, client))}
        if kind != "train" and client not in self.seen and isinstance(self.method, Newcomers):
            content["newcomer"] = packed(self.method.download_newcomer(server, client_row, client))
        content["run"] = ConfigRecord({"series": self.series, "round": number})
        return Message(RecordDict(content), dst_node_id=self.nodes[client], message_type=kind)

    # ---- training -------------------------------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self.ids = self.sim.sample(server_round).tolist()
        here = [i for i in self.ids if i in self.nodes]
        if isinstance(self.method, Sequential) and self.method.in_turns:
            self.waiting = self.one_after_another(server_round, here, grid)
            return []
        messages = [self.message("train", i, self.server, server_round) for i in here]
        self.down = sum(wire_bytes(message.content.array_records["down"]) for message in messages)
        return messages

    def one_after_another(self, number: int, ids: list[int], grid: Grid) -> list[Message]:
        """The replies of clients that hand something on to the next."""
        replies: list[Message] = []
        passed_on: dict[str, Tensor] | None = None
        self.down = 0
        for i in ids:
            message = self.message("train", i, passed_on or self.server, number)
            self.down += wire_bytes(message.content.array_records["down"])
            for reply in grid.send_and_receive([message], timeout=self.timeout):
                replies.append(reply)
                if not reply.has_error():
                    upload = unpacked(reply.content.array_records["up"])
                    passed_on = self.method.hand_over(self.server, upload)
        return replies

    def answers(self, number: int, replies: Iterable[Message]) -> dict[int, Message]:
        """The replies that count, by client; what does not is said."""
        found: dict[int, Message] = {}
        for reply in replies:
            if reply.has_error():
                log(WARNING, "round %s: a client failed and is left out (%s)", number, reply.error.reason)
                continue
            about = reply.content.config_records["about"]
            client = int(str(about["client"]))
            if (about["series"], about["round"]) != (self.series, number):
                log(WARNING, "round %s: a reply of client %s belongs to another run or round", number, client)
            elif client in found:
                log(WARNING, "round %s: client %s answered twice, the first answer counts", number, client)
            else:
                found[client] = reply
        return dict(sorted(found.items()))  # sums in another order differ in their last bits

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        found = self.answers(server_round, [*self.waiting, *replies])
        self.waiting = []
        missing = [i for i in self.ids if i not in found]
        entry: dict[str, Any] = {"round": server_round, "clients": list(found), "missing": missing}
        self.history.append(entry)
        if missing:
            log(WARNING, "round %s goes on without clients %s", server_round, missing)
        if not found:
            return None, None
        self.seen |= found.keys()
        records = [reply.content.array_records["up"] for reply in found.values()]
        entry |= {"bytes_down": self.down, "bytes_up": sum(map(wire_bytes, records))}
        uploads = [unpacked(record) for record in records]
        stacked = {name: torch.stack([upload[name] for upload in uploads]) for name in uploads[0]}
        sizes = [int(reply.content.metric_records["size"]["images"]) for reply in found.values()]
        about = Round(
            server_round,
            torch.tensor(list(found)),
            torch.tensor(sizes),
            len(self.sim.members),
            self.sim.config.seed,
        )
        with torch.no_grad():
            self.server = self.method.aggregate(self.server, stacked, about)
        return packed(self.server), None

    # ---- scoring --------------------------------------------------------------------------------------------------

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        new = [i for i in sorted(self.nodes) if i not in self.seen]
        self.choices = {}
        whole = any(not rows.is_floating_point() for rows in self.sim.clients.values())
        if whole and isinstance(self.method, Newcomers):
            asked = [self.message("query.choose", i, self.server, server_round) for i in new]
            replies = self.answers(server_round, grid.send_and_receive(asked, timeout=self.timeout))
            self.choices = {
                i: unpacked(reply.content.array_records["choice"]) for i, reply in replies.items()
            }
        messages = [self.message("evaluate", i, self.server, server_round) for i in sorted(self.nodes)]
        self.choices = {}
        return messages

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        found = self.answers(server_round, replies)
        scores = {i: reply.content.metric_records["score"] for i, reply in found.items()}
        each = {i: s["correct"] / s["images"] for i, s in scores.items() if s["images"]}
        self.history[-1]["test_accuracy"] = each
        if not each:
            return None
        return MetricRecord({"accuracy": sum(each.values()) / len(each), "clients": len(each)})

    def summary(self) -> None:
        config = self.sim.config
        log(
            INFO,
            "\t%s on %s over %s clients by %s",
            config.method.name,
            config.data,
            config.clients,
            config.partition,
        )


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the configuration's rounds, and write what came of them to its `out`."""
    sim = simulation(context.run_config)
    strategy = Methodical(sim, grid)
    strategy.start(
        grid=grid, initial_arrays=packed(sim.server), num_rounds=sim.config.rounds, timeout=WAIT_SECONDS
    )
    out = str(context.run_config.get("out", ""))
    if out:
        result = {"series": strategy.series, "rounds": strategy.history}
        Path(out).with_suffix(".json").write_text(json.dumps(result, indent=1), encoding="utf-8")
        torch.save(strategy.server, Path(out).with_suffix(".pt"))
