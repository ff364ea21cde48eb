"""Glyphs: 62 characters drawn by 100 writers, a data set whose hidden structure is known because we drew it.

A writer has a font, a slant, a stroke, a width, a rotation and a grain of noise; on top of that every single
image jitters a little. All of it follows from one seed.
"""

from __future__ import annotations

import string
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.path import Path

CHARACTERS = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
FIGURES = tuple(string.digits)  # the first of the characters, and the classes of glyphs10
SIZE = 28
WRITERS = 100
TRAIN_PER_CLASS = 200  # two of every character by every writer
TEST_PER_CLASS = 50  # one of every other character by every writer
VERSION = 1  # count up with every change of the images, so that older cached files are drawn anew

_SEED = 62
_FONTS = (
    *("DejaVuSans", "DejaVuSans-Oblique", "DejaVuSerif", "DejaVuSerif-Italic", "DejaVuSansMono"),
    *("STIXGeneral", "STIXGeneralItalic", "cmr10", "cmss10", "cmtt10"),
)


@dataclass(frozen=True)
class Writer:
    """How one writer draws: `slant` (shear), `stroke` (pixels added to a line's width), `width` (horizontal
    scale), `rotation` (radians) and `noise` (standard deviation of gray levels, 0..255).
    """

    font: str
    slant: float
    stroke: float
    width: float
    rotation: float
    noise: float


def writers() -> tuple[Writer, ...]:
    """The hands of all writers, in the order of the numbers in `train_writers` and `test_writers`."""
    rng = np.random.default_rng([_SEED, 0])
    return tuple(
        Writer(
            font=_FONTS[w % len(_FONTS)],
            slant=float(rng.uniform(-0.35, 0.35)),
            stroke=float(rng.uniform(0.0, 1.6)),
            width=float(rng.uniform(0.8, 1.15)),
            rotation=float(rng.normal(0, 0.12)),
            noise=float(rng.uniform(0, 25)),
        )
        for w in range(WRITERS)
    )


@lru_cache(maxsize=1)
def draw() -> dict[str, np.ndarray]:
    """Draw all images, in a few seconds: the arrays of a data file, `train_writers`, `test_writers` and `version`."""
    hands, rng = writers(), np.random.default_rng([_SEED, 1])
    jobs = {
        "train": [(w, c) for w in range(WRITERS) for c in range(len(CHARACTERS)) for _ in range(2)],
        "test": [(w, c) for w in range(WRITERS) for c in range(len(CHARACTERS)) if (w + c) % 2 == 0],
    }
    arrays = {"version": np.array(VERSION)}
    for split, pairs in jobs.items():
        writer, label = np.array(pairs, dtype=np.int64).T
        arrays[f"{split}_images"] = _draw_all(hands, writer, label, rng)
        arrays[f"{split}_labels"] = label
        arrays[f"{split}_writers"] = writer
    return arrays


@lru_cache(maxsize=1)
def _outlines() -> dict[tuple[str, int], tuple[Path, float]]:
    """The outline of every character of every font, capitals 17 pixels high, and its middle column."""
    from matplotlib import get_data_path
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    outlines: dict[tuple[str, int], tuple[Path, float]] = {}
    for font in _FONTS:
        properties = FontProperties(fname=f"{get_data_path()}/fonts/ttf/{font}.ttf")
        # All characters of a font keep their common scale and baseline, or o, O and 0 would be one shape.
        capital = TextPath((0, 0), "H", size=100, prop=properties).get_extents().height
        for c, character in enumerate(CHARACTERS):
            path = TextPath((0, 0), character, size=100 * 17 / capital, prop=properties)
            extents = path.get_extents()
            outlines[font, c] = path, (extents.x0 + extents.x1) / 2
    return outlines


def _draw_all(
    hands: tuple[Writer, ...], writer: np.ndarray, label: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Draw one image for each (writer, label): uint8 [n, SIZE, SIZE], white on black."""
    from matplotlib.backends.backend_agg import RendererAgg
    from matplotlib.transforms import Affine2D

    outlines, renderer = _outlines(), RendererAgg(SIZE, SIZE, 72)
    pen = renderer.new_gc()
    pen.set_foreground((1, 1, 1))
    images = np.empty((len(label), SIZE, SIZE), dtype=np.uint8)
    for i, (w, c) in enumerate(zip(writer, label, strict=True)):
        hand = hands[w]
        path, middle = outlines[hand.font, int(c)]
        turn, lean, grow, right, up = rng.normal(0, (0.05, 0.05, 0.04, 0.8, 0.8))
        place = (
            Affine2D()
            .translate(-middle, -7.5)  # just below the middle of the capitals
            .scale((1 + grow) * hand.width, 1 + grow)
            .skew(np.arctan(hand.slant + lean), 0)
            .rotate(hand.rotation + turn)
            .translate(SIZE / 2 + np.clip(right, -2, 2), SIZE / 2 + np.clip(up, -2, 2))
        )
        renderer.clear()
        pen.set_linewidth(hand.stroke)
        renderer.draw_path(pen, path, place, (1, 1, 1))
        gray = np.asarray(renderer.buffer_rgba())[..., 3]  # alpha is the ink
        noise = hand.noise * rng.standard_normal(gray.shape, dtype=np.float32)
        images[i] = np.clip(gray + noise, 0, 255)
    return images
