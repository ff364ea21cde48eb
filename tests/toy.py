"""A federation small enough to work out by hand, and short ways to train on it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from pfl_lite.data.federation import Federation, make_federation
from pfl_lite.data.images import Card, Images
from pfl_lite.data.partition import ClientIndices
from pfl_lite.engine.rounds import Simulation, run

FIVE = {"data": "digits", "partition": "dirichlet:0.4", "clients": 5, "seed": 3}
FAST = {**FIVE, "rounds": 2, "epochs": 2, "batch_size": 32, "lr": 0.1, "dtype": "float64"}


def five_clients() -> Federation:
    """Five unequal clients of the real digits, in float64."""
    return make_federation("digits", "dirichlet:0.4", 5, 3, dtype=torch.float64)


def by_hand(pixels: list[int], labels: list[int], clients: list[list[int]]) -> Federation:
    """One-pixel images of two classes: pixel 255 is +1, pixel 0 is -1 after normalisation."""
    card = Card(
        name="digits", title="toy", source="", licence="", classes=("a", "b"), size=1, channels=1, train_size=len(pixels),
        test_size=len(pixels), mean=(0.5,), std=(0.5,), how_to_get="", note="",
    )  # fmt: skip
    x, y = np.array(pixels, dtype=np.uint8).reshape(-1, 1, 1), np.array(labels)
    images = Images("digits", x, y, x, y, card)
    none = np.array([], dtype=np.int64)
    indices = [ClientIndices(np.array(rows), none, np.array(rows)) for rows in clients]
    return Federation.build(images, indices, dtype=torch.float64)


def train(method: str, federation: Federation | None = None, **settings: Any) -> Simulation:
    """A short run on the five clients, settings changed as given."""
    return run(method, federation=federation, **(FAST | settings))


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor], tolerance: float = 1e-12) -> bool:
    """Whether two dicts of tensors hold the same names and numbers."""
    return a.keys() == b.keys() and all(torch.allclose(a[k], b[k], rtol=0, atol=tolerance) for k in a)
