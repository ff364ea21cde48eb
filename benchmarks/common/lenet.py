"""The network of the pFedMB paper for color images of 32 x 32 pixels, in plain PyTorch, for the peers that take such modules."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn


class LeNet(nn.Module):
    """Two 5 x 5 convolutions, then 400 -> 120 -> 84 -> 10; `pfl_lite.models.lenet.LeNet` does the same."""

    def __init__(self, start: dict[str, np.ndarray]) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)
        self.load_state_dict({name: torch.from_numpy(array) for name, array in start.items()})

    def encode(self, x: Tensor) -> Tensor:
        """What the last layer reads: [b, 84]."""
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2(x), 2))
        return F.relu(self.fc2(F.relu(self.fc1(x.flatten(1)))))

    def forward(self, x: Tensor) -> Tensor:
        """Logits [b, 10] of images [b, 3, 32, 32]."""
        return self.fc3(self.encode(x))
