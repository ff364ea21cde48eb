"""The one weighted mean that every aggregation goes through."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from pfl_lite.errors import InputError


def weighted_mean(
    stacked: Mapping[str, Tensor], weights: Tensor | Mapping[str, Tensor], previous: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """sum_i a_i x_i / sum_i a_i over the first axis; where all weights are zero, the previous value stays.

    A row without a weight is left out, even where it is not finite.

    Args:
        stacked: tensors [S, ...], one row a client.
        weights: a_i >= 0: one tensor [S] for all, or one a name. A weight tensor [S, B] weighs the second axis too
            (each branch by itself).
        previous: tensors [...] that answer for entries for which no client has a weight.

    Returns:
        One tensor [...] a name. Weights are taken in float64 and divided by their maximum first, so that tiny weights stay exact.

    Raises:
        InputError: the clients sent a name that `previous` lacks, or tensors of another shape.
    """
    if strange := stacked.keys() - previous.keys():
        raise InputError(
            f"the clients sent '{min(strange)}', which the server does not keep: send the server's names, or answer `aggregate`"
        )
    mean = {}
    for name, x in stacked.items():  # x [S, ...]
        a = (weights if isinstance(weights, Tensor) else weights[name]).double()  # [S] or [S, B]
        a = a / a.amax(0).clamp_min(torch.finfo(a.dtype).tiny)
        total = a.sum(0)  # [] or [B]
        share = (a / torch.where(total > 0, total, 1.0)).to(x.dtype)
        share = share.reshape(share.shape + (1,) * (x.dim() - share.dim()))  # [S, 1, ...] or [S, B, 1, ...]
        anyone = (total > 0).reshape(total.shape + (1,) * (x.dim() - 1 - total.dim()))
        mixed = torch.where(share > 0, share * x, 0.0).sum(0)  # 0 times a number that is not finite is none
        if mixed.shape != previous[name].shape:
            raise InputError(
                f"the clients sent '{name}' as {list(mixed.shape)}, which the server keeps as {list(previous[name].shape)}"
            )
        mean[name] = torch.where(anyone, mixed, previous[name])
    return mean
