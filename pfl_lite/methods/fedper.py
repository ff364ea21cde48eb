"""FedPer: a shared base, a private head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pfl_lite.errors import InputError
from pfl_lite.methods.base import Method, Work, stack
from pfl_lite.models import Network, Params


@dataclass(frozen=True)
class FedPer(Method):
    """Arivazhagan et al. (2019): base and head train jointly, only the base travels; heads stay and persist.

    A client that was never sampled keeps the common initial head. Chapter: *One model or many*.
    """

    name: ClassVar[str] = "fedper"
    about: ClassVar[str] = "shared base layers, a private head for each client"

    head: str = "last"
    """Where the head begins: `last` (the last layer), `none` (no head: FedAvg), or a layer's name."""

    def init(self, start: Params, network: Network, clients: int) -> tuple[Params, Params]:
        layers = list(network.layers)
        first = {"last": len(layers) - 1, "none": len(layers)}.get(self.head)
        if first is None:
            if self.head not in layers:
                raise InputError(
                    f"fedper: head must be one of last, none, {', '.join(layers)}, not '{self.head}'"
                )
            first = layers.index(self.head)
        private = [name for layer in layers[first:] for name in network.layers[layer]]
        base = {name: tensor for name, tensor in start.items() if name not in private}
        return base, stack({name: start[name] for name in private}, clients)

    def local(self, received: Params, client: Params, work: Work) -> tuple[Params, Params]:
        trained = work.sgd(work.loss, received | client)
        return {name: trained[name] for name in received}, {name: trained[name] for name in client}

    def personal(self, server: Params, client: Params, work: Work) -> Params:
        return server | client

    def after_local(self, upload: Params, client: Params) -> Params:
        return upload | client

    def global_model(self, server: Params) -> Params | None:
        return None if self.head != "none" else server
