"""FedMN's modular network, and back-propagation through its blocks and links by hand.

The parameters by name (`dense.joined` of the saved file): encoder/<layer>, block2, ..., blockL, each [blocks, outputs,
inputs + 1]. The blocks of layer L are read by one block more, the prediction, and its links are the output bits: so
every decision is a link C[l][j, k] from block k to block j of the layer above.
"""

from __future__ import annotations

import numpy as np

from . import dense
from .common import Array
from .dense import Net, with_ones

Links = list[Array]  # C of every layer, [blocks above, blocks]


def part(p: Net, kind: str) -> Net:
    """The parameters under `kind`/ by the rest of their names."""
    return {name.removeprefix(kind + "/"): array for name, array in p.items() if name.startswith(kind + "/")}


def sizes(p: Net) -> list[int]:
    """n_1, ..., n_L, and 1 for the prediction."""
    first = next(iter(part(p, "encoder").values()))
    return [len(first), *(len(array) for name, array in p.items() if name.startswith("block")), 1]


def links(v: Array, n: list[int]) -> Links:
    """The decisions, layer by layer, row by row."""
    shapes = list(zip(n[1:], n, strict=False))
    ends = np.cumsum([above * below for above, below in shapes])[:-1]
    return [c.reshape(shape) for c, shape in zip(np.split(v, ends), shapes, strict=True)]


def read(C: Array, a: Array, h: Array) -> Array:
    """Eq. 11: u_j = sum_k C_jk a_k h_k / sum_k C_jk a_k, 0 where nothing is linked; h [blocks, samples, outputs]."""
    total = (C * a).sum(axis=1)
    return np.einsum("jk,ksf->jsf", C * a / np.where(total == 0, 1, total)[:, None], h)


def read_back(C: Array, a: Array, h: Array, u: Array, du: Array) -> tuple[Array, Array]:
    """From the slope in u those in h and in C: du_j/dC_jk = a_k (h_k - u_j) / sum_k C_jk a_k."""
    total = (C * a).sum(axis=1)
    share = a / np.where(total == 0, 1, total)[:, None]
    dC = np.einsum("jsf,ksf->jk", du, h) - np.einsum("jsf,jsf->j", du, u)[:, None]
    return np.einsum("jk,jsf->ksf", C * share, du), dC * share


def forward(p: Net, x: Array, C: Links, a: Links) -> tuple[Array, tuple]:
    """The logits [samples, classes], and what the way back needs; a [l][k] = 1 where the client has block k."""
    n, encoder = sizes(p), part(p, "encoder")
    encoders = [{layer: w[j] for layer, w in encoder.items()} for j in range(n[0])]
    encoded = [dense.forward(net, x) for net in encoders]
    h, u = [np.stack([np.maximum(z, 0.0) for _, z in encoded])], []
    for i in range(1, len(n) - 1):
        u.append(with_ones(read(C[i - 1], a[i - 1], h[-1])))
        z = u[-1] @ p[f"block{i + 1}"].transpose(0, 2, 1)
        h.append(np.maximum(z, 0.0) if i < len(n) - 2 else z)  # the last layer gives logits
    logits = read(C[-1], a[-1], h[-1])
    return logits[0], (encoders, [reads for reads, _ in encoded], h, u, logits)


def backward(p: Net, C: Links, a: Links, tape: tuple, slope: Array) -> tuple[Net, Array]:
    """The gradient in encoders and blocks, and in the decisions [E], from the slope in the logits."""
    encoders, reads, h, u, logits = tape
    gradient, dC = {}, list(C)
    out, du = logits, slope[None]
    for i in range(len(h) - 1, -1, -1):
        dh, dC[i] = read_back(C[i], a[i], h[i], out, du)
        if i < len(h) - 1:
            dh = dh * (h[i] > 0)
        if i > 0:
            w, out = p[f"block{i + 1}"], u[i - 1][..., :-1]
            gradient[f"block{i + 1}"] = np.einsum("jso,jsf->jof", dh, u[i - 1])
            du = (dh @ w)[..., :-1]
    nets = [dense.backward(net, x, dz) for net, x, dz in zip(encoders, reads, dh, strict=True)]
    gradient |= {f"encoder/{layer}": np.stack([net[layer] for net in nets]) for layer in nets[0]}
    return gradient, np.concatenate([c.ravel() for c in dC])
