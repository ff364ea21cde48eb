"""The partition explorer (chapter *Clients are not alike*): partitioner, concentration, clients and seed."""

from __future__ import annotations

from html import escape
from typing import Any

import ipywidgets
import numpy as np

from pfl_lite.data.images import Images, load
from pfl_lite.data.partition import class_counts, heterogeneity, partition
from pfl_lite.errors import InputError
from pfl_lite.plots import (
    plot_partition,
)
from pfl_lite.widgets.frame import live, page, shown, width_for

_SPECS = {
    "dirichlet": "dirichlet:{alpha:.2g}",
    "classes": "classes:{k}",
    "shares": "shares:{k}:0.3:0.7",
    "pairs": "pairs",
    "iid": "iid",
}


def partition_explorer(data: str | Images = "digits") -> ipywidgets.VBox:
    """Sliders for partitioner, alpha or k, clients and seed over the picture and the measures of a partition.

    `data` is a data set or its name. A setting that cannot be shows the sentence of its InputError instead of
    a picture.
    """
    images = load(data) if isinstance(data, str) else data
    wide = width_for(9)
    # A picture takes a moment, so it is drawn when the slider is let go.
    slide = wide | {"continuous_update": False}
    controls: dict[str, Any] = {
        "kind": ipywidgets.Dropdown(options=list(_SPECS), description="partitioner", **wide),
        "alpha": ipywidgets.FloatLogSlider(
            0.4, min=-1.3, max=2, step=0.05, readout_format=".2g", description="alpha", **slide
        ),
        "k": ipywidgets.IntSlider(2, min=1, max=len(images.card.classes), description="classes, k", **slide),
        "clients": ipywidgets.IntSlider(10, min=2, max=50, description="clients", **slide),
        "seed": ipywidgets.IntSlider(0, min=0, max=99, description="seed", **slide),
    }

    def show(kind: str, **chosen: Any) -> str:
        spec = _SPECS[kind].format(**chosen)
        controls["alpha"].disabled = "alpha" not in _SPECS[kind]
        controls["k"].disabled = "{k}" not in _SPECS[kind]
        try:
            counts = _counts(images, spec, chosen["clients"], chosen["seed"])
        except InputError as error:
            return f"<p>{escape(str(error))}</p>"
        parts = [
            f"{name.replace('_', ' ')} <b>{value:.2f}</b>" for name, value in heterogeneity(counts).items()
        ]
        words = f"<code>{spec}</code>: {', '.join(parts)}"
        return shown(words, plot_partition(counts, classes=images.card.classes))

    return live(controls, show)


def partition_explorer_page() -> str:
    """The explorer as one piece of HTML, style and script included; it needs no kernel and no network."""
    return page("partition")


def _counts(images: Images, spec: str, clients: int, seed: int) -> np.ndarray:
    """Training images of each class at each client: int64 [clients, classes]."""
    parts = [client.train for client in partition(images, spec, clients, seed)]
    return class_counts(images.train_labels, parts, len(images.card.classes))
