"""Clients travel between libraries and come back as they were; what could do harm is refused."""

from __future__ import annotations

import json
import pickle
import sys
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import TensorDataset

from pfl_lite.config import make_config
from pfl_lite.data import exchange
from pfl_lite.data.federation import Federation
from pfl_lite.data.images import load
from pfl_lite.data.partition import SPLITS, ClientIndices, load_partition, partition, save_partition
from pfl_lite.errors import InputError

DIGITS = load("digits")
SAMPLES = Path(__file__).parent / "samples"


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


def test_lists_without_val_and_test_are_a_partition_and_say_their_number(tmp_path: Path) -> None:
    path = tmp_path / "clients.json"
    path.write_text('{"clients": [{"train": [0, 1]}, {"train": [2], "test": [3]}]}')
    assert [len(one.test) for one in load_partition(str(path))] == [0, 1]
    assert make_config("fedavg", partition=str(path)).clients == 2
    path.write_text('{"clients": [{"test": [0, 1]}]}')
    with pytest.raises(InputError, match=r"holds no partition \(clients/0 lacks train\)"):
        load_partition(str(path))
    for wrong, right in (("trian", "train"), ("tset", "test"), ("relable", "relabel")):
        row = {"train": [2], right: [1]}
        row[wrong] = row.pop(right)
        path.write_text(json.dumps({"clients": [{"train": [0]}, row]}))
        said = (
            rf"clients/1: unknown key '{wrong}': did you mean {right}\? \(valid: relabel, test, train, val\)"
        )
        with pytest.raises(InputError, match=rf"clients\.json holds no partition \({said}\)"):
            load_partition(str(path))
        np.savez(path.with_suffix(".npz"), **{"train/0": [0], "val/0": [1], f"{wrong}/0": [2]})
        said = rf"unknown array '{wrong}/i': did you mean {right}/i"
        with pytest.raises(InputError, match=rf"clients\.npz holds no partition \({said}"):
            load_partition(str(path.with_suffix(".npz")))
    path.write_text("{}")
    with pytest.raises(InputError, match=r"holds no partition \(it lacks clients\)"):
        load_partition(str(path))
    for wrong, right in (("client", "clients"), ("groups", "group"), ("label", "labels")):
        path.write_text(json.dumps({"clients": [{"train": [0]}], "source": "ours"} | {wrong: []}))
        said = rf"unknown key '{wrong}': did you mean {right}( or \w+)?\? \(valid: clients, group, images, labels\)"
        with pytest.raises(InputError, match=rf"clients\.json holds no partition \({said}\)"):
            load_partition(str(path))


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
    with pytest.raises(InputError, match="at least one client"):
        Federation.from_torch([], DIGITS.card)
    with pytest.raises(InputError, match="client 1 has a split 'valid': the splits are train, val and test"):
        Federation.from_torch([mine[0], {"train": mine[1]["train"], "valid": mine[1]["val"]}], DIGITS.card)
    with pytest.raises(InputError, match="the card must be a Card"):
        Federation.from_torch(mine, "digits")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="client 0 must be a dict of data sets"):
        Federation.from_torch([mine[0]["train"]], DIGITS.card)
    larger = TensorDataset(torch.zeros(2, 1, 9, 9), torch.zeros(2))
    with pytest.raises(InputError, match="images of several sizes"):
        Federation.from_torch([mine[0], {"train": larger}], DIGITS.card)
    for pixels in (
        torch.zeros(2, 1, 8, 8).byte(),
        torch.full((2, 1, 8, 8), -0.1),
        torch.full((2, 1, 8, 8), 1.1),
    ):
        with pytest.raises(InputError, match=r"floats in \[0, 1\], before any Normalize"):
            Federation.from_torch([{"train": TensorDataset(pixels, torch.zeros(2))}], DIGITS.card)
    gray = torch.zeros(2, 1, 8, 8)
    broken = gray.clone()
    broken[1, 0, 0, 0] = float("nan")
    for pixels, labels, said in (
        (broken, torch.zeros(2), r"floats in \[0, 1\], .* not as image 1 in train of client 0"),
        (gray[:, 0], torch.zeros(2), r"images must be \[C, H, H\], not as image 0 .*, \[8, 8\]: x\[None\]"),
        (gray, torch.tensor([0.0, 0.5]), "labels must be whole numbers, the classes from 0 on, not 0.5"),
        (gray, torch.eye(2), "labels must be whole numbers, one for each image"),
    ):
        with pytest.raises(InputError, match=said):
            Federation.from_torch([{"train": TensorDataset(pixels, labels)}], DIGITS.card)
    pictures = [(Image.new("L", (8, 8)), 0)]
    with pytest.raises(
        InputError, match=r"images must be tensors .* as torchvision's ToTensor makes them, not Image"
    ):
        Federation.from_torch([{"train": pictures}], DIGITS.card)  # type: ignore[dict-item]


def test_fl_bench_and_fedscale_give_the_same_clients_back(tmp_path: Path) -> None:
    for name in ("partition.json", "partition.pkl"):
        exchange.write_fl_bench(tmp_path / name, DIGITS, clients())
        assert same(exchange.read_fl_bench(tmp_path / name, DIGITS, pickled=True), clients())
    with pytest.raises(InputError, match="can carry programs"):
        exchange.read_fl_bench(tmp_path / "partition.pkl", DIGITS)
    pool = json.loads((tmp_path / "partition.json").read_text())["data_indices"]
    every = sorted(i for row in pool for split in SPLITS for i in row[split])
    assert every == list(range(len(DIGITS.train_labels) + len(DIGITS.test_labels)))
    exchange.write_fedscale(tmp_path, DIGITS, clients())
    assert same(exchange.read_fedscale(tmp_path, DIGITS), clients())


def test_a_file_that_fl_bench_wrote_is_read() -> None:
    """Written by FL-bench's own generate_data.py (commit 06e658b) for the labels of the digits, with its own counts beside it."""
    file, pool = SAMPLES / "fl_bench.pkl", DIGITS.merge()
    stats = json.loads((SAMPLES / "fl_bench.json").read_text())
    found = exchange.read_fl_bench(file, pool, pickled=True)
    for i, client in enumerate(found):
        rows = np.concatenate([client.train, client.val, client.test])
        labels, counts = np.unique(pool.train_labels[rows], return_counts=True)
        assert dict(zip(labels.astype(str), counts.tolist(), strict=True)) == stats[str(i)]["y"]
        assert len(client.test) == int(0.2 * len(rows)) and len(client.val) == int(0.1 * len(rows))
    assert len(found) == 4
    with pytest.raises(InputError, match=r"one pool: read it with images\.merge\(\)"):
        exchange.read_fl_bench(file, DIGITS, pickled=True)


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_pickled_arrays_of_every_protocol_are_read(protocol: int, tmp_path: Path) -> None:
    rows = [{split: getattr(one, split) for split in SPLITS} for one in clients()]
    for row in rows:
        row["test"] = row["test"] + len(DIGITS.train_labels)
    (tmp_path / "partition.pkl").write_bytes(pickle.dumps({"data_indices": rows}, protocol))
    assert same(exchange.read_fl_bench(tmp_path / "partition.pkl", DIGITS, pickled=True), clients())


def test_a_program_in_fl_bench_s_pickle_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "partition.pkl").write_bytes(pickle.dumps({"data_indices": Harm()}))
    with pytest.raises(InputError, match="it wants"):
        exchange.read_fl_bench(tmp_path / "partition.pkl", DIGITS, pickled=True)
    assert not (tmp_path / "harmed").exists()


def fedscale_s_own(path: Path) -> list[list[int]]:
    """The clients of a table as FedScale has them: row k is sample k, and clients are numbered as they appear."""
    found: dict[str, list[int]] = {}
    for k, row in enumerate(path.read_text().splitlines()[1:]):
        found.setdefault(row.split(",")[0], []).append(k)
    return list(found.values())


def test_fedscale_takes_our_table_for_the_same_clients(tmp_path: Path) -> None:
    whole = partition(DIGITS, "dirichlet:0.4", 4, 0, val_fraction=0)
    exchange.write_fedscale(tmp_path, DIGITS, whole)
    for split in ("train", "test"):
        mine = [getattr(one, split).tolist() for one in whole]
        assert sorted(fedscale_s_own(tmp_path / f"{split}.csv")) == sorted(mine)


def test_a_table_with_paths_of_its_own_is_read_row_by_row(tmp_path: Path) -> None:
    whole = partition(DIGITS, "dirichlet:0.4", 4, 0, val_fraction=0)
    for split in ("train", "test"):
        labels = getattr(DIGITS, f"{split}_labels")
        owner = {row: i for i, one in enumerate(whole) for row in getattr(one, split).tolist()}
        lines = ["client_id,sample_path,label_name,label_id"]
        lines += [
            f"f{owner[k]}_26,raw_data/hsf_0/u{k}.png,{labels[k]:c},{labels[k]}" for k in range(len(labels))
        ]
        (tmp_path / f"{split}.csv").write_text("\n".join(lines) + "\n")
    order = list(
        dict.fromkeys(int(line[1]) for line in (tmp_path / "train.csv").read_text().splitlines()[1:])
    )
    assert same(exchange.read_fedscale(tmp_path, DIGITS), [whole[i] for i in order])
    table = (tmp_path / "train.csv").read_text()
    (tmp_path / "train.csv").write_text(table.rstrip("\n").rpartition("\n")[0])
    with pytest.raises(InputError, match="a row with its label for each of the 1438 images"):
        exchange.read_fedscale(tmp_path, DIGITS)


@pytest.mark.parametrize("spec", ["dirichlet:0.4", "concept:2"])
def test_a_plain_file_for_each_client_gives_the_same_federation(spec: str, tmp_path: Path) -> None:
    exchange.write_clients(str(tmp_path), DIGITS, clients(spec))
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"client-{i}.npz" for i in range(4)]
    same_federation(Federation.build(*exchange.read_clients(str(tmp_path), DIGITS.card)), spec)
    (tmp_path / "client-2.npz").write_bytes(b"PK")
    with pytest.raises(InputError, match=r"can be read at .*client-2\.npz"):
        exchange.read_clients(tmp_path, DIGITS.card)


def same_federation(found: Federation, spec: str) -> None:
    before = Federation.build(DIGITS, clients(spec))
    for i in range(4):
        for split in SPLITS:
            whole = "test_" if split == "test" else ""
            old, new = getattr(before, split)[i], getattr(found, split)[i]
            for part in ("images", "labels"):
                mine, theirs = getattr(before, whole + part)[old], getattr(found, whole + part)[new]
                assert torch.equal(mine, theirs)


def test_flwr_datasets_folders_give_the_same_federation(tmp_path: Path) -> None:
    library = pytest.importorskip("datasets", reason="the library datasets is not installed")
    exchange.write_flwr_datasets(tmp_path, DIGITS, clients("concept:2"))
    found = exchange.read_flwr_datasets(tmp_path, DIGITS.card)
    same_federation(Federation.build(*found), "concept:2")
    whole = library.load_from_disk(str(tmp_path / "partition_1"))[
        "train"
    ]  # as flwr-datasets-creator saves it
    whole.save_to_disk(str(tmp_path / "one" / "partition_0"))
    _, (one,) = exchange.read_flwr_datasets(tmp_path / "one", DIGITS.card)
    assert len(one.train) == len(whole) and not len(one.test)
    named = library.Dataset.from_dict({"image": [{"path": "/etc/passwd", "bytes": None}], "label": [0]})
    named.cast_column("image", library.Image()).cast_column(
        "image", library.Image(decode=False)
    ).save_to_disk(str(tmp_path / "named" / "partition_0"))
    for folder, says in (("named", "only named|cannot identify"), ("nothing", "partition_0 is no data set")):
        with pytest.raises(InputError, match=says):
            exchange.read_flwr_datasets(tmp_path / folder, DIGITS.card)
    with pytest.raises(InputError, match="labels 'fine_label'"):
        exchange.read_flwr_datasets(tmp_path, DIGITS.card, label="fine_label")


def test_without_the_library_flwr_datasets_folders_say_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match="pip install datasets"):
        exchange.read_flwr_datasets(tmp_path, DIGITS.card)


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


LABEL = int(DIGITS.train_labels[1])


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ("", r"train\.csv is no table of FedScale's"),
        ("client_id\n0\n", r"train\.csv is no table of FedScale's"),
        ("client_id,sample_path,label_name,label_id\n0,train/1\n", r"train\.csv is no table of FedScale's"),
        (
            f"client_id,sample_path,label_id\n0,train/1,{(LABEL + 1) % 10}\n",
            f"which is {LABEL}: other images",
        ),
    ],
)
def test_a_table_without_its_columns_or_of_other_images_is_refused(
    table: str, says: str, tmp_path: Path
) -> None:
    exchange.write_fedscale(tmp_path, DIGITS, clients())
    (tmp_path / "train.csv").write_text(table)
    with pytest.raises(InputError, match=says):
        exchange.read_fedscale(tmp_path, DIGITS)


def test_files_and_items_of_another_shape_are_refused_with_what_is_missing(tmp_path: Path) -> None:
    arrays = {f"{split}_{part}": np.zeros(1) for split in ("train", "test") for part in ("images", "labels")}
    np.savez(tmp_path / "client-0.npz", **arrays)
    with pytest.raises(InputError, match=r"is no file of `write_clients`: it lacks 'of'; arrays of your own"):
        exchange.read_clients(tmp_path, DIGITS.card)
    rows: Any = [{"image": torch.zeros(1, 8, 8), "label": 0}]
    with pytest.raises(
        InputError, match=r"must be a pair \(image, label\), not dict: of rows that are dicts"
    ):
        Federation.from_torch([{"train": rows}], DIGITS.card)
