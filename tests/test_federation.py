"""The federation: images normalised once, indices per client, and the numbers that describe it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tqdm import tqdm

from pfl_lite.data import federation as federations
from pfl_lite.data.federation import Federation, make_federation
from pfl_lite.data.images import Images, datasets, load
from pfl_lite.data.partition import ClientIndices, partition
from pfl_lite.errors import InputError


def pictures(n: int = 60, test: int = 30, channels: int = 1, size: int = 8) -> Images:
    rng = np.random.default_rng(0)
    base = datasets()["digits" if channels == 1 else "cifar10"]
    card = replace(base, size=size, train_size=n, test_size=test)
    shape = (size, size) if channels == 1 else (size, size, 3)
    return Images(
        name=card.name,
        train_images=rng.integers(0, 256, (n, *shape), dtype=np.uint8),
        train_labels=np.arange(n) % 10,
        test_images=rng.integers(0, 256, (test, *shape), dtype=np.uint8),
        test_labels=np.arange(test) % 10,
        card=card,
    )


def clients_of(*parts: tuple[list[int], list[int], list[int]]) -> list[ClientIndices]:
    return [ClientIndices(*(np.array(part, dtype=np.int64) for part in client)) for client in parts]


@pytest.mark.parametrize("channels", [1, 3])
def test_images_are_normalised_once(channels: int) -> None:
    data = pictures(channels=channels)
    federation = Federation.build(data, clients_of(([0, 1], [2], [0])), dtype=torch.float64)
    assert federation.images.shape == (60, channels, 8, 8)
    assert federation.test_images.shape == (30, channels, 8, 8)
    layout = torch.channels_last if channels == 3 else torch.contiguous_format  # on the CPU
    assert federation.images.dtype == torch.float64
    assert federation.images.is_contiguous(memory_format=layout)
    pixels = data.train_images[7, 2, 3].reshape(channels)
    expected = (pixels / 255 - np.array(data.card.mean)) / np.array(data.card.std)
    assert np.allclose(federation.images[7, :, 2, 3].numpy(), expected, rtol=0, atol=1e-12)
    assert federation.labels.tolist() == data.train_labels.tolist()
    assert (federation.channels, federation.size, federation.classes) == (channels, 8, 10)
    assert Federation.build(data, clients_of(([0], [], [0]))).images.dtype == torch.float32


def test_images_converted_in_chunks_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    data, clients = pictures(), clients_of(([0], [], [0]))
    whole = Federation.build(data, clients, size=12).images
    monkeypatch.setattr("pfl_lite.data.federation._CHUNK", 7)
    assert torch.equal(Federation.build(data, clients, size=12).images, whole)


def test_resizing() -> None:
    data = pictures(channels=3)
    flat = replace(data, train_images=np.full_like(data.train_images, 100))
    clients = clients_of(([0], [], [0]))
    for size in (4, 8, 13, 32):  # a plain grey area stays plain grey
        resized = Federation.build(flat, clients, size=size, dtype=torch.float64)
        assert resized.images.shape == (60, 3, size, size) and resized.size == size
        expected = (100 / 255 - torch.tensor(data.card.mean, dtype=torch.float64)) / torch.tensor(
            data.card.std
        )
        assert torch.allclose(resized.images, expected[:, None, None].expand_as(resized.images), atol=1e-6)
    # Twice the size, bilinear: the corner is the corner pixel, its neighbour 3/4 of it and 1/4 of the next.
    twice = Federation.build(data, clients, size=16, dtype=torch.float64).images
    same = Federation.build(data, clients, size=8, dtype=torch.float64).images
    assert torch.equal(same, Federation.build(data, clients, dtype=torch.float64).images)
    assert torch.allclose(twice[:, :, 0, 0], same[:, :, 0, 0])
    assert torch.allclose(twice[:, :, 0, 1], 0.75 * same[:, :, 0, 0] + 0.25 * same[:, :, 0, 1])


def test_indices_sizes_and_class_counts() -> None:
    data = pictures()
    clients = partition(data, "classes:2", 5, seed=0)
    federation = Federation.build(data, clients)
    for i, client in enumerate(clients):
        for split in ("train", "val", "test"):
            indices = getattr(federation, split)[i]
            assert indices.dtype == torch.int64 and indices.tolist() == getattr(client, split).tolist()
    assert len(federation) == 5
    assert federation.train_sizes.tolist() == [len(client.train) for client in clients]
    assert federation.val_sizes.sum() == 10 and federation.test_sizes.sum() == 30
    for split, sizes in (
        ("train", federation.train_sizes),
        ("val", federation.val_sizes),
        ("test", federation.test_sizes),
    ):
        counts = federation.class_counts(split)
        labels = data.test_labels if split == "test" else data.train_labels
        assert counts.shape == (5, 10) and torch.equal(counts.sum(dim=1), sizes)
        assert counts[3].tolist() == np.bincount(labels[getattr(clients[3], split)], minlength=10).tolist()
    with pytest.raises(InputError, match="train, val or test"):
        federation.class_counts("validation")
    held = [split.tolist() for split in map(federation.class_counts, ("train", "test"))]
    for train, test, share in zip(*held, federation.majority(), strict=True):
        most = max(range(len(train)), key=train.__getitem__)
        assert share == test[most] / sum(test) if sum(test) else np.isnan(share)


def test_the_constant_answer_is_that_of_the_training_images() -> None:
    clients = clients_of(([0, 10, 1], [], [1, 11, 21, 0]), ([2], [], [2, 12]))  # the last digit is the class
    assert Federation.build(pictures(), clients).majority().tolist() == [1 / 4, 1]


def test_a_digest_names_the_images_of_each_client_and_their_labels() -> None:
    def digest(*parts: tuple[list[int], list[int], list[int]], label: int = 0) -> str:
        data = pictures()
        data.train_labels[0] = label
        return Federation.build(data, clients_of(*parts)).digest()

    one = digest(([0, 1], [], [0]), ([2], [], [1]))
    assert one == digest(([0, 1], [], [0]), ([2], [], [1]))
    others = [
        digest(([0, 1], [], [0]), ([2], [], [1]), label=1),
        digest(([0], [1], [0]), ([2], [], [1])),
        digest(([0], [], [0]), ([1, 2], [], [1])),
        digest(([0, 3], [], [0]), ([2], [], [1])),
    ]
    assert len({one, *others}) == 5


def test_a_client_without_test_images_counts_zero() -> None:
    federation = Federation.build(pictures(), clients_of(([0, 1], [], []), ([2], [3], [4])))
    assert federation.class_counts("test").sum(dim=1).tolist() == [0, 1]
    assert federation.test_sizes.tolist() == [0, 1]


def test_summary_and_repr() -> None:
    federation = make_federation(pictures(), "classes:2", 5, 0)
    assert repr(federation) == "Federation(digits, 5 clients, 10 classes, 1x8x8, cpu)"
    lines = federation.summary().splitlines()
    assert "5 clients, 10 classes, 1 x 8 x 8 pixels" in lines[0]
    rows = {line[:22].strip(): line[22:].split() for line in lines[1:]}
    assert rows["training"] == ["10", "10", "10", "50"] and rows["test"] == ["6", "6", "6", "30"]
    assert rows["classes per client"] == ["2", "2", "2"]
    assert rows["label distance"][0] == "0.80" and rows["effective classes"][0] == "2.00"
    assert max(map(len, lines)) <= 90


def test_labels_are_those_the_client_sees() -> None:
    data = pictures()
    before = data.train_labels.copy(), data.test_labels.copy()
    clients = partition(data, "concept:3", 5, seed=0)  # groups 0 0 1 1 2, shifts 0, 3 and 6
    federation = Federation.build(data, clients)
    assert federation.groups is not None and federation.groups.dtype == torch.int64
    assert federation.groups.tolist() == [0, 0, 1, 1, 2]
    for split in ("train", "val", "test"):
        labels, original = federation.labels, data.train_labels
        if split == "test":
            labels, original = federation.test_labels, data.test_labels
        assert labels.dtype == torch.int64
        for i, shift in enumerate((0, 0, 3, 3, 6)):
            rows = getattr(clients[i], split)
            assert len(rows) and labels[rows].tolist() == ((original[rows] + shift) % 10).tolist()
            counts = np.bincount((original[rows] + shift) % 10, minlength=10)
            assert federation.class_counts(split)[i].tolist() == counts.tolist()
    assert np.array_equal(data.train_labels, before[0]) and np.array_equal(data.test_labels, before[1])
    last = federation.summary().splitlines()[-1]
    assert last.split()[:2] == ["groups", "3"] and "of 1 to 2 clients" in last and len(last) <= 90


def test_groups_are_known_or_none() -> None:
    data = pictures()
    pairs = make_federation(data, "pairs", 10, 0)
    assert pairs.groups is not None and pairs.groups.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert "of 2 clients" in pairs.summary()
    iid = make_federation(data, "iid", 4, 0)
    assert iid.groups is None and "groups" not in iid.summary()
    assert iid.labels.tolist() == data.train_labels.tolist()


def test_feature_shift_by_writers() -> None:
    data = replace(
        pictures(), train_writers=np.repeat(np.arange(6), 10), test_writers=np.repeat(np.arange(6), 5)
    )
    federation = make_federation(data, "writers", 3, 1)
    hands = [set(data.train_writers[torch.cat([federation.train[i], federation.val[i]])]) for i in range(3)]
    assert [len(own) for own in hands] == [2, 2, 2] and len(set().union(*hands)) == 6
    assert all(set(data.test_writers[federation.test[i]]) == hands[i] for i in range(3))
    with pytest.raises(InputError, match="says who wrote what"):
        make_federation(pictures(), "writers", 3, 1)


@pytest.mark.parametrize("spec", ["iid", "dirichlet:0.4", "groups:3:2", "classes:5", "concept:2", "writers"])
@pytest.mark.parametrize("fraction", [0, 0.25])
def test_every_client_cuts_its_own_images(spec: str, fraction: float) -> None:
    hands = {"train_writers": np.arange(60) % 6, "test_writers": np.arange(30) % 6}
    data = replace(pictures(), **hands)  # type: ignore[arg-type]
    federation = make_federation(data, spec, 4, 1, val_fraction=fraction, split="fedem", dtype=torch.float64)
    sizes = federation.train_sizes + federation.val_sizes + federation.test_sizes
    assert sizes.sum() == 90
    assert torch.equal(
        torch.cat([*federation.train, *federation.val, *federation.test]).sort().values, torch.arange(90)
    )
    for n, train, val, test in zip(
        *(s.tolist() for s in (sizes, federation.train_sizes, federation.val_sizes, federation.test_sizes)),
        strict=True,
    ):
        assert (
            test == n - n * 4 // 5 and train == int((1 - fraction) * (n * 4 // 5)) and train + val + test == n
        )
    # Training images stand before test images, and both are looked up in one and the same tensor.
    published = make_federation(data, spec, 4, 1, dtype=torch.float64)
    assert federation.test_images is federation.images and published.test_images is not published.images
    assert torch.equal(federation.images, torch.cat([published.images, published.test_images]))
    labels = np.concatenate([data.train_labels, data.test_labels])
    for i in range(4):
        shift = 5 if spec == "concept:2" and i >= 2 else 0
        for split, seen in (
            ("train", federation.labels),
            ("val", federation.labels),
            ("test", federation.test_labels),
        ):
            rows = getattr(federation, split)[i]
            assert seen[rows].tolist() == ((labels[rows] + shift) % 10).tolist()
        if spec == "writers":  # nobody else has an image of a client's writers
            hands_of = [
                torch.cat([getattr(federation, split)[j] for split in ("train", "val", "test")]) % 6
                for j in (0, i)
            ]
            assert i == 0 or not set(hands_of[0].tolist()) & set(hands_of[1].tolist())
    # The same test images whatever becomes of the others; other ones for another seed.
    again = make_federation(data, spec, 4, 1, val_fraction=0.5, split="fedem")
    other = make_federation(data, spec, 4, 2, val_fraction=0.5, split="fedem")
    assert all(torch.equal(a, b) for a, b in zip(again.test, federation.test, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(again.test, other.test, strict=True))


def test_merged_images_are_refused_what_others_are() -> None:
    for fraction in (-0.1, 1):
        with pytest.raises(InputError, match="validation fraction"):
            make_federation(pictures(), "iid", 4, 1, val_fraction=fraction, split="fedem")
    with pytest.raises(InputError, match="says who wrote what"):
        make_federation(pictures(), "writers", 4, 1, split="fedem")
    with pytest.raises(InputError, match="unknown split"):
        make_federation(pictures(), "iid", 4, 1, split="leaf")


def test_relabelled_clients_share_no_image() -> None:
    data, turned = pictures(), np.roll(np.arange(10), -1)  # label y is seen as y + 1
    first, second, third = clients_of(([0, 1], [2], [0]), ([3], [4], [1]), ([5], [2], [2]))
    alone = Federation.build(data, [first, replace(second, relabel=turned)])
    assert alone.labels[:6].tolist() == [0, 1, 2, 4, 5, 5]  # image 5 belongs to nobody
    assert alone.test_labels[:3].tolist() == [0, 2, 2]
    shared = Federation.build(data, [first, third])  # without relabelling, sharing is harmless
    assert shared.labels.tolist() == data.train_labels.tolist()
    with pytest.raises(InputError, match="clients 0 and 1 share train images"):
        Federation.build(data, [first, replace(third, relabel=turned)])
    with pytest.raises(InputError, match="clients 0 and 1 share test images"):
        Federation.build(data, [first, replace(second, test=first.test, relabel=turned)])
    for bad in (turned[:9], turned + 1, turned - 1, turned / 1, turned[None]):
        with pytest.raises(InputError, match=r"client 1 must be relabeled with 10 labels in 0\.\.9"):
            Federation.build(data, [first, replace(second, relabel=bad)])


def test_clients_that_train_on_the_same_image_are_told_of() -> None:
    clients = clients_of(([0], [2], [0]), ([1, 3], [4], [1]), ([3, 5], [2], [2]))
    with pytest.warns(UserWarning, match="clients 1 and 2 share training images, such as image 3"):
        Federation.build(pictures(), clients)


def test_make_federation_is_load_partition_build() -> None:
    federation = make_federation(
        "digits", "dirichlet:0.4", 8, 3, val_fraction=0.25, size=16, dtype=torch.float64
    )
    assert federation.name == "digits" and federation.size == 16 and federation.images.dtype == torch.float64
    assert len(federation) == 8 and int(federation.train_sizes.min()) >= 10
    assert abs(int(federation.val_sizes.sum()) / 1438 - 0.25) < 0.01
    assert abs(federation.images.mean().item()) < 0.02
    again = make_federation("digits", "dirichlet:0.4", 8, 3, val_fraction=0.25)
    other = make_federation("digits", "dirichlet:0.4", 8, 4, val_fraction=0.25)
    assert all(torch.equal(a, b) for a, b in zip(federation.train, again.train, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(federation.train, other.train, strict=True))


def test_what_cannot_be_built() -> None:
    data = pictures()
    with pytest.raises(InputError, match="at least one client"):
        Federation.build(data, [])
    with pytest.raises(InputError, match="image size"):
        Federation.build(data, clients_of(([0], [], [0])), size=0)
    for client in (([60], [], []), ([0], [-1], []), ([0], [], [30])):
        with pytest.raises(InputError, match=r"client 1 has \w+ indices outside"):
            Federation.build(data, clients_of(([0], [], [0]), client))


ROWS = np.arange(10)
MASK = np.arange(60) < 10


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"train": MASK}, r"client 1 has a mask as train indices: np.flatnonzero\(mask\)"),
        ({"test": MASK[:30].tolist()}, "client 1 has a mask as test indices"),
        ({"train": ROWS / 1}, r"whole numbers \[n\] as train indices, .* not float64 \[10\]"),
        ({"val": ROWS.reshape(2, 5) + 20}, r"as val indices, .* not int64 \[2, 5\]"),
        ({"test": 3}, r"as test indices, .* not int64 \[\]"),
        ({"train": [60]}, r"train indices outside 0\.\.59"),
        ({"val": [9, 10]}, "client 1 has image 9 in both train and val"),
    ],
)
def test_indices_that_are_none_are_refused(changed: dict[str, object], words: str) -> None:
    client = replace(clients_of(([*ROWS], [20], [0]))[0], **changed)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=words):
        Federation.build(pictures(), [*clients_of(([0], [], [0])), client])


@pytest.mark.filterwarnings("error")
def test_a_client_s_indices_and_labels_may_be_columns_that_no_one_may_write_to() -> None:
    images, (client,) = pictures(), clients_of(([0, 1], [2], [3]))
    for array in (client.train, client.val, client.test, images.train_labels, images.test_labels):
        array.flags.writeable = False  # as pandas gives them
    federation = Federation.build(images, [client])
    federation.train[0][0] = 5
    assert client.train.tolist() == [0, 1]


def test_indices_may_be_lists_and_test_images_are_other_images() -> None:
    client = ClientIndices(train=[4, 2], val=[], test=(4, 2))  # type: ignore[arg-type]
    federation = Federation.build(pictures(), [client])
    assert [federation.train[0].tolist(), federation.val[0].tolist(), federation.test[0].tolist()] == [
        *([4, 2], [], [4, 2])
    ]
    assert federation.val[0].dtype == torch.int64
    with pytest.raises(InputError, match="client 0 has image 2 in both train and test"):
        Federation.build(pictures().merge(), [client])


def test_what_is_no_partition_or_data_set_says_what_would_be() -> None:
    with pytest.raises(InputError, match=r"not list: .* Federation.build\(images, \[ClientIndices"):
        make_federation(pictures(), [ROWS, ROWS + 10], 2, 0)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"'digits', or Images\(...\) of your own, not ndarray"):
        make_federation(pictures().train_images, "iid", 2, 0)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"client 0 must be ClientIndices\(train=..., .* not ndarray"):
        Federation.build(pictures(), [ROWS])  # type: ignore[list-item]


def test_a_recut_split_tests_on_the_same_images_in_every_seed() -> None:
    data = load("digits").recut()
    assert len(data.test_labels) + len(data.train_labels) == len(load("digits").merge().train_labels)
    whole, held = np.bincount(load("digits").merge().train_labels), np.bincount(data.test_labels)
    assert (held == whole // 5).all()
    first, other = (
        make_federation("digits", "dirichlet:0.4", 5, seed, val_fraction=0.25, split="recut")
        for seed in (0, 100)
    )
    for federation in (first, other):
        dealt = torch.cat(list(federation.test)).sort().values
        assert torch.equal(dealt, torch.arange(len(data.test_labels)))
        assert federation.test_images is not federation.images
    assert torch.equal(first.test_images, other.test_images)
    assert not torch.equal(first.test[0], other.test[0])
    sizes = first.train_sizes + first.val_sizes
    assert (
        (first.test_sizes - (sizes + first.test_sizes) / 5).abs() <= 10
    ).all()  # one of each class, by rounding


def test_a_large_federation_shows_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def bar(clients: list[ClientIndices], **how: Any) -> Any:
        assert how["delay"] <= 2 and how["disable"] is None  # on a terminal, where it takes that long
        return tqdm(clients, **(how | {"delay": 0, "disable": False}))

    monkeypatch.setattr(federations, "tqdm", bar)
    Federation.build(pictures(), clients_of(*(([i], [], [i % 30]) for i in range(60))))
    assert "looking at clients" in capsys.readouterr().err


def test_classes_are_counted_client_by_client() -> None:
    data = pictures()
    clients = clients_of(([0, 1, 10, 2], [3], [5]), ([59], [], []), ([4, 14, 24], [], [0, 10]))
    federation = Federation.build(data, clients)
    for split, labels in (("train", data.train_labels), ("test", data.test_labels)):
        counted = [np.bincount(labels[getattr(one, split)], minlength=10).tolist() for one in clients]
        assert federation.class_counts(split).tolist() == counted
    assert federation.class_counts("val").tolist() == [[0, 0, 0, 1] + 6 * [0], [0] * 10, [0] * 10]
