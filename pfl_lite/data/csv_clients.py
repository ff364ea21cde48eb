"""Clients with a table of numbers each, one CSV file a client, of which one column is to be predicted."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from pfl_lite.atomic_files import regular
from pfl_lite.data.federation import Federation
from pfl_lite.data.images import Card
from pfl_lite.data.partition import SPLITS
from pfl_lite.errors import InputError, refused
from pfl_lite.seeds import generator


@dataclass(frozen=True, kw_only=True)
class TableCard(Card):
    """What tables hold: `columns` [d] that predict, with `mean` and `std` [d] of all clients' training rows, and the target.

    An output y stands for `target_mean + target_std * y` in the target's own unit.
    """

    columns: tuple[str, ...]
    target_mean: float
    target_std: float


def read_tables(
    files: Sequence[Path | str],
    target: str,
    *,
    name: str = "tables",
    seed: int = 0,
    val_fraction: float = 0.2,
    test_fraction: float = 0.2,
    dtype: torch.dtype = torch.float32,
) -> Federation:
    """A federation that predicts a number: client i has the rows of the i-th file, and the column `target` is its label.

    All files have one header and numbers below it. Columns and target are scaled to mean 0 and variance 1 by the training rows
    of all clients (sums that clients can send without sending rows). A row is an image [d, 1, 1] to the networks, of which
    `linear`, `mlp` and the deeper ones fit.

    Args:
        files: one CSV file a client.
        target: the column that is predicted; all others predict.
        name: what reports call the data.
        seed: of the draw that cuts each client's rows into training, validation and test rows.
        val_fraction: share of a client's rows to choose by.
        test_fraction: share of a client's rows to test on.

    Raises:
        InputError: no file, one that is no table of finite numbers under the same header, no such target, shares that leave a
            client without training rows, or a column that never changes.
    """
    if not files or isinstance(files, str | Path):
        raise InputError("tables need a list of at least one file, one for each client")
    if min(val_fraction, test_fraction) < 0 or val_fraction + test_fraction >= 1:
        raise InputError(
            f"val_fraction and test_fraction must be 0 or more and leave rows to train on, not {val_fraction} and {test_fraction}"
        )
    tables = [_read(Path(file)) for file in files]
    header = tables[0][0]
    for file, (columns, _) in zip(files, tables, strict=True):
        if columns != header:
            raise InputError(f"{file} has other columns than {files[0]}: all clients' tables need one header")
    if target not in header:
        raise InputError(f"there is no column '{target}' to predict: the tables have {', '.join(header)}")
    cuts = [
        _cut(len(rows), generator(seed, "rows", i), val_fraction, test_fraction)
        for i, (_, rows) in enumerate(tables)
    ]
    for file, cut in zip(files, cuts, strict=True):
        if not len(cut["train"]):
            raise InputError(f"{file} has too few rows: none is left to train on")
    trained = np.concatenate([rows[cut["train"]] for (_, rows), cut in zip(tables, cuts, strict=True)])
    mean, std = trained.mean(0), trained.std(0)
    if (still := np.flatnonzero((std == 0) | (np.ptp(trained, axis=0) == 0))).size:
        raise InputError(f"the column '{header[still[0]]}' never changes in the training rows: leave it out")

    scaled = (np.concatenate([rows for _, rows in tables]) - mean) / std  # [n, d + 1]
    at = header.index(target)
    others = [j for j in range(len(header)) if j != at]
    rows = torch.as_tensor(scaled[:, others], dtype=dtype)[:, :, None, None]  # [n, d, 1, 1]
    labels = torch.as_tensor(scaled[:, at], dtype=dtype)
    starts = np.cumsum([0, *(len(rows) for _, rows in tables)])
    train, val, test = (
        [torch.as_tensor(first + cut[split]) for first, cut in zip(starts[:-1], cuts, strict=True)]
        for split in SPLITS
    )
    card = TableCard(
        name=name,
        title=f"Tables ({target})",
        classes=(target,),
        size=1,
        channels=len(others),
        train_size=len(scaled),
        mean=tuple(mean[others].tolist()),
        std=tuple(std[others].tolist()),
        columns=tuple(header[j] for j in others),
        target_mean=float(mean[at]),
        target_std=float(std[at]),
    )
    return Federation(name, card, rows, labels, rows, labels, train, val, test)


def _read(path: Path) -> tuple[list[str], np.ndarray]:
    """Header and numbers [n, columns] of a CSV file."""
    rows: list[list[float]] = []
    wanted = f"{path} is no table: a CSV file of numbers under a header is wanted"
    with (
        refused((OSError, ValueError, csv.Error), wanted),
        refused(FileNotFoundError, f"{path} does not exist"),
        regular(path).open(newline="", encoding="utf-8-sig") as file,
    ):
        lines = csv.reader(file)
        header = [word.strip() for word in next(lines, [])]
        for line in filter(None, lines):
            where = f"{path}, line {lines.line_num}"
            if len(line) != len(header):
                raise InputError(f"{where}: {len(header)} values are wanted, as in the header")
            rows.append([_number(word, name, where) for name, word in zip(header, line, strict=True)])
    if len(header) < 2 or len(set(header)) < len(header) or not rows:
        raise InputError(
            f"{path} needs a header of two or more columns with names of their own, and rows below it"
        )
    return header, np.array(rows)


def _number(word: str, column: str, where: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(
            f"{where}, column '{column[:40]}': '{word[:40]}' is no finite number: "
            "fill in what is missing, and leave out columns of words"
        )
    return value


def _cut(
    count: int, random: np.random.Generator, val_fraction: float, test_fraction: float
) -> dict[str, np.ndarray]:
    """Sorted places [n_i] of a client's training, validation and test rows."""
    order = random.permutation(count)
    test, val = round(test_fraction * count), round(val_fraction * count)
    return {
        "test": np.sort(order[:test]),
        "val": np.sort(order[test : test + val]),
        "train": np.sort(order[test + val :]),
    }
