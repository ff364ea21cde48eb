"""The gate of PFL-MoE: one linear layer that says how much of the global expert an image gets, and how it learns."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pfl_lite.methods.base import Carry
from pfl_lite.models import Params
from pfl_lite.models.network import torch_seeded

# sigmoid makes them 1, 0 and 1/2 to the last bit
FIXED_BIAS = {"global": 1000.0, "personal": -1000.0, "equal": 0.0}


def gate_logit(model: Params, reads: Tensor) -> Tensor:
    """G(w; .) [b], the logit of g, from what the gate reads [b, d]; the gate is a part of the model's parameters."""
    return F.linear(reads, model["gate/weight"], model["gate/bias"])[:, 0]


def fresh_gate(width: int, seed: int) -> Params:
    """`gate/weight` [1, width] and `gate/bias` [1] by torch's start, the same for every client of a seed."""
    with torch_seeded(seed, "gate"):
        return {f"gate/{name}": tensor.detach() for name, tensor in nn.Linear(width, 1).named_parameters()}


@dataclass(frozen=True)
class GateOptimizer:
    """Plain SGD, or Adam with torch's defaults; weight decay is added to the gradient in both."""

    name: str
    lr: float
    decay: float

    def start(self, gate: Params) -> Carry:
        """The gate and what the optimizer remembers: nothing, or Adam's two means and its count of steps."""
        if self.name == "sgd":
            return (gate,)
        zero = {name: torch.zeros_like(tensor) for name, tensor in gate.items()}
        return gate, zero, zero, {"steps": gate["gate/bias"].new_zeros((), dtype=torch.float64)}

    def step(self, carry: Carry, gradient: Params) -> Carry:
        """One step."""
        gate, *memory = carry
        g = {name: d + self.decay * gate[name] for name, d in gradient.items()}
        if memory:
            first, second, count = memory
            steps = count["steps"] + 1
            first = {name: 0.9 * first[name] + 0.1 * d for name, d in g.items()}
            second = {name: 0.999 * second[name] + 0.001 * d**2 for name, d in g.items()}
            memory = [first, second, {"steps": steps}]
            rise, spread = (1 - 0.9**steps, 1 - 0.999**steps)
            g = {
                name: m / rise.to(m.dtype) / ((second[name] / spread.to(m.dtype)).sqrt() + 1e-8)
                for name, m in first.items()
            }
        return {name: w - self.lr * g[name] for name, w in gate.items()}, *memory
