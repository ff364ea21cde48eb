"""Sentences of the three papers, tested on the numbers that the same papers print (`data/paper_tables.csv`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd

from pfl_lite.errors import InputError, unknown
from pfl_lite.experiments.experiment import paper_tables

PAPERS = {"pFedMB": "pFedMB (long version)", "FedMN": "FedMN", "PFL-MoE": "PFL-MoE"}


@dataclass(frozen=True)
class Sentence:
    """What a paper says, in its words; and a function that says whether its numbers agree, and how."""

    paper: str
    where: str
    text: str
    test: Callable[[], tuple[str, str]]


SENTENCES: list[Sentence] = []


def says(paper: str, where: str, text: str) -> Callable[[Callable[[], tuple[str, str]]], None]:
    """Register the function below as the test of a sentence; it returns (supported, what the numbers say)."""

    def register(test: Callable[[], tuple[str, str]]) -> None:
        SENTENCES.append(Sentence(paper, where, text, test))

    return register


NAMED: dict[str, Callable[[dict[str, str]], str]] = {  # what a row's setting is called
    "pFedMB": lambda row: f"{row['dataset']}, {', '.join(row['setting'].split('; ')[:2])}",
    "FedMN": lambda row: row["dataset"],
    "PFL-MoE": lambda row: f"{row['dataset']}, {row['model']}, {row['setting'].rpartition(' ')[2]}",
}


def printed(paper: str, table: str) -> pd.DataFrame:
    """A table as the paper prints it: a row a setting in the paper's order, a column a method, percent.

    Raises:
        InputError: the papers' numbers are not at hand.
    """
    rows = [row for row in paper_tables() if row["paper"] == PAPERS[paper] and row["table"] == table]
    if not rows:
        raise InputError(
            f"the papers' numbers are not here: data/paper_tables.csv lacks {paper}'s table {table}"
        )
    keys = [NAMED[paper](row) for row in rows]
    frame = pd.DataFrame(
        {
            "setting": keys,
            "method": [r["method"] for r in rows],
            "value": [float(r["value_percent"]) for r in rows],
        }
    )
    order = list(dict.fromkeys(frame["setting"]))
    return frame.pivot(index="setting", columns="method", values="value").loc[order]


def count(fits: pd.Series) -> str:
    """How many settings fit: `4 of 6`."""
    return f"{int(fits.sum())} of {len(fits)}"


def verdict(fits: Any) -> str:
    """`yes` where every setting fits, `no` where none does, else `partly`."""
    return "yes" if fits.all() else "partly" if fits.any() else "no"


def settings(fits: pd.Series) -> str:
    """The settings that do not fit."""
    return "; ".join(map(str, fits.index[~fits]))


# ---- pFedMB ------------------------------------------------------------------------------------------------------------


@says("pFedMB", "V-B", "pFedMB improves FedAvg and alpha-weighted averaging is effective")
def _() -> tuple[str, str]:
    row = printed("pFedMB", "I").iloc[0]
    eq5, eq6 = row["pFedMB"], row["pFedMB w/o alpha-weighted avg"]
    fits = pd.Series([eq5 > row["FedAvg"], eq5 > eq6])
    return verdict(fits), (
        f"{eq5 - row['FedAvg']:+.2f} points against FedAvg, {eq5 - eq6:+.2f} against pFedMB without it; a mean of three runs, "
        "without any standard deviation"
    )


@says("pFedMB", "V-C", "pFedMB is the best in almost all the settings")
def _() -> tuple[str, str]:
    numbers = printed("pFedMB", "II")
    rank = numbers.rank(axis=1, ascending=False)["pFedMB"].astype(int)
    margin = numbers["pFedMB"] - numbers.drop(columns="pFedMB").max(axis=1)
    smallest = margin[margin > 0].min()
    return verdict(rank == 1), (
        f"first in {count(rank == 1)}; ranks {', '.join(map(str, rank))}; the smallest lead is {smallest:.2f} points, "
        "without any standard deviation"
    )


@says(
    "pFedMB",
    "V-C",
    "Even in 15 clients with random 2 classes [...] and 15 clients setting using CIFAR100, pFedMB is comparable to the best "
    "methods FedAMP and pFedMe, respectively",
)
def _() -> tuple[str, str]:
    two = printed("pFedMB", "II").iloc[[0, 4]]
    best, behind = two.idxmax(axis=1), two.max(axis=1) - two["pFedMB"]
    said = " and ".join(f"{name} by {lost:.2f}" for name, lost in zip(best, behind, strict=True))
    fits = (best == ["FedAMP", "pFedMe"]) & (behind < 1)
    return verdict(fits), f"behind {said} points (comparable: less than one point)"


@says("pFedMB", "V-C", "FedAMP and FedFomo do not perform well except in random 2 classes")
def _() -> tuple[str, str]:
    numbers = printed("pFedMB", "II")
    other = numbers[~numbers.index.str.contains("random 2 classes")]
    lost = pd.DataFrame({name: other.max(axis=1) - other[name] for name in ("FedAMP", "FedFomo")})
    near: Any = lost["FedAMP"].idxmin()
    low, high = (f"{value:.2f}" for value in (lost["FedFomo"].min(), lost["FedFomo"].max()))
    row = other.loc[near].drop(["Local", "FedAMP"])
    beaten = [str(name) for name in row.index[row < other.loc[near, "FedAMP"]]]
    return verdict((lost > 1).stack()), (
        f"FedFomo is {low} to {high} points behind the best there; but FedAMP is only {lost.loc[near, 'FedAMP']:.2f} behind in "
        f"{near}, ahead of {' and '.join(beaten)}"
    )


@says("pFedMB", "V-C", "FedAvg and FedProx also perform well especially in random 2 classes")
def _() -> tuple[str, str]:
    numbers = printed("pFedMB", "II")
    behind = numbers[["FedAvg", "FedProx"]].rsub(numbers.max(axis=1), axis=0)
    easy = behind.index.str.contains("random 2 classes")
    here, elsewhere = behind[easy].max(), behind[~easy].max()
    row = numbers.iloc[0]
    below = [f"{name} {row[name]:.2f}" for name in ("FedAvg", "FedProx") if row[name] < row["Local"]]
    said = f"; with 15 clients {', '.join(below)} is below Local {row['Local']:.2f}" if below else ""
    return verdict(here < elsewhere), (
        f"there at most {here['FedAvg']:.2f} and {here['FedProx']:.2f} points behind the best, elsewhere up to "
        f"{elsewhere['FedAvg']:.2f} and {elsewhere['FedProx']:.2f}{said}"
    )


@says("pFedMB", "V-C", "pFedMB is the most balanced method that is effective in every setting")
def _() -> tuple[str, str]:
    numbers = printed("pFedMB", "II")
    worst = numbers.rsub(numbers.max(axis=1), axis=0).max().sort_values()
    helps = numbers["pFedMB"] > numbers["Local"]
    return verdict(pd.Series([worst.index[0] == "pFedMB", *helps])), (
        f"above Local in {count(helps)}; its largest distance to the best of a setting is {worst['pFedMB']:.2f} points, that of "
        f"{worst.index[1]}, the next, {worst.iloc[1]:.2f}"
    )


def branches() -> pd.Series:
    """pFedMB's tuned number of branches in the settings of Table III."""
    return printed("pFedMB", "III")["pFedMB"].astype(int)


def listed(numbers: pd.Series) -> str:
    """Numbers as a sentence lists them."""
    return ", ".join(map(str, numbers))


@says("pFedMB", "V-D", "the required number of branches is at most 10")
def _() -> tuple[str, str]:
    return verdict(branches() <= 10), listed(branches())


@says("pFedMB", "V-D", "[CIFAR100, with more classes shared among clients,] results in fewer branches")
def _() -> tuple[str, str]:
    many = branches().index.str.contains("CIFAR100")
    few, other = branches()[many], branches()[~many]
    return verdict(few < other.min()), f"{listed(few)} against {listed(other)}"


# ---- FedMN -------------------------------------------------------------------------------------------------------------

FEDEM_PRINTS = {"CIFAR10": 84.3, "CIFAR100": 44.1}  # FedEM's own column where FedMN's table has other numbers
FEDEM_COMPONENTS = 3  # in all of FedEM's experiments


@says(
    "FedMN",
    "IV-C",
    "the number of encoders in FedMN are set as the same as the number of components in FedEM on each dataset",
)
def _() -> tuple[str, str]:
    encoders = pd.Series(
        {
            row["dataset"]: int(float(row["value_percent"]))
            for row in paper_tables()
            if row["paper"] == "FedMN" and row["metric"].startswith("blocks in layer 1 ")
        }
    )
    fits = encoders == FEDEM_COMPONENTS
    return verdict(fits), (
        f"FedEM has {FEDEM_COMPONENTS} components everywhere; Table I has "
        f"{', '.join(f'{number} encoders on {name}' for name, number in encoders.items())}"
    )


@says("FedMN", "IV-C", "FedEM outperforms the other baselines")
def _() -> tuple[str, str]:
    others = printed("FedMN", "II").drop(columns="FedMN")
    margin = others["FedEM"] - others.drop(columns="FedEM").max(axis=1)
    return verdict(margin > 0), f"leads by {', '.join(f'{value:.1f}' for value in margin)} points"


@says(
    "FedMN",
    "IV-C",
    "FedAvg+ outperforms FedAvg and FedProx on CIFAR10 but is not as good as them on other datasets",
)
def _() -> tuple[str, str]:
    numbers = printed("FedMN", "II")
    above = numbers["FedAvg+"] > numbers[["FedAvg", "FedProx"]].max(axis=1)
    fits = above == (above.index == "CIFAR10")
    return verdict(fits), f"FedAvg+ is ahead of both on {', '.join(above.index[above])}"


@says("FedMN", "IV-C", "Clustered FL cannot outperform FedAvg+ on all datasets")
def _() -> tuple[str, str]:
    numbers = printed("FedMN", "II")
    above = numbers["ClusteredFL"] > numbers["FedAvg+"]
    where = ", ".join(
        f"{name} ({numbers.loc[name, 'ClusteredFL']} against {numbers.loc[name, 'FedAvg+']})"
        for name in above.index[above]
    )
    return "yes" if not above.any() else "partly", f"it does on {where}: true of all together, false of any"


@says("FedMN", "IV-C", "our proposed FedMN outperforms all the baselines")
def _() -> tuple[str, str]:
    numbers = printed("FedMN", "II")
    margin = numbers["FedMN"] - numbers.drop(columns="FedMN").max(axis=1)
    own = numbers.loc[list(FEDEM_PRINTS), "FedMN"] - pd.Series(FEDEM_PRINTS)
    lost = own.index[own < 0]
    said = f"leads by {', '.join(f'{value:.1f}' for value in margin)} points; against the numbers that FedEM's authors publish "
    said += f"({', '.join(f'{value} on {name}' for name, value in FEDEM_PRINTS.items())}) it is behind on {', '.join(lost)}"
    return verdict(margin > 0), said


# ---- PFL-MoE -----------------------------------------------------------------------------------------------------------

MIXED = ["PFL-FB", "PFL-MF", "PFL-MFE"]  # the three that personalise FedAvg's model


def lead(table: str, first: str, second: str) -> pd.Series:
    """Points by which one method is ahead of another in each of PFL-MoE's nine settings."""
    numbers = printed("PFL-MoE", table)
    return numbers[first] - numbers[second]


def with_alpha(points: pd.Series) -> pd.Series:
    """How much some numbers of the nine settings grow from each concentration to the next larger one of the same pair."""
    pairs = points.to_numpy().reshape(-1, 3)
    return pd.Series((pairs[:, 1:] - pairs[:, :-1]).ravel())


def across(points: pd.Series) -> str:
    """The range of some differences."""
    return f"{points.min():+.2f} to {points.max():+.2f} points"


@says("PFL-MoE", "V-B", "in all experiments, the accuracy of Local is lower than FedAvg's in both tests")
def _() -> tuple[str, str]:
    both = pd.concat([lead(table, "Local", "FedAvg") for table in ("I", "II")])
    return verdict(both < 0), f"lower in {count(both < 0)}; {across(both)}"


@says("PFL-MoE", "V-B", "[Local, CIFAR-10] VGG-16 is significantly lower than the smaller model LeNet-5")
def _() -> tuple[str, str]:
    local = printed("PFL-MoE", "I")["Local"]
    points = pd.Series(local.filter(like="VGG").to_numpy() - local.filter(like="CIFAR10, LeNet").to_numpy())
    return verdict(points < -1), across(points)


@says("PFL-MoE", "V-B", "the smaller the alpha, the worse the performance of FedAvg")
def _() -> tuple[str, str]:
    steps = with_alpha(printed("PFL-MoE", "II")["FedAvg"])
    return verdict(steps > 0), f"from one alpha to the next larger {across(steps)}"


@says("PFL-MoE", "V-B", "as alpha gets smaller, the potential for personalization is growing")
def _() -> tuple[str, str]:
    gains = pd.concat([with_alpha(lead("I", name, "FedAvg")) for name in MIXED])
    return verdict(gains < 0), f"the gain over FedAvg, from one alpha to the next larger: {across(gains)}"


@says(
    "PFL-MoE",
    "V-C",
    "the global test of these three personalization algorithms are higher than that of Local",
)
def _() -> tuple[str, str]:
    three = pd.concat([lead("II", name, "Local") for name in MIXED])
    return verdict(three > 0), f"higher in {count(three > 0)}; {across(three)}"


@says(
    "PFL-MoE",
    "V-C",
    "[relatively large alpha] PFL-FB [...] makes the personalized model worse than the global model",
)
def _() -> tuple[str, str]:
    local = lead("I", "PFL-FB", "FedAvg")
    large = local.filter(like="alpha=2")
    return (
        verdict(large < 0),
        f"alpha = 2: {across(large)}, worse in {count(large < 0)}; else worse in {count(local.drop(large.index) < 0)}",
    )


@says(
    "PFL-MoE", "V-C", "[alpha = 0.5] the local tests of the three are 2 % ~ 10 % higher than that of FedAvg"
)
def _() -> tuple[str, str]:
    three = pd.concat([lead("I", name, "FedAvg") for name in MIXED])
    points = three.filter(like="alpha=0.5")
    return verdict(points.round().between(2, 10)), across(points)


@says("PFL-MoE", "V-C", "[PFL-MF's] local test accuracy is always higher than FedAvg")
def _() -> tuple[str, str]:
    local = lead("I", "PFL-MF", "FedAvg")
    return verdict(local > 0), f"higher in {count(local > 0)}; {across(local)}"


@says(
    "PFL-MoE",
    "V-C",
    "[CIFAR-10] PFL-MF is lower than PFL-FB in the local test, except with LeNet-5 and alpha = 2",
)
def _() -> tuple[str, str]:
    local = lead("I", "PFL-MF", "PFL-FB").filter(like="CIFAR10")
    fits = (local < 0) != (local.index == "CIFAR10, LeNet-5, alpha=2")
    return verdict(fits), across(local)


@says(
    "PFL-MoE",
    "V-C",
    "the gain of PFL-FB in the local test comes at the cost of a significant drop in the global test",
)
def _() -> tuple[str, str]:
    gain, drop = lead("I", "PFL-FB", "FedAvg"), lead("II", "PFL-FB", "FedAvg")
    fits = (gain > 0) & (drop < -1)
    return verdict(
        fits
    ), f"global test {across(drop)}; no gain, or a drop of less than one point, in {settings(fits)}"


@says("PFL-MoE", "V-C", "[Fashion-MNIST] PFL-MF performs better than PFL-FB on the two tests")
def _() -> tuple[str, str]:
    both = pd.concat([lead(table, "PFL-MF", "PFL-FB").filter(like="Fashion") for table in ("I", "II")])
    return verdict(both > 0), f"better in {count(both > 0)}; {across(both)}"


@says("PFL-MoE", "VI", "PFL-MF performs better than PFL-FB in both local and global test")
def _() -> tuple[str, str]:
    local, whole = lead("I", "PFL-MF", "PFL-FB"), lead("II", "PFL-MF", "PFL-FB")
    return verdict(
        (local > 0) & (whole > 0)
    ), f"global test: ahead in {count(whole > 0)}; local test: ahead in {count(local > 0)}"


@says(
    "PFL-MoE",
    "V-C",
    "PFL-MF achieves global test accuracy 1 % ~ 8 % higher than that of PFL-FB in all experiments",
)
def _() -> tuple[str, str]:
    whole = lead("II", "PFL-MF", "PFL-FB")
    return verdict(whole.round().between(1, 8)), across(whole)


@says("PFL-MoE", "V-D", "[CIFAR-10] the local test of PFL-MFE is 0.3 % ~ 1.7 % higher than that of PFL-MF")
def _() -> tuple[str, str]:
    local = lead("I", "PFL-MFE", "PFL-MF").filter(like="CIFAR10")
    return verdict((local >= 0.295) & (local <= 1.745)), across(local)


@says("PFL-MoE", "V-D", "[Fashion-MNIST] PFL-MFE outperforms PFL-MF in local test only when alpha = 0.5")
def _() -> tuple[str, str]:
    local = lead("I", "PFL-MFE", "PFL-MF").filter(like="Fashion")
    return verdict((local > 0) == local.index.str.endswith("=0.5")), across(local)


@says("PFL-MoE", "V-D", "[Fashion-MNIST] both are 0.05 % ~ 0.5 % higher than PFL-FB in local test")
def _() -> tuple[str, str]:
    both = pd.concat([lead("I", name, "PFL-FB").filter(like="Fashion") for name in ("PFL-MF", "PFL-MFE")])
    return verdict(both.between(0.045, 0.545)), across(both)


@says(
    "PFL-MoE",
    "V-D",
    "[CIFAR-10] the global test of PFL-MFE is slightly lower than that of PFL-MF, it is still higher than that of PFL-FB",
)
def _() -> tuple[str, str]:
    below, above = (
        lead("II", *two).filter(like="CIFAR10") for two in (("PFL-MFE", "PFL-MF"), ("PFL-MFE", "PFL-FB"))
    )
    slight = below > -1
    return verdict(slight & (above > 0)), (
        f"{across(below)} against PFL-MF, more than one point lower in {settings(slight)}; {across(above)} against PFL-FB"
    )


@says(
    "PFL-MoE",
    "V-D",
    "in all experiments, overall, PFL-MFE achieves the best average local test accuracy among three personalization algorithms",
)
def _() -> tuple[str, str]:
    three = printed("PFL-MoE", "I")[MIXED]
    best, mean = three["PFL-MFE"] >= three.max(axis=1), three.mean()
    said = ", ".join(f"{name} {value:.2f}" for name, value in mean.items())
    return "yes" if mean.idxmax() == "PFL-MFE" else verdict(best), (
        f"means over the nine: {said}; best or equal in {count(best)}"
    )


@says("PFL-MoE", "I", "the same or even better local test accuracy than PFL-FB")
def _() -> tuple[str, str]:
    three = printed("PFL-MoE", "I")
    fits = three[["PFL-MF", "PFL-MFE"]].max(axis=1) >= three["PFL-FB"]
    return verdict(fits), f"the better of the two is ahead or equal in {count(fits)}; not in {settings(fits)}"


@says("PFL-MoE", "caption of Table II", "[FedAvg's global test] is exactly the average local test")
def _() -> tuple[str, str]:
    local, whole = printed("PFL-MoE", "I")["FedAvg"], printed("PFL-MoE", "II")["FedAvg"]
    same = local == whole
    return verdict(same), (
        f"both tables print the same number in {count(same)}; the reason that the caption gives holds for a mean weighted by the "
        "clients' images, not for a plain one"
    )


# ------------------------------------------------------------------------------------------------------------------------


def checked(paper: str | None = None) -> pd.DataFrame:
    """Every sentence of a paper (or of all) with what its own numbers say; raises InputError for an unknown paper."""
    if paper is not None and paper not in PAPERS:
        raise unknown("paper", paper, PAPERS)
    rows = [(one, *one.test()) for one in SENTENCES if paper in (None, one.paper)]
    return pd.DataFrame(
        [(one.paper, one.where, one.text, supported, numbers) for one, supported, numbers in rows],
        columns=["paper", "where", "it says", "supported", "its own numbers"],
    )
