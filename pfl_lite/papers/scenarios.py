"""Every method on the same small clients, for *Which method when*: no paper's table."""

from __future__ import annotations

from pfl_lite.methods import METHODS
from pfl_lite.papers.experiment import Arm, Experiment, Settings, crossed
from pfl_lite.papers.fedmn import SMALL_POOL, WORKS

# Every method on the same small clients, for *Which method when*: one hidden layer on 28 x 28 figures, 20 clients of about 80
# training images. Every method has six candidates, searched on validation images of another seed: six learning rates, or three
# rates and two values of the setting that matters most to it. Methods that keep several models all keep four.
SIX_RATES = tuple({"lr": lr} for lr in (0.02, 0.05, 0.1, 0.2, 0.5, 1.0))
THREE_RATES = tuple({"lr": lr} for lr in (0.05, 0.15, 0.5))

FITTED: dict[str, tuple[Settings, tuple[Settings, ...]]] = {
    "fedprox": ({}, crossed(THREE_RATES, mu=(0.01, 0.1))),
    "pfl_ft": ({}, crossed(THREE_RATES, ft_epochs=(4, 16))),
    "pfl_fb": ({"head": "last"}, crossed(THREE_RATES, ft_epochs=(4, 16))),
    # lr lam stays below 1, beyond which w_i overshoots theta_i
    "pfedme": (
        {},
        tuple({"lam": lam, "lr": 0.9 / lam, "inner_lr": lr} for lam in (5, 15) for lr in (0.01, 0.03, 0.1)),
    ),
    "ifca": ({"clusters": 4}, SIX_RATES),
    "cfl": ({"warmup": 3}, crossed(THREE_RATES, gamma=(0.3, 0.5))),
    "fedfomo": ({}, crossed(THREE_RATES, models=(5, 10))),
    "fedamp": ({}, crossed(THREE_RATES, lam=(0.1, 1))),
    "fedem": ({"components": 4}, SIX_RATES),
    "pfedmb": ({"branches": 4}, crossed(THREE_RATES, alpha_lr=(0.3, 1))),
    "ditto": ({}, crossed(THREE_RATES, lam=(0.1, 1))),
    "apfl": ({}, crossed(THREE_RATES, alpha=(0.25, 0.75))),
    "perfedavg": ({}, crossed(THREE_RATES, inner_lr=(0.01, 0.1))),
    "moon": ({"projection": 64}, crossed(THREE_RATES, mu=(0.1, 1))),
    "fedrep": ({}, crossed(THREE_RATES, head_epochs=(4, 10))),
    "pfedhn": ({}, crossed(THREE_RATES, server_lr=(0.1, 0.3))),
    # the gates as on the chapter's page: with the paper's rate of 0.001 so few mini-batches leave them where they start
    "pfl_moe": ({"gate_lr": 0.03}, crossed(THREE_RATES, ft_epochs=(4, 16))),
    "pfl_mf": ({"gate_lr": 0.03, "head": "last"}, crossed(THREE_RATES, ft_epochs=(4, 16))),
    "pfl_mfe": ({"gate_lr": 0.03, "head": "last"}, crossed(THREE_RATES, ft_epochs=(4, 16))),
    # with the two changes that make its router choose; half of its rounds are pre-training
    "fedmn": (SMALL_POOL | WORKS | {"pretrain": 10}, crossed(THREE_RATES, blocks=("2x2x2", "4x4"))),
}
SEARCHES: dict[str, Settings] = {"fedmn": {"pretrain": 5}}
"""What a search of ten rounds does otherwise than the results."""
SCENARIOS = {
    "label-skew": ("label skew", "dirichlet:0.3"),
    "feature-shift": ("feature shift", "writers"),
    "concept-shift": ("concept shift in four groups", "concept:4"),
    "known-groups": ("label skew in five groups", "blocks:5"),
}


def comparison(name: str, words: str, partition: str) -> Experiment:
    """All methods on one kind of difference between clients."""
    arms = []
    for method in METHODS:
        settings, grid = FITTED.get(method, ({}, SIX_RATES))
        arms.append(Arm(method, method, method, None, grid, settings, search=SEARCHES.get(method, {})))
    return Experiment(
        name=f"when-{name}",
        title=f"Which method when: {words} (glyphs10, {partition})",
        data="glyphs10",
        model="mlp",
        partition=partition,
        clients=20,
        rounds=20,
        epochs=4,
        batch_size=20,
        arms=tuple(arms),
        deviations=(),
        eval_every=4,
        seeds=(0, 1, 2, 3, 4),
        search_rounds=10,
        next_candidate=False,  # their chapter shows what a rate on the brink does to a comparison
    )


WHEN = tuple(comparison(name, words, partition) for name, (words, partition) in SCENARIOS.items())
