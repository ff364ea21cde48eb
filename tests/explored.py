"""What explorers carry, and what they show, computed by NumPy and the package, to hold the pages' JavaScript against."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from bs4 import BeautifulSoup
from scipy.special import softmax

from pfl_lite.models.modular import in_use, safety_path


def carried(page: str, inside: str = "") -> Any:
    """The record in the script of a page, or of what `inside` selects there; a large one is deflated."""
    script: Any = BeautifulSoup(page, "html.parser").select_one(f'{inside} script[type="application/json"]')
    return json.loads(
        zlib.decompress(base64.b64decode(script.text)) if "data-packed" in script.attrs else script.text
    )


def routes(record: Mapping[str, Any], at: int) -> tuple[np.ndarray, list[str]]:
    """Bits [clients, decisions] at a recorded round, safety path included, and the values of the three measures."""
    blocks, groups = record["blocks"], np.asarray(record["groups"])
    logits = torch.tensor(record["logits"][at], dtype=torch.float64)  # [N, E]
    pairs = zip((logits > 0).double(), logits, strict=True)
    bits = torch.stack([safety_path(own, scores, blocks)[0] for own, scores in pairs])
    sent = sum(in_use(own, blocks).sum().item() for own in bits) / len(bits)
    equal = (bits[:, None] == bits).double().mean(2).numpy()  # [N, N]
    upper, same = np.triu(np.ones(equal.shape, dtype=bool), 1), groups[:, None] == groups
    shares = [equal[upper & kind] for kind in (same, ~same)]
    percent = [f"{np.floor(100 * share.mean() + 0.5):.0f}%" if share.size else "-" for share in shares]
    return bits.numpy(), [f"{np.floor(10 * sent + 0.5) / 10:.1f}", *percent]


def mixed(image: Mapping[str, Any], g: float) -> np.ndarray:
    """Probabilities of the classes: of the global expert, of the personal one, and of the mixed logits [3, classes]."""
    general, personal = np.array(image["global"]), np.array(image["personal"])
    return np.asarray(softmax([general, personal, g * general + (1 - g) * personal], axis=1))
