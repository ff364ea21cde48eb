"""FedMN's router: from a client's data to the blocks that it uses, and back-propagation through it by hand.

The parameters by name: router/x/<layer>, router/y, router/out [outputs, inputs + 1].
"""

from __future__ import annotations

import numpy as np

from . import dense
from .common import Array
from .dense import Net, with_ones
from .modular import Links, forward, links, part, sizes


def route(p: Net, x: Array, y: Array) -> tuple[Array, tuple]:
    """logit Pi, eqs. 9 and 10: the mean of h([phi_x, phi_y]); phi = relu(z / |z|) of x and of the one-hot label."""
    tape, zx = dense.forward(part(p, "router/x"), x)
    onehot = with_ones(np.eye(p["router/y"].shape[1] - 1)[y])
    z = zx, onehot @ p["router/y"].T
    length = [np.maximum(np.linalg.norm(part, axis=1, keepdims=True), 1e-12) for part in z]
    unit = [part / size for part, size in zip(z, length, strict=True)]
    phi = with_ones(np.maximum(np.hstack(unit), 0.0)).mean(axis=0)
    return p["router/out"] @ phi, (tape, onehot, length, unit, phi)


def route_back(p: Net, tape: tuple, slope: Array) -> Net:
    """The gradient in the router from the slope in logit Pi."""
    reads, onehot, length, unit, phi = tape
    dphi = (slope @ p["router/out"])[:-1] / len(onehot)  # the same for every sample
    dz = []
    for n, size, d in zip(unit, length, np.split(dphi, [unit[0].shape[1]]), strict=True):
        dn = d * (n > 0)
        dz.append((dn - n * np.sum(n * dn, axis=1, keepdims=True)) / size)
    x = dense.backward(part(p, "router/x"), reads, dz[0])
    gradient = {f"router/x/{layer}": g for layer, g in x.items()}
    return gradient | {"router/y": dz[1].T @ onehot, "router/out": np.outer(slope, phi)}


def decide(on: Array, logit: Array, n: list[int]) -> tuple[Array, Links, int]:
    """The decisions with the safety path, the blocks that a client has, and how many links the safety path switched on."""
    bits = on.astype(float)
    a, switched = [np.ones(n[0])], 0  # a_j = 1 where some C_jk a_k = 1; encoders always
    for C, pi in zip(links(bits, n), links(logit, n), strict=True):  # C is a view of the bits
        if not (C * a[-1]).any():  # the layer would be empty: its likeliest link from an active block
            C.flat[np.argmax(np.where(a[-1] > 0, pi, -np.inf))] = 1.0
            switched += 1
        a.append((C * a[-1]).max(axis=1))
    a[-2] = a[-2] * bits[-n[-2] :]  # a block of layer L that nobody reads does not come
    return bits, a[:-1], switched


def predict(p: Net, bits: Array, x: Array) -> Array:
    """The logits of images x [samples, features + 1] under these decisions."""
    n = sizes(p)
    bits, a, _ = decide(bits, np.zeros(len(bits)), n)
    return forward(p, x, links(bits, n), a)[0]
