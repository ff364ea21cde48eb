"""Softmax regression on a projection of the pixels, the network of MOON, with its gradients by hand."""

from __future__ import annotations

import numpy as np

from .common import Array, Client, join

LAYERS = ("projection1", "projection2", "fc")  # z = P2 relu(P1 x + b1) + b2, logits = W z + b
Model = dict[str, Array]  # each layer with its bias as the last column


def layers(named: dict[str, Array]) -> Model:
    """`fc.weight` and `fc.bias`, and so on, as the layers' arrays."""
    return {layer: join(named[f"{layer}.weight"], named[f"{layer}.bias"]) for layer in LAYERS}


def named(model: Model) -> dict[str, Array]:
    """Undo `layers`."""
    ends = {"weight": np.s_[..., :-1], "bias": np.s_[..., -1]}
    return {f"{layer}.{end}": model[layer][part] for layer in LAYERS for end, part in ends.items()}


def project(model: Model, x: Array) -> tuple[Array, Array]:
    """The hidden features relu(P1 x + b1) and z, [samples, p + 1] and [samples, p]."""
    r = join(np.maximum(x @ model["projection1"].T, 0.0), np.ones(len(x)))
    return r, r @ model["projection2"].T


def projected(model: Model, client: Client) -> Client:
    """The client as the classifier sees it: z in the place of x."""
    return Client(join(project(model, client.x)[1], np.ones(client.size)), client.y)


def gradient(model: Model, f: Client, more: Array | float = 0.0) -> Model:
    """Of the mean cross-entropy; `more` is what another loss of each sample adds to its slope in z."""
    r = project(model, f.x)[0]
    top = projected(model, f)
    error = np.exp(top.log_probabilities(model["fc"]))  # P - Y
    error[np.arange(f.size), f.y] -= 1.0
    dz = error @ model["fc"][:, :-1] + more
    dr = (dz @ model["projection2"])[:, :-1] * (r[:, :-1] > 0)
    slopes = (dr.T @ f.x, dz.T @ r, error.T @ top.x)
    return {layer: slope / f.size for layer, slope in zip(LAYERS, slopes, strict=True)}
