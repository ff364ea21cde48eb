"""The gate explorer (chapter *A gate between two experts*): two experts on one image, and the weight between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import ipywidgets
import numpy as np
from scipy.special import softmax

from pfl_lite.errors import InputError
from pfl_lite.plots import (
    EXPERT_COLOURS,
    plot_gate,
)
from pfl_lite.widgets.frame import live, page, rounded, shown, width_for


def gate_explorer(classes: Sequence[str], images: Sequence[Mapping[str, Any]]) -> ipywidgets.VBox:
    """Two experts and their gate on single images (PFL-MoE): choose an image, and slide the weight g of the global expert.

    Takes what `gate_explorer_page` takes, and raises the same errors. An image starts at the g of its client's gate.
    """
    record = record_of(classes, images)
    named = [(image["name"], at) for at, image in enumerate(record["images"])]
    controls: dict[str, Any] = {
        "at": ipywidgets.Dropdown(options=named, description="image", **width_for(18)),
        "g": ipywidgets.FloatSlider(
            record["images"][0]["g"], min=0, max=1, step=0.01, description="g, weight of the global expert",
            continuous_update=False, **width_for(18),
        ),
    }  # fmt: skip

    def show(at: int, g: float) -> str:
        image, probabilities = record["images"][at], mixed(record["images"][at], g)
        says = [
            f"{name} says <b>{escape(classes[best])}</b>, {'right' if best == image['label'] else 'wrong'}"
            for name, best in zip(record["experts"], probabilities.argmax(1), strict=True)
        ]
        figure = plot_gate(
            classes, images[at]["pixels"], image["label"], probabilities, g=g, learned=image["g"]
        )
        return shown(f"{escape(image['about'])}.</p><p>{'; '.join(says)}", figure)

    def start(change: Mapping[str, Any]) -> None:
        controls["g"].value = record["images"][change["new"]]["g"]

    controls["at"].observe(start, names="value")
    return live(controls, show)


def gate_explorer_page(classes: Sequence[str], images: Sequence[Mapping[str, Any]]) -> str:
    """Two experts and their gate on single images (PFL-MoE), as one piece of HTML that computes in the page.

    Args:
        classes: their names.
        images: for each one `client`, `label`, `share` (of its class in the client's training images), `g`, the logits
            `global` and `personal` [classes], and `pixels` [side, side] in 0 to 1.

    Raises:
        InputError: there is no image, or one lacks something or does not fit the classes.
    """
    return page("gate", record_of(classes, images))


def record_of(classes: Sequence[str], images: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What both gate explorers show: numbers in few digits, and the words about every image."""
    if not images:
        raise InputError("a gate explorer needs at least one image")
    entries = []
    for number, image in enumerate(images):
        needed = ("client", "label", "share", "g", "global", "personal", "pixels")
        if missing := [name for name in needed if name not in image]:
            raise InputError(f"image {number} lacks {', '.join(missing)}")
        pixels = np.asarray(image["pixels"], dtype=float)  # [side, side]
        experts = {name: np.asarray(image[name], dtype=float) for name in ("global", "personal")}
        if any(logits.shape != (len(classes),) for logits in experts.values()):
            raise InputError(f"image {number} needs {len(classes)} logits of each expert, one a class")
        if not 0 <= image["label"] < len(classes):
            raise InputError(
                f"the label of image {number} must be 0 to {len(classes) - 1}, not {image['label']}"
            )
        if pixels.ndim != 2 or len(set(pixels.shape)) > 1:
            raise InputError(f"the pixels of image {number} must be [side, side], not {list(pixels.shape)}")
        if not 0 <= image["g"] <= 1:
            raise InputError(f"g of image {number} must be 0 to 1, not {image['g']}")
        g, name = round(float(image["g"]), 2), classes[image["label"]]
        entries.append(
            {
                "name": f"{number + 1}: client {image['client']}, class {name}",
                "about": f"client {image['client']}: {rounded(100 * image['share']):.0f} % of its training images "
                f"are {name}; its gate gives this image g = {g:.2f}",
                "label": int(image["label"]),
                "g": g,
                **{expert: logits.round(3).tolist() for expert, logits in experts.items()},
                "side": len(pixels),
                "pixels": "".join(f"{level:x}" for level in np.rint(15 * pixels.clip(0, 1)).astype(int).flat),
            }
        )
    return {"classes": list(classes), "experts": list(EXPERT_COLOURS), "images": entries}


def mixed(image: Mapping[str, Any], g: float) -> np.ndarray:
    """Probabilities of the classes: of the global expert, of the personal one, and of the mixed logits [3, classes]."""
    general, personal = np.array(image["global"]), np.array(image["personal"])
    return np.asarray(softmax([general, personal, g * general + (1 - g) * personal], axis=1))
