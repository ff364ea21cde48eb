"""LG-FedAvg: private lower layers, shared upper layers; FedPer upside down."""

from __future__ import annotations

from dataclasses import dataclass

from pfl_lite.methods.split import PartlyShared, layers_from
from pfl_lite.models import Network


@dataclass(frozen=True)
class LGFedAvg(PartlyShared):
    """Liang et al. (2020): local representations, a global classifier. All layers train jointly, only the top ones travel.

    Difference from the paper: every client starts from a common initialization, not from a converged FedAvg model.
    Chapter: *Sharing a part*.
    """

    name = "lg_fedavg"
    about = "private lower layers, shared upper layers"

    shared: str = "last"
    """Where the shared top begins: `last`, `dense`, `none` (nothing is shared: Local), or a layer's name."""

    def kept_home(self, network: Network) -> set[str]:
        top = layers_from(network, self.shared, f"{self.name}: shared")
        return {name for names in network.layers.values() for name in names} - top
