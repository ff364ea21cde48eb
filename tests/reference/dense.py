"""A network of dense layers with ReLU between them, and back-propagation through it by hand."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .common import Array, Client, join, log_softmax, pack, unpack

Net = dict[str, Array]  # its layers in order, each [outputs, inputs + 1] with the bias as the last column


def joined(named: dict[str, Array]) -> Net:
    """`fc1.weight` and `fc1.bias` as `fc1`; `block2/weight` and `block2/bias` as `block2`."""
    layers = [name.removesuffix("weight") for name in named if name.endswith("weight")]
    return {layer[:-1]: join(named[layer + "weight"], named[layer + "bias"]) for layer in layers}


def with_ones(x: Array) -> Array:
    """x [..., features] and a feature that is always 1, whose weight is the bias."""
    return join(x, np.ones(x.shape[:-1]))


def forward(net: Net, x: Array) -> tuple[list[Array], Array]:
    """What every layer reads, and what the last one says; x [samples, features + 1]."""
    reads, z = [], x
    for w in net.values():
        reads.append(with_ones(np.maximum(z, 0.0)) if reads else x)
        z = reads[-1] @ w.T
    return reads, z


def backward(net: Net, reads: list[Array], dz: Array) -> Net:
    """The gradient, from the loss's slope dz in what the last layer says."""
    gradient = {}
    for (name, w), x in zip(reversed(net.items()), reversed(reads), strict=True):
        gradient[name] = dz.T @ x
        dz = (dz @ w)[:, :-1] * (x[:, :-1] > 0)
    return {name: gradient[name] for name in net}


def loss_slope(logits: Array, y: Array) -> Array:
    """Of the mean cross-entropy in the logits: (P - Y)/n."""
    return (np.exp(log_softmax(logits)) - np.eye(logits.shape[1])[y]) / len(y)


class Learner(NamedTuple):
    """A client and the layers it trains, so that `SGD.descend` and `fedavg` see one vector (`pack`)."""

    data: Client
    net: Net  # the names and shapes

    @property
    def size(self) -> int:
        """n_i."""
        return self.data.size

    def loss(self, vector: Array) -> float:
        """The mean cross-entropy."""
        logits = forward(unpack(vector, self.net), self.data.x)[1]
        return float(-log_softmax(logits)[np.arange(self.size), self.data.y].mean())

    def gradient(self, vector: Array) -> Array:
        """Of the mean cross-entropy."""
        net = unpack(vector, self.net)
        reads, logits = forward(net, self.data.x)
        return pack(backward(net, reads, loss_slope(logits, self.data.y)))
