"""PFL-MoE's claims over the nine settings of its tables I (local test) and II (global test)."""

from __future__ import annotations

from itertools import pairwise

from pfl_lite.experiments.claim import Link, ahead, linked
from pfl_lite.experiments.protocols_pflmoe import MOE_ALPHAS, MOE_PAIRS

TABLES = "pflmoe-tables"
LOCAL, GLOBAL = "local_test", "global_test"
GATED = ("pfl_mf", "pfl_mfe")  # as in the paper; the rows as in its code are our addition


def setting(pair: str, alpha: str) -> str:
    """The experiment of a setting."""
    return f"pflmoe-{pair}-{alpha}"


ALL = tuple(setting(pair, alpha) for pair in MOE_PAIRS for alpha in MOE_ALPHAS)
FASHION = tuple(name for name in ALL if "fmnist" in name)
CIFAR = tuple(name for name in ALL if "cifar10" in name)

linked(
    "E1",
    TABLES,
    "PFL-MF and PFL-MFE are above PFL-FB in the global test, in all nine settings (Table II)",
    [link for name in ALL for key in GATED for link in ahead(name, key, "pfl_fb", measure=GLOBAL)],
)
linked(
    "E2",
    TABLES,
    "PFL-MF is above FedAvg in the local test, in all nine settings (Table I)",
    [link for name in ALL for link in ahead(name, "pfl_mf", "fedavg", measure=LOCAL)],
)
linked(
    "E3",
    TABLES,
    "Fashion-MNIST: PFL-MF is not below PFL-FB, in both tests (Tables I and II)",
    [
        link
        for name in FASHION
        for test in (LOCAL, GLOBAL)
        for link in ahead(name, "pfl_mf", "pfl_fb", measure=test)
    ],
)
linked(
    "E4",
    TABLES,
    "CIFAR-10: PFL-MF is below PFL-FB in the local test, but with LeNet-5 and alpha = 2 (Table I)",
    [
        link
        for name in CIFAR
        for link in ahead(
            name,
            *(("pfl_mf", "pfl_fb") if name == setting("cifar10-lenet", "2") else ("pfl_fb", "pfl_mf")),
            measure=LOCAL,
        )
    ],
)
linked(
    "E5",
    TABLES,
    "CIFAR-10: the gate that reads features (PFL-MFE) is above the one that reads pixels (PFL-MF) in the local test (Table I)",
    [link for name in CIFAR for link in ahead(name, "pfl_mfe", "pfl_mf", measure=LOCAL)],
)
linked(
    "E6",
    TABLES,
    "The gate that reads pixels is not below the one that reads features in the global test, in all nine settings (Table II)",
    [link for name in ALL for link in ahead(name, "pfl_mf", "pfl_mfe", measure=GLOBAL)],
)


def on_average(better: str, worse: str) -> Link:
    """One arm before another in the local test, as a mean over the nine settings."""
    share = 1 / len(ALL)
    return Link(
        {(name, arm): sign * share for name in ALL for arm, sign in ((better, 1), (worse, -1))}, measure=LOCAL
    )


linked(
    "E7",
    TABLES,
    "PFL-MFE has the highest local test of all, averaged over the nine settings (Table I)",
    [on_average("pfl_mfe", rival) for rival in ("local", "fedavg", "pfl_fb", "pfl_mf")],
)
linked(
    "E8",
    TABLES,
    "The smaller alpha, the higher Local's local test and the lower FedAvg's global test (Tables I and II)",
    [
        link
        for pair in MOE_PAIRS
        for small, large in pairwise(MOE_ALPHAS)
        for link in (
            Link(
                {(setting(pair, small), "local"): 1.0, (setting(pair, large), "local"): -1.0}, measure=LOCAL
            ),
            Link(
                {(setting(pair, large), "fedavg"): 1.0, (setting(pair, small), "fedavg"): -1.0},
                measure=GLOBAL,
            ),
        )
    ],
)
linked(
    "E9",
    TABLES,
    "CIFAR-10: Local is worse with VGG-16 than with LeNet-5, in both tests (Tables I and II)",
    [
        Link(
            {
                (setting("cifar10-lenet", alpha), "local"): 1.0,
                (setting("cifar10-vgg16", alpha), "local"): -1.0,
            },
            measure=test,
        )
        for alpha in MOE_ALPHAS
        for test in (LOCAL, GLOBAL)
    ],
)


def shrinking(pair: str) -> list[Link]:
    """PFL-FB's lead over FedAvg falls from alpha to alpha, and none is left at the largest."""
    leads = [
        {(setting(pair, alpha), "pfl_fb"): 1.0, (setting(pair, alpha), "fedavg"): -1.0}
        for alpha in MOE_ALPHAS
    ]
    behind = [{term: -factor for term, factor in lead.items()} for lead in leads]
    falls = [Link(leads[i] | behind[i + 1], measure=LOCAL) for i in range(len(leads) - 1)]
    return [*falls, Link(behind[-1], measure=LOCAL)]


linked(
    "E10",
    TABLES,
    "LeNet-5: PFL-FB's lead over FedAvg in the local test shrinks as alpha grows and is gone at alpha = 2 (Table I)",
    [*shrinking("fmnist-lenet"), *shrinking("cifar10-lenet")],
)
linked(
    "E13",
    TABLES,
    "PFL-MFE's lead over PFL-FB in E7 survives if PFL-FB trains on all images of a client, not on three quarters (our addition)",
    [on_average("pfl_mfe", "pfl_fb-all")],
)
