"""PFL-MFE: PFL-MF whose gates read features."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from pfl_lite.errors import InputError
from pfl_lite.methods.pfl_mf import PFLMF
from pfl_lite.methods.split import Cut, layers_from
from pfl_lite.models import Network, Params


@dataclass(frozen=True)
class PFLMFE(PFLMF):
    """Guo et al. (2021), algorithm 2 with features: the gate reads what the head reads, a = M_E(theta_E; x) (eq. 16).

    Chapter: *A gate between two experts*.
    """

    name = "pfl_mfe"
    about = "PFL-MF with gates that read the extractor's features"

    def cut(self, network: Network) -> Cut:
        cut, (first, *_) = super().cut(network), network.layers
        if cut.head not in [layers_from(network, where, self.name) for where in ("dense", "last", first)]:
            raise InputError(
                f"{self.name}: head must be dense, last or {first}, whose features the gate can read, not '{self.head}'"
            )
        if cut.head not in [layers_from(network, where, self.name) for where in ("last", first)]:
            network.check_part("extract")  # else the gate would read pixels, as PFL-MF's
        return cut

    def gate_reads(self, cut: Cut, theta: Params, x: Tensor, read: Tensor) -> Tensor:
        last = cut.head == layers_from(cut.network, "last", self.name)
        return cut.network.features(theta, x) if last else read.flatten(1)
