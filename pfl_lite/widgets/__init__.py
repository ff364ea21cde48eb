"""Explorers with sliders: live in JupyterLab, and twins that compute in the page, without a kernel.

A live explorer asks the package. Its twin is a script under `static/`, whose numbers and words the tests hold against
the live one's. They stand in the chapters *Clients are not alike* (partitions), *Assembling a network per client*
(routes), *A gate between two experts* (gates), *pFedMB* (weights of branches) and *Compare the methods* (runs).
"""

from __future__ import annotations

from pfl_lite.widgets.alpha import alpha_explorer, alpha_explorer_page
from pfl_lite.widgets.comparison import comparison_explorer, comparison_explorer_page
from pfl_lite.widgets.frame import front_end
from pfl_lite.widgets.gate import gate_explorer, gate_explorer_page
from pfl_lite.widgets.partition import partition_explorer, partition_explorer_page
from pfl_lite.widgets.routing import routing_explorer, routing_explorer_page

__all__ = [
    "alpha_explorer", "alpha_explorer_page", "comparison_explorer", "comparison_explorer_page", "front_end", "gate_explorer",
    "gate_explorer_page", "partition_explorer", "partition_explorer_page", "routing_explorer", "routing_explorer_page",
]  # fmt: skip
