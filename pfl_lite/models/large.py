"""The larger networks of the papers: VGG-16, the FEMNIST CNN, MobileNet-V2, and deep MLPs."""

from __future__ import annotations

from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from pfl_lite.errors import InputError, refused
from pfl_lite.models.network import Parts


class VGG16(Parts):
    """VGG-16 for 32 x 32 images (configuration D, no batch norm): 13 convolutions, then 512 -> 512 -> 512 -> classes.

    Parameters: 15,245,130 (3 channels, 10 classes). Dropout 0.5 before each of the two hidden layers. Convolutions start from
    N(0, 2 / (9 * filters)), their biases from 0.
    """

    filters = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)  # 0: max pooling

    def __init__(self, channels: int, size: int, classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for filters in self.filters:
            if not filters:
                layers.append(nn.MaxPool2d(2))
                continue
            convolution = nn.Conv2d(channels, filters, 3, padding=1)
            nn.init.normal_(convolution.weight, 0, (2 / (9 * filters)) ** 0.5)
            nn.init.zeros_(convolution.bias)  # type: ignore[arg-type]
            layers += [convolution, nn.ReLU()]
            channels = filters
        self.body = nn.Sequential(*layers)
        self.dropout1, self.dropout2 = nn.Dropout(0.5), nn.Dropout(0.5)
        self.fc1 = nn.Linear(512 * (size // 32) ** 2, 512)
        self.fc2 = nn.Linear(512, 512)
        self.fc3 = nn.Linear(512, classes)

    def extract(self, x: Tensor) -> Tensor:
        return self.body(x).flatten(1)  # [b, 512]

    def hidden(self, a: Tensor) -> Tensor:
        a = F.relu(self.fc1(self.dropout1(a)))
        return F.relu(self.fc2(self.dropout2(a)))


class FemnistCNN(Parts):
    """Two 5 x 5 convolutions (32, 64 filters) and a hidden layer of 2048 for 28 x 28 images, as FedEM and FedMN use it.

    Parameters: 2,278,334 (1 channel, 62 classes).
    """

    def __init__(self, channels: int, size: int, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 32, 5)
        self.conv2 = nn.Conv2d(32, 64, 5)
        side = ((size - 4) // 2 - 4) // 2
        self.fc1 = nn.Linear(64 * side * side, 2048)
        self.fc2 = nn.Linear(2048, classes)

    def extract(self, x: Tensor) -> Tensor:
        x = F.relu(F.max_pool2d(self.conv1(x), 2))  # [b, 32, 12, 12]
        x = F.relu(F.max_pool2d(self.conv2(x), 2))  # [b, 64, 4, 4]
        return x.flatten(1)  # [b, 1024]

    def hidden(self, a: Tensor) -> Tensor:
        return F.relu(self.fc1(a))  # [b, 2048]


class MobileNetV2(Parts):
    """torchvision's MobileNet-V2: inverted residual blocks with batch norm, dropout 0.2, and one layer 1280 -> classes.

    Parameters: 2,236,682 (3 channels, 10 classes), 2,351,972 (3, 100); running means and variances are 34,112 floats more.
    """

    def __init__(self, channels: int, size: int, classes: int) -> None:
        super().__init__()
        from torchvision.models import mobilenet_v2  # takes a second to import

        self.body = mobilenet_v2().features
        if channels != 3:
            self.body[0][0] = nn.Conv2d(channels, 32, 3, stride=2, padding=1, bias=False)
        self.dropout = nn.Dropout(0.2)
        self.fc = nn.Linear(1280, classes)

    def extract(self, x: Tensor) -> Tensor:
        return self.body(x).mean((2, 3))  # over all places: [b, 1280]

    def hidden(self, a: Tensor) -> Tensor:
        return self.dropout(a)


class PretrainedMobileNetV2(MobileNetV2):
    """MobileNet-V2 whose layers below the last start from torchvision's ImageNet weights (the second set, as in FedMN's code)."""

    def load_pretrained(self) -> None:
        """Fetch the weights, or take them from torch's cache.

        Raises:
            InputError: they are not there and cannot be fetched, or the images have no three channels.
        """
        from torchvision.models import MobileNet_V2_Weights as Weights

        if self.body[0][0].in_channels != 3:
            raise InputError("mobilenet_v2_pretrained takes images of 3 channels: use --model mobilenet_v2")
        wanted = (
            f"the ImageNet weights of mobilenet_v2_pretrained cannot be fetched: put {Weights.DEFAULT.url} into "
            "torch's cache (~/.cache/torch/hub/checkpoints), or use --model mobilenet_v2"
        )
        with refused(OSError, wanted):
            stored = Weights.DEFAULT.get_state_dict(progress=False)
        body = {name.removeprefix("features."): t for name, t in stored.items() if name[:9] == "features."}
        self.body.load_state_dict(body)


class DeepMLP(Parts):
    """An MLP of `depth` layers on the flattened pixels, 256 wide: the networks of FedMN's figure 2.

    Parameters (784 pixels, 62 classes): 611,646 (depth 8), 677,438 (9), 743,230 (10).
    """

    def __init__(self, channels: int, size: int, classes: int, depth: int) -> None:
        super().__init__()
        widths = [channels * size * size, *[256] * (depth - 1), classes]
        for number, (inputs, outputs) in enumerate(pairwise(widths), 1):
            self.add_module(f"fc{number}", nn.Linear(inputs, outputs))

    def hidden(self, a: Tensor) -> Tensor:
        for layer in list(self.children())[:-1]:
            a = F.relu(layer(a))
        return a
