"""The data sets: `load("cifar10")` gives uint8 images, labels and a card that says where they come from.

`digits`, `glyphs` and `glyphs10` need no network. The others come through torchvision once, are converted to
`<name>.npz` in `data_folder()` (uint8 `train_images`, `train_labels`, `test_images`, `test_labels`) and are
read from there ever after. A file that is already there is used as it is. `femnist` is made in the same way
from files that LEAF's scripts wrote. `load("emnist:0.1")` gives a tenth of the images.
"""

from __future__ import annotations

import math
import os
import re
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from pfl_lite.atomic_files import read_npz, write_npz
from pfl_lite.data import glyphs, leaf
from pfl_lite.errors import InputError, expect, one_of, refused
from pfl_lite.seeds import generator

SPLIT_MODES = ("published", "fedem", "recut")
DOWNLOAD_TIMEOUT = 30.0  # seconds without an answer before a download is given up


@dataclass(frozen=True, kw_only=True)
class Card:
    """What a data set is, where it comes from and how its pixels are scaled.

    `size` is the side of the square images in pixels; `mean` and `std` are per channel, for pixels scaled to
    [0, 1]; `writers` is the number of people who wrote the images, 0 where the data set does not tell them
    apart. `test_size` 0 means that the images are cut into training and test images when they are read.

    A card of your own needs a name and the names of the classes: what else `Images` can tell, it fills in
    (`title`, sizes, `channels`, and `mean` and `std` of the training images).
    """

    name: str
    title: str = ""
    source: str = ""
    licence: str = ""
    classes: tuple[str, ...]
    size: int = 0
    channels: int = 0
    train_size: int = 0
    test_size: int = 0
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    how_to_get: str = ""
    note: str = ""
    writers: int = 0

    @property
    def origin(self) -> str:
        """Where a listed data set's files come from, in a few words."""
        if self.name in _OWN:
            return "registered in this process"
        if self.how_to_get == _EMBEDDED:
            return "comes with the package"
        return "downloaded once" if self.name in _TORCHVISION_NAMES else "from LEAF's files"


@dataclass(frozen=True)
class Images:
    """A data set in memory: uint8 images [n, H, W] (gray) or [n, H, W, 3] (color), int64 labels [n].

    `train_writers` and `test_writers` (int64 [n]) say who wrote an image, where the data set knows it. Where the
    images are `merged`, the training images are all images, and the test images are the same arrays. What can be
    told from the arrays and is not on the card is filled in there.

    Raises:
        InputError: images that are not uint8 or not of the card's size and channels, other than one label an image,
            a label that is no class of the card, or a mean and deviation that are not those of pixels in [0, 1].
    """

    name: str
    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    card: Card
    train_writers: np.ndarray | None = None
    test_writers: np.ndarray | None = None
    merged: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.card, Card):
            raise InputError(
                f"images need a card, e.g. card=Card(name='mine', classes=('cat', 'dog')), not {self.card!r:.80}"
            )
        classes = self.card.classes
        if not isinstance(classes, tuple | list) or not classes:
            raise InputError(f"the card of '{self.name}' must name its classes, e.g. classes=('cat', 'dog')")
        for split in ("train", "test"):
            images = _pixels(f"{split}_images of '{self.name}'", getattr(self, f"{split}_images"))
            self._set(f"{split}_images", images)
            for part, kinds in (("labels", len(classes)), ("writers", None)):
                if part == "labels" or getattr(self, f"{split}_{part}") is not None:
                    what, given = f"{split}_{part} of '{self.name}'", getattr(self, f"{split}_{part}")
                    self._set(f"{split}_{part}", _numbers(what, given, len(images), kinds))
        if not len(self.train_labels):
            raise InputError(f"'{self.name}' needs at least one training image")
        self._set("card", _filled(self.card, self.train_images, len(self.test_images)))
        for split in ("train", "test"):
            _check_card(f"{split}_images of '{self.name}'", getattr(self, f"{split}_images"), self.card)

    def __repr__(self) -> str:
        return (
            f"Images({self.name}, {len(self.train_labels)} for training, {len(self.test_labels)} for testing)"
        )

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)  # the one way into a frozen dataclass

    def rows(self, train: ArrayLike, test: ArrayLike) -> dict[str, np.ndarray]:
        """Some of the training and of the test images, with their labels and writers, by the names of the fields."""
        return {
            f"{split}_{part}": array[rows]
            for split, rows in (("train", train), ("test", test))
            for part in ("images", "labels", "writers")
            if (array := getattr(self, f"{split}_{part}")) is not None
        }

    def merge(self) -> Images:
        """The data set as one pool, test images after training images: every client cuts its own images instead."""
        if self.merged:
            return self
        pools: dict[str, Any] = {}
        for part in ("images", "labels", "writers"):
            both = [getattr(self, f"{split}_{part}") for split in ("train", "test")]
            pool = None if any(one is None for one in both) else np.concatenate(both)
            pools |= {f"train_{part}": pool, f"test_{part}": pool}
        return replace(self, merged=True, **pools)

    def recut(self) -> Images:
        """All images cut anew, 80% of each class to train and 20% to test on, by one draw that no seed changes."""
        pool = self.merge()
        random, test = generator(0, "recut"), np.zeros(len(pool.train_labels), dtype=bool)
        for label in np.unique(pool.train_labels):
            members = random.permutation(np.flatnonzero(pool.train_labels == label))
            test[members[: len(members) // 5]] = True
        parts: dict[str, Any] = pool.rows(~test, test)
        return replace(pool, merged=False, **parts)

    def with_split(self, split: str) -> Images:
        """As they are (`published`), merged (`fedem`: Marfoq et al. (2021) cut client by client), or cut anew by a draw that is
        the same for all seeds (`recut`: no image on which one seed is tested trains or validates for another); raises
        InputError for another name.
        """
        one_of("split", split, SPLIT_MODES)
        return self.merge() if split == "fedem" else self.recut() if split == "recut" else self


def _pixels(what: str, images: ArrayLike) -> np.ndarray:
    """Images as a uint8 array [n, H, H] or [n, H, H, C]; raises InputError for anything else."""
    array = np.asarray(images)
    if array.dtype != np.uint8:
        whole = array.dtype.kind in "iu"
        raise InputError(
            f"{what} must be uint8, from 0 to 255, not {array.dtype}: "
            + ("images.astype(np.uint8)" if whole else "np.rint(255 * images).astype(np.uint8)")
            + f" makes them of {'whole numbers in 0..255' if whole else 'numbers in [0, 1]'}"
        )
    if array.ndim not in (3, 4) or array.shape[1] != array.shape[2] or 0 in array.shape[1:]:
        if array.ndim == 2:
            way = (
                "rows.reshape(-1, H, H) makes images of rows of pixels, rows[:, None, None] of other numbers"
            )
        elif array.ndim == 4 and array.shape[2] == array.shape[3]:
            way = "np.moveaxis(images, 1, -1) puts channels last"
        else:
            way = "cut or pad them to squares"
        raise InputError(
            f"{what} must be square, [n, H, H] in gray or [n, H, H, 3] in color, not {list(array.shape)}: {way}"
        )
    if array.shape[3:] == (1,):
        raise InputError(f"{what} must be [n, H, H] in gray, not {list(array.shape)}: give images[..., 0]")
    return array


def _numbers(what: str, numbers: ArrayLike, n: int, kinds: int | None) -> np.ndarray:
    """One number below `kinds` (None: any) an image as int64 [n]; raises InputError for anything else."""
    array = np.asarray(numbers)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InputError(
            f"{what} must be whole numbers [n], one per image, not {array.dtype} {list(array.shape)}: "
            + _way_to_numbers(array)
        )
    if len(array) != n:
        raise InputError(
            f"{what} must be one per image: there are {n} images, but {len(array)} {what.split()[0]}"
        )
    if n and (array.min() < 0 or (kinds is not None and array.max() >= kinds)):
        wanted = "0 or more" if kinds is None else f"0..{kinds - 1}, numbers of the card's {kinds} classes"
        raise InputError(f"{what} must be {wanted}, not {array.min()}..{array.max()}")
    return array.astype(np.int64, copy=False)


def _way_to_numbers(array: np.ndarray) -> str:
    """How to make whole numbers of what was given in their place."""
    if array.ndim == 2:
        return "argmax(axis=1) makes them of one-hot rows"
    if array.dtype.kind not in "fb":  # words, or objects that stand for them
        return (
            "classes, numbers = np.unique(words, return_inverse=True) numbers the words of "
            "training and test images together, and the classes go on the card"
        )
    return "give them as np.int64"


def _channels(images: np.ndarray) -> int:
    return 1 if images.ndim == 3 else images.shape[3]


def _filled(card: Card, images: np.ndarray, test_size: int) -> Card:
    """The card with what it leaves out and training images [n, H, H] or [n, H, H, C] tell."""
    told: dict[str, Any] = {
        "title": card.title or card.name,
        "size": card.size or images.shape[1],
        "channels": card.channels or _channels(images),
    }
    if not card.train_size:
        told |= {"train_size": len(images), "test_size": test_size}
    layers = images.reshape(-1, _channels(images))  # [n H H, C], a view
    for name, measure in (("mean", np.mean), ("std", np.std)):
        if not np.size(getattr(card, name)):
            told[name] = tuple(float(measure(layer)) / 255 for layer in layers.T)
    if 0 in told.get("std", ()):
        channel = told["std"].index(0)
        raise InputError(
            f"the training images of '{card.name}' have one value for every pixel of channel {channel} (counted from 0): "
            "there is nothing to learn from it"
        )
    return replace(card, **told)


def _check_card(what: str, images: np.ndarray, card: Card) -> None:
    """Raise an InputError unless images [n, H, H] or [n, H, H, C] are what their card says."""
    for name, found in (("size", images.shape[1]), ("channels", _channels(images))):
        if getattr(card, name) != found:
            raise InputError(
                f"{what} have {name} {found}, but their card says {name}={getattr(card, name)}: "
                "correct the card, or leave that out of it"
            )
    for name in ("mean", "std"):
        value = getattr(card, name)
        if np.shape(value) != (card.channels,):
            raise InputError(
                f"the {name} of card '{card.name}' must be a tuple with one number per channel ({card.channels}), "
                f"e.g. {name}={(0.3,) * card.channels}, not {value}"
            )
    if not all(0 <= number <= 1 for number in card.mean):
        raise InputError(
            f"the mean of card '{card.name}' must be in [0, 1], that of images / 255, not {card.mean}"
        )
    if not all(0 < number < math.inf for number in card.std):
        raise InputError(
            f"the std of card '{card.name}' must be above 0, that of images / 255, not {card.std}"
        )


_EMBEDDED = "Nothing to do: it is made on this machine, without a network."
_TORCHVISION = (
    "Nothing to do on a machine with a network: torchvision downloads it at the first use, and it is kept as {name}.npz "
    "in the data folder."
)
_CIFAR100 = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can
castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin
elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard
lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear
pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark
shrew skunk skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone
television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""
_AS_MNIST: dict[str, Any] = {"size": 28, "channels": 1, "mean": (0.1307,), "std": (0.3081,)}
_CIFAR: dict[str, Any] = {
    **{"size": 32, "channels": 3, "train_size": 50_000, "test_size": 10_000},
    "source": "A. Krizhevsky (2009), Learning Multiple Layers of Features from Tiny Images",
    "licence": "No formal license; free to use with a citation of the report",
}
_DRAWN: dict[str, Any] = {
    **{"size": glyphs.SIZE, "channels": 1, "writers": glyphs.WRITERS, "how_to_get": _EMBEDDED},
    "licence": "BSD 3-Clause (the images); the fonts keep their own free licenses",
}
_CARDS = (
    Card(
        name="digits",
        title="Optical recognition of handwritten digits",
        source="E. Alpaydin and C. Kaynak (1998), UCI Machine Learning Repository, as shipped with "
        "scikit-learn",
        licence="CC BY 4.0",
        classes=tuple("0123456789"),
        size=8,
        channels=1,
        train_size=1438,
        test_size=359,
        mean=(0.3054,),
        std=(0.3760,),
        how_to_get=_EMBEDDED,
        note="This is real handwriting. Its 17 gray levels are spread over 0 to 255. The split into training and test "
        "images is ours: both parts hold each class in the same share, and it is always the same split.",
    ),
    Card(
        name="glyphs",
        title="Glyphs: 62 characters drawn by 100 writers",
        source="Drawn by pfl_lite from the DejaVu, STIX and Computer Modern fonts that come with matplotlib",
        classes=glyphs.CHARACTERS,
        **_DRAWN,
        train_size=62 * glyphs.TRAIN_PER_CLASS,
        test_size=62 * glyphs.TEST_PER_CLASS,
        mean=(0.1493,),
        std=(0.3070,),
        note="A program draws these images. Every writer has a font, slant, stroke, width, rotation and noise of their "
        "own. So you can set label skew, feature shift and concept shift one by one, and you know the truth.",
    ),
    Card(
        name="glyphs10",
        title="Glyphs, the ten digits: 0 to 9 drawn by 100 writers",
        source="The digits 0 to 9 of the glyphs, drawn by pfl_lite",
        classes=glyphs.FIGURES,
        **_DRAWN,
        train_size=10 * glyphs.TRAIN_PER_CLASS,
        test_size=10 * glyphs.TEST_PER_CLASS,
        mean=(0.1446,),
        std=(0.3023,),
        note="These are the images of the glyphs that show a digit, with their writers. There are so few that an "
        "experiment takes seconds. Each writer drew every digit twice for training, and half of the digits once for testing.",
    ),
    Card(
        name="mnist",
        title="MNIST",
        source="Y. LeCun, L. Bottou, Y. Bengio and P. Haffner (1998), Gradient-based learning applied to document recognition",
        licence="CC BY-SA 3.0",
        classes=tuple("0123456789"),
        **_AS_MNIST,
        train_size=60_000,
        test_size=10_000,
        how_to_get=_TORCHVISION.format(name="mnist"),
        note="Handwritten digits. No chapter and no table needs them, but most people try them first.",
    ),
    Card(
        name="fashion_mnist",
        title="Fashion-MNIST",
        source="H. Xiao, K. Rasul and R. Vollgraf (2017), arXiv:1708.07747",
        licence="MIT",
        classes=(
            *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
            *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
        ),
        **_AS_MNIST,
        train_size=60_000,
        test_size=10_000,
        how_to_get=_TORCHVISION.format(name="fashion_mnist"),
        note="The mean and the standard deviation are those of MNIST, which the PFL-MoE code uses.",
    ),
    Card(
        name="cifar10",
        title="CIFAR-10",
        classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        **_CIFAR,
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2023, 0.1994, 0.2010),
        how_to_get=_TORCHVISION.format(name="cifar10"),
        note="Photographs of ten kinds of things. All three papers that the book repeats use them.",
    ),
    Card(
        name="cifar100",
        title="CIFAR-100 (fine labels)",
        classes=tuple(_CIFAR100.split()),
        **_CIFAR,
        mean=(0.5071, 0.4865, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
        how_to_get=_TORCHVISION.format(name="cifar100"),
        note="As many photographs as in CIFAR-10, but of a hundred kinds of things, which form twenty groups.",
    ),
    Card(
        name="emnist",
        title="EMNIST, split byclass",
        source="G. Cohen, S. Afshar, J. Tapson and A. van Schaik (2017), arXiv:1702.05373, from NIST's "
        "Special Database 19",
        licence="No formal license; a work of the United States government, free to use with a citation",
        classes=glyphs.CHARACTERS,
        **_AS_MNIST,
        train_size=697_932,
        test_size=116_323,
        how_to_get=_TORCHVISION.format(name="emnist"),
        note="In the published files every image is transposed; ours are upright. The files do not say who wrote "
        "what. FedEM and FedMN use a tenth of the images, 81,425, which is `emnist:0.1` here.",
    ),
    Card(
        name="femnist",
        title="FEMNIST: 62 characters by their writers",
        source="S. Caldas et al. (2018), LEAF: A Benchmark for Federated Settings, arXiv:1812.01097, from NIST's "
        "Special Database 19",
        licence="No formal license; a work of the United States government, free to use with a citation",
        classes=glyphs.CHARACTERS,
        **_AS_MNIST,
        train_size=805_263,
        how_to_get="Run LEAF's scripts (https://github.com/TalwalkarLab/leaf, `data/femnist`) and put the JSON files "
        "they write into femnist/train and femnist/test in the data folder ($PFL_LITE_DATA, else ~/.cache/pfl_lite), "
        "or, if they are not split, into femnist/all. At the first use they are converted to femnist.npz. Or make such a file "
        "yourself: like EMNIST's, with train_writers and test_writers (integers).",
        note="The number of images is the LEAF paper's (3,550 writers); your files may hold another number. Writers with at "
        "most two images are left out, as in FedEM. If the files are not split, one fifth of every writer's images, always the "
        "same fifth, is for testing. Images are dark on white, as in LEAF. The mean and the standard deviation are those of "
        "MNIST, which the FedEM code uses.",
        writers=3_550,
    ),
)
_TORCHVISION_NAMES = {
    "mnist": "MNIST", "fashion_mnist": "FashionMNIST", "cifar10": "CIFAR10", "cifar100": "CIFAR100", "emnist": "EMNIST",
}  # fmt: skip
_KEYS = ("train_images", "train_labels", "test_images", "test_labels")
_WRITERS = ("train_writers", "test_writers")
_OWN: dict[str, Images] = {}  # those that `register_images` was given, by name


def datasets() -> dict[str, Card]:
    """The card of every data set that `load` knows, by name."""
    return {card.name: card for card in _CARDS} | {name: images.card for name, images in _OWN.items()}


def card_of(name: str) -> Card:
    """The card of one of them; raises InputError for an unknown name."""
    cards = datasets()
    own = "register_images adds your own in a script: see *Your own method, your own data*"
    return cards[one_of("data set", name, cards, f"valid: {', '.join(sorted(cards))}; {own}")]


def register_images(images: Images) -> None:
    """Let `load`, `run(data=...)` and the command line find images of one's own under their name, in this process.

    The same name may be registered again, as in a cell that is run twice; the later images are used.

    Raises:
        InputError: these are no `Images`, or their name is that of the package's data sets, is not the name on their card, or
            has a sign that has a meaning of its own, such as `:`.
    """
    expect(images, Images, "register_images takes Images(...)")
    name = images.name
    if name in {card.name for card in _CARDS}:
        raise InputError(
            f"the name '{name}' is taken: give your images one that is not among {', '.join(card.name for card in _CARDS)}"
        )
    if name != images.card.name:
        raise InputError(
            f"the images are called '{name}' and their card '{images.card.name}': give both one name"
        )
    if not re.fullmatch(r"[\w.-]+", name):
        raise InputError(
            f"'{name}' cannot be a data set's name: use letters, digits, dots, hyphens and underscores"
        )
    _OWN[name] = images


def data_folder() -> Path:
    """The folder of the `.npz` files: $PFL_LITE_DATA, else ~/.cache/pfl_lite; it need not exist yet."""
    return Path(os.environ.get("PFL_LITE_DATA") or Path.home() / ".cache" / "pfl_lite").expanduser()


def load(name: str) -> Images:
    """Load a data set by name; the sizes on its card are those of the images loaded.

    `name:0.1` is a random tenth of it, always the same. Raises InputError for an unknown name or a fraction that
    leaves nothing, for a damaged file (which is named and left alone), and when the data are neither in
    `data_folder()` nor to be had over the network.
    """
    base, colon, text = name.partition(":")
    if colon:
        return _sample(load(base), name, _fraction(base, text))
    card = card_of(name)
    if name in _OWN:
        return _OWN[name]
    if name == "digits":
        return _images(card, _digits())
    if name in ("glyphs", "glyphs10"):
        drawn = _glyphs(card_of("glyphs"), data_folder() / "glyphs.npz")
        if name == "glyphs":
            return drawn
        wanted = (labels < len(glyphs.FIGURES) for labels in (drawn.train_labels, drawn.test_labels))
        return _images(card, drawn.rows(*wanted))
    path = data_folder() / f"{name}.npz"
    if not path.exists():
        _convert(card, path)
    return _sound(path, card, _arrays(path, card))


def _arrays(path: Path, card: Card) -> dict[str, np.ndarray]:
    """What a data file holds: the four arrays, and where the card speaks of writers, theirs; raises InputError."""
    with (
        refused(OSError, lambda error: f"{path} cannot be read: {error.strerror}"),
        refused(ValueError, _damaged(path, card, "is damaged or half-written")),
    ):
        arrays = read_npz(path)
    keys = (*_KEYS, *_WRITERS) if card.writers else _KEYS
    if missing := [key for key in keys if not np.size(arrays.get(key, ()))]:
        raise InputError(_damaged(path, card, f"has no array {', '.join(missing)}, or an empty one"))
    return arrays


def _sound(path: Path, card: Card, arrays: dict[str, np.ndarray]) -> Images:
    """The data set of a file's arrays; raises an InputError that names the file where they are not those of the card."""
    try:
        return _images(card, arrays)
    except InputError as error:
        why = f"is not what it should be ({str(error).partition(':')[0]})"
        raise InputError(_damaged(path, card, why)) from error


def _damaged(path: Path, card: Card, what: str) -> str:
    again = {"glyphs": "it is drawn anew", "femnist": "it is made from LEAF's files"}.get(
        card.name, "it is fetched again"
    )
    good = f"put a good {path.name} in its place"
    return f"{path} {what}: delete it, then {again} at the next use, or {good}"


def _images(card: Card, arrays: dict[str, np.ndarray]) -> Images:
    told = card.writers or (card.name in _OWN and _WRITERS[0] in arrays)
    keys = (*_KEYS, *_WRITERS) if told else _KEYS
    writers = [np.ravel(arrays[key]) for key in keys if key in _WRITERS]  # shapes are looked at later
    card = replace(
        card,
        train_size=np.size(arrays["train_labels"]),
        test_size=np.size(arrays["test_labels"]),
        writers=len(np.unique(np.concatenate(writers))) if writers else 0,
    )
    own: dict[str, Any] = {key: arrays[key] for key in keys}
    return Images(name=card.name, card=card, **own)


def _fraction(base: str, text: str) -> float:
    try:
        fraction = float(text)
    except ValueError:
        fraction = 0
    if not 0 < fraction <= 1:
        raise InputError(f"the part of a data set is a number in (0, 1], e.g. {base}:0.1, not '{text}'")
    return fraction


def _sample(images: Images, name: str, fraction: float) -> Images:
    """A part of the images drawn at random, in their order; a smaller part is contained in a larger one."""
    rng = generator(0, "part of a data set")
    n_train, n_test = len(images.train_labels), len(images.test_labels)
    # FedEM's int(s_frac * n), whatever floats make of it
    wanted = math.floor(fraction * (n_train + n_test) + 1e-6)
    wanted_test = math.floor(fraction * n_test + 1e-6)
    drawn = []
    for split, n, some in (("train", n_train, wanted - wanted_test), ("test", n_test, wanted_test)):
        if some == 0:
            raise InputError(f"'{name}' leaves none of the {n} {split} images: take a larger part")
        drawn.append(np.sort(rng.permutation(n)[:some]))
    return replace(_images(images.card, images.rows(*drawn)), name=name)


def _digits() -> dict[str, np.ndarray]:
    """scikit-learn's digits, 0..16 spread over 0..255; every class cut 4 : 1 at random with a fixed seed."""
    from sklearn.datasets import load_digits

    data = load_digits()
    images = np.round(data.images * (255 / 16)).astype(np.uint8)
    labels = data.target.astype(np.int64)
    rng = np.random.default_rng(8)
    test = np.zeros(len(labels), dtype=bool)
    for c in range(10):
        members = rng.permutation(np.flatnonzero(labels == c))
        test[members[: round(0.2 * len(members))]] = True
    return {
        f"{split}_{part}": array[rows]
        for split, rows in (("train", ~test), ("test", test))
        for part, array in (("images", images), ("labels", labels))
    }


def _glyphs(card: Card, path: Path) -> Images:
    """The drawn characters, from the cache if this version of the drawing is in it."""
    if path.exists():
        arrays = _arrays(path, card)
        if np.array_equal(arrays.get("version", 0), glyphs.VERSION):
            return _sound(path, card, arrays)
    arrays = glyphs.draw()
    # A folder that cannot be written costs a few seconds of drawing in every process, nothing else.
    with suppress(InputError):
        write_npz(path, arrays, compress=True)
    return _images(card, arrays)


def _convert(card: Card, path: Path) -> None:
    """Fetch a data set through torchvision, or read LEAF's files, and write it to `path`; no folder stays without a file."""
    made, downloads = [one for one in path.parents if not one.exists()], path.parent / "downloads"
    there = path.parents[len(made)]
    if not there.is_dir():
        raise InputError(f"PFL_LITE_DATA must be a folder, but {there} is a file")
    if card.name == "femnist":
        folder = path.parent / "femnist"
        if (read := leaf.read(folder, len(glyphs.CHARACTERS))) is None:
            raise InputError(
                f"{path} does not exist and cannot be fetched: put the JSON files that LEAF's scripts write "
                f"(data/femnist of https://github.com/TalwalkarLab/leaf) into {folder / 'train'} and {folder / 'test'}, or "
                f"uncut into {folder / 'all'}, or put femnist.npz there yourself, with uint8 train_images and test_images, "
                "and integer labels and writers of both"
            )
        return write_npz(path, read)
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(DOWNLOAD_TIMEOUT)  # torchvision sets none, and some servers are silent
    # before torchvision is loaded, let alone gives up: both take their time
    print(f"fetching {card.name} through torchvision, to be kept as {path}", file=sys.stderr, flush=True)
    try:
        write_npz(path, _fetch(card.name, downloads))
    except Exception as error:  # torchvision raises whatever the network, the archive or the disk raised
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(
            f"{path} does not exist and torchvision could not fetch the data ({reason[:200]}): run this once "
            f"with a network, or put {path.name} there yourself, with uint8 train_images and test_images and "
            "integer train_labels and test_labels"
        ) from error
    finally:
        socket.setdefaulttimeout(before)
        for one in [*sorted(downloads.rglob("*"), reverse=True), downloads, *made]:
            with suppress(OSError):  # archives that were fetched stay; an empty folder does not
                one.rmdir()


def _fetch(name: str, folder: Path) -> dict[str, np.ndarray]:
    """A data set through torchvision, whose archives stay in `folder`."""
    from torchvision import datasets

    options = {"split": "byclass"} if name == "emnist" else {}
    kind = getattr(datasets, _TORCHVISION_NAMES[name])
    arrays = {}
    for split in ("train", "test"):
        one = kind(folder, train=split == "train", download=True, **options)
        # EMNIST's files go column by column, so torchvision's images are mirrored along their diagonal
        images = one.data.swapaxes(1, 2) if name == "emnist" else one.data
        arrays[f"{split}_images"] = np.ascontiguousarray(images, dtype=np.uint8)
        arrays[f"{split}_labels"] = np.asarray(one.targets, dtype=np.int64)
    return arrays
