"""PFL-MoE, PFL-MF and PFL-MFE a second time in plain NumPy: by themselves, and against the package by its command line.

By hand: samples that are all x = 1 of class a, so that every part of a client's data is alike. The model (u, c) has the
logits (u x + c, -u x - c); at z = u + c its gradient is -s for u and for c, with s = sigmoid(-2z).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from reference import METHODS
from reference.common import SGD, Client, Trained, log_softmax, pack, unpack
from reference.dense import Learner, Net, forward, joined
from reference.fedavg import fedavg
from reference.pfl_moe import activations, adam_steps, gate_of, gate_slope, mixed, sgd_steps, split
from reference.seeds import generator
from test_reference import (
    FEDERATION,
    ROUNDS,
    close,
    command,
    read_federation,
    sigmoid,
    slopes,
    some_clients,
    words,
)

UNIT = SGD(lr=1.0)
EXPERTS = ("pfl_moe", "pfl_mf", "pfl_mfe")


# --- by hand ------------------------------------------------------------------------------------------------


def ones(samples: int = 8) -> Client:
    """x = 1 of class a."""
    return Client(np.ones((samples, 2)), np.zeros(samples, dtype=int))


def zero(**gate: float) -> Net:
    """All zero: softmax regression on one feature, and a gate of weight and bias 0."""
    return {"fc": np.zeros((2, 2)), "gate": np.array([[gate.get("weight", 0.0), gate.get("bias", 0.0)]])}


def alike(u: float) -> np.ndarray:
    """Weights and biases (u, -u)."""
    return np.array([[u, u], [-u, -u]])


def test_seeds_by_hand() -> None:
    """The checksum (CRC-32) of the three letters "abc" is 891568578."""
    close(generator(7, "abc", 3).random(4), np.random.default_rng([7, 891568578, 3]).random(4))


def test_gate_by_hand() -> None:
    """No rounds: theta = 0. One epoch of rate 1 takes the expert to u = c = 1/2, logits (1, -1) at x = 1.

    g = 1/2 mixes them with (0, 0) to (1/2, -1/2): with s = sigmoid(-1) the loss falls by 2s with 1 - g, so its slope in
    g is 2s and in weight and bias 2s * 1/4 = s/2. Probabilities: (1/2 + sigmoid(2))/2 for class a, so the slope in g is
    (sigmoid(2) - 1/2) / ((1/2 + sigmoid(2))/2).
    """
    s, p = sigmoid(-1), sigmoid(2)
    for mix, dg in (("logits", 2 * s), ("probs", (p - 0.5) / ((p + 0.5) / 2))):
        trained = METHODS["pfl_moe"](zero(), [ones()], [], 1, UNIT, gate_lr=0.3, mix=mix)
        close(trained.server["fc"], alike(0))
        close(trained.personal["expert/fc"], [alike(0.5)])
        close(trained.personal["gate"], -0.3 * np.full((1, 1, 2), dg / 4))


def test_schedules_by_hand() -> None:
    """Two epochs: logits +-1, then +-(1 + 2 sigmoid(-2)). Interleaved, the gate's first step still meets the first."""
    logit = (1.0, 1 + 2 * sigmoid(-2))

    def after(*met: float) -> float:
        w = 0.0  # of weight and bias: the gate says sigmoid(2w) at x = 1
        for z in met:
            g = sigmoid(2 * w)
            w -= 0.3 * 2 * z * sigmoid(-2 * (1 - g) * z) * g * (1 - g)
        return w

    for schedule, met in (("interleaved", logit), ("sequential", (logit[1], logit[1]))):
        trained = METHODS["pfl_moe"](zero(), [ones()], [], 1, UNIT, 2, gate_lr=0.3, schedule=schedule)
        close(trained.personal["expert/fc"], [alike(logit[1] / 2)])
        close(trained.personal["gate"], np.full((1, 1, 2), after(*met)))


def test_optimizers_by_hand() -> None:
    """Slope 2 at w = 1, rate 0.1. Decay 1/2 makes it 2.5: SGD goes to 0.75. Adam's first step is the rate: 0.9.

    Adam's second, slope 4 - 2.5 and no decay: m = (0.9 * 0.2 + 0.1 * 4)/0.19, v = (0.999 * 0.004 + 0.001 * 16)/0.001999.
    """
    w, constant = np.array([1.0]), [lambda w: np.full_like(w, 2.0)]
    close(sgd_steps(w, constant, 0.1, 0.5), [0.75])
    close(adam_steps(w, constant, 0.1, 0.5), [0.9], 1e-9)
    two = [*constant, lambda w: np.full_like(w, 4.0)]
    m, v = (0.9 * 0.2 + 0.4) / 0.19, (0.999 * 0.004 + 0.016) / 0.001999
    close(adam_steps(w, two, 0.1, 0.0), [0.9 - 0.1 * m / np.sqrt(v)], 1e-8)


def test_fixed_gates() -> None:
    """floor(3/4) = 0 samples for a gate: the expert, which has all three, is left alone with g = 0."""
    small = METHODS["pfl_moe"](zero(bias=0.2), [ones(3)], [], 1, UNIT, gate_lr=5.0, gate_decay=0.1)
    close(gate_of(small.personal["gate"][0], ones().x), np.zeros(8))
    close(small.personal["expert/fc"], [alike(0.5)])
    for gate, g in (("global", 1.0), ("personal", 0.0), ("equal", 0.5)):
        fixed = METHODS["pfl_moe"](zero(), [ones()], [], 1, UNIT, gate=gate)
        close(gate_of(fixed.personal["gate"][0], ones().x), np.full(8, g))


# --- against finite differences, and against each other -----------------------------------------------------


def some_start(seed: int = 1, hidden: int = 5, reads: int = 3) -> Net:
    rng = np.random.default_rng(seed)
    shapes = {"fc1": (hidden, 4), "fc2": (4, hidden + 1), "gate": (1, reads + 1)}
    return {name: rng.normal(size=shape) for name, shape in shapes.items()}


def test_back_propagation_is_the_slope_of_the_loss() -> None:
    """Of one layer, of two and of three."""
    rng = np.random.default_rng(3)
    for shapes in ([(4, 4)], [(5, 4), (4, 6)], [(6, 4), (5, 7), (4, 6)]):
        net = {f"fc{i}": rng.normal(size=shape) for i, shape in enumerate(shapes)}
        learner = Learner(some_clients()[1], net)
        close(learner.gradient(pack(net)), slopes(learner.loss, pack(net)), 1e-9)


@pytest.mark.parametrize("mix", ["logits", "probs"])
def test_gate_slope_is_the_slope_of_the_mixture_loss(mix: str) -> None:
    rng, f = np.random.default_rng(4), some_clients()[1]
    shared, own = rng.normal(size=(2, f.size, 4))

    def loss(w: np.ndarray) -> float:
        return -log_softmax(mixed(gate_of(w, f.x), shared, own, mix))[np.arange(f.size), f.y].mean()

    w = rng.normal(size=(1, 4))
    close(gate_slope(w, f.x, f.y, shared, own, mix), slopes(loss, w), 1e-9)


PARTIAL = [[0, 1, 3], [1, 2], [0, 2, 3]]
BUSY = SGD(lr=0.3, momentum=0.5, weight_decay=0.01)


def trained(method: str = "pfl_moe", reads: int = 3, **options: object) -> Trained:
    return METHODS[method](some_start(reads=reads), some_clients(), PARTIAL, 2, BUSY, 2, **options)


def same(ours: Trained, other: Trained) -> None:
    close(pack(ours.personal), pack(other.personal))


def test_expert_is_that_of_fine_tuning_on_three_quarters() -> None:
    net = {name: array for name, array in some_start().items() if name != "gate"}
    theta = fedavg(pack(net), [Learner(f, net) for f in some_clients()], PARTIAL, 2, BUSY).server
    ours = trained()
    close(pack(ours.server), theta)
    for i, f in enumerate(some_clients()):
        kept = generator(0, "parts", i).permutation(f.size)[f.size // 4 :]
        tuned = Learner(Client(f.x[kept], f.y[kept]), net)
        expected = unpack(BUSY.descend(theta, tuned.gradient, 2), net)
        for name in net:
            close(ours.personal[f"expert/{name}"][i], expected[name])


def test_head_alone_moves() -> None:
    """With head `last` or its name the first layer is FedAvg's, with `none` both are, with `dense` neither."""
    for head, moves in (
        ("last", [False, True]),
        ("fc2", [False, True]),
        ("none", [False] * 2),
        ("fc1", [True] * 2),
    ):
        ours = trained("pfl_mf", head=head)
        found = [
            np.abs(ours.personal[f"expert/{name}"] - ours.server[name]).max() > 1e-3
            for name in ("fc1", "fc2")
        ]
        assert found == moves
    same(trained("pfl_mf"), trained("pfl_moe"))
    same(trained("pfl_mf", head="fc2"), trained("pfl_mf", head="last"))


def test_extractor_that_is_empty_gives_pixels_to_the_gate() -> None:
    same(trained("pfl_mfe"), trained("pfl_mf"))
    assert trained("pfl_mfe", reads=5, head="last").personal["gate"].shape == (5, 1, 6)


def test_experts_do_not_depend_on_the_gate() -> None:
    ours = trained(gate_lr=3.0)
    for change in (
        {"mix": "probs"},
        {"schedule": "sequential"},
        {"gate_optimizer": "adam"},
        {"gate_decay": 0.5},
    ):
        other = trained(gate_lr=3.0, **change)
        close(other.personal["expert/fc1"], ours.personal["expert/fc1"])
        assert np.abs(other.personal["gate"] - ours.personal["gate"]).max() > 1e-4


def test_mixture_lies_between_the_experts() -> None:
    rng = np.random.default_rng(5)
    shared, own, g = rng.normal(size=(6, 4)), rng.normal(size=(6, 4)), rng.random(6)
    for mix in ("logits", "probs"):
        ends = [mixed(np.full(6, end), shared, own, mix) for end in (1.0, 0.0)]
        between = mixed(g, shared, own, mix)
        assert np.all((between >= np.minimum(*ends)) & (between <= np.maximum(*ends)))
    close(ends[0], log_softmax(shared))
    close(np.exp(between).sum(axis=1), np.ones(6))


# --- the package's command line against the reference -------------------------------------------------------

EPOCHS, LR = 2, 0.1
TRAINING = ["--model", "mlp", "--rounds", str(ROUNDS), "--batch-size", "100000", "--dtype", "float64"]
OF_GATE: list[dict[str, object]] = [
    {"gate_lr": 0.5},
    {"gate_lr": 0.5, "gate_decay": 0.1},
    {"gate_lr": 0.5, "mix": "probs"},
    {"gate_lr": 0.5, "schedule": "sequential", "ft_epochs": 3},
    {"gate_lr": 0.5, "ft_epochs": 3},
    {"gate_optimizer": "adam", "ft_epochs": 3},
    {"gate_optimizer": "adam", "gate_lr": 0.02, "gate_decay": 0.1, "ft_epochs": 4, "mix": "probs"},
    {"schedule": "sequential", "gate_optimizer": "adam", "gate_decay": 0.0005, "ft_epochs": 3},
    {"gate": "global"},
    {"gate": "personal"},
    {"gate": "equal"},
    {"ft_epochs": 0},
]
OF_HEAD: list[dict[str, object]] = [
    {"head": "last"},
    {"head": "last", "gate_lr": 0.5, "ft_epochs": 3},
    {"head": "last", "gate_lr": 0.5, "mix": "probs", "schedule": "sequential", "ft_epochs": 3},
    {"head": "fc1", "gate_lr": 0.5},
    {"head": "fc2", "gate_optimizer": "adam", "ft_epochs": 3},
    {"head": "last", "gate": "global"},
    {"head": "last", "gate": "personal"},
    {"head": "last", "gate": "equal", "mix": "probs"},
]
FLAGS: list[dict[str, object]] = [
    {"lr": 0.03},
    {"epochs": 5},
    {"momentum": 0.9},
    {"weight-decay": 0.1},
    {"participation": 0.6},
    {"participation": 0.2},
    {"ft-lr": 0.02},  # of the tuning alone
    {"ft-momentum": 0.9},
    {"ft-weight-decay": 0.1},
    {"ft-lr": 0.3, "ft-momentum": 0, "ft-weight-decay": 0, "momentum": 0.5, "weight-decay": 0.1},
    {"whole-test": True},
    {"model": "linear"},
    {"engine": "vmap"},
    {
        "clients": 300,
        "partition": "iid",
        "participation": 0.1,
        "engine": "loop",
    },  # some of fewer than four images
    {"clients": 300, "partition": "iid", "participation": 0.1, "engine": "vmap"},
]


def cases() -> Iterator[tuple[str, dict[str, object], dict[str, object]]]:
    for method in EXPERTS:
        head = {} if method == "pfl_moe" else {"head": "last"}
        yield method, {}, {}
        yield from ((method, {}, options) for options in OF_GATE + (OF_HEAD if head else []))
        for flags in FLAGS:
            deep = {} if flags.get("model") == "linear" else head
            yield method, flags, {"gate_lr": 0.5, "ft_epochs": 3} | deep
        if method == "pfl_mf":  # no head, so that the experts are equal
            yield method, {}, {"head": "none", "gate_lr": 0.5, "gate_decay": 0.1}
        together = {"momentum": 0.5, "weight-decay": 0.01, "participation": 0.6, "engine": "vmap"}
        for options in OF_GATE[4:8]:
            yield method, together, options | head


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, list[Client]]]:
    """The clients of a partition, made once."""
    known: dict[tuple, dict[str, list[Client]]] = {}

    def of(clients: int, partition: str) -> dict[str, list[Client]]:
        flags = [*FEDERATION, "--clients", str(clients), "--partition", partition]
        if (clients, partition) not in known:
            known[clients, partition] = read_federation(tmp_path_factory.mktemp("partition"), flags)
        return known[clients, partition]

    return of


def scores(client: Client, expected: Trained, i: int, options: dict[str, object], method: str) -> np.ndarray:
    """The log-probabilities of client i's mixture."""
    base, top = split(expected.server, str(options.get("head", "dense")))
    own = {name: expected.personal[f"expert/{name}"][i] for name in top}
    a = activations(base, client.x)
    g = gate_of(expected.personal["gate"][i], a if method == "pfl_mfe" else client.x)
    return log_softmax(mixed(g, forward(top, a)[1], forward(own, a)[1], str(options.get("mix", "logits"))))


@pytest.mark.parametrize("case", list(cases()), ids=lambda case: "-".join([case[0], *words(*case[1:])]))
def test_package_agrees(case, federation: Callable[..., dict[str, list[Client]]], tmp_path: Path) -> None:
    method, flags, options = case
    settings = {
        "clients": 5,
        "partition": "dirichlet:0.4",
        "epochs": EPOCHS,
        "lr": LR,
        "momentum": 0,
        "weight-decay": 0,
    }
    settings |= {"participation": 1} | flags
    typed = [
        part
        for name, value in settings.items()
        for part in ([f"--{name}"] if value is True else [f"--{name}", value])
    ]
    chosen = [part for setting in words(options) for part in ("--set", setting)]
    out, saved = tmp_path / "R.json", tmp_path / "M.npz"
    command("run", method, *FEDERATION, *TRAINING, *typed, *chosen, "--out", out, "--save", saved)
    result, file = json.loads(out.read_text()), dict(np.load(saved))

    def found(kind: str) -> Net:
        return joined({name.removeprefix(kind): file[name] for name in file if name.startswith(kind)})

    data = federation(settings["clients"], settings["partition"])
    rounds = [entry["clients"] for entry in result["rounds"] if entry["round"] > 0]
    sgd = SGD(settings["lr"], settings["momentum"], settings["weight-decay"])
    ft_sgd = SGD(*(settings.get(f"ft-{name}", settings[name]) for name in ("lr", "momentum", "weight-decay")))
    expected = METHODS[method](
        found("initial/"), data["train"], rounds, int(settings["epochs"]), sgd, **options, ft_sgd=ft_sgd
    )
    close_all = partial(np.testing.assert_allclose, rtol=0, atol=1e-11)
    for name, value in expected.server.items():
        close_all(found("global/")[name], value)
        for copy in found("personal/" if options.get("ft_epochs") == 0 else "personal/global/")[name]:
            close_all(copy, value)
    if "ft_epochs" not in options or options["ft_epochs"]:  # else personal/ is FedAvg's model alone
        for name, value in expected.personal.items():
            close_all(found("personal/")[name], value)

    n = range(len(data["train"]))
    log_p = [scores(data["test"][i], expected, i, options, method) for i in n]
    losses = [-lp[np.arange(len(lp)), f.y].mean() for lp, f in zip(log_p, data["test"], strict=True)]
    close_all(result["final"]["test_loss"], losses)
    if settings.get("whole-test"):  # every model on all test images, and as if they had its client's classes
        whole = data["whole test"][0]
        tuned = [scores(whole, expected, i, options, method) for i in n]
        untuned = [forward(expected.server, whole.x)[1] for _ in n]
        for report, models in ((result["final"], tuned), (result["final_before_ft"], untuned)):
            hits = [model.argmax(axis=1) == whole.y for model in models]
            by_class = np.array([[hit[whole.y == c].mean() for c in range(10)] for hit in hits])
            shares = np.array([np.bincount(f.y, minlength=10) / f.size for f in data["train"]])
            for name, values in (
                ("global_test", np.mean(hits, axis=1)),
                ("local_test", np.sum(shares * by_class, axis=1)),
            ):
                close_all(report[f"{name}_clients"], values)
                close_all(report[name], values.mean())
    if "final_before_ft" in result:
        before = [Learner(f, expected.server).loss(pack(expected.server)) for f in data["test"]]
        close_all(result["final_before_ft"]["test_loss"], before)


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize("head", ["dense", "last", "fc2", "none"])
def test_freezing_the_base_for_three_quarters_agrees(
    head: str, engine: str, federation: Callable[..., dict[str, list[Client]]], tmp_path: Path
) -> None:
    """PFL-FB's `part` = per, and a head of some layers of several: the expert of PFL-MF."""
    out, saved, setting = tmp_path / "R.json", tmp_path / "M.npz", [f"head={head}", "part=per", "ft_epochs=3"]
    typed = ["--momentum", 0.5, "--engine", engine, "--epochs", EPOCHS, "--lr", LR]
    chosen = [part for word in setting for part in ("--set", word)]
    command("run", "pfl_fb", *FEDERATION, *TRAINING, *typed, *chosen, "--out", out, "--save", saved)
    result, file = json.loads(out.read_text()), dict(np.load(saved))
    rounds = [entry["clients"] for entry in result["rounds"] if entry["round"] > 0]
    start, personal = (
        joined({name.removeprefix(kind): file[name] for name in file if name.startswith(kind)})
        for kind in ("initial/", "personal/")
    )
    start |= {"gate": np.zeros((1, 65))}
    clients = federation(5, "dirichlet:0.4")["train"]
    expected = METHODS["pfl_mf"](start, clients, rounds, EPOCHS, SGD(LR, 0.5), 3, head=head)
    for name, value in personal.items():
        np.testing.assert_allclose(value, expected.personal[f"expert/{name}"], rtol=0, atol=1e-11)
