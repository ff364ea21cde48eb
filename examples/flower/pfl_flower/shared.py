"""What the server and the nodes must agree on: the run, its data and its versions, and how tensors travel."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
from flwr.app import ArrayRecord
from torch import Tensor

from pfl_lite import __version__
from pfl_lite.config import make_config
from pfl_lite.engine.simulation import Simulation
from pfl_lite.errors import InputError

OURS = ("state-folder", "out", "set")
"""What a run's configuration holds beside the words of `pfl-lite run`."""


def simulation(run_config: Mapping[str, Any]) -> Simulation:
    """The run that a Flower configuration describes, before its first round; built once per process.

    Every random number of pfl_lite is named by seed, purpose, round and client, so server and nodes build the same start,
    the same clients and the same mini-batches without sending any of them.

    Raises:
        InputError: an unknown method or setting.
    """
    words = {name: value for name, value in run_config.items() if name not in OURS}
    for pair in str(run_config.get("set", "")).split():
        name, equals, value = pair.partition("=")
        if not equals:
            raise InputError(f"set takes words such as lam=0.5, not '{pair}'")
        words[name] = value
    return _built(tuple(sorted(words.items())))


@lru_cache(maxsize=2)
def _built(settings: tuple[tuple[str, Any], ...]) -> Simulation:
    torch.set_num_threads(1)  # sums in another order differ in their last bits
    words = dict(settings)
    return Simulation(make_config(words.pop("method"), **{"device": "cpu", "engine": "loop"} | words))


def series(sim: Simulation) -> str:
    """A name for all runs with this configuration, data and code: what messages and stored states must agree on."""
    data = sim.federation
    labels = hashlib.sha256(torch.cat([data.labels, data.test_labels]).numpy().tobytes()).hexdigest()
    config = {name: value for name, value in sim.config.as_dict().items() if name != "rounds"}
    said = json.dumps([config, labels, __version__, torch.__version__], sort_keys=True, default=str)
    return hashlib.sha256(said.encode()).hexdigest()[:16]


def packed(params: Mapping[str, Tensor]) -> ArrayRecord:
    """Named tensors as Flower sends them."""
    return ArrayRecord(torch_state_dict=dict(params))


def unpacked(record: ArrayRecord) -> dict[str, Tensor]:
    """Named tensors from a message."""
    return dict(record.to_torch_state_dict())


def wire_bytes(record: ArrayRecord) -> int:
    """Bytes of the tensors in a message, as they cross the wire."""
    return sum(len(array.data) for array in record.values())
