"""Multi-branch layers (pFedMB): every layer holds B branches, mixed by weights on the simplex.

Notation of Mori et al. (2023): W_{l,b} is branch b of layer l, alpha_{l,b} its weight, W_l = sum_b alpha_{l,b} W_{l,b} (eq. 1).
The paper says that the parameter count becomes exactly B * P, so biases are branched too and mixed with the same alpha; by the
same argument every layer that holds parameters is branched, not only convolutions and linear layers.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call

from pfl_lite.errors import InputError
from pfl_lite.models.mixing import mix
from pfl_lite.models.network import layers_of


def stack_branches(copies: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Stack B plain parameter sets into branches: every tensor [...] becomes [B, ...]; warns where all copies are the same."""
    first, *others = copies
    if others and all(torch.equal(first[name], plain[name]) for plain in others for name in first):
        warnings.warn(
            "this method starts from several copies of the network, and here they are all the same, so that they learn the same: "
            "where the network loads its weights, leave the last layer as it is drawn",
            stacklevel=2,
        )
    return {name: torch.stack([plain[name] for plain in copies]) for name in first}


def weights_by_name(alpha: Tensor, names: Sequence[str], *, shared: bool) -> dict[str, Tensor]:
    """The weights [..., B] of each tensor, from alpha [..., B] shared by all layers or [..., L, B] with one row a layer."""
    rows = {name: row for row, members in enumerate(layers_of(names).values()) for name in members}
    return {name: alpha if shared else alpha[..., row, :] for name, row in rows.items()}


def collapse(branches: Mapping[str, Tensor], alpha: Tensor) -> dict[str, Tensor]:
    """The plain network W_l = sum_b alpha_{l,b} W_{l,b} (eq. 1) of branches [B, ...] and alpha [B] or [L, B].

    Mixing the weights first and convolving once gives what mixing B layer outputs gives (eq. 2), at the plain network's cost.
    """
    weights = weights_by_name(alpha, list(branches), shared=alpha.dim() == 1)
    return {name: mix(weights[name], tensor) for name, tensor in branches.items()}


class MultiBranch(nn.Module):
    """B copies of one module whose layers are mixed by alpha. Chapter: *pFedMB*.

    Args:
        copies: B modules of the same architecture; copy b gives branch b of every layer.

    Raises:
        InputError: no copy, or copies of different architectures.
    """

    def __init__(self, copies: Sequence[nn.Module]) -> None:
        super().__init__()
        shapes = [{name: tensor.shape for name, tensor in module.named_parameters()} for module in copies]
        if not shapes or any(shape != shapes[0] for shape in shapes):
            raise InputError(
                "a multi-branch network is made of one or more modules with the same parameter names and shapes"
            )
        # in a list: its parameters are not the multi-branch network's
        self._template = [copy.deepcopy(copies[0])]
        stacked = stack_branches([dict(module.named_parameters()) for module in copies])
        # torch forbids dots in the names of a ParameterDict
        self.branches = nn.ParameterDict(
            {name.replace(".", "/"): nn.Parameter(t.detach()) for name, t in stacked.items()}
        )

    def mixed(self, alpha: Tensor) -> dict[str, Tensor]:
        """The plain parameters under alpha [B] or [L, B], differentiable in branches and alpha."""
        return collapse({name.replace("/", "."): tensor for name, tensor in self.branches.items()}, alpha)

    def forward(self, x: Tensor, alpha: Tensor) -> Tensor:
        """Logits [b, K] of images x [b, C, H, W] under alpha [B] (shared by all layers) or [L, B] (one a layer)."""
        return functional_call(self._template[0], self.mixed(alpha), (x,))

    def collapse(self, alpha: Tensor) -> nn.Module:
        """A plain module with the weights of eq. 1: what a client runs after training."""
        plain = copy.deepcopy(self._template[0])
        plain.load_state_dict(self.mixed(alpha))
        return plain
