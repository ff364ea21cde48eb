"""What all explorers share: controls over a picture, a page that computes by itself, and numbers as both write them."""

from __future__ import annotations

import base64
import json
import math
import os
import re
import sys
from collections.abc import Callable, Mapping
from decimal import ROUND_HALF_UP, Decimal
from html import escape, unescape
from importlib import resources
from typing import TYPE_CHECKING, Any

import ipywidgets

from pfl_lite.plots import sharp

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MORE_STYLES = {"alpha": ("table",), "comparison": ("table", "comparison_explorer")}
_MORE_SCRIPTS = {"comparison": ("comparison",)}


def front_end() -> bool:
    """Whether somebody can move a slider: true in JupyterLab, Jupyter Notebook, VS Code and Colab.

    False where a notebook is executed by a program, as for this book's pages.
    """
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    in_vscode = shell is not None and "__vsc_ipynb_file__" in shell.user_ns
    return bool(os.environ.get("JPY_SESSION_NAME")) or in_vscode or "google.colab" in sys.modules


def width_for(words: int) -> dict[str, Any]:
    """The layout of a control whose description has room for so many em."""
    return {
        "style": {"description_width": f"{words}em"},
        "layout": ipywidgets.Layout(width=f"{words + 15}em"),
    }


def live(controls: Mapping[str, Any], show: Callable[..., str]) -> ipywidgets.VBox:
    """The controls over what `show` makes of their values: a piece of HTML."""
    output = ipywidgets.HTML()

    def refresh(_: object = None) -> None:
        output.value = show(**{name: control.value for name, control in controls.items()})

    for control in controls.values():
        control.observe(refresh, names="value")
    refresh()
    return ipywidgets.VBox([*controls.values(), output])


def shown(words: str, figure: Figure) -> str:
    """Words over a picture that has them as its alternative text."""
    picture, size = sharp(figure)
    plain = unescape(re.sub("<[^>]*>", "", words.replace("</p>", " ")))
    return (
        f'<p>{words}</p><img alt="{escape(plain)}" width="{size["width"]}" style="max-width: 100%" '
        f'src="data:image/png;base64,{base64.b64encode(picture).decode()}">'
    )


def page(kind: str, record: Mapping[str, Any] | None = None) -> str:
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


def fixed(value: float, digits: int) -> str:
    """A number with so many digits after the point, as the pages write it: what adding up in another order changes is cut off,
    then a half goes away from zero.
    """
    if math.isnan(value):
        return "-"
    return str(Decimal(round(float(value), 9)).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP))


def rounded(value: float, digits: int = 0) -> float:
    """Rounded as the pages' JavaScript does it: a half goes up."""
    return math.floor(value * 10**digits + 0.5) / 10**digits


def plural(number: int, word: str) -> str:
    """A number of things: `1 seed`, `3 seeds`."""
    return f"{number} {word}{'' if number == 1 else 's'}"
