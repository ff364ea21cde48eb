"""FedMN, Algorithm 1 of Wang et al., Personalized federated learning via heterogeneous modular networks, 2022."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .common import SGD, Array, Client, Rounds, Trained, pack, unpack, weighted_mean
from .dense import Learner, Net
from .fedavg import fedavg
from .fedmn_client import Upload, local
from .modular import sizes
from .router import decide, route
from .seeds import generator


def average(p: Net, uploads: list[Upload], size: Array, rule: str) -> Net:
    """Section II-E: encoders and router by size; a block from the clients where it is active, in four readings."""
    new = {}
    size = np.ones(len(size)) if rule == "code" else size
    for name, before in p.items():
        theta, a = np.stack([u.p[name] for u in uploads]), np.stack([u.mask[name] for u in uploads])
        if not name.startswith("block"):
            new[name] = weighted_mean(theta, size)
            continue
        weight = np.einsum("m,m...->m...", size, a)  # n_m a_m
        total = weight.sum(axis=0)
        mean = (weight * theta).sum(axis=0) / np.where(total == 0, 1, total)
        new[name] = {
            "normalized": np.where(total > 0, mean, before),
            "literal": mean * total / size.sum(),  # the paper's: sum_m n_m/n a_m theta_m
            "delta": before + (mean - before) * total / size.sum(),  # sum_m n_m/n a_m (theta_m - theta)
            "code": mean,  # without sizes, and 0 where nobody is active
        }[rule]
    return new


def warmed(p: Net, plain: Net, plant: str = "body", noise: float = 0.0) -> Net:
    """The plain network's layers below the last in all encoders and in the router's; `function`: all else hands on, too."""
    *below, top = plain
    new = {f"encoder/{layer}": np.stack([plain[layer]] * sizes(p)[0]) for layer in below}
    new |= {name: plain[layer] for layer in below if (name := f"router/x/{layer}") in p}
    blocks = [name for name in p if name.startswith("block")]
    for name in (f"encoder/{top}", *blocks) if plant == "function" else ():
        hands_on = np.zeros(p[name].shape[1:])
        if name == blocks[-1]:
            hands_on[:, : plain[top].shape[1] - 1] = plain[top][:, :-1]
            hands_on[:, -1] = plain[top][:, -1]
        else:
            np.fill_diagonal(hands_on[:, :-1], 1.0)
        new[name] = hands_on + noise * p[name]
    return p | new


def fedmn(
    start: Net, clients: Sequence[Client], rounds: Rounds, epochs: int, sgd: SGD, ft_epochs: int = 0,
    ft_mode: str = "own_update", seed: int = 0, gate: str = "st", aggregation: str = "normalized",
    schedule: str = "parallel", infer: str = "threshold", routing: str = "learned",
    tau_start: float = 1.0, tau_end: float = 0.1, pretrain: int = 0, plain: Net | None = None,
    normalize: str = "joint", centre: bool = False, router_lr: float = 1.0, router_part: str = "all",
    pretrain_lr: float = 1.0, plant: str = "function", plant_noise: float = 0.1, output_scale: float = 1.0,
) -> Trained:  # fmt: skip
    """A network of blocks for all, of which each client uses, trains and sends what a router picks from its data."""
    p, n, N = start, sizes(start), len(clients)
    E = sum(above * below for above, below in zip(n[1:], n, strict=False))
    fixed: list[Array | None] = [None if routing == "learned" else np.ones(E, dtype=bool)] * N
    if routing == "random":
        fixed = [generator(seed, "fixed routes", i).random(E) > 0.5 for i in range(N)]
    last, safety, first = dict[int, Upload](), np.zeros(N), pretrain + 1
    down, up = [0] * len(rounds), [0] * len(rounds)
    how = {
        "joint": normalize == "joint",
        "router_lr": router_lr,
        "router_part": router_part,
        "output_scale": output_scale,
    }

    def tau(r: int) -> float:  # tau_start falls to tau_end by the same factor every round, and stays there
        t, T = r - first, len(rounds) - pretrain
        return tau_start * (tau_end / tau_start) ** (min(t, T - 1) / max(1, T - 1))

    def noise(r: int, i: int, steps: int) -> Array:  # once a round, or at every step
        return generator(seed, "gates", r, i).random((steps if gate == "sample" else 1, E))

    if pretrain:  # FedAvg of the plain network
        learners = [Learner(client, plain) for client in clients]
        before = sgd._replace(lr=sgd.lr * pretrain_lr)
        start = unpack(fedavg(pack(plain), learners, rounds[:pretrain], epochs, before).server, plain)
        p = warmed(p, start, plant, plant_noise)
        up[:pretrain] = down[:pretrain] = [len(sampled) * pack(plain).size for sampled in rounds[:pretrain]]
    for r, sampled in enumerate(rounds[pretrain:], start=first):
        uploads: list[Upload] = []
        for i in sampled:
            origin = p
            if schedule == "sequential" and uploads:  # line 9 by the letter: theta_{m-1}
                origin = uploads[-1].p  # what it did not use is as those before it left it
            last[i] = local(
                origin, clients[i], epochs, sgd, gate, tau(r), noise(r, i, epochs), fixed[i], **how
            )
            uploads.append(last[i])
            safety[i] += last[i].switched
        p = average(p, uploads, np.array([clients[i].size for i in sampled], dtype=float), aggregation)
        up[r - 1] = sum(int(pack(upload.mask).sum()) + centre * upload.code.size for upload in uploads)
        # what a client leaves as it is comes down all the same, but for blocks that it has not got
        down[r - 1] = sum(
            sum(int(m.sum()) if name.startswith("block") else m.size for name, m in upload.mask.items())
            for upload in uploads
        )
        if centre and fixed[0] is None:
            codes = np.stack([upload.code for upload in uploads])
            spread = np.sqrt(np.mean((codes - codes.mean(axis=0)) ** 2))
            p = p | {
                "router/mean": codes.mean(axis=0),
                "router/spread": spread if spread > 0 else p["router/spread"],
            }

    def scored(i: int) -> Net:  # the server's model under decisions without noise, or those of the last round
        f = clients[i]

        def quiet(model: Net) -> Array:  # 1[Pi > 1/2]
            pi = route(model, f.x, f.y, normalize == "joint")[0] if fixed[i] is None else np.zeros(E)
            return decide(pi > 0 if fixed[i] is None else fixed[i], pi, n)[0]

        bits = last[i].bits if infer == "last_sample" and i in last else quiet(p)
        if ft_epochs == 0:
            return p | {"bits": bits}
        if ft_mode == "own_update":  # one more round, of which nothing is sent
            r = len(rounds) + 1
            done = local(p, f, ft_epochs, sgd, gate, tau(r), noise(r, i, ft_epochs), fixed[i], **how)
            return done.p | {"bits": done.bits if infer == "last_sample" else quiet(done.p)}
        blocks = {name: array for name, array in p.items() if not name.startswith("router/")}
        tuned = local(blocks, f, ft_epochs, sgd, "st", 1.0, np.empty((1, E)), bits, output_scale=output_scale)
        return p | tuned.p | {"bits": bits}

    models = [scored(i) for i in range(N)]
    state = {"safety": safety, "floats": np.array(down), "floats_up": np.array(up)}
    for name in ("logits", "bits", "active"):  # 0 for who was never there
        blank = np.zeros(sum(n[1:-1]) if name == "active" else E)
        state[name] = np.stack([getattr(last[i], name) if i in last else blank for i in range(N)])
    return Trained(p, {name: np.stack([model[name] for model in models]) for name in models[0]}, state)
