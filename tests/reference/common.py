"""What every method here needs: softmax regression by hand, one SGD, one weighted mean.

A model is one array w of shape [classes, features + 1]: the weights, and the bias as the last column.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

Array = np.ndarray
Rounds = Sequence[Sequence[int]]  # the participants of every round


def log_softmax(logits: Array) -> Array:
    """log(e^{z_k} / sum_c e^{z_c}) over the last axis."""
    logits = logits - logits.max(axis=-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


class Client(NamedTuple):
    """One client's data: x [samples, features + 1] with 1 as the last column, class numbers y [samples]."""

    x: Array
    y: Array
    validation: Client | None = None  # images that never train; FedFomo compares models on them

    @property
    def size(self) -> int:
        """n_i."""
        return len(self.y)

    def log_probabilities(self, w: Array) -> Array:
        """log p(class | x) of every sample, [samples, classes]."""
        return log_softmax(self.x @ w.T)

    def loss(self, w: Array) -> float:
        """f_i(w) = -1/n_i sum_s log p(y_s | x_s), the mean cross-entropy."""
        return float(-self.log_probabilities(w)[np.arange(self.size), self.y].mean())

    def gradient(self, w: Array) -> Array:
        """The gradient of f_i: 1/n_i (P - Y)^T X; P the probabilities, Y the labels as one-hot rows."""
        error = np.exp(self.log_probabilities(w))
        error[np.arange(self.size), self.y] -= 1.0
        return error.T @ self.x / self.size


class SGD(NamedTuple):
    """The settings of the local steps on a model's weights."""

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0

    def descend(
        self, w: Array, gradient: Callable[[Array], Array], steps: int, rate: Array | float = 1.0
    ) -> Array:
        """Take `steps` full-batch steps from w; the momentum starts at zero in every call; `rate` multiplies lr."""
        velocity = np.zeros_like(w)
        for _ in range(steps):
            velocity = self.momentum * velocity + gradient(w) + self.weight_decay * w
            w = w - self.lr * rate * velocity
        return w


class Trained(NamedTuple):
    """What a method leaves: the server's model, the clients' [clients, ...], and its own state by name (pFedMB's alpha)."""

    server: Array | dict[str, Array] | None
    personal: Array | dict[str, Array]
    state: dict[str, Array] = {}  # noqa: RUF012 (a named tuple, never written to)
    mixture: Array | None = None  # FedEM: in what shares the probabilities of a client's models are mixed


def weighted_mean(models: Sequence[Array], weights: Sequence[float]) -> Array:
    """sum_i a_i w_i / sum_i a_i."""
    return np.einsum("i,i...->...", np.asarray(weights), np.stack(models)) / np.sum(weights)


def join(weight: Array, bias: Array) -> Array:
    """[..., classes, features] and [..., classes] as one array [..., classes, features + 1]."""
    return np.concatenate([weight, bias[..., None]], axis=-1)


def importance(clients: Sequence[Client], members: Sequence[int], weights: str) -> list[float]:
    """What a mean over these clients weighs them by: n_i (`size`) or 1 (`uniform`)."""
    return [clients[i].size if weights == "size" else 1.0 for i in members]


def pack(model: dict[str, Array]) -> Array:
    """All the arrays of a model with several as one vector, so that SGD and norms are over all of them."""
    return np.concatenate([array.ravel() for array in model.values()])


def unpack(vector: Array, like: dict[str, Array]) -> dict[str, Array]:
    """Undo `pack`: the names and shapes of `like`, the numbers of the vector."""
    ends = np.cumsum([array.size for array in like.values()])[:-1]
    parts = np.split(vector, ends)
    return {name: part.reshape(like[name].shape) for name, part in zip(like, parts, strict=True)}
