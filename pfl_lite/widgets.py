"""Explorers with sliders: live in JupyterLab, and twins that compute in the page, without a kernel.

A live explorer asks the package. Its twin is a script under `static/`, whose numbers and words the tests hold against
the live one's. They stand in the chapters *Clients are not alike* (partitions), *Assembling a network per client*
(routes), *A gate between two experts* (gates), *pFedMB* (weights of branches) and *Compare the methods* (runs).
"""

from __future__ import annotations

import base64
import io
import json
import math
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from decimal import ROUND_HALF_UP, Decimal
from html import escape, unescape
from importlib import resources
from typing import TYPE_CHECKING, Any

import ipywidgets
import numpy as np
import torch
from scipy.special import entr, softmax

from pfl_lite.data.images import Images, load
from pfl_lite.data.partition import class_counts, heterogeneity, partition
from pfl_lite.errors import InputError
from pfl_lite.experiments import comparison
from pfl_lite.models.modular import decisions, in_use, safety_path
from pfl_lite.plots import (
    EXPERT_COLOURS,
    colour,
    group_colour,
    label,
    plot_alpha,
    plot_curves,
    plot_gate,
    plot_pairs,
    plot_partition,
    plot_ranks,
    plot_routes,
)
from pfl_lite.seeds import generator

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike

_SPECS = {
    "dirichlet": "dirichlet:{alpha:.2g}",
    "classes": "classes:{k}",
    "shares": "shares:{k}:0.3:0.7",
    "pairs": "pairs",
    "iid": "iid",
}
_MORE_STYLES = {"alpha": ("table",), "comparison": ("table", "comparison_explorer")}
_MORE_SCRIPTS = {"comparison": ("comparison",)}
_VIEWS = {"curves": "curves by round", "pairs": "clients, A against B", "ranks": "ranks"}
_LINES = 8  # of so many methods the page draws the curves before a reader chooses


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
    wide = _wide(9)
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
        return _shown(words, plot_partition(counts, classes=images.card.classes))

    return _live(controls, show)


def partition_explorer_page() -> str:
    """The explorer as one piece of HTML, style and script included; it needs no kernel and no network."""
    return _page("partition")


def routing_explorer(
    blocks: Sequence[int], rounds: Sequence[int], logits: ArrayLike, groups: Sequence[int]
) -> ipywidgets.VBox:
    """Which blocks every client assembles, round by round (FedMN): a slider over the rounds, and a way to set the bits.

    Takes what `routing_explorer_page` takes, and raises the same errors. Only the random draws differ: each
    explorer has its own random numbers.
    """
    record = _routing_record(blocks, rounds, logits, groups)
    last, slide = len(record["rounds"]) - 1, _wide(9) | {"continuous_update": False}
    moments = [(str(number), at) for at, number in enumerate(record["rounds"])]
    rules = [("pi above one half", False), ("a random draw", True)]
    controls: dict[str, Any] = {
        "at": ipywidgets.SelectionSlider(options=moments, value=last, description="round", **slide),
        "random": ipywidgets.Dropdown(options=rules, description="decisions", **_wide(9)),
        "draw": ipywidgets.IntSlider(0, min=0, max=99, description="draw", **slide),
    }

    def show(at: int, random: bool, draw: int) -> str:
        controls["draw"].disabled = not random
        bits, values = _routes(record, at, draw if random else None)
        parts = [
            f"{name} <b>{value}</b> {remark}"
            for (name, remark), value in zip(record["measures"], values, strict=True)
        ]
        order = np.argsort(record["groups"], kind="stable")
        titles = [f"client {i}, group {record['groups'][i]}" for i in order]
        figure = plot_routes(blocks, bits[order], groups=[record["groups"][i] for i in order], titles=titles)
        return _shown(f"round {record['rounds'][at]}: {', '.join(parts)}", figure)

    return _live(controls, show)


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
        InputError: the shapes do not fit each other, or a logit is not a number.
    """
    return _page("routing", _routing_record(blocks, rounds, logits, groups))


def gate_explorer(classes: Sequence[str], images: Sequence[Mapping[str, Any]]) -> ipywidgets.VBox:
    """Two experts and their gate on single images (PFL-MoE): choose an image, and slide the weight g of the global expert.

    Takes what `gate_explorer_page` takes, and raises the same errors. An image starts at the g of its client's gate.
    """
    record = _gate_record(classes, images)
    named = [(image["name"], at) for at, image in enumerate(record["images"])]
    controls: dict[str, Any] = {
        "at": ipywidgets.Dropdown(options=named, description="image", **_wide(18)),
        "g": ipywidgets.FloatSlider(
            record["images"][0]["g"], min=0, max=1, step=0.01, description="g, weight of the global expert",
            continuous_update=False, **_wide(18),
        ),
    }  # fmt: skip

    def show(at: int, g: float) -> str:
        image, probabilities = record["images"][at], _mixed(record["images"][at], g)
        says = [
            f"{name} says <b>{escape(classes[best])}</b>, {'right' if best == image['label'] else 'wrong'}"
            for name, best in zip(record["experts"], probabilities.argmax(1), strict=True)
        ]
        figure = plot_gate(
            classes, images[at]["pixels"], image["label"], probabilities, g=g, learned=image["g"]
        )
        return _shown(f"{escape(image['about'])}.</p><p>{'; '.join(says)}", figure)

    def start(change: Mapping[str, Any]) -> None:
        controls["g"].value = record["images"][change["new"]]["g"]

    controls["at"].observe(start, names="value")
    return _live(controls, show)


def gate_explorer_page(classes: Sequence[str], images: Sequence[Mapping[str, Any]]) -> str:
    """Two experts and their gate on single images (PFL-MoE), as one piece of HTML that computes in the page.

    Args:
        classes: their names.
        images: for each one `client`, `label`, `share` (of its class in the client's training images), `g`, the logits
            `global` and `personal` [classes], and `pixels` [side, side] in 0 to 1.

    Raises:
        InputError: there is no image, or one lacks something or does not fit the classes.
    """
    return _page("gate", _gate_record(classes, images))


def alpha_explorer(
    rounds: Sequence[int], alphas: Mapping[str, ArrayLike], groups: Sequence[int]
) -> ipywidgets.VBox:
    """How much every client uses of every branch (pFedMB), several runs side by side: a slider over the rounds, and the layer.

    Takes what `alpha_explorer_page` takes, and raises the same errors.
    """
    record = _alpha_record(rounds, alphas, groups)
    last, slide = len(record["rounds"]) - 1, _wide(9) | {"continuous_update": False}
    moments = [(str(number), at) for at, number in enumerate(record["rounds"])]
    layers = [(name, at) for at, name in enumerate(record["layers"])]
    controls: dict[str, Any] = {
        "at": ipywidgets.SelectionSlider(options=moments, value=last, description="round", **slide),
        "layer": ipywidgets.Dropdown(
            options=layers, description="layer", disabled=len(layers) < 2, **_wide(9)
        ),
    }

    def show(at: int, layer: int) -> str:
        weights = {
            run["name"]: np.array(run["weights"][at])[:, layer] for run in record["runs"]
        }  # [N, B] each
        said = []
        for name, own in weights.items():
            values = zip(record["measures"], _specialised(own, record["groups"]), strict=True)
            said.append(
                f"{escape(name)}: "
                + ", ".join(f"{words} <b>{_fixed(value, 2)}</b>" for (words, _), value in values)
            )
        where = f", {record['layers'][layer]}" if len(layers) > 1 else ""
        shades = [run["colour"] for run in record["runs"]]
        figure = plot_alpha(weights, groups=record["groups"], colours=shades)
        return _shown(f"round {record['rounds'][at]}{where}. {'. '.join(said)}", figure)

    return _live(controls, show)


def alpha_explorer_page(rounds: Sequence[int], alphas: Mapping[str, ArrayLike], groups: Sequence[int]) -> str:
    """How much every client uses of every branch (pFedMB), as one piece of HTML that computes in the page.

    Args:
        rounds: the recorded rounds [R].
        alphas: name of a method or arm -> weights [R, clients, branches], or [R, clients, layers, branches].
        groups: the true group of every client, by which they are sorted and compared.

    Raises:
        InputError: there is no run, the shapes do not fit each other, or some weights are no mixture.
    """
    return _page("alpha", _alpha_record(rounds, alphas, groups))


def comparison_explorer(record: Mapping[str, Any]) -> ipywidgets.VBox:
    """Methods side by side from the runs of the ledger: curves, clients in pairs, and ranks.

    Takes what `comparison_explorer_page` takes, and raises the same errors.
    """
    known = _comparison_record(record)
    entries, wide = known["experiments"], _wide(7)
    titles = [(entry["title"], at) for at, entry in enumerate(entries)]
    views = [(words, kind) for kind, words in known["views"]]
    summaries = [(words, summary) for summary, words in known["summaries"].items()]
    controls: dict[str, Any] = {
        "at": ipywidgets.Dropdown(options=titles, description="experiment", **wide),
        "metric": ipywidgets.Dropdown(description="accuracy on", **wide),
        "kind": ipywidgets.Dropdown(options=views, description="view", **wide),
        "summary": ipywidgets.Dropdown(options=summaries, description="summary", **wide),
        "a": ipywidgets.Dropdown(description="A, across", **wide),
        "b": ipywidgets.Dropdown(description="B, up", **wide),
        "methods": ipywidgets.SelectMultiple(description="methods", rows=8, **wide),
    }

    def begin(_: object = None) -> None:
        entry = entries[controls["at"].value]
        names = [(method["name"], method["key"]) for method in entry["methods"]]
        controls["metric"].options = [(known["metrics"][metric], metric) for metric in entry["metrics"]]
        controls["metric"].value = entry["metrics"][0]
        for side in ("a", "b"):
            controls[side].options = names
            controls[side].value = entry[side]
        controls["methods"].options = names
        controls["methods"].value = [method["key"] for method in entry["methods"] if method["start"]]

    def show(at: int, metric: str | None, methods: Sequence[str], **chosen: Any) -> str:
        entry, kind = entries[at], chosen["kind"]
        for name, kinds in {
            "summary": "curves",
            "a": "pairs",
            "b": "pairs",
            "methods": "curves ranks",
        }.items():
            controls[name].disabled = kind not in kinds
        keys = {method["key"] for method in entry["methods"]}
        if (
            metric is None
            or metric not in entry["metrics"]
            or not {chosen["a"], chosen["b"], *methods} <= keys
        ):
            return ""  # the controls are on their way to another experiment
        words, figure = _compared(known, entry, metric=metric, methods=methods, **chosen)
        return _shown(words, figure) if figure else f"<p>{words}</p>"

    begin()
    controls["at"].observe(begin, names="value")
    return _live(controls, show)


def comparison_explorer_page(record: Mapping[str, Any]) -> str:
    """Methods side by side from the runs of the ledger, as one piece of HTML that computes in the page.

    Args:
        record: what `pfl_lite.experiments.comparison.record` gives.

    Raises:
        InputError: the record holds no experiment.
    """
    return _page("comparison", _comparison_record(record))


def _comparison_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """A comparison's record with what both explorers show besides: names, colours, dashes, and what is chosen at first."""
    if not record["experiments"]:
        raise InputError("a comparison needs an experiment with at least two complete runs")
    entries = []
    for entry in record["experiments"]:
        means = comparison.curves(entry, "scored").groupby("arm")["value"].last()
        first = means.sort_values(ascending=False).index[:_LINES]
        shades: list[str] = []
        methods = []
        for method in entry["methods"]:
            shade = colour(method["key"], method["method"])
            known = {"name": label(method["label"]), "colour": shade, "dash": shades.count(shade)}
            methods.append(method | known | {"start": method["key"] in first})
            shades.append(shade)
        keys = [method["key"] for method in methods]
        entries.append(
            entry | {"methods": methods, "a": "fedavg" if "fedavg" in keys[:-1] else keys[0], "b": keys[-1]}
        )
    return {**record, "views": list(_VIEWS.items()), "experiments": entries}


def _compared(
    record: Mapping[str, Any], entry: Mapping[str, Any], *, kind: str, metric: str, summary: str,
    methods: Sequence[str], a: str, b: str,
) -> tuple[str, Figure | None]:  # fmt: skip
    """The words and the picture of one view; no picture where there is nothing to compare."""
    names = {method["key"]: method["name"] for method in entry["methods"]}
    shades = {method["key"]: method["colour"] for method in entry["methods"]}
    chosen = [a, b] if kind == "pairs" else [key for key in names if key in methods]
    frame = comparison.curves(entry, metric, summary, chosen)
    there = set(frame["arm"])
    without = ", ".join(names[key] for key in names if key in chosen and key not in there)
    lacking = f"; not kept by {without}" if without else ""
    head = f"{entry['title']}; {record['metrics'][metric]}"
    if kind == "curves":
        if not there:
            return escape(f"{head}: choose a method that has it{lacking}"), None
        runs = frame.groupby("arm")["seed"].transform("nunique")
        frame = frame[
            frame.groupby(["arm", "round"])["seed"].transform("size") == runs
        ]  # rounds of all seeds
        ends = frame[frame["round"] == frame.groupby("arm")["round"].transform("max")]
        last = ends.groupby("arm", sort=False)["value"].mean()
        last = last.sort_values(ascending=False, kind="stable")
        said = ", ".join(f"{names[key]} {_fixed(value, 1)}" for key, value in last.items())
        words = f"{head}, {record['summaries'][summary]}, after the last round: {said}{lacking}"
        # as in the page: before round 1 nobody has trained, and the lines would lie close together above it
        later = frame[(frame["round"] > 0) | (frame.groupby("arm")["round"].transform("nunique") == 1)]
        return escape(words), plot_curves(
            later, percent=False, ylabel="test accuracy (%)", colours=shades, names=names
        )
    table = comparison.paired(entry, metric, chosen)
    if not len(table) or (kind == "pairs" and len(there) < 2):
        wanted = "two methods" if kind == "pairs" else "methods"
        return escape(f"{head}: choose {wanted} with a common seed{lacking}"), None
    seeds = table.index.get_level_values("seed").nunique()
    counted = f"{_plural(len(table), 'client')} of {_plural(seeds, 'seed')}"
    if kind == "ranks":
        found = comparison.ranks(table)
        said = ", ".join(
            f"{names[key]} {_fixed(rank, 2)} ({_fixed(mean, 1)}, {_fixed(worst, 1)})"
            for key, rank, mean, worst in found.itertuples()
        )
        words = f"{head}; {counted}; mean rank (mean, worst tenth): {said}{lacking}"
        return escape(words), plot_ranks(found, colours=shades, names=names)
    difference = (table[b] - table[a]).round(2)
    above, below, equal = (
        f"{_rounded(100 * holds.mean()):.0f} %" for holds in (difference > 0, difference < 0, difference == 0)
    )
    points = difference.mean()
    words = (
        f"{head}; {counted}: {names[b]} is above {names[a]} for {above}, below for {below}, equal for {equal}; "
        f"mean difference {'-' if points < 0 else '+'}{_fixed(abs(points), 2)} points"
    )
    axes = [f"{side}: {names[key]} (%)" for side, key in (("A", a), ("B", b))]
    return escape(words), plot_pairs(table[a], table[b], names=axes, colour=shades[b])


def _plural(number: int, word: str) -> str:
    """A number of things: `1 seed`, `3 seeds`."""
    return f"{number} {word}{'' if number == 1 else 's'}"


def _alpha_record(
    rounds: Sequence[int], alphas: Mapping[str, ArrayLike], groups: Sequence[int]
) -> dict[str, Any]:
    """What both alpha explorers show: weights in few digits, and the words around what is measured."""
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
    return {
        "groups": [int(group) for group in groups],
        "rounds": [int(number) for number in rounds],
        "layers": [f"layer {number + 1}" for number in range(shape[2])],
        "runs": [
            {"name": label(name), "colour": colour(name), "weights": each.round(4).tolist()}
            for name, each in weights.items()
        ],
        "measures": [
            ("distance, two groups", "mean over two clients of different groups; 0: one mixture, 1: no common branch"),
            ("distance, one group", "mean over two clients of the same group"),
            ("branches in use", f"by a client, of {shape[3]}: e to the entropy of its weights"),
        ],
        "about": "One row a client, sorted by group; one column a branch; a bar is the client's weight of the branch, 0 to 1.",
    }  # fmt: skip


def _specialised(weights: np.ndarray, groups: Sequence[int]) -> list[float]:
    """Of weights [clients, branches]: mean total variation distances of two clients of different groups and of one group, and
    the mean number of branches in use (NaN where there are no such two clients).
    """
    distances = 0.5 * np.abs(weights[:, None] - weights).sum(-1)  # [N, N]
    known = np.asarray(groups)
    same, pairs = known[:, None] == known, np.triu(np.ones(distances.shape, dtype=bool), 1)
    kinds = [distances[pairs & kind] for kind in (~same, same)]
    return [
        *(float(kind.mean()) if kind.size else math.nan for kind in kinds),
        float(np.exp(entr(weights).sum(1)).mean()),
    ]


def _fixed(value: float, digits: int) -> str:
    """A number with so many digits after the point, as the pages write it: what adding up in another order changes is cut off,
    then a half goes away from zero.
    """
    if math.isnan(value):
        return "-"
    return str(Decimal(round(float(value), 9)).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP))


def _routing_record(
    blocks: Sequence[int], rounds: Sequence[int], logits: ArrayLike, groups: Sequence[int]
) -> dict[str, Any]:
    """What both routing explorers show: numbers in few digits, and the words around what is measured."""
    values = np.asarray(logits, dtype=float)
    wanted = (len(rounds), len(groups), decisions(blocks))
    if 0 in wanted:
        raise InputError("a routing explorer needs at least one round and one client")
    if values.shape != wanted:
        raise InputError(f"logits must be [rounds, clients, decisions] = {wanted}, not {values.shape}")
    if not np.isfinite(values).all():
        raise InputError("logits must be finite numbers")
    return {
        "blocks": list(blocks),
        "groups": [int(group) for group in groups],
        "colours": [group_colour(int(group)) for group in groups],
        "rounds": [int(number) for number in rounds],
        # Three digits, whatever the size: a logit keeps its sign, and so its bit.
        "logits": [[[float(f"{each:.3g}") for each in own] for own in moment] for moment in values],
        "measures": [
            ("blocks sent", f"a client, of {sum(blocks[1:])}"),
            ("equal decisions", "two clients of one group"),
            ("equal decisions", "two clients of different groups"),
        ],
    }


def _routes(record: Mapping[str, Any], at: int, draw: int | None) -> tuple[np.ndarray, list[str]]:
    """Bits [clients, decisions] at a recorded round, safety path included, and the values of the three measures.

    A bit is on where pi is above one half, or drawn with probability pi if `draw` is a number.
    """
    blocks, groups = record["blocks"], np.asarray(record["groups"])
    logits = torch.tensor(record["logits"][at], dtype=torch.float64)  # [N, E]
    on = logits > 0
    if draw is not None:
        on = torch.from_numpy(generator(draw, "routing explorer").random(logits.shape)) < logits.sigmoid()
    bits = torch.stack(
        [safety_path(own, scores, blocks)[0] for own, scores in zip(on.double(), logits, strict=True)]
    )
    sent = sum(in_use(own, blocks).sum().item() for own in bits) / len(bits)
    equal = (bits[:, None] == bits).double().mean(2).numpy()  # [N, N]
    pairs, same = np.triu(np.ones(equal.shape, dtype=bool), 1), groups[:, None] == groups
    shares = [equal[pairs & kind] for kind in (same, ~same)]
    percent = [f"{_rounded(100 * share.mean()):.0f} %" if share.size else "-" for share in shares]
    return bits.numpy(), [f"{_rounded(sent, 1):.1f}", *percent]


def _gate_record(classes: Sequence[str], images: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
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
                "about": f"client {image['client']}: {_rounded(100 * image['share']):.0f} % of its training images "
                f"are {name}; its gate gives this image g = {g:.2f}",
                "label": int(image["label"]),
                "g": g,
                **{expert: logits.round(3).tolist() for expert, logits in experts.items()},
                "side": len(pixels),
                "pixels": "".join(f"{level:x}" for level in np.rint(15 * pixels.clip(0, 1)).astype(int).flat),
            }
        )
    return {"classes": list(classes), "experts": list(EXPERT_COLOURS), "images": entries}


def _mixed(image: Mapping[str, Any], g: float) -> np.ndarray:
    """Probabilities of the classes: of the global expert, of the personal one, and of the mixed logits [3, classes]."""
    general, personal = np.array(image["global"]), np.array(image["personal"])
    return np.asarray(softmax([general, personal, g * general + (1 - g) * personal], axis=1))


def _rounded(value: float, digits: int = 0) -> float:
    """Rounded as the pages' JavaScript does it: a half goes up."""
    return math.floor(value * 10**digits + 0.5) / 10**digits


def _wide(words: int) -> dict[str, Any]:
    """The layout of a control whose description has room for so many em."""
    return {
        "style": {"description_width": f"{words}em"},
        "layout": ipywidgets.Layout(width=f"{words + 15}em"),
    }


def _live(controls: Mapping[str, Any], show: Callable[..., str]) -> ipywidgets.VBox:
    """The controls over what `show` makes of their values: a piece of HTML."""
    output = ipywidgets.HTML()

    def refresh(_: object = None) -> None:
        output.value = show(**{name: control.value for name, control in controls.items()})

    for control in controls.values():
        control.observe(refresh, names="value")
    refresh()
    return ipywidgets.VBox([*controls.values(), output])


def _shown(words: str, figure: Figure) -> str:
    """Words over a picture that has them as its alternative text."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png")
    plain = unescape(re.sub("<[^>]*>", "", words.replace("</p>", " ")))
    return (
        f'<p>{words}</p><img alt="{escape(plain)}" style="max-width: 100%" '
        f'src="data:image/png;base64,{base64.b64encode(drawn.getvalue()).decode()}">'
    )


def _page(kind: str, record: Mapping[str, Any] | None = None) -> str:
    """An explorer's element with the record that it shows, and the styles and scripts that it needs, its own last."""
    inside = "The explorer needs JavaScript, and in JupyterLab a notebook that is trusted."
    if record is not None:
        data = json.dumps(record, separators=(",", ":")).replace("</", "<\\/")
        inside += f'<script type="application/json">{data}</script>'
    folder = resources.files("pfl_lite") / "static"
    sheets = ("explorer", *_MORE_STYLES.get(kind, ()))
    scripts = ("explorer", *_MORE_SCRIPTS.get(kind, ()), f"{kind}_explorer")
    style = "".join((folder / f"{sheet}.css").read_text(encoding="utf-8") for sheet in sheets)
    script = "".join((folder / f"{name}.js").read_text(encoding="utf-8") for name in scripts)
    return (
        f'<div class="pfl-explorer" data-kind="{kind}" role="group" aria-label="{kind.capitalize()} explorer">{inside}</div>\n'
        f"<style>\n{style}</style>\n<script>\n{script}</script>\n"
    )


def _counts(images: Images, spec: str, clients: int, seed: int) -> np.ndarray:
    """Training images of each class at each client: int64 [clients, classes]."""
    parts = [client.train for client in partition(images, spec, clients, seed)]
    return class_counts(images.train_labels, parts, len(images.card.classes))
