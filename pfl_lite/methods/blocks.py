"""Blocks of which each client uses some (FedMN): what travels, what a client leaves alone, and how the server averages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from pfl_lite.methods.weighted_mean import weighted_mean
from pfl_lite.models import Params


def by_layer(used: Tensor, layers: Sequence[int]) -> dict[str, Tensor]:
    """The columns [..., n_l] of a tensor [..., n_2 + ... + n_L], by layer: `block2`, ..., `blockL`."""
    return {f"block{layer}": part for layer, part in enumerate(used.split(list(layers[1:]), -1), 2)}


def of_block(rows: Mapping[str, Tensor], name: str) -> Tensor | None:
    """What `by_layer` says about the parameter `blockL/...`; None for a parameter that is of no block."""
    return rows.get(name.partition("/")[0])


def like(row: Tensor, tensor: Tensor) -> Tensor:
    """Numbers of blocks [n_l] in the shape of their stacked parameters [n_l, ...]: [n_l, 1, ...]."""
    return row.to(tensor).reshape(-1, *[1] * (tensor.dim() - 1))


def where_used(used: Tensor, new: Mapping[str, Tensor], old: Params, layers: Sequence[int]) -> Params:
    """The new parameters, with the old ones of blocks that are not in use [n_2 + ... + n_L] (weight decay would move them)."""
    rows = by_layer(used, layers)
    merged: Params = {}
    for name, before in old.items():
        row = of_block(rows, name)
        merged[name] = new[name] if row is None else torch.where(like(row, before) > 0, new[name], before)
    return merged


def floats_in_use(used: Tensor, message: Params, layers: Sequence[int]) -> int | Tensor:
    """Floats of a message of which only the blocks in use [n_2 + ... + n_L] travel."""
    rows, total = by_layer(used, layers), torch.zeros((), dtype=torch.int64, device=used.device)
    for name, tensor in message.items():
        row = of_block(rows, name)
        total = total + (tensor.numel() if row is None else row.long().sum() * tensor[0].numel())
    return total


def block_means(rule: str, server: Params, uploads: Params, sizes: Tensor, layers: Sequence[int]) -> Params:
    """The server's new parameters: everything else averaged over all clients, every block over its users.

    Args:
        rule: `normalized`: by the sizes of its users, and an unused block stays; `literal`: divided by every client's sizes, so
            that a block shrinks by the share of its users; `delta`: the changes are averaged so, and nothing shrinks; `code`: no
            sizes, for encoders and router neither, and an unused block becomes 0.
        server: `blockL/...` are [n_l, ...].
        uploads: [S, ...], and `active` [S, n_2 + ... + n_L].
        sizes: training images [S].
        layers: n_1, ..., n_L.
    """
    sizes = torch.ones_like(sizes) if rule == "code" else sizes
    rows = by_layer(uploads["active"], layers)
    new: Params = {}
    for name, old in server.items():
        used, mine = of_block(rows, name), {name: uploads[name]}  # [S, n_l], [S, n_l, ...]
        if used is None:
            new |= weighted_mean(mine, sizes, server)
            continue
        weights = sizes[:, None] * used
        before = old if rule in ("normalized", "delta") else torch.zeros_like(old)
        mean = weighted_mean(mine, weights, {name: before})[name]
        share = like(weights.double().sum(0) / sizes.sum(), old)  # of all images, those of the block's users
        if rule == "literal":
            mean = share * mean
        elif rule == "delta":
            mean = old + share * (mean - old)
        new[name] = mean
    return new
