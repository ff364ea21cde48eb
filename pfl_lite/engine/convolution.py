"""Convolutions of many clients at once as batched matrix products, for GPUs.

Under `vmap` a convolution whose weights differ from client to client becomes one grouped convolution. With the three or six input
channels a group of small networks, libraries compute that slowly, the gradient of the weights above all. Copying out the patches
that each output pixel reads turns it into products of ordinary matrices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

NARROW = 16
"""Input channels below which a grouped convolution leaves the matrix units of a GPU mostly idle; with more of them, patches cost
more memory than they save time."""


class _Patches(torch.autograd.Function):
    """Images [b, C, H, W] -> patches [b, C k k, L], a column an output pixel (torch's own has no batching rule backwards)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, kernel: tuple[int, int], stride: tuple[int, int]) -> Tensor:
        windows = x.unfold(2, kernel[0], stride[0]).unfold(3, kernel[1], stride[1])  # [b, C, H', W', k, k]
        return windows.permute(0, 1, 4, 5, 2, 3).flatten(4).flatten(1, 3)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, ctx.kernel, ctx.stride = inputs
        ctx.size = tuple(x.shape[2:])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return _Overlaps.apply(gradients[0], ctx.size, ctx.kernel, ctx.stride), None, None


class _Overlaps(torch.autograd.Function):
    """The way back: what the patches [b, C k k, L] say of each pixel, summed: [b, C, H, W]."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        columns: Tensor, size: tuple[int, int], kernel: tuple[int, int], stride: tuple[int, int]
    ) -> Tensor:
        return F.fold(columns, size, kernel, stride=stride)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, _, ctx.kernel, ctx.stride = inputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return _Patches.apply(gradients[0], ctx.kernel, ctx.stride), None, None, None


def convolve(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: tuple[int, int], padding: tuple[int, int]
) -> Tensor:
    """What `conv2d` makes of images x [b, C, H, W] with filters [O, C, k, k] and bias [O]: [b, O, H', W']."""
    height, width = padding
    if height or width:
        x = F.pad(x, (width, width, height, height))
    kernel = weight.shape[2:]
    down, across = ((side - k) // step + 1 for side, k, step in zip(x.shape[2:], kernel, stride, strict=True))
    columns = _Patches.apply(x, tuple(kernel), stride)  # [b, C k k, L]
    filters = weight.flatten(1).expand(len(x), -1, -1)  # [b, O, C k k]: many small products keep a GPU busy
    y = torch.bmm(filters, columns).unflatten(2, (down, across))
    return y if bias is None else y + bias[:, None, None]


def pair(value: int | Iterable[int]) -> tuple[int, int]:
    """One number for both directions, or one for each, as torch takes them."""
    first, second = (value, value) if isinstance(value, int) else value
    return first, second


class Unfolded(TorchFunctionMode):
    """While it is entered, `conv2d` goes through patches where its input has fewer than `below` channels.

    Convolutions with groups, dilation or padding given by a word stay what they are.
    """

    def __init__(self, below: float) -> None:
        super().__init__()
        self.below = below

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is F.conv2d:
            return self.conv2d(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def conv2d(
        self,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Tensor:
        """`torch.nn.functional.conv2d`."""
        plain = groups == 1 and pair(dilation) == (1, 1) and not isinstance(padding, str)
        if plain and input.shape[1] < self.below:
            return convolve(input, weight, bias, pair(stride), pair(padding))
        return F.conv2d(input, weight, bias, stride, padding, dilation, groups)
