"""pFedHN, Algorithm 1 of Shamsian et al., Personalized federated learning using hypernetworks, 2021."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .common import SGD, Array, Client, Rounds, Trained, join, pack, unpack

Hyper = dict[str, Array]  # phi: W_d, b_d of the hidden layers; W_P, b_P of every parameter P of the model


def generate(phi: Hyper, e: Array) -> tuple[list[Array], Array]:
    """h(e; phi): the input x of every layer, x = relu(W_d x + b_d), and theta with theta_P = W_P x + b_P."""
    x = [e]
    while (name := f"hyper/hidden{len(x)}") + ".weight" in phi:
        x.append(np.maximum(phi[f"{name}.weight"] @ x[-1] + phi[f"{name}.bias"], 0.0))
    theta = [phi[f"hyper/fc.{P}.weight"] @ x[-1] + phi[f"hyper/fc.{P}.bias"] for P in ("weight", "bias")]
    return x, join(theta[0].reshape(len(theta[1]), -1), theta[1])


def pull_back(phi: Hyper, x: list[Array], delta: Array) -> tuple[Hyper, Array]:
    """(d theta / d phi)^T delta and (d theta / d e)^T delta."""
    g, dx = {}, np.zeros_like(x[-1])
    for P, part in (("weight", delta[:, :-1].ravel()), ("bias", delta[:, -1])):
        g[f"hyper/fc.{P}.weight"], g[f"hyper/fc.{P}.bias"] = np.outer(part, x[-1]), part
        dx = dx + phi[f"hyper/fc.{P}.weight"].T @ part
    for d in range(len(x) - 1, 0, -1):
        dx = dx * (x[d] > 0)
        g[f"hyper/hidden{d}.weight"], g[f"hyper/hidden{d}.bias"] = np.outer(dx, x[d - 1]), dx
        dx = phi[f"hyper/hidden{d}.weight"].T @ dx
    return g, dx


def pfedhn(
    start: dict[str, Array], clients: Sequence[Client], rounds: Rounds, epochs: int, sgd: SGD, ft_epochs: int = 0,
    server_lr: float = 0.01, server_momentum: float = 0.9, server_decay: float = 0.001, clip: float = 50.0,
) -> Trained:  # fmt: skip
    """The server's network makes each client's model from the client's embedding, and learns from its steps."""
    phi, velocity = start, np.zeros_like(pack(start))  # the embeddings e_i are among them
    for sampled in rounds:
        total = {name: np.zeros_like(array) for name, array in phi.items()}
        for i in sampled:
            x, theta = generate(phi, phi["embedding"][i])
            delta = theta - sgd.descend(theta, clients[i].gradient, epochs)
            g, g_e = pull_back(phi, x, delta)
            for name, value in g.items():
                total[name] += value / len(sampled)
            total["embedding"][i] += g_e / len(sampled)
        step = pack(total)
        step = step * (clip / max(clip, np.linalg.norm(step)))
        velocity = server_momentum * velocity + step + server_decay * pack(phi)
        phi = unpack(pack(phi) - server_lr * velocity, phi)
    models = [generate(phi, e)[1] for e in phi["embedding"]]
    tuned = [sgd.descend(w, client.gradient, ft_epochs) for w, client in zip(models, clients, strict=True)]
    hyper = {name: array for name, array in phi.items() if name != "embedding"}
    return Trained(hyper, np.stack(tuned), {"embedding": phi["embedding"]})
