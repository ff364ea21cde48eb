"""Models of which one part is shared and the other stays at home."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from pfl_lite.errors import InputError
from pfl_lite.methods.base import Batch, Loss, Method, Work, stack
from pfl_lite.models import Network, Params


def layers_from(network: Network, cut: str, what: str) -> set[str]:
    """Names of the parameters of a layer and all layers after it.

    Args:
        network: whose layers are cut, in their order.
        cut: `last`, `none` (nothing), `dense` (every layer after the last convolution), a layer's name, or the name of a module
            that has layers, such as a stage of a ResNet.
        what: names the setting in the error.

    Raises:
        InputError: the network has no such layer.
    """
    layers = list(network.layers)
    others = [i for i, layer in enumerate(layers) if not network.is_dense(layer)]
    places = {"last": len(layers) - 1, "none": len(layers), "dense": max(others, default=-1) + 1}
    inside = [i for i, layer in enumerate(layers) if f"{layer}.".startswith(f"{cut}.")]
    if cut not in places and not inside:
        raise InputError(f"{what} must be one of {', '.join([*places, *layers])}, not '{cut}'")
    first = places[cut] if cut in places else inside[0]
    return {name for layer in layers[first:] for name in network.layers[layer]}


class Cut:
    """A network cut in two, of which the head tunes and the base stays; arguments as in `layers_from`.

    Where the head is all that follows the convolutions, what it reads does not change while it tunes: it is computed once for
    every image. Elsewhere the whole network runs for every mini-batch.
    """

    def __init__(self, network: Network, cut: str, what: str) -> None:
        self.network, self.head = network, layers_from(network, cut, what)
        self.dense = network.in_parts and self.head == layers_from(network, "dense", what)

    def below(self, params: Params, x: Tensor) -> Tensor:
        """What `above` reads: the activations [b, d] below a dense head, else the images themselves."""
        return self.network.extract(params, x) if self.dense else x

    def above(self, network: Network, params: Params, read: Tensor) -> Tensor:
        """Logits [b, K] from what `below` gives, of the network as it is or in training mode."""
        return network.classify(params, read) if self.dense else network(params, read)

    def reader(self, work: Work, params: Params) -> Callable[[Batch], Tensor]:
        """`below` of a training mini-batch, under parameters whose base does not change."""
        return work.fixed(lambda batch: self.below(params, batch.x)) if self.dense else lambda batch: batch.x

    def loss(self, work: Work, params: Params, read: Callable[[Batch], Tensor]) -> Loss:
        """Mean cross-entropy of a head above the base of `params`, on what `read` gives of a training mini-batch."""

        def of_head(head: Params, batch: Batch) -> Tensor:
            return batch.loss(self.above(work.training(batch), params | head, read(batch)))

        return of_head

    def start(self, params: Params) -> Params:
        """The head's parameters."""
        return {name: tensor for name, tensor in params.items() if name in self.head}


@dataclass(frozen=True)
class PartlyShared(Method):
    """Base of FedPer, FedRep and LG-FedAvg: `kept_home` says which parameters stay at their client; the others travel."""

    @abstractmethod
    def kept_home(self, network: Network) -> set[str]:
        """Names of the private parameters."""

    def init(self, start: Params, network: Network, clients: int) -> tuple[Params, Params]:
        private = self.kept_home(network)
        shared = {name: tensor for name, tensor in start.items() if name not in private}
        if not shared:
            warnings.warn(
                f"{self.name}: every layer of {network.name} stays at its client, so nothing is shared, as with local",
                stacklevel=2,
            )
        return shared, stack({name: start[name] for name in start if name in private}, clients)

    def local(self, received: Params, client: Params, work: Work) -> tuple[Params, Params]:
        trained = work.sgd(work.loss, received | client)
        return {name: trained[name] for name in received}, {name: trained[name] for name in client}

    def personal(self, received: Params, client: Params, work: Work) -> Params:
        return received | client

    def after_local(self, upload: Params, client: Params) -> Params:
        return upload | client
