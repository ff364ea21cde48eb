"""Sliders over a partition: live in JupyterLab, and a twin that computes in the page, without a kernel.

The live explorer asks `pfl_lite.data.partition`. The twin is the file `static/partition_explorer.js`, whose
numbers the tests hold against NumPy's; it stands in the chapter *Clients are not alike*.
"""

from __future__ import annotations

import io
import os
import sys
from html import escape
from importlib import resources
from typing import Any

import ipywidgets
import numpy as np

from pfl_lite.data.images import Images, load
from pfl_lite.data.partition import class_counts, heterogeneity, partition
from pfl_lite.errors import InputError
from pfl_lite.plots import plot_partition

_SPECS = {
    "dirichlet": "dirichlet:{alpha:.2g}",
    "classes": "classes:{k}",
    "shares": "shares:{k}:0.3:0.7",
    "pairs": "pairs",
    "iid": "iid",
}


def front_end() -> bool:
    """Whether somebody can move a slider: true in JupyterLab, Jupyter Notebook, VS Code and Colab.

    False where a notebook is executed by a program, as for this book's pages.
    """
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    in_vscode = shell is not None and "__vsc_ipynb_file__" in shell.user_ns
    return bool(os.environ.get("JPY_SESSION_NAME")) or in_vscode or "google.colab" in sys.modules


def partition_explorer(data: str | Images = "digits") -> ipywidgets.VBox:
    """Sliders for partitioner, alpha or k, clients and seed over the picture and the measures of a partition.

    `data` is a data set or its name. A setting that cannot be shows the sentence of its InputError instead of
    a picture.
    """
    images = load(data) if isinstance(data, str) else data
    wide = {"style": {"description_width": "9em"}, "layout": ipywidgets.Layout(width="24em")}
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
    words = ipywidgets.HTML()
    picture = ipywidgets.Image(format="png", layout=ipywidgets.Layout(max_width="100%"))

    def refresh(_: object = None) -> None:
        chosen = {name: control.value for name, control in controls.items()}
        spec = _SPECS[chosen.pop("kind")].format(**chosen)
        controls["alpha"].disabled = "alpha" not in _SPECS[controls["kind"].value]
        controls["k"].disabled = "{k}" not in _SPECS[controls["kind"].value]
        try:
            counts = _counts(images, spec, chosen["clients"], chosen["seed"])
        except InputError as error:
            words.value, picture.value = f"<p>{escape(str(error))}</p>", b""
            return
        found = heterogeneity(counts)
        parts = [f"{name.replace('_', ' ')} <b>{value:.2f}</b>" for name, value in found.items()]
        words.value = f"<p><code>{spec}</code>: {', '.join(parts)}</p>"
        drawn = io.BytesIO()
        plot_partition(counts, classes=images.card.classes).savefig(drawn, format="png")
        picture.value = drawn.getvalue()

    for control in controls.values():
        control.observe(refresh, names="value")
    refresh()
    return ipywidgets.VBox([*controls.values(), words, picture])


def partition_explorer_page() -> str:
    """The explorer as one piece of HTML, style and script included; it needs no kernel and no network."""
    folder = resources.files("pfl_lite") / "static"
    style = (folder / "partition_explorer.css").read_text(encoding="utf-8")
    script = (folder / "partition_explorer.js").read_text(encoding="utf-8")
    without = "The explorer needs JavaScript, and in JupyterLab a notebook that is trusted."
    return (
        f'<div class="pfl-explorer" role="group" aria-label="Partition explorer">{without}</div>\n'
        f"<style>\n{style}</style>\n<script>\n{script}</script>\n"
    )


def _counts(images: Images, spec: str, clients: int, seed: int) -> np.ndarray:
    """Training images of each class at each client: int64 [clients, classes]."""
    parts = [client.train for client in partition(images, spec, clients, seed)]
    return class_counts(images.train_labels, parts, len(images.card.classes))
