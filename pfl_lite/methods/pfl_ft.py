"""PFL-FT, also called FedAvg+: FedAvg, then every client tunes its own copy."""

from __future__ import annotations

from dataclasses import dataclass

from pfl_lite.methods.fedavg import FedAvg


@dataclass(frozen=True)
class PFLFT(FedAvg):
    """Wang et al. (2019); FedAvg+ in Marfoq et al. (2021), PFL-FT in Guo et al. (2021), eq. 6: all layers, `ft_epochs` epochs.

    Training is FedAvg's; one epoch of tuning unless `ft_epochs` says otherwise (one in Marfoq et al., 200 in Guo et al.).
    Chapter: *One model or many*.
    """

    name = "pfl_ft"
    about = "FedAvg, then fine-tuning of all layers at every client (FedAvg+)"
    ft_epochs = 1
