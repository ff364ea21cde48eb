"""What a client of FedMN does in a round, lines 6 to 13 of Algorithm 1, Wang et al. 2022."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .common import SGD, Array, Client, pack, unpack
from .dense import Net, loss_slope
from .modular import Links, backward, forward, links, sizes
from .router import decide, head_back, route, route_back, told


class Upload(NamedTuple):
    """What a client sends, `mask` True for every float of it that travelled, and what it decided."""

    p: Net
    mask: Net
    active: Array  # a_i of the blocks of layers 2 to L
    logits: Array
    bits: Array
    switched: int
    code: Array  # the client's mean code; empty without a router


def concrete(u: Array, logit: Array, tau: float) -> Array:
    """Eq. 5, with epsilon = u and logit = log(pi / (1 - pi))."""
    return 1 / (1 + np.exp(-(np.log(u) - np.log(1 - u) + logit) / tau))


def sent(p: Net, a: Links, n: list[int]) -> tuple[Array, Net]:
    """The blocks that a client has, and the mask of them, the encoders and the router."""
    active = np.concatenate(a[1:])
    mask = {name: np.ones(array.shape, dtype=bool) for name, array in p.items()}
    for i, on in enumerate(np.split(active, np.cumsum(n[1:-2])), start=2):
        mask[f"block{i}"] &= (on == 1)[:, None, None]
    return active, mask


def local(
    p: Net, f: Client, steps: int, sgd: SGD, gate: str, tau: float, u: Array, fixed: Array | None,
    joint: bool = True, router_lr: float = 1.0, router_part: str = "all", output_scale: float = 1.0,
) -> Upload:  # fmt: skip
    """Lines 6 to 13: decide, and train what is active; noise u [steps or 1, E], `fixed` bits if there is no router."""
    n = sizes(p)
    learned, code, logits = fixed is None, np.empty(0), np.zeros(u.shape[1])
    if learned:
        logits, tape = route(p, f.x, f.y, joint)
        code = tape[-1]
    bits, a, switched = decide(concrete(u[0], logits, tau) > 0.5 if learned else fixed, logits, n)
    if gate != "st":  # all travel: soft gates leave no layer empty, and a sampled one decides at every step
        a, switched = [np.ones(k) for k in n[:-1]], 0
    active, mask = sent(p, a, n)
    stays = ["router/mean", "router/spread", *(["router/x", "router/y"] if router_part == "head" else [])]
    for name in p:
        if name.startswith("router/" if router_lr == 0 else tuple(stays)):
            mask[name][...] = False
    rate = pack({name: np.full(w.shape, router_lr if "router/" in name else 1.0) for name, w in p.items()})
    travels, whole, draws = pack(mask), pack(p), iter(np.broadcast_to(u, (steps, len(bits))))

    def slope(w: Array) -> Array:
        nonlocal bits, a, switched
        everything = whole.copy()
        everything[travels] = w
        q, value = unpack(everything, p), bits
        if learned:
            pi, tape = route(q, f.x, f.y, joint)
            if router_part == "head":
                pi = told(q, code)
            v = concrete(next(draws), pi, tau)
            if gate == "sample":  # eq. 6: new decisions at every step
                bits, a, more = decide(v > 0.5, pi, n)
                switched += more
            value = v if gate == "soft" else bits
        C = links(value, n)
        y, way = forward(q, f.x, C, a)
        gradient, dv = backward(q, C, a, way, output_scale * loss_slope(output_scale * y, f.y))
        if learned:  # straight through the bits as if they were v; dv/dlogit = v (1 - v)/tau
            back = dv * v * (1 - v) / tau
            gradient |= head_back(q, code, back) if router_part == "head" else route_back(q, tape, back)
        return pack({name: gradient.get(name, np.zeros_like(array)) for name, array in p.items()})[travels]

    trained = whole.copy()
    trained[travels] = sgd.descend(whole[travels], slope, steps, rate[travels])
    return Upload(unpack(trained, p), mask, active, logits, bits, switched, code)
