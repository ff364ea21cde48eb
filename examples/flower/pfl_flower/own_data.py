"""A federation of which this machine has one client's images, or none: from a data set's name, or from the client's own file."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from pfl_lite.config import DTYPES, RunConfig
from pfl_lite.data import exchange
from pfl_lite.data import images as data
from pfl_lite.data.federation import Federation
from pfl_lite.data.partition import ClientIndices, partition
from pfl_lite.errors import InputError
from pfl_lite.models import NETWORKS

EMPTY = np.empty(0, dtype=np.int64)


@lru_cache(maxsize=1)
def _dealt(
    name: str, spec: str, clients: int, seed: int, val_fraction: float, split: str
) -> tuple[data.Images, list[ClientIndices]]:
    images = data.load(name).with_split(split)
    return images, partition(images, spec, clients, seed, val_fraction)


def dealt(config: RunConfig) -> tuple[data.Images, list[ClientIndices]]:
    """The data set of a run, and who holds what of it."""
    return _dealt(
        config.data, config.partition, config.clients, config.seed, config.val_fraction, config.split
    )


def of_client(config: RunConfig, client: int, files: str = "") -> exchange.Arrays:
    """One client's arrays, from its own file, or from a data set that this machine has whole."""
    if files:
        return exchange.read_client(Path(files) / f"client-{client}.npz")
    images, clients = dealt(config)
    return exchange.arrays_of(images, clients[client])


def write_clients(config: RunConfig, folder: Path) -> None:
    """Write `client-0.npz`, ... : what each client's machine gets, and nothing of the others."""
    exchange.write_clients(folder, *dealt(config))


def digest(config: RunConfig, client: int, files: str = "") -> str:
    """The digest of the labels that this client's images were dealt from."""
    return str(of_client(config, client, files)["of"])


def federation(config: RunConfig, client: int | None, files: str = "") -> Federation:
    """N clients, of which only `client` has images (None: no client has, as on the server)."""
    card = data.datasets().get(config.data.partition(":")[0])
    if card is None:
        raise InputError(f"no data set is called '{config.data}': its card says how images are scaled")
    size, dtype = NETWORKS[config.model].size or card.size, DTYPES[config.dtype]
    if client is None:
        nothing = torch.empty(0, card.channels, size, size, dtype=dtype)
        none, nowhere = (
            torch.empty(0, dtype=torch.int64),
            [torch.empty(0, dtype=torch.int64)] * config.clients,
        )
        return Federation(config.data, card, nothing, none, nothing, none, nowhere, nowhere, nowhere)
    mine = of_client(config, client, files)
    one = data.Images(
        config.data,
        *(np.concatenate([mine[f"train_{part}"], mine[f"val_{part}"]]) for part in ("images", "labels")),
        *(mine[f"test_{part}"] for part in ("images", "labels")),
        card=card,
    )
    train = len(mine["train_labels"])
    own = ClientIndices(
        np.arange(train), np.arange(train, len(one.train_labels)), np.arange(len(one.test_labels))
    )
    clients = [ClientIndices(EMPTY, EMPTY, EMPTY)] * config.clients
    clients[client] = own
    return Federation.build(one, clients, size=NETWORKS[config.model].size, dtype=dtype)
