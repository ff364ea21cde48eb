"""A federation small enough to work out by hand, and short ways to train on it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pfl_lite.config import make_config
from pfl_lite.data.federation import Federation, make_federation
from pfl_lite.data.images import Card, Images
from pfl_lite.data.partition import ClientIndices
from pfl_lite.engine.local_training import LoopWork
from pfl_lite.engine.simulation import Simulation, run
from pfl_lite.models.network import Parts

FIVE = {"data": "digits", "partition": "dirichlet:0.4", "clients": 5, "seed": 3}
FAST = {**FIVE, "rounds": 2, "epochs": 2, "batch_size": 32, "lr": 0.1, "dtype": "float64"}
FULL_BATCH = 10_000


def five_clients() -> Federation:
    """Five unequal clients of the real digits, in float64."""
    return make_federation("digits", "dirichlet:0.4", 5, 3, dtype=torch.float64)


def by_hand(pixels: list[int], labels: list[int], clients: list[list[int]]) -> Federation:
    """One-pixel images of two classes: pixel 255 is +1, pixel 0 is -1 after normalisation."""
    card = Card(name="digits", classes=("a", "b"), mean=(0.5,), std=(0.5,))
    x, y = np.array(pixels, dtype=np.uint8).reshape(-1, 1, 1), np.array(labels)
    images = Images("digits", x, y, x, y, card)
    none = np.array([], dtype=np.int64)
    indices = [ClientIndices(np.array(rows), none, np.array(rows)) for rows in clients]
    return Federation.build(images, indices, dtype=torch.float64)


def tiny_clients() -> Federation:
    """Clients of 1, 2, 3 and 4 one-pixel images, none for validation; clients 0 and 2 have no image of class b."""
    labels = [0, 1, 0, 0, 0, 0, 1, 1, 0, 1]
    return by_hand(
        [255, 0, 255, 30, 200, 128, 255, 60, 220, 10], labels, [[0], [1, 2], [3, 4, 5], [6, 7, 8, 9]]
    )


def opposed(signs: list[int]) -> Federation:
    """Clients of one image x = +1 each: of class a where the sign is +1, of class b where it is -1."""
    clients = len(signs)
    return by_hand([255] * clients, [0 if sign > 0 else 1 for sign in signs], [[i] for i in range(clients)])


def untrained(method: str, federation: Federation | None = None, **settings: Any) -> Simulation:
    """A simulation on the five clients before its first round, settings changed as given."""
    return Simulation(make_config(method, **(FAST | settings)), federation)


def train(method: str, federation: Federation | None = None, **settings: Any) -> Simulation:
    """A short run on the five clients, settings changed as given."""
    return run(method, federation=federation, **(FAST | settings))


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor], tolerance: float = 1e-12) -> bool:
    """Whether two dicts of tensors hold the same names and numbers."""
    return a.keys() == b.keys() and all(torch.allclose(a[k], b[k], rtol=0, atol=tolerance) for k in a)


def row(params: dict[str, Tensor], i: int) -> dict[str, Tensor]:
    """Client i's share of stacked tensors."""
    return {name: tensor[i] for name, tensor in params.items()}


# ---- one step worked out by hand ------------------------------------------------------------------------------------
# Two clients of one-pixel images x in {+1, -1}, softmax regression with two classes. From W = 0, b = 0 every probability is
# 1/2, so the gradient of logit c of a sample is p_c - [y = c] = +-1/2. Client 0 holds (x = +1, class a); client 1 holds
# (+1, b), (-1, a), (-1, a).
#
# gradient of W_a: client 0: (1/2 - 1) * 1 = -1/2; client 1: [(1/2)(1) + (-1/2)(-1) + (-1/2)(-1)] / 3 = 1/2
# gradient of b_a: client 0: -1/2;                 client 1: [1/2 - 1/2 - 1/2] / 3 = -1/6
# W_b and b_b have the opposite gradients.

ON_PAPER = {
    "data": "digits", "model": "linear", "rounds": 1, "epochs": 1, "batch_size": 8, "lr": 1.0,
    "dtype": "float64",
}  # fmt: skip


def s(z: float) -> float:
    """The logistic function, which is the probability of class a when its logit is z above that of class b."""
    return 1 / (1 + math.exp(-z))


def zero_start(method: str, federation: Federation | None = None, **settings: Any) -> Simulation:
    """A simulation of the two clients (or others) whose every parameter is 0, one full batch and lr 1 unless changed."""
    federation = federation or by_hand([255, 255, 0, 0], [0, 1, 0, 0], [[0], [1, 2, 3]])
    sim = Simulation(make_config(method, **({**ON_PAPER, "clients": len(federation)} | settings)), federation)
    restart(sim, {name: torch.zeros_like(tensor) for name, tensor in sim.start.items()})
    return sim


def restart(sim: Simulation, start: dict[str, Tensor]) -> None:
    """Let server and clients begin with other initial parameters."""
    sim.start = start
    sim.server, sim.clients = sim.method.init(start, sim.network, len(sim.federation))


def model(
    w_a: float, b_a: float = 0.0, w_b: float | None = None, b_b: float | None = None
) -> dict[str, Tensor]:
    """Softmax regression on one pixel; class b has the opposite of class a's numbers unless they are given."""
    weights, biases = [w_a, -w_a if w_b is None else w_b], [b_a, -b_a if b_b is None else b_b]
    as_tensor = lambda values: torch.tensor(values, dtype=torch.float64)  # noqa: E731
    return {"fc.weight": as_tensor(weights)[:, None], "fc.bias": as_tensor(biases)}


def of_class_a(params: dict[str, Tensor]) -> list[Any]:
    """[W_a, b_a] of one model on one pixel; of stacked models [.., K, 1], two lists."""
    return [params["fc.weight"][..., 0, 0].tolist(), params["fc.bias"][..., 0].tolist()]


def worked(sim: Simulation, number: int = 1) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """What every client sends and keeps after its local work in a round: uploads and states [N, ...]."""
    (uploads, states, _), _ = sim.local_work(number, sim.everyone)
    return uploads, states


def work_of(sim: Simulation, client: int, number: int = 1, kind: type[LoopWork] = LoopWork) -> LoopWork:
    """One client's round as its method sees it."""
    return kind(sim.network, sim.federation, sim.settings, sim.config.seed, number, [client])


class FlatWork(LoopWork):
    """Work whose loss is the same everywhere, so that only what a method adds to it moves the model."""

    def loss(self, params: dict[str, Tensor], batch: Any) -> Tensor:
        return torch.stack([0 * tensor.sum() for tensor in params.values()]).sum()


class TwoLayers(nn.Module):
    """h = fc1(x), logits = fc2(h) with nothing in between, so that its gradients can be worked out on paper."""

    width = 1

    def __init__(self, channels: int, size: int, classes: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(channels * size * size, self.width)
        self.fc2 = nn.Linear(self.width, classes)

    def features(self, x: Tensor) -> Tensor:
        """h [b, width]."""
        return self.fc1(x.flatten(1))

    def forward(self, x: Tensor) -> Tensor:
        """Logits [b, K]."""
        return self.fc2(self.features(x))


class Dropped(Parts):
    """One hidden layer with dropout behind a convolution, so that training and use differ."""

    def __init__(self, channels: int, size: int, classes: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, 2, 3)
        self.dropout = nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(2 * (size - 2) ** 2, 6), nn.Linear(6, classes)

    def extract(self, x: Tensor) -> Tensor:
        """[b, 2 (size - 2)^2]."""
        return self.conv(x).flatten(1)

    def hidden(self, a: Tensor) -> Tensor:
        """[b, 6]."""
        return self.dropout(torch.relu(self.fc1(a)))

    def classify(self, a: Tensor) -> Tensor:
        """Logits [b, K]."""
        return self.fc2(self.hidden(a))
