"""PFL-MoE, PFL-MF and PFL-MFE, Algorithms 1 and 2 of Guo et al., PFL-MoE: personalized federated learning based on
mixture of experts, 2021.

The networks here are dense layers alone: with head `dense` the extractor is empty, and PFL-MF is PFL-MoE.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from .common import SGD, Array, Client, Rounds, Trained, log_softmax, pack, unpack
from .dense import Learner, Net, forward, loss_slope, with_ones
from .fedavg import fedavg
from .seeds import generator

ALWAYS = {"global": 1000.0, "personal": -1000.0, "equal": 0.0}  # a bias whose sigmoid is 1, 0 or 1/2


def split(net: Net, head: str) -> tuple[Net, Net]:
    """The extractor M_E and the classifier M_C, which begins at `dense` (the first layer), `last` or a layer's name."""
    names = list(net)
    cut = {"dense": 0, "none": 0, "last": len(names) - 1}.get(head)
    cut = names.index(head) if cut is None else cut
    return {name: net[name] for name in names[:cut]}, {name: net[name] for name in names[cut:]}


def activations(base: Net, x: Array) -> Array:
    """a = M_E(theta_E; x), eq. 13, as the classifier reads it: the pixels if the extractor is empty."""
    return with_ones(np.maximum(forward(base, x)[1], 0.0)) if base else x


def mixed(g: Array, shared: Array, own: Array, mix: str) -> Array:
    """y~ = g M(theta; x) + (1 - g) M(theta_i; x), eqs. 9 and 15: of logits; or the log of mixed probabilities."""
    g = np.asarray(g)[..., None]
    if mix == "logits":
        return g * shared + (1 - g) * own
    return np.log(g * np.exp(log_softmax(shared)) + (1 - g) * np.exp(log_softmax(own)))


def gate_of(w: Array, x: Array) -> Array:
    """g = sigmoid(G(w_i; x)) of every sample, eqs. 8 and 16: the share of the global expert."""
    return np.exp(-np.logaddexp(0.0, -x @ w[0]))


def gate_slope(w: Array, x: Array, y: Array, shared: Array, own: Array, mix: str) -> Array:
    """The gradient in w_i of p_i, eq. 7: the mean of dL/dg g (1 - g) x."""
    g = gate_of(w, x)
    if mix == "logits":
        dg = np.sum(loss_slope(mixed(g, shared, own, mix), y) * (shared - own), axis=1)
    else:  # L = -log(g p + (1 - g) p_i)
        p, p_i = (np.exp(log_softmax(logits))[np.arange(len(y)), y] for logits in (shared, own))
        dg = (p_i - p) / (g * p + (1 - g) * p_i) / len(y)
    return (dg * g * (1 - g))[None] @ x


def sgd_steps(w: Array, slopes: Sequence[Callable[[Array], Array]], lr: float, decay: float) -> Array:
    """Eq. 10, once for every slope."""
    for slope in slopes:
        w = w - lr * (slope(w) + decay * w)
    return w


def adam_steps(w: Array, slopes: Sequence[Callable[[Array], Array]], lr: float, decay: float) -> Array:
    """Algorithm 1 of Kingma and Ba 2015 with beta 0.9 and 0.999, epsilon 1e-8; decay is part of the gradient."""
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t, slope in enumerate(slopes, start=1):
        g = slope(w) + decay * w
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        w = w - lr * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    return w


def pfl_moe(
    start: Net, clients: Sequence[Client], rounds: Rounds, epochs: int, sgd: SGD, ft_epochs: int = 1, seed: int = 0,
    head: str = "dense", reads: str = "pixels", mix: str = "logits", schedule: str = "interleaved",
    gate: str = "learned", gate_optimizer: str = "sgd", gate_lr: float = 0.001, gate_decay: float = 0.0,
    ft_sgd: SGD | None = None,
) -> Trained:  # fmt: skip
    """FedAvg's model and a tuned copy of it (or of its head), mixed by a gate that the rest of the data trains."""
    net = {name: array for name, array in start.items() if name != "gate"}
    theta = fedavg(pack(net), [Learner(client, net) for client in clients], rounds, epochs, sgd).server
    base, classifier = split(unpack(theta, net), head)
    experts, gates = [], []
    for i, f in enumerate(clients):
        a, y = activations(base, f.x), f.y
        order = generator(seed, "parts", i).permutation(f.size)
        per, rest = order[f.size // 4 :], order[: f.size // 4]  # line 3: D_per and D_gate
        # Lines 6 to 9, eqs. 6 and 11: theta_i, or theta_Ci, after 0, 1, ..., E epochs
        learner = Learner(Client(a[per], y[per]), classifier)
        descend = partial((ft_sgd or sgd).descend, pack(classifier), learner.gradient)
        path = [unpack(descend(0 if head == "none" else e), classifier) for e in range(ft_epochs + 1)]
        # Lines 11 to 15: the gate's epochs, each with the expert of that epoch or, sequentially, the last one
        met = path[1:] if schedule == "interleaved" else path[-1:] * ft_epochs
        x, shared = (a if reads == "features" else f.x)[rest], forward(classifier, a[rest])[1]
        own = [forward(expert, a[rest])[1] for expert in met]
        slopes = [partial(gate_slope, x=x, y=y[rest], shared=shared, own=logits, mix=mix) for logits in own]
        steps = adam_steps if gate_optimizer == "adam" else sgd_steps
        w = np.zeros_like(start["gate"])
        w[0, -1] = ALWAYS.get(
            gate, ALWAYS["personal"]
        )  # fixed; without D_gate the local expert is all there is
        if gate == "learned" and rest.size:
            w = steps(start["gate"], slopes, gate_lr, gate_decay)
        experts.append(base | path[-1])
        gates.append(w)
    personal = {f"expert/{name}": np.stack([expert[name] for expert in experts]) for name in net}
    return Trained(unpack(theta, net), personal | {"gate": np.stack(gates)})


pfl_mf = pfl_moe  # eq. 15 with the head's own default
pfl_mfe = partial(pfl_moe, reads="features")  # eq. 16
