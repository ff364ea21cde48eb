"""What the server and the nodes must agree on: the run, its data and its versions, and how tensors travel."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
from flwr.app import ArrayRecord, RecordDict
from torch import Tensor

from pfl_flower.own_data import federation
from pfl_lite import __version__
from pfl_lite.config import make_config
from pfl_lite.engine.rounds import Part
from pfl_lite.errors import InputError

OURS = ("state-folder", "files", "out", "set", "patience-seconds")
"""What a run's configuration holds beside the words of `pfl-lite run`."""
VERSIONS = f"pfl_lite {__version__}, torch {torch.__version__}"


def part(run_config: Mapping[str, Any], client: int | None = None) -> Part:
    """What one client has of the run that a Flower configuration describes, or (None) its server; built once a process.

    Every random number of pfl_lite is named by seed, purpose, round and client, so server and nodes come to the same start
    and the same mini-batches without sending any of them. The server has no images, and a client only its own.

    Raises:
        InputError: an unknown method or setting, one of fine-tuning, or a client whose files cannot be used.
    """
    words = {name: value for name, value in run_config.items() if name not in OURS}
    for pair in str(run_config.get("set", "")).split():
        name, equals, value = pair.partition("=")
        if not equals:
            raise InputError(f"set takes words such as lam=0.5, not '{pair}'")
        words[name] = value
    return _built(tuple(sorted(words.items())), str(run_config.get("files", "")), client)


@lru_cache(maxsize=32)
def _built(settings: tuple[tuple[str, Any], ...], files: str, client: int | None) -> Part:
    torch.set_num_threads(1)  # sums in another order differ in their last bits
    words = dict(settings)
    name = words.pop("method")
    config = make_config(name, **{"device": "cpu", "engine": "loop"} | words).resolved()
    if config.ft_epochs:
        raise InputError(
            f"{name} must have ft_epochs=0 here: what a client does after the last round is not part of the app"
        )
    return Part(config, federation(config, client, files))


def series(run: Part) -> str:
    """A name for all runs with this configuration: what messages and stored states must agree on."""
    config = {
        name: value for name, value in run.config.as_dict().items() if name not in ("rounds", "eval_every")
    }
    return hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode()).hexdigest()[:16]


def packed(params: Mapping[str, Tensor]) -> ArrayRecord:
    """Named tensors as Flower sends them."""
    return ArrayRecord(torch_state_dict={name: tensor.contiguous() for name, tensor in params.items()})


def unpacked(record: ArrayRecord) -> dict[str, Tensor]:
    """Named tensors from a message."""
    return dict(record.to_torch_state_dict())


def wire_bytes(record: ArrayRecord) -> int:
    """Bytes of the tensors in a message, as they cross the wire."""
    return sum(len(array.data) for array in record.values())


def wire_floats(record: ArrayRecord) -> int:
    """Floats in a message; those that a method does not count, because they only fill up a tensor, are among them."""
    return sum(math.prod(array.shape) for array in record.values() if "float" in array.dtype)


def joined(messages: Mapping[str, RecordDict]) -> RecordDict:
    """Several methods' messages as one: `ditto/down`, ..."""
    return RecordDict(
        {f"{method}/{name}": r for method, records in messages.items() for name, r in records.items()}
    )


def split(content: RecordDict) -> dict[str, RecordDict]:
    """The messages, by method, that were `joined`."""
    found: dict[str, RecordDict] = {}
    for name, record in content.items():
        method, _, own = name.partition("/")
        found.setdefault(method, RecordDict())[own] = record
    return found
