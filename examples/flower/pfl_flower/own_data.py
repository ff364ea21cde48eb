"""A federation of which this machine has one client's images, or none: from a data set's name, or from the client's own file."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from pfl_lite.config import DTYPES, RunConfig
from pfl_lite.data import images as data
from pfl_lite.data.federation import Federation
from pfl_lite.data.partition import SPLITS, ClientIndices, label_digest, partition
from pfl_lite.errors import InputError
from pfl_lite.files import read_npz, write_npz
from pfl_lite.models import NETWORKS

Arrays = dict[str, np.ndarray]
EMPTY = np.empty(0, dtype=np.int64)


@lru_cache(maxsize=1)
def _dealt(
    name: str, spec: str, clients: int, seed: int, val_fraction: float, split: str
) -> tuple[data.Images, list[ClientIndices]]:
    images = data.load(name).with_split(split)
    return images, partition(images, spec, clients, seed, val_fraction)


def of_client(config: RunConfig, client: int) -> Arrays:
    """One client's images (uint8) and labels, as it sees them, of each split, from a data set that this machine has whole.

    `of` is the digest of all clients' labels, by which peers know that they were dealt the same cards.
    """
    images, clients = _dealt(
        config.data, config.partition, config.clients, config.seed, config.val_fraction, config.split
    )
    mine, found = clients[client], {"of": np.array(label_digest(images))}
    for split in SPLITS:
        where, whole = getattr(mine, split), "test" if split == "test" else "train"
        labels = getattr(images, f"{whole}_labels")[where]
        found[f"{split}_images"] = getattr(images, f"{whole}_images")[where]
        found[f"{split}_labels"] = labels if mine.relabel is None else mine.relabel[labels]
    return found


def write_clients(config: RunConfig, folder: Path) -> None:
    """Write `client-0.npz`, ... : what each client's machine gets, and nothing of the others."""
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(config.clients):
        write_npz(folder / f"client-{i}.npz", of_client(config, i))


def read_client(folder: str, client: int) -> Arrays:
    """The file of one client; raises InputError for one that is missing or something else."""
    path = Path(folder) / f"client-{client}.npz"
    wanted = {f"{split}_{part}" for split in SPLITS for part in ("images", "labels")} | {"of"}
    try:
        arrays = read_npz(path)
    except (OSError, ValueError) as error:
        raise InputError(f"client {client} has no file of images that can be read at {path}") from error
    if arrays.keys() != wanted:
        raise InputError(f"{path} must hold the arrays {', '.join(sorted(wanted))}")
    return arrays


def digest(config: RunConfig, client: int, files: str = "") -> str:
    """The digest of the labels that this client's images were dealt from."""
    return str((read_client(files, client) if files else of_client(config, client))["of"])


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
    mine = read_client(files, client) if files else of_client(config, client)
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
