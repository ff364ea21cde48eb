"""PFL-FB: FedAvg, then every client tunes the upper layers and freezes the base."""

from __future__ import annotations

from dataclasses import dataclass

from pfl_lite.methods.base import Work, word
from pfl_lite.methods.fedavg import FedAvg
from pfl_lite.methods.split import Cut
from pfl_lite.models import Network, Params


@dataclass(frozen=True)
class PFLFB(FedAvg):
    """Yu et al. (2020), "freeze base", as PFL-MoE uses it (Guo et al. 2021, section III): theta_E stays, theta_C tunes.

    Yu et al.'s code tunes the last layer only (`head="last"`), PFL-MoE all fully connected ones (`dense`, the default). In
    PFL-MoE's tables it learns from three quarters of a client's images, because the rest trains the gate (`part="per"`).
    A run's `ft_epochs` says how long, 0 leaves FedAvg's model; its `ft_mode` has nothing to choose between here.
    Chapter: *Sharing a part*.
    """

    name = "pfl_fb"
    about = "FedAvg, then fine-tuning of the upper layers with the base frozen"
    ft_epochs = 1

    head: str = "dense"
    """What is tuned: `dense` (all layers after the convolutions), `last`, `none` (FedAvg), or a layer's name and what follows."""
    part: str = word("all", "per")
    """`all` of the client's training images, or `per`: a fixed three quarters of them."""

    def cut(self, network: Network) -> Cut:
        """The network cut below `head`; raises InputError for a layer that does not exist."""
        return Cut(network, self.head, f"{self.name}: head")

    def init(self, start: Params, network: Network, clients: int) -> tuple[Params, Params]:
        self.cut(network)
        return super().init(start, network, clients)

    def fine_tune(self, received: Params, client: Params, work: Work, rule: str) -> Params:
        cut = self.cut(work.network)
        loss = cut.loss(work, received, cut.reader(work, received))
        return received | work.sgd(loss, cut.start(received), part=self.part)
