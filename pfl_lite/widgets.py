"""Sliders over a partition: live in JupyterLab, and a twin that computes in the page, without a kernel.

The live explorer asks `pfl_lite.data.partition`. The twin is the file `static/partition_explorer.js`, whose
numbers the tests hold against NumPy's; it stands in the chapter *Clients are not alike*.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import ipywidgets
import numpy as np

from pfl_lite.data.images import Images, load
from pfl_lite.data.partition import class_counts, heterogeneity, partition
from pfl_lite.errors import InputError
from pfl_lite.plots import plot_partition

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

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
    without = "The explorer needs JavaScript, and in JupyterLab a notebook that is trusted."
    return _page(
        "partition", f'<div class="pfl-explorer" role="group" aria-label="Partition explorer">{without}</div>'
    )


def routing_explorer_page(
    blocks: Sequence[int], rounds: Sequence[int], logits: ArrayLike, groups: Sequence[int]
) -> str:
    """Which blocks every client assembles, round by round (FedMN), as one piece of HTML that computes in the page.

    Args:
        blocks: blocks of each layer, encoders first.
        rounds: the recorded rounds [R].
        logits: logit pi of every decision, [R, clients, decisions] in the order of `pfl_lite.models.modular`.
        groups: the true group of every client, by which they are sorted.

    Raises:
        InputError: the shapes do not fit each other.
    """
    chance = 100 / (1 + np.exp(-np.asarray(logits, dtype=float)))  # percent
    decisions = sum(a * b for a, b in pairwise(blocks)) + blocks[-1]
    wanted = (len(rounds), len(groups), decisions)
    if chance.shape != wanted:
        raise InputError(f"logits must be [rounds, clients, decisions] = {wanted}, not {chance.shape}")
    record = {
        "blocks": list(blocks),
        "groups": [int(group) for group in groups],
        "rounds": [int(number) for number in rounds],
        "chance": chance.round(1).tolist(),
    }
    return _page("routing", _recorded("routing", "Routing explorer", record))


def gate_explorer_page(classes: Sequence[str], images: Sequence[Mapping[str, Any]]) -> str:
    """Two experts and their gate on single images (PFL-MoE), as one piece of HTML that computes in the page.

    Args:
        classes: their names.
        images: for each one `client`, `label`, `share` (of its class in the client's training images), `g`, the logits
            `global` and `personal` [classes], and `pixels` [side, side] in 0 to 1.
    """
    entries = []
    for image in images:
        pixels = np.asarray(image["pixels"], dtype=float)  # [side, side]
        digits = "".join(f"{level:x}" for level in np.rint(15 * pixels.clip(0, 1)).astype(int).ravel())
        experts = {
            name: np.asarray(image[name], dtype=float).round(3).tolist() for name in ("global", "personal")
        }
        entry = {
            "client": int(image["client"]),
            "label": int(image["label"]),
            "pixels": digits,
            "side": len(pixels),
        }
        entries.append(entry | {name: round(float(image[name]), 3) for name in ("share", "g")} | experts)
    return _page("gate", _recorded("gate", "Gate explorer", {"classes": list(classes), "images": entries}))


def _recorded(kind: str, title: str, record: Mapping[str, Any]) -> str:
    """An explorer's element with what it shows inside; the data attribute keeps other explorers' scripts away."""
    data = json.dumps(record, separators=(",", ":")).replace("</", "<\\/")
    return (
        f'<div class="pfl-explorer" data-kind="{kind}" data-ready="" role="group" aria-label="{title}">'
        f'<script type="application/json">{data}</script></div>'
    )


def _page(kind: str, element: str) -> str:
    """An element with the explorers' one style and its own script."""
    folder = resources.files("pfl_lite") / "static"
    style = (folder / "explorer.css").read_text(encoding="utf-8")
    script = (folder / f"{kind}_explorer.js").read_text(encoding="utf-8")
    return f"{element}\n<style>\n{style}</style>\n<script>\n{script}</script>\n"


def _counts(images: Images, spec: str, clients: int, seed: int) -> np.ndarray:
    """Training images of each class at each client: int64 [clients, classes]."""
    parts = [client.train for client in partition(images, spec, clients, seed)]
    return class_counts(images.train_labels, parts, len(images.card.classes))
