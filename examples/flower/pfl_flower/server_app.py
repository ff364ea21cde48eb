"""The server: a Flower strategy that asks a method of pfl_lite what to send down and what to make of the replies."""

from __future__ import annotations

import json
import time
from collections import Counter
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

from pfl_flower.shared import VERSIONS, packed, part, series, unpacked, wire_bytes, wire_floats
from pfl_flower.tiny import RUN
from pfl_lite.engine.rounds import Part
from pfl_lite.methods import METHODS
from pfl_lite.methods.base import Newcomers, Round, Sequential, select

app = ServerApp()
WAIT_SECONDS = 3600.0
ABOUT = {"client", "series", "round"}  # what every answer says of itself
SCORE = {"correct", "loss", "images"}
Uploads = dict[
    int, tuple[dict[str, Tensor], int]
]  # by client: what it sent, and how many images it trained on


class Methodical(Strategy):
    """Runs one method: samples by the run's seed, sends each client what its method downloads, aggregates by client number.

    A client that fails or does not answer in time is left out of its round: the method aggregates those who answered. Before
    the next one the server looks for it again, because a node that comes back has another number.
    """

    def __init__(
        self, run: Part, grid: Grid, timeout: float = WAIT_SECONDS, beside: Methodical | None = None
    ) -> None:
        self.run, self.method, self.series, self.timeout = run, run.method, series(run), timeout
        self.server: dict[str, Tensor] = run.server
        self.history: list[dict[str, Any]] = []
        self.ids: list[int] = []
        self.seen: set[int] = set()  # who has ever taken part
        self.choices: dict[int, dict[str, Tensor]] = {}  # what newcomers ask for
        self.waiting: list[Message] = []  # replies of clients that worked one after another
        self.down: list[ArrayRecord] = []  # what the clients of the round were sent
        self.nodes: dict[int, int] = {}  # which node is which client
        self.refused: set[int] = set()  # nodes
        self.data: str | None = None  # the digest of the labels that all clients' images were dealt from
        until = time.monotonic() + timeout
        self.beside = beside  # who has asked already which node is which client
        while True:
            self.look(grid)
            if len(self.nodes) >= run.config.clients or time.monotonic() > until:
                break
            time.sleep(1)

    def look(self, grid: Grid) -> None:
        """Ask every node that is not known yet which client it is, and whether it has the run's data and versions."""
        if self.beside is not None:
            self.nodes = dict(self.beside.nodes)
            return
        unknown = set(grid.get_node_ids()) - set(self.nodes.values()) - self.refused
        if not unknown:
            return
        asked = [Message(RecordDict(), dst_node_id=node, message_type="query") for node in sorted(unknown)]
        said = []
        for reply in grid.send_and_receive(asked, timeout=self.timeout):
            if reply.has_error():
                log(WARNING, "a node cannot take part: %s", reply.error.reason)
                continue
            records = reply.content.config_records
            node, about, has = reply.metadata.src_node_id, records.get("about", {}), records.get("has", {})
            if about.keys() != ABOUT or has.keys() != {"data", "versions"}:
                log(WARNING, "a node does not say which client it is, and is left out")
                self.refused.add(node)
                continue
            said.append((node, about, has))
        if self.data is None and said:
            self.data = str(Counter(str(has["data"]) for _, _, has in said).most_common(1)[0][0])
        for node, about, has in sorted(said, key=lambda one: one[0]):
            client = about["client"]
            if has["versions"] != VERSIONS:
                why = f"runs {has['versions']}, the server {VERSIONS}"
            elif about["series"] != self.series:
                why = "has other settings than the server"
            elif has["data"] != self.data:
                why = f"has images of other data ({has['data']}) than its peers ({self.data})"
            elif client not in range(self.run.config.clients):
                why = f"is none of 0..{self.run.config.clients - 1}"
            elif client in self.nodes:
                why = "is here already, and the first node is kept"
            else:
                self.nodes[client] = node
                continue
            log(WARNING, "client %s %s: it is left out", client, why)
            self.refused.add(node)

    def download(self, client: int, server: dict[str, Tensor]) -> dict[str, Tensor]:
        return dict(self.method.download(server, self.row(client), client))

    def row(self, client: int) -> dict[str, Tensor]:
        """Of a client's state the server knows its start, and what it asked for."""
        return select(self.run.clients, client) | self.choices.get(client, {})

    def message(self, kind: str, client: int, server: dict[str, Tensor], number: int) -> Message:
        content: dict[str, Any] = {"down": packed(self.download(client, server))}
        if kind != "train" and client not in self.seen and isinstance(self.method, Newcomers):
            content["newcomer"] = packed(self.method.download_newcomer(server, self.row(client), client))
        content["run"] = ConfigRecord({"series": self.series, "round": number})
        return Message(RecordDict(content), dst_node_id=self.nodes[client], message_type=kind)

    # ---- training -------------------------------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self.look(grid)
        self.started = time.monotonic()
        self.ids = self.run.sample(server_round).tolist()
        here = [i for i in self.ids if i in self.nodes]
        if isinstance(self.method, Sequential) and self.method.in_turns:
            self.waiting = self.one_after_another(server_round, here, grid)
            return []
        messages = [self.message("train", i, self.server, server_round) for i in here]
        self.down = [message.content.array_records["down"] for message in messages]
        return messages

    def one_after_another(self, number: int, ids: list[int], grid: Grid) -> list[Message]:
        """The replies of clients that hand something on to the next."""
        replies: list[Message] = []
        passed_on: dict[str, Tensor] | None = None
        self.down = []
        for i in ids:
            message = self.message("train", i, passed_on or self.server, number)
            self.down.append(message.content.array_records["down"])
            sent = list(grid.send_and_receive([message], timeout=self.timeout))
            replies += sent
            for upload, _ in self.uploads(number, self.answers(number, sent)).values():
                passed_on = self.method.hand_over(self.server, upload)
        return replies

    def answers(self, number: int, replies: Iterable[Message]) -> dict[int, Message]:
        """The replies that count, by client; what does not is said."""
        found: dict[int, Message] = {}
        known = {node: client for client, node in self.nodes.items()}
        for reply in replies:
            if reply.has_error():
                log(WARNING, "round %s: a client failed and is left out (%s)", number, reply.error.reason)
                continue
            about = reply.content.config_records.get("about", {})
            if about.keys() != ABOUT:
                log(WARNING, "round %s: a reply does not say whose it is, and is left out", number)
                continue
            client = known.get(reply.metadata.src_node_id, -1)
            if about["client"] != client:
                log(
                    WARNING,
                    "round %s: a node answers for client %s, which it is not",
                    number,
                    about["client"],
                )
            elif (about["series"], about["round"]) != (self.series, number):
                log(WARNING, "round %s: a reply of client %s belongs to another run or round", number, client)
            elif client in found:
                log(WARNING, "round %s: client %s answered twice, the first answer counts", number, client)
            else:
                found[client] = reply
        return dict(sorted(found.items()))  # sums in another order differ in their last bits

    def uploads(self, number: int, replies: dict[int, Message]) -> Uploads:
        """What the replies hold, without those that came in pieces or hold other tensors than most."""
        found: Uploads = {}
        for client, reply in replies.items():
            try:
                upload = unpacked(reply.content.array_records["up"])
                found[client] = upload, int(reply.content.metric_records["size"]["images"])
            except Exception:  # NumPy, torch and Flower each have their own words for bytes that are missing
                log(WARNING, "round %s: the reply of client %s is damaged, and is left out", number, client)
        shapes = {
            i: tuple((k, t.shape, t.dtype) for k, t in sorted(up.items())) for i, (up, _) in found.items()
        }
        usual = Counter(shapes.values()).most_common(1)
        for client in [i for i, shape in shapes.items() if shape != usual[0][0]]:
            log(
                WARNING,
                "round %s: client %s sent other tensors than its peers, and is left out",
                number,
                client,
            )
            del found[client]
        return found

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        found = self.answers(server_round, [*self.waiting, *replies])
        uploads = self.uploads(server_round, found)
        self.waiting = []
        missing = [i for i in self.ids if i not in uploads]
        entry: dict[str, Any] = {"round": server_round, "clients": list(uploads), "missing": missing}
        self.history.append(entry)
        if missing:
            log(WARNING, "round %s goes on without clients %s", server_round, missing)
            self.nodes = {i: node for i, node in self.nodes.items() if i not in missing}  # looked for again
        if not uploads:
            return None, None
        self.seen |= uploads.keys()
        for way, sent in (
            ("down", self.down),
            ("up", [found[i].content.array_records["up"] for i in uploads]),
        ):
            entry[f"bytes_{way}"] = sum(map(wire_bytes, sent))
            entry[f"floats_{way}"] = sum(map(wire_floats, sent))
        each = [upload for upload, _ in uploads.values()]
        stacked = {name: torch.stack([upload[name] for upload in each]) for name in each[0]}
        sizes = torch.tensor([size for _, size in uploads.values()])
        about = Round(
            server_round, torch.tensor(list(uploads)), sizes, len(self.run.members), self.run.config.seed
        )
        with torch.no_grad():
            self.server = dict(self.method.aggregate(self.server, stacked, about))
        entry["seconds"] = round(time.monotonic() - self.started, 3)
        return packed(self.server), None

    # ---- scoring --------------------------------------------------------------------------------------------------

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        if server_round % self.run.config.eval_every and server_round != self.run.config.rounds:
            return []
        self.look(grid)
        new = [i for i in sorted(self.nodes) if i not in self.seen]
        self.choices = {}
        whole = any(not rows.is_floating_point() for rows in self.run.clients.values())
        if whole and isinstance(self.method, Newcomers):
            asked = [self.message("query.choose", i, self.server, server_round) for i in new]
            replies = self.answers(server_round, grid.send_and_receive(asked, timeout=self.timeout))
            self.choices = {
                i: unpacked(reply.content.array_records["choice"])
                for i, reply in replies.items()
                if "choice" in reply.content.array_records
            }
        messages = [self.message("evaluate", i, self.server, server_round) for i in sorted(self.nodes)]
        self.choices = {}
        return messages

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        found = self.answers(server_round, replies)
        scores = {i: reply.content.metric_records.get("score", {}) for i, reply in found.items()}
        for client in [i for i, score in scores.items() if score.keys() != SCORE]:
            log(WARNING, "round %s: the score of client %s is damaged, and is left out", server_round, client)
            del scores[client]
        each = {i: s["correct"] / s["images"] for i, s in scores.items() if s["images"]}
        if not each:
            return None
        self.history[-1]["test_accuracy"] = each
        return MetricRecord({"accuracy": sum(each.values()) / len(each), "clients": len(each)})

    def summary(self) -> None:
        config = self.run.config
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
    patience = float(context.run_config.get("patience-seconds", WAIT_SECONDS))
    if context.run_config["method"] == "every":
        from pfl_flower.many import Together

        together = Together(METHODS, grid, patience)
        each, rounds = together.each, RUN["rounds"]
        together.start(grid=grid, initial_arrays=packed({}), num_rounds=rounds, timeout=patience)
    else:
        run = part(context.run_config)
        strategy = Methodical(run, grid, patience)
        each, rounds = {run.method.name: strategy}, run.config.rounds
        strategy.start(grid=grid, initial_arrays=packed(run.server), num_rounds=rounds, timeout=patience)
    out = str(context.run_config.get("out", ""))
    if out:
        torch.save({name: one.server for name, one in each.items()}, Path(out).with_suffix(".pt"))
        result = {name: {"series": one.series, "rounds": one.history} for name, one in each.items()}
        Path(out).with_suffix(".json").write_text(json.dumps(result, indent=1), encoding="utf-8")
