"""Every table and figure of the papers that we run, as data: partition, budget, arms, grids, deviations."""

from __future__ import annotations

import csv
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from pfl_lite.errors import unknown
from pfl_lite.methods import METHODS

Settings = dict[str, Any]


@cache
def paper_tables() -> tuple[dict[str, str], ...]:
    """The papers' printed numbers, one row a cell of a table (`data/paper_tables.csv`); empty if the file is not here.

    "Here" is the repository or, for the chapters of an installed package, the working folder.
    """
    file = Path("data") / "paper_tables.csv"
    path = next(
        (top / file for top in (Path(__file__).resolve().parents[2], Path()) if (top / file).is_file()), None
    )
    if path is None:
        return ()
    with path.open(encoding="utf-8", newline="") as opened:
        return tuple(csv.DictReader(opened))


def printed(paper: str, table: str, method: str, setting: str = "", **where: str) -> float | None:
    """A number as the paper prints it, in percent: the first row that fits; None if the numbers are not at hand.

    `where`: other columns of the file and what they hold, e.g. `dataset="CIFAR10"`.
    """
    for row in paper_tables():
        found = (row["paper"].startswith(paper), row["table"] == table, row["method"] == method)
        if all(found) and setting in row["setting"] and all(row[k] == value for k, value in where.items()):
            return float(row["value_percent"])
    return None


@dataclass(frozen=True)
class Arm:
    """One row of a table: a method with fixed settings, and the grid that is searched on validation data."""

    key: str
    method: str
    label: str
    paper: float | None
    grid: tuple[Settings, ...]
    settings: Settings = field(default_factory=dict)
    rates_of: str | None = None
    """Key of the arm whose chosen rates this arm takes over (an ablation that changes one thing); it then has no grid."""
    trained_by: str | None = None
    """Key of the arm whose training this arm takes over, because it differs only in what clients do after the last round."""
    papers: dict[str, float | None] = field(default_factory=dict)
    """The printed numbers of an experiment with several measures; `paper` is that of the first."""


@dataclass(frozen=True)
class Experiment:
    """One table or figure: what is trained on what, for how long, and beside which printed numbers it is put."""

    name: str
    title: str
    data: str
    partition: str
    clients: int
    rounds: int
    epochs: int
    batch_size: int
    arms: tuple[Arm, ...]
    paper_table: str
    metric: str
    deviations: tuple[str, ...]
    claims: tuple[str, ...]
    participation: float = 1.0
    model: str = "lenet"
    ft_every: int = 1
    ft_epochs: int | None = 0
    """Epochs of fine-tuning after the last round: 0 stands for the local epochs, None for each method's own default."""
    eval_every: int = 1
    seeds: tuple[int, ...] = (0, 1, 2)
    search_rounds: int = 5
    search_seed: int = 100
    searched_in: str | None = None
    """Name of the experiment on the same data whose chosen settings this one takes over; it then searches nothing."""
    common: Settings = field(default_factory=dict)
    """What else all arms share."""
    measures: dict[str, str] = field(default_factory=lambda: {"test_accuracy": ""})
    """What is compared with the paper: names in a run's `final`, and what a table calls them."""

    def settings(self, seed: int, *, rounds: int | None = None) -> Settings:
        """The settings that all arms share, as `make_config` takes them."""
        tuning = {} if self.ft_epochs is None else {"ft_epochs": self.ft_epochs or self.epochs}
        return tuning | {
            "data": self.data,
            "model": self.model,
            "partition": self.partition,
            "clients": self.clients,
            "rounds": self.rounds if rounds is None else rounds,
            "epochs": self.epochs,
            "batch_size": self.batch_size,
            "participation": self.participation,
            "seed": seed,
            "ft_every": self.ft_every,
            "eval_every": self.eval_every,
            **self.common,
        }

    def arm(self, key: str) -> Arm:
        """One arm by its key; raises InputError for an unknown one."""
        for arm in self.arms:
            if arm.key == key:
                return arm
        raise unknown(f"method of {self.name}", key, [arm.key for arm in self.arms])


SHARED_ALPHA = {"branches": 5, "alpha_scope": "shared"}
PLAIN_RATES = tuple({"lr": lr} for lr in (0.02, 0.05, 0.1))
BRANCH_RATES = tuple({"lr": lr, "alpha_lr": alpha_lr} for lr, alpha_lr in ((0.1, 0.1), (0.1, 0.3)))

PFEDMB_TABLE1 = Experiment(
    name="pfedmb-table1",
    title="pFedMB, Table I: five pairs of clients on CIFAR-10",
    data="cifar10",
    partition="pairs",
    clients=10,
    rounds=30,
    epochs=5,
    batch_size=64,
    arms=(
        Arm("local", "local", "Local", printed("pFedMB", "I", "Local"), PLAIN_RATES),
        Arm("fedavg", "fedavg", "FedAvg", printed("pFedMB", "I", "FedAvg"), PLAIN_RATES),
        Arm(
            "pfedmb-plain",
            "pfedmb",
            "pFedMB without alpha-weighting (eq. 6)",
            printed("pFedMB", "I", "pFedMB w/o alpha-weighted avg"),
            (),
            SHARED_ALPHA | {"aggregation": "plain"},
            rates_of="pfedmb",
        ),
        Arm(
            "pfedmb", "pfedmb", "pFedMB (eq. 5)", printed("pFedMB", "I", "pFedMB"), BRANCH_RATES, SHARED_ALPHA
        ),
    ),
    paper_table="pFedMB, Table I",
    metric="unweighted mean over clients of test accuracy after fine-tuning (%)",
    deviations=(
        "Rounds: the paper trains until convergence and does not say how long; we train 30 rounds.",
        "Learning rates, momentum and weight decay are not stated in the paper: plain SGD here, the rates chosen on the clients' "
        "validation images after 5 rounds of another seed (100), three candidates for Local and FedAvg, two pairs of rates for "
        "pFedMB; the row without alpha-weighting takes the rates of the row with it, so that only the aggregation differs.",
        "How alpha stays on the simplex is not stated: softmax of logits that start at 0.",
        "Fine-tuning is not specified: each method's own client routine once more, E = 5 epochs (pFedMB: 5 on alpha, 5 on W).",
        "Normalisation is not stated: per-channel mean and standard deviation of CIFAR-10, no augmentation.",
        "Local trains as many epochs as the others (rounds x E) instead of until convergence.",
        "pFedMB's clients train 2 E epochs a round (E on alpha, E on W), as in the paper: twice the others' local work.",
    ),
    claims=("B1", "B2", "B3", "B4", "B5", "B13", "B14"),
)

PAIRED_RATES = ({"lr": 0.05}, {"lr": 0.1})


def crossed(rates: tuple[Settings, ...], **choices: tuple[float, ...]) -> tuple[Settings, ...]:
    """Every rate with every value of one more setting: `crossed(PAIRED_RATES, mu=(0.01, 0.1))`."""
    ((name, values),) = choices.items()
    return tuple(rate | {name: value} for value in values for rate in rates)


# Four candidates a method: four learning rates, or two with two values of the setting that matters most to it.
TABLE2_GRIDS: dict[str, tuple[Settings, ...]] = {
    **dict.fromkeys(("local", "fedavg", "fedper"), tuple({"lr": lr} for lr in (0.02, 0.05, 0.1, 0.2))),
    "fedprox": crossed(PAIRED_RATES, mu=(0.01, 0.1)),
    # lr lam stays below 1, beyond which w_i overshoots theta_i
    "pfedme": crossed(({"lr": 0.03}, {"lr": 0.06}), inner_lr=(0.03, 0.1)),
    "ifca": crossed(PAIRED_RATES, clusters=(2, 5)),
    "fedfomo": crossed(PAIRED_RATES, models=(5, 10)),
    "fedamp": crossed(PAIRED_RATES, lam=(0.1, 1)),
    "pfedmb": crossed(PAIRED_RATES, alpha_lr=(0.1, 0.3)),
}
# name: data set, partition, clients, how the printed table says it, B of table III, rounds
TABLE2_SETTINGS = {
    "random2-15": ("cifar10", "classes:2", 15, "random 2 classes; 15", 6, 10),
    "random2-50": ("cifar10", "classes:2", 50, "random 2 classes; 50", 10, 30),
    "dirichlet-15": ("cifar10", "dirichlet:0.4", 15, "Dirichlet 0.4; 15", 7, 10),
    "dirichlet-50": ("cifar10", "dirichlet:0.4", 50, "Dirichlet 0.4; 50", 6, 30),
    "cifar100-15": ("cifar100", "shares:20:0.3:0.7", 15, "random 20 classes, different sizes; 15", 3, 10),
    "cifar100-50": ("cifar100", "shares:20:0.3:0.7", 50, "random 20 classes, different sizes; 50", 3, 30),
}


def pfedmb_table2(setting: str) -> Experiment:
    """One column of pFedMB's table II: nine methods on CIFAR-10 or CIFAR-100, 15 or 50 clients."""
    data, partition, clients, words, branches, rounds = TABLE2_SETTINGS[setting]
    labels = {
        "local": "Local", "fedavg": "FedAvg", "fedprox": "FedProx", "fedper": "FedPer", "pfedme": "pFedMe",
        "ifca": "IFCA", "fedfomo": "FedFomo", "fedamp": "FedAMP", "pfedmb": "pFedMB",
    }  # fmt: skip
    own: dict[str, Settings] = {"pfedmb": {"branches": branches}}
    arms = tuple(
        Arm(key, key, label, printed("pFedMB", "II", label, words), TABLE2_GRIDS[key], own.get(key, {}))
        for key, label in labels.items()
    )
    return Experiment(
        name=f"pfedmb-table2-{setting}",
        title=f"pFedMB, Table II: {words.replace('; ', ', ')} clients, {'CIFAR-100' if data == 'cifar100' else 'CIFAR-10'}",
        data=data,
        partition=partition,
        clients=clients,
        rounds=rounds,
        epochs=5,
        batch_size=64,
        participation=1.0 if clients == 15 else 0.2,
        arms=arms,
        paper_table="pFedMB, Table II",
        metric="unweighted mean over clients of test accuracy after fine-tuning (%)",
        deviations=(
            f"Rounds: the paper trains until convergence and does not say how long; we train {rounds} rounds.",
            "Learning rates and each method's own settings are not stated: plain SGD here, four candidates a method, chosen on "
            "the clients' validation images after 5 rounds of another seed (100)"
            + (", with 50 clients; the same choice serves 15 clients." if clients == 15 else "."),
            f"pFedMB has the number of branches that the paper found best in this setting (Table III: {branches}), which the "
            "paper searched and we do not; every layer has an alpha of its own.",
            "pFedMe: lam = 15, K = 5; IFCA: two or five clusters; FedFomo: 5 or 10 models; FedAMP: lam = 0.1 or 1.",
            "Fine-tuning is not specified: each method's own client routine once more, E = 5 epochs.",
            "Normalisation is not stated: per-channel mean and standard deviation, no augmentation.",
            "Local's clients train when they are sampled, as many epochs as the others', instead of until convergence.",
        ),
        claims=(),
        ft_every=0,
        eval_every=5,
        searched_in=f"pfedmb-table2-{setting.replace('-15', '-50')}" if clients == 15 else None,
    )


# Every method on the same small clients, for *Which method when*: one hidden layer on 28 x 28 figures, 20 clients of about 80
# training images. Every method has six candidates, searched on validation images of another seed: six learning rates, or three
# rates and two values of the setting that matters most to it. Methods that keep several models all keep four.
SIX_RATES = tuple({"lr": lr} for lr in (0.02, 0.05, 0.1, 0.2, 0.5, 1.0))


def three_rates(name: str, *values: float) -> tuple[Settings, ...]:
    """Three learning rates with each of two values of another setting."""
    return tuple({"lr": lr, name: value} for value in values for lr in (0.05, 0.15, 0.5))


FITTED: dict[str, tuple[Settings, tuple[Settings, ...]]] = {
    "fedprox": ({}, three_rates("mu", 0.01, 0.1)),
    "pfl_ft": ({}, three_rates("ft_epochs", 4, 16)),
    "pfl_fb": ({"head": "last"}, three_rates("ft_epochs", 4, 16)),
    # lr lam stays below 1, beyond which w_i overshoots theta_i
    "pfedme": (
        {},
        tuple({"lam": lam, "lr": 0.9 / lam, "inner_lr": lr} for lam in (5, 15) for lr in (0.01, 0.03, 0.1)),
    ),
    "ifca": ({"clusters": 4}, SIX_RATES),
    "cfl": ({"warmup": 3}, three_rates("gamma", 0.3, 0.5)),
    "fedfomo": ({}, three_rates("models", 5, 10)),
    "fedamp": ({}, three_rates("lam", 0.1, 1)),
    "fedem": ({"components": 4}, SIX_RATES),
    "pfedmb": ({"branches": 4}, three_rates("alpha_lr", 0.3, 1)),
    "ditto": ({}, three_rates("lam", 0.1, 1)),
    "apfl": ({}, three_rates("alpha", 0.25, 0.75)),
    "perfedavg": ({}, three_rates("inner_lr", 0.01, 0.1)),
    "moon": ({"projection": 64}, three_rates("mu", 0.1, 1)),
    "fedrep": ({}, three_rates("head_epochs", 4, 10)),
    "pfedhn": ({}, three_rates("server_lr", 0.1, 0.3)),
}
LATER = {"fedmn", "pfl_moe", "pfl_mf", "pfl_mfe"}  # methods that came after the comparison was run
SCENARIOS = {
    "label-skew": ("label skew", "dirichlet:0.3"),
    "feature-shift": ("feature shift", "writers"),
    "concept-shift": ("concept shift in four groups", "concept:4"),
    "known-groups": ("label skew in five groups", "blocks:5"),
}


def comparison(name: str, words: str, partition: str) -> Experiment:
    """All methods on one kind of difference between clients."""
    arms = []
    for method in (name for name in METHODS if name not in LATER):
        settings, grid = FITTED.get(method, ({}, SIX_RATES))
        arms.append(Arm(method, method, method, None, grid, settings))
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
        paper_table="",
        metric="unweighted mean over clients of test accuracy (%)",
        deviations=(),
        claims=(),
        ft_every=0,
        ft_epochs=None,
        eval_every=4,
        search_rounds=10,
    )


MOE_TUNING = {
    "ft_epochs": 50,
    "ft_lr": 0.001,
    "ft_momentum": 0.9,
    "ft_weight_decay": 0.0005,
    "ft_batch_size": 64,
}
MOE_CODE = MOE_TUNING | {"schedule": "sequential", "gate_optimizer": "adam", "gate_decay": 0.0005}
MOE_LOCAL = {
    "participation": 1.0, "epochs": 1, "batch_size": 64, "lr": 0.01, "momentum": 0.9, "weight_decay": 0.0005,
}  # fmt: skip
# name: data set, network, and how the printed tables call them
MOE_PAIRS = {
    "fmnist-lenet": ("fashion_mnist", "lenet", "Fashion-MNIST", "LeNet-5"),
    "cifar10-lenet": ("cifar10", "lenet", "CIFAR10", "LeNet-5"),
    "cifar10-vgg16": ("cifar10", "vgg16", "CIFAR10", "VGG-16"),
}


def pflmoe(pair: str, alpha: str) -> Experiment:
    """One setting of PFL-MoE's tables I (local test) and II (global test)."""
    data, model, dataset, network = MOE_PAIRS[pair]

    def arm(key: str, method: str, label: str, paper: str | None, **settings: Any) -> Arm:
        papers = {
            measure: None
            if paper is None
            else printed("PFL-MoE", table, paper, f"alpha={alpha}", dataset=dataset, model=network)
            for measure, table in (("local_test", "I"), ("global_test", "II"))
        }
        heir = None if method in ("local", "fedavg") else "fedavg"
        return Arm(key, method, label, papers["local_test"], (), settings, trained_by=heir, papers=papers)

    augmented = data != "fashion_mnist"
    return Experiment(
        name=f"pflmoe-{pair}-{alpha}",
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
        arms=(
            arm("local", "local", "Local", "Local", **MOE_LOCAL),
            arm("fedavg", "fedavg", "FedAvg", "FedAvg"),
            arm("pfl_fb", "pfl_fb", "PFL-FB on 3/4 of the images", "PFL-FB", part="per", **MOE_TUNING),
            arm("pfl_fb-all", "pfl_fb", "PFL-FB on all images", None, part="all", **MOE_TUNING),
            arm("pfl_mf", "pfl_mf", "PFL-MF (pixels), as in the paper", "PFL-MF", **MOE_TUNING),
            arm("pfl_mfe", "pfl_mfe", "PFL-MFE (features), as in the paper", "PFL-MFE", **MOE_TUNING),
            arm("pfl_mf-code", "pfl_mf", "PFL-MF (pixels), as in the code", "PFL-MF", **MOE_CODE),
            arm("pfl_mfe-code", "pfl_mfe", "PFL-MFE (features), as in the code", "PFL-MFE", **MOE_CODE),
        ),
        paper_table="PFL-MoE, Tables I and II",
        metric="unweighted mean over clients of accuracy on all test images (%): by class in the proportions of the client's "
        "training images (local test), and overall (global test)",
        measures={"local_test": "local test", "global_test": "global test"},
        deviations=(
            "Rounds: 100 instead of 1,000; personalisation: 50 epochs of experts and gates instead of 200; one seed.",
            "Local: 100 epochs of SGD (rate 0.01, momentum 0.9, weight decay 5e-4, mini-batches of 64) instead of 300 of SGD at "
            "0.1, divided by ten every 100 epochs, or of Adam, whichever came out better.",
            "Training images are cropped and mirrored, as in the code; the paper does not say so."
            if augmented
            else "No augmentation; the code crops and mirrors training images, which the paper does not say.",
            "Personalised is the model of the last round, instead of the one that did best on the test images.",
            "FedAvg weighs clients by their images, as McMahan et al. do; the code does not.",
            "Each client is cut into three quarters for its expert and one quarter for its gate, as in the code; PFL-FB's "
            "printed numbers come from three quarters too, so that the row on all images is our own addition.",
            "The code's README calls PFL-MF what its program calls PFL-MFE, and the other way round: rows are named by what the "
            "gate reads. The paper's gates learn by SGD in turns with the experts, the code's by Adam after them: the same "
            "numbers stand beside both.",
            "Normalisation: mean and standard deviation of CIFAR-10."
            if augmented
            else "Normalisation: mean and standard deviation of Fashion-MNIST; the code takes those of MNIST.",
            "FedAvg's local test is measured; the paper prints the global test in its place.",
        ),
        claims=(),
        ft_every=0,
        ft_epochs=None,
        eval_every=10,
        seeds=(0,),
        common={"lr": 0.01, "momentum": 0.5, "val_fraction": 0.0, "whole_test": True}
        | ({"augment": "crop_flip"} if augmented else {}),
    )


EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        PFEDMB_TABLE1,
        *map(pfedmb_table2, TABLE2_SETTINGS),
        *(pflmoe(pair, alpha) for pair in MOE_PAIRS for alpha in ("0.5", "0.9", "2")),
        *(comparison(name, words, partition) for name, (words, partition) in SCENARIOS.items()),
    )
}


def get_experiment(name: str) -> Experiment:
    """An experiment by name; raises InputError for an unknown one."""
    if name not in EXPERIMENTS:
        raise unknown("experiment", name, EXPERIMENTS)
    return EXPERIMENTS[name]
