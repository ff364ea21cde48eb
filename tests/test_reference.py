"""The package against an independent second implementation in plain NumPy (`tests/reference`).

First the second implementation by itself: its gradient against differences, one step of every method against
numbers worked out by hand. Then both from the same start on the same five unequal clients, every option at
and off its default.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from reference import METHODS
from reference.common import SGD, Client, Trained, join
from reference.fedem import mixture_loss
from reference.projection import layers, projected
from reference.simplex import project, softmax
from typer.main import get_command

from pfl_lite.cli import app
from pfl_lite.data.images import load
from pfl_lite.methods import METHODS as package_methods


def sigmoid(z: float) -> float:
    return 1.0 / (1.0 + np.exp(-z))


def pair(flipped: bool = False, copies: int = 1) -> Client:
    """Two samples of one feature: x = 1 of class 0 and x = -1 of class 1, or the other way round."""
    x, y = np.array([[1.0, 1.0], [-1.0, 1.0]]), np.array([1, 0] if flipped else [0, 1])
    return Client(np.tile(x, (copies, 1)), np.tile(y, copies))


def symmetric(u: float) -> np.ndarray:
    """The model with weights (u, -u) and no bias: logits (u x, -u x)."""
    return np.array([[u, 0.0], [-u, 0.0]])


def close(ours: object, expected: object, atol: float = 1e-14) -> None:
    np.testing.assert_allclose(ours, expected, rtol=0, atol=atol)


def slopes(f: Callable[[np.ndarray], float], at: np.ndarray, h: float = 1e-5) -> np.ndarray:
    """df/dx of every entry by central differences."""
    result = np.zeros_like(at)
    for place in np.ndindex(*at.shape):
        step = np.zeros_like(at)
        step[place] = h
        result[place] = (f(at + step) - f(at - step)) / (2 * h)
    return result


def some_clients(seed: int = 0) -> list[Client]:
    """Five clients of 4 to 9 random samples, three features and four classes."""
    rng = np.random.default_rng(seed)
    draws = [(rng.normal(size=(n, 3)), rng.integers(4, size=n)) for n in (5, 9, 4, 7, 6)]
    return [Client(join(x, np.ones(len(x))), y) for x, y in draws]


# By hand, for `pair()` and the model (u, -u): both samples have the probability sigmoid(2u) of being right
# and lose log(1 + exp(-2u)); the gradient with respect to the weights is (-s, s) with s = sigmoid(-2u), and
# the two samples' gradients of the bias cancel. So one step of rate eta is u <- u + eta sigmoid(-2u), and the
# model stays symmetric. With flipped labels: u <- u - eta sigmoid(2u).


def test_loss_and_gradient_by_hand() -> None:
    """u = 1/2: s = sigmoid(-1) = 0.268941, loss = log(1 + 1/e) = 0.313262, gradient (-s, s), bias 0."""
    assert pair().loss(symmetric(0.5)) == pytest.approx(0.31326168751822286, abs=1e-15)
    s = 0.2689414213699951
    np.testing.assert_allclose(pair().gradient(symmetric(0.5)), [[-s, 0], [s, 0]], atol=1e-15)
    np.testing.assert_allclose(pair(flipped=True).gradient(symmetric(-0.5)), [[s, 0], [-s, 0]], atol=1e-15)


def test_gradient_is_the_slope_of_the_loss() -> None:
    rng = np.random.default_rng(0)
    client = Client(join(rng.normal(size=(7, 3)), np.ones(7)), rng.integers(4, size=7))
    w = rng.normal(size=(4, 4))
    close(client.gradient(w), slopes(client.loss, w), 1e-9)


def test_sgd_by_hand() -> None:
    """From w = 1 with gradient 2, lr 0.1, momentum 0.5, decay 0.1:

    v = 2 + 0.1 = 2.1, w = 1 - 0.21 = 0.79; then v = 1.05 + 2 + 0.079 = 3.129, w = 0.79 - 0.3129 = 0.4771.
    """
    sgd = SGD(lr=0.1, momentum=0.5, weight_decay=0.1)
    w = sgd.descend(np.array([1.0]), lambda w: np.full_like(w, 2.0), 2)
    assert w[0] == pytest.approx(0.4771, abs=1e-15)


def test_simplex_by_hand() -> None:
    """softmax(log 1, log 3) = (1/4, 3/4).

    (0.9, 0.5, -0.2) sums to 1.2; 0.2/3 less each, the last stays below 0: without it 0.4 too much, 0.2 each.
    """
    np.testing.assert_allclose(softmax(np.log([1.0, 3.0])), [0.25, 0.75], atol=1e-15)
    np.testing.assert_allclose(project(np.array([0.9, 0.5, -0.2])), [0.7, 0.3, 0.0], atol=1e-15)
    np.testing.assert_allclose(project(np.array([3.0, 0.0])), [1.0, 0.0], atol=1e-15)


def test_local_by_hand() -> None:
    """lr 1, two steps: u = 0 -> 1/2 -> 1/2 + sigmoid(-1) = 0.768941; flipped labels give the negative."""
    trained = METHODS["local"](symmetric(0), [pair(), pair(flipped=True)], [[0, 1]], 2, SGD(lr=1.0))
    assert trained.server is None
    u = 0.5 + sigmoid(-1)
    np.testing.assert_allclose(trained.personal, [symmetric(u), symmetric(-u)], atol=1e-15)


def test_fedavg_by_hand() -> None:
    """One step: u = 1/2 with n = 2, u = -1/2 with n = 4, so (2/2 - 4/2) / 6 = -1/6; client 0 alone gives 1/2.

    One epoch of fine-tuning: -1/6 + sigmoid(1/3) = 0.415904 and -1/6 - sigmoid(-1/3) = -0.584096.
    """
    clients = [pair(), pair(flipped=True, copies=2)]
    alone = METHODS["fedavg"](symmetric(0), clients, [[0]], 1, SGD(lr=1.0))
    np.testing.assert_allclose(alone.server, symmetric(0.5))
    trained = METHODS["fedavg"](symmetric(0), clients, [[0, 1]], 1, SGD(lr=1.0), ft_epochs=1)
    np.testing.assert_allclose(trained.server, symmetric(-1 / 6))
    by_hand = [symmetric(-1 / 6 + sigmoid(1 / 3)), symmetric(-1 / 6 - sigmoid(-1 / 3))]
    np.testing.assert_allclose(trained.personal, by_hand, atol=1e-15)


def test_fedprox_by_hand() -> None:
    """mu = 1: u = 0 -> 1/2, then 1/2 + sigmoid(-1) - 1 * (1/2 - 0) = sigmoid(-1) = 0.268941."""
    trained = METHODS["fedprox"](symmetric(0), [pair()], [[0]], 2, SGD(lr=1.0), mu=1.0)
    np.testing.assert_allclose(trained.server, symmetric(sigmoid(-1)))


def test_fedper_by_hand() -> None:
    """All head: round 1 gives client 0 u = 1/2, round 2 gives client 1 u = -1/2, nothing is shared.

    No head: round 1 by client 0 gives 1/2, round 2 by client 1 takes it to 1/2 - sigmoid(1) = -0.231059.
    """
    clients = [pair(), pair(flipped=True)]
    private = METHODS["fedper"](symmetric(0), clients, [[0], [1]], 1, SGD(lr=1.0))
    assert private.server is None
    np.testing.assert_allclose(private.personal, [symmetric(0.5), symmetric(-0.5)])
    shared = METHODS["fedper"](symmetric(0), clients, [[0], [1]], 1, SGD(lr=1.0), head="none")
    np.testing.assert_allclose(shared.personal, [symmetric(0.5 - sigmoid(1))] * 2)


def test_pfedmb_by_hand() -> None:
    """Branches u = 1 and u = 0, alpha = (1/2, 1/2): u = 1/2, s = sigmoid(-1) = 0.268941.

    df/dalpha = (-2s, 0), as the gradient of the weights is (-s, s) and the branches are (1, -1) and (0, 0).
    Softmax, alpha_lr 1: df/da = 1/2 (-2s + s, 0 + s) = (-s/2, s/2), so a = (s/2, -s/2).
        alpha_1 = sigmoid(s) = 0.566833.
    Weights, lr 1: now u = alpha_1, and branch b moves by alpha_b t with t = sigmoid(-2 alpha_1) = 0.243485:
        to 1 + 0.138015 and 0 + 0.105470.
    Projection, alpha_lr 1/2: (1/2 + s, 1/2) is lowered by s/2, so alpha_1 = (1 + s)/2 = 0.634471.
    """
    start, s = np.stack([symmetric(1), symmetric(0)]), sigmoid(-1)
    trained = METHODS["pfedmb"](start, [pair()], [[0]], 1, SGD(lr=1.0), alpha_lr=1.0)
    alpha = sigmoid(s)
    np.testing.assert_allclose(trained.state["alpha"], [[alpha, 1 - alpha]], atol=1e-15)
    t = sigmoid(-2 * alpha)
    by_hand = [symmetric(1 + alpha * t), symmetric((1 - alpha) * t)]
    np.testing.assert_allclose(trained.server, by_hand, atol=1e-15)
    projected = METHODS["pfedmb"](start, [pair()], [[0]], 1, SGD(lr=0.0), alpha_lr=0.5, simplex="projection")
    np.testing.assert_allclose(projected.state["alpha"], [[(1 + s) / 2, (1 - s) / 2]], atol=1e-15)


def test_pfedmb_aggregation_by_hand() -> None:
    """Clients of 2 and 4 samples, branches u = 1 and 0; a large alpha_lr projects alpha to (1, 0) and (0, 1).

    Client 0 moves only branch 0, to 1 + sigmoid(-2); client 1 (flipped) only branch 1, to 0 - sigmoid(0).
    Equation 5 takes each branch from its only user: 1.119203 and -1/2.
    Equation 6 averages: (2 * 1.119203 + 4 * 1) / 6 = 1.039734 and (2 * 0 - 4 / 2) / 6 = -1/3.
    Client 0 alone: nobody uses branch 1, which stays at 0.
    """
    start, clients = np.stack([symmetric(1), symmetric(0)]), [pair(), pair(flipped=True, copies=2)]
    moved = 1 + sigmoid(-2)
    for sampled, aggregation, by_hand in (
        ([0, 1], "alpha", [moved, -1 / 2]),
        ([0, 1], "plain", [(2 * moved + 4) / 6, -1 / 3]),
        ([0], "alpha", [moved, 0.0]),
    ):
        options = {"simplex": "projection", "alpha_lr": 9.0, "aggregation": aggregation}
        trained = METHODS["pfedmb"](start, clients, [sampled], 1, SGD(lr=1.0), **options)
        np.testing.assert_allclose(trained.state["alpha"][sampled], np.eye(2)[sampled], atol=1e-15)
        np.testing.assert_allclose(trained.server[:, 0, 0], by_hand, atol=1e-15)


# --- the package's command line against the reference -------------------------------------------------------

CLIENTS, ROUNDS, EPOCHS, LR = 5, 3, 2, 0.1
TOLERANCE = 1e-11  # rounding alone stays below 1e-13; a number that passed through float32 does not
FEDERATION = ["--data", "digits", "--partition", "dirichlet:0.4", "--clients", str(CLIENTS), "--seed", "0"]
TRAINING = ["--model", "linear", "--rounds", str(ROUNDS), "--batch-size", "100000", "--dtype", "float64"]


COMMAND = get_command(app)  # read from the functions once, and not once a call


def command(*words: object) -> None:
    """Run `pfl-lite` in this process and expect it to succeed."""
    assert COMMAND.main([str(word) for word in words], standalone_mode=False) in (None, 0), words


def read_federation(folder: Path, flags: Sequence[str] = FEDERATION) -> dict[str, list[Client]]:
    """The clients' training (with validation) and test data: pixels normalised by the card, a 1 added for the bias."""
    file = folder / "P.npz"
    command("partition", *flags, "--out", file)
    images, indices = load("digits"), np.load(file)

    def client(pixels: np.ndarray, labels: np.ndarray, validation: Client | None = None) -> Client:
        x = (
            pixels.reshape(len(pixels), np.prod(pixels.shape[1:])) / 255 - images.card.mean[0]
        ) / images.card.std[0]
        return Client(np.column_stack([x, np.ones(len(x))]), labels, validation)

    everyone = range(sum(name.startswith("train/") for name in indices))
    train = [indices[f"train/{i}"] for i in everyone]
    val = [indices[f"val/{i}"] for i in everyone]
    test = [indices[f"test/{i}"] for i in everyone]
    validation = [client(images.train_images[v], images.train_labels[v]) for v in val]
    assert len({len(t) for t in train}) > 1, "unequal clients are the point of this test"
    return {
        "train": [
            client(images.train_images[t], images.train_labels[t], v)
            for t, v in zip(train, validation, strict=True)
        ],
        "test": [client(images.test_images[t], images.test_labels[t]) for t in test],
        "whole test": [client(images.test_images, images.test_labels)],
    }


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Client]]:
    return read_federation(tmp_path_factory.mktemp("partition"))


def models(file: Mapping[str, np.ndarray], kind: str) -> np.ndarray | None:
    """The weights and biases under `kind`/ as one array [..., classes, features + 1]; None without."""
    found = {
        name.rpartition(".")[2]: file[name] for name in file if name.startswith(kind + "/") and "." in name
    }
    return join(found["weight"], found["bias"]) if found else None


def named(file: Mapping[str, np.ndarray], kind: str) -> dict[str, np.ndarray]:
    """The arrays under `kind`/ by name, as a method with more than one weight and one bias has them."""
    return {name.removeprefix(kind + "/"): file[name] for name in file if name.startswith(kind + "/")}


def loss(client: Client, personal: np.ndarray | dict[str, np.ndarray], i: int) -> float:
    """The loss of client i's model, which reads the pixels or, given by name, a projection of them."""
    if not isinstance(personal, dict):
        return client.loss(personal[i])
    model = layers({name: array[i] for name, array in personal.items()})
    return projected(model, client).loss(model["fc"])


# Every option at its default and off it, one at a time, then some together: (method, flags, --set).
SGD_FLAGS: list[dict[str, object]] = [
    {},
    {"lr": 0.03},
    {"epochs": 5},
    {"momentum": 0.9},
    {"weight-decay": 0.1},
    {"participation": 0.6},
    {"momentum": 0.5, "weight-decay": 0.05, "participation": 0.4},
]
METHOD_OPTIONS: dict[str, list[dict[str, object]]] = {
    "local": [],
    "fedavg": [{"weights": "size"}, {"weights": "uniform"}],
    "fedprox": [{"mu": 0}, {"mu": 1.0}],
    "fedper": [{"head": "none"}, {"head": "fc"}],
    "pfedmb": [
        {"branches": 1},
        {"branches": 3},
        {"aggregation": "plain"},
        {"alpha_scope": "shared"},
        {"simplex": "projection"},
        {"simplex": "projection", "alpha_lr": 3.0},
        {"alpha_lr": 2.0},
        {"rate": "effective", "alpha_lr": 5.0},
        {
            "branches": 4,
            "alpha_scope": "shared",
            "simplex": "projection",
            "alpha_lr": 0.5,
            "aggregation": "plain",
        },
    ],
    "pfl_ft": [{"ft_epochs": 0}],
    "pfl_fb": [{"ft_epochs": 0}, {"head": "last"}, {"head": "fc"}, {"head": "none"}],
    "pfedme": [
        {"lam": 5.0},
        {"lam": 10.0, "inner_steps": 1},
        {"inner_steps": 1},
        {"inner_steps": 8},
        {"inner_lr": 0.05},
        {"beta": 0.5},
        {"beta": 2.0},
        {"beta": 0},
        {"lam": 4.0, "inner_steps": 3, "inner_lr": 0.1, "beta": 1.5},
    ],
    "ifca": [{"clusters": 1}, {"clusters": 2}, {"clusters": 5}],
    # The norms here, all five clients and no cut: the mean's 0.2287, 0.2039, 0.1854 in rounds 1 to 3 (by size), the
    # largest update's 0.5249, 0.5015, 0.4804; in the cell of three that a cut in round 1 leaves 0.2378 and 0.456.
    "cfl": [
        {"warmup": 0},
        {"eps1": 0, "eps2": 0, "warmup": 0},
        {"eps1": 0.3, "eps2": 0.3, "warmup": 0},
        {"eps1": 0.3, "eps2": 0.3, "warmup": 1},
        {"eps1": 0.3, "eps2": 0.3, "warmup": 2},
        {"eps1": 0.3, "eps2": 0.3, "warmup": 3},
        {"eps1": 0.23, "eps2": 0.3, "warmup": 0},
        {"eps1": 0.21, "eps2": 0.3, "warmup": 0},
        {"eps2": 0.51, "warmup": 0},
        {"weights": "uniform"},
        {"eps1": 0.3, "eps2": 0.3, "warmup": 0, "weights": "uniform"},
        {"eps1": 0.21, "eps2": 0.3, "warmup": 0, "weights": "uniform"},
        {"gamma": 0.42, "warmup": 0},
        {"gamma": 0.45, "warmup": 0},
        {"gamma": 0.45, "warmup": 0, "weights": "uniform"},
        {"gamma": 0.6, "eps1": 0, "warmup": 1},
    ],
    # The server's random draws cannot be foretold: without epsilon = 0 only as many clients as models here.
    "fedfomo": [
        {"epsilon": 0},
        {"epsilon": 1.0},
        {"models": 1, "epsilon": 0},
        {"models": 2, "epsilon": 0},
        {"models": 3, "epsilon": 0},
        {"models": 4, "epsilon": 0},
        {"models": 9},
    ],
    "fedamp": [
        {"lam": 0},
        {"lam": 4.0},
        {"sigma": 0.05},
        {"sigma": 1.0},
        {"sigma": 0.0001},
        {"self_weight": 0.2},
        {"self_weight": 0.9},
        {"start": "own"},
        {"lam": 0, "start": "own"},
        {"lam": 2.0, "sigma": 0.3, "self_weight": 0.3, "start": "own"},
    ],
    "fedem": [{"components": 1}, {"components": 2}, {"components": 5}],
    "ditto": [{"lam": 0}, {"lam": 0.1}, {"lam": 5.0}],
    "apfl": [
        {"alpha": 0},
        {"alpha": 0.75},
        {"alpha": 1},
        {"adaptive": False},
        {"alpha": 0, "adaptive": False},
        {"alpha": 1, "adaptive": False},
        {"alpha": 0.2, "adaptive": False},
    ],
    "perfedavg": [
        {"inner_lr": 0},
        {"inner_lr": 0.2},
        {"variant": "hf"},
        {"variant": "hf", "inner_lr": 0},
        {"variant": "hf", "inner_lr": 0.2},
    ],
    "scaffold": [
        {"server_lr": 0.5},
        {"control": "off"},
        {"weights": "size"},
        {"control": "off", "weights": "size"},
        {"server_lr": 0.7, "weights": "size"},
        {"server_lr": 0.7, "control": "off"},
    ],
    "moon": [
        {"mu": 0},
        {"mu": 0.5},
        {"temperature": 0.1},
        {"projection": 16},
        {"projection": 0},
        {"projection": 0, "mu": 1.0, "temperature": 2.0},
        {"projection": 8, "mu": 20.0, "temperature": 2.0},
    ],
    "fedrep": [
        {"head": "none"},
        {"head": "fc"},
        {"head_epochs": 1},
        {"head_epochs": 3},
        {"head": "none", "head_epochs": 0},
        {"head": "fc", "head_epochs": 4},
    ],
    "lg_fedavg": [{"shared": "none"}, {"shared": "fc"}],
    "pfedhn": [
        {"embedding": 5},
        {"hidden": 16},
        {"depth": 0},
        {"depth": 1},
        {"server_lr": 0.1},
        {"server_momentum": 0},
        {"server_decay": 0},
        {"server_decay": 0.1},
        {"clip": 0.05},
        {
            "embedding": 4,
            "hidden": 12,
            "depth": 2,
            "server_lr": 0.05,
            "server_momentum": 0.5,
            "server_decay": 0.02,
            "clip": 0.3,
        },
        {"depth": 0, "embedding": 3, "server_lr": 0.2, "server_momentum": 0, "clip": 0.1},
    ],
}
# Compared in test_reference_modular and test_reference_experts.
ELSEWHERE = {"fedmn", "pfl_moe", "pfl_mf", "pfl_mfe"}
# These set how many numbers the start holds, which is all the reference needs to know of them.
SEVERAL = {"pfedmb": ("branches", 5), "ifca": ("clusters", 3), "fedem": ("components", 3)}
SHAPES = {"branches", "clusters", "components", "alpha_scope", "projection", "embedding", "hidden", "depth"}
OWN_UPDATE = {"pfedmb", "fedrep"}  # the others are tuned by plain SGD, whatever ft_mode says
TUNING: list[dict[str, object]] = [{"ft_epochs": 2}, {"ft_epochs": 3, "ft_mode": "plain_sgd"}]
TOGETHER: dict[str, object] = {"momentum": 0.5, "weight-decay": 0.01, "participation": 0.6}


def cases() -> Iterator[tuple[str, dict[str, object], dict[str, object]]]:
    for method in (method for method in METHODS if method not in ELSEWHERE):
        tuning = TUNING if method != "fedem" else []  # a mixture of models is not tuned
        own = METHOD_OPTIONS.get(method, [])  # a test below says where they are missing
        yield from ((method, flags, {}) for flags in SGD_FLAGS)
        yield from ((method, {}, options) for options in own + tuning)
        for options in own or [{}]:
            yield method, TOGETHER, options | (tuning[0] if tuning else {})
        yield from ((method, TOGETHER, plain) for plain in tuning[1:])
        yield method, TOGETHER | {"engine": "vmap"}, {}
    # One-hot alphas of few participants: some branches have no user in a round and must stay as they were.
    yield "pfedmb", {"participation": 0.4}, {"simplex": "projection", "alpha_lr": 30.0}
    # A cut while one client is absent: first one that never took part, then one whose last update is known.
    for warmup in (0, 1, 2):
        yield "cfl", {"participation": 0.8}, {"gamma": 0.999, "warmup": warmup}
    # With these rates the affinities, not the numbers of the clients alone, decide whose models a client gets.
    for models in (2, 3, 4):
        yield "fedfomo", {"lr": 0.7}, {"models": models, "epsilon": 0}
        yield "fedfomo", {"lr": 0.5, "participation": 0.8}, {"models": models, "epsilon": 0}
    # One client a round: at least two are scored that never took part, and one that did has an old model.
    for method in ("ditto", "apfl", "perfedavg", "scaffold", "moon", "fedrep", "lg_fedavg", "pfedhn"):
        yield from ((method, {"participation": 0.2}, options) for options in ({}, *TUNING))
    yield "apfl", {"participation": 0.2}, {"adaptive": False}
    yield "fedrep", {"participation": 0.2, "momentum": 0.5}, {"head_epochs": 3, "ft_epochs": 2}
    yield "lg_fedavg", {"participation": 0.2}, {"shared": "none"}


def losses(clients: list[Client], trained: Trained) -> list[float]:
    """Each client's loss of its model, or of its mixture of models."""
    if trained.mixture is None:
        return [loss(client, trained.personal, i) for i, client in enumerate(clients)]
    mixed = zip(clients, trained.personal, trained.mixture, strict=True)
    return [mixture_loss(client, w, pi) for client, w, pi in mixed]


def words(*settings: dict) -> list[str]:
    def word(value: object) -> str:  # adaptive=false
        return str(value).lower() if isinstance(value, bool) else str(value)

    return [f"{name}={word(value)}" for setting in settings for name, value in setting.items()]


def check_shapes(method: str, options: dict, start: np.ndarray | dict[str, np.ndarray]) -> None:
    """The options that only shape the start did so, by their defaults too."""
    if method in SEVERAL:
        count, default = SEVERAL[method]
        assert len(start) == options.get(count, default)
    if method == "moon" and (projection := options.get("projection", 256)):
        assert start["projection2.weight"].shape == (projection, projection)
    if method == "pfedhn":
        numbers, hidden, depth = (options.get(name) for name in ("embedding", "hidden", "depth"))
        numbers = numbers or 1 + CLIENTS // 4
        sizes = [numbers] + [hidden or 100] * (3 if depth is None else depth)
        shapes = {f"hyper/hidden{d}.weight": (sizes[d], sizes[d - 1]) for d in range(1, len(sizes))}
        shapes |= {"hyper/fc.bias.weight": (10, sizes[-1]), "embedding": (CLIENTS, numbers)}
        found = {name: a.shape for name, a in start.items() if "hidden" in name and name.endswith(".weight")}
        assert found | {name: start[name].shape for name in ("hyper/fc.bias.weight", "embedding")} == shapes


@pytest.mark.parametrize("case", list(cases()), ids=lambda case: "-".join([case[0], *words(*case[1:])]))
def test_package_agrees(case, federation: dict[str, list[Client]], tmp_path: Path) -> None:
    method, flags, options = case
    settings = {"epochs": EPOCHS, "lr": LR, "momentum": 0, "weight-decay": 0, "participation": 1} | flags
    typed = [part for name, value in settings.items() for part in (f"--{name}", value)]
    chosen = [part for setting in words(options) for part in ("--set", setting)]
    out, saved = tmp_path / "R.json", tmp_path / "M.npz"
    command("run", method, *FEDERATION, *TRAINING, *typed, *chosen, "--out", out, "--save", saved)
    result = json.loads(out.read_text())
    file = dict(np.load(saved))

    rounds = [entry["clients"] for entry in result["rounds"] if entry["round"] > 0]  # 0: the untrained models
    assert [len(set(sampled)) for sampled in rounds] == [round(settings["participation"] * CLIENTS)] * ROUNDS
    start = named(file, "initial")
    if method == "pfedhn":  # a head's bias is stored in the shape of the parameter that it writes
        start = {name: array.ravel() if name.endswith(".bias") else array for name, array in start.items()}
    if len(start) == 2:
        start = models(file, "initial")
    given = {name: value for name, value in options.items() if name not in SHAPES}
    if method not in OWN_UPDATE:
        given.pop("ft_mode", None)
    check_shapes(method, options, start)
    sgd = SGD(settings["lr"], settings["momentum"], settings["weight-decay"])
    expected = METHODS[method](start, federation["train"], rounds, int(settings["epochs"]), sgd, **given)

    def close(ours: object, reference: object) -> None:
        np.testing.assert_allclose(ours, reference, rtol=0, atol=TOLERANCE)

    def close_models(kind: str, reference: np.ndarray | dict[str, np.ndarray]) -> None:
        if not isinstance(reference, dict):
            return close(models(file, kind), reference)
        assert named(file, kind).keys() == reference.keys()
        for name, value in reference.items():
            close(file[f"{kind}/{name}"].reshape(value.shape), value)

    if expected.server is not None:
        close_models("global", expected.server)
    close_models("personal", expected.personal)
    for name, value in expected.state.items():
        if f"state/{name}" in file:  # alpha per layer is [clients, 1, B] for the one layer here
            close(file[f"state/{name}"].reshape(value.shape), value)
        else:  # a model of each client, as SCAFFOLD's state/control/fc.weight and fc.bias
            close_models(f"state/{name}", value)
    if expected.mixture is not None:
        close(file["personal/mixture"], expected.mixture)
    close(result["final"]["test_loss"], losses(federation["test"], expected))


def test_every_method_of_the_package_has_a_second_implementation() -> None:
    missing, strange = package_methods.keys() - METHODS.keys(), METHODS.keys() - package_methods.keys()
    assert not missing, f"no entry in METHODS of tests/reference/__init__.py: {', '.join(sorted(missing))}"
    assert not strange, f"no such method: {', '.join(sorted(strange))}"
    untried = METHODS.keys() - METHOD_OPTIONS.keys() - ELSEWHERE
    assert not untried, f"no entry in METHOD_OPTIONS of tests/test_reference.py: {', '.join(sorted(untried))}"
