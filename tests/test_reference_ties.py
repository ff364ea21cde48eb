"""The NumPy methods that tie clients' models together, by themselves: against hand-worked numbers, against
finite differences, and against FedAvg and Local where an option makes them that.

`pair()` and `symmetric(u)` are those of `test_reference.py`: at the model (u, -u) the gradient of `pair()` is
(-s, s) with s = sigmoid(-2u), so that one step of rate eta is u <- u + eta sigmoid(-2u); with flipped labels
u <- u - eta sigmoid(2u).
"""

from __future__ import annotations

import numpy as np
import pytest
from reference import METHODS
from reference.common import SGD, Client, Trained, join, pack, unpack
from reference.moon import contrast_slope
from reference.perfedavg import hessian_times
from reference.pfedhn import generate, pull_back
from reference.projection import gradient, layers, project, projected
from test_reference import close, pair, sigmoid, slopes, symmetric

TWO = [pair(), pair(flipped=True, copies=2)]  # 2 and 4 samples
UNIT = SGD(lr=1.0)


# --- by hand ------------------------------------------------------------------------------------------------


def test_ditto_by_hand() -> None:
    """Round 1 from 0: v = 1/2 and -1/2 (no pull yet), and w = (2/2 - 4/2) / 6 = -1/6 as FedAvg.

    Round 2, lam 1/2: v_0 = 1/2 + sigmoid(-1) - 1/2 (1/2 + 1/6) = 1/6 + 0.268941 = 0.435608,
    v_1 = -1/2 - sigmoid(-1) - 1/2 (-1/2 + 1/6) = -1/3 - 0.268941 = -0.602275.
    """
    trained = METHODS["ditto"](symmetric(0), TWO, [[0, 1], [0, 1]], 1, UNIT, lam=0.5)
    close(trained.personal, [symmetric(1 / 6 + sigmoid(-1)), symmetric(-1 / 3 - sigmoid(-1))])


def test_ditto_newcomer_by_hand() -> None:
    """Client 0 alone takes w to 1/2. Client 1 then moves from 0: -1/2 of its data, +1/4 of the pull: -1/4.

    One epoch of tuning is without the pull: -1/4 - sigmoid(-1/2) = -0.627541.
    """
    trained = METHODS["ditto"](symmetric(0), TWO, [[0]], 1, UNIT, lam=0.5)
    close(trained.personal, [symmetric(0.5), symmetric(-0.25)])
    tuned = METHODS["ditto"](symmetric(0), TWO, [[0]], 1, UNIT, lam=0.5, ft_epochs=1)
    close(tuned.personal[1], symmetric(-0.25 - sigmoid(-0.5)))


def test_apfl_by_hand() -> None:
    """alpha fixed at 1/2: w = 1/2; v = 0 + 1/2 * 1/2 = 1/4 by the chain rule; mixed (1/4 + 1/2) / 2 = 3/8.

    Round 2, adaptive: v - w = (-1/4, 1/4), the gradient at 3/8 is (-s, s) with s = sigmoid(-3/4) = 0.320821,
    so their product is s/2 and alpha = 1/2 - s/2 = 0.339589. Then w moves on from 1/2 to 1/2 + sigmoid(-1), and
    v from 1/4 by alpha sigmoid(-2 m) with the mix before the step, m = alpha/4 + (1 - alpha)/2.
    In round 1 v = w, so alpha stays 1/2 there.
    """
    fixed = METHODS["apfl"](symmetric(0), [pair()], [[0]], 1, UNIT, adaptive=False)
    close(fixed.server, symmetric(1 / 2))
    close(fixed.personal, [symmetric(3 / 8)])
    trained = METHODS["apfl"](symmetric(0), [pair()], [[0], [0]], 1, UNIT)
    a = 0.5 - sigmoid(-0.75) / 2
    close(trained.state["alpha"], [a])
    w, v = 0.5 + sigmoid(-1), 0.25 + a * sigmoid(-2 * (a / 4 + (1 - a) / 2))
    close(trained.personal, [symmetric(a * v + (1 - a) * w)])


def test_apfl_newcomer_by_hand() -> None:
    """w = 1/2 by client 0. Client 1: v - w = (-1/2, 1/2), the gradient at 1/4 is (s, -s), s = sigmoid(1/2) = 0.622459.

    alpha = 1/2 + s is cut to 1, so v = 0 - sigmoid(0) = -1/2 is the model; the stored alpha stays 1/2.
    """
    trained = METHODS["apfl"](symmetric(0), TWO, [[0]], 1, UNIT)
    close(trained.personal[1], symmetric(-0.5))
    close(trained.state["alpha"], [0.5, 0.5])


def test_perfedavg_by_hand() -> None:
    """inner_lr 1/2 from u = 0: w' is u = 1/4, whose gradient has s' = sigmoid(-1/2) = 0.377541: u = s'.

    The Hessian at 0 takes (1, -1) to 2 sigmoid(0)^2 = 1/2 times itself, so I - H/2 leaves 3/4: u = 3/4 s' = 0.283156.
    The personal model is one inner step on: u + 1/2 sigmoid(-2u).
    """
    for variant, u in (("fo", sigmoid(-0.5)), ("hf", 0.75 * sigmoid(-0.5))):
        trained = METHODS["perfedavg"](symmetric(0), [pair()], [[0]], 1, UNIT, inner_lr=0.5, variant=variant)
        close(trained.server, symmetric(u))
        close(trained.personal, [symmetric(u + 0.5 * sigmoid(-2 * u))])


def test_scaffold_by_hand() -> None:
    """Round 1, one step: y = 1/2 and -1/2, c_i = (0 - y)/1 = -1/2 and 1/2; uniform: w = 0 and c = 0.

    By size: w = -1/6 and c = (-2/2 + 4/2)/6 = 1/6. Then client 0 alone: it moves by sigmoid(1/3) - c + c_0
    to y = -1/6 + sigmoid(1/3) - 1/6 - 1/2, and w with it. c_0 becomes its gradient at w = -1/6: -sigmoid(1/3).
    With server_lr 1/2: w = -1/12 after round 1, c as before.
    With two steps and c_i = 0: y = 1/2 + sigmoid(-1), c_0 = -y/2.
    """
    uniform = METHODS["scaffold"](symmetric(0), TWO, [[0, 1]], 1, UNIT)
    close(uniform.server, symmetric(0))
    close(uniform.state["control"], [symmetric(-0.5), symmetric(0.5)])
    by_size = METHODS["scaffold"](symmetric(0), TWO, [[0, 1], [0]], 1, UNIT, weights="size")
    close(by_size.server, symmetric(-1 / 6 + sigmoid(1 / 3) - 1 / 6 - 1 / 2))
    close(by_size.state["control"], [symmetric(-sigmoid(1 / 3)), symmetric(0.5)])
    close(by_size.personal, [by_size.server] * 2)
    half = METHODS["scaffold"](symmetric(0), TWO, [[0, 1]], 1, UNIT, weights="size", server_lr=0.5)
    close(half.server, symmetric(-1 / 12))
    twice = METHODS["scaffold"](symmetric(0), TWO, [[0]], 2, UNIT)
    close(twice.state["control"], [symmetric(-(0.5 + sigmoid(-1)) / 2), symmetric(0)])


def test_scaffold_share_by_hand() -> None:
    """Client 0 of two takes part: c = 1/2 * c_0 = -1/4, w = 1/2.

    Client 1 in round 2: y = 1/2 - sigmoid(1) + 1/4 + 0 = 0.018941; c_1 = sigmoid(1), its gradient at 1/2.
    Tuning knows no control: client 0 goes on from w by sigmoid(-2w).
    """
    trained = METHODS["scaffold"](symmetric(0), TWO, [[0], [1]], 1, UNIT, ft_epochs=1)
    w = 0.75 - sigmoid(1)
    close(trained.server, symmetric(w))
    close(trained.state["control"][1], symmetric(sigmoid(1)))
    close(trained.personal[0], symmetric(w + sigmoid(-2 * w)))


def test_moon_contrast_by_hand() -> None:
    """z = z_glob = (1, 0), z_prev = (0, 1), T = 1: a = 1, b = 0; da/dz = 0 as z is at the maximum, db/dz = (0, 1).

    The slope is sigmoid(b - a) (db - da) = sigmoid(-1) (0, 1). With z = z_prev = (0, 1), z_glob = (1, 0):
    sigmoid(1) (-1, 0). T = 1/2: sigmoid(-2)/T (0, 1) for the first. Twice as long a z halves it.
    """
    e = np.eye(2)
    close(contrast_slope(e[:1], e[:1], e[1:], 1.0), [[0, sigmoid(-1)]])
    close(contrast_slope(e[1:], e[:1], e[1:], 1.0), [[-sigmoid(1), 0]])
    close(contrast_slope(e[:1], e[:1], e[1:], 0.5), [[0, 2 * sigmoid(-2)]])
    close(contrast_slope(2 * e[:1], e[:1], e[1:], 1.0), [[0, sigmoid(-1) / 2]])


def test_projection_by_hand() -> None:
    """P1 = (1, -1), P2 = I: x = 1 gives relu (1, 0), x = -1 gives (0, 1), and z is the same.

    Classifier (v, -v; -v, v)/2: logits of x = 1 are (v/2, -v/2), right for class 0 with sigmoid(v), and x = -1
    mirrors it. With s = sigmoid(-v): error of x = 1 is (-s, s), of x = -1 (s, -s).
    Classifier's slope: 1/2 (-s, s; s, -s), bias 0. dz = error W: x = 1: (-s v, s v), x = -1: (s v, -s v).
    P2's slope, mean of dz times r: v/2 (-s, s; s, -s), bias 0. Back through the relu only the open unit gets
    something: P1: unit 1 from x = 1: -s v/2, unit 2 from x = -1: -1 * (-s v)/2; bias -s v/2 each.
    """
    v, s = 3.0, sigmoid(-3.0)
    named = {"projection1.weight": np.array([[1.0], [-1.0]]), "projection1.bias": np.zeros(2)}
    named |= {"projection2.weight": np.eye(2), "projection2.bias": np.zeros(2)}
    named |= {"fc.weight": np.array([[v, -v], [-v, v]]) / 2, "fc.bias": np.zeros(2)}
    model = layers(named)
    close(project(model, pair().x)[1], np.eye(2))
    assert projected(model, pair()).loss(model["fc"]) == pytest.approx(np.log1p(np.exp(-v)), abs=1e-15)
    slope = gradient(model, pair())
    cross = np.array([[-s, s, 0], [s, -s, 0]]) / 2
    close(slope["fc"], cross)
    close(slope["projection2"], v * cross)
    close(slope["projection1"], np.array([[-s * v, -s * v], [s * v, -s * v]]) / 2)


def test_fedrep_by_hand() -> None:
    """All head, 2 head epochs: u = 0 -> 1/2 -> 1/2 + sigmoid(-1), whatever the base's epochs; the newcomer mirrors it.

    Own update: two more head steps; plain tuning of one epoch: one. No head: one epoch of the base, u = 1/2.
    """
    u, (clients, start) = 0.5 + sigmoid(-1), ([pair(), pair(flipped=True)], symmetric(0))
    trained = METHODS["fedrep"](start, clients, [[0]], 7, UNIT, head_epochs=2)
    assert trained.server is None
    close(trained.personal, [symmetric(u), symmetric(-u)])
    once = u + sigmoid(-2 * u)
    plain = METHODS["fedrep"](start, clients, [[0]], 1, UNIT, 1, "plain_sgd", head_epochs=2)
    close(plain.personal, [symmetric(once), symmetric(-once)])
    own = METHODS["fedrep"](start, clients, [[0]], 1, UNIT, 1, head_epochs=2)
    close(own.personal[0], symmetric(once + sigmoid(-2 * once)))
    shared = METHODS["fedrep"](start, clients, [[0]], 1, UNIT, head="none", head_epochs=2)
    close(shared.server, symmetric(0.5))
    close(shared.personal, [symmetric(0.5)] * 2)


def test_lg_fedavg_by_hand() -> None:
    """All top: round 1 by client 0 gives 1/2, round 2 by client 1 takes it to 1/2 - sigmoid(1), for both.

    Nothing shared: 1/2 and -1/2, each its own.
    """
    clients = [pair(), pair(flipped=True)]
    shared = METHODS["lg_fedavg"](symmetric(0), clients, [[0], [1]], 1, UNIT)
    close(shared.personal, [symmetric(0.5 - sigmoid(1))] * 2)
    private = METHODS["lg_fedavg"](symmetric(0), clients, [[0], [1]], 1, UNIT, shared="none")
    assert private.server is None
    close(private.personal, [symmetric(0.5), symmetric(-0.5)])


def heads_only(*embeddings: float) -> dict[str, np.ndarray]:
    """A hypernetwork of depth 0, all zero, for the model of `pair()`: theta = W e + b."""
    hyper = {"hyper/fc.weight.weight": np.zeros((2, 1)), "hyper/fc.weight.bias": np.zeros(2)}
    hyper |= {"hyper/fc.bias.weight": np.zeros((2, 1)), "hyper/fc.bias.bias": np.zeros(2)}
    return hyper | {"embedding": np.array(embeddings, dtype=float)[:, None]}


def test_pfedhn_by_hand() -> None:
    """W = b = 0, e = 1: theta = 0, one step gives 1/2, delta = (-1/2, 1/2). W and b both get it, e gets W^T delta = 0.

    Rate 1: W = b = 1/2 (times (1, -1)), u = W e + b = 1. The norm of the gradient is sqrt(4/4) = 1, so clip 1/2
    halves it: u = 1/2. Decay 1/10 takes e to 0.9: u = 0.45 + 0.5 = 0.95.
    Round 2, momentum 1/2, s = sigmoid(-2): W and b move by 1/2 * 1/2 + s to 3/4 + s, and e by
    -W^T delta = 1/2 s + 1/2 s to 1 + s: u = (3/4 + s)(1 + s) + 3/4 + s = (3/4 + s)(2 + s).
    """
    settings = {"server_lr": 1.0, "server_momentum": 0.5, "server_decay": 0.0}
    for change, by_hand in (({}, 1.0), ({"clip": 0.5}, 0.5), ({"server_decay": 0.1}, 0.95)):
        trained = METHODS["pfedhn"](heads_only(1), [pair()], [[0]], 1, UNIT, **(settings | change))
        close(trained.personal, [symmetric(by_hand)])
    trained = METHODS["pfedhn"](heads_only(1), [pair()], [[0], [0]], 1, UNIT, **settings)
    s = sigmoid(-2)
    close(trained.personal, [symmetric((0.75 + s) * (2 + s))])
    close(trained.state["embedding"], [[1 + s]])
    assert set(trained.server) == set(heads_only(1)) - {"embedding"}
    tuned = METHODS["pfedhn"](heads_only(1), [pair()], [[0]], 1, UNIT, ft_epochs=1, **settings)
    close(tuned.personal, [symmetric(1 + s)])


def test_pfedhn_mean_by_hand() -> None:
    """e = 1 and 2, opposite labels: deltas -1/2 and 1/2 cancel in b; W gets (-1/2 * 1 + 1/2 * 2)/2 = 1/4.

    Rate 1: W = -1/4, so u = -1/4 and -1/2; the sizes 2 and 4 play no part.
    """
    options = {"server_lr": 1.0, "server_decay": 0.0}
    trained = METHODS["pfedhn"](heads_only(1, 2), TWO, [[0, 1]], 1, UNIT, **options)
    close(trained.personal, [symmetric(-1 / 4), symmetric(-1 / 2)])


# --- against finite differences -----------------------------------------------------------------------------


def some_clients(seed: int = 0, features: int = 3, classes: int = 4) -> list[Client]:
    """Five clients of 4 to 8 random samples."""
    rng = np.random.default_rng(seed)
    sizes = (5, 8, 4, 7, 6)
    draws = [(rng.normal(size=(n, features)), rng.integers(classes, size=n)) for n in sizes]
    return [Client(join(x, np.ones(len(x))), y) for x, y in draws]


def some_model(seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(4, 4))


def some_projection(p: int = 5, seed: int = 2) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = {"projection1": (p, 3), "projection2": (p, p), "fc": (4, p)}
    named = {f"{layer}.weight": rng.normal(size=shape) for layer, shape in shapes.items()}
    return named | {f"{layer}.bias": rng.normal(size=shape[0]) for layer, shape in shapes.items()}


def some_hypernetwork(
    depth: int, embedding: int = 3, hidden: int = 6, clients: int = 5
) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    sizes = [embedding] + [hidden] * depth
    shapes = {f"hyper/hidden{d}": (sizes[d], sizes[d - 1]) for d in range(1, depth + 1)}
    shapes |= {"hyper/fc.weight": (12, sizes[-1]), "hyper/fc.bias": (4, sizes[-1])}
    hyper = {f"{name}.weight": rng.normal(size=shape) for name, shape in shapes.items()}
    hyper |= {f"{name}.bias": rng.normal(size=shape[0]) for name, shape in shapes.items()}
    return hyper | {"embedding": rng.normal(size=(clients, embedding))}


def test_hessian_is_the_slope_of_the_gradient() -> None:
    client, w, d = some_clients()[0], some_model(), some_model(7)
    along = (client.gradient(w + 1e-5 * d) - client.gradient(w - 1e-5 * d)) / 2e-5
    close(hessian_times(client, w, d), along, 1e-9)


def test_perfedavg_hf_descends_the_adapted_loss() -> None:
    """One step of rate 1 is minus the slope of F(w) = f(w - a grad f(w)); the first order one is not."""
    client, w = some_clients()[0], some_model()
    slope = slopes(lambda w: client.loss(w - 0.3 * client.gradient(w)), w)
    step = {
        variant: METHODS["perfedavg"](w, [client], [[0]], 1, UNIT, inner_lr=0.3, variant=variant).server - w
        for variant in ("fo", "hf")
    }
    close(step["hf"], -slope, 1e-9)
    assert np.abs(step["fo"] + slope).max() > 1e-3


def projection_loss(vector: np.ndarray, like: dict[str, np.ndarray], client: Client) -> float:
    model = unpack(vector, like)
    return projected(model, client).loss(model["fc"])


def contrast(z: np.ndarray, z_glob: np.ndarray, z_prev: np.ndarray, T: float) -> float:
    """Mean of -log(e^{a/T} / (e^{a/T} + e^{b/T})), as the paper writes it."""

    def sim(other: np.ndarray) -> np.ndarray:
        cos = np.sum(z * other, axis=1) / (np.linalg.norm(z, axis=1) * np.linalg.norm(other, axis=1))
        return np.exp(cos / T)

    return float(-np.log(sim(z_glob) / (sim(z_glob) + sim(z_prev))).mean())


def test_moon_gradients_are_the_slopes_of_the_losses() -> None:
    like, client, rng = layers(some_projection()), some_clients()[1], np.random.default_rng(4)
    slope = slopes(lambda v: projection_loss(v, like, client), pack(like))
    close(pack(gradient(like, client)), slope, 1e-9)
    z, z_glob, z_prev = rng.normal(size=(3, client.size, 5))
    slope = slopes(lambda z: client.size * contrast(z, z_glob, z_prev, 0.5), z)
    close(contrast_slope(z, z_glob, z_prev, 0.5), slope, 1e-8)


def test_moon_descends_its_loss() -> None:
    """Client 0, then 1, then 0 again: in the third round one step follows the slope of the whole loss.

    z_glob is of the model client 1 left, z_prev of the one client 0 left. Before, nothing tells mu apart: a
    client's first round has z_prev = z_glob.
    """
    start, clients, sgd = some_projection(), some_clients(), SGD(lr=0.5)

    def after(rounds: list[list[int]], **options: float) -> dict[str, np.ndarray]:
        return layers(METHODS["moon"](start, clients, rounds, 1, sgd, **options).server)

    first, second = after([[0]]), after([[0], [1]])
    close(pack(second), pack(after([[0], [1]], mu=0.0)))
    f = clients[0]
    z_glob, z_prev = project(second, f.x)[1], project(first, f.x)[1]

    def loss(vector: np.ndarray) -> float:
        z = project(unpack(vector, second), f.x)[1]
        return projection_loss(vector, second, f) + 2.0 * contrast(z, z_glob, z_prev, 0.3)

    third = after([[0], [1], [0]], mu=2.0, temperature=0.3)
    close(pack(third), pack(second) - 0.5 * slopes(loss, pack(second)), 1e-8)


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_pfedhn_gradient_is_the_slope(depth: int) -> None:
    """Of <delta, theta(phi, e)> in every parameter of the hypernetwork and in the embedding."""
    phi, delta = some_hypernetwork(depth), some_model(5)
    del phi["embedding"]
    e = np.array([0.5, -1.0, 2.0])
    x, theta = generate(phi, e)
    assert theta.shape == (4, 4)
    assert len(x) == depth + 1
    g, g_e = pull_back(phi, x, delta)
    slope = unpack(slopes(lambda v: np.sum(delta * generate(unpack(v, phi), e)[1]), pack(phi)), phi)
    assert g.keys() == phi.keys()
    for name in g:
        close(g[name], slope[name], 1e-8)
    close(g_e, slopes(lambda e: np.sum(delta * generate(phi, e)[1]), e), 1e-8)


# --- against FedAvg and Local -------------------------------------------------------------------------------

PARTIAL = [[0, 1, 3], [1, 2], [0, 2, 3]]  # client 4 never takes part
SEEN = [0, 1, 2, 3]
BUSY = SGD(lr=0.3, momentum=0.5, weight_decay=0.01)


def trained(method: str, **options: object) -> Trained:
    return METHODS[method](some_model(), some_clients(), PARTIAL, 2, BUSY, **options)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("scaffold", {"control": "off", "weights": "size"}),
        ("apfl", {"alpha": 0.0, "adaptive": False}),
        ("perfedavg", {"inner_lr": 0.0}),
        ("perfedavg", {"inner_lr": 0.0, "variant": "hf"}),
        ("moon", {"mu": 0.0}),  # a start without projection
        ("fedrep", {"head": "none"}),
        ("lg_fedavg", {}),
    ],
)
@pytest.mark.parametrize("ft_epochs", [0, 2])
def test_is_fedavg(method: str, options: dict[str, object], ft_epochs: int) -> None:
    ours, fedavg = trained(method, ft_epochs=ft_epochs, **options), trained("fedavg", ft_epochs=ft_epochs)
    close(ours.server, fedavg.server)
    close(ours.personal, fedavg.personal)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("ditto", {"lam": 0.0}),
        ("apfl", {"alpha": 1.0, "adaptive": False}),
        ("fedrep", {"head_epochs": 2}),
        ("lg_fedavg", {"shared": "none"}),
    ],
)
def test_is_local(method: str, options: dict[str, object]) -> None:
    """For the clients that took part; a newcomer of Ditto, APFL and FedRep first trains."""
    close(trained(method, **options).personal[SEEN], trained("local").personal[SEEN])


@pytest.mark.parametrize(
    ("method", "options"), [("ditto", {"lam": 0.7}), ("apfl", {}), ("apfl", {"alpha": 0.8})]
)
def test_shared_stream_is_fedavg(method: str, options: dict[str, object]) -> None:
    close(trained(method, **options).server, trained("fedavg").server)


def test_moon_without_contrast_is_fedavg_on_the_projected_network() -> None:
    """One round of two clients, the slopes by differences."""
    start, clients, sgd = some_projection(), some_clients()[:2], SGD(lr=0.5)
    like = layers(start)
    uploads = [
        sgd.descend(pack(like), lambda v, f=f: slopes(lambda v: projection_loss(v, like, f), v), 2)
        for f in clients
    ]
    mean = (5 * uploads[0] + 8 * uploads[1]) / 13
    ours = METHODS["moon"](start, clients, [[0, 1]], 2, sgd, mu=0.0)
    close(pack(layers(ours.server)), mean, 1e-8)
    close(ours.personal["fc.weight"], np.stack([ours.server["fc.weight"]] * 2))


def test_moon_client_alone_feels_no_contrast() -> None:
    """Its last model is always the one it receives."""
    start, clients = some_projection(), some_clients()[:1]
    with_it, without = (
        METHODS["moon"](start, clients, [[0]] * 3, 1, SGD(lr=0.3), mu=mu) for mu in (5.0, 0.0)
    )
    for name in start:
        close(with_it.server[name], without.server[name], 1e-12)


@pytest.mark.parametrize("weights", ["uniform", "size"])
def test_scaffold_control_is_the_mean_of_the_controls(weights: str) -> None:
    """c = mean_i c_i with the weights of the model's mean; uniform also when few take part.

    c shows in the next step of client 0 alone: w moves by -eta (grad f_0(w) + c - c_0).
    """
    start, clients, sgd = some_model(), some_clients(), SGD(lr=0.3)
    rounds = PARTIAL if weights == "uniform" else [list(range(5))] * 3
    before = METHODS["scaffold"](start, clients, rounds, 1, sgd, weights=weights)
    after = METHODS["scaffold"](start, clients, [*rounds, [0]], 1, sgd, weights=weights)
    c_i = before.state["control"]
    c = (before.server - after.server) / 0.3 - clients[0].gradient(before.server) + c_i[0]
    sizes = [client.size if weights == "size" else 1.0 for client in clients]
    close(c, np.average(c_i, axis=0, weights=sizes), 1e-13)
    close(after.state["control"][0], clients[0].gradient(before.server), 1e-13)  # option II with one step


def test_scaffold_of_equal_clients_is_fedavg() -> None:
    clients = [some_clients()[0]] * 3
    ours, fedavg = (
        METHODS[m](some_model(), clients, [[0, 1, 2]] * 3, 3, SGD(lr=0.3)) for m in ("scaffold", "fedavg")
    )
    close(ours.server, fedavg.server)


def test_pfedhn_of_one_client_in_closed_form() -> None:
    """Depth 0 is theta = W e + b. After a step s of delta = eta grad f(theta), no momentum, decay or clip:

    W' = W - s delta e^T, b' = b - s delta, e' = e - s W^T delta, so
    theta' = theta - s (1 + e.e) delta - s W W^T delta + s^2 (e . W^T delta) delta.
    """
    start, f, s = some_hypernetwork(0, clients=1), some_clients()[0], 0.05
    W = np.concatenate([start["hyper/fc.weight.weight"], start["hyper/fc.bias.weight"]])
    b = np.concatenate([start["hyper/fc.weight.bias"], start["hyper/fc.bias.bias"]])
    e = start["embedding"][0]

    def as_model(theta: np.ndarray) -> np.ndarray:
        return join(theta[:12].reshape(4, 3), theta[12:])

    slope = 0.2 * f.gradient(as_model(W @ e + b))
    delta = np.concatenate([slope[:, :-1].ravel(), slope[:, -1]])
    back = W.T @ delta
    closed = W @ e + b - s * (1 + e @ e) * delta - s * W @ back + s**2 * (e @ back) * delta
    options = {"server_lr": s, "server_momentum": 0.0, "server_decay": 0.0, "clip": 1e9}
    trained = METHODS["pfedhn"](start, [f], [[0]], 1, SGD(lr=0.2), **options)
    close(trained.personal[0], as_model(closed), 1e-13)


def test_pfedhn_free_model_is_sgd_with_the_product_of_the_rates() -> None:
    """Embeddings 0 and depth 0: theta = b, so a server step of rate s is SGD of rate s eta."""
    start, clients = some_hypernetwork(0, clients=1), some_clients()[:1]
    start["embedding"] = np.zeros((1, 3))
    for P in ("weight", "bias"):
        start[f"hyper/fc.{P}.weight"] = np.zeros_like(start[f"hyper/fc.{P}.weight"])
    options = {"server_lr": 0.5, "server_momentum": 0.0, "server_decay": 0.0}
    ours = METHODS["pfedhn"](start, clients, [[0]] * 3, 1, SGD(lr=0.2), **options)
    b = join(start["hyper/fc.weight.bias"].reshape(4, 3), start["hyper/fc.bias.bias"])
    close(ours.personal, METHODS["local"](b, clients, [[0]] * 3, 1, SGD(lr=0.1)).personal)


def test_pfedhn_moves_every_embedding_only_by_momentum_and_decay() -> None:
    """Client 1 is in round 1 only: still without either; decay shrinks it; momentum carries it on."""
    start, clients = some_hypernetwork(2), some_clients()
    options = {"server_lr": 0.1, "server_momentum": 0.0, "server_decay": 0.0}

    def of_client_1(rounds: list[list[int]], **change: float) -> np.ndarray:
        return METHODS["pfedhn"](start, clients, rounds, 1, SGD(lr=0.2), **(options | change)).state[
            "embedding"
        ][1]

    e, once = start["embedding"][1], of_client_1([[0, 1]])
    assert np.abs(once - e).max() > 1e-6
    close(of_client_1([[0, 1], [0]]), once)
    close(of_client_1([[0], [0]], server_decay=0.5), e * 0.95**2)
    close(of_client_1([[0, 1], [0]], server_momentum=0.5), e + 1.5 * (once - e))
