"""Networks: parameter counts, independent starts, multi-branch layers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pfl_lite.errors import InputError
from pfl_lite.models import NETWORKS, LeNet, auto_network, make_network
from pfl_lite.models.multi_branch import MultiBranch, collapse, stack_branches


@pytest.mark.parametrize(
    ("channels", "classes", "count"), [(1, 10, 61_706), (3, 10, 62_006), (3, 100, 69_656)]
)
def test_lenet_has_the_paper_s_parameters(channels: int, classes: int, count: int) -> None:
    assert make_network("lenet", channels, 32, classes).parameters == count


def test_lenet_is_relu_before_pooling_written_the_cheaper_way() -> None:
    net, x = LeNet(3, 32, 10), torch.randn(4, 3, 32, 32)
    y = torch.max_pool2d(torch.relu(net.conv1(x)), 2)
    y = torch.max_pool2d(torch.relu(net.conv2(y)), 2).flatten(1)
    assert torch.allclose(net(x), net.fc3(torch.relu(net.fc2(torch.relu(net.fc1(y))))))


@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_takes_its_images_and_starts_differently_for_each_copy(name: str) -> None:
    size = NETWORKS[name].size or 8
    network = make_network(name, 1, size, 10, dtype=torch.float64)
    first, again, other = network.init(0), network.init(0), network.init(0, copy=1)
    assert network(first, torch.zeros(2, 1, size, size, dtype=torch.float64)).shape == (2, 10)
    assert all(torch.equal(first[k], again[k]) and not torch.equal(first[k], other[k]) for k in first)


def test_drawing_a_network_leaves_torch_s_generator_alone() -> None:
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    make_network("linear", 1, 8, 10).init(5)
    assert torch.equal(torch.rand(1), expected)


def test_to_module_predicts_the_same_and_refuses_other_shapes() -> None:
    network, other = make_network("small_cnn", 1, 8, 10), make_network("small_cnn", 1, 8, 3)
    params, x = network.init(0), torch.randn(3, 1, 8, 8)
    assert torch.allclose(network.to_module(params)(x), network(params, x))
    with pytest.raises(InputError, match="do not fit the network small_cnn"):
        network.to_module(other.init(0))


def test_bad_networks_are_refused() -> None:
    with pytest.raises(InputError, match="did you mean lenet"):
        auto_network("lennet", "cifar10")
    with pytest.raises(InputError, match="takes 32x32 images, but these are 28x28"):
        make_network("lenet", 1, 28, 10)


class Mixed(nn.Module):
    """A convolution, a normalisation and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 3, 3), nn.GroupNorm(1, 3))
        self.head = nn.Linear(3 * 36, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.body(x)).flatten(1))


@pytest.mark.parametrize("shared", [True, False])
def test_multi_branch_mixes_collapses_and_differentiates(shared: bool) -> None:
    torch.manual_seed(0)
    copies = [Mixed().double() for _ in range(3)]
    net, x = MultiBranch(copies), torch.randn(2, 1, 8, 8, dtype=torch.float64)
    alpha = torch.rand((3,) if shared else (3, 3), dtype=torch.float64).softmax(-1).requires_grad_()
    out = net(x, alpha)
    assert torch.allclose(net.collapse(alpha.detach())(x), out, atol=1e-12)
    out.sum().backward()
    assert alpha.grad is not None and all(p.grad is not None for p in net.parameters())
    assert sum(p.numel() for p in net.parameters()) == 3 * sum(p.numel() for p in copies[0].parameters())


def test_one_hot_alpha_is_that_copy() -> None:
    copies = [Mixed() for _ in range(3)]
    x = torch.randn(2, 1, 8, 8)
    for b, one in enumerate(copies):
        assert torch.allclose(MultiBranch(copies)(x, torch.eye(3)[b]), one(x), atol=1e-6)


def test_mixing_weights_is_mixing_layer_outputs() -> None:
    layers = [nn.Conv2d(2, 4, 3).double() for _ in range(3)]
    alpha, x = (
        torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64),
        torch.randn(2, 2, 6, 6, dtype=torch.float64),
    )
    plain = collapse(stack_branches([dict(layer.named_parameters()) for layer in layers]), alpha)  # eq. 1
    mixed_outputs = sum(a * layer(x) for a, layer in zip(alpha, layers, strict=True))  # eq. 2
    assert torch.allclose(torch.conv2d(x, plain["weight"], plain["bias"]), mixed_outputs, atol=1e-12)


def test_branches_of_different_architectures_are_refused() -> None:
    with pytest.raises(InputError, match="same parameter names and shapes"):
        MultiBranch([nn.Linear(2, 2), nn.Linear(2, 3)])
    with pytest.raises(InputError, match="one or more"):
        MultiBranch([])
