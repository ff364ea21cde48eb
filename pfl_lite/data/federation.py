"""A federation: the images once, on one device, and for every client the indices of its images."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import Dataset
from tqdm import tqdm

from pfl_lite.data import partition as partitions
from pfl_lite.data.exchange import pooled
from pfl_lite.data.images import Card, Images, load
from pfl_lite.data.partition import ClientIndices, heterogeneity, known_groups
from pfl_lite.data.recipes import Partitioner
from pfl_lite.data.task import NUMBERS
from pfl_lite.errors import InputError, expect, refused

_CHUNK = 10_000  # images converted at a time: the float copy of a whole data set is never held twice


@dataclass(frozen=True, eq=False, repr=False)
class Federation:
    """Clients that share one copy of the images.

    `images` [n, channels, size, size] and `test_images` are normalized floats, `labels` [n] and `test_labels`
    int64 classes, or floats where a number is to be predicted (`data.csv_clients`, `data.task`). `train[i]`, `val[i]` index
    `images`, `test[i]` indexes `test_images`, all int64 tensors on the same device. Where the data set's images are merged
    (split `fedem`), `test_images` is `images`: what is a client's to be tested on, `test[i]` alone can say.

    Labels are those that the image's client sees: where the partition relabels (`concept:G`), they were
    rewritten when the federation was built, so that no later step need know of it. `groups` int64
    [clients], on the CPU, are the true groups of the clients; None where the partition makes none. No method
    may look at them. `relabeled` says whether any client sees other labels than the data set's. `partition`, `split` and
    `val_fraction` are those of `make_federation`; `given`, and None, for clients made in another way.
    """

    name: str
    card: Card
    images: Tensor
    labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    train: list[Tensor]
    val: list[Tensor]
    test: list[Tensor]
    groups: Tensor | None = None
    relabeled: bool = False
    partition: str = "given"
    split: str | None = None
    val_fraction: float | None = None

    @classmethod
    def build(
        cls,
        images: Images,
        clients: list[ClientIndices],
        *,
        size: int | None = None,
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
    ) -> Federation:
        """Put a data set and the clients' indices on a device, images resized (bilinear) to `size` x `size`
        if given, and labels as each client sees them.

        Raises InputError for no clients, a size below 1, clients that cannot be (`data.partition.checked`), and for
        clients that relabel and share an image all the same; warns of other clients that share training images.
        """
        if size is not None and size < 1:
            raise InputError(f"the image size must be at least 1 pixel, not {size}")

        # with tens of thousands of clients this takes a while
        told = tqdm(clients, desc="looking at clients", leave=False, delay=1, disable=None)
        clients = partitions.checked(told, images)
        rows = np.sort(np.concatenate([client.train for client in clients]))
        if (twice := rows[1:][rows[1:] == rows[:-1]]).size:
            both = [str(i) for i, client in enumerate(clients) if twice[0] in client.train]
            warnings.warn(
                f"clients {both[0]} and {both[1]} share training images, such as image {twice[0]}: unless that is meant, leave "
                "each to one of them",
                stacklevel=2,
            )

        integers = partial(torch.tensor, dtype=torch.int64, device=device)  # pandas' arrays are read-only
        train, val, test = (
            [integers(getattr(client, split)) for client in clients] for split in ("train", "val", "test")
        )
        labels = integers(_as_seen(images.train_labels, clients, ("train", "val")))
        test_labels = integers(_as_seen(images.test_labels, clients, ("test",)))
        groups = known_groups(clients)
        pixels = _normalized(images.train_images, images.card, size, dtype, device)
        test_pixels = (
            pixels if images.merged else _normalized(images.test_images, images.card, size, dtype, device)
        )
        return cls(
            name=images.name,
            card=images.card,
            images=pixels,
            labels=labels,
            test_images=test_pixels,
            test_labels=test_labels,
            train=train,
            val=val,
            test=test,
            groups=None if groups is None else torch.from_numpy(groups),
            relabeled=any(client.relabel is not None for client in clients),
        )

    @classmethod
    def from_torch(cls, clients: Sequence[Mapping[str, Dataset[Any]]], card: Card, **how: Any) -> Federation:
        """Clients with torch data sets of their own, `{"train": ..., "val": ..., "test": ...}` each.

        An item is an image [C, H, H] of pixels in [0, 1], before any Normalize, which are kept as bytes, and a label. `how` is as
        of `build`. Raises InputError for other pixels, for a client without training images, and as `Images` does.
        """
        expect(card, Card, "the card must be a Card, as Card(name=..., classes=(...))")
        for i, client in enumerate(clients):
            expect(client, Mapping, f"client {i} must be a dict of data sets, train, val and test")
            if strange := client.keys() - set(partitions.SPLITS):
                raise InputError(
                    f"client {i} has a split '{min(strange)}': the splits are train, val and test"
                )
        found = []
        for i, client in enumerate(clients):
            mine = {}
            for split, data in client.items():
                items = [data[j] for j in range(len(data))]  # type: ignore[arg-type]
                if odd := [one for one in items if not isinstance(one, tuple | list) or len(one) != 2]:
                    raise InputError(
                        f"an item must be a pair (image, label), not {type(odd[0]).__name__}: of rows that are dicts, "
                        "[(ToTensor()(row['image']), row['label']) for row in rows] makes pairs"
                    )
                if other := [x for x, _ in items if not isinstance(x, torch.Tensor | np.ndarray)]:
                    raise InputError(
                        f"images must be tensors [C, H, H], as torchvision's ToTensor makes them, not {type(other[0]).__name__}"
                    )
                pixels = [torch.as_tensor(x) for x, _ in items]
                for place, x in enumerate(pixels):
                    here = f"not as image {place} in {split} of client {i}"
                    if x.ndim != 3:
                        raise InputError(
                            f"images must be [C, H, H], {here}, {list(x.shape)}: x[None] is gray's"
                        )
                    if not (x.is_floating_point() and ((x >= 0) & (x <= 1)).all()):
                        raise InputError(f"images must be floats in [0, 1], before any Normalize, {here}")
                images = [x.mul(255).round().byte().movedim(0, -1).squeeze(-1).numpy() for x in pixels]
                with refused((TypeError, ValueError), "labels must be whole numbers, one for each image"):
                    labels = np.array([int(y) for _, y in items], np.int64)
                if wrong := [y for (_, y), label in zip(items, labels, strict=True) if y != label]:
                    raise InputError(
                        f"labels must be whole numbers, the classes from 0 on, not {float(wrong[0])}"
                    )
                mine[split] = (np.stack(images) if items else np.empty(0, np.uint8), labels)
            found.append(mine)
        return cls.build(*pooled(found, card), **how)

    def __len__(self) -> int:
        return len(self.train)

    def digest(self) -> str:
        """A short name of which images each client has, and of all labels that are classes."""
        parts = [*self.train, *self.val, *self.test]
        found = [torch.tensor([len(part) for part in parts]), *parts]
        found += [] if self.labels.is_floating_point() else [self.labels, self.test_labels]
        return hashlib.sha256(torch.cat([one.cpu() for one in found]).numpy().tobytes()).hexdigest()[:16]

    def __repr__(self) -> str:
        shape = f"{self.channels}x{self.size}x{self.size}"
        device = self.images.device
        labels = "numbers" if self.labels.is_floating_point() else f"{self.classes} classes"
        return f"Federation({self.name}, {len(self)} clients, {labels}, {shape}, {device})"

    def to(self, device: str | torch.device) -> Federation:
        """This federation on a device: itself if it is there, else a copy (`groups` stay on the CPU)."""
        if self.images.device.type == torch.device(device).type:
            return self
        # a GPU wants its images in one piece, a CPU channels-last: as when they are read
        layout = torch.preserve_format if torch.device(device).type == "cpu" else torch.contiguous_format
        moved: dict[str, Any] = {
            name: getattr(self, name).to(device, memory_format=layout) for name in ("images", "test_images")
        }
        moved |= {name: getattr(self, name).to(device) for name in ("labels", "test_labels")}
        moved |= {name: [i.to(device) for i in getattr(self, name)] for name in ("train", "val", "test")}
        if self.test_images is self.images:
            moved["test_images"] = moved["images"]
        return replace(self, **moved)

    @property
    def classes(self) -> int:
        """Number of classes of the data set; 1 where a number is to be predicted."""
        return len(self.card.classes)

    @property
    def channels(self) -> int:
        """1 for gray images, 3 for color."""
        return self.images.shape[1]

    @property
    def size(self) -> int:
        """Side of the images in pixels, after resizing."""
        return self.images.shape[2]

    @property
    def train_sizes(self) -> Tensor:
        """Training images of each client: int64 [clients], on the CPU."""
        return torch.tensor([len(part) for part in self.train])

    @property
    def val_sizes(self) -> Tensor:
        """Validation images of each client: int64 [clients], on the CPU."""
        return torch.tensor([len(part) for part in self.val])

    @property
    def test_sizes(self) -> Tensor:
        """Test images of each client: int64 [clients], on the CPU."""
        return torch.tensor([len(part) for part in self.test])

    def class_counts(self, split: str = "train") -> Tensor:
        """Images of each class, as the client sees it, at each client: int64 [clients, classes], on the CPU;
        `split` is train, val or test.
        """
        if split not in ("train", "val", "test"):
            raise InputError(f"the split must be train, val or test, not '{split}'")
        if self.labels.is_floating_point():
            raise InputError("there are no classes to count: these labels are numbers")
        labels = self.test_labels if split == "test" else self.labels
        parts, n = getattr(self, split), self.classes
        owner = torch.repeat_interleave(torch.tensor([len(part) for part in parts], device=labels.device))
        both = owner * n + labels[torch.cat(parts)]  # of every image, as one number
        return torch.bincount(both, minlength=len(parts) * n).reshape(-1, n).cpu()

    def majority(self) -> np.ndarray:
        """Score of the best constant answer [clients], NaN without test images: accuracy of always naming the most frequent
        class of a client's training images; of numbers, `r2` of always answering their mean.
        """
        if self.labels.is_floating_point():
            each = []
            for train, test in zip(self.train, self.test, strict=True):
                answer = self.labels[train].mean().expand(len(test), 1)
                each.append(NUMBERS.score(answer, self.test_labels[test]).mean().item())
            return np.array(each)
        train, test = (self.class_counts(split).double() for split in ("train", "test"))
        right = test.gather(1, train.argmax(1, keepdim=True))[:, 0]
        return (right / test.sum(1)).numpy()

    def summary(self) -> str:
        """A short table: clients, their sizes, how unlike their labels are, and their true groups."""
        numbers = self.labels.is_floating_point()
        shape = f"{self.classes} classes, {self.channels} x {self.size} x {self.size} pixels"
        lines = [
            f"{self.card.title}: {len(self)} clients, {f'{self.channels} columns' if numbers else shape}",
            f"{'rows per client' if numbers else 'images per client':<22}{'min':>8}{'median':>10}{'max':>8}{'all':>10}",
        ]
        rows = (("training", self.train_sizes), ("validation", self.val_sizes), ("test", self.test_sizes))
        for title, sizes in rows:
            middle = sizes.double().quantile(0.5).item()
            lines.append(f"  {title:<20}{sizes.min():>8}{middle:>10g}{sizes.max():>8}{sizes.sum():>10}")
        if numbers:
            means = torch.stack([self.labels[part].mean() for part in self.train]).double()
            spread = f"{means.min():>8.2f}{means.quantile(0.5):>10.2f}{means.max():>8.2f}"
            lines.append(f"{'mean of the target':<22}{spread}  (in standard deviations of all rows)")
        else:
            lines += self._classes_told()
        if self.groups is not None:
            members = torch.bincount(self.groups)
            few, many = members.min(), members.max()
            each = f"{few}" if few == many else f"{few} to {many}"
            lines.append(f"{'groups':<22}{len(members):>8}  (of {each} clients, known beforehand)")
        return "\n".join(lines)

    def _classes_told(self) -> list[str]:
        """Lines of `summary`: classes per client, and how unlike the clients' labels are."""
        counts = self.class_counts("train")
        held, measures = (counts > 0).sum(dim=1), heterogeneity(counts.numpy())
        middle = held.double().quantile(0.5).item()
        remarks = {
            "label_distance": "0: all alike, toward 1: nothing in common",
            "effective_classes": "mean over clients of exp(entropy of the labels)",
            "size_ratio": "most over fewest training images",
            "size_gini": "0: equal numbers of training images",
        }
        return [f"{'classes per client':<22}{held.min():>8}{middle:>10g}{held.max():>8}"] + [
            f"{key.replace('_', ' '):<22}{measures[key]:>8.2f}  ({remark})" for key, remark in remarks.items()
        ]


def make_federation(
    data: str | Images,
    partition: str | Partitioner,
    clients: int,
    seed: int,
    *,
    val_fraction: float = 0.2,
    split: str = "published",
    size: int | None = None,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
) -> Federation:
    """Load a data set (or take one), distribute it and build the federation.

    `split`: `published` deals out the data set's training and test images by the same recipe; `fedem` merges them, deals out all,
    and cuts every client's own images 80 : 20 into training and test images (Marfoq et al., 2021); `recut` merges them, cuts 80 :
    20 once for all seeds, and deals out both parts by the same recipe. Raises InputError as the three steps do.
    """
    expect(data, str | Images, "a data set is a name, e.g. 'digits', or Images(...) of your own")
    images = (load(data) if isinstance(data, str) else data).with_split(split)
    indices = partitions.partition(images, partition, clients, seed, val_fraction)
    built = Federation.build(images, indices, size=size, dtype=dtype, device=device)
    recipe = partitions.pinned(partition) if isinstance(partition, str) else "given"
    share = None if partitions.is_file(partition) else val_fraction
    return replace(built, partition=recipe, split=split, val_fraction=share)


def _as_seen(labels: np.ndarray, clients: list[ClientIndices], splits: tuple[str, ...]) -> np.ndarray:
    """The labels [n] of the images as their clients see them; images that belong to no client keep theirs.

    One array can hold this only because an image belongs to one client at most, which is checked here.
    """
    if all(client.relabel is None for client in clients):
        return labels
    seen, owner = labels.copy(), np.full(len(labels), -1)
    for i, client in enumerate(clients):
        mine = np.concatenate([getattr(client, split) for split in splits])
        if (owner[mine] >= 0).any():
            raise InputError(
                f"clients {owner[mine].max()} and {i} share {splits[0]} images: where labels are changed for a "
                "client, an image can belong to one client only"
            )
        owner[mine] = i
        if client.relabel is not None:
            seen[mine] = client.relabel[labels[mine]]
    return seen


def _normalized(
    pixels: object, card: Card, size: int | None, dtype: torch.dtype, device: str | torch.device
) -> Tensor:
    """uint8 [n, H, W] or [n, H, W, 3] to normalized floats [n, channels, size, size] on the device."""
    raw = torch.as_tensor(pixels)
    raw = raw[:, None] if raw.ndim == 3 else raw.permute(0, 3, 1, 2)  # [n, C, H, W], a view
    side = size or card.size
    mean = torch.tensor(card.mean, dtype=dtype, device=device)[:, None, None]
    std = torch.tensor(card.std, dtype=dtype, device=device)[:, None, None]
    # color images channels-last: max-pooling on a CPU takes about half the time (the convolutions hardly care)
    layout = (
        torch.channels_last
        if card.channels > 1 and torch.device(device).type == "cpu"
        else torch.contiguous_format
    )
    result = torch.empty(
        (len(raw), card.channels, side, side), dtype=dtype, device=device, memory_format=layout
    )
    for start in range(0, len(raw), _CHUNK):
        chunk = raw[start : start + _CHUNK].to(device=device, dtype=dtype) / 255
        if chunk.shape[-1] != side:
            shrink = side < chunk.shape[-1]  # antialiasing matters for making images smaller only
            chunk = functional.interpolate(chunk, (side, side), mode="bilinear", antialias=shrink)
        result[start : start + _CHUNK] = (chunk - mean) / std
    return result
