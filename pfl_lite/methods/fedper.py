"""FedPer: a shared base, a private head."""

from __future__ import annotations

from dataclasses import dataclass

from pfl_lite.methods.split import PartlyShared, layers_from
from pfl_lite.models import Network, Params


@dataclass(frozen=True)
class FedPer(PartlyShared):
    """Arivazhagan et al. (2019): base and head train jointly, only the base travels; heads stay and persist.

    A client that was never sampled keeps the common initial head. Chapters: *One model or many*, *Sharing a part*.
    """

    name = "fedper"
    about = "shared base layers, a private head for each client"

    head: str = "last"
    """Where the head begins: `last` (the last layer), `dense` (after the convolutions), `none` (FedAvg), or a layer's name."""

    def kept_home(self, network: Network) -> set[str]:
        return layers_from(network, self.head, f"{self.name}: head")

    def global_model(self, server: Params) -> Params | None:
        return None if self.head != "none" else server
