"""MOON, Algorithm 1 of Li et al., Model-contrastive federated learning, 2021."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .common import SGD, Array, Client, Rounds, Trained, pack, unpack, weighted_mean
from .fedavg import fedavg
from .projection import LAYERS, gradient, layers, named, project


def cosine(z: Array, other: Array) -> tuple[Array, Array]:
    """cos(z, o) of every sample, and its slope in z: o / (|z| |o|) - cos z / |z|^2."""
    size = np.linalg.norm(z, axis=1, keepdims=True)
    lengths = size * np.linalg.norm(other, axis=1, keepdims=True)
    cos = np.sum(z * other, axis=1, keepdims=True) / lengths
    return cos, other / lengths - cos * z / size**2


def contrast_slope(z: Array, z_glob: Array, z_prev: Array, T: float) -> Array:
    """Slope in z of l_con = -log(e^{a/T} / (e^{a/T} + e^{b/T})), with a = cos(z, z_glob), b = cos(z, z_prev)."""
    (a, da), (b, db) = cosine(z, z_glob), cosine(z, z_prev)
    push = 1.0 / (1.0 + np.exp((a - b) / T)) / T  # l_con = log(1 + e^{(b - a)/T}): dl/db = -dl/da
    return push * (db - da)


def moon(
    start: Array | dict[str, Array], clients: Sequence[Client], rounds: Rounds, epochs: int, sgd: SGD,
    ft_epochs: int = 0, mu: float = 5.0, temperature: float = 0.5,
) -> Trained:  # fmt: skip
    """FedAvg whose clients keep z near the received model's and away from that of their own last model."""
    if not isinstance(start, dict):  # no projection: z is the pixels, in every model, and l_con is log 2
        return fedavg(start, clients, rounds, epochs, sgd, ft_epochs)
    shape = layers(start)
    w_t, last = pack(shape), dict[int, Array]()

    def z(w: Array, client: Client) -> Array:
        return project(unpack(w, shape), client.x)[1]

    for sampled in rounds:
        for i in sampled:
            f = clients[i]
            others = z(w_t, f), z(last.get(i, w_t), f)  # z_glob and z_prev; at first both from w^t

            def slope(w: Array, f: Client = f, others: tuple[Array, Array] = others) -> Array:
                pull = mu * contrast_slope(z(w, f), *others, temperature)
                return pack(gradient(unpack(w, shape), f, pull))

            last[i] = sgd.descend(w_t, slope, epochs)
        w_t = weighted_mean([last[i] for i in sampled], [clients[i].size for i in sampled])
    plain = [lambda w, f=f: pack(gradient(unpack(w, shape), f)) for f in clients]
    tuned = [unpack(sgd.descend(w_t, slope, ft_epochs), shape) for slope in plain]

    stacked = {layer: np.stack([model[layer] for model in tuned]) for layer in LAYERS}
    return Trained(named(unpack(w_t, shape)), named(stacked))
