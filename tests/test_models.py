"""Networks: parameter counts, independent starts, multi-branch layers."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any
from urllib.error import URLError

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from pfl_lite import run
from pfl_lite.errors import InputError
from pfl_lite.methods import make_method
from pfl_lite.models import NETWORKS, LeNet, Linear, auto_network, make_network, register
from pfl_lite.models.mixing import mix
from pfl_lite.models.multi_branch import MultiBranch, collapse, stack_branches
from pfl_lite.models.network import Network, Parts, torch_seeded


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


COUNTS = [
    ("vgg16", (3, 32, 10), 15_245_130),
    ("femnist_cnn", (1, 28, 62), 2_278_334),
    ("mobilenet_v2", (3, 32, 10), 2_236_682),
    ("mobilenet_v2", (3, 32, 100), 2_351_972),
    ("mlp256x8", (1, 28, 62), 611_646),
    ("mlp256x9", (1, 28, 62), 677_438),
    ("mlp256x10", (1, 28, 62), 743_230),
    ("mlp256x8", (3, 32, 10), 1_184_010),
]


@pytest.mark.parametrize(("name", "shape", "count"), COUNTS)
def test_large_networks_have_the_papers_parameters(
    name: str, shape: tuple[int, int, int], count: int
) -> None:
    assert make_network(name, *shape).parameters == count


@pytest.mark.parametrize(
    ("name", "shape", "outputs", "count"),
    [
        ("mobilenet_v2", (3, 32, 10), 512, 2_879_744),
        ("mobilenet_v2", (3, 32, 10), 128, 2_387_840),
        ("femnist_cnn", (1, 28, 62), 512, 3_200_384),
        ("femnist_cnn", (1, 28, 62), 128, 2_413_568),
        ("linear", (1, 8, 10), 7, 65 * 7),
    ],
)
def test_a_resized_network_has_another_last_layer(
    name: str, shape: tuple[int, int, int], outputs: int, count: int
) -> None:
    plain = make_network(name, *shape)
    resized = plain.resized(outputs)
    assert resized.parameters == count and resized.resized(10).layers == plain.layers
    a, b = plain.init(3), resized.init(3)
    below = [k for k in a if not k.startswith(plain.last)]
    assert all(torch.equal(a[k], b[k]) for k in below) and b[f"{plain.last}.bias"].shape == (outputs,)


def test_batch_norm_s_running_statistics_are_floats_of_a_start_but_not_parameters() -> None:
    network = make_network("mobilenet_v2", 3, 32, 10)
    start = network.init(0)
    assert sum(t.numel() for t in start.values()) == 2_236_682 + 2 * 17_056
    assert all(t.is_floating_point() for t in start.values()) and network.batch_norm and network.dropout
    assert not make_network("vgg16", 3, 32, 10).batch_norm


def test_pretrained_weights_that_cannot_be_fetched_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.hub

    def offline(*_: object, **__: object) -> None:
        raise URLError("no network")

    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", offline)
    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", offline)
    with pytest.raises(InputError, match=r"cannot be fetched: put https://.* or use --model mobilenet_v2"):
        make_network("mobilenet_v2_pretrained", 3, 32, 10).init(0)


def test_pretrained_weights_are_those_below_the_last_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchvision.models import mobilenet_v2

    stored = mobilenet_v2(num_classes=1000).state_dict()
    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", lambda *_, **__: stored)
    network = make_network("mobilenet_v2_pretrained", 3, 32, 10)
    a, b = network.init(0), network.init(0, copy=1)
    assert torch.equal(a["body.3.conv.0.0.weight"], stored["features.3.conv.0.0.weight"])
    assert torch.equal(a["body.3.conv.0.0.weight"], b["body.3.conv.0.0.weight"])
    assert not torch.equal(a["fc.weight"], b["fc.weight"])
    with pytest.raises(InputError, match="takes images of 3 channels"):
        make_network("mobilenet_v2_pretrained", 1, 32, 10).init(0)


@pytest.mark.parametrize("name", [name for name in NETWORKS if name != "mobilenet_v2_pretrained"])
def test_every_network_takes_its_images_and_starts_differently_for_each_copy(name: str) -> None:
    size = NETWORKS[name].size or 8
    network = make_network(name, 1, size, 10, dtype=torch.float64)
    first, again, other = network.init(0), network.init(0), network.init(0, copy=1)
    assert network(first, torch.zeros(2, 1, size, size, dtype=torch.float64)).shape == (2, 10)
    assert all(torch.equal(first[k], again[k]) for k in first)
    drawn = [k for k, tensor in first.items() if tensor.dim() > 1]  # the others may start from 0 or 1
    assert not any(torch.equal(first[k], other[k]) for k in drawn)
    assert network.features(first, torch.zeros(2, 1, size, size, dtype=torch.float64)).dim() == 2


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
    with pytest.raises(
        InputError, match=r": \S+ is \(3, 32\) in the network, \(10, 32\) among the parameters$"
    ):
        other.to_module(params)
    with pytest.raises(InputError, match=r"parameters \(one more axis in front is several models\)$"):
        network.to_module({name: tensor[None] for name, tensor in params.items()})
    with pytest.raises(InputError, match="do not fit the network small_cnn"):
        network.to_module(other.init(0))


def test_bad_networks_are_refused() -> None:
    with pytest.raises(InputError, match="did you mean lenet"):
        auto_network("lennet", "cifar10")
    with pytest.raises(InputError, match="takes 32x32 images, but these are 28x28"):
        make_network("lenet", 1, 28, 10)
    with pytest.raises(InputError, match="'small_cnn' takes images of 4x4 pixels or more, but these are 3x3"):
        make_network("small_cnn", 4, 3, 10)


@pytest.mark.parametrize(
    "name", [name for name, spec in NETWORKS.items() if not spec.size and name != "mobilenet_v2_pretrained"]
)
def test_the_smallest_images_are_taken(name: str) -> None:
    size = NETWORKS[name].least
    network = make_network(name, 4, size, 10)
    assert network(network.init(0), torch.zeros(2, 4, size, size)).shape == (2, 10)


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


def test_copies_that_are_all_the_same_are_warned_of() -> None:
    one, other = (dict(nn.Linear(2, 3).named_parameters()) for _ in range(2))
    with pytest.warns(UserWarning, match="all the same, so that they learn the same"):
        stack_branches([one, one])
    with warnings.catch_warnings(action="error"):
        stack_branches([one])
        stack_branches([one, one | {"bias": other["bias"]}])


def test_branches_of_different_architectures_are_refused() -> None:
    with pytest.raises(InputError, match="same parameter names and shapes"):
        MultiBranch([nn.Linear(2, 2), nn.Linear(2, 3)])
    with pytest.raises(InputError, match="one or more"):
        MultiBranch([])


# ---- one's own ------------------------------------------------------------------------------------------------------


class Plain(nn.Module):
    """A convolution and a linear layer in a plain module, whose parts nobody can ask for."""

    def __init__(self, channels: int, size: int, classes: int) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(channels, 2, size), nn.Linear(2, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.conv(x).flatten(1))


class Deeper(nn.Module):
    """A convolution and two linear layers in a plain module."""

    def __init__(self, channels: int, size: int, classes: int) -> None:
        super().__init__()
        self.conv, self.fc1, self.fc2 = nn.Conv2d(channels, 2, size), nn.Linear(2, 3), nn.Linear(3, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.fc1(self.conv(x).flatten(1)))


class Headless(nn.Module):
    """One convolution, whose outputs are the logits."""

    def __init__(self, channels: int, size: int, classes: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, classes, size)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x).flatten(1)


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pfl_lite.models.registry.NETWORKS", known := dict(NETWORKS))
    monkeypatch.setattr("pfl_lite.engine.rounds.NETWORKS", known)
    register("plain", Plain, "a small one")
    register("deeper", Deeper)
    register("headless", Headless)


ONE_ROUND = {"data": "digits", "clients": 2, "rounds": 1}


def test_a_registered_network_trains_under_its_name_and_may_be_registered_again(own: None) -> None:
    register("plain", Plain, size=8)
    done = run("fedper", model="plain", **ONE_ROUND)
    assert done.network.last == "fc" and done.clients["fc.weight"].shape == (2, 10, 2)
    with pytest.raises(InputError, match="model 'plain' takes 8x8 images, but these are 28x28"):
        make_network("plain", 1, 28, 10)


class Faulty(nn.Module):
    """Something is wrong with each of its kinds."""

    def __init__(self, kind: str, channels: int, size: int, classes: int) -> None:
        super().__init__()
        side = 28 if kind == "size" else size
        self.kind, self.fc = kind, nn.Linear(channels * side**2, classes + (kind == "outputs"))

    def forward(self, x: Tensor) -> Any:
        y = self.fc(x.flatten(1))
        y = nn.functional.dropout(y, 0.5, self.training) if self.kind == "dropout" else y
        return (y, y) if self.kind == "tuple" else y


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("dropout", "network faulty draws random numbers in its `forward`"),
        ("outputs", r"must answer with logits \[images, 10\], not with \(2, 11\)"),
        ("tuple", "not with tuple for two images"),
        ("size", r"network faulty does not work, made from .* and called with images \[2, 1, 8, 8\]: "),
    ],
)
def test_a_network_that_does_not_work_is_refused_when_it_is_made(own: None, kind: str, says: str) -> None:
    register("faulty", partial(Faulty, kind))
    before = torch.random.get_rng_state()
    with pytest.raises(InputError, match=says):
        make_network("faulty", 1, 8, 10)
    assert torch.equal(torch.random.get_rng_state(), before)
    with pytest.raises(InputError, match="network words does not work, made from"):
        register("words", lambda: Linear(1, 8, 10))  # type: ignore[arg-type,misc]
        make_network("words", 1, 8, 10)


class Backwards(Parts):
    """As wide as there are classes, so that only its answers would tell that its layers are made in the wrong order."""

    def __init__(self, channels: int, size: int, classes: int) -> None:
        super().__init__()
        self.fc2, self.fc1 = nn.Linear(classes, classes), nn.Linear(classes, classes)
        self.classes = classes

    def extract(self, x: Tensor) -> Tensor:
        return x.flatten(1)[:, : self.classes]

    def hidden(self, a: Tensor) -> Tensor:
        return self.fc1(a).relu()


def test_parts_whose_hidden_asks_the_layer_made_last_are_refused(own: None) -> None:
    register("backwards", Backwards)
    with pytest.raises(
        InputError, match="network backwards makes its layer 'fc1' last, but `extract` or `hidden` asks it"
    ):
        make_network("backwards", 1, 8, 10)


def a_function(channels: int, size: int, classes: int) -> nn.Module:
    return Linear(channels, size, classes)


@pytest.mark.parametrize(
    ("name", "module", "message"),
    [
        ("linear", Plain, "the name 'linear' is taken"),
        ("plain", a_function, "the name 'plain' is taken"),
        ("auto", Plain, "the name 'auto' is taken"),
        ("new", nn.Linear(2, 2), "needs a class or function .* not a Linear"),
        ("new", "plain", "not a str"),
    ],
)
def test_a_network_that_cannot_be_registered_is_refused(
    own: None, name: str, module: Any, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        register(name, module)


@pytest.mark.parametrize("module", [nn.Linear(2, 2), Plain])
def test_a_module_for_a_name_is_told_how_to_get_one(module: Any) -> None:
    with pytest.raises(InputError, match=r"model must be a name: `pfl_lite.models.register` gives one"):
        run("fedavg", model=module, **ONE_ROUND)


@pytest.mark.parametrize(
    ("model", "method", "message"),
    [
        (
            "plain",
            "moon",
            "asks for `features`, which network plain has not: derive its class from `pfl_lite",
        ),
        ("plain", "pfl_mfe", "asks for `features`, which network plain has not"),
        ("deeper", "pfl_mfe", "asks for `extract`, which network deeper has not"),
        ("headless", "moon", "needs nn.Linear with a bias as the last layer .* not Conv2d conv"),
        ("headless", "fedmn", "needs nn.Linear with a bias as the last layer .* not Conv2d conv"),
    ],
)
def test_what_a_method_needs_of_a_network_is_said_before_a_round(
    own: None, monkeypatch: pytest.MonkeyPatch, model: str, method: str, message: str
) -> None:
    monkeypatch.setattr("pfl_lite.engine.simulation.Simulation.advance", None)
    with pytest.raises(InputError, match=message):
        run(method, model=model, **ONE_ROUND)


def test_a_layer_is_dense_if_its_weight_is_a_matrix() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))
            self.norm, self.rows, self.fc = nn.BatchNorm1d(4, affine=False), nn.GRU(4, 2), nn.Linear(2, 2)

    network = Network("odd", Odd)
    assert [layer for layer in network.layers if network.is_dense(layer)] == ["fc"]
    assert list(network.layers) == ["", "norm", "rows", "fc"]


def test_a_parameter_of_another_name_is_named() -> None:
    network = make_network("linear", 1, 8, 10)
    own = network.init(0)
    packed = own | {f"shared/{name}": tensor for name, tensor in own.items()}
    with pytest.raises(
        InputError, match=r"linear has no parameter 'shared/fc.weight' .*`unpack\(prefix, params\)`"
    ):
        network(packed, torch.zeros(1, 1, 8, 8))


class Broken(nn.Module):
    """A mistake of its own."""

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.nothing(x)
        return result


def test_a_network_s_own_mistake_stays_what_it_is() -> None:
    with pytest.raises(AttributeError, match="'Broken' object has no attribute 'nothing'"):
        Network("broken", Broken)({}, torch.zeros(1))


class Called(TorchDispatchMode):
    """Notes every operation with the precision of its first tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, torch.dtype]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [one for one in args if isinstance(one, Tensor)]
        self.seen += [(func.overloadpacket.__name__, one.dtype) for one in tensors[:1]]
        return func(*args, **(kwargs or {}))


PRODUCTS = {"mm", "mv", "bmm", "addmm", "dot"}


def test_parameters_are_mixed_without_products_that_a_gpu_may_round() -> None:
    """`meta` stands for a GPU: tensors without contents, elsewhere than on the CPU."""
    weights, x = torch.rand(3, dtype=torch.float64), torch.rand(3, 4, 5)
    assert torch.allclose(mix(weights, x), sum(a * one for a, one in zip(weights.float(), x, strict=True)))
    with Called() as there:
        mixed = mix(weights.to("meta"), x.to("meta"))
    assert mixed.shape == (4, 5) and not PRODUCTS & {name for name, _ in there.seen}
    with Called() as here:
        mix(weights, x)
    assert PRODUCTS & {name for name, _ in here.seen}  # so that the first look could have found one


def test_fedamp_mixes_in_float64_on_a_gpu() -> None:
    """A client whose row is the identity's gets its own model back, to the last bit, whatever products are rounded to."""
    network = make_network("mlp", 1, 8, 10)
    method = make_method("fedamp")
    server, own = method.init(network.init(0), network, 3)
    away = {name: tensor.to("meta") for name, tensor in server.items()}
    with Called() as there:
        got = method.download(away, {}, 1)
    assert {kind for name, kind in there.seen if name in PRODUCTS} == {torch.float64}
    assert {tensor.dtype for tensor in got.values()} == {torch.float32}
    here = method.download(server, {}, 1)
    assert all(torch.equal(here[name], tensor[1]) for name, tensor in own.items())


def test_start_values_touch_no_generator_but_the_processor_s(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(seed: int) -> None:
        raise AssertionError("a GPU's generator was seeded, and nothing would bring it back")

    monkeypatch.setattr(torch.cuda, "manual_seed_all", never)
    before = torch.get_rng_state()
    with torch_seeded(0, "start values"):
        torch.rand(1)
    assert torch.equal(torch.get_rng_state(), before)
