"""LeNet-5, the network of the pFedMB and PFL-MoE papers."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from pfl_lite.models.network import Parts


class LeNet(Parts):
    """LeNet-5 for 32 x 32 images: two 5 x 5 convolutions, then 400 -> 120 -> 84 -> classes; every layer has a bias.

    Parameters: 61,706 (1 channel, 10 classes), 62,006 (3, 10), 69,656 (3, 100). Chapter: *We repeat a paper*.
    """

    def __init__(self, channels: int, size: int, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        side = ((size - 4) // 2 - 4) // 2
        self.fc1 = nn.Linear(16 * side * side, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, classes)

    def extract(self, x: Tensor) -> Tensor:
        # relu(max_pool(x)) = max_pool(relu(x)), and touches a quarter of the numbers
        x = F.relu(F.max_pool2d(self.conv1(x), 2))  # [b, 6, 14, 14]
        x = F.relu(F.max_pool2d(self.conv2(x), 2))  # [b, 16, 5, 5]
        return x.flatten(1)  # [b, 400]

    def hidden(self, a: Tensor) -> Tensor:
        return F.relu(self.fc2(F.relu(self.fc1(a))))  # [b, 84]
