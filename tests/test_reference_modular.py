"""FedMN a second time in plain NumPy: by itself, and against the package by its command line.

By itself: numbers worked out by hand, the gradients by finite differences, and the invariants of a modular network.
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
from reference.dense import Learner, Net, joined, loss_slope
from reference.fedavg import fedavg
from reference.fedmn import average, warmed
from reference.fedmn_client import Upload, concrete, local, sent
from reference.modular import backward, forward, links, sizes
from reference.router import decide, predict, route, route_back
from test_reference import (
    FEDERATION,
    ROUNDS,
    close,
    command,
    pair,
    read_federation,
    sigmoid,
    slopes,
    some_clients,
    words,
)

UNIT = SGD(lr=1.0)
BUSY = SGD(lr=0.3, momentum=0.5, weight_decay=0.01)


def some_network(*n: int, deep: bool = False, seed: int = 1) -> Net:
    """Three features, four classes; all widths differ. With one layer in each encoder, or with two."""
    rng = np.random.default_rng(seed)
    encoder = {"fc1": (5, 4), "fc2": (6, 6)} if deep else {"fc": (6, 4)}
    routing = {"fc1": (4, 4), "fc2": (7, 5)} if deep else {"fc": (7, 4)}
    shapes = {f"encoder/{layer}": (n[0], *shape) for layer, shape in encoder.items()}
    width = [6, *(5 + i for i in range(len(n) - 2)), 4]
    shapes |= {f"block{i + 1}": (n[i], width[i], width[i - 1] + 1) for i in range(1, len(n))}
    E = sum(a * b for a, b in zip(n, [*n[1:], 1], strict=True))
    shapes |= {f"router/x/{layer}": shape for layer, shape in routing.items()}
    shapes |= {"router/y": (3, 5), "router/out": (E, 7 + 3 + 1)}
    return {name: rng.normal(size=shape) for name, shape in shapes.items()}


def loss(y: np.ndarray, f: Client) -> float:
    return float(-log_softmax(y)[np.arange(f.size), f.y].mean())


# --- by hand ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "count"), [((2, 2, 2), 10), ((3, 3, 3), 21), ((1, 4, 3), 19), ((2, 3), 9)])
def test_number_of_decisions(n: tuple[int, ...], count: int) -> None:
    p = some_network(*n)
    assert len(p["router/out"]) == count
    assert sizes(p) == [*n, 1]
    assert [c.shape for c in links(np.arange(count), sizes(p))] == list(zip([*n[1:], 1], n, strict=True))


def test_decisions_in_order() -> None:
    """Of 2 x 3: C[j][k] by rows, block j of layer 2 from encoder k, then the three output bits."""
    C = links(np.arange(9), [2, 3, 1])
    close(C[0], [[0, 1], [2, 3], [4, 5]])
    close(C[1], [[6, 7, 8]])


def test_safety_path_by_hand() -> None:
    """2 x 2 x 2, all off: the likeliest link into each layer, but only from a block that is on.

    Layer 2: link 1 (block 0 from encoder 1). Layer 3: of its links 4 to 7 the likeliest, 5, starts at block 1, which
    is off; of those from block 0, 4 and 6, the tie goes to the first. Output: bit 9 is of block 1, off; so 8.
    """
    pi = np.array([0.1, 0.9, 0.2, 0.3, 0.5, 0.8, 0.5, 0.1, 0.2, 0.7])
    bits, a, switched = decide(np.zeros(10), pi, [2, 2, 2, 1])
    assert np.flatnonzero(bits).tolist() == [1, 4, 8]
    close(np.stack(a), [[1, 1], [1, 0], [1, 0]])
    assert switched == 3
    again = decide(bits, pi, [2, 2, 2, 1])
    close(again[0], bits)
    assert again[2] == 0


def test_safety_path_ignores_links_from_nowhere() -> None:
    """Links 5 and 7 start at block 1 of layer 2, to which nothing leads: they stay on and count for nothing."""
    on = np.array([1, 0, 0, 0, 0, 1, 0, 1, 1, 1])
    bits, a, switched = decide(on, np.zeros(10), [2, 2, 2, 1])
    assert np.flatnonzero(bits).tolist() == [0, 4, 5, 7, 8, 9]
    close(np.stack(a), [[1, 1], [1, 0], [1, 0]])
    assert switched == 1


def test_active_blocks_by_hand() -> None:
    """A hidden block counts when something reaches it, one of the last layer when its output bit is on as well."""
    p, n = some_network(2, 2, 2), [2, 2, 2, 1]
    _, a, _ = decide(np.array([1, 0, 0, 1, 1, 0, 0, 1, 0, 1]), np.zeros(10), n)
    close(np.stack(a), [[1, 1], [1, 1], [0, 1]])
    active, mask = sent(p, a, n)
    close(active, [1, 1, 0, 1])
    assert not mask["block3"][0].any()
    assert all(mask[name].all() for name in p if name != "block3")


def small() -> Net:
    """1 x 2 on one feature: encoder relu(x); blocks (u h, -u h) with u = 1 and u = 0."""
    return {
        "encoder/fc": np.array([[[1.0, 0.0]]]),
        "block2": np.array([[[1.0, 0.0], [-1.0, 0.0]], np.zeros((2, 2))]),
    }


def test_modular_network_by_hand() -> None:
    """`pair()`: x = 1 of class 0 gives h = 1, x = -1 of class 1 gives h = 0.

    All on: the mean of the blocks is (h/2, -h/2), the errors (-s, s)/2 with s = sigmoid(-1), and (1, -1)/4. One half of
    them reaches each block: weights (-s, s)/4, biases (1/4 - s/2, -1/4 + s/2)/2. The encoder's h gets -s/2 * (1 + 0)/2
    twice: -s/2. Block 0 alone: y = h (1, -1), t = sigmoid(-2); dC_2 of the output = <(-t, t)/2, (0, 0) - (1, -1)> = t.
    """
    p, f, s, t = small(), pair(), sigmoid(-1), sigmoid(-2)
    one = [np.ones(1), np.ones(2)]
    C = links(np.ones(4), [1, 2, 1])
    y, way = forward(p, f.x, C, one)
    close(y, [[0.5, -0.5], [0, 0]])
    g, _ = backward(p, C, one, way, loss_slope(y, f.y))
    bias = (0.25 - s / 2) / 2
    close(g["block2"], [[[-s / 4, bias], [s / 4, -bias]]] * 2)
    close(g["encoder/fc"], [[[-s / 2, -s / 2]]])
    C = links(np.array([1.0, 1, 1, 0]), [1, 2, 1])
    y, way = forward(p, f.x, C, one)
    close(y, [[1, -1], [0, 0]])
    close(backward(p, C, one, way, loss_slope(y, f.y))[1], [0, 0, 0, t])


def test_router_by_hand() -> None:
    """x = (3, 4) is (0.6, 0.8) by its norm, x = (-4, 3) then loses its negative part: the mean is (0.3, 0.7)."""
    x, y = np.array([[3.0, 4.0, 1.0], [-4.0, 3.0, 1.0]]), np.array([0, 1])
    p = {"router/x/fc": np.array([[1.0, 0, 0], [0, 1, 0]]), "router/y": np.array([[2.0, -2, 0], [0, 0, 0]])}
    p |= {"router/out": np.array([[1.0, 0, 0, 0, 0], [0, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 1, 5]])}
    close(
        route(p, x, y, joint=False)[0], [0.3, 0.7, 0.5, 5]
    )  # the labels (2, 0) and (-2, 0): 1 and nothing, mean 1/2
    a, b = 29**0.5, 29**0.5  # together: (3, 4, 2, 0) and (-4, 3, -2, 0)
    close(route(p, x, y)[0], [1.5 / a, 2 / a + 1.5 / b, 1 / a, 5])


def test_concrete_is_above_one_half_as_often_as_pi_says() -> None:
    u = np.linspace(0, 1, 1002)[1:-1]
    for pi in (0.2, 0.5, 0.85):
        for tau in (1.0, 0.5, 0.1):
            assert np.mean(concrete(u, np.log(pi / (1 - pi)), tau) > 0.5) == pytest.approx(pi, abs=2e-3)
    close(concrete(0.5, np.log(3.0), 1.0), 0.75)
    close(concrete(0.75, np.log(3.0), 0.5), 81 / 82)


def upload(p: Net, by: float, active: np.ndarray) -> Upload:
    moved, n = {name: array + by for name, array in p.items()}, sizes(p)
    mask = sent(p, [np.ones(1), active], n)[1]
    return Upload(moved, mask, active, np.zeros(4), np.zeros(4), 0, np.empty(0))


def test_average_by_hand() -> None:
    """Clients of 1 and 3 samples move by 2 and by 4. Block 0 is active at the first alone, block 1 nowhere; then both at both."""
    p, size = small(), np.array([1.0, 3.0])
    first = [upload(p, 2, np.array([1, 0])), upload(p, 4, np.array([0, 0]))]
    b = p["block2"]
    for rule, by_hand in (
        ("normalized", [b[0] + 2, b[1]]),
        ("literal", [(b[0] + 2) / 4, 0 * b[1]]),
        ("delta", [b[0] + 2 / 4, b[1]]),
        ("code", [b[0] + 2, 0 * b[1]]),
    ):
        new = average(p, first, size, rule)
        close(new["block2"], by_hand)
        close(new["encoder/fc"], p["encoder/fc"] + (3.0 if rule == "code" else (2 + 3 * 4) / 4))
    both = [upload(p, 2, np.ones(2)), upload(p, 4, np.ones(2))]
    for rule, by in (("normalized", 3.5), ("literal", 3.5), ("delta", 3.5), ("code", 3.0)):
        close(average(p, both, size, rule)["block2"], b + by)


# --- against finite differences -----------------------------------------------------------------------------


def with_router(p: Net, kind: str) -> tuple[Net, Net]:
    """The network with another router, and what of it is measured and not learned."""
    rng, d_x = np.random.default_rng(3), 7
    if "product" in kind:
        p = {name: w for name, w in p.items() if name != "router/y"}
        p["router/out"] = rng.normal(size=(len(p["router/out"]), d_x * 4 + 1))
    wide = p["router/out"].shape[1] - 1
    return p, {
        "router/mean": rng.normal(size=wide),
        "router/spread": np.array(0.7),
    } if "centred" in kind else {}


@pytest.mark.parametrize("kind", ["joint", "each", "joint, centred", "product", "product, centred"])
@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("n", [(2, 3), (2, 3, 2), (1, 2, 3, 2)])
def test_gradients_are_the_slopes_of_the_loss(n: tuple[int, ...], deep: bool, kind: str) -> None:
    """Soft gates: one smooth function of everything. Straight through: of bits + v(theta_h) - v, at the given v."""
    p, fixed = with_router(some_network(*n, deep=deep), kind)
    f, joint = some_clients()[1], "each" not in kind
    widths, u, tau = sizes(p), np.random.default_rng(8).random(len(p["router/out"])), 0.7
    pi, tape = route(p | fixed, f.x, f.y, joint)
    v = concrete(u, pi, tau)
    bits, a, _ = decide(v > 0.5, pi, widths)
    for value, activity in ((v, [np.ones(k) for k in n]), (bits, a)):

        def smooth(vector: np.ndarray, value: np.ndarray = value, activity: list = activity) -> float:
            q = unpack(vector, p)
            now = value + concrete(u, route(q | fixed, f.x, f.y, joint)[0], tau) - v
            return loss(forward(q, f.x, links(now, widths), activity)[0], f)

        C = links(value, widths)
        y, way = forward(p, f.x, C, activity)
        g, dv = backward(p, C, activity, way, loss_slope(y, f.y))
        g |= route_back(p | fixed, tape, dv * v * (1 - v) / tau)
        close(pack({name: g[name] for name in p}), slopes(smooth, pack(p)), 1e-8)
        # hard bits may leave one link everywhere, whose mean does not depend on it
        assert value is bits or np.abs(g["router/out"]).max() > 1e-6


def test_local_step_is_that_gradient() -> None:
    """One step of rate 1 of each kind, by differences; in `st` inactive blocks stay, even under decay."""
    p, f = some_network(2, 2, 2), some_clients()[1]
    n, u, tau = sizes(p), np.random.default_rng(12).random((1, 10)), 0.7
    pi = route(p, f.x, f.y)[0]
    v = concrete(u[0], pi, tau)
    bits, a, _ = decide(v > 0.5, pi, n)
    everywhere = [np.ones(k) for k in n[:-1]]
    for gate, value, activity in (("st", bits, a), ("sample", bits, a), ("soft", v, everywhere)):

        def smooth(vector: np.ndarray, value: np.ndarray = value, activity: list = activity) -> float:
            q = unpack(vector, p)
            now = value + concrete(u[0], route(q, f.x, f.y)[0], tau) - v
            return loss(forward(q, f.x, links(now, n), activity)[0], f)

        done = local(p, f, 1, SGD(0.5, 0.0, 0.1), gate, tau, u, None)
        step = 0.5 * (slopes(smooth, pack(p)) + 0.1 * pack(p)) * pack(done.mask)
        close(pack(done.p), pack(p) - step, 1e-8)
        assert pack(done.mask).all() == (gate != "st")


# --- invariants ---------------------------------------------------------------------------------------------


def test_inactive_blocks_do_not_show() -> None:
    p, n, f, rng = some_network(2, 3, 3), [2, 3, 3, 1], some_clients()[0], np.random.default_rng(5)
    silent = 0
    for _ in range(20):
        bits, a, _ = decide(rng.random(18) < 0.3, rng.random(18), n)
        mask = sent(p, a, n)[1]
        silent += sum(int((~m).any()) for m in mask.values())
        other = {name: np.where(mask[name], array, rng.normal(size=array.shape)) for name, array in p.items()}
        assert np.array_equal(predict(p, bits, f.x), predict(other, bits, f.x))
    assert silent > 10


def test_equal_blocks_give_one_network() -> None:
    p, f, rng = some_network(2, 3, 2), some_clients()[0], np.random.default_rng(6)
    p |= {name: np.stack([p[name][0]] * len(p[name])) for name in ("encoder/fc", "block2", "block3")}
    all_on = predict(p, np.ones(14), f.x)
    for _ in range(10):
        close(predict(p, (rng.random(14) < 0.4).astype(float), f.x), all_on)


def test_router_sees_a_distribution() -> None:
    """Neither the order of the samples nor their being there twice changes Pi."""
    p, f = some_network(2, 3, 2), some_clients()[1]
    order = np.random.default_rng(7).permutation(f.size)
    twice = np.concatenate([order, order])
    close(route(p, f.x[order], f.y[order])[0], route(p, f.x, f.y)[0])
    close(route(p, f.x[twice], f.y[twice])[0], route(p, f.x, f.y)[0])


PARTIAL = [[0, 1, 3], [1, 2], [0, 2, 3]]  # client 4 never takes part


def without_router(p: Net) -> Net:
    return {name: array for name, array in p.items() if not name.startswith("router")}


def chain(p: Net) -> Net:
    """1 x 1 x 1 as one network."""
    return {name: array[0] for name, array in without_router(p).items()}


def trained(p: Net, rounds: list[list[int]] = PARTIAL, **options: object) -> Trained:
    return METHODS["fedmn"](p, some_clients(), rounds, 2, BUSY, **options)


@pytest.mark.parametrize("aggregation", ["normalized", "delta", "literal"])
def test_one_block_a_layer_is_fedavg(aggregation: str) -> None:
    p = without_router(some_network(1, 1, 1, deep=True))
    learners = [Learner(client, chain(p)) for client in some_clients()]
    expected = fedavg(pack(chain(p)), learners, PARTIAL, 2, BUSY).server
    ours = trained(p, routing="all", aggregation=aggregation)
    close(pack(chain(ours.server)), expected)
    assert ours.state["floats"].tolist() == [len(sampled) * expected.size for sampled in PARTIAL]


def test_sequential_clients_go_on_from_each_other() -> None:
    """As FedAvg on a chain does when each client has a round of its own; the server averages what they had."""
    p = without_router(some_network(1, 1, 1))
    ours = trained(p, [[0, 1, 3]], routing="all", schedule="sequential")
    learners = [Learner(client, chain(p)) for client in some_clients()]
    stops = [fedavg(pack(chain(p)), learners, [[0], [1], [3]][:k], 2, BUSY).server for k in (1, 2, 3)]
    close(pack(chain(ours.server)), np.average(stops, axis=0, weights=[5, 9, 7]))


def test_all_on_needs_no_router() -> None:
    """A router that says yes to everything, and whose pi no longer moves, trains as no router does."""
    p = some_network(2, 2, 2)
    p["router/out"] = np.zeros_like(p["router/out"])
    p["router/out"][:, -1] = 60.0
    ours, plain = trained(p), trained(without_router(p), routing="all")
    for name in plain.server:
        close(ours.server[name], plain.server[name], 1e-12)
    assert ours.state["safety"].tolist() == [0] * 5


def test_what_travels() -> None:
    """Encoders, router and active blocks; a soft or a sampled gate sends everything."""
    p, rounds = some_network(2, 3, 3), [[0], [1], [2]]
    size = {name: array[0].size for name, array in p.items() if name.startswith("block")}
    rest = sum(array.size for name, array in p.items() if not name.startswith("block"))
    ours = trained(p, rounds)
    for i in range(3):
        active = ours.state["active"][i]
        blocks = active[:3].sum() * size["block2"] + active[3:].sum() * size["block3"]
        assert ours.state["floats"][i] == rest + blocks
    assert min(ours.state["floats"]) < pack(p).size
    for gate in ("soft", "sample"):
        assert trained(p, rounds, gate=gate).state["floats"].tolist() == [pack(p).size] * 3


def test_last_sample_is_what_the_client_trained_with() -> None:
    ours = trained(some_network(2, 3, 2), infer="last_sample")
    close(ours.personal["bits"][:4], ours.state["bits"][:4])
    threshold = trained(some_network(2, 3, 2))
    close(threshold.state["bits"], ours.state["bits"])
    close(threshold.personal["bits"][4], ours.personal["bits"][4])
    assert np.abs(threshold.personal["bits"][:4] - ours.personal["bits"][:4]).max() == 1


def test_pretraining_warms_all_encoders_below_their_last_layer() -> None:
    p = some_network(2, 2, 2, deep=True)
    rng = np.random.default_rng(8)
    plain = {"fc1": rng.normal(size=(5, 4)), "fc2": rng.normal(size=(4, 6))}
    new = warmed(p, plain)
    close(new["encoder/fc1"], np.stack([plain["fc1"]] * 2))
    close(new["router/x/fc1"], plain["fc1"])
    close(new["encoder/fc2"], p["encoder/fc2"])


# --- the package's command line against the reference -------------------------------------------------------

EPOCHS, LR = 2, 0.1
TRAINING = ["--rounds", str(ROUNDS), "--batch-size", "100000", "--dtype", "float64"]
NARROW: dict[str, object] = {
    "encoder_width": 12,
    "width": 8,
    "router_width": 7,
    "label_width": 5,
    "dropout": 0,
}
FEATURES: dict[str, object] = {
    "encoder_width": 66,
    "width": 65,
}  # no narrower than what the plain network's last layer reads
SHAPES = {"blocks", "codes", "block_std", *NARROW}
FLAGS: list[dict[str, object]] = [
    {},
    {"lr": 0.5},
    {"epochs": 5},
    {"momentum": 0.9},
    {"participation": 0.6},
    {"participation": 0.2},
    {"model": "mlp"},
    {"engine": "vmap"},
    {"seed": 3, "lr": 0.3, "momentum": 0.5, "participation": 0.6},
]
OPTIONS: list[dict[str, object]] = [
    {"blocks": "2x3"},
    {"blocks": "3x3x3"},
    {"blocks": "1x4x3"},
    {"blocks": "2x2x3x2"},
    {"blocks": "1x1x1"},
    {"encoder_width": 5},
    {"width": 3},
    {"router_width": 2},
    {"label_width": 1},
    {"gate": "soft"},
    {"gate": "soft", "infer": "last_sample"},
    {"gate": "sample"},
    {"gate": "sample", "infer": "last_sample"},
    {"aggregation": "literal"},
    {"aggregation": "delta"},
    {"aggregation": "code"},
    {"schedule": "sequential"},
    {"schedule": "sequential", "aggregation": "delta", "blocks": "2x3x3"},
    {"infer": "last_sample"},
    {"routing": "all"},
    {"routing": "all", "blocks": "1x1x1"},
    {"routing": "random"},
    {"routing": "random", "blocks": "1x4x3", "aggregation": "literal"},
    {"tau_start": 0.3},
    {"tau_end": 1.0},
    {"tau_start": 2.0, "tau_end": 0.05, "gate": "soft"},
    {"pretrain": 1} | FEATURES,
    {"pretrain": 2, "gate": "sample", "plant": "body"},
    {"pretrain": 1, "pretrain_lr": 0.5, "plant_noise": 0.4, "blocks": "2x2x3x2"} | FEATURES,
    {"normalize": "each"},
    {"codes": "product"},
    {"codes": "product", "gate": "soft", "ft_epochs": 1},
    {"centre": True},
    {"centre": True, "normalize": "each", "gate": "sample"},
    {"centre": True, "codes": "product", "router_part": "head", "router_lr": 3.0},
    {"centre": True, "codes": "product", "router_part": "head", "pretrain": 1, "schedule": "sequential"}
    | FEATURES,
    {"router_lr": 10.0},
    {"router_lr": 0.0, "gate": "soft"},
    {"router_part": "head"},
    {"block_std": 0.01},
    {"output_scale": 3.5},
    {"output_scale": 3.5, "ft_epochs": 1, "ft_mode": "plain_sgd"},
    {"ft_epochs": 2},
    {"ft_epochs": 2, "ft_mode": "plain_sgd"},
    {"ft_epochs": 3, "gate": "sample"},
    {"ft_epochs": 2, "gate": "soft"},
    {"ft_epochs": 2, "routing": "random"},
    {"ft_epochs": 1, "routing": "all", "ft_mode": "plain_sgd"},
    {"ft_epochs": 1, "infer": "last_sample", "ft_mode": "plain_sgd"},
    {"ft_epochs": 1, "infer": "last_sample"},
]
TOGETHER: dict[str, object] = {"lr": 0.5, "epochs": 3, "momentum": 0.5, "participation": 0.6}
DECAY: dict[str, object] = {"weight-decay": 0.1, "participation": 0.6}


def cases() -> Iterator[tuple[dict[str, object], dict[str, object]]]:
    yield from ((flags, {}) for flags in FLAGS)
    yield from (({"model": "mlp"} if "pretrain" in options else {}, options) for options in OPTIONS)
    for k, options in enumerate(OPTIONS):  # the engines in turn
        engine = "loop" if "schedule" in options else ("loop", "vmap")[k % 2]
        model = "mlp" if "pretrain" in options else ("linear", "mlp")[k // 2 % 2]
        yield TOGETHER | {"engine": engine, "model": model}, options
    for engine in ("loop", "vmap"):  # few links, so that the safety path has work
        yield TOGETHER | {"engine": engine, "seed": 5}, {"blocks": "1x2x2x2", "gate": "sample"}
        yield (
            TOGETHER | {"engine": engine, "seed": 5, "model": "mlp"},
            {"blocks": "1x1x2", "pretrain": 1, "plant": "body"},
        )
        yield DECAY | {"engine": engine}, {}
    for options in ({"gate": "soft"}, {"gate": "sample"}, {"routing": "all"}, {"routing": "random"}):
        yield DECAY, options


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Callable[[object], dict[str, list[Client]]]:
    """The five clients of a seed, made once."""
    known: dict[object, dict[str, list[Client]]] = {}

    def of(seed: object) -> dict[str, list[Client]]:
        if seed not in known:
            flags = [*FEDERATION, "--seed", str(seed)]
            known[seed] = read_federation(tmp_path_factory.mktemp("partition"), flags)
        return known[seed]

    return of


def under(file: dict[str, np.ndarray], kind: str) -> Net:
    own = {name.removeprefix(kind): file[name] for name in file if name.startswith(kind)}
    return joined(own) | {name: own[name] for name in ("router/mean", "router/spread") if name in own}


@pytest.mark.parametrize("case", list(cases()), ids=lambda case: "-".join(["fedmn", *words(*case)]))
def test_package_agrees(
    case, federation: Callable[[object], dict[str, list[Client]]], tmp_path: Path
) -> None:
    flags, options = case
    settings = {
        "epochs": EPOCHS, "lr": LR, "momentum": 0, "weight-decay": 0, "participation": 1, "model": "linear",
    }  # fmt: skip
    settings |= {"seed": 0} | flags
    typed = [part for name, value in settings.items() for part in (f"--{name}", value)]
    chosen = [part for setting in words(NARROW | options) for part in ("--set", setting)]
    out, saved = tmp_path / "R.json", tmp_path / "M.npz"
    command("run", "fedmn", *FEDERATION, *TRAINING, *typed, *chosen, "--out", out, "--save", saved)
    result, file = json.loads(out.read_text()), dict(np.load(saved))

    data = federation(settings["seed"])
    rounds = [entry["clients"] for entry in result["rounds"] if entry["round"] > 0]
    start, plain = under(file, "initial/"), under(file, "initial/plain/")
    start = {name: array for name, array in start.items() if not name.startswith("plain/")}
    assert sizes(start)[:-1] == [int(k) for k in str(options.get("blocks", "2x2x2")).split("x")]
    given = {name: value for name, value in options.items() if name not in SHAPES} | {
        "seed": settings["seed"]
    }
    if plain:
        given["plain"] = plain
    sgd = SGD(settings["lr"], settings["momentum"], settings["weight-decay"])
    expected = METHODS["fedmn"](start, data["train"], rounds, int(settings["epochs"]), sgd, **given)

    close_all = partial(np.testing.assert_allclose, rtol=0, atol=1e-11)
    assert under(file, "global/").keys() == expected.server.keys()
    for name, value in expected.server.items():
        close_all(under(file, "global/")[name], value)
    close_all(file["personal/bits"], expected.personal["bits"])
    for name in expected.server:
        close_all(under(file, "personal/")[name], expected.personal[name])
    seen = sorted({i for sampled in rounds[options.get("pretrain", 0) :] for i in sampled})
    for name in ("logits", "bits", "active", "safety"):
        close_all(file[f"state/{name}"][seen], expected.state[name][seen])
    sent = [[entry["floats_down"], entry["floats_up"]] for entry in result["rounds"] if entry["round"] > 0]
    close_all(sent, np.stack([expected.state["floats"], expected.state["floats_up"]], axis=1))
    scale = float(options.get("output_scale", 1))
    losses = [
        loss(scale * predict({name: expected.personal[name][i] for name in start}, bits, f.x), f)
        for i, (bits, f) in enumerate(zip(expected.personal["bits"], data["test"], strict=True))
    ]
    close_all(result["final"]["test_loss"], losses)


def test_plain_network_starts_as_that_of_fedavg(tmp_path: Path) -> None:
    starts = []
    for method, options in (("fedavg", []), ("fedmn", ["--set", "pretrain=1"])):
        saved = tmp_path / f"{method}.npz"
        command("run", method, *FEDERATION, *TRAINING, "--model", "mlp", *options, "--save", saved)
        starts.append(under(dict(np.load(saved)), "initial/"))
    for name, value in starts[0].items():
        assert np.array_equal(starts[1][f"plain/{name}"], value)


def test_package_leaves_absent_blocks_alone(
    federation: Callable[[object], dict[str, list[Client]]], tmp_path: Path
) -> None:
    """A block of the last layer is reached but its output bit is off: its content has no part in the round."""
    options = {"blocks": "2x3x3", "aggregation": "delta"}
    test_package_agrees((DECAY, options), federation, tmp_path)
