"""Playgrounds that train in the page: plain JavaScript without kernel or network, for a page or the top of a chapter.

python tools/playgrounds.py    # all of them as a folder for any page host, or for a browser alone: _build/playground
"""

from __future__ import annotations

import base64
import re
import shutil
from html import escape
from importlib import resources
from pathlib import Path

import numpy as np
from nbconvert.filters import markdown2html

from pfl_lite.atomic_files import script_json
from pfl_lite.data.images import load
from pfl_lite.errors import one_of
from pfl_lite.show.offices import OFFICES
from pfl_lite.show.plots import METHOD_COLORS

ROOT = Path(__file__).resolve().parent.parent
STATIC = ROOT / "tools" / "static"
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>
<script>document.documentElement.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"</script>
<style>:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.5 sans-serif; max-width: 60rem; margin: 1rem auto; padding: 0 1rem; }}
main > table, details table {{ display: block; overflow-x: auto; }} th, td {{ padding: 0 0.6rem; text-align: left; }}
@media (min-width: 64rem) and (max-height: 50rem) {{  /* a projector's window is wide and low */
  body {{ max-width: 82rem; }} main > .pfl-play {{ max-width: none; padding: 10px; }}
  .pfl-play > form {{ columns: 2; column-gap: 24px; }} .pfl-play > form > * {{ break-inside: avoid; }}
}}</style>
</head><body><main><h1>{title}</h1>
{page}
</main></body></html>
"""
PLAYGROUNDS: dict[str, str] = {
    "server": "Be the server",
    "federation": "Train a federation here",
    "difference": "Which difference do I have?",
    "upload": "What the server sees",
}
"""Every playground and its title."""
SCRIPTS = [
    *(resources.files("pfl_lite") / "static" / f"{name}.js" for name in ("explorer", "playing")),
    *(STATIC / f"play_{name}.js" for name in ("models", "core", "offices", "frame")),
]
"""Of every playground, before its own."""
_NEEDS_DIGITS = ("federation", "difference", "upload")
PER_CLASS = 100  # images of each digit in a page


def playground(kind: str) -> str:
    """A playground as one piece of HTML with all that it needs: `IPython.display.HTML(playground("server"))` shows it.

    Raises:
        InputError: there is no such playground.
    """
    one_of("playground", kind, PLAYGROUNDS)
    record: dict[str, object] = {
        "offices": [{"name": one.name, "color": one.color, "dark": one.dark} for one in OFFICES]
    }
    if kind == "federation":
        record["methods"] = METHOD_COLORS
    if kind in _NEEDS_DIGITS:
        record["pool"] = digits()
    script = "".join(one.read_text(encoding="utf-8") for one in (*SCRIPTS, STATIC / f"play_{kind}.js"))
    style = (STATIC / "play.css").read_text(encoding="utf-8")
    return (
        f'<div class="pfl-play" data-play="{kind}" role="group" aria-label="{PLAYGROUNDS[kind]}">This playground needs '
        "JavaScript."
        f'<script type="application/json">{script_json(record)}</script></div>\n'
        f"<style>\n{style}</style>\n<script>\n{script}</script>\n"
    )


def digits() -> str:
    """The digits of the playgrounds, four bits a pixel in base 64: the first hundred of each class, the classes taking turns."""
    images = load("digits")
    pixels = np.concatenate([images.train_images, images.test_images]).reshape(-1, 64)
    labels = np.concatenate([images.train_labels, images.test_labels])
    by_class = np.stack([pixels[labels == c][:PER_CLASS] for c in range(10)], axis=1)  # [hundred, 10, 64]
    levels = np.rint(15 * (by_class / pixels.max())).astype(np.uint8).reshape(-1, 64)
    return base64.b64encode((levels[:, 0::2] << 4 | levels[:, 1::2]).tobytes()).decode()


def standing_alone(kind: str) -> str:
    """A playground as a page of its own, with the words around it in the book; what leads to other pages is only named."""
    named = f"```{{playground}} {kind}\n```\n"
    pages = (path.read_text(encoding="utf-8") for path in (ROOT / "book").glob("*.md"))
    words = next(page for page in pages if named in page)
    words = re.sub(r" \([^()]*\{numref\}[^()]*\)", "", re.sub(r"^# .*\n", "", words))
    words = re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", words)
    above, below = (
        "".join(folded(part) if at % 2 else html(part) for at, part in enumerate(text.split("````")))
        for text in words.split(named)
    )
    return PAGE.format(
        title=escape(PLAYGROUNDS[kind]), page=f'{above}<a id="play"></a>\n{playground(kind)}\n{below}'
    )


def html(words: str) -> str:
    """Markdown as HTML, without the signs that lead to its headings."""
    return re.sub(r'<a class="anchor-link".*?</a>', "", str(markdown2html(words)))


def folded(admonition: str) -> str:
    """A folded box of a page, as HTML."""
    head, words = admonition.split("\n\n", 1)
    title = head.partition("} ")[2].splitlines()[0]
    return f"<details><summary>{escape(title)}</summary>\n{html(words)}</details>\n"


def write_folder(folder: Path) -> None:
    """Write index.html and a page for each playground into a folder, anew; no page needs a file outside of it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for kind in PLAYGROUNDS:
        (folder / f"{kind}.html").write_text(standing_alone(kind), encoding="utf-8")
    links = "".join(
        f'<li><a href="{kind}.html">{escape(title)}</a></li>\n' for kind, title in PLAYGROUNDS.items()
    )
    index = PAGE.format(title="Personalized federated learning: playgrounds", page=f"<ul>\n{links}</ul>")
    (folder / "index.html").write_text(index, encoding="utf-8")


if __name__ == "__main__":
    write_folder(ROOT / "_build/playground")
    print(
        f"{ROOT / '_build/playground/index.html'}: open it in a browser, or put the folder on any page host"
    )
