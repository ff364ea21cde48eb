"""Plain torch networks by name, and what turns one network into many."""

from __future__ import annotations

from pfl_lite.models.large import VGG16, DeepMLP, FemnistCNN, MobileNetV2, PretrainedMobileNetV2
from pfl_lite.models.lenet import LeNet
from pfl_lite.models.network import Network, Params, Parts
from pfl_lite.models.registry import NETWORKS, NetworkSpec, auto_network, make_network, register
from pfl_lite.models.small import MLP, Linear, SmallCNN

__all__ = [
    "MLP", "NETWORKS", "VGG16", "DeepMLP", "FemnistCNN", "LeNet", "Linear", "MobileNetV2", "Network", "NetworkSpec", "Params",
    "Parts", "PretrainedMobileNetV2", "SmallCNN", "auto_network", "make_network", "register",
]  # fmt: skip
