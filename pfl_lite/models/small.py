"""Three small networks for the embedded data sets: softmax regression, one hidden layer, and a two-layer CNN."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from pfl_lite.models.network import Parts


class Linear(Parts):
    """Softmax regression on the flattened pixels: one layer, `fc.weight` [K, d] and `fc.bias` [K]."""

    def __init__(self, channels: int, size: int, classes: int) -> None:
        super().__init__()
        self.fc = nn.Linear(channels * size * size, classes)


class MLP(Parts):
    """One hidden layer of 64 on the flattened pixels: the fastest network that has a body and a head."""

    def __init__(self, channels: int, size: int, classes: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(channels * size * size, 64)
        self.fc2 = nn.Linear(64, classes)

    def hidden(self, a: Tensor) -> Tensor:
        return F.relu(self.fc1(a))  # [b, 64] of pixels [b, d]


class SmallCNN(Parts):
    """A 3 x 3 CNN (8, 16 channels) with one hidden layer of 32, for 8 x 8 digits and 28 x 28 glyphs."""

    def __init__(self, channels: int, size: int, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1)
        self.fc1 = nn.Linear(16 * (size // 4) ** 2, 32)
        self.fc2 = nn.Linear(32, classes)

    def extract(self, x: Tensor) -> Tensor:
        x = F.relu(F.max_pool2d(self.conv1(x), 2))  # [b, 8, H/2, W/2]
        x = F.relu(F.max_pool2d(self.conv2(x), 2))  # [b, 16, H/4, W/4]
        return x.flatten(1)  # [b, H W]

    def hidden(self, a: Tensor) -> Tensor:
        return F.relu(self.fc1(a))  # [b, 32]
