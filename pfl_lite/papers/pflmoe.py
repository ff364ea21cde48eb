"""PFL-MoE: its tables I and II as data (three pairs of data and network, three kinds of label skew), and what the paper says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pandas as pd

from pfl_lite.papers.experiment import Arm, Experiment, Settings, printed
from pfl_lite.papers.statement import Link, Sentence, ahead, count, difference, linked, misfits, printed_table

MOE_TUNING = {"ft_epochs": 50, "ft_momentum": 0.9, "ft_weight_decay": 0.0005, "ft_batch_size": 64}
MOE_CODE = {"schedule": "sequential", "gate_optimizer": "adam", "gate_decay": 0.0005}
MOE_LOCAL = {
    "participation": 1.0, "epochs": 1, "batch_size": 64, "lr": 0.01, "momentum": 0.9, "weight_decay": 0.0005,
}  # fmt: skip
# name: data set, network, and how the printed tables call them
MOE_PAIRS = {
    "fmnist-lenet": ("fashion_mnist", "lenet", "Fashion-MNIST", "LeNet-5"),
    "cifar10-lenet": ("cifar10", "lenet", "CIFAR10", "LeNet-5"),
    "cifar10-vgg16": ("cifar10", "vgg16", "CIFAR10", "VGG-16"),
}
MOE_ALPHAS = ("0.5", "0.9", "2")


def setting(pair: str, alpha: str) -> str:
    """The experiment of a setting."""
    return f"pflmoe-{pair}-{alpha}"


def pflmoe(pair: str, alpha: str) -> Experiment:
    """One setting of PFL-MoE's tables I (local test) and II (global test)."""
    data, model, dataset, network = MOE_PAIRS[pair]

    def arm(key: str, label: str, column: str | None, **settings: Any) -> Arm:
        where = {"dataset": dataset, "model": network}
        papers = {
            measure: None if column is None else printed("PFL-MoE", table, column, f"alpha={alpha}", **where)
            for measure, table in (("local_test", "I"), ("global_test", "II"))
        }
        taken = None if key in ("local", "fedavg") else "fedavg"
        own: Settings = {"settings": settings, "rates_of": taken, "trained_by": taken, "papers": papers}
        return Arm(key, key.partition("-")[0], label, papers["local_test"], (), **own)

    seeds = (0, 1, 2, 3, 4)
    augmented = data != "fashion_mnist"
    tuning = MOE_TUNING | {"ft_lr": 0.005 if model == "vgg16" else 0.001}
    code = tuning | MOE_CODE
    arms = (
        arm("local", "Local", "Local", **MOE_LOCAL),
        arm("fedavg", "FedAvg", "FedAvg"),
        arm("pfl_fb", "PFL-FB on 3/4 of the images", "PFL-FB", part="per", **tuning),
        arm("pfl_fb-all", "PFL-FB on all images", None, part="all", **tuning),
        arm("pfl_mf", "PFL-MF (pixels), as in the paper", "PFL-MF", **tuning),
        arm("pfl_mfe", "PFL-MFE (features), as in the paper", "PFL-MFE", **tuning),
        arm("pfl_mf-code", "PFL-MF (pixels), as in the code", "PFL-MF", **code),
        arm("pfl_mfe-code", "PFL-MFE (features), as in the code", "PFL-MFE", **code),
        arm("pfl_mf-equal", "PFL-MF, gate held at 1/2", None, gate="equal", **tuning),
    )
    said = (
        "CIFAR-10: training images are cropped and mirrored, as in the code; the paper does not say so."
        if augmented
        else "Fashion-MNIST: no augmentation; the code crops and mirrors training images, which the paper does not say.",
        "The personalized model is that of the last round, instead of the one that did best on the test images.",
        "FedAvg weights each client by its number of images, as McMahan et al. do; the code does not.",
        "Each client uses three quarters of its images for its expert and one quarter for its gate, as in the code. The "
        "paper's numbers for PFL-FB come from three quarters, too. Two rows are our additions: PFL-FB on all images, and a "
        "mixture whose gate is held at 1/2 and learns nothing.",
        "The code's README calls PFL-MF what its program calls PFL-MFE, and the other way around. Our rows are named by what the "
        "gate reads. The paper's gates learn by SGD, alternating with the experts, and the code's by Adam, after the experts. "
        "Both are compared with the same numbers of the paper.",
        "CIFAR-10 is normalized by its own mean and standard deviation."
        if augmented
        else "Fashion-MNIST is normalized by the mean and standard deviation of MNIST, as in the code; the paper is silent.",
        "FedAvg's local test is a plain mean over clients, as in every row; the paper prints the number of the global test.",
        "Personalization uses the SGD that the paper gives for Local, with the same momentum, weight decay and mini-batches of "
        "64. But its rate stays constant: it is not divided by ten every 100 epochs.",
        "The paper is silent about the random draw of the clients (our own seeds) and whether a gate mixes probabilities or "
        "logits (logits, as in the code).",
    )
    return Experiment(
        name=setting(pair, alpha),
        title=f"PFL-MoE, Tables I and II: {dataset.replace('CIFAR', 'CIFAR-')}, {network}, 100 clients, "
        f"Dirichlet alpha = {alpha}",
        data=data,
        model=model,
        partition=f"dirichlet_rounded:{alpha}",
        clients=100,
        rounds=100,
        epochs=5,
        batch_size=10,
        participation=0.1,
        arms=arms,
        measures={"local_test": "local test", "global_test": "global test"},
        deviations=(
            "Rounds: 100 instead of 1,000; personalization: 50 epochs of experts and gates instead of 200.",
            f"Seeds: {len(seeds)} planned; a row says how many it has.",
            "Local: 100 epochs of SGD (rate 0.01, momentum 0.9, weight decay 5e-4, mini-batches of 64) instead of 300 of SGD at "
            "0.1, divided by ten every 100 epochs, or of Adam, whichever came out better.",
            *said,
        ),
        eval_every=10,
        seeds=seeds,
        common={"lr": 0.01, "momentum": 0.5, "val_fraction": 0.0, "whole_test": True}
        | ({"augment": "crop_flip"} if augmented else {}),
        paper_budget={
            "rounds": 1000,
            "seeds": (0,),
            "arms": tuple(map(as_long_as_the_paper, arms)),
            "deviations": (
                "The paper's rounds (1,000) and epochs of personalization (200); it does not say how many seeds: one here.",
                "Local: 300 epochs of SGD at a constant rate of 0.01 (momentum 0.9, weight decay 5e-4, mini-batches of 64) "
                "instead of at 0.1, divided by ten every 100 epochs, or of Adam, whichever came out better.",
                *said,
            ),
        },
    )


def as_long_as_the_paper(arm: Arm) -> Arm:
    """An arm with the paper's 200 epochs of personalization, Local with its 300 epochs of training."""
    if arm.key == "local":
        return replace(arm, rounds=300)
    return replace(arm, settings=arm.settings | ({"ft_epochs": 200} if "ft_epochs" in arm.settings else {}))


PFLMOE = tuple(pflmoe(pair, alpha) for pair in MOE_PAIRS for alpha in MOE_ALPHAS)


# ---- what runs decide ------------------------------------------------------------------------------------------


LOCAL, GLOBAL = "local_test", "global_test"
GATED = ("pfl_mf", "pfl_mfe")  # as in the paper; the rows as in its code are our addition
ALL = tuple(experiment.name for experiment in PFLMOE)
FASHION = tuple(name for name in ALL if "fmnist" in name)
CIFAR = tuple(name for name in ALL if "cifar10" in name)

BUT = setting("cifar10-lenet", "2")
LENET = tuple(name for name in ALL if "lenet" in name)
SCOPES = {"": ("all nine settings", ALL), "-lenet": ("the six settings with LeNet-5", LENET)}
"""A claim about all settings, and the same about those that a processor without a GPU can train."""


def on_average(better: str, worse: str, names: Sequence[str]) -> Link:
    """One arm before another in the local test, as a mean over some settings."""
    share = 1 / len(names)
    terms = {(name, arm): sign * share for name in names for arm, sign in ((better, 1), (worse, -1))}
    return Link(terms, measure=LOCAL)


def claimed(id: str, text: str, links: Sequence[Link], starts: str = "") -> None:
    """Register a claim about the two tables."""
    linked(id, "pflmoe-tables", text, links, starts)


for suffix, (where, names) in SCOPES.items():
    claimed(
        f"E1{suffix}",
        f"PFL-MF and PFL-MFE are above PFL-FB in the global test, in {where} (Table II)",
        [link for key in GATED for link in ahead(names, key, "pfl_fb", measure=GLOBAL)],
    )
    claimed(
        f"E2{suffix}",
        f"PFL-MF is above FedAvg in the local test, in {where} (Table I)",
        ahead(names, "pfl_mf", "fedavg", measure=LOCAL),
    )
    claimed(
        f"E4{suffix}",
        f"CIFAR-10{' with LeNet-5' if suffix else ' in all six settings'}: PFL-MF is below PFL-FB in the local test, except "
        f"{'at' if suffix else 'with LeNet-5 and'} alpha = 2 (Table I)",
        [
            *ahead(
                [name for name in names if name in CIFAR and name != BUT], "pfl_fb", "pfl_mf", measure=LOCAL
            ),
            *ahead(BUT, "pfl_mf", "pfl_fb", measure=LOCAL),
        ],
    )
    claimed(
        f"E6{suffix}",
        f"The gate that reads pixels is above the one that reads features in the global test, in {where} (Table II"
        f"{'' if suffix else ', with one tie'})",
        ahead(names, "pfl_mf", "pfl_mfe", measure=GLOBAL),
        starts="a gate",
    )
    claimed(
        f"E7{suffix}",
        f"PFL-MFE has the highest local test of all, averaged over {where} (Table I)",
        [on_average("pfl_mfe", rival, names) for rival in ("local", "fedavg", "pfl_fb", "pfl_mf")],
    )
    claimed(
        f"E13{suffix}",
        f"PFL-MFE is above PFL-FB in the local test, averaged over {where}, even if PFL-FB trains on all images of a client and "
        "not on three quarters (our addition)",
        [on_average("pfl_mfe", "pfl_fb-all", names)],
    )
    claimed(
        f"E14{suffix}",
        f"A learned gate (PFL-MF, PFL-MFE) is above one held at 1/2 in the local test, averaged over {where} (our addition)",
        [on_average(key, "pfl_mf-equal", names) for key in GATED],
    )
claimed(
    "E3",
    "Fashion-MNIST: PFL-MF is above PFL-FB, in both tests (Tables I and II)",
    [link for test in (LOCAL, GLOBAL) for link in ahead(FASHION, "pfl_mf", "pfl_fb", measure=test)],
)
claimed(
    "E5",
    "CIFAR-10: the gate that reads features (PFL-MFE) is above the one that reads pixels (PFL-MF) in the local test (Table I)",
    ahead(CIFAR, "pfl_mfe", "pfl_mf", measure=LOCAL),
    starts="a gate",
)
claimed(
    "E8",
    "The smaller alpha, the higher Local's local test and the lower FedAvg's global test (Tables I and II)",
    [
        link
        for pair in MOE_PAIRS
        for small, large in pairwise(setting(pair, alpha) for alpha in MOE_ALPHAS)
        for link in (
            difference((small, "local"), (large, "local"), measure=LOCAL),
            difference((large, "fedavg"), (small, "fedavg"), measure=GLOBAL),
        )
    ],
)
claimed(
    "E9",
    "CIFAR-10: Local is worse with VGG-16 than with LeNet-5, in both tests (Tables I and II)",
    [
        difference(
            (setting("cifar10-lenet", alpha), "local"),
            (setting("cifar10-vgg16", alpha), "local"),
            measure=test,
        )
        for alpha in MOE_ALPHAS
        for test in (LOCAL, GLOBAL)
    ],
)


def shrinking(pair: str) -> list[Link]:
    """PFL-FB's lead over FedAvg falls from alpha to alpha, and none is left at the largest."""
    names = [setting(pair, alpha) for alpha in MOE_ALPHAS]
    falls = [here - after for here, after in pairwise(ahead(names, "pfl_fb", "fedavg", measure=LOCAL))]
    return [*falls, *ahead(names[-1], "fedavg", "pfl_fb", measure=LOCAL)]


claimed(
    "E10",
    "LeNet-5: PFL-FB's lead over FedAvg in the local test shrinks as alpha grows and is gone at alpha = 2 (Table I)",
    [*shrinking("fmnist-lenet"), *shrinking("cifar10-lenet")],
)

# ---- what the paper's own numbers decide ----------------------------------------------------------------------

MIXED = ["PFL-FB", "PFL-MF", "PFL-MFE"]  # the three that personalize FedAvg's model


def lead(table: str, first: str, second: str) -> pd.Series:
    """Points by which one method is ahead of another in each of PFL-MoE's nine settings."""
    numbers = printed_table("PFL-MoE", table)
    return numbers[first] - numbers[second]


def with_alpha(points: pd.Series) -> pd.Series:
    """How much some numbers of the nine settings grow from each concentration to the next larger one of the same pair."""
    pairs = points.to_numpy().reshape(-1, 3)
    return pd.Series((pairs[:, 1:] - pairs[:, :-1]).ravel())


def across(points: pd.Series) -> str:
    """The range of some differences."""
    return f"{points.min():+.2f} to {points.max():+.2f} points"


def sentences() -> Iterator[Sentence]:
    """Sentences of the paper beside its tables I and II."""
    both = pd.concat([lead(table, "Local", "FedAvg") for table in ("I", "II")])
    says = "in all experiments, the accuracy of Local is lower than FedAvg's in both tests"
    yield "V-B", says, both < 0, f"lower in {count(both < 0)}; {across(both)}"

    alone = printed_table("PFL-MoE", "I")["Local"]
    points = pd.Series(alone.filter(like="VGG").to_numpy() - alone.filter(like="CIFAR10, LeNet").to_numpy())
    says = "[Local, CIFAR-10] VGG-16 is significantly lower than the smaller model LeNet-5"
    yield "V-B", says, points < -1, across(points)

    steps = with_alpha(printed_table("PFL-MoE", "II")["FedAvg"])
    says = "the smaller the alpha, the worse the performance of FedAvg"
    yield "V-B", says, steps > 0, f"from one alpha to the next larger {across(steps)}"

    gains = pd.concat([with_alpha(lead("I", name, "FedAvg")) for name in MIXED])
    says = "as alpha gets smaller, the potential for personalization is growing"
    said = f"the gain over FedAvg, from one alpha to the next larger: {across(gains)}"
    yield "V-B", says, gains < 0, said

    three = pd.concat([lead("II", name, "Local") for name in MIXED])
    says = "the global test of these three personalization algorithms are higher than that of Local"
    yield "V-C", says, three > 0, f"higher in {count(three > 0)}; {across(three)}"

    gain, drop = lead("I", "PFL-FB", "FedAvg"), lead("II", "PFL-FB", "FedAvg")
    large = gain.filter(like="alpha=2")
    says = "[relatively large alpha] PFL-FB [...] makes the personalized model worse than the global model"
    said = f"alpha = 2: {across(large)}, worse in {count(large < 0)}; "
    yield "V-C", says, large < 0, f"{said}else worse in {count(gain.drop(large.index) < 0)}"

    three = pd.concat([lead("I", name, "FedAvg") for name in MIXED]).filter(like="alpha=0.5")
    says = "[alpha = 0.5] the local tests of the three are 2% ~ 10% higher than that of FedAvg"
    yield "V-C", says, three.round().between(2, 10), across(three)

    points = lead("I", "PFL-MF", "FedAvg")
    says = "[PFL-MF's] local test accuracy is always higher than FedAvg"
    yield "V-C", says, points > 0, f"higher in {count(points > 0)}; {across(points)}"

    local, whole = lead("I", "PFL-MF", "PFL-FB"), lead("II", "PFL-MF", "PFL-FB")
    points = local.filter(like="CIFAR10")
    says = "[CIFAR-10] PFL-MF is lower than PFL-FB in the local test, except with LeNet-5 and alpha = 2"
    yield "V-C", says, (points < 0) != (points.index == "CIFAR10, LeNet-5, alpha=2"), across(points)

    fits = (gain > 0) & (drop < -1)
    says = "the gain of PFL-FB in the local test comes at the cost of a significant drop in the global test"
    said = f"global test {across(drop)}; no gain, or a drop of less than one point, in {misfits(fits)}"
    yield "V-C", says, fits, said

    both = pd.concat([local, whole]).filter(like="Fashion")
    says = "[Fashion-MNIST] PFL-MF performs better than PFL-FB on the two tests"
    yield "V-C", says, both > 0, f"better in {count(both > 0)}; {across(both)}"

    says = "PFL-MF performs better than PFL-FB in both local and global test"
    said = f"global test: ahead in {count(whole > 0)}; local test: ahead in {count(local > 0)}"
    yield "VI", says, (local > 0) & (whole > 0), said

    says = "PFL-MF achieves global test accuracy 1% ~ 8% higher than that of PFL-FB in all experiments"
    yield "V-C", says, whole.round().between(1, 8), across(whole)

    feature = lead("I", "PFL-MFE", "PFL-MF")
    points = feature.filter(like="CIFAR10")
    says = "[CIFAR-10] the local test of PFL-MFE is 0.3% ~ 1.7% higher than that of PFL-MF"
    yield "V-D", says, points.between(0.295, 1.745), across(points)

    points = feature.filter(like="Fashion")
    says = "[Fashion-MNIST] PFL-MFE outperforms PFL-MF in local test only when alpha = 0.5"
    yield "V-D", says, (points > 0) == points.index.str.endswith("=0.5"), across(points)

    both = pd.concat([local, lead("I", "PFL-MFE", "PFL-FB")]).filter(like="Fashion")
    says = "[Fashion-MNIST] both are 0.05% ~ 0.5% higher than PFL-FB in local test"
    yield "V-D", says, both.between(0.045, 0.545), across(both)

    below, above = (lead("II", "PFL-MFE", other).filter(like="CIFAR10") for other in ("PFL-MF", "PFL-FB"))
    slight = below > -1
    says = "[CIFAR-10] the global test of PFL-MFE is slightly lower than that of PFL-MF, it is still higher than that of PFL-FB"
    said = f"{across(below)} against PFL-MF, more than one point lower in {misfits(slight)}; {across(above)} against PFL-FB"
    yield "V-D", says, slight & (above > 0), said

    table = printed_table("PFL-MoE", "I")
    best, mean = table["PFL-MFE"] >= table[MIXED].max(axis=1), table[MIXED].mean()
    says = (
        "in all experiments, overall, PFL-MFE achieves the best average local test accuracy among three personalization "
        "algorithms"
    )
    said = f"means over the nine: {', '.join(f'{name} {value:.2f}' for name, value in mean.items())}; "
    yield "V-D", says, best | (mean.idxmax() == "PFL-MFE"), f"{said}best or equal in {count(best)}"

    fits = table[["PFL-MF", "PFL-MFE"]].max(axis=1) >= table["PFL-FB"]
    says = "the same or even better local test accuracy than PFL-FB"
    said = f"the better of the two is ahead or equal in {count(fits)}; not in {misfits(fits)}"
    yield "I", says, fits, said

    same = table["FedAvg"] == printed_table("PFL-MoE", "II")["FedAvg"]
    says = "[FedAvg's global test] is exactly the average local test"
    said = f"both tables print the same number in {count(same)}; the reason that the caption gives holds for a mean weighted by "
    yield "caption of Table II", says, same, said + "the clients' images, not for a plain one"
