"""Explorers: pieces of a page, sliders over recorded numbers, whose scripts (`static/`) compute in the page, without a kernel.

They stand in the chapters *Clients are not alike* (partitions), *Assembling a network per client* (routes), *A gate between two
experts* (gates), *pFedMB* (weights of branches), *Until convergence* (standings) and *Compare the methods* (runs). Each function
returns one piece of HTML.
"""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any

import numpy as np

from pfl_lite.atomic_files import script_json
from pfl_lite.errors import InputError
from pfl_lite.models.modular import decisions
from pfl_lite.papers.statement import estimate
from pfl_lite.papers.statistics import kendall
from pfl_lite.show import comparison as comparing
from pfl_lite.show.plots import EXPERT_COLORS, color, group_color, label

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

_PIECES = {
    "alpha": ("table.css", "playing.css", "playing.js"),
    "comparison": ("table.css", "comparison_explorer.css", "comparison.js"),
    "routing": ("playing.css", "playing.js"),
    "standings": ("table.css", "playing.css", "standings_explorer.css", "playing.js"),
}
_VIEWS = {"curves": "curves by round", "pairs": "clients, A against B", "ranks": "ranks"}
LARGE = 100_000  # characters of a record, from which on it is deflated
_LINES = 8  # of so many methods the page draws the curves before a reader chooses


def page(kind: str, record: Mapping[str, Any] | Sequence[Any] | None = None) -> str:
    """An explorer's element with the record that it shows, and the styles and scripts that it needs, its own last."""
    inside = "The explorer needs JavaScript, and in JupyterLab a notebook that is trusted."
    if record is not None:
        text, packed = script_json(record), ""
        if len(text) > LARGE:
            # records are mostly digits in no order, and shorter blocks follow what their columns hold
            deflate = zlib.compressobj(9, memLevel=7, strategy=zlib.Z_FILTERED)
            text = base64.b64encode(deflate.compress(text.encode()) + deflate.flush()).decode()
            packed = ' data-packed="deflate"'
        inside += f'<script type="application/json"{packed}>{text}</script>'
    folder = resources.files("pfl_lite") / "static"
    files = ("explorer.css", "explorer.js", *_PIECES.get(kind, ()), f"{kind}_explorer.js")
    texts = {name: (folder / name).read_text(encoding="utf-8") for name in files}
    style, script = ("".join(texts[name] for name in files if name.endswith(end)) for end in ("css", "js"))
    return (
        f'<div class="pfl-explorer" data-kind="{kind}" role="group" aria-label="{kind.capitalize()} explorer">{inside}</div>\n'
        f"<style>\n{style}</style>\n<script>\n{script}</script>\n"
    )


def partition() -> str:
    """Partitioner, concentration, clients and seed over the picture and the measures of a partition."""
    return page("partition")


def routing(blocks: Sequence[int], rounds: Sequence[int], logits: ArrayLike, groups: Sequence[int]) -> str:
    """Which blocks every client assembles, round by round (FedMN), as one piece of HTML that computes in the page.

    Args:
        blocks: blocks of each layer, encoders first.
        rounds: the recorded rounds [R].
        logits: logit pi of every decision, [R, clients, decisions] in the order of `pfl_lite.models.modular`.
        groups: the true group of every client, by which they are sorted.

    Raises:
        InputError: the shapes do not fit each other, or a logit is not a number.
    """
    values = np.asarray(logits, dtype=float)
    wanted = (len(rounds), len(groups), decisions(blocks))
    if 0 in wanted:
        raise InputError("a routing explorer needs at least one round and one client")
    if values.shape != wanted:
        raise InputError(f"logits must be [rounds, clients, decisions] = {wanted}, not {values.shape}")
    if not np.isfinite(values).all():
        raise InputError("logits must be finite numbers")
    return page(
        "routing",
        {
            "blocks": list(blocks),
            "groups": [int(group) for group in groups],
            "colors": [group_color(int(group)) for group in groups],
            "rounds": [int(number) for number in rounds],
            # Three digits, whatever the size: a logit keeps its sign, and so its bit.
            "logits": [[[float(f"{each:.3g}") for each in own] for own in moment] for moment in values],
            "measures": [
                ("blocks sent", f"per client, of {sum(blocks[1:])}"),
                ("equal decisions", "two clients of one group"),
                ("equal decisions", "two clients of different groups"),
            ],
        },
    )


def gate(classes: Sequence[str], images: Sequence[Mapping[str, Any]]) -> str:
    """Two experts and their gate on single images (PFL-MoE), as one piece of HTML that computes in the page.

    Args:
        classes: their names.
        images: for each one `client`, `label`, `share` (of its class in the client's training images), `g`, the logits
            `global` and `personal` [classes], and `pixels` [side, side] in 0 to 1.

    Raises:
        InputError: there is no image, or one lacks something or does not fit the classes.
    """
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
                "about": f"client {image['client']}: {math.floor(100 * image['share'] + 0.5)}% of its training images "
                f"are {name}; its gate gives this image g = {g:.2f}",
                "label": int(image["label"]),
                "g": g,
                **{expert: logits.round(3).tolist() for expert, logits in experts.items()},
                "side": len(pixels),
                "pixels": "".join(f"{level:x}" for level in np.rint(15 * pixels.clip(0, 1)).astype(int).flat),
            }
        )
    return page("gate", {"classes": list(classes), "experts": list(EXPERT_COLORS), "images": entries})


def alpha(rounds: Sequence[int], alphas: Mapping[str, ArrayLike], groups: Sequence[int]) -> str:
    """How much every client uses of every branch (pFedMB), as one piece of HTML that computes in the page.

    Args:
        rounds: the recorded rounds [R].
        alphas: name of a method or arm -> weights [R, clients, branches], or [R, clients, layers, branches].
        groups: the true group of every client, by which they are sorted and compared.

    Raises:
        InputError: there is no run, the shapes do not fit each other, or some weights are no mixture.
    """
    if not alphas or not len(rounds):
        raise InputError("an alpha explorer needs at least one run and one round")
    weights = {name: np.asarray(each, dtype=float) for name, each in alphas.items()}
    weights = {name: each[:, :, None] if each.ndim == 3 else each for name, each in weights.items()}
    shape = next(iter(weights.values())).shape  # [R, N, L, B]
    for name, each in weights.items():
        if each.ndim != 4 or each.shape[:2] != (len(rounds), len(groups)) or 0 in each.shape:
            raise InputError(
                f"the weights of {name} must be [{len(rounds)} rounds, {len(groups)} clients, branches], "
                "or with layers before the branches"
            )
        if each.shape != shape:
            raise InputError(f"the weights of {name} have another number of layers or branches")
        # runs of the ledger keep four digits
        if not (each >= 0).all() or not np.allclose(each.sum(-1), 1, atol=0.01):
            raise InputError(f"the weights of {name} must be zero or more and sum to 1 over the branches")
    return page('alpha', {
        "groups": [int(group) for group in groups],
        "rounds": [int(number) for number in rounds],
        "layers": [f"layer {number + 1}" for number in range(shape[2])],
        "runs": [
            {"name": label(name), "color": color(name), "weights": each.round(4).tolist()}
            for name, each in weights.items()
        ],
        "measures": [
            ("distance, two groups", "mean over two clients of different groups; 0: one mixture, 1: no common branch"),
            ("distance, one group", "mean over two clients of the same group"),
            ("branches in use", f"by a client, of {shape[3]}: e to the entropy of its weights"),
        ],
        "about": "One row per client, sorted by group; one column per branch; "
        "a bar is the client's weight of the branch, 0 to 1.",
    })  # fmt: skip


def standings(
    settings: Mapping[str, tuple[Sequence[int | str], Mapping[str, ArrayLike], Mapping[str, float]]],
) -> str:
    """Which method would lead if all runs ended at a round, and where the paper puts them, as one piece of HTML.

    Args:
        settings: name -> (the recorded rounds [R], numbers or words; method -> accuracies of one run in percent, [R, clients];
            method -> the paper's number in percent). At each round, the methods are marked that cannot be told from the
            leader, client by client.

    Raises:
        InputError: there is no setting, or one has fewer than two methods, other shapes, or a number that is missing.
    """
    if not settings:
        raise InputError("standings need at least one setting")
    shown = []
    for name, (rounds, accuracies, paper) in settings.items():
        scores = {method: np.asarray(each, dtype=float) for method, each in accuracies.items()}
        if len(scores) < 2 or scores.keys() != paper.keys():
            raise InputError(f"{name}: standings need two methods or more, each with the paper's number")
        clients = next(iter(scores.values())).shape[-1:]
        if any(each.shape != (len(rounds), *clients) or not each.size for each in scores.values()):
            raise InputError(
                f"{name}: the accuracies of every method must be [{len(rounds)} rounds, clients]"
            )
        kept = np.stack(list(scores.values()))  # [M, R, N]
        theirs = np.array([paper[method] for method in scores])  # [M]
        if not (np.isfinite(kept).all() and np.isfinite(theirs).all()):
            raise InputError(f"{name}: an accuracy is missing")
        ours, at = kept.mean(-1), range(len(rounds))  # [M, R]
        leads = [
            [estimate((kept[ours[:, r].argmax(), r] - one[r])[None]).interval[0] for r in at] for one in kept
        ]
        methods = [
            {
                "name": label(method), "color": color(method), "paper": float(theirs[m]),
                "scores": ours[m].round(3).tolist(), "level": [low <= 0 for low in leads[m]],
            }
            for m, method in enumerate(scores)
        ]  # fmt: skip
        shown.append({
            "name": name,
            "rounds": [str(number) for number in rounds],
            "methods": methods,
            "tau": kendall(theirs, ours.T).tolist(),
            "gap": np.abs(theirs - ours.T).mean(-1).tolist(),
        })  # fmt: skip
    return page("standings", shown)


def comparison(record: Mapping[str, Any]) -> str:
    """Methods side by side from the runs of the ledger, as one piece of HTML that computes in the page.

    Args:
        record: what `pfl_lite.show.comparison.record` gives.

    Raises:
        InputError: the record holds no experiment.
    """
    if not record["experiments"]:
        raise InputError("a comparison needs an experiment of which at least two methods have a complete run")
    entries = []
    for entry in record["experiments"]:
        means = comparing.curves(entry, "scored").groupby("arm")["value"].last()
        first = means.sort_values(ascending=False).index[:_LINES]
        shades: list[str] = []
        methods = []
        for method in entry["methods"]:
            shade = color(method["key"], method["method"])
            known = {"name": label(method["label"]), "color": shade, "dash": shades.count(shade)}
            methods.append(method | known | {"start": method["key"] in first})
            shades.append(shade)
        keys = [method["key"] for method in methods]
        entries.append(
            entry | {"methods": methods, "a": "fedavg" if "fedavg" in keys[:-1] else keys[0], "b": keys[-1]}
        )
    return page("comparison", {**record, "views": list(_VIEWS.items()), "experiments": entries})
