"""Write pfl_in_one_file.py, FedAvg to pFedMB without the package, out of the units' own cells."""

from __future__ import annotations

import ast
import inspect
import json
import subprocess
import sys
import textwrap
from pathlib import Path

import generated

from pfl_lite.engine.local_training import epoch_orders
from pfl_lite.seeds import generator

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "book/_extra/pfl_in_one_file.py"

HEAD = '''\
"""Personalized federated learning in one file: thirteen methods, from FedAvg to pFedMB, on scikit-learn's digits.

Made by tools/one_file.py from the cells of the book "Personalized federated learning, by running it", and tested to give the
numbers of its package. It needs NumPy, PyTorch and scikit-learn: python pfl_in_one_file.py
Code: BSD-3-Clause, the pfl_lite authors.
"""

import zlib
from types import SimpleNamespace

import numpy as np
import torch
import torch.nn.functional as F
from torch.func import grad
'''

DATA = """\
class Federation(SimpleNamespace):
    def __len__(self):
        return len(self.train)


def pairs_of_digits(seed=0):  # ten clients; clients 2p and 2p + 1 share the digits 2p and 2p + 1
    from sklearn.datasets import load_digits

    pixels, names = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(pixels))
    x = torch.tensor(pixels[order] / 16).view(-1, 1, 8, 8)
    y = torch.tensor(names[order])
    train, test = [], []
    for i in range(10):
        mine = torch.where(y // 2 == i // 2)[0][i % 2 :: 2]  # every other image of the pair of digits
        train.append(mine[len(mine) // 4 :])
        test.append(mine[: len(mine) // 4])
    sizes = torch.tensor([len(rows) for rows in train])
    return Federation(images=x, labels=y, train=train, train_sizes=sizes, test_images=x, test_labels=y, test=test)


def mlp(w, x):  # one hidden layer
    return F.linear(F.linear(x.flatten(1), w["fc1.weight"], w["fc1.bias"]).relu(), w["fc2.weight"], w["fc2.bias"])


def first_weights(shapes, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return {name: 0.1 * torch.randn(shape, generator=rng, dtype=torch.float64) for name, shape in shapes.items()}
"""

# Every section: the head of its function, (unit, cell, names or nothing for all of a cell), and what the section plays.
SECTIONS = [
    (
        "FedAvg (Federated learning in twenty lines)",
        "def fedavg(federation, start, rounds, E, b, lr):",
        [("federated-learning-in-twenty-lines", "cell-10", "")],
        "theta = server_executes(softmax_regression, start, rounds, E, b, lr)\nreturn [theta] * len(federation.train)",
    ),
    (
        "Local, and FedAvg with fine-tuning (One model or many)",
        "def local_or_tuned(fed, start, rounds, E, b, lr, tune=False):",
        [("one-model-or-many", "cell-08", "")],
        """\
model = lambda w, x: F.linear(x.flatten(1), w["fc.weight"], w["fc.bias"])  # noqa: E731
models = train(model, [start] * len(fed.train), range(1, rounds + 1), tune, fed, E, b, lr)
return train(model, models, [rounds + 1], False, fed, E, b, lr) if tune else models""",
    ),
    (
        "FedProx and SCAFFOLD (Pulling toward the center)",
        "def with_less_drift(skewed, start, rounds, EPOCHS, BATCH, LR, mu=None):  # SCAFFOLD if there is no mu",
        [
            ("pulling-towards-the-centre", "cell-10", "flat shaped loss gradient one_round"),
            ("pulling-towards-the-centre", "cell-10b", ""),
        ],
        """\
theta, N = flat(start), len(skewed.train)
c, own = torch.zeros_like(theta), torch.zeros(N, len(theta), dtype=theta.dtype)
for t in range(1, rounds + 1):
    if mu is None:
        theta, c, own = scaffold_round(theta, c, own, t)
    else:
        theta = one_round([fedprox(theta, mu)] * N, theta, t)
return [shaped(theta)] * N""",
    ),
    (
        "FedPer, FedRep and LG-FedAvg (Sharing a part)",
        "def sharing_a_part(fed, start, rounds, EPOCHS, BATCH, LR, private=('fc2',), head_first=False):",
        [
            ("sharing-a-part", "cell-08b", ""),
            ("sharing-a-part", "cell-08d", ""),
            ("sharing-a-part", "cell-10", "by_hand"),
        ],
        """\
net, N = mlp, len(fed.train)
s, parts = by_hand(head_then_base if head_first else together, private, rounds)
return [s | p for p in parts]""",
    ),
    (
        "Ditto and pFedMe (Two models, one tie)",
        "def tied(fed, start, rounds, BATCH, ETA, method='ditto', **options):",
        [
            ("two-models-one-tie", "cell-18", ""),
            ("two-models-one-tie", "cell-19", ""),
            ("two-models-one-tie", "cell-21", "images"),
        ],
        """\
w = torch.cat([start["fc.weight"].flatten(), start["fc.bias"]])
share = fed.train_sizes.double() / fed.train_sizes.sum()  # n_i / n, [N]
client = {"ditto": ditto, "pfedme": pfedme}[method]
_, kept = federated(client, (images, share), w, [w] * len(share), rounds, eta=ETA, **options)
return [{"fc.weight": v[:-10].view(10, -1), "fc.bias": v[-10:]} for v in kept]""",
    ),
    (
        "IFCA (Clusters)",
        "def clustered(fed, starts, rounds, E, BATCH, ETA):",
        [("clusters", "cell-09", ""), ("clusters", "cell-55", "")],
        """\
N, sizes = len(fed.train), fed.train_sizes.double()
models, choice = ifca(starts, rounds)
return [models[j] for j in choice]""",
    ),
    (
        "FedEM (Mixtures)",
        "def blended(glyphs, starts, rounds, E, b, lr):  # starts: [M, ...]; the models, and pi [N, M]",
        [("mixtures", "cell-08", "")],
        """\
N, M = len(glyphs.train), len(starts["fc.bias"])
models, pi = starts, torch.full((N, M), 1 / M, dtype=torch.float64)
for number in range(1, rounds + 1):
    models, pi = em_round(models, pi, number, E, b, lr)
return models, pi""",
    ),
    (
        "pFedMB (pFedMB: branches that clients mix)",
        "def branched(federation, network, branches, rounds, EPOCHS, BATCH, LR, ALPHA_LR):  # branches: [B, ...]",
        [("pfedmb", "cell-helpers", "mix batches loss"), ("pfedmb", "cell-13", "")],
        """\
B = len(next(iter(branches.values())))
logits = torch.zeros(len(federation.train), B, dtype=torch.float64)
for number in range(1, rounds + 1):
    branches, logits = one_round(branches, logits, number)
return [mix(branches, a) for a in logits], logits.softmax(-1)""",
    ),
]

MAIN = """\
def accuracy(fed, answers):  # mean over clients (%); answers(i, x) are scores [b, 10] of client i's model
    pairs = [(answers(i, fed.test_images[rows]).argmax(1), fed.test_labels[rows]) for i, rows in enumerate(fed.test)]
    return 100 * torch.stack([(guess == y).double().mean() for guess, y in pairs]).mean().item()


def main(rounds=5, E=2, b=32, lr=0.1):
    fed = pairs_of_digits()
    linear = lambda w, x: F.linear(x.flatten(1), w["fc.weight"], w["fc.bias"])  # noqa: E731
    shapes = {"fc.weight": (10, 64), "fc.bias": (10,)}
    start, starts = first_weights(shapes), [first_weights(shapes, seed) for seed in range(5)]
    stacked = {name: torch.stack([w[name] for w in starts]) for name in shapes}
    deep = first_weights({"fc1.weight": (64, 64), "fc1.bias": (64,), "fc2.weight": (10, 64), "fc2.bias": (10,)})
    budget = (rounds, E, b, lr)
    models = {
        "Local": (linear, local_or_tuned(fed, start, *budget)),
        "FedAvg": (linear, fedavg(fed, start, *budget)),
        "PFL-FT": (linear, local_or_tuned(fed, start, *budget, tune=True)),
        "FedProx": (mlp, with_less_drift(fed, deep, *budget, mu=0.1)),
        "SCAFFOLD": (mlp, with_less_drift(fed, deep, *budget)),
        "FedPer": (mlp, sharing_a_part(fed, deep, *budget)),
        "FedRep": (mlp, sharing_a_part(fed, deep, *budget, head_first=True)),
        "LG-FedAvg": (mlp, sharing_a_part(fed, deep, *budget, private=("fc1",))),
        "Ditto": (linear, tied(fed, start, rounds, b, lr, lam=0.5)),
        "pFedMe": (linear, tied(fed, start, rounds, b, lr, "pfedme", lam=2.0, K=3, inner_lr=0.1)),
        "IFCA": (linear, clustered(fed, starts, *budget)),
        "pFedMB": (linear, branched(fed, linear, stacked, rounds, E, b, 0.5, 0.3)[0]),
    }
    for name, (network, mine) in models.items():
        reads = accuracy(fed, lambda i, x, network=network, mine=mine: network(mine[i], x))
        print(f"{name:12} {reads:5.1f}%")
    parts, pi = blended(fed, stacked, *budget)
    each = [{name: t[m] for name, t in parts.items()} for m in range(5)]  # a mixture of probabilities, not of scores
    reads = accuracy(fed, lambda i, x: sum(p * linear(w, x).softmax(1) for p, w in zip(pi[i], each, strict=True)))
    print(f"{'FedEM':12} {reads:5.1f}%")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
"""


def taken(unit: str, cell: str, names: str) -> str:
    """What one cell of a unit defines, without its imports; with `names`, only these functions and assignments."""
    notebook = json.loads((ROOT / f"book/{unit}.ipynb").read_text(encoding="utf-8"))
    source = "".join(next(one["source"] for one in notebook["cells"] if one["id"] == cell))
    lines, kept = source.splitlines(), []
    for node in ast.parse(source).body:
        targets = [target.id for target in getattr(node, "targets", []) if isinstance(target, ast.Name)]
        known = {getattr(node, "name", ""), *targets}
        if not isinstance(node, ast.Import | ast.ImportFrom) and (not names or known & {*names.split()}):
            kept.append("\n".join(lines[node.lineno - 1 : node.end_lineno]))
    return "\n\n".join(kept)


def made() -> str:
    """The file."""
    parts = [HEAD, inspect.getsource(generator), inspect.getsource(epoch_orders), DATA]
    for title, head, cells, play in SECTIONS:
        # What the cells use of their notebook's names comes first, then the cells, then the play.
        names, play = play.split("\n", 1) if play.startswith(("net, N", "N, sizes")) else ("", play)
        body = "\n\n".join([names, *(taken(*cell) for cell in cells), play]).strip()
        parts.append(f"# {title}\n{head}\n" + textwrap.indent(body, "    "))
    text = "\n\n\n".join(part.strip() for part in [*parts, MAIN]) + "\n"
    command = [sys.executable, "-m", "ruff", "format", "--line-length", "130", "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    generated.write([(FILE, made())])
