"""Clients travel between libraries and come back as they were; what could do harm is refused."""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from pfl_lite.data import exchange
from pfl_lite.data.federation import Federation
from pfl_lite.data.images import load
from pfl_lite.data.partition import SPLITS, ClientIndices, load_partition, partition, save_partition
from pfl_lite.errors import InputError

DIGITS = load("digits")


def clients(spec: str = "dirichlet:0.4") -> list[ClientIndices]:
    return partition(DIGITS, spec, 4, 0)


def same(one: list[ClientIndices], other: list[ClientIndices], splits: tuple[str, ...] = SPLITS) -> bool:
    return len(one) == len(other) and all(
        np.array_equal(getattr(a, split), getattr(b, split))
        for a, b in zip(one, other, strict=True)
        for split in splits
    )


@pytest.mark.parametrize("spec", ["dirichlet:0.4", "concept:2"])
def test_a_partition_as_json_says_where_it_comes_from_and_comes_back(spec: str, tmp_path: Path) -> None:
    path = tmp_path / "clients.json"
    save_partition(path, clients(spec), DIGITS, partition=spec, seed=0)
    said = json.loads(path.read_text())
    assert (said["format"], said["partition"], said["seed"], len(said["clients"])) == (1, spec, 0, 4)
    back = load_partition(str(path), 4, DIGITS)
    assert same(back, clients(spec))
    for a, b in zip(back, clients(spec), strict=True):
        assert a.group == b.group and (a.relabel is None) == (b.relabel is None)
        assert a.relabel is None or np.array_equal(a.relabel, b.relabel)
    save_partition(tmp_path / "clients.npz", clients(spec), DIGITS)
    assert same(load_partition(str(tmp_path / "clients.npz"), 4, DIGITS), back)


def spoil_index(said: dict[str, Any]) -> None:
    said["clients"][0]["train"][0] = 10**7


def spoil_sign(said: dict[str, Any]) -> None:
    said["clients"][0]["train"][0] = -1


def spoil_kind(said: dict[str, Any]) -> None:
    said["clients"][0]["train"][0] = 0.5


def spoil_name(said: dict[str, Any]) -> None:
    said["clients"][0]["../train"] = [1]


def spoil_labels(said: dict[str, Any]) -> None:
    said["labels"] = "0" * 12


def spoil_nothing_left(said: dict[str, Any]) -> None:
    said["clients"] = []


@pytest.mark.parametrize(
    "spoil", [spoil_index, spoil_sign, spoil_kind, spoil_name, spoil_labels, spoil_nothing_left]
)
def test_a_json_partition_that_cannot_be_is_refused(spoil: Callable[..., None], tmp_path: Path) -> None:
    path = tmp_path / "clients.json"
    save_partition(path, clients(), DIGITS)
    said = json.loads(path.read_text())
    spoil(said)
    path.write_text(json.dumps(said))
    with pytest.raises(InputError, match=r"clients\.json"):
        load_partition(str(path), 4 if said["clients"] else None, DIGITS)


@pytest.mark.parametrize(
    "text", ["", "[1]", "{}", '{"clients": 3}', '{"clients": [{"train": {"a": 1}}]}', "[" * 99_999]
)
def test_another_json_is_no_partition(text: str, tmp_path: Path) -> None:
    (tmp_path / "clients.json").write_text(text)
    with pytest.raises(InputError, match="holds no partition"):
        load_partition(str(tmp_path / "clients.json"))


def test_anybody_s_torch_datasets_are_a_federation() -> None:
    before = Federation.build(DIGITS, clients())

    def dataset(rows: torch.Tensor, whole: str) -> TensorDataset:
        pixels, labels = (
            torch.from_numpy(getattr(DIGITS, f"{whole}_{part}")) for part in ("images", "labels")
        )
        return TensorDataset(pixels[rows][:, None] / 255, labels[rows])

    splits = {"train": "train", "val": "train", "test": "test"}
    mine = [
        {split: dataset(getattr(before, split)[i], whole) for split, whole in splits.items()}
        for i in range(4)
    ]
    after = Federation.from_torch(mine, DIGITS.card)
    for i in range(4):
        for split in ("train", "val"):
            old, new = getattr(before, split)[i], getattr(after, split)[i]
            assert torch.equal(before.images[old], after.images[new])
            assert torch.equal(before.labels[old], after.labels[new])
        assert torch.equal(before.test_images[before.test[i]], after.test_images[after.test[i]])
    with pytest.raises(InputError, match="client 0 has no training images"):
        Federation.from_torch([{"test": mine[0]["test"]}], DIGITS.card)


def test_fl_bench_and_fedscale_give_the_same_clients_back(tmp_path: Path) -> None:
    exchange.write_fl_bench(tmp_path / "partition.json", DIGITS, clients())
    assert same(exchange.read_fl_bench(tmp_path / "partition.json", DIGITS), clients())
    pool = json.loads((tmp_path / "partition.json").read_text())["data_indices"]
    every = sorted(i for row in pool for split in SPLITS for i in row[split])
    assert every == list(range(len(DIGITS.train_labels) + len(DIGITS.test_labels)))
    exchange.write_fedscale(tmp_path, DIGITS, clients())
    assert same(exchange.read_fedscale(tmp_path, DIGITS), clients())


def test_pfllib_gives_the_same_images_and_labels_back(tmp_path: Path) -> None:
    exchange.write_pfllib(tmp_path, DIGITS, clients("concept:2"))
    images, found = exchange.read_pfllib(tmp_path, DIGITS.card, pickled=True)
    before, after = Federation.build(DIGITS, clients("concept:2")), Federation.build(images, found)
    for i in range(4):
        mine = np.concatenate([before.train[i], before.val[i]])
        assert np.array_equal(before.images[mine], after.images[after.train[i]])
        assert np.array_equal(before.labels[mine], after.labels[after.train[i]])
        assert np.array_equal(before.test_images[before.test[i]], after.test_images[after.test[i]])
    with np.load(tmp_path / "train" / "0.npz", allow_pickle=True) as file:  # as PFLlib reads it
        held = file["data"].tolist()
    assert held["x"].shape[1:] == (1, 8, 8) and held["x"].min() >= -1 and held["x"].max() <= 1


class Harm:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("harmed"),))


def test_a_program_in_a_pickle_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exchange.write_pfllib(tmp_path, DIGITS, clients())
    with pytest.raises(InputError, match="can carry programs"):
        exchange.read_pfllib(tmp_path, DIGITS.card)
    file = BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "|O", "fortran_order": False, "shape": ()})
    file.write(pickle.dumps(Harm()))
    with zipfile.ZipFile(tmp_path / "train" / "1.npz", "w") as zipped:
        zipped.writestr("data.npy", file.getvalue())
    with pytest.raises(InputError, match=r"1\.npz .* it wants"):
        exchange.read_pfllib(tmp_path, DIGITS.card, pickled=True)
    assert not (tmp_path / "harmed").exists()


@pytest.mark.parametrize(
    "sample", ["../train/7", "train/../7", "/etc/passwd", "test/7", "train/x", "train/99999999"]
)
def test_a_table_that_names_other_files_is_refused(sample: str, tmp_path: Path) -> None:
    exchange.write_fedscale(tmp_path, DIGITS, clients())
    table = (tmp_path / "train.csv").read_text().splitlines()
    table[1] = f"0,{sample},0,0"
    (tmp_path / "train.csv").write_text("\n".join(table))
    with pytest.raises(InputError):
        exchange.read_fedscale(tmp_path, DIGITS)


INDICES = '{"data_indices": [{"train": [%s], "val": [], "test": [3]}]}'


@pytest.mark.parametrize(
    "text", ["", "{}", *(INDICES % one for one in ("1e99", "5", "0.5", "true", '"3"', "null"))]
)
def test_another_file_is_no_partition_of_fl_bench(text: str, tmp_path: Path) -> None:
    (tmp_path / "partition.json").write_text(text)
    with pytest.raises(InputError):
        exchange.read_fl_bench(tmp_path / "partition.json", DIGITS)


@pytest.mark.parametrize("index", ["0.5", "true", '"3"', "null", "1e99"])
def test_an_index_in_a_json_is_a_whole_number(index: str, tmp_path: Path) -> None:
    (tmp_path / "clients.json").write_text(
        '{"clients": [{"train": [%s, 7], "val": [], "test": [3]}]}' % index  # noqa: UP031
    )
    with pytest.raises(InputError, match="holds no partition"):
        load_partition(str(tmp_path / "clients.json"), 1, DIGITS)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda x: x[..., :-1, :-1], "images of several sizes"),
        (lambda x: x.astype(str), r"no images in \[-1, 1\]"),
        (lambda x: 255 * x, r"no images in \[-1, 1\]"),
        (lambda x: x * np.nan, r"no images in \[-1, 1\]"),
    ],
)
def test_other_images_are_not_pfllib_s(change: Any, says: str, tmp_path: Path) -> None:
    exchange.write_pfllib(tmp_path, DIGITS, clients())
    path = tmp_path / "train" / "1.npz"
    with np.load(path, allow_pickle=True) as file:
        held = file["data"].item()
    np.savez(path, data=np.array(held | {"x": change(held["x"])}, dtype=object))
    with pytest.raises(InputError, match=says):
        exchange.read_pfllib(tmp_path, DIGITS.card, pickled=True)


def test_an_empty_table_is_not_fedscale_s(tmp_path: Path) -> None:
    exchange.write_fedscale(tmp_path, DIGITS, clients())
    (tmp_path / "train.csv").write_text("")
    with pytest.raises(InputError, match=r"train\.csv is no table of FedScale's"):
        exchange.read_fedscale(tmp_path, DIGITS)
