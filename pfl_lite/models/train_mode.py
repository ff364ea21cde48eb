"""Networks in training mode: dropout and batch norm as functions, equal for one client and for many at once.

torch's own layers draw from a global generator and write into buffers. Here a dropout mask is a hash of the mini-batch's key, the
layer and the element, and running statistics are entries of the parameters: their "gradient" is (running value - statistic of
the batch), so that a step of rate 0.1 along it is what torch's batch norm does.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from pfl_lite.errors import InputError
from pfl_lite.models.mixing import mix

STATISTICS = ("running_mean", "running_var")
STATISTICS_RATE = 0.1  # torch's "momentum" of batch norm
_LOW = {shift: (1 << (64 - shift)) - 1 for shift in (27, 30, 31)}


def is_statistic(name: str) -> bool:
    """Whether a parameter is a running mean or variance: averaged and sent like the others, but not descended."""
    return name.endswith(STATISTICS)


def _mixed(z: Tensor) -> Tensor:
    """The last steps of the SplitMix64 generator on int64 numbers (sums and products wrap; shifts are made logical)."""
    z = (z ^ ((z >> 30) & _LOW[30])) * -4658895280553007687
    z = (z ^ ((z >> 27) & _LOW[27])) * -7723592293110705685
    return z ^ ((z >> 31) & _LOW[31])


def fold(key: Tensor, number: int | Tensor) -> Tensor:
    """Another key for each number, from one key []; int64."""
    return _mixed((_mixed(key) + number + 1) * -7046029254386353131)


def keep_mask(key: Tensor, rate: float, shape: Sequence[int]) -> Tensor:
    """Which elements dropout keeps: bool [shape], each True with probability 1 - rate, a function of key and place alone."""
    place = torch.arange(math.prod(shape), device=key.device)
    return ((fold(key, place) & ((1 << 53) - 1)) >= int(rate * (1 << 53))).reshape(shape)


def dropout(x: Tensor, key: Tensor, rate: float) -> Tensor:
    """x [b, ...] with a share `rate` of its elements set to 0 and the others divided by 1 - rate."""
    return x * keep_mask(key, rate, x.shape) / (1 - rate)


class Dropout(nn.Dropout):
    """Dropout whose mask is a function of `key`, set before every call, and of the layer's `number`."""

    key: Tensor
    number: int

    def forward(self, x: Tensor) -> Tensor:
        """x [b, ...] with masked elements."""
        return dropout(x, fold(self.key, self.number), self.p)


class ChannelDropout(Dropout):
    """Dropout of whole channels, as torch's Dropout1d, Dropout2d and Dropout3d do it to a batch of images."""

    def forward(self, x: Tensor) -> Tensor:
        """x [b, C, ...] with masked channels."""
        if x.dim() < 3:
            raise InputError(
                f"dropout of channels needs [b, C, ...], and gets {x.dim()} axes: use nn.Dropout there"
            )
        kept = dropout(x.new_ones(x.shape[:2]), fold(self.key, self.number), self.p)  # [b, C]
        return x * kept[(..., *[None] * (x.dim() - 2))]


class _WithStatistics(torch.autograd.Function):
    """The batch's mean as it is; backwards, running values receive (running - statistic of the batch)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(mean: Tensor, var: Tensor, running_mean: Tensor, running_var: Tensor) -> Tensor:
        return mean.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        mean, var, running_mean, running_var = inputs
        ctx.save_for_backward(running_mean - mean, running_var - var)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return gradients[0], None, *ctx.saved_tensors


class BatchNorm(_NormBase):
    """Batch norm by the batch's own statistics where the running ones are being trained, else by the running ones."""

    real: Tensor | None

    def forward(self, x: Tensor) -> Tensor:
        """x [b, C] or [b, C, ...], normalized over b and all places; padding (`real` [b] is 0) left out."""
        if x.dim() == 2:
            return self.forward(x[..., None])[..., 0]  # one place
        places = tuple(range(2, x.dim()))

        def wide(each: Tensor) -> Tensor:
            return each[(slice(None), *[None] * len(places))]  # [C] -> [C, 1, ...]

        mean, var = cast(Tensor, self.running_mean), cast(Tensor, self.running_var)
        if mean.requires_grad:
            real = x.new_ones(len(x)) if self.real is None else self.real
            share = real / real.sum().clamp_min(1)  # [b]
            now = mix(share, x.mean(places))  # [C]
            biased = mix(share, ((x - wide(now)) ** 2).mean(places))  # [C]
            count = real.sum() * x[0, 0].numel()
            unbiased = biased.detach() * count / (count - 1).clamp_min(1)
            mean, var = _WithStatistics.apply(now, unbiased, mean, var), biased
        scale = (var + self.eps).rsqrt()  # [C]
        if not self.affine:
            return (x - wide(mean)) * wide(scale)
        return (x - wide(mean)) * wide(self.weight * scale) + wide(self.bias)


BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
CHANNEL_DROPOUTS = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
DROPOUTS = (nn.Dropout, *CHANNEL_DROPOUTS)


def misfit(layer: nn.Module) -> str | None:
    """What would be right instead of a layer that cannot be trained here; None for one that can."""
    normed = isinstance(layer, BATCH_NORMS)
    if normed and not layer.track_running_stats:
        return "leave track_running_stats at True, or use nn.GroupNorm"
    if normed and layer.momentum != STATISTICS_RATE:
        return f"leave momentum at {STATISTICS_RATE}, the rate at which running statistics follow here"
    if isinstance(layer, _NormBase) and not normed and layer.track_running_stats:
        return "leave track_running_stats at False, or use nn.BatchNorm1d to 3d"
    if isinstance(layer, _DropoutNd) and not isinstance(layer, DROPOUTS):
        return "use nn.Dropout, or nn.Dropout1d to 3d for whole channels"
    if isinstance(layer, _DropoutNd) and layer.p == 1:
        return "use a rate below 1"
    if isinstance(layer, (nn.RReLU, nn.FractionalMaxPool2d, nn.FractionalMaxPool3d)):
        return "use a layer that draws no random numbers, like nn.LeakyReLU and nn.MaxPool2d"
    if isinstance(layer, (nn.RNNBase, nn.MultiheadAttention)) and layer.dropout:
        return "set its dropout to 0, and put nn.Dropout before or behind it"
    if isinstance(layer, nn.modules.lazy.LazyModuleMixin):
        return "give the layer its number of inputs"
    own = STATISTICS if normed else ()
    for name, buffer in layer.named_buffers(recurse=False):
        if buffer.is_floating_point() and name not in own and name in layer.state_dict():
            return f"register its buffer {name} with persistent=False if it never changes, else make it a parameter"
    return None


def check_layers(network: str, module: nn.Module) -> None:
    """Raise an InputError for the first layer that would not train here as torch trains it."""
    for path, layer in module.named_modules():
        if wanted := misfit(layer):
            what = f"{type(layer).__name__} {path}".strip()
            raise InputError(f"network {network}: {what} cannot be trained here as it is: {wanted}")


def training_twin(module: nn.Module) -> tuple[nn.Module, list[nn.Module]] | None:
    """A copy of a module in training mode and its layers of dropout and batch norm; None where it has neither."""
    kinds = (*DROPOUTS, *BATCH_NORMS)
    if not any(isinstance(layer, kinds) for layer in module.modules()):
        return None
    twin = copy.deepcopy(module).train()
    layers: list[nn.Module] = [layer for layer in twin.modules() if isinstance(layer, kinds)]
    for number, layer in enumerate(layers):  # the same names, other arithmetic
        if isinstance(layer, CHANNEL_DROPOUTS):
            layer.__class__ = ChannelDropout  # type: ignore[assignment]
        else:
            layer.__class__ = Dropout if isinstance(layer, nn.Dropout) else BatchNorm
        layer.number = number  # type: ignore[assignment]
    return twin, layers
