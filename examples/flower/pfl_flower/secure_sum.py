"""FedAvg's rounds with Flower's SecAgg+: the server reads a weighted mean of the uploads, and no upload.

Flower 1.41 has SecAgg+ for its older interface only (`LegacyContext`, `FitIns`, `FitRes`). So this is an app of its own: a
node that answers in those words, and a loop over rounds. How many images a client has travels unmasked. SecAgg+ computes with
whole numbers, so the result is close to the simulation's, not bit-equal.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import Code, FitIns, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.compat.common import recorddict_compat as compat
from flwr.server import LegacyContext
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD, Key
from flwr.serverapp import Grid
from torch import Tensor

from pfl_flower.client_app import Node
from pfl_flower.shared import packed, series
from pfl_lite.engine.rounds import Part
from pfl_lite.errors import InputError
from pfl_lite.methods.fedavg import FedAvg

app = ClientApp(mods=[secaggplus_mod])


@app.train()
def train(message: Message, context: Context) -> Message:
    """One client's work in one round; Flower's mod masks the answer before it leaves the node."""
    told = compat.recorddict_to_fitins(message.content, keep_input=True)
    down = map(torch.from_numpy, parameters_to_ndarrays(told.parameters))
    down = dict(zip(str(told.config["names"]).split(), (tensor.clone() for tensor in down), strict=True))
    about = ConfigRecord({"series": told.config["series"], "round": told.config["round"]})
    node = Node(RecordDict({"down": packed(down), "run": about}), context)
    upload, own = node.asked(node.run.method.local, node.state(), node.number)
    node.keep(own)
    up = ndarrays_to_parameters([upload[name].numpy() for name in down])
    size = len(node.run.federation.train[node.id])
    answer = FitRes(Status(Code.OK, ""), up, size, {})
    return Message(compat.fitres_to_recorddict(answer, keep_input=True), reply_to=message)


class _Told:
    """What Flower's workflow asks a strategy of its older interface: whom to ask, and what to make of the one mean."""

    def __init__(self, run: Part, nodes: dict[int, int], number: int) -> None:
        self.run, self.nodes, self.number = run, nodes, number

    def configure_fit(self, number: int, parameters: Any, manager: Any) -> list[tuple[Any, FitIns]]:
        config = {"names": " ".join(self.run.server), "series": series(self.run), "round": self.number}
        ids = self.run.sample(self.number).tolist()
        return [(SimpleNamespace(node_id=self.nodes[i]), FitIns(parameters, dict(config))) for i in ids]

    def aggregate_fit(
        self, number: int, results: list[Any], failures: list[Any]
    ) -> tuple[Any, dict[str, Any]]:
        return (results[0][1].parameters if results else None), {}


def train_securely(run: Part, grid: Grid, nodes: dict[int, int], largest: int) -> dict[str, Tensor]:
    """The server's model after all rounds.

    Args:
        run: a run of FedAvg.
        grid: by which the server reaches its nodes.
        nodes: which node is which client.
        largest: the most images that one client has, to which weights are scaled.

    Raises:
        InputError: another method, whose server does more than to take a mean.
    """
    if type(run.method) is not FedAvg or run.method.weights != "size":
        raise InputError(
            f"secure aggregation reveals a weighted mean alone, which is fedavg's answer, not {run.method.name}'s"
        )
    server = dict(run.server)
    secure = SecAggPlusWorkflow(1.0, 0.5, max_weight=float(largest))
    for number in range(1, run.config.rounds + 1):
        state = RecordDict({MAIN_CONFIGS_RECORD: ConfigRecord({Key.CURRENT_ROUND: number})})
        before = ndarrays_to_parameters([tensor.numpy() for tensor in server.values()])
        state.array_records[MAIN_PARAMS_RECORD] = compat.parameters_to_arrayrecord(before, keep_input=True)
        context = LegacyContext(
            Context(run_id=1, node_id=0, node_config={}, state=state, run_config={}),
            strategy=_Told(run, nodes, number),  # type: ignore[arg-type]
            client_manager=SimpleNamespace(num_available=lambda: len(nodes)),  # type: ignore[arg-type]
        )
        secure(grid, context)
        after = compat.arrayrecord_to_parameters(
            context.state.array_records[MAIN_PARAMS_RECORD], keep_input=True
        )
        arrays = parameters_to_ndarrays(after)
        server = {
            name: torch.tensor(array, dtype=server[name].dtype)
            for name, array in zip(server, arrays, strict=True)
        }
    return server
