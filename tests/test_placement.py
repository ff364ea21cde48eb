"""Where tensors lie, and what waits: one round of every method on a device without data, which stands in for a GPU.

torch's `meta` device holds shapes and no numbers. Mixing its tensors with those of the processor raises, and so does everything
that a GPU would have to be waited for: `.item()`, `.tolist()`, shapes that depend on data. What only a driver can do sits in
`pfl_lite.engine.gpu.Driver`, which does nothing here, and pinned memory, which is replaced.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from test_engine import quick
from torch import Tensor
from torch.utils._pytree import tree_map_only
from toy import FAST, five_clients

from pfl_lite.config import make_config
from pfl_lite.engine import local_training as engine_work
from pfl_lite.engine.batched import Vmap
from pfl_lite.engine.evaluate import score
from pfl_lite.engine.simulation import Simulation
from pfl_lite.errors import InputError
from pfl_lite.methods import METHODS, FedAvg
from pfl_lite.methods.base import Params, Round
from pfl_lite.models import make_network

SERVERS_THAT_LOOK = {
    "cfl": "splits a cluster where updates disagree, so that the number of models depends on numbers",
    "fedamp": "fixes the width of its attention after the first round, once",
    "fedfomo": "draws the next candidates with a generator of the processor",
}
"""Methods whose server waits for its numbers once per round, and why it must."""


class OnMeta:
    """A simulation's parts on the meta device, and its phases as the engine runs them."""

    def __init__(self, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
        monkeypatch.setitem(engine_work.EVALUATION_BATCH, "meta", 1000)
        settings = FAST | quick(method, momentum=0.5, engine="vmap", dtype="float32")
        if method == "fedmn":  # torch's own masks are refused by vmap on meta
            settings |= {"dropout": 0.0}
        for layer in (
            torch.nn.Linear,
            torch.nn.Conv2d,
        ):  # starting values, which nobody reads here, need numbers
            monkeypatch.setattr(layer, "reset_parameters", lambda layer: None)
        self.sim = sim = Simulation(make_config(method, **settings), replace_dtype(five_clients()))
        self.method = sim.method
        data = sim.federation.to("meta")
        network = make_network(
            sim.config.model, data.channels, data.size, data.classes, dtype=torch.float32, device="meta"
        )
        self.map = Vmap(network, data, sim.config)
        self.network, self.server, self.clients = network, meta(sim.server), meta(sim.clients)
        self.ids = torch.arange(len(data))  # the processor drew them

    def each(self, function: Any, rows: Params | None = None) -> tuple[Params, ...]:
        answers = self.map(
            function, self.server, self.clients if rows is None else rows, self.ids, 1, self.sim.settings
        )
        assert all(t.device.type == "meta" for answer in answers for t in answer.values())
        return answers

    def local(self) -> Params:
        uploads, self.clients = self.each(
            lambda server, client, work: self.method.local(
                self.method.download(server, client, work.id), client, work
            )
        )
        return uploads

    def aggregate(self) -> None:
        about = Round(1, meta(self.ids), meta(self.sim.federation.train_sizes), len(self.ids), 0)
        before = {name: t.shape for name, t in self.server.items()}
        self.server = self.method.aggregate(self.server, self.local(), about)
        assert all(t.device.type == "meta" for t in self.server.values())
        assert before.items() <= {name: t.shape for name, t in self.server.items()}.items()

    def models(self) -> Params:
        def personal(server: Params, client: Params, work: Any) -> tuple[Params]:
            return (self.method.personal(self.method.download(server, client, work.id), client, work),)

        return self.each(personal)[0]

    def score(self) -> None:
        def one(server: Params, model: Params, work: Any) -> tuple[Params]:
            return (score(lambda x: self.method.predict(self.network, model, x), work, "test"),)

        (sums,) = self.each(one, self.models())
        assert sums["correct"].shape == (5,)

    def tune(self) -> None:
        method = self.method

        def one(server: Params, client: Params, work: Any) -> tuple[Params]:
            received = method.download(server, client, work.id)
            return (method.fine_tune(received, client, work, method.finetune),)

        self.each(one)


def meta(tree: Any) -> Any:
    return tree_map_only(Tensor, lambda t: t.to("meta"), tree)


def replace_dtype(federation: Any) -> Any:
    return replace(federation, images=federation.images.float(), test_images=federation.test_images.float())


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["local", "aggregate", "score", "tune"])
@pytest.mark.parametrize("method", METHODS)
def test_a_round_stays_on_the_device_and_waits_for_nothing(
    method: str, phase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = OnMeta(method, monkeypatch)
    if phase == "aggregate" and method in SERVERS_THAT_LOOK:
        with pytest.raises((RuntimeError, NotImplementedError), match=r"(?i)meta"):
            there.aggregate()
    else:
        getattr(there, phase)()


FAULTS = {
    "a tensor left on the processor": lambda w: w + torch.ones(w.shape),
    "a number read": lambda w: w * float(w.sum()),
    "a list made": lambda w: w * len(w.flatten().tolist()),
    "a shape that depends on data": lambda w: w + w[w > 0].sum(),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_seen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    there, local = OnMeta("fedavg", monkeypatch), FedAvg.local

    def faulty(self: FedAvg, received: Params, client: Params, work: Any) -> tuple[Params, Params]:
        upload, client = local(self, received, client, work)
        return {name: FAULTS[fault](w) for name, w in upload.items()}, client

    monkeypatch.setattr(FedAvg, "local", faulty)
    with pytest.raises((RuntimeError, NotImplementedError, InputError), match=r"(?i)meta|vmap"):
        there.local()
