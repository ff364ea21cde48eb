"""Floats that travel."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor


def count_floats(message: Mapping[str, Tensor]) -> int:
    """Floating-point numbers in one client's message; integers (cluster ids, counters) are not counted."""
    return sum(tensor.numel() for tensor in message.values() if tensor.is_floating_point())
