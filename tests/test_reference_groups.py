"""The NumPy references that group clients or tune after FedAvg, against numbers worked out by hand.

The clients `pair()` and the models (u, -u) are those of `test_reference.py`: one step of rate 1 takes u to
u + sigmoid(-2u), on flipped labels to u - sigmoid(2u), and the distance of two models is sqrt(2) |u - u'|.
"""

from __future__ import annotations

import numpy as np
import pytest
from reference import METHODS
from reference.common import SGD, Client, Trained, join
from reference.fedem import mixture_loss
from reference.linkage import bipartition
from test_reference import close, pair, sigmoid, symmetric

ONE = SGD(lr=1.0)


def seen_by(client: Client, validation: Client) -> Client:
    return client._replace(validation=validation)


def double() -> Client:
    """`pair()` with x = 2 and -2: from u = 0 one step of rate 1 goes to 2 sigmoid(0) = 1, twice as far."""
    return Client(np.array([[2.0, 1.0], [-2.0, 1.0]]), np.array([0, 1]))


def slopes(models: np.ndarray) -> np.ndarray:
    """The u of symmetric models; fails on others."""
    np.testing.assert_allclose(models, np.stack([symmetric(u) for u in models[:, 0, 0]]), atol=1e-14)
    return models[:, 0, 0]


def test_fedavg_weights_by_hand() -> None:
    """u = 1/2 with n = 2 and -1/2 with n = 4: (2/2 - 4/2) / 6 = -1/6 by size, (1/2 - 1/2) / 2 = 0 uniformly."""
    clients = [pair(), pair(flipped=True, copies=2)]
    for weights, u in (("size", -1 / 6), ("uniform", 0.0)):
        trained = METHODS["fedavg"](symmetric(0), clients, [[0, 1]], 1, ONE, weights=weights)
        close(trained.server, symmetric(u))


def test_tuning_by_hand() -> None:
    """FedAvg's -1/6, then one epoch by default: -1/6 + sigmoid(1/3) and -1/6 - sigmoid(-1/3); none without a head."""
    clients = [pair(), pair(flipped=True, copies=2)]
    tuned = [-1 / 6 + sigmoid(1 / 3), -1 / 6 - sigmoid(-1 / 3)]
    for method, options, by_hand in (
        ("pfl_ft", {}, tuned),
        ("pfl_ft", {"ft_epochs": 0}, [-1 / 6] * 2),
        ("pfl_fb", {}, tuned),
        ("pfl_fb", {"head": "last"}, tuned),
        ("pfl_fb", {"head": "none", "ft_epochs": 9}, [-1 / 6] * 2),
    ):
        trained = METHODS[method](symmetric(0), clients, [[0, 1]], 1, ONE, **options)
        close(trained.server, symmetric(-1 / 6))
        close(slopes(trained.personal), by_hand)


def test_pfedme_by_hand() -> None:
    """lam 1, K = 2, inner_lr 1/2, lr 1/2; theta' = theta + 1/2 (sigmoid(-2 theta) - (theta - w)).

    Epoch 1, w = 0: theta = 0 -> 1/4 -> 1/4 + (sigmoid(-1/2) - 1/4)/2 = 0.313770, w = theta/2 = 0.156885.
    Epoch 2 starts at that theta: 0.409362, then 0.436141; w = 0.156885 + (0.436141 - 0.156885)/2 = 0.296513.
    beta 3/2: the server goes to 3/2 of it, 0.444769. Client 1 finds its theta from there, flipped.
    """
    options = {"lam": 1.0, "inner_steps": 2, "inner_lr": 0.5, "beta": 1.5}
    clients = [pair(), pair(flipped=True)]
    trained = METHODS["pfedme"](symmetric(0), clients, [[0]], 2, SGD(lr=0.5), **options)

    def inner(theta: float, w: float, sign: int) -> float:
        for _ in range(2):
            theta += 0.5 * (sign * sigmoid(-2 * sign * theta) - (theta - w))
        return theta

    a = inner(0.0, 0.0, 1)
    assert a == pytest.approx(1 / 8 + sigmoid(-0.5) / 2, abs=1e-15)
    b = inner(a, a / 2, 1)
    assert b == pytest.approx(0.436141, abs=1e-6)
    w = 1.5 * (a / 2 + (b - a / 2) / 2)
    assert w == pytest.approx(0.444769, abs=1e-6)
    close(trained.server, symmetric(w))
    c = inner(w, w, -1)
    d = inner(c, w + (c - w) / 2, -1)
    close(slopes(trained.personal), [b, d])


def test_ifca_by_hand() -> None:
    """Models u = 1 and -1: client 0 takes the first, to 1 + sigmoid(-2), client 1 (flipped) the other.

    Client 2 (flipped, n = 4) joins client 1 and the mean of two equal models is that model. In round 2 only
    client 0 trains, and the second model stays. Client 3 never trains and is scored with the first.
    """
    start = np.stack([symmetric(1), symmetric(-1)])
    clients = [pair(), pair(flipped=True), pair(flipped=True, copies=2), pair()]
    trained = METHODS["ifca"](start, clients, [[0, 1, 2], [0]], 1, ONE)
    a = 1 + sigmoid(-2)
    by_hand = [a + sigmoid(-2 * a), -a]
    close(slopes(trained.server), by_hand)
    assert trained.state["cluster"].tolist() == [0, 1, 1, -1]
    close(slopes(trained.personal), np.array(by_hand)[[0, 1, 1, 0]])
    assert start[0, 0, 0] == 1, "the start is not overwritten"


def test_ifca_scores_with_a_new_choice_and_breaks_ties_by_the_first() -> None:
    """Two equal models: both clients take the first, n = 2 to 1/2 and n = 4 flipped to -1/2, mean -1/6.

    Its loss is then above log 2 for client 0, which is scored with the second model, still at 0.
    """
    clients = [pair(), pair(flipped=True, copies=2)]
    trained = METHODS["ifca"](np.zeros((2, 2, 2)), clients, [[0, 1]], 1, ONE)
    assert trained.state["cluster"].tolist() == [0, 0]
    close(slopes(trained.personal), [0.0, -1 / 6])


def test_complete_linkage_by_hand() -> None:
    """Directions at 0, 30, 65 and 105 degrees: 0 and 30 join first.

    The group's farthest member is 65 degrees from the third, which is only 40 from the fourth: two pairs. The
    nearest member (single linkage) would be 35 from it and leave the fourth alone.
    """
    angles = {7: 0, 2: 65, 5: 30, 3: 105}
    updates = {
        i: np.array([np.cos(a), np.sin(a)]) * (i + 1)
        for i, a in ((i, np.radians(a)) for i, a in angles.items())
    }
    assert bipartition(updates) == [[2, 3], [5, 7]]


def test_cfl_by_hand() -> None:
    """Updates u = 1/2 and -1/2 of two kinds of clients: mean 0 < eps1, norms sqrt(1/2) = 0.7071 > eps2.

    The halves move by their own mean, at once; later m_c is the common norm of a cell, sqrt(2) sigmoid(-1) =
    0.380 > eps1. With `warmup` 1 there is no cut in round 1, and the same one in round 2.
    """
    clients = [pair(flipped=i % 2 == 1) for i in range(6)]
    for rounds, warmup, first in ((1, 0, 0), (2, 0, 1), (2, 1, 0), (1, 1, None)):
        options = {"eps1": 0.3, "eps2": 0.7, "warmup": warmup}
        trained = METHODS["cfl"](symmetric(0), clients, [range(6)] * rounds, 1, ONE, **options)
        if first is None:
            assert trained.state["cluster"].tolist() == [0] * 6
            close(slopes(trained.server), [0.0])
            continue
        assert trained.state["cluster"].tolist() == [0, 1, 0, 1, 0, 1]
        u = 0.5 + first * sigmoid(-1)
        close(slopes(trained.server), [u, -u])
        close(slopes(trained.personal), [u, -u] * 3)


def test_cfl_criteria_by_hand() -> None:
    """n = 2, 4 (flipped), 2: the mean update is 0 by size, 1/6 in u uniformly, of norm sqrt(2)/6 = 0.2357.

    The largest norm is 0.7071, the uniform ratio m/M = 1/3. Two clients are never cut.
    """
    clients = [pair(), pair(flipped=True, copies=2), pair()]
    for options, cut in (
        ({"eps1": 0.23, "eps2": 0.70}, True),
        ({"eps1": 0.23, "eps2": 0.71}, False),
        ({"eps1": 0.23, "eps2": 0.70, "weights": "uniform"}, False),
        ({"eps1": 0.24, "eps2": 0.70, "weights": "uniform"}, True),
        ({"gamma": 0.34, "weights": "uniform"}, True),
        ({"gamma": 0.33, "weights": "uniform"}, False),
        ({"gamma": 0.33, "eps1": 0.0}, True),
        ({}, False),
    ):
        trained = METHODS["cfl"](symmetric(0), clients, [[0, 1, 2]], 1, ONE, warmup=0, **options)
        assert trained.state["cluster"].tolist() == ([0, 1, 0] if cut else [0, 0, 0]), options
    two = METHODS["cfl"](symmetric(0), clients[:2], [[0, 1]], 1, ONE, warmup=0, eps1=9, eps2=0)
    assert two.state["cluster"].tolist() == [0, 0]


def test_cfl_weights_of_the_cell_by_hand() -> None:
    """No cut: the cell moves to 0 by size and to 1/6 uniformly, as the updates are 1/2, -1/2 (n = 4) and 1/2."""
    clients = [pair(), pair(flipped=True, copies=2), pair()]
    for weights, u in (("size", 0.0), ("uniform", 1 / 6)):
        trained = METHODS["cfl"](symmetric(0), clients, [[0, 1, 2]], 1, ONE, weights=weights)
        close(slopes(trained.server), [u])


def test_cfl_absent_clients_by_hand() -> None:
    """Round 1 is client 3's (flipped): u = -1/2. Round 2 cuts 0, 2 (+ sigmoid(1)) from 1 (- sigmoid(-1)).

    Client 3's last update went down like client 1's: it follows. Client 4 (flipped) never took part and goes to
    the half with two participants, but is scored with the model that fits it. Client 3 stays with 1's model.
    Round 3 is client 3's again: only its cell moves.
    """
    clients = [pair(flipped=i in (1, 3, 4)) for i in range(5)]
    options = {"eps1": 9.0, "eps2": 0.0, "warmup": 1}
    trained = METHODS["cfl"](symmetric(0), clients, [[3], [0, 1, 2]], 1, ONE, **options)
    up, down = -0.5 + sigmoid(1), -0.5 - sigmoid(-1)
    assert trained.state["cluster"].tolist() == [0, 1, 0, 1, 0]
    close(slopes(trained.server), [up, down])
    close(slopes(trained.personal), [up, down, up, down, down])
    again = METHODS["cfl"](symmetric(0), clients, [[3], [0, 1, 2], [3]], 1, ONE, **options)
    close(slopes(again.server), [up, down - sigmoid(2 * down)])


def test_fedfomo_by_hand() -> None:
    """Round 1: nothing to mix, u = 1/2, and 1 for `double()`. Round 2, client 0: baseline 0, loss log 2.

    Own model: (log 2 - log(1 + e^-1)) / (sqrt(2)/2) = 0.537239; the other: (log 2 - log(1 + e^-2)) / sqrt(2) =
    0.400377. Weights 0.572984 and 0.427016, u = 0.572984/2 + 0.427016 = 0.713508, then one step.
    """
    clients = [seen_by(pair(), pair()), seen_by(double(), pair(flipped=True))]
    trained = METHODS["fedfomo"](symmetric(0), clients, [[0, 1]] * 2, 1, ONE)
    own = (np.log(2) - np.log1p(np.exp(-1))) / np.sqrt(0.5)
    other = (np.log(2) - np.log1p(np.exp(-2))) / np.sqrt(2)
    w = own / (own + other)
    assert w == pytest.approx(0.572984, abs=1e-6)
    u = w / 2 + (1 - w)
    # client 1 is validated on flipped labels, both models are worse than its baseline: it goes on from its own
    close(trained.state["weights"], [[w, 1 - w], [0, 0]])
    close(slopes(trained.personal), [u + sigmoid(-2 * u), 1 + 2 * sigmoid(-4)])


def test_fedfomo_uses_validation_data_and_the_models_of_the_last_round() -> None:
    """Each is validated on the other's labels and moves all the way to the other's model, -1/2 and 1/2.

    Client 2 never trains; validated on `pair()` labels it moves from 0 to client 0's 1/2 + 0 if client 0 was in the
    last round, and stays at 0 if only client 1 was.
    """
    clients = [
        seen_by(pair(), pair(flipped=True)),
        seen_by(pair(flipped=True), pair()),
        seen_by(pair(), pair()),
    ]
    trained = METHODS["fedfomo"](symmetric(0), clients, [[0, 1]] * 2, 1, ONE)
    close(trained.state["weights"], [[0, 1, 0], [1, 0, 0], [0, 0, 0]])
    up = -0.5 + sigmoid(1)
    close(slopes(trained.personal), [up, -up, up])
    for rounds, arrival in (([[0, 1]], 0.5), ([[0], [1]], 0.0)):
        trained = METHODS["fedfomo"](symmetric(0), clients, rounds, 1, ONE)
        close(slopes(trained.personal)[2], arrival)
        close(trained.state["weights"][2], [0, 0, 0])


def test_fedfomo_candidates_by_hand() -> None:
    """Two models each: client 2 first gets the lowest id, 0, whose model is bad for it and has weight 0.

    That made A[2, 0] negative, so that it gets client 1 in round 3, and that one's model helps.
    """
    clients = [seen_by(c, c) for c in (pair(flipped=True), double(), pair())]
    two = METHODS["fedfomo"](symmetric(0), clients, [[0, 1, 2]] * 2, 1, ONE, models=2, epsilon=0.0)
    close(two.state["weights"][2], [0, 0, 1])
    three = METHODS["fedfomo"](symmetric(0), clients, [[0, 1, 2]] * 3, 1, ONE, models=2, epsilon=0.0)
    assert three.state["weights"][2, 0] == 0 < three.state["weights"][2, 1] < 1


def test_fedamp_by_hand() -> None:
    """Round 1 leaves u = 1/2 and -1/2 (no pull at u_i = w_i), so d^2 = 2 = sigma: one pair, whose weight is 1/4.

    Round 2: u_0 = 3/4 * 1/2 - 1/4 * 1/2 = 1/4. From the cloud: 1/4 + sigmoid(-1/2). From its own, lam 1: 1/2 +
    sigmoid(-1) - (1/2 - 1/4). Client 2 never uploads: it keeps 0 and its row is its own.
    """
    clients = [pair(), pair(flipped=True), pair()]
    for start, u in (("cloud", 0.25 + sigmoid(-0.5)), ("own", 0.25 + sigmoid(-1))):
        options = {"self_weight": 0.75, "start": start, "lam": 1.0}
        trained = METHODS["fedamp"](symmetric(0), clients, [[0, 1]] * 2, 1, ONE, **options)
        close(trained.state["attention"], [[0.75, 0.25, 0], [0.25, 0.75, 0], [0, 0, 1]])
        close(slopes(trained.personal), [u, -u, 0])


def test_fedamp_pull_by_hand() -> None:
    """Two epochs from the cloud w^0 = 0, lam 1: 0 -> 1/2 -> 1/2 + sigmoid(-1) - 1/2 = sigmoid(-1)."""
    trained = METHODS["fedamp"](symmetric(0), [pair()], [[0]], 2, ONE, lam=1.0)
    close(slopes(trained.personal), [sigmoid(-1)])
    close(trained.state["attention"], [[1]])


def test_fedamp_attention_by_hand() -> None:
    """u = 1/2, -1/2 and 1: d^2 = 2 (0 and 1), 1/2 (0 and 2), 9/2 (1 and 2), median 2.

    exp(-d^2/2) = e^-1, e^-1/4, e^-9/4; row 0 has the largest sum and gives away all of 1 - self_weight = 1/2. With
    sigma 1 the same with e^-2, e^-1/2, e^-9/2; with sigma 1e-4 everything vanishes and each keeps to itself.
    """
    clients = [pair(), pair(flipped=True), double()]
    for sigma, by in ((0.0, 2.0), (1.0, 1.0)):
        trained = METHODS["fedamp"](symmetric(0), clients, [[0, 1, 2]], 1, ONE, sigma=sigma)
        a, b, c = np.exp(-np.array([2, 0.5, 4.5]) / by) * 0.5 / np.exp(-np.array([2, 0.5]) / by).sum()
        close(trained.state["attention"], [[0.5, a, b], [a, 1 - a - c, c], [b, c, 1 - b - c]])
    trained = METHODS["fedamp"](symmetric(0), clients, [[0, 1, 2]], 1, ONE, sigma=1e-4)
    close(trained.state["attention"], np.eye(3))
    same = METHODS["fedamp"](symmetric(0), [pair()] * 2, [[0, 1]], 1, ONE)  # all models coincide
    close(same.state["attention"], np.eye(2))


def test_fedem_by_hand() -> None:
    """Components u = 1 and 0 are right with probability sigmoid(2) = 0.880797 and 1/2, on both samples.

    q = pi = (0.637890, 0.362110); the components move by q_m times their gradient, to 1 + q_1 sigmoid(-2) and
    q_2 / 2. Round 2 has pi as the prior: the odds are pi_1 sigmoid(2 u_1) : pi_2 sigmoid(2 u_2).
    Client 1 (flipped) never trains: it is scored with one E-step from (1/2, 1/2), the state keeps (1/2, 1/2).
    """
    start, clients = np.stack([symmetric(1), symmetric(0)]), [pair(), pair(flipped=True)]
    once = METHODS["fedem"](start, clients, [[0]], 1, ONE)
    q = sigmoid(2) / (sigmoid(2) + 0.5)
    assert q == pytest.approx(0.637890, abs=1e-6)
    u = np.array([1 + q * sigmoid(-2), (1 - q) / 2])
    close(slopes(once.server), u)
    close(once.personal, np.stack([once.server] * 2))
    close(once.state["mixture"], [[q, 1 - q], [0.5, 0.5]])
    wrong = np.array([sigmoid(-2 * v) for v in u])
    close(once.mixture, [[q, 1 - q], wrong / wrong.sum()])
    right = 1 - wrong
    close(mixture_loss(clients[0], once.server, once.mixture[0]), -np.log(q * right[0] + (1 - q) * right[1]))
    close(mixture_loss(clients[1], once.server, once.mixture[1]), -np.log(wrong @ wrong / wrong.sum()))
    twice = METHODS["fedem"](start, clients, [[0], [0]], 1, ONE)
    odds = np.array([q, 1 - q]) * right
    close(twice.state["mixture"][0], odds / odds.sum())
    close(slopes(twice.server), u + odds / odds.sum() * wrong)


def test_fedem_responsibilities_belong_to_samples() -> None:
    """pi is the mean over samples of q: (0.880797, 0.5) and, on the other label, (0.119203, 0.5).

    x = 1 of class 0 and of class 1: q_1 = 0.637890 and 0.119203/0.619203 = 0.192510, pi_1 = 0.415200. Component u = 1
    gets the gradient 1/2 (q_11 (p - 1) + q_21 p) with p = sigmoid(2) in class 0, in the weight and the bias alike.
    """
    start = np.stack([symmetric(1), symmetric(0)])
    client = Client(np.ones((2, 2)), np.array([0, 1]))
    trained = METHODS["fedem"](start, [client], [[0]], 1, ONE)
    p = sigmoid(2)
    q = np.array([p / (p + 0.5), (1 - p) / (1.5 - p)])
    close(trained.state["mixture"], [[q.mean(), 1 - q.mean()]])
    first, second = (q[0] * (p - 1) + q[1] * p) / 2, ((1 - q[0]) * -0.5 + (1 - q[1]) * 0.5) / 2
    close(trained.server[0], [[1 - first, -first], [first - 1, first]])
    close(trained.server[1], [[-second, -second], [second, second]])


# --- what the methods must reduce to, on unequal clients with random data ---------------------------------------

ROUNDS = [[0, 1, 2, 3, 4, 5], [0, 2, 3], [1, 2, 3, 5]]
HEAVY = SGD(lr=0.3, momentum=0.5, weight_decay=0.05)


def crowd() -> tuple[np.ndarray, list[Client]]:
    """A model of 3 classes and 4 features, and six clients of 5 to 10 samples with validation data; 4 stops early."""
    rng = np.random.default_rng(3)

    def client(n: int, validation: Client | None = None) -> Client:
        return Client(join(rng.normal(size=(n, 4)), np.ones(n)), rng.integers(3, size=n), validation)

    return rng.normal(size=(3, 5)), [client(5 + i, client(4)) for i in range(6)]


def run(method: str, start: np.ndarray, sgd: SGD = HEAVY, /, **options: object) -> Trained:
    return METHODS[method](start, crowd()[1], ROUNDS, 2, sgd, **options)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("pfl_ft", {"ft_epochs": 0}),
        ("pfl_fb", {"head": "none"}),
        ("ifca", {}),
        ("fedem", {}),
        ("cfl", {"eps1": 0.0, "eps2": 0.0, "warmup": 0}),
        ("cfl", {"eps1": 9.0, "eps2": 0.0, "warmup": 3}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_reduces_to_fedavg(method: str, options: dict[str, object]) -> None:
    start = crowd()[0]
    expected = run("fedavg", start)
    trained = run(method, start[None] if method in ("ifca", "fedem") else start, **options)
    close(np.reshape(trained.server, start.shape), expected.server)
    close(trained.personal.reshape(expected.personal.shape), expected.personal)


def test_cfl_uniform_weights_are_fedavgs() -> None:
    start = crowd()[0]
    close(run("cfl", start, weights="uniform").server[0], run("fedavg", start, weights="uniform").server)


@pytest.mark.parametrize("lam", [2.0, 15.0])
def test_pfedme_of_one_inner_step_is_fedavg_of_the_inner_rate(lam: float) -> None:
    """eta lam = 1 puts w_i on theta_i, so that K = 1 is a plain step of rate inner_lr from w_i."""
    start = crowd()[0]
    trained = run("pfedme", start, SGD(lr=1 / lam), lam=lam, inner_steps=1, inner_lr=0.3)
    close(trained.server, run("fedavg", start, SGD(lr=0.3)).server)


def test_pfedme_stands_still() -> None:
    """beta = 0 or eta lam = 0 leave the server's model alone; many inner steps find the gradient's zero."""
    start, clients = crowd()
    plain = SGD(lr=0.05)
    close(run("pfedme", start, plain, beta=0.0).server, start)
    close(run("pfedme", start, plain, lam=0.0).server, start)
    options = {"lam": 5.0, "inner_steps": 2000, "inner_lr": 0.05, "beta": 0.0}
    theta = METHODS["pfedme"](start, clients, [range(6)], 1, plain, **options).personal
    for client, near in zip(clients, theta, strict=True):
        np.testing.assert_allclose(client.gradient(near) + 5.0 * (near - start), 0.0, atol=1e-10)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("fedfomo", {"models": 1, "epsilon": 0.0}),
        ("fedamp", {"lam": 0.0, "start": "own"}),
        ("fedamp", {"sigma": 1e-9, "lam": 0.0}),
    ],
    ids=["fedfomo", "fedamp-own", "fedamp-alone"],
)
def test_reduces_to_local(method: str, options: dict[str, object]) -> None:
    start = crowd()[0]
    expected = run("local", start, ft_epochs=2).personal
    close(run(method, start, ft_epochs=2, **options).personal, expected)


def test_fedfomo_weights_are_a_share_or_nothing() -> None:
    trained = run("fedfomo", crowd()[0], models=6)
    weights = trained.state["weights"]
    assert (weights >= 0).all() and weights.any()
    sums = weights.sum(axis=1)
    np.testing.assert_allclose(sums[sums > 0], 1.0)


def test_fedamp_attention_rows() -> None:
    """Rows of sum 1, none below 0, symmetric off the diagonal; a wide sigma and self_weight 1/N give 1/N everywhere."""
    start = crowd()[0]
    xi = run("fedamp", start, self_weight=0.3).state["attention"]
    np.testing.assert_allclose(xi.sum(axis=1), 1.0)
    np.testing.assert_allclose(xi, xi.T)
    assert (xi >= 0).all() and np.diag(xi).min() == pytest.approx(0.3)
    wide = run("fedamp", start, sigma=1e9, self_weight=1 / 6).state["attention"]
    np.testing.assert_allclose(wide, 1 / 6, atol=1e-8)


@pytest.mark.parametrize("method", ["ifca", "fedem"])
def test_relabelling_the_initial_models_permutes_the_result(method: str) -> None:
    start = np.random.default_rng(5).normal(size=(3, 3, 5))
    order = [2, 0, 1]
    one, other = run(method, start), run(method, start[order])
    close(other.server, one.server[order])
    if method == "fedem":
        close(other.state["mixture"], one.state["mixture"][:, order])
        close(one.state["mixture"].sum(axis=1), 1.0)
    else:
        close(other.personal, one.personal)
        assert np.argsort(order)[one.state["cluster"]].tolist() == other.state["cluster"].tolist()


@pytest.mark.parametrize("sampled", [[0, 1, 2, 3, 4, 5], [0, 2, 3, 5]], ids=["all", "some"])
def test_cfl_cells_stay_a_partition(sampled: list[int]) -> None:
    """Cut whenever possible: after every round each client is in one cell, numbered by the cells' first members."""
    start, clients = crowd()
    before = 1
    for rounds in range(1, 5):
        options = {"eps1": 99.0, "eps2": 0.0, "warmup": 0}
        trained = METHODS["cfl"](start, clients, [sampled] * rounds, 2, HEAVY, **options)
        cluster = trained.state["cluster"].tolist()
        assert list(dict.fromkeys(cluster)) == list(range(len(trained.server)))
        assert len(trained.server) >= before
        before = len(trained.server)
        for cell, members in ((n, [i for i in sampled if cluster[i] == n]) for n in range(before)):
            assert rounds < 4 or 1 <= len(members) <= 2, cell
