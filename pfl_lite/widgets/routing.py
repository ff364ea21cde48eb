"""The routing explorer (chapter *Assembling a network per client*): which blocks a client assembles, round by round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import ipywidgets
import numpy as np
import torch

from pfl_lite.errors import InputError
from pfl_lite.models.modular import decisions, in_use, safety_path
from pfl_lite.plots import (
    group_colour,
    plot_routes,
)
from pfl_lite.seeds import generator
from pfl_lite.widgets.frame import live, page, rounded, shown, width_for

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


def routing_explorer(
    blocks: Sequence[int], rounds: Sequence[int], logits: ArrayLike, groups: Sequence[int]
) -> ipywidgets.VBox:
    """Which blocks every client assembles, round by round (FedMN): a slider over the rounds, and a way to set the bits.

    Takes what `routing_explorer_page` takes, and raises the same errors. Only the random draws differ: each
    explorer has its own random numbers.
    """
    record = record_of(blocks, rounds, logits, groups)
    last, slide = len(record["rounds"]) - 1, width_for(9) | {"continuous_update": False}
    moments = [(str(number), at) for at, number in enumerate(record["rounds"])]
    rules = [("pi above one half", False), ("a random draw", True)]
    controls: dict[str, Any] = {
        "at": ipywidgets.SelectionSlider(options=moments, value=last, description="round", **slide),
        "random": ipywidgets.Dropdown(options=rules, description="decisions", **width_for(9)),
        "draw": ipywidgets.IntSlider(0, min=0, max=99, description="draw", **slide),
    }

    def show(at: int, random: bool, draw: int) -> str:
        controls["draw"].disabled = not random
        bits, values = routes(record, at, draw if random else None)
        parts = [
            f"{name} <b>{value}</b> {remark}"
            for (name, remark), value in zip(record["measures"], values, strict=True)
        ]
        order = np.argsort(record["groups"], kind="stable")
        titles = [f"client {i}, group {record['groups'][i]}" for i in order]
        figure = plot_routes(blocks, bits[order], groups=[record["groups"][i] for i in order], titles=titles)
        return shown(f"round {record['rounds'][at]}: {', '.join(parts)}", figure)

    return live(controls, show)


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
    return page("routing", record_of(blocks, rounds, logits, groups))


def record_of(
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


def routes(record: Mapping[str, Any], at: int, draw: int | None) -> tuple[np.ndarray, list[str]]:
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
    percent = [f"{rounded(100 * share.mean()):.0f} %" if share.size else "-" for share in shares]
    return bits.numpy(), [f"{rounded(sent, 1):.1f}", *percent]
