"""PFL-MF: PFL-MoE whose clients tune the upper layers only."""

from __future__ import annotations

from dataclasses import dataclass

from pfl_lite.methods.pfl_moe import PFLMoE
from pfl_lite.methods.split import Cut
from pfl_lite.models import Network


@dataclass(frozen=True)
class PFLMF(PFLMoE):
    """Guo et al. (2021), algorithm 2: the client's expert is PFL-FB's, so that both experts share their extractor (eqs 11-15).

    The gate reads pixels. (Eq. 14 and line 7 print theta_C where theta_Ci is trained.) The released code calls this variant
    `struct=True`, its README the other one. Chapter: *A gate between two experts*.
    """

    name = "pfl_mf"
    about = "PFL-MoE with PFL-FB's expert; the gate reads pixels"

    head: str = "dense"
    """What is tuned: `dense` (all layers after the convolutions), `last`, `none`, or a layer's name and what follows."""

    def cut(self, network: Network) -> Cut:
        return Cut(network, self.head, f"{self.name}: head")
