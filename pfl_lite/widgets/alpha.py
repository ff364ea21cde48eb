"""The alpha explorer (chapter *pFedMB*): how much every client uses of every branch, runs side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import ipywidgets
import numpy as np
from scipy.special import entr

from pfl_lite.errors import InputError
from pfl_lite.plots import (
    colour,
    label,
    plot_alpha,
)
from pfl_lite.widgets.frame import fixed, live, page, shown, width_for

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


def alpha_explorer(
    rounds: Sequence[int], alphas: Mapping[str, ArrayLike], groups: Sequence[int]
) -> ipywidgets.VBox:
    """How much every client uses of every branch (pFedMB), several runs side by side: a slider over the rounds, and the layer.

    Takes what `alpha_explorer_page` takes, and raises the same errors.
    """
    record = record_of(rounds, alphas, groups)
    last, slide = len(record["rounds"]) - 1, width_for(9) | {"continuous_update": False}
    moments = [(str(number), at) for at, number in enumerate(record["rounds"])]
    layers = [(name, at) for at, name in enumerate(record["layers"])]
    controls: dict[str, Any] = {
        "at": ipywidgets.SelectionSlider(options=moments, value=last, description="round", **slide),
        "layer": ipywidgets.Dropdown(
            options=layers, description="layer", disabled=len(layers) < 2, **width_for(9)
        ),
    }

    def show(at: int, layer: int) -> str:
        weights = {
            run["name"]: np.array(run["weights"][at])[:, layer] for run in record["runs"]
        }  # [N, B] each
        said = []
        for name, own in weights.items():
            values = zip(record["measures"], specialised(own, record["groups"]), strict=True)
            said.append(
                f"{escape(name)}: "
                + ", ".join(f"{words} <b>{fixed(value, 2)}</b>" for (words, _), value in values)
            )
        where = f", {record['layers'][layer]}" if len(layers) > 1 else ""
        shades = [run["colour"] for run in record["runs"]]
        figure = plot_alpha(weights, groups=record["groups"], colours=shades)
        return shown(f"round {record['rounds'][at]}{where}. {'. '.join(said)}", figure)

    return live(controls, show)


def alpha_explorer_page(rounds: Sequence[int], alphas: Mapping[str, ArrayLike], groups: Sequence[int]) -> str:
    """How much every client uses of every branch (pFedMB), as one piece of HTML that computes in the page.

    Args:
        rounds: the recorded rounds [R].
        alphas: name of a method or arm -> weights [R, clients, branches], or [R, clients, layers, branches].
        groups: the true group of every client, by which they are sorted and compared.

    Raises:
        InputError: there is no run, the shapes do not fit each other, or some weights are no mixture.
    """
    return page("alpha", record_of(rounds, alphas, groups))


def record_of(
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


def specialised(weights: np.ndarray, groups: Sequence[int]) -> list[float]:
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
