"""Dropout and batch norm: what torch does, for one client and for many at once, in training only."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from toy import FAST, row, same, train, work_of

from pfl_lite.config import make_config
from pfl_lite.engine.local_training import epoch_orders
from pfl_lite.engine.simulation import Simulation
from pfl_lite.errors import InputError
from pfl_lite.methods import METHODS
from pfl_lite.methods.base import Batch
from pfl_lite.models import NETWORKS, NetworkSpec, make_network
from pfl_lite.models.network import Network
from pfl_lite.models.train_mode import dropout, fold, keep_mask


class Normed(nn.Module):
    """A convolution, batch norm, ReLU6 in place, dropout if asked for, and a linear layer."""

    def __init__(self, channels: int, size: int, classes: int, rate: float = 0.0) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, 3, 3, stride=2)
        self.norm = nn.BatchNorm2d(3)
        self.relu = nn.ReLU6(inplace=True)
        self.dropout = nn.Dropout(rate) if rate else nn.Identity()
        self.fc = nn.Linear(3 * ((size - 1) // 2) ** 2, classes)

    def features(self, x: Tensor) -> Tensor:
        return self.dropout(self.relu(self.norm(self.conv(x))).flatten(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.features(x))


class Dropped(nn.Module):
    """Dropout on the pixels and on a hidden layer."""

    def __init__(self, channels: int, size: int, classes: int) -> None:
        super().__init__()
        self.dropout1, self.dropout2 = nn.Dropout(0.2), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(channels * size * size, 6), nn.Linear(6, classes)

    def features(self, x: Tensor) -> Tensor:
        return self.dropout2(F.relu(self.fc1(self.dropout1(x.flatten(1)))))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.features(x))


@pytest.fixture(autouse=True)
def networks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NETWORKS, "normed", NetworkSpec(Normed, ""))
    monkeypatch.setitem(NETWORKS, "noisy", NetworkSpec(lambda c, s, k: Normed(c, s, k, rate=0.3), ""))
    monkeypatch.setitem(NETWORKS, "dropped", NetworkSpec(Dropped, ""))


FITTING = [name for name, method in METHODS.items() if method.traits.fits_batch_norm]


# ---- dropout --------------------------------------------------------------------------------------------------------


def test_a_mask_keeps_the_right_share_and_depends_on_key_and_layer() -> None:
    key = torch.tensor(12345)
    for rate in (0.0, 0.2, 0.5, 0.9):
        assert keep_mask(key, rate, (500, 200)).double().mean().item() == pytest.approx(1 - rate, abs=0.006)
    masks = [keep_mask(fold(k, n), 0.5, (500, 200)) for k in (key, key + 1) for n in (0, 1)]
    for i, a in enumerate(masks):
        for b in masks[:i]:
            assert (a == b).double().mean().item() == pytest.approx(0.5, abs=0.01)
    a = masks[0]
    for other in (a.roll(1, 0), a.roll(1, 1)):
        assert (a == other).double().mean().item() == pytest.approx(0.5, abs=0.01)


def test_dropout_keeps_the_mean_and_padding_does_not_shift_the_mask() -> None:
    x, key = torch.ones(400, 50, dtype=torch.float64), torch.tensor(-7)
    dropped = dropout(x, key, 0.25)
    assert dropped.mean().item() == pytest.approx(1, abs=0.02) and set(dropped.unique().tolist()) == {
        0,
        1 / 0.75,
    }
    assert torch.equal(dropout(x[:30], key, 0.25), dropped[:30])


def test_a_network_without_dropout_and_batch_norm_is_its_own_training_mode() -> None:
    network = make_network("small_cnn", 1, 8, 10)
    assert network.training(torch.tensor(3)) is network


class Twice(nn.Module):
    """The same pixels through two layers of dropout, beside each other."""

    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.dropout1, self.dropout2, self.fc = kind(0.5), kind(0.5), nn.Linear(1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.dropout1(x), self.dropout2(x)])


@pytest.mark.parametrize("kind", [nn.Dropout, nn.Dropout2d])
def test_two_layers_of_dropout_have_masks_of_their_own(kind: type[nn.Module]) -> None:
    network = Network("twice", lambda: Twice(kind))
    a, b = network.training(torch.tensor(3))(network.init(0), torch.ones(50, 40, 1, 1))
    assert (a == b).double().mean().item() == pytest.approx(0.5, abs=0.05)


def test_losses_see_dropout_and_scores_do_not(federation: Any) -> None:
    sim = Simulation(make_config("fedavg", **(FAST | {"model": "dropped"})), federation)
    work, w, x = work_of(sim, 0), sim.start, federation.images[:40]
    keyed = [Batch(x, federation.labels[:40], torch.arange(40), key=torch.tensor(k)) for k in (1, 1, 2)]
    a, b, c = (work.training(batch)(w, x) for batch in keyed)
    assert torch.equal(a, b) and not torch.allclose(a, c)
    assert torch.equal(work.network(w, x), sim.network.to_module(w)(x))  # in evaluation mode
    assert not torch.allclose(a, work.network(w, x))
    assert not torch.equal(work.training(keyed[0]).features(w, x), work.network.features(w, x))


def test_the_masks_of_every_mini_batch_differ_and_come_again(federation: Any) -> None:
    sim = Simulation(make_config("fedavg", **(FAST | {"model": "dropped"})), federation)
    keys = [
        batch.key.item()
        for i in (0, 1)
        for phase in ("weights", "alpha")
        for batch in work_of(sim, i).batches(phase, 2, "all")
    ]
    assert len(set(keys)) == len(keys)
    again = [batch.key.item() for batch in work_of(sim, 0).batches("weights", 2, "all")]
    assert keys[: len(again)] == again
    other = [batch.key.item() for batch in work_of(sim, 0, number=2).batches("weights", 2, "all")]
    assert not set(other) & set(keys)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_vmap_equals_loop_with_dropout(federation: Any, method: str) -> None:
    settings: dict[str, Any] = {"model": "dropped", "momentum": 0.5, "participation": 0.6, "epochs": 1}
    settings |= {} if method == "fedem" else {"ft_epochs": 1, "ft_mode": "plain_sgd"}
    a, b = (train(method, federation, engine=engine, **settings) for engine in ("loop", "vmap"))
    assert same(a.scored_models(), b.scored_models(), 1e-10)


@pytest.mark.parametrize(
    ("kind", "places"), [(nn.Dropout1d, (6,)), (nn.Dropout2d, (3, 2)), (nn.Dropout3d, (3, 2, 1))]
)
def test_channel_dropout_drops_whole_channels_one_by_one_in_training_only(kind: Any, places: Any) -> None:
    network = Network("channels", lambda: nn.Sequential(kind(0.25), nn.Flatten(2), nn.Linear(6, 6)))
    w = {"2.weight": torch.eye(6), "2.bias": torch.zeros(6)}  # says what dropout left
    x = torch.rand(60, 50, *places) + 1
    kept = network.training(torch.tensor(3))(w, x) / x.flatten(2)  # [60, 50, 6]
    assert network.dropout and torch.equal(network(w, x), x.flatten(2))
    assert torch.allclose(kept, kept[..., :1].expand_as(kept))  # whole channels
    assert torch.allclose(kept, torch.where(kept > 0, 1 / 0.75, 0.0))
    for share in (kept > 0).double().mean((0, 2)), (kept > 0).double().mean((1, 2)):  # by channel, by image
        assert share.mean().item() == pytest.approx(0.75, abs=0.03) and share.std() < 0.1
    assert torch.equal(network.training(torch.tensor(3))(w, x[:9]), (kept * x.flatten(2))[:9])  # padding


def test_channel_dropout_refuses_what_has_no_places() -> None:
    network = Network("flat", lambda: nn.Sequential(nn.Dropout1d(), nn.Linear(4, 2)))
    with pytest.raises(InputError, match=r"needs \[b, C, ...\], and gets 2 axes: use nn.Dropout there"):
        network.training(torch.tensor(1))(network.init(0), torch.ones(3, 4))


# ---- batch norm -----------------------------------------------------------------------------------------------------


def test_batch_norm_is_torch_s_step_for_step_running_statistics_too(federation: Any) -> None:
    settings = {"model": "normed", "momentum": 0.9, "weight_decay": 0.05, "lr": 0.03, "rounds": 1}
    sim = train("local", federation, **settings)
    module = sim.network.to_module(sim.start).train()
    torch_s = torch.optim.SGD(module.parameters(), lr=0.03, momentum=0.9, weight_decay=0.05)
    n = len(federation.train[2])
    for order in epoch_orders(3, 1, 2, "weights", n, 2):
        for places in torch.from_numpy(order[: n // 32 * 32]).split(32):  # full mini-batches only
            rows = federation.train[2][places]
            torch_s.zero_grad()
            F.cross_entropy(module(federation.images[rows]), federation.labels[rows]).backward()
            torch_s.step()
    wanted = {name: t.detach() for name, t in module.state_dict().items() if t.is_floating_point()}
    assert wanted.keys() >= {"norm.running_mean", "norm.running_var"}
    assert same(row(sim.clients, 2), wanted)


@pytest.mark.parametrize(
    ("norm", "places"),
    [(nn.BatchNorm1d, ()), (nn.BatchNorm1d, (5,)), (nn.BatchNorm2d, (3, 4)), (nn.BatchNorm3d, (2, 3, 2))],
)
@pytest.mark.parametrize("affine", [True, False])
def test_every_batch_norm_is_torch_s(norm: Any, places: tuple[int, ...], affine: bool) -> None:
    torch.manual_seed(0)
    x, wide = torch.randn(7, 3, *places).double() * 2 + 1, 3 * math.prod(places)

    def build() -> nn.Module:
        return nn.Sequential(norm(3, eps=1e-3, affine=affine), nn.Flatten(), nn.Linear(wide, 2))

    network = Network("normed", build, dtype=torch.float64)
    w = {name: torch.rand_like(tensor).requires_grad_() for name, tensor in network.init(0).items()}
    module = network.to_module(w).train()
    ours, theirs = network.training(torch.tensor(1))(w, x), module(x)
    g = dict(zip(w, torch.autograd.grad((ours**2).sum(), list(w.values())), strict=True))
    (theirs**2).sum().backward()
    assert torch.allclose(ours, theirs, rtol=0, atol=1e-10)
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None and torch.allclose(g[name], parameter.grad, rtol=0, atol=1e-10)
    for name in ("0.running_mean", "0.running_var"):
        stepped = w[name] - 0.1 * g[name]
        assert torch.allclose(stepped, module.get_buffer(name), rtol=0, atol=1e-10)
    with torch.no_grad():
        assert torch.equal(network(w, x), network.to_module(w)(x))  # in evaluation mode


class Dense(nn.Module):
    """A hidden layer with batch norm and dropout behind it: [b, C] all the way."""

    def __init__(self, channels: int, size: int, classes: int) -> None:
        super().__init__()
        self.fc1, self.norm = nn.Linear(channels * size * size, 5), nn.BatchNorm1d(5)
        self.drop, self.fc2 = nn.Dropout(0.2), nn.Linear(5, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.drop(torch.relu(self.norm(self.fc1(x.flatten(1))))))


class Rows(nn.Module):
    """A GRU that reads an image row by row; `vmap` has no rule for it in float64."""

    def __init__(self, channels: int, size: int, classes: int) -> None:
        super().__init__()
        self.rows, self.fc = nn.GRU(size, 5, batch_first=True), nn.Linear(5, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.rows(x[:, 0])[0][:, -1])


class Channels(nn.Module):
    """Dropout of channels, then group norm, then batch norm without scale and shift, on channels and on rows."""

    def __init__(self, channels: int, size: int, classes: int) -> None:
        super().__init__()
        self.conv, self.drop2, self.group = nn.Conv2d(channels, 4, 3), nn.Dropout2d(0.3), nn.GroupNorm(2, 4)
        self.norm, self.drop1 = nn.BatchNorm1d(4, affine=False), nn.Dropout1d(0.3)
        self.layer, self.fc = nn.LayerNorm(4 * (size - 2) ** 2), nn.Linear(4 * (size - 2) ** 2, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop1(self.norm(self.group(self.drop2(self.conv(x))).flatten(2)))  # [b, 4, L]
        return self.fc(self.layer(x.flatten(1)))


@pytest.mark.parametrize(
    ("network", "engines"),
    [(Dense, ("loop", "vmap")), (Channels, ("loop", "vmap")), (Rows, ("loop", "loop"))],
)
def test_vmap_equals_loop_with_every_layer_that_is_taken(
    federation: Any, monkeypatch: pytest.MonkeyPatch, network: Any, engines: tuple[str, str]
) -> None:
    monkeypatch.setitem(NETWORKS, "own", NetworkSpec(network, ""))
    settings: dict[str, Any] = {"model": "own", "momentum": 0.5, "participation": 0.6, "epochs": 1}
    a, b = (train("fedavg", federation, engine=engine, **settings) for engine in engines)
    assert same(a.scored_models(), b.scored_models(), 1e-10)
    assert not any(torch.equal(tensor, a.start[name]) for name, tensor in a.server.items())


class Counting(nn.Module):
    """A module with a buffer of its own."""

    def __init__(self, persistent: bool) -> None:
        super().__init__()
        self.register_buffer("centre", torch.ones(1), persistent=persistent)


UNFIT = [
    (lambda: nn.BatchNorm1d(2, momentum=0.01), "BatchNorm1d 0 .* leave momentum at 0.1"),
    (lambda: nn.BatchNorm2d(2, momentum=None), "leave momentum at 0.1"),
    (
        lambda: nn.BatchNorm2d(2, track_running_stats=False),
        "track_running_stats at True, or use nn.GroupNorm",
    ),
    (lambda: nn.SyncBatchNorm(2), "SyncBatchNorm 0 .* use nn.BatchNorm1d to 3d"),
    (lambda: nn.InstanceNorm2d(2, track_running_stats=True), "InstanceNorm2d 0 .* at False"),
    (lambda: nn.AlphaDropout(0.1), "AlphaDropout 0 .* use nn.Dropout, or"),
    (lambda: nn.FeatureAlphaDropout(0.1), "FeatureAlphaDropout 0"),
    (lambda: nn.Dropout(1.0), "use a rate below 1"),
    (lambda: nn.RReLU(), "RReLU 0 .* like nn.LeakyReLU"),
    (lambda: nn.FractionalMaxPool2d(2, 2), "draws no random numbers"),
    (lambda: nn.LSTM(2, 2, num_layers=2, dropout=0.1), "LSTM 0 .* set its dropout to 0"),
    (lambda: nn.MultiheadAttention(2, 1, dropout=0.1), "MultiheadAttention 0 .* set its dropout to 0"),
    (lambda: nn.TransformerEncoderLayer(2, 1), "MultiheadAttention 0.self_attn"),
    (lambda: nn.LazyLinear(2), "LazyLinear 0 .* number of inputs"),
    (lambda: Counting(True), "register its buffer centre with persistent=False"),
    (lambda: torch.nn.utils.parametrizations.spectral_norm(nn.Linear(2, 2)), "register its buffer _u"),
]


@pytest.mark.parametrize(("build", "message"), UNFIT)
def test_layers_that_would_not_train_as_torch_trains_them_are_refused(build: Any, message: str) -> None:
    with pytest.raises(InputError, match=f"^network own: .*{message}"):
        Network("own", lambda: nn.Sequential(build(), nn.Linear(2, 2)))


FIT = [
    lambda: nn.GroupNorm(1, 2),
    lambda: nn.LayerNorm(2),
    lambda: nn.InstanceNorm1d(2, affine=True),
    lambda: nn.RNN(2, 2, num_layers=2),
    lambda: nn.MultiheadAttention(2, 1),
    lambda: nn.TransformerEncoderLayer(2, 1, dropout=0.0),
    lambda: Counting(False),
]


@pytest.mark.parametrize("build", FIT)
def test_layers_that_are_the_same_in_training_are_taken(build: Any) -> None:
    network = Network("own", lambda: nn.Sequential(build(), nn.Linear(2, 2)))
    assert network.init(0).keys() == {name for name, _ in build_named(build)} | {"1.weight", "1.bias"}


def build_named(build: Any) -> list[tuple[str, Tensor]]:
    """Parameters of a layer that stands first."""
    return [(f"0.{name}", tensor) for name, tensor in build().named_parameters()]


def test_running_statistics_are_averaged_sent_and_counted(federation: Any) -> None:
    sim = train("fedavg", federation, model="normed", rounds=1)
    alone = train("local", federation, model="normed", rounds=1)
    n = federation.train_sizes.double()
    mean = torch.einsum("i,ic->c", n / n.sum(), alone.clients["norm.running_var"])
    assert torch.allclose(sim.server["norm.running_var"], mean, atol=1e-12, rtol=0)
    assert sim.network.parameters + 2 * 3 == sum(t.numel() for t in sim.server.values())
    assert sim.history.rounds[1]["floats_up"] == 5 * (sim.network.parameters + 6)


def test_scores_use_the_running_statistics(federation: Any) -> None:
    sim = train("fedavg", federation, model="normed")
    rows = federation.test[1]
    logits = sim.network.to_module(sim.server)(federation.test_images[rows])
    accuracy = (logits.argmax(1) == federation.test_labels[rows]).double().mean().item()
    assert sim.report()["final"]["test_accuracy"][1] == pytest.approx(accuracy)


@pytest.mark.slow
@pytest.mark.parametrize("method", FITTING)
@pytest.mark.parametrize("model", ["normed", "noisy"])
def test_vmap_equals_loop_with_batch_norm(federation: Any, method: str, model: str) -> None:
    settings: dict[str, Any] = {
        "model": model,
        "momentum": 0.5,
        "participation": 0.6,
        "epochs": 1,
        "batch_size": 200,
    }
    settings |= {} if method == "fedem" else {"ft_epochs": 1, "ft_mode": "plain_sgd"}
    assert min(federation.train_sizes) < 200 < max(federation.train_sizes)  # some fill no mini-batch
    a, b = (train(method, federation, engine=engine, **settings) for engine in ("loop", "vmap"))
    assert same(a.scored_models(), b.scored_models(), 1e-10)
    assert a.map.images_trained == b.map.images_trained


def test_frozen_batch_norm_is_in_evaluation_mode_and_stays(federation: Any) -> None:
    sim = train("pfl_fb", federation, model="normed", head="last", ft_epochs=1)
    tuned, server = row(sim.scored_models(), 0), sim.server
    assert torch.equal(tuned["norm.running_mean"], server["norm.running_mean"])
    work, x = work_of(sim, 0), federation.images[:20]
    batch = Batch(x, federation.labels[:20], torch.arange(20), key=torch.tensor(1))
    head = {name: server[name] for name in ("fc.weight", "fc.bias")}
    frozen = {}

    def loss(w: dict[str, Tensor], batch: Batch) -> Tensor:
        frozen["logits"] = work.training(batch)(server | w, batch.x).detach()
        return work.loss(server | w, batch)

    with torch.no_grad():
        work.grad(loss, head, batch)
        assert torch.allclose(frozen["logits"], work.network(server, x), atol=1e-12)


def test_a_pull_leaves_running_statistics_alone(federation: Any) -> None:
    weak, strong = (
        train("fedprox", federation, model="normed", mu=mu, lr=1e-9, rounds=1, epochs=1).server
        for mu in (0.0, 5.0)
    )
    assert torch.allclose(weak["norm.running_mean"], strong["norm.running_mean"], atol=1e-6)


def test_every_method_that_reckons_with_weights_refuses_batch_norm(federation: Any) -> None:
    known = {"pfedmb", "pfedme", "perfedavg", "scaffold", "pfedhn", "apfl"}
    assert set(METHODS) - set(FITTING) == known, "a method that refuses batch norm is listed here"
    with pytest.raises(InputError, match="use a network without batch norm, not normed"):
        Simulation(make_config("scaffold", **(FAST | {"model": "normed"})), federation)
