"""FedMN's claims: table II on its data sets and on what stands in for them, and figure 2."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from pfl_lite.experiments.claim import (
    CLAIMS,
    Claim,
    ClaimResult,
    Link,
    Runs,
    ahead,
    by_seed,
    linked,
)
from pfl_lite.experiments.ledger import Run
from pfl_lite.experiments.protocols_fedmn import FIG2_BLOCKS, FIG2_SETTINGS, fig2_name

RIVALS = ("local", "fedavg", "fedprox", "pfl_ft", "cfl", "pfedme", "fedem")


def table2(name: str) -> str:
    """The experiment of a data set of Table II."""
    return f"fedmn-table2-{name}"


def gain(high: str, low: str) -> Link:
    """FedMN's lead over FedEM is larger on one data set than on another."""
    return Link(
        {
            (table2(high), "fedmn"): 1.0,
            (table2(high), "fedem"): -1.0,
            (table2(low), "fedmn"): -1.0,
            (table2(low), "fedem"): 1.0,
        }
    )


def tuning(name: str, helps: bool) -> list[Link]:
    """FedAvg+ above FedAvg and FedProx, or below."""
    pairs = [("pfl_ft", plain) if helps else (plain, "pfl_ft") for plain in ("fedavg", "fedprox")]
    return [link for better, worse in pairs for link in ahead(table2(name), better, worse)]


def of_table2(suffix: str, where: str, names: tuple[str, ...]) -> None:
    """M1, M2 and M8 on some data sets."""
    group = "fedmn-table2" if len(names) == 4 else table2(names[0])
    linked(
        f"M1{suffix}",
        group,
        f"{where}: FedMN is above all seven other methods on each data set (Table II)",
        [link for name in names for link in ahead(table2(name), "fedmn", *RIVALS)],
    )
    large = [name for name in names if name.startswith(("cifar100", "femnist"))]
    small = [name for name in names if name not in large]
    if not large:
        return
    linked(
        f"M2{suffix}",
        group,
        f"{where}: FedMN leads FedEM on {' and '.join(large)}, and by more than on {' and '.join(small)} (Table II)",
        [link for high in large for link in ahead(table2(high), "fedmn", "fedem")]
        + [gain(high, low) for high in large for low in small],
    )
    linked(
        f"M8{suffix}",
        group,
        f"{where}: FedAvg+ is above FedAvg and FedProx on {names[0]}, and below them on {' and '.join(large)} (Table II)",
        [link for name in (names[0], *large) for link in tuning(name, helps=name == names[0])],
    )


of_table2("", "The paper's networks", ("cifar10", "cifar100", "emnist", "femnist"))
of_table2("-lenet", "LeNet-5 in place of MobileNet-V2", ("cifar10-lenet", "cifar100-lenet"))
of_table2("-glyphs", "Glyphs in place of EMNIST and FEMNIST", ("glyphs", "glyphs-writers"))


def sent(run: Run) -> float:
    """Floats sent down and up in all rounds."""
    return float(sum(entry["floats_down"] + entry["floats_up"] for entry in run["rounds"]))


def fewer_floats(name: str, runs: dict[str, Runs]) -> ClaimResult:
    """Floats of FedMN over FedAvg's with as many layers, the largest of all architectures, by seed."""
    mine = runs[name]
    ratios = {
        f"[{blocks}]": [
            sent(run) / sent(plain)
            for run, plain in zip(mine[f"fedmn-{blocks}"], mine[f"fedavg-{depth}"], strict=True)
        ]
        for depth, some in FIG2_BLOCKS.items()
        for blocks in some
    }
    largest = [max(each) for each in zip(*ratios.values(), strict=True)]
    note = ", ".join(f"{blocks} {sum(each) / len(each):.2f}" for blocks, each in ratios.items())
    statistic = "floats in all rounds, FedMN over FedAvg, largest ratio"
    return ClaimResult(
        statistic,
        by_seed([ratio < 1 for ratio in largest]),
        max(largest),
        None,
        None,
        1.0,
        f"mean ratios {note}",
    )


for setting in FIG2_SETTINGS:
    experiment, suffix = fig2_name(setting), "" if setting == "emnist" else f"-{setting}"
    fewer: Callable[[dict[str, Runs]], ClaimResult] = partial(fewer_floats, experiment)
    arms = (
        *(f"fedavg-{d}" for d in FIG2_BLOCKS),
        *(f"fedmn-{b}" for some in FIG2_BLOCKS.values() for b in some),
    )
    CLAIMS[f"M3{suffix}"] = Claim(
        f"M3{suffix}",
        experiment,
        f"On {setting} FedMN sends fewer floats in 20 rounds than FedAvg with as many layers, router included (Fig. 2)",
        {experiment: arms},
        fewer,
    )
    linked(
        f"M4{suffix}",
        experiment,
        f"On {setting} FedMN is, after 20 rounds, above FedAvg with as many layers, and FedAvg with 8 layers above that with 10 "
        "(Fig. 2)",
        [
            *(
                link
                for depth, some in FIG2_BLOCKS.items()
                for blocks in some
                for link in ahead(experiment, f"fedmn-{blocks}", f"fedavg-{depth}")
            ),
            *ahead(experiment, "fedavg-8", "fedavg-10"),
        ],
    )
