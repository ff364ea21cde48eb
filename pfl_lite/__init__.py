"""pfl_lite: personalized federated learning, small enough to read and fast enough to reproduce papers with.

`from pfl_lite import run, make_federation` is all that most notebooks need; torch is imported when a name is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from pfl_lite import methods
    from pfl_lite.comparing import compare
    from pfl_lite.config import make_config
    from pfl_lite.data.federation import Federation, make_federation
    from pfl_lite.data.images import Card, Images, load
    from pfl_lite.data.partition import ClientIndices
    from pfl_lite.engine.report import load_model
    from pfl_lite.engine.simulation import Simulation, run
    from pfl_lite.models.registry import make_network, register
    from pfl_lite.papers import get_experiment
    from pfl_lite.results.ledger import Ledger
    from pfl_lite.results.tables import table
    from pfl_lite.results.verdicts import claims as verdicts
    from pfl_lite.show import plots

_HOMES = {
    "Card": "data.images:Card",
    "ClientIndices": "data.partition:ClientIndices",
    "Federation": "data.federation:Federation",
    "Images": "data.images:Images",
    "Ledger": "results.ledger:Ledger",
    "Simulation": "engine.simulation:Simulation",
    "compare": "comparing:compare",
    "get_experiment": "papers:get_experiment",
    "load": "data.images:load",
    "load_model": "engine.report:load_model",
    "make_config": "config:make_config",
    "make_federation": "data.federation:make_federation",
    "make_network": "models.registry:make_network",
    "methods": "methods",
    "plots": "show.plots",
    "register": "models.registry:register",
    "run": "engine.simulation:run",
    "table": "results.tables:table",
    "verdicts": "results.verdicts:claims",
}
__all__ = [
    "Card", "ClientIndices", "Federation", "Images", "Ledger", "Simulation", "compare", "get_experiment", "load",
    "load_model", "make_config", "make_federation", "make_network", "methods", "plots", "register", "run", "table", "verdicts",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'pfl_lite' has no attribute '{name}'")
    module, _, own = _HOMES[name].partition(":")
    found = import_module(f"pfl_lite.{module}")
    return getattr(found, own) if own else found
