"""Networks by name: those that come with the package, and a reader's own."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from pfl_lite.errors import InputError, one_of, refused
from pfl_lite.models.large import VGG16, DeepMLP, FemnistCNN, MobileNetV2, PretrainedMobileNetV2
from pfl_lite.models.lenet import LeNet
from pfl_lite.models.network import Network
from pfl_lite.models.small import MLP, Linear, SmallCNN


@dataclass(frozen=True)
class NetworkSpec:
    """How to build a named network from (channels, size, classes), one line about it, the image size it insists on (if any).

    `least` is the size of the smallest images that it can take, where it insists on none. What is a reader's `own` is tried out
    before it is used.
    """

    module: Callable[[int, int, int], nn.Module]
    about: str
    size: int | None = None
    least: int = 1
    own: bool = False


NETWORKS: dict[str, NetworkSpec] = {
    "linear": NetworkSpec(Linear, "softmax regression on the pixels"),
    "mlp": NetworkSpec(MLP, "one hidden layer of 64 on the pixels"),
    # two poolings leave nothing of smaller images
    "small_cnn": NetworkSpec(
        SmallCNN, "two 3x3 convolutions and one hidden layer, for digits and glyphs", least=4
    ),
    "lenet": NetworkSpec(LeNet, "LeNet-5 on 32x32 images, the network of pFedMB and PFL-MoE", size=32),
    "vgg16": NetworkSpec(VGG16, "VGG-16 on 32x32 images, without batch norm, with dropout", size=32),
    "femnist_cnn": NetworkSpec(FemnistCNN, "two 5x5 convolutions and 2048 units, on 28x28 images", size=28),
    "mobilenet_v2": NetworkSpec(MobileNetV2, "MobileNet-V2, with batch norm and dropout"),
    "mobilenet_v2_pretrained": NetworkSpec(PretrainedMobileNetV2, "MobileNet-V2 from ImageNet weights"),
    "mlp256x8": NetworkSpec(partial(DeepMLP, depth=8), "eight layers, 256 wide, on the pixels"),
    "mlp256x9": NetworkSpec(partial(DeepMLP, depth=9), "nine layers, 256 wide, on the pixels"),
    "mlp256x10": NetworkSpec(partial(DeepMLP, depth=10), "ten layers, 256 wide, on the pixels"),
}


def register(
    name: str, module: Callable[[int, int, int], nn.Module], about: str = "", *, size: int | None = None
) -> None:
    """Give one's own network a name, under which `run(model=name)`, `make_network` and the other networks' users find it.

    Args:
        name: a name that is free. The same class or function may take its own again, as in a cell that is run twice.
        module: a class or function that makes a module, with fresh initial values, from (channels, size, classes).
        about: one line about it.
        size: pixels a side of the images that it insists on, if it does.

    Raises:
        InputError: the name is taken, or `module` is a module and not what makes one.
    """
    if isinstance(module, nn.Module) or not callable(module):
        raise InputError(
            f"register('{name}', ...) needs a class or function that makes a module from (channels, size, classes), "
            f"not a {type(module).__name__}: every copy of a network starts from initial values of its own"
        )
    known = NETWORKS.get(name)
    if name == "auto" or (known is not None and origin(known.module) != origin(module)):
        raise InputError(
            f"the name '{name}' is taken: give the network one that is not among {', '.join(NETWORKS)}"
        )
    NETWORKS[name] = NetworkSpec(module, about, size, own=True)


def origin(module: Callable[..., nn.Module]) -> tuple[object, object]:
    """Where a class or function was written: its module and its name there; of anything else, itself."""
    return getattr(module, "__module__", None), getattr(module, "__qualname__", module)


def auto_network(name: str, data: str, size: int | None = None) -> str:
    """The network's name; `auto` means small_cnn for the embedded data sets and LeNet-5 for the others.

    Images that have a `size` already, those of a federation, get LeNet-5 where it is 32, mlp where it is below 4, and
    small_cnn otherwise.
    """
    if name == "auto":
        if data.split(":")[0] in ("digits", "glyphs", "glyphs10"):
            return "small_cnn"
        if size in (None, NETWORKS["lenet"].size):
            return "lenet"
        return "small_cnn" if size >= NETWORKS["small_cnn"].least else "mlp"
    return one_of_models(name, [*NETWORKS, "auto"])


def one_of_models(name: str, known: Collection[str]) -> str:
    """The name of a network; raises InputError for one that no network has."""
    own = "register adds your own in a script: see *Your own method, your own data*"
    return one_of("model", name, known, f"valid: {', '.join(sorted(known))}; {own}")


def make_network(
    name: str,
    channels: int,
    size: int,
    classes: int,
    *,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> Network:
    """Build a network by name for images [channels, size, size] and a number of classes.

    Raises:
        InputError: an unknown name, images of a size that the network cannot take, or a network of one's own that does not work.
    """
    spec = NETWORKS[one_of_models(name, NETWORKS)]
    if spec.size is not None and size != spec.size:
        raise InputError(f"model '{name}' takes {spec.size}x{spec.size} images, but these are {size}x{size}")
    if size < spec.least:
        raise InputError(
            f"model '{name}' takes images of {spec.least}x{spec.least} pixels or more, but these are {size}x{size}"
        )
    build = partial(spec.module, channels, size, classes)
    shape = (channels, size, size)
    made = f"made from (channels, size, classes) = {(channels, size, classes)}"
    called = f"called with images [2, {channels}, {size}, {size}]"
    with refused(
        (Exception,) if spec.own else (),
        lambda error: f"network {name} does not work, {made} and {called}: {error}",
    ):
        network = Network(name, build, dtype=dtype, device=device, shape=shape)
        if spec.own:
            network.try_out(classes)
    return network
