"""FedMN's router: from a client's data to the blocks that it uses, and back-propagation through it by hand.

The parameters by name: router/x/<layer>, router/y, router/out [outputs, inputs + 1]; router/mean and router/spread of the
clients' codes where these are centred; no router/y where the two codes are multiplied.
"""

from __future__ import annotations

import numpy as np

from . import dense
from .common import Array
from .dense import Net, with_ones
from .modular import Links, forward, links, part, sizes


def route(p: Net, x: Array, y: Array, joint: bool = True) -> tuple[Array, tuple]:
    """logit Pi of some samples, and what the way back needs; `phi`, their mean code, is the tape's last."""
    tape, zx = dense.forward(part(p, "router/x"), x)
    classes = p["router/y"].shape[1] - 1 if "router/y" in p else (p["router/out"].shape[1] - 1) // zx.shape[1]
    onehot = with_ones(np.eye(classes)[y])
    if "router/y" in p:  # eqs. 9 and 10: relu(z / |z|) of both codes in one, or of each
        z = [zx, onehot @ p["router/y"].T]
        z = [np.hstack(z)] if joint else z
    else:  # eq. 8: x's code of length 1, times the one-hot label less 1/K
        z = [zx]
    length = [np.maximum(np.linalg.norm(part, axis=1, keepdims=True), 1e-12) for part in z]
    unit = [part / size for part, size in zip(z, length, strict=True)]
    if "router/y" in p:
        phi = np.maximum(np.hstack(unit), 0.0).mean(axis=0)
    else:
        phi = np.einsum("sd,sk->dk", unit[0], onehot[:, :-1] - 1 / classes).ravel() / len(x)
    return told(p, phi), (tape, onehot, length, unit, zx.shape[1], phi)


def told(p: Net, phi: Array) -> Array:
    """logit Pi of a mean code, from the clients' mean and in their spread where these are known."""
    if "router/mean" in p:
        phi = (phi - p["router/mean"]) / p["router/spread"]
    return p["router/out"] @ np.append(phi, 1.0)


def head_back(p: Net, phi: Array, slope: Array) -> Net:
    """The gradient in the last layer alone, from the slope in logit Pi."""
    if "router/mean" in p:
        phi = (phi - p["router/mean"]) / p["router/spread"]
    return {"router/out": np.outer(slope, np.append(phi, 1.0))}


def route_back(p: Net, tape: tuple, slope: Array) -> Net:
    """The gradient in the router from the slope in logit Pi."""
    reads, onehot, length, unit, wide, phi = tape
    dphi = (slope @ p["router/out"])[:-1] / len(onehot)  # the same for every sample
    if "router/mean" in p:
        dphi = dphi / p["router/spread"]
    if "router/y" in p:
        back = [
            d * (n > 0)
            for n, d in zip(unit, np.split(dphi, np.cumsum([n.shape[1] for n in unit])[:-1]), strict=True)
        ]
    else:
        classes = onehot.shape[1] - 1
        back = [(onehot[:, :-1] - 1 / classes) @ dphi.reshape(wide, classes).T]
    dz = np.hstack([(dn - n * np.sum(n * dn, axis=1, keepdims=True)) / size
                    for n, size, dn in zip(unit, length, back, strict=True)])  # fmt: skip
    x = dense.backward(part(p, "router/x"), reads, dz[:, :wide])
    gradient = {f"router/x/{layer}": g for layer, g in x.items()} | head_back(p, phi, slope)
    return gradient | ({"router/y": dz[:, wide:].T @ onehot} if "router/y" in p else {})


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
