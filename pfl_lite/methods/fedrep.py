"""FedRep: a shared representation, private heads, trained in turns."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from pfl_lite.methods.base import Batch, Newcomers, Work, number
from pfl_lite.methods.fedper import FedPer
from pfl_lite.models import Params


@dataclass(frozen=True)
class FedRep(FedPer, Newcomers):
    """Collins et al. (2021), algorithm 1: `head_epochs` epochs on the head, then E epochs on the base; only the base travels.

    A client that never took part trains its head before it is scored. Chapter: *Sharing a part*.
    """

    name = "fedrep"
    about = "FedPer with the head trained first, then the base"

    head_epochs: int = number(10, least=0)
    """Epochs on the head, with the base as received; the base then trains the run's E epochs."""

    def fit_head(self, base: Params, head: Params, work: Work) -> Params:
        """The head after its epochs; the base does not move."""

        def loss_of_head(h: Params, batch: Batch) -> Tensor:
            return work.loss(base | h, batch)

        return work.sgd(loss_of_head, head, phase="head", epochs=self.head_epochs)

    def local(self, received: Params, client: Params, work: Work) -> tuple[Params, Params]:
        head = self.fit_head(received, client, work)

        def loss_of_base(base: Params, batch: Batch) -> Tensor:
            return work.loss(base | head, batch)

        return work.sgd(loss_of_base, received), head

    def adapt_newcomer(self, received: Params, client: Params, work: Work) -> Params:
        return self.fit_head(received, client, work)
