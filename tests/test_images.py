"""Data sets: the embedded ones, conversion of torchvision's own file formats, and files that are not what
they should be.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import pickle
import shutil
import struct
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pfl_lite.data import glyphs, images
from pfl_lite.data.images import Card, Images, data_folder, datasets, load
from pfl_lite.data.partition import partition
from pfl_lite.errors import InputError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data folder, and a network that is down."""
    monkeypatch.setenv("PFL_LITE_DATA", str(tmp_path))

    def no_network(*arguments: object, **options: object) -> None:
        raise OSError("network is\nunreachable")

    monkeypatch.setattr("urllib.request.urlopen", no_network)
    return tmp_path


@pytest.fixture
def tv() -> Any:
    """torchvision's data sets: seconds that only who tests them waits for."""
    import torchvision.datasets

    return torchvision.datasets


def arrays(n: int = 20, test: int = 10, classes: int = 10) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "train_images": rng.integers(0, 256, (n, 28, 28), dtype=np.uint8),
        "train_labels": np.sort(np.arange(n) % classes),
        "test_images": rng.integers(0, 256, (test, 28, 28), dtype=np.uint8),
        "test_labels": np.sort(np.arange(test) % classes).astype(np.int32),
    }


def same_images(a: Images, b: Images) -> bool:
    parts = [f"{split}_{part}" for split in ("train", "test") for part in ("images", "labels", "writers")]
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in parts)


# --- embedded data sets ---


def test_digits(folder: Path) -> None:
    digits = load("digits")
    assert digits.train_images.shape == (1438, 8, 8) and digits.test_images.shape == (359, 8, 8)
    assert digits.train_images.dtype == np.uint8 and digits.train_labels.dtype == np.int64
    assert digits.train_images.min() == 0 and digits.train_images.max() == 255
    shares = np.bincount(digits.test_labels) / np.bincount(np.r_[digits.train_labels, digits.test_labels])
    assert np.abs(shares - 0.2).max() < 0.005
    pixels = digits.train_images / 255
    assert digits.card.mean == pytest.approx((pixels.mean(),), abs=1e-4)
    assert digits.card.std == pytest.approx((pixels.std(),), abs=1e-4)
    assert digits.card.train_size == datasets()["digits"].train_size == 1438
    assert digits.card.test_size == datasets()["digits"].test_size == 359
    assert np.array_equal(load("digits").test_images, digits.test_images)
    assert not any(folder.iterdir())


def test_glyphs_are_drawn_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = load("glyphs")
    assert drawn.card.classes == glyphs.CHARACTERS and len(glyphs.CHARACTERS) == 62
    assert drawn.train_images.shape == (12_400, 28, 28) and drawn.test_images.shape == (3_100, 28, 28)
    assert set(np.bincount(drawn.train_labels)) == {200} and set(np.bincount(drawn.test_labels)) == {50}
    assert drawn.train_writers is not None and drawn.test_writers is not None
    assert set(np.bincount(drawn.train_writers)) == {124} and set(np.bincount(drawn.test_writers)) == {31}
    pixels = drawn.train_images / 255
    assert drawn.card.mean == pytest.approx((pixels.mean(),), abs=2e-3)
    assert drawn.card.std == pytest.approx((pixels.std(),), abs=2e-3)
    assert drawn.card.train_size == datasets()["glyphs"].train_size

    monkeypatch.setattr(glyphs, "draw", lambda: pytest.fail("drawn a second time"))
    cached = load("glyphs")
    assert [path.name for path in folder.iterdir()] == ["glyphs.npz"]
    assert same_images(cached, drawn)


def test_glyphs10_are_the_figures_of_the_glyphs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = load("glyphs10")
    assert [path.name for path in folder.iterdir()] == ["glyphs.npz"]  # no pixel is stored twice
    monkeypatch.setattr(glyphs, "draw", lambda: pytest.fail("drawn a second time"))
    drawn = load("glyphs")
    for split, n in (("train", 2_000), ("test", 500)):
        wanted = np.isin(
            getattr(drawn, f"{split}_labels"), [drawn.card.classes.index(c) for c in "0123456789"]
        )
        assert len(getattr(figures, f"{split}_labels")) == n == getattr(figures.card, f"{split}_size")
        for part in ("images", "labels", "writers"):
            of_all = getattr(drawn, f"{split}_{part}")
            assert np.array_equal(getattr(figures, f"{split}_{part}"), of_all[wanted])
    assert figures.name == "glyphs10" and figures.card.classes == tuple("0123456789")
    assert set(np.bincount(figures.train_labels)) == {200} and set(np.bincount(figures.test_labels)) == {50}
    assert set(np.bincount(figures.train_writers)) == {20} and set(np.bincount(figures.test_writers)) == {5}
    card, pixels = datasets()["glyphs10"], figures.train_images / 255
    assert (card.train_size, card.test_size, card.writers) == (2_000, 500, 100)
    assert card.mean == pytest.approx((pixels.mean(),), abs=2e-3)
    assert card.std == pytest.approx((pixels.std(),), abs=2e-3)


def test_glyphs_are_legible_and_their_writers_tell() -> None:
    drawn = glyphs.draw()
    ink = drawn["train_images"] > 128
    assert ink.mean(axis=(1, 2)).min() > 0.01  # no empty image
    assert ink[:, [0, -1]].mean() < 0.01 and ink[:, :, [0, -1]].mean() < 0.01  # nothing is cut off
    # A writer's slant is visible: shear is the regression of column on height, over the ink of an upright
    # "l".
    bars, hands = drawn["train_labels"] == glyphs.CHARACTERS.index("l"), glyphs.writers()
    lean, truth = [], []
    for image, w in zip(ink[bars], drawn["train_writers"][bars], strict=True):
        if hands[w].font in ("DejaVuSans", "cmss10"):
            rows, columns = np.nonzero(image)
            lean.append(-np.polyfit(rows, columns, 1)[0])
            truth.append(hands[w].slant * hands[w].width - hands[w].rotation)
    assert np.corrcoef(lean, truth)[0, 1] > 0.9
    # and so is the noise, in the corners where nobody writes
    corner = drawn["train_images"][:, :3, :3].reshape(-1, 9).std(axis=1)
    noise = np.array([hands[w].noise for w in drawn["train_writers"]])
    assert np.corrcoef(corner, noise)[0, 1] > 0.6


def test_drawing_is_deterministic() -> None:
    hands, rngs = glyphs.writers(), [np.random.default_rng(5) for _ in range(2)]
    writer, label = np.array([0, 7, 42]), np.array([0, 40, 61])
    first, second = (glyphs._draw_all(hands, writer, label, rng) for rng in rngs)
    assert np.array_equal(first, second)


def test_glyphs_of_an_older_version_are_drawn_anew(folder: Path) -> None:
    old = arrays() | {
        "version": np.array(0),
        "train_writers": np.zeros(20, int),
        "test_writers": np.zeros(10, int),
    }
    np.savez(folder / "glyphs.npz", **old)
    assert len(load("glyphs").train_labels) == 12_400
    with np.load(folder / "glyphs.npz") as file:
        assert int(file["version"]) == glyphs.VERSION


def test_glyphs_with_a_version_that_is_no_number_are_drawn_anew(folder: Path) -> None:
    load("glyphs")
    with np.load(folder / "glyphs.npz") as kept:
        np.savez(folder / "glyphs.npz", **({name: kept[name] for name in kept.files} | {"version": "x"}))
    assert len(load("glyphs").train_labels) == 62 * glyphs.TRAIN_PER_CLASS


def test_a_data_file_is_checked_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez(folder / "fashion_mnist.npz", **arrays())
    checked = []
    monkeypatch.setattr(images, "_check_card", lambda what, *_: checked.append(what))
    load("fashion_mnist")
    assert len(checked) == 2  # training and test images


def test_grey_images_with_an_axis_of_one_channel_are_refused(folder: Path) -> None:
    made = arrays()
    np.savez(folder / "fashion_mnist.npz", **(made | {"train_images": made["train_images"][..., None]}))
    with pytest.raises(InputError, match=r"must be \[n, H, H\] in gray, not \[20, 28, 28, 1\]"):
        load("fashion_mnist")


def test_glyphs_without_a_folder_to_write_to(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "file").write_text("in the way")
    monkeypatch.setenv("PFL_LITE_DATA", str(folder / "file"))
    assert len(load("glyphs").train_labels) == 12_400


# --- conversion from torchvision's files ---


def write_cifar(
    folder: Path, kind: type, monkeypatch: pytest.MonkeyPatch
) -> dict[str, tuple[np.ndarray, list[int]]]:
    """Small batches in the published pickle format, with their own checksums in the place of the published
    ones.
    """
    rng = np.random.default_rng(1)
    key, names = ("labels", 10) if kind.__name__ == "CIFAR10" else ("fine_labels", 100)
    base = folder / "downloads" / kind.base_folder
    base.mkdir(parents=True)

    def save(name: str, content: dict) -> list[str]:
        raw = pickle.dumps(content)
        (base / name).write_bytes(raw)
        return [name, hashlib.md5(raw).hexdigest()]

    truth: dict[str, tuple[np.ndarray, list[int]]] = {}
    for attribute in ("train_list", "test_list"):
        pixels, labels, listed = [], [], []
        for name, _ in getattr(kind, attribute):
            data = rng.integers(0, 256, (12, 3072), dtype=np.uint8)
            classes = rng.integers(0, names, 12).tolist()
            listed.append(save(name, {"data": data, key: classes}))
            pixels.append(data)
            labels += classes
        monkeypatch.setattr(kind, attribute, listed)
        truth[attribute[:-5]] = np.concatenate(pixels), labels
    name, md5 = save(kind.meta["filename"], {kind.meta["key"]: [str(c) for c in range(names)]})
    monkeypatch.setattr(kind, "meta", kind.meta | {"md5": md5})
    return truth


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar_is_converted(folder: Path, monkeypatch: pytest.MonkeyPatch, tv: Any, name: str) -> None:
    truth = write_cifar(folder, getattr(tv, name.upper()), monkeypatch)
    loaded = load(name)
    for split, (data, labels) in truth.items():
        pictures = getattr(loaded, f"{split}_images")
        assert pictures.dtype == np.uint8 and pictures.shape == (len(labels), 32, 32, 3)
        # A row of the published file is 1024 red, 1024 green, 1024 blue values, each row by row.
        assert pictures[3, 5, 7].tolist() == [data[3, 1024 * channel + 32 * 5 + 7] for channel in range(3)]
        assert getattr(loaded, f"{split}_labels").tolist() == labels
    assert loaded.card.train_size == len(truth["train"][1])
    shutil.rmtree(folder / "downloads")
    assert np.array_equal(load(name).train_images, loaded.train_images)  # from the .npz alone
    assert [path.name for path in folder.iterdir()] == [f"{name}.npz"]


def write_idx(path: Path, values: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    header = struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape)
    path.write_bytes(gzip.compress(header + values.astype(np.uint8).tobytes()))


@pytest.mark.parametrize(("name", "published"), [("mnist", "MNIST"), ("fashion_mnist", "FashionMNIST")])
def test_mnist_and_fashion_mnist_are_converted(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tv: Any, name: str, published: str
) -> None:
    data = arrays()
    raw, resources = folder / "downloads" / published / "raw", []
    for prefix, split in (("train", "train"), ("t10k", "test")):
        for suffix, part in (("images-idx3-ubyte.gz", "images"), ("labels-idx1-ubyte.gz", "labels")):
            path = raw / f"{prefix}-{suffix}"
            write_idx(path, data[f"{split}_{part}"])
            resources.append((path.name, hashlib.md5(path.read_bytes()).hexdigest()))
    monkeypatch.setattr(getattr(tv, published), "resources", resources)
    loaded = load(name)
    for key, value in data.items():
        assert np.array_equal(getattr(loaded, key), value)
    assert (folder / f"{name}.npz").exists()


def test_emnist_is_converted_and_put_upright(folder: Path, monkeypatch: pytest.MonkeyPatch, tv: Any) -> None:
    data = arrays(62, 62, 62)
    data["train_images"][0] = 0
    data["train_images"][0, 4:24, 13] = 255  # an upright bar
    archive = folder / "downloads" / "EMNIST" / "raw" / "gzip.zip"
    archive.parent.mkdir(parents=True)
    with zipfile.ZipFile(archive, "w") as file:
        for split in ("train", "test"):
            for suffix, part in (("images-idx3-ubyte.gz", "images"), ("labels-idx1-ubyte.gz", "labels")):
                values = data[f"{split}_{part}"]
                published = values.swapaxes(1, 2) if part == "images" else values  # column by column
                name = f"emnist-byclass-{split}-{suffix}"
                write_idx(folder / name, published)
                file.write(folder / name, f"gzip/{name}")
                (folder / name).unlink()
    monkeypatch.setattr(tv.EMNIST, "md5", hashlib.md5(archive.read_bytes()).hexdigest())
    loaded = load("emnist")
    for key, value in data.items():
        assert np.array_equal(getattr(loaded, key), value)
    assert loaded.train_images[0, 4:24, 13].min() == 255
    assert tuple(tv.EMNIST.classes_split_dict["byclass"]) == loaded.card.classes


# --- conversion from LEAF's files ---


def write_leaf(path: Path, written: dict[str, list[int]], seed: int = 0) -> dict[str, np.ndarray]:
    """One JSON file in LEAF's format, with random pixels for the labels given: their grey levels, by writer."""
    rng = np.random.default_rng(seed)
    grey = {user: rng.integers(0, 256, (len(labels), 784)) for user, labels in written.items()}
    content = {
        "users": list(written),
        "num_samples": [len(labels) for labels in written.values()],
        "user_data": {
            user: {"x": (grey[user] / 255).tolist(), "y": labels} for user, labels in written.items()
        },
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return grey


def test_femnist_is_converted_from_cut_files(folder: Path) -> None:
    # Three files: f2's images are in two of them; f1 has two images in all, too few; f3 has three.
    first = write_leaf(folder / "femnist/train/a.json", {"f2": [0, 61, 7], "f1": [5]}, 1)
    second = write_leaf(folder / "femnist/train/b.json", {"f0": [10, 36], "f3": [1, 2]}, 2)
    third = write_leaf(folder / "femnist/test/a.json", {"f0": [11], "f1": [6], "f2": [3, 4], "f3": [9]}, 3)
    loaded = load("femnist")
    assert loaded.train_writers is not None and loaded.test_writers is not None
    assert loaded.train_labels.tolist() == [0, 61, 7, 10, 36, 1, 2]
    assert loaded.train_writers.tolist() == [1, 1, 1, 0, 0, 2, 2]  # numbered in the order of their names
    assert loaded.test_labels.tolist() == [11, 3, 4, 9] and loaded.test_writers.tolist() == [0, 1, 1, 2]
    grey = np.concatenate([first["f2"], second["f0"], second["f3"]])
    assert loaded.train_images.dtype == np.uint8
    assert np.array_equal(loaded.train_images, grey.reshape(7, 28, 28))  # row by row, to the grey level
    assert np.array_equal(loaded.test_images[1:3].reshape(2, 784), third["f2"])
    assert (loaded.card.train_size, loaded.card.test_size, loaded.card.writers) == (7, 4, 3)

    shutil.rmtree(folder / "femnist")
    again = load("femnist")  # from the .npz alone, ever after
    assert [path.name for path in folder.iterdir()] == ["femnist.npz"]
    assert same_images(again, loaded)
    clients = partition(loaded, "writers:1", 2, seed=0)
    assert all(len(set(loaded.train_writers[[*client.train, *client.val]])) == 1 for client in clients)


def test_femnist_is_cut_here_where_it_is_not(folder: Path) -> None:
    sizes = {"w0": 3, "w1": 40, "w2": 2, "w3": 17, "w4": 0}
    write_leaf(folder / "femnist/all/all_data_0.json", {w: [n % 62] * n for w, n in sizes.items()})
    loaded = load("femnist")
    assert loaded.train_writers is not None and loaded.test_writers is not None
    assert np.bincount(loaded.train_writers).tolist() == [2, 32, 14]
    assert np.bincount(loaded.test_writers).tolist() == [1, 8, 3]
    assert loaded.test_labels.tolist() == [3] + [40] * 8 + [17] * 3
    both = np.concatenate([loaded.train_images, loaded.test_images]).reshape(60, -1)
    assert len(np.unique(both, axis=0)) == 60  # every image once
    (folder / "femnist.npz").unlink()
    assert np.array_equal(load("femnist").test_images, loaded.test_images)  # always the same cut


def test_no_femnist(folder: Path) -> None:
    write_leaf(folder / "femnist/train/a.json", {"f0": [1, 2, 3]})  # and no test/*.json
    with pytest.raises(InputError) as raised:
        load("femnist")
    sentence = str(raised.value)
    assert "\n" not in sentence and str(folder / "femnist.npz") in sentence
    for way in (
        *(str(folder / "femnist" / part) for part in ("train", "test", "all")),
        "put femnist.npz there",
    ):
        assert way in sentence
    assert not (folder / "femnist.npz").exists()
    write_leaf(folder / "femnist/test/a.json", {"f1": [1, 2]})
    with pytest.raises(InputError, match="no writer with test images and 3 images or more"):
        load("femnist")


@pytest.mark.parametrize(
    "content",
    [
        "not json",
        "[]",
        '{"users": ["a"]}',
        '{"users": ["a"], "user_data": {}}',
        '{"users": ["a"], "user_data": {"a": {"x": [[0.5]], "y": [1]}}}',
        *(
            json.dumps({"users": ["a"], "user_data": {"a": {"x": [[pixel] * 784] * 3, "y": labels}}})
            for pixel, labels in (
                (255, [1] * 3),
                (-0.1, [1] * 3),
                (0.5, [1]),
                (0.5, [62] * 3),
                (0.5, [0.5] * 3),
            )
        ),
        json.dumps({"users": ["a"], "user_data": {"a": {"x": [[None] * 784], "y": [1]}}}),
    ],
)
def test_files_that_are_not_leafs(folder: Path, content: str) -> None:
    path = folder / "femnist" / "all" / "a.json"
    path.parent.mkdir(parents=True)
    path.write_text(content)
    with pytest.raises(InputError, match="is not a FEMNIST file of LEAF") as raised:
        load("femnist")
    assert str(path) in str(raised.value) and "\n" not in str(raised.value)
    assert path.read_text() == content and not (folder / "femnist.npz").exists()


def test_femnist_put_there_by_hand_says_who_wrote_what(folder: Path) -> None:
    data = arrays(62, 62, 62)
    np.savez(folder / "femnist.npz", **data)
    with pytest.raises(
        InputError, match=r"no array train_writers, test_writers, .* delete it, then it is made from"
    ):
        load("femnist")
    writers = {"train_writers": np.arange(62, dtype=np.int32), "test_writers": np.zeros(62, int)}
    np.savez(folder / "femnist.npz", **data, **writers)
    loaded = load("femnist")
    assert loaded.train_writers is not None and loaded.train_writers.dtype == np.int64
    for bad in (np.zeros(61, int), np.zeros(62), np.full(62, -1)):
        np.savez(folder / "femnist.npz", **data, **(writers | {"test_writers": bad}))
        with pytest.raises(InputError, match="test_writers of 'femnist' must be"):
            load("femnist")


# --- parts of a data set, and one pool instead of two ---


def test_a_part_of_a_data_set(folder: Path) -> None:
    whole, tenth, fifth = load("glyphs10"), load("glyphs10:0.1"), load("glyphs10:0.2")
    assert tenth.name == "glyphs10:0.1" and tenth.card.name == "glyphs10"
    assert (tenth.card.train_size, tenth.card.test_size) == (200, 50)
    assert tenth.train_writers is not None and tenth.test_writers is not None
    assert tenth.card.writers == len({*tenth.train_writers, *tenth.test_writers})
    rows = [image.tobytes() for image in whole.train_images]
    held, more = ([rows.index(image.tobytes()) for image in part.train_images] for part in (tenth, fifth))
    assert sorted(held) == held and set(held) < set(more)
    assert np.array_equal(tenth.train_labels, whole.train_labels[held])
    assert np.array_equal(load("glyphs10:0.1").test_images, tenth.test_images)
    assert np.array_equal(load("glyphs10:1").test_images, whole.test_images)
    for name in ("glyphs10:0", "glyphs10:1.5", "glyphs10:x", "glyphs10:", "glyphs10:nan", "glyphs10:0.1:0.1"):
        with pytest.raises(InputError, match=r"a number in \(0, 1\], e.g. glyphs10:0.1, not"):
            load(name)
    with pytest.raises(InputError, match=r"'glyphs10:0\.001' leaves none of the 500 test images"):
        load("glyphs10:0.001")
    with pytest.raises(
        InputError, match=r"unknown data set 'glyph'.*register_images adds your own in a script: see"
    ):
        load("glyph:0.1")


def test_a_tenth_of_emnist_has_the_papers_size() -> None:
    card = replace(datasets()["emnist"], size=1)
    pixels = {split: np.zeros((n, 1, 1), np.uint8) for split, n in (("train", 697_932), ("test", 116_323))}
    labels = {split: np.zeros(len(array), int) for split, array in pixels.items()}
    whole = images.Images("emnist", pixels["train"], labels["train"], pixels["test"], labels["test"], card)
    tenth = images._sample(whole, "emnist:0.1", 0.1)
    assert len(tenth.train_labels) + len(tenth.test_labels) == 81_425  # int(0.1 * 814 255)


def test_one_pool(folder: Path) -> None:
    data = load("glyphs10")
    pool = data.with_split("fedem")
    assert pool.merged and not data.merged and data.with_split("published") is data
    for part, n in (("images", 2_500), ("labels", 2_500), ("writers", 2_500)):
        merged = getattr(pool, f"train_{part}")
        assert merged is getattr(pool, f"test_{part}") and len(merged) == n
        assert np.array_equal(merged[:2_000], getattr(data, f"train_{part}"))
        assert np.array_equal(merged[2_000:], getattr(data, f"test_{part}"))
    assert pool.merge() is pool and load("digits").merge().train_writers is None
    with pytest.raises(InputError, match="unknown split 'fedme': did you mean fedem"):
        data.with_split("fedme")


# --- files that are there already, or should be ---


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "cifar10", "cifar100", "emnist"])
def test_no_data_and_no_network(folder: Path, name: str) -> None:
    with pytest.raises(InputError) as raised:
        load(name)
    sentence = str(raised.value)
    assert "\n" not in sentence and str(folder / f"{name}.npz") in sentence
    assert "with a network" in sentence and f"put {name}.npz there" in sentence
    assert not list(folder.iterdir())


@pytest.mark.parametrize("name", ["fashion_mnist", "femnist"])
def test_a_data_folder_that_is_mistyped_is_not_made_and_one_that_is_a_file_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("PFL_LITE_DATA", str(folder / "mist" / "yped"))
    with pytest.raises(InputError, match="does not exist and"):
        load(name)
    assert not list(folder.iterdir())
    (folder / "file").write_text("in the way")
    for beyond in ("file", "file/folder"):
        monkeypatch.setenv("PFL_LITE_DATA", str(folder / beyond))
        with pytest.raises(
            InputError, match=f"^PFL_LITE_DATA must be a folder, but {folder}/file is a file$"
        ):
            load(name)
    assert [path.name for path in folder.iterdir()] == ["file"]


def test_a_file_that_is_there_is_used_as_it_is(folder: Path) -> None:
    data = arrays()
    np.savez(folder / "fashion_mnist.npz", **data, extra=np.zeros(3))
    before = (folder / "fashion_mnist.npz").read_bytes()
    loaded = load("fashion_mnist")
    for key, value in data.items():
        assert np.array_equal(getattr(loaded, key), value)
    assert loaded.test_labels.dtype == np.int64 and loaded.train_writers is None
    assert (loaded.card.train_size, loaded.card.test_size) == (20, 10)
    assert (folder / "fashion_mnist.npz").read_bytes() == before


def test_any_damage_is_named_and_left_alone(folder: Path) -> None:
    path = folder / "fashion_mnist.npz"
    np.savez(path, **arrays())
    good = path.read_bytes()
    flipped = bytearray(good)
    flipped[len(good) // 3] ^= 1  # one bit of one pixel: only the checksum can tell
    for bad in (
        b"",
        b"not a zip file",
        good[: len(good) // 2],
        good[:-30],
        bytes(flipped),
        b"\x93NUMPY\x01\x00",
    ):
        path.write_bytes(bad)
        with pytest.raises(InputError, match="damaged or half-written: delete it") as raised:
            load("fashion_mnist")
        assert str(path) in str(raised.value) and "\n" not in str(raised.value)
        assert path.read_bytes() == bad


def test_objects_are_never_unpickled(folder: Path) -> None:
    np.savez(
        folder / "fashion_mnist.npz", **(arrays() | {"train_labels": np.array([print] * 20, dtype=object)})
    )
    with pytest.raises(InputError, match="damaged"):
        load("fashion_mnist")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"test_labels": None}, "has no array test_labels"),
        (
            {"train_images": np.zeros((20, 28, 28))},
            "train_images of 'fashion_mnist' must be uint8, from 0 to 255, not float64",
        ),
        (
            {"train_images": np.zeros((20, 32, 32), np.uint8)},
            "train_images of .* have size 32, but their card says size=28",
        ),
        ({"test_images": np.zeros((10, 28, 28, 3), np.uint8)}, "test_images"),
        ({"train_labels": np.zeros(19, int)}, "train_labels"),
        ({"train_labels": np.zeros(20)}, "train_labels"),
        ({"train_labels": np.zeros((20, 1), int)}, "train_labels"),
        ({"train_labels": np.array(3)}, "train_labels"),
        ({"test_labels": np.array(3)}, "test_labels"),
        ({"train_images": np.zeros((20, 28, 28, 1), np.uint8)}, r"must be \[n, H, H\] in gray, not"),
        ({"train_labels": np.arange(20)}, "labels of .* must be 0..9"),
        ({"test_labels": np.full(10, -1)}, "labels of .* must be 0..9"),
        ({"test_labels": np.zeros(0, int), "test_images": np.zeros((0, 28, 28), np.uint8)}, "test_labels"),
    ],
)
def test_wrong_contents_are_named(folder: Path, change: dict[str, np.ndarray | None], words: str) -> None:
    contents = {key: value for key, value in (arrays() | change).items() if value is not None}
    np.savez(folder / "fashion_mnist.npz", **contents)
    with pytest.raises(InputError, match=words) as raised:
        load("fashion_mnist")
    assert "fashion_mnist.npz" in str(raised.value) and "delete it" in str(raised.value)


def test_a_half_finished_conversion_leaves_no_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def power_cut(file: object, **values: np.ndarray) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(images, "_fetch", lambda name, where: arrays())
    monkeypatch.setattr(np, "savez", power_cut)
    with pytest.raises(InputError, match="no space left"):
        load("fashion_mnist")
    assert not list(folder.rglob("*.np*"))


def test_the_data_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PFL_LITE_DATA", "~/somewhere")
    assert data_folder() == Path(os.path.expanduser("~")) / "somewhere"
    monkeypatch.delenv("PFL_LITE_DATA")
    assert data_folder() == Path.home() / ".cache" / "pfl_lite"


def test_cards() -> None:
    cards = datasets()
    assert list(cards) == [
        "digits", "glyphs", "glyphs10", "mnist", "fashion_mnist", "cifar10", "cifar100", "emnist", "femnist",
    ]  # fmt: skip
    for name, card in cards.items():
        assert card.name == name and card.source and card.licence and card.how_to_get
        assert len(card.mean) == len(card.std) == card.channels
        assert len(set(card.classes)) == len(card.classes)
    assert [len(card.classes) for card in cards.values()] == [10, 62, 10, 10, 10, 10, 100, 62, 62]
    with pytest.raises(InputError, match="did you mean cifar10"):
        load("cifar1O")


# --- images of one's own ---

LABELS = {"train_labels": np.arange(30) % 3, "test_labels": np.arange(12) % 3}


def own(shape: tuple[int, ...] = (8, 8), card: dict[str, object] | None = None, **changed: object) -> Images:
    """Images of three classes with the shortest of cards, something changed."""
    rng = np.random.default_rng(0)
    pixels = {
        f"{split}_images": rng.integers(0, 256, (n, *shape), dtype=np.uint8)
        for split, n in (("train", 30), ("test", 12))
    }
    about = {"name": "mine", "classes": ("a", "b", "c")} | (card or {})
    return Images(name="mine", card=Card(**about), **(pixels | LABELS | changed))  # type: ignore[arg-type]


@pytest.mark.parametrize(("shape", "channels"), [((8, 8), 1), ((8, 8, 3), 3)])
def test_a_short_card_is_filled_in(shape: tuple[int, ...], channels: int) -> None:
    mine = own(shape)
    card, pixels = mine.card, mine.train_images.reshape(-1, channels) / 255
    assert (card.title, card.size, card.channels) == ("mine", 8, channels)
    assert (card.train_size, card.test_size) == (30, 12)
    assert card.mean == pytest.approx(pixels.mean(axis=0)) and card.std == pytest.approx(pixels.std(axis=0))
    assert mine.merge().card == card  # the sizes stay those of the two parts
    assert own(shape, {"std": (0.5,) * channels}).card.mean == card.mean
    kept = Card(
        name="mine", classes=("a", "b", "c"), title="T", size=8, channels=1, train_size=7, mean=(0,), std=(1,)
    )
    assert replace(own(), card=kept).card == kept


def test_labels_may_be_a_list_or_small_numbers() -> None:
    mine = own(
        train_labels=(LABELS["train_labels"]).tolist(), test_labels=LABELS["test_labels"].astype(np.uint8)
    )
    assert mine.train_labels.dtype == mine.test_labels.dtype == np.int64
    assert np.array_equal(mine.train_labels, LABELS["train_labels"])
    none = own(test_images=np.zeros((0, 8, 8), np.uint8), test_labels=np.zeros(0, np.int64))
    assert len(none.test_labels) == 0 and none.merge().card.test_size == 0


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"train_images": np.zeros((30, 8, 8))}, r"uint8, .* not float64: np.rint\(255 \* images\)"),
        ({"test_images": np.zeros((12, 8, 8), np.float32)}, "test_images of 'mine' must be uint8"),
        ({"train_images": np.zeros((30, 8, 8), np.int64)}, r"not int64: images.astype\(np.uint8\)"),
        ({"train_images": np.zeros((30, 8, 12), np.uint8)}, r"square, .* not \[30, 8, 12\]: cut or pad"),
        ({"train_images": np.zeros((30, 64), np.uint8)}, r"not \[30, 64\]: rows.reshape\(-1, H, H\)"),
        ({"train_images": np.zeros((30, 1, 8, 8), np.uint8)}, r"np.moveaxis\(images, 1, -1\)"),
        ({"test_images": np.zeros((12, 7, 7), np.uint8)}, "have size 7, but their card says size=8"),
        (
            {"test_images": np.zeros((12, 8, 8, 3), np.uint8)},
            "have channels 3, but their card says channels=1",
        ),
        ({"card": {"size": 28}}, "train_images of 'mine' have size 8, but their card says size=28"),
        ({"card": {"channels": 3}}, "have channels 1, but their card says channels=3"),
        ({"card": {"mean": 0.3}}, r"mean .* one number per channel \(1\), e.g. mean=\(0.3,\), not 0.3"),
        ({"card": {"std": (0.3, 0.3, 0.3)}}, "std .* one number per channel"),
        ({"card": {"mean": (77.9,)}}, r"mean .* in \[0, 1\], that of images / 255"),
        ({"card": {"mean": (float("nan"),)}}, "mean .* in"),
        ({"card": {"std": (0,)}}, "std .* above 0"),
        ({"card": {"std": (float("nan"),)}}, "std .* above 0"),
        ({"card": {"std": (float("inf"),)}}, "std .* above 0"),
        ({"train_images": np.zeros((30, 8, 8), np.uint8)}, "one value for every pixel of channel 0"),
        ({"card": {"classes": 3}}, "must name its classes"),
        ({"card": {"classes": ()}}, "must name its classes"),
        ({"card": {"classes": "abc"}}, "must name its classes"),
        ({"train_labels": LABELS["train_labels"][:20]}, "there are 30 images, but 20 train_labels"),
        ({"test_labels": LABELS["train_labels"]}, "there are 12 images, but 30 test_labels"),
        ({"train_labels": LABELS["train_labels"] + 1}, r"0\.\.2, .* 3 classes, not 1\.\.3"),
        ({"test_labels": LABELS["test_labels"] - 1}, r"0\.\.2, .* not -1\.\.1"),
        ({"train_labels": LABELS["train_labels"] / 1}, "whole numbers .* not float64 .* np.int64"),
        ({"train_labels": np.eye(3, dtype=int)[LABELS["train_labels"]]}, r"argmax\(axis=1\)"),
        ({"train_writers": LABELS["train_labels"] - 1}, "train_writers of 'mine' must be 0 or more"),
        ({"train_writers": LABELS["test_labels"]}, "30 images, but 12 train_writers"),
        (
            {"train_images": np.zeros((0, 8, 8), np.uint8), "train_labels": np.zeros(0, int)},
            "at least one training image",
        ),
    ],
)
def test_images_that_are_wrong_are_refused_in_one_sentence(changed: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words) as raised:
        own(**changed)  # type: ignore[arg-type]
    assert "\n" not in str(raised.value)


# --- images of one's own ---


def pets(name: str = "pets", called: str = "pets", size: int = 20) -> Images:
    given = arrays(size, 10, 2)
    return Images(name, **given, card=Card(name=called, classes=("cat", "dog")))


def test_images_without_a_card_are_told_what_one_looks_like() -> None:
    with pytest.raises(InputError, match=r"card=Card\(name='mine', classes=\('cat', 'dog'\)\), not None"):
        Images("pets", **arrays(20, 10, 2), card=None)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [str, object])
def test_labels_that_are_words_are_refused_with_the_way_to_number_them(kind: type) -> None:
    given = arrays(20, 10, 2)
    words = np.array(["cat", "dog"], dtype=kind)
    given["train_labels"] = words[given["train_labels"]]
    with pytest.raises(
        InputError, match=r"classes, numbers = np\.unique\(words, return_inverse=True\)"
    ) as told:
        Images("pets", **given, card=Card(name="pets", classes=("cat", "dog")))
    assert "np.int64" not in str(told.value)
    given["train_labels"] = arrays(20, 10, 2)["train_labels"].astype(float)
    with pytest.raises(InputError, match=r"not float64 \[20\]: give them as np\.int64"):
        Images("pets", **given, card=Card(name="pets", classes=("cat", "dog")))


def test_images_that_are_registered_are_found_by_their_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "_OWN", {})
    with pytest.raises(InputError, match=r"unknown data set 'pets'.*register_images"):
        load("pets")
    images.register_images(pets(size=10))
    images.register_images(mine := pets())  # the later ones count
    assert load("pets") is mine and datasets()["pets"] is mine.card
    assert mine.card.origin == "registered in this process"
    assert len(load("pets:0.5").train_labels) == 10
    assert "pets" in datasets() and "pets" not in {card.name for card in images._CARDS}


def test_a_part_of_one_s_own_images_keeps_their_writers_and_goes_by_their_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(images, "_OWN", {})
    made = pets()
    writers = {
        f"{split}_writers": np.arange(len(getattr(made, f"{split}_labels"))) % 3
        for split in ("train", "test")
    }
    images.register_images(
        replace(made, **writers, card=replace(made.card, train_size=500))
    )  # a wrong number
    part = load("pets:0.5")
    assert len(part.train_labels) == 10 and part.train_writers is not None
    assert set(part.train_writers.tolist()) <= {0, 1, 2} and len(part.train_writers) == 10


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("pets", r"register_images takes Images\(\.\.\.\), not str"),
        (pets("digits", "digits"), "the name 'digits' is taken: .* not among digits, glyphs"),
        (pets("pets", "cats"), "called 'pets' and their card 'cats': give both one name"),
        (pets("a:b", "a:b"), "'a:b' cannot be a data set's name: use letters"),
    ],
)
def test_images_that_cannot_be_registered_are_refused(given: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        images.register_images(given)
    assert not images._OWN
