"""pfl_lite: personalized federated learning, small enough to read and fast enough to reproduce papers with.

`from pfl_lite import run, make_federation` is all that most notebooks need; torch is imported when a name is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from pfl_lite.data.federation import Federation, make_federation
    from pfl_lite.data.images import load
    from pfl_lite.engine.report import load_model
    from pfl_lite.engine.simulation import Simulation, run
    from pfl_lite.models import make_network
    from pfl_lite.show import plots

_HOMES = {
    "Federation": "pfl_lite.data.federation",
    "make_federation": "pfl_lite.data.federation",
    "load": "pfl_lite.data.images",
    "Simulation": "pfl_lite.engine.simulation",
    "load_model": "pfl_lite.engine.simulation",
    "run": "pfl_lite.engine.simulation",
    "make_network": "pfl_lite.models",
}
_MODULES = {"plots": "pfl_lite.show.plots"}
__all__ = [
    "Federation", "Simulation", "load", "load_model", "make_federation", "make_network", "plots", "run",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(_MODULES[name])
    if name not in _HOMES:
        raise AttributeError(f"module 'pfl_lite' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)
