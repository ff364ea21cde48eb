"""Training images, shifted and mirrored at random."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

PADDING = 4  # pixels on every side, before an image of the old size is cut out


def random_crops(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Where to cut each of [shape] images out of its padded self: row and column (0 to 8), and whether to mirror; [shape, 3]."""
    return rng.integers(0, [2 * PADDING + 1, 2 * PADDING + 1, 2], size=(*shape, 3))


def crop_flip(x: Tensor, crops: Tensor, black: Tensor) -> Tensor:
    """Images x [b, C, H, W] padded by four black pixels, cut out at `crops` [b, 3] (row, column, mirror left and right or not).

    `black` [C] is the value of a black pixel after normalization. The same as torchvision's pad, crop and horizontal flip.
    """
    height, width = (torch.arange(side, device=x.device) for side in x.shape[2:])
    down, right, mirror = (number[:, None] for number in crops.unbind(1))  # [b, 1] each
    rows = height + down - PADDING  # [b, H], where each row comes from
    columns = torch.where(mirror == 1, width.flip(0), width) + right - PADDING  # [b, W]
    inside = [(place >= 0) & (place < side) for place, side in ((rows, len(height)), (columns, len(width)))]
    from_rows = rows.clamp(0, len(height) - 1)[:, None, :, None].expand_as(x)
    from_columns = columns.clamp(0, len(width) - 1)[:, None, None, :].expand_as(x)
    moved = x.gather(2, from_rows).gather(3, from_columns)
    return torch.where(inside[0][:, None, :, None] & inside[1][:, None, None, :], moved, black[:, None, None])
