"""Modular networks (FedMN): layers of blocks, and bits that say which block reads which.

Layer 1 holds n_1 encoders, layers 2 to L blocks of one linear layer each, stacked: weight [n_l, out, in], bias [n_l, out]. The E
decisions of a client are one vector: for l = 1, ..., L - 1 the links from layer l to layer l + 1, row by row as
C[j (target), k (source)], then one output bit for each of the n_L blocks of the last layer. Equation numbers are those of Wang et
al. (2022); eq. 11 sums over source blocks and takes their outputs. Everything is a function of one client's tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pfl_lite.models.multi_branch import stack_branches
from pfl_lite.models.network import Network, Params
from pfl_lite.models.train_mode import dropout, fold


def decisions(layers: Sequence[int]) -> int:
    """E, the number of decisions for n_1, ..., n_L blocks: sum_l n_l n_{l+1} + n_L."""
    return sum(n * m for n, m in zip(layers, [*layers[1:], 1], strict=True))


def split_decisions(values: Tensor, layers: Sequence[int]) -> tuple[list[Tensor], Tensor]:
    """Links C [n_{l+1}, n_l] of l = 1, ..., L - 1 and the output bits [n_L], from one vector [E]."""
    shapes = list(zip(layers[1:], layers[:-1], strict=True))
    *links, outputs = values.split([*(m * n for m, n in shapes), layers[-1]])
    return [link.reshape(shape) for link, shape in zip(links, shapes, strict=True)], outputs


def activity(bits: Tensor, layers: Sequence[int]) -> list[Tensor]:
    """a [n_l] of every layer, 1 or 0: encoders are active, and so is a block with a link from an active one."""
    active = [bits.new_ones(layers[0])]
    for link in split_decisions(bits, layers)[0]:
        active.append((link @ active[-1] > 0).to(bits))
    return active


def held(bits: Tensor, layers: Sequence[int]) -> list[Tensor]:
    """Which blocks a client has, 1 or 0 [n_l] of every layer: the active ones, of the last layer those whose output bit is on."""
    *below, last = activity(bits, layers)
    return [*below, last * split_decisions(bits, layers)[1]]


def in_use(bits: Tensor, layers: Sequence[int]) -> Tensor:
    """Which blocks of layers 2 to L travel, 1 or 0 [n_2 + ... + n_L]: those that a client has."""
    return torch.cat(held(bits, layers)[1:])


def on_path(bits: Tensor, layers: Sequence[int]) -> Tensor:
    """Bits [E] of which those are off that change nothing: wires from a block that is not active, or to one that none hears."""
    links, outputs = split_decisions(bits, layers)
    active = activity(bits, layers)
    parts = [outputs * active[-1]]
    heard = parts[0]
    for link, source in zip(reversed(links), reversed(active[:-1]), strict=True):
        live = link * source * (heard > 0).to(bits)[:, None]
        parts.insert(0, live.flatten())
        heard = live.sum(0)
    return torch.cat(parts)


def routing_report(
    logits: Tensor, layers: Sequence[int], groups: Sequence[int] | None = None
) -> dict[str, float]:
    """How far a router tells clients apart, from their logit Pi [N, E], such as a run's `watch` has them.

    `spread`: standard deviation between clients of a logit, mean over the bits; `routes`: how many different networks the bits
    1[Pi > 1/2] make; `active`: share of the blocks of layers 2 to L that a client has; with known `groups` [N], `ari`: how far
    routes and groups agree, the adjusted Rand index (1: the same partition, about 0: by chance).
    """
    bits = [safety_path((row > 0).to(row), row, layers)[0] for row in logits]
    kinds = [tuple(on_path(row, layers).int().tolist()) for row in bits]
    report = {
        "spread": logits.std(0, correction=0).mean().item(),
        "routes": float(len(set(kinds))),
        "active": torch.stack([in_use(row, layers) for row in bits]).mean().item(),
    }
    if groups is not None:
        from sklearn.metrics import adjusted_rand_score

        report["ari"] = float(adjusted_rand_score(list(groups), [kinds.index(kind) for kind in kinds]))
    return report


def _with_best(bits: Tensor, scores: Tensor, eligible: Tensor, needed: Tensor) -> Tensor:
    """Bits in which the eligible one of the largest score (the first of equals) is 1, if it is needed."""
    best = torch.where(eligible > 0, scores, -torch.inf).flatten().argmax()
    chosen = torch.arange(bits.numel(), device=bits.device).reshape(bits.shape) == best
    return torch.where(needed & chosen, 1.0, bits)


def safety_path(bits: Tensor, scores: Tensor, layers: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Bits [E] under which something reaches the output, and how many had to be switched on for it (int64 []).

    From layer 2 on: where no block of a layer is active, its link of the largest score from an active block is switched on; where
    no active block of the last layer has its output bit, that of the largest score among the active ones.
    """
    links, outputs = split_decisions(bits, layers)
    link_scores, output_scores = split_decisions(scores, layers)
    active, safe = bits.new_ones(layers[0]), []
    switches = torch.zeros((), dtype=torch.int64, device=bits.device)
    for link, score in zip(links, link_scores, strict=True):
        empty = (link @ active).sum() == 0
        link = _with_best(link, score, active.expand_as(link), empty)  # [n_l, n_{l-1}]
        active, switches = (link @ active > 0).to(bits), switches + empty
        safe.append(link.flatten())
    empty = (outputs * active).sum() == 0
    return torch.cat([*safe, _with_best(outputs, output_scores, active, empty)]), switches + empty


def _shares(gates: Tensor) -> Tensor:
    """Gates [..., n] divided by their sum; 0 where they are all 0."""
    total = gates.sum(-1, keepdim=True)
    return gates / torch.where(total == 0, 1.0, total)


def through_blocks(
    blocks: Mapping[str, Tensor],
    h: Tensor,
    gates: Tensor,
    active: Sequence[Tensor],
    *,
    rate: float = 0.0,
    key: Tensor | None = None,
) -> Tensor:
    """Logits [b, K] of encodings h [n_1, b, d] (eq. 11).

    Args:
        blocks: `blockL/weight` and `blockL/bias` of layers 2 to L.
        gates: [E], 0 or 1 or between them.
        active: [n_l] of every layer; what would be read from a block that is not active counts as 0, and so does its slope.
        rate: share of outputs of hidden blocks that dropout removes.
        key: decides which; None: no dropout.
    """
    layers = [len(a) for a in active]
    links, outputs = split_decisions(gates, layers)
    for number, (link, source) in enumerate(zip(links, active[:-1], strict=True), 2):
        u = torch.einsum("jk,kbi->jbi", _shares(link * source), h)  # [n_l, b, in]
        h = torch.einsum("jbi,joi->jbo", u, blocks[f"block{number}/weight"])
        h = h + blocks[f"block{number}/bias"][:, None]  # [n_l, b, out]
        if number < len(layers):
            h = h.relu()
            if rate and key is not None:  # images first, so that padding does not shift the mask
                h = dropout(h.transpose(0, 1), fold(key, number), rate).transpose(0, 1)
    return torch.einsum("j,jbk->bk", _shares(outputs * active[-1]), h)


@dataclass(frozen=True)
class ModularNetwork:
    """Encoders of one architecture and the blocks that read them, as a function of parameters, gates and active blocks.

    Args:
        network: the encoders' architecture; its last layer gets `encoder_width` outputs.
        layers: n_1, ..., n_L.
        encoder_width: outputs of an encoder.
        width: outputs of a hidden block.
        classes: K, outputs of a block of the last layer.
        rate: dropout after hidden blocks, in training.
        std: standard deviation of the blocks' first weights; 0: sqrt(2 / inputs), which keeps the scale from layer to layer.
        scale: factor on the logits.
    """

    network: Network
    layers: tuple[int, ...]
    encoder_width: int
    width: int
    classes: int
    rate: float
    std: float
    scale: float = 1.0

    def init(self, seed: int) -> Params:
        """`encoder/...` [n_1, ...], `blockL/weight` [n_l, out, in] and `/bias` [n_l, out]; blocks by torch's global generator."""
        encoder = self.network.resized(self.encoder_width)
        stacked = stack_branches([encoder.init(seed, copy=j) for j in range(self.layers[0])])
        start = {f"encoder/{name}": tensor for name, tensor in stacked.items()}
        like, inputs = next(iter(start.values())), self.encoder_width
        for layer, number in enumerate(self.layers[1:], 2):
            outputs = self.classes if layer == len(self.layers) else self.width
            std = self.std or (2 / inputs) ** 0.5
            start[f"block{layer}/weight"] = (std * torch.randn(number, outputs, inputs)).to(like)
            start[f"block{layer}/bias"] = like.new_zeros(number, outputs)
            inputs = outputs
        return start

    def __call__(
        self,
        model: Params,
        x: Tensor,
        gates: Tensor,
        active: Sequence[Tensor],
        key: Tensor | None = None,
        real: Tensor | None = None,
    ) -> Tensor:
        """Logits [b, K] of images x [b, C, H, W] under gates [E]; in training mode if there is a key for its masks."""
        encoder = self.network.resized(self.encoder_width)
        h = []
        for j in range(self.layers[0]):  # every encoder has its own dropout masks
            mode = encoder if key is None else encoder.training(fold(key, j), real)
            own = {name: model[f"encoder/{name}"][j] for layer in encoder.layers.values() for name in layer}
            h.append(mode(own, x).relu())  # [b, encoder_width]
        key = None if key is None else fold(key, self.layers[0] + 1)
        return self.scale * through_blocks(model, torch.stack(h), gates, active, rate=self.rate, key=key)
