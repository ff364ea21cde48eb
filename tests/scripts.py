"""The scripts of the folder `benchmarks` as modules."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"


def benchmark(path: str) -> ModuleType:
    """A script of the folder `benchmarks`, by its path without the ending; scripts import each other by their bare names."""
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
    name = Path(path).name
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{path}.py")
    assert spec is not None and spec.loader is not None
    found = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found
