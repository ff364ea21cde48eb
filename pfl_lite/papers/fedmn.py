"""FedMN: table II and figure 2 as data, with FedEM's clients and stand-ins, and what the paper says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from pfl_lite.data.recipes import parse
from pfl_lite.methods.fedmn import PROGRAM
from pfl_lite.papers.experiment import NEXT, Arm, Experiment, Settings, crossed, paper_tables, printed
from pfl_lite.papers.statement import (
    ClaimResult,
    Link,
    NotTestable,
    Run,
    Runs,
    Sentence,
    ahead,
    by_seed,
    claim,
    difference,
    linked,
    outcome,
    printed_table,
)
from pfl_lite.papers.statistics import Array, two_way

PAPER_BATCH = 128


class Setting(NamedTuple):
    """One data set of Table II with its clients, its network, FedMN's settings, and what the printed table calls it."""

    title: str
    data: str
    partition: str
    clients: int
    model: str
    fedmn: Settings
    printed: str | None
    stands_in: str = ""
    unavailable: bool = False
    batch_size: int = PAPER_BATCH
    """Images of a mini-batch, at the small budget; at the paper's too where the paper does not have the data."""
    smaller: str = ""
    """Why that is fewer than in the paper."""

    @property
    def ours(self) -> bool:
        """Whether network or data are not the paper's."""
        return bool(self.stands_in) or self.printed is None


# FedMN as this book read it first: its runs stay in the ledger
FIRST = {"normalize": "each", "plant": "body", "block_std": 0.01, "dropout": 0.5}
SMALL_BLOCKS = {"encoder_width": 84, "width": 64, "router_width": 64}
FEW_GLYPHS = "which is more than most clients have of the glyphs"
OTHER_NETWORK = "the network is LeNet-5 and not MobileNet-V2 from ImageNet weights"
SETTINGS = {
    "cifar10": Setting(
        "CIFAR-10, MobileNet-V2", "cifar10", "groups:3:0.4", 80, "mobilenet_v2", {"blocks": "2x2x2"}, "CIFAR10"
    ),
    "cifar100": Setting(
        "CIFAR-100, MobileNet-V2", "cifar100", "pachinko:0.4:10", 100, "mobilenet_v2", {"blocks": "2x2x2"},
        "CIFAR100",
    ),
    "emnist": Setting(
        "EMNIST, CNN", "emnist:0.1", "groups:62:0.4", 100, "femnist_cnn", {"blocks": "3x3x3"}, "EMNIST",
        unavailable=True,
    ),
    "femnist": Setting(
        "FEMNIST, CNN", "femnist", "writers:1", 539, "femnist_cnn", {"blocks": "3x3x3"}, "FEMNIST",
        unavailable=True,
    ),
    "cifar10-lenet": Setting(
        "CIFAR-10, LeNet-5", "cifar10", "groups:3:0.4", 80, "lenet", {"blocks": "2x2x2"} | SMALL_BLOCKS, "CIFAR10",
        stands_in=OTHER_NETWORK,
    ),
    "cifar100-lenet": Setting(
        "CIFAR-100, LeNet-5", "cifar100", "pachinko:0.4:10", 100, "lenet", {"blocks": "2x2x2"} | SMALL_BLOCKS,
        "CIFAR100", stands_in=OTHER_NETWORK, batch_size=32,
        smaller="with which a client makes three steps a round, and after 40 rounds only Local, FedAvg and FedAvg+ were above "
        "chance",
    ),
    "glyphs": Setting(
        "glyphs in place of EMNIST's letters", "glyphs", "groups:62:0.4", 100, "small_cnn",
        {"blocks": "3x3x3"} | SMALL_BLOCKS, None, batch_size=16, smaller=FEW_GLYPHS,
    ),
    "glyphs-writers": Setting(
        "glyphs in place of FEMNIST's writers", "glyphs", "writers:1", 100, "small_cnn",
        {"blocks": "3x3x3"} | SMALL_BLOCKS, None, batch_size=16, smaller=FEW_GLYPHS,
    ),
}  # fmt: skip

# A row of our own each, where data or network are not the paper's: what differs from the defaults, and what a table says of it.
WAYS: dict[str, tuple[str, Settings]] = {
    "printed": ("as printed", {"plant": "body"}),
    "program": ("the released program", dict(PROGRAM)),
    "works": (
        "product of the codes, centered",
        {"codes": "product", "centre": True, "router_part": "head", "router_lr": 10.0},
    ),
}
ROUNDS, PAPER_ROUNDS, PRETRAINED = 40, 200, 146
# FedMN's rounds of either kind at the small budget, to the other rows' 40 as 146 and 150 are to 200. Its blocks start near zero
# (N(0, 0.01), as in its code): twenty rounds after twenty of pre-training end while LeNet-5 is still leaving chance.
EACH = 30
SEARCH_ROUNDS = 20  # after five, LeNet-5 is still at chance on CIFAR-10 with every rate
WIDE = 0.1  # for a row of our own where encoders start from random weights
SEARCH_EACH = 20  # FedMN's, of either kind: with half of them its blocks are still near chance, and the choice is a lottery
# Four candidates a method, with momentum 0.9: four learning rates, or two with two values of another setting.
RATES = tuple({"lr": lr} for lr in (0.003, 0.01, 0.03, 0.1))
PAIRED = ({"lr": 0.01}, {"lr": 0.03})
GRIDS: dict[str, tuple[Settings, ...]] = {
    **dict.fromkeys(("local", "fedavg", "fedem", "fedmn"), RATES),
    "fedprox": crossed(PAIRED, mu=(0.01, 0.1)),
    "cfl": crossed(PAIRED, gamma=(0.3, 0.5)),
    # lr lam stays below 1, beyond which w_i overshoots theta_i
    "pfedme": crossed(({"lr": 0.03}, {"lr": 0.06}), inner_lr=(0.01, 0.03)),
    "ditto": crossed(PAIRED, lam=(0.1, 1)),
    "pfl_ft": (),  # FedAvg's choice
}


def table2(name: str) -> str:
    """The experiment of a data set of Table II."""
    return f"fedmn-table2-{name}"


def fedmn_table2(name: str) -> Experiment:
    """One data set of FedMN's table II."""
    one = SETTINGS[name]
    # pFedMe's arithmetic on weights would not survive the running statistics of MobileNet-V2's batch norm
    nearest, called = (
        ("ditto", "pFedMe (as Ditto, near to what FedEM's code trains)")
        if one.model == "mobilenet_v2"
        else ("pfedme", "pFedMe")
    )

    def arms(pretrain: int, last: int, alike: tuple[int, int]) -> tuple[Arm, ...]:
        """The rows; `pretrain` and `last`: rounds of pre-training in FedMN's results, and of both kinds; `alike`: rounds of
        pre-training and after it where a row of FedMN's has as many as the other methods."""

        def arm(key: str, column: str, label: str = "", method: str = "", **own: Any) -> Arm:
            paper = None if one.printed is None else printed("FedMN", "II", column, dataset=one.printed)
            return Arm(key, method or key, label or column, paper, GRIDS[method or key], **own)

        pool = f"FedMN [{one.fedmn['blocks']}]"
        first = one.fedmn | FIRST | {"pretrain": pretrain}
        search = {"pretrain": SEARCH_EACH, "rounds": 2 * SEARCH_EACH}
        own = arm("fedmn", "FedMN", pool, settings=first, rounds=last, search=search)
        as_wide = one.fedmn | {"width": SMALL_BLOCKS["encoder_width"], "pretrain": alike[0]}

        def addition(way: str, words: str, settings: Settings, rounds: int) -> Arm:
            key, label = f"fedmn-{way}", f"{pool}, {words}"
            return replace(own, key=key, label=label, paper=None, settings=settings, rounds=rounds)

        ours = [addition("wide", f"blocks start at {WIDE}", own.settings | {"block_std": WIDE}, last)]
        ours += [addition(way, words, as_wide | more, sum(alike)) for way, (words, more) in WAYS.items()]
        return (
            arm("local", "Local"),
            arm("fedavg", "FedAvg"),
            arm("fedprox", "FedProx"),
            arm("pfl_ft", "FedAvg+", settings={"ft_epochs": 1}, rates_of="fedavg", trained_by="fedavg"),
            arm("cfl", "ClusteredFL", settings={"warmup": 3}),
            arm("pfedme", "pFedMe", called, nearest),
            arm("fedem", "FedEM", settings={"components": 3}),
            own,
            *(ours if one.ours else ()),
        )

    seeds = (0, 1, 2, 3, 4)
    return fedem_experiment(
        table2(name),
        f"FedMN, Table II: {one.title}, {one.clients} clients",
        one,
        rounds=ROUNDS,
        arms=arms(EACH, 2 * EACH, (ROUNDS // 2, ROUNDS // 2)),
        seeds=seeds,
        deviations=(
            f"Seeds: {len(seeds)} planned; a row says how many it has.",
            *said(one, f"{ROUNDS} rounds, for FedMN {EACH} after {EACH} of pre-training"),
            *smaller_batches(one),
        ),
        paper_budget={
            "rounds": PAPER_ROUNDS,
            "seeds": (0,),
            "batch_size": one.batch_size if one.printed is None else PAPER_BATCH,
            "arms": arms(PRETRAINED, PRETRAINED + 150, (PRETRAINED, 150)),
            "deviations": (
                *said(one, f"{PAPER_ROUNDS} rounds, for FedMN 150 after {PRETRAINED} of pre-training"),
                *(smaller_batches(one) if one.printed is None else ()),
            ),
        },
    )


def said(one: Setting, rounds: str) -> tuple[str, ...]:
    """Where Table II leaves the paper."""
    mobile = one.model == "mobilenet_v2"
    network = {
        "lenet": "Network: LeNet-5, and FedMN's encoders and blocks as narrow (84 and 64), instead of MobileNet-V2 from ImageNet "
        "weights, which cannot be fetched here and is too slow for a CPU: a gap to the paper says little, the order of the rows "
        "may say something.",
        "mobilenet_v2": "MobileNet-V2 starts from random weights; the paper's starts from ImageNet's (`--model "
        "mobilenet_v2_pretrained` of `pfl-lite run`, where they can be fetched).",
        "femnist_cnn": "The CNN is FedEM's: two convolutions and two full layers.",
        "small_cnn": "Own data and an own small CNN in place of EMNIST and FEMNIST, which cannot be fetched here: no printed "
        "number belongs beside these rows.",
    }[one.model]
    columns = (
        "pFedMe's column in the paper is FedEM's, whose code trains something else under that name; pFedMe cannot do its "
        "arithmetic on batch norm: Ditto stands there, which is nearer to that code."
        if mobile
        else "pFedMe's column in the paper is FedEM's, whose code trains something else under that name; here it is pFedMe."
    )
    return (
        f"Rounds: {rounds}; the paper has 150 for FedMN, its code {PRETRAINED} of FedAvg before them, and takes over "
        "FedEM's numbers after 200 rounds for all other rows.",
        network,
        "Rates: constant, with momentum 0.9 and weight decay 5e-4 for every row, four candidates a method, chosen on the "
        f"clients' validation images after {SEARCH_ROUNDS} rounds of another seed (100), for FedMN after {2 * SEARCH_EACH}, half "
        f"of them pre-training, because with {SEARCH_ROUNDS} it is still near chance; {NEXT}. The paper searches six rates from "
        "0.001 to 0.05; FedEM divides its rates by ten twice.",
        "A quarter of each client's training images is for validation, in the results too.",
        columns,
        "Metric: unweighted mean over clients; the rows taken over from FedEM are weighted by test images.",
        "ClusteredFL splits by the ratio of update norms, because FedEM's thresholds (almost) never let it split.",
        *(
            (
                f"A row of our own: FedMN whose blocks start with a standard deviation of {WIDE}. The released code's 0.01, "
                "of FedMN's other row, may do behind an encoder with ImageNet's weights; here it costs many rounds.",
                f"Three more rows of our own: at the small budget they have {ROUNDS} rounds, as the other methods, half of them "
                "pre-training. *As printed*: codes side by side and normalized together (the rows above normalize each), the "
                "bodies of encoders pre-trained, first weights by fan-in, no dropout in blocks this narrow. *The released "
                "program*: a chain of one block a layer without a router, clients one after another, its start, dropout, rates "
                "and scale. *Product of the codes, centered*: the router reads the product of image code and label (eq. 8), less "
                "the mean of all clients and in units of their spread; its last layer alone learns, at ten times the rate; every "
                "route starts as the pre-trained network.",
            )
            if one.ours
            else ()
        ),
    )


def smaller_batches(one: Setting) -> tuple[str, ...]:
    """Why a setting has smaller mini-batches than the paper, where it has."""
    if not one.smaller:
        return ()
    return (f"Mini-batches of {one.batch_size} images; the paper has {PAPER_BATCH}, {one.smaller}.",)


def fedem_experiment(name: str, title: str, one: Setting, **others: Any) -> Experiment:
    """An experiment on FedEM's clients: what all of them share."""
    alike = ("data", "partition", "clients", "model", "batch_size", "stands_in", "unavailable")
    settings: Settings = {each: getattr(one, each) for each in alike} | {
        "epochs": 1,
        "eval_every": 5,
        "seeds": (0,),
        "search_rounds": SEARCH_ROUNDS,
        "common": {"momentum": 0.9, "weight_decay": 0.0005, "split": "fedem", "val_fraction": 0.25},
    }
    return Experiment(name, title, **settings | others)


FIG2_BLOCKS = {
    8: ("1x4x3", "1x3x4", "1x2x5", "1x5x2"),
    9: ("1x4x4", "1x5x3", "1x3x5"),
    10: ("1x5x4", "1x4x5", "1x6x3"),
}
FIG2_DEPTHS = {blocks: depth for depth, some in FIG2_BLOCKS.items() for blocks in some}
"""Layers of FedAvg's perceptron as deep as a pool of blocks, by pool."""
FIG2_SETTINGS = ("emnist", "cifar10", "glyphs")


def fig2_name(name: str) -> str:
    """The experiment of Fig. 2 on a data set."""
    return f"fedmn-fig2-{name}"


def fedmn_fig2(name: str) -> Experiment:
    """FedMN's Fig. 2 on one data set: accuracy against floats sent, deep perceptrons against as many blocks."""
    one = SETTINGS[name]
    first = f"fedmn-{FIG2_BLOCKS[8][0]}"
    linear = {"model": "linear", "encoder_width": 256, "width": 256, "router_width": 128} | FIRST

    def arm(key: str, label: str, searches: str, settings: Settings) -> Arm:
        grid, rates_of = (RATES, None) if key == searches else ((), searches)
        return Arm(key, key.partition("-")[0], label, None, grid, settings, rates_of=rates_of)

    arms = [
        arm(f"fedavg-{depth}", f"FedAvg, {depth} layers", "fedavg-8", {"model": f"mlp256x{depth}"})
        for depth in FIG2_BLOCKS
    ]
    arms += [
        arm(f"fedmn-{blocks}", f"FedMN [{blocks}], {depth} blocks", first, linear | {"blocks": blocks})
        for blocks, depth in FIG2_DEPTHS.items()
    ]
    deviations = (
        "The paper names no data set; architectures of 9 and 10 blocks are our choice. Floats are counted with the router's.",
        "Rates: momentum 0.9, weight decay 5e-4, four candidates for FedAvg with 8 layers and for the first FedMN, chosen on "
        f"validation images of another seed (100), which the other rows take over; {NEXT}.",
        "No pre-training, whose floats the figure would have to count.",
        *smaller_batches(one),
    )
    return fedem_experiment(
        fig2_name(name),
        f"FedMN, Fig. 2: {one.title.partition(',')[0]}, {one.clients} clients",
        one._replace(model="linear", stands_in=""),
        rounds=20,
        arms=tuple(arms),
        drawn=one.printed is not None,
        deviations=(*deviations, "Rounds: 20, as in the paper; one seed."),
        paper_budget={
            "seeds": (1, 2, 3),  # with seed 0 it would be the small budget's run once more
            "deviations": (*deviations, "Rounds: 20, as in the paper."),
        },
    )


FREE_RATES = tuple({"lr": lr} for lr in (0.03, 0.1, 0.3))
SMALL_POOL = {
    "blocks": "2x2x2", "pretrain": 8, "encoder_width": 64, "width": 64, "router_width": 16, "label_width": 16,
}  # fmt: skip
WORKS = WAYS["works"][1]
GROUP_ROWS: dict[str, tuple[str, Settings]] = {
    "works": ("FedMN, two changes", WORKS),
    "printed": ("FedMN, router as printed", {}),
    "random": ("FedMN, random routes", {"routing": "random"}),
    "all": ("FedMN, every wire on", {"routing": "all"}),
    "literal": ("FedMN, two changes, means as printed", WORKS | {"aggregation": "literal"}),
    "turns": ("FedMN, two changes, clients one after another", WORKS | {"schedule": "sequential"}),
    "warm": ("FedMN, two changes, temperature 1 throughout", WORKS | {"tau_end": 1.0}),
}
FEDMN_GROUPS = Experiment(
    name="fedmn-groups",
    title="FedMN's router: three groups that contradict each other (glyphs10, concept:3)",
    data="glyphs10",
    model="mlp",
    partition="concept:3",
    clients=12,
    rounds=24,
    epochs=1,
    batch_size=67,
    arms=(
        Arm("fedavg", "fedavg", "FedAvg", None, FREE_RATES),
        *(
            Arm(key, "fedmn", label, None, FREE_RATES, SMALL_POOL | settings)
            for key, (label, settings) in GROUP_ROWS.items()
        ),
    ),
    deviations=(
        "An experiment of our own, where the right routes are known. FedMN's rows have 8 rounds of "
        "pre-training and 16 of their own, FedAvg 24; momentum 0.9, three rates for every row, chosen on validation images of "
        "another seed (100).",
    ),
    seeds=(0, 1, 2, 3, 4),
    search_rounds=24,
    common={"momentum": 0.9},
)

# Where the first reading's router failed: at the start of the blocks, or because there was nothing to choose between?
NEW_HEAD = {"block_std": 0.17, "dropout": 0.0, "pretrain": 30, "lr": 0.1}
SOFT = {"gate": "soft", "aggregation": "code", "pretrain": 30, "lr": 0.02}
LENET, KEPT = SETTINGS["cifar10-lenet"], {"width": 84, "pretrain": 20, "lr": 0.03}
FEDMN_START = fedem_experiment(
    "fedmn-start",
    "FedMN on CIFAR-10: is it the start, or the choosing?",
    LENET._replace(stands_in=""),
    rounds=60,
    arms=(
        Arm("fedavg", "fedavg", "FedAvg", None, (), {"lr": 0.1}),
        *(
            Arm(key, "fedmn", label, None, (), LENET.fedmn | settings, rounds=rounds)
            for key, label, rounds, settings in (  # the router that sees, with one rate and a small pool, stands in Table II
                ("all", "new head, every wire on", 60, FIRST | NEW_HEAD | {"routing": "all"}),
                ("learned", "new head, router", 60, FIRST | NEW_HEAD),
                ("kept", "head kept, router as printed", 40, KEPT),
                ("random", "head kept, random routes", 40, KEPT | {"routing": "random"}),
                ("rates", "router that sees, pre-trained at 0.1", 40, KEPT | WORKS | {"pretrain_lr": 10 / 3}),
                ("pool", "router that sees, pool of 3x3x3", 40, KEPT | WORKS | {"blocks": "3x3x3"}),
                ("early", "router that sees, 5 rounds of pre-training", 40, KEPT | WORKS | {"pretrain": 5}),
            )
        ),
    ),
    deviations=(
        "An experiment of our own, one run a row. A new head starts at random, with a standard deviation of 0.17, after 30 of 60 "
        "rounds of pre-training at rate 0.1; a head that is kept is the pre-trained one, after 20 of 40 rounds at 0.03. The "
        "router that sees has the two changes, and the pre-trained head.",
    ),
)
FEDMN_TURNS = fedem_experiment(
    "fedmn-turns",
    "FedMN on CIFAR-100: clients in parallel, or one after another",
    SETTINGS["cifar100-lenet"]._replace(stands_in=""),
    rounds=40,
    arms=tuple(
        Arm(key, "fedmn", f"clients {words}", None, (), LENET.fedmn | FIRST | SOFT | {"schedule": key})
        for key, words in (("parallel", "in parallel"), ("sequential", "one after another"))
    ),
    eval_every=2,
    deviations=(
        "An experiment of our own, one run a row: 30 rounds of pre-training and 10 more with the released program's start, soft "
        "bits and mean, rate 0.02.",
    ),
)

FEDMN = (
    *map(fedmn_table2, SETTINGS),
    *map(fedmn_fig2, FIG2_SETTINGS),
    FEDMN_GROUPS,
    FEDMN_START,
    FEDMN_TURNS,
)


# ---- what runs decide ------------------------------------------------------------------------------------------


RIVALS = ("local", "fedavg", "fedprox", "pfl_ft", "cfl", "pfedme", "fedem")


def gain(high: str, low: str, own: str) -> Link:
    """FedMN's lead over FedEM is larger on one data set than on another."""
    there, here = ahead(map(table2, (high, low)), own, "fedem")
    return there - here


def tuning(name: str, helps: bool) -> list[Link]:
    """FedAvg+ above FedAvg and FedProx, or below."""
    pairs = [("pfl_ft", plain) if helps else (plain, "pfl_ft") for plain in ("fedavg", "fedprox")]
    return [link for better, worse in pairs for link in ahead(table2(name), better, worse)]


def of_table2(suffix: str, where: str, names: tuple[str, ...], own: str = "fedmn") -> None:
    """M1, M2 and M8 on some data sets; `own`: FedMN's row, of those that stand in for the paper's the one whose router works."""
    group = "fedmn-table2" if len(names) == 4 else table2(names[0])
    ours = where if own == "fedmn" else f"{where}, and the router repaired ('product of the codes, centered')"
    linked(
        f"M1{suffix}",
        group,
        f"{ours}: FedMN is above all seven other methods on each data set (Table II)",
        ahead(map(table2, names), own, *RIVALS),
        starts="a router",
    )
    large = [name for name in names if name.startswith(("cifar100", "femnist"))]
    small = [name for name in names if name not in large]
    if not large:
        return
    linked(
        f"M2{suffix}",
        group,
        f"{ours}: FedMN leads FedEM on {' and '.join(large)}, and by more than on {' and '.join(small)} (Table II)",
        ahead(map(table2, large), own, "fedem") + [gain(high, low, own) for high in large for low in small],
        starts="a router",
    )
    linked(
        f"M8{suffix}",
        group,
        f"{where}: FedAvg+ is above FedAvg and FedProx on {names[0]}, and below them on {' and '.join(large)} (Table II)",
        [link for name in (names[0], *large) for link in tuning(name, helps=name == names[0])],
    )


of_table2("", "The paper's networks", ("cifar10", "cifar100", "emnist", "femnist"))
of_table2("-lenet", "LeNet-5 in place of MobileNet-V2", ("cifar10-lenet", "cifar100-lenet"), "fedmn-works")
of_table2("-glyphs", "Glyphs in place of EMNIST and FEMNIST", ("glyphs", "glyphs-writers"), "fedmn-works")


def sent(run: Run) -> float:
    """Floats sent down and up in all rounds."""
    return float(sum(entry["floats_down"] + entry["floats_up"] for entry in run["rounds"]))


def fewer_floats(mine: Runs, _: float) -> ClaimResult:
    """Floats of FedMN over FedAvg's with as many layers, the largest of all architectures, by seed."""
    ratios = {
        f"[{blocks}]": [
            sent(run) / sent(plain)
            for run, plain in zip(mine[f"fedmn-{blocks}"], mine[f"fedavg-{depth}"], strict=True)
        ]
        for blocks, depth in FIG2_DEPTHS.items()
    }
    largest = [max(each) for each in zip(*ratios.values(), strict=True)]
    note = ", ".join(f"{blocks} {sum(each) / len(each):.2f}" for blocks, each in ratios.items())
    decided = by_seed([ratio < 1 for ratio in largest])
    statistic = "floats in all rounds, FedMN over FedAvg, largest ratio"
    return ClaimResult(statistic, decided, max(largest), threshold=1.0, note=f"mean ratios {note}")


for setting in FIG2_SETTINGS:
    experiment, suffix = fig2_name(setting), "" if setting == "emnist" else f"-{setting}"
    arms = [f"fedavg-{depth}" for depth in FIG2_BLOCKS] + [f"fedmn-{blocks}" for blocks in FIG2_DEPTHS]
    text = f"On {setting} FedMN sends fewer floats in 20 rounds than FedAvg with as many layers, router included (Fig. 2)"
    claim(f"M3{suffix}", experiment, arms, text)(fewer_floats)
    linked(
        f"M4{suffix}",
        experiment,
        f"On {setting} FedMN is, after 20 rounds, above FedAvg with as many layers, and FedAvg with 8 layers above that with 10 "
        "(Fig. 2)",
        [
            *(
                difference((experiment, f"fedmn-{blocks}"), (experiment, f"fedavg-{depth}"))
                for blocks, depth in FIG2_DEPTHS.items()
            ),
            *ahead(experiment, "fedavg-8", "fedavg-10"),
        ],
    )


def last_logits(run: Run) -> Array:
    """The logits of all bits at the last watched round, [clients, bits]."""
    kept = (run.get("watch") or {}).get("logits")
    if not kept:
        raise NotTestable(f"{run['arm']} seed {run['seed']} kept no logits")
    return np.array(kept[max(kept, key=int)], dtype=float)


@claim(
    "M5",
    "fedmn-groups",
    ("works",),
    "Clients with similar data get similar probabilities: two of one group lie nearer to each other than two of different groups "
    "(the paper's reason for a router; our experiment, two changes)",
)
def routes_follow_data(runs: Runs, level: float) -> ClaimResult:
    """Mean distance of the clients' probabilities between groups minus that inside groups, by seed."""
    excess = []
    for run in runs["works"]:
        on = 1 / (1 + np.exp(-last_logits(run)))
        group = np.asarray(parse(run["config"]["partition"]).groups(len(on)))
        apart, same = np.linalg.norm(on[:, None] - on, axis=-1), np.equal.outer(group, group)
        pairs = ~np.eye(len(on), dtype=bool)
        excess.append(apart[~same].mean() - apart[same & pairs].mean())
    return outcome("distance between groups minus inside", two_way(np.array(excess)[:, None]), level)


linked(
    "M6",
    "fedmn-groups",
    "The learned router is above fixed random routes, above FedMN with every wire on, and above FedAvg (ours, two changes)",
    ahead("fedmn-groups", "works", "random", "all", "fedavg"),
)
linked(
    "M7",
    "fedmn-groups",
    "A block's mean as printed, over all clients, is worse than over its users (our experiment, two changes)",
    ahead("fedmn-groups", "works", "literal"),
)


@claim(
    "M9",
    "fedmn-groups",
    ("works", "warm"),
    "A temperature that falls from 1 to 0.1 leaves fewer gates between 0.1 and 0.9 than one that stays (our experiment, "
    "nearly by construction)",
)
def annealing_hardens(runs: Runs, level: float) -> ClaimResult:
    """Expected share of undecided gates at the last round, constant temperature minus falling, by seed.

    A lower temperature leaves fewer with any logits; the note says how many it would with those of the constant one.
    """

    def undecided(run: Run, tau: float) -> float:
        logits = last_logits(run)
        low, high = (1 / (1 + np.exp(logits - sign * tau * np.log(9))) for sign in (-1, 1))
        # v lies there while the noise lies between two of its quantiles
        return 100 * float((high - low).mean())

    fewer, alone = [], []
    for warm, falls in zip(runs["warm"], runs["works"], strict=True):
        high, low = (run["config"]["method"]["tau_end"] for run in (warm, falls))
        fewer.append(undecided(warm, high) - undecided(falls, low))
        alone.append(undecided(warm, high) - undecided(warm, low))
    note = f"{np.mean(alone):.1f} of them with the logits of the constant temperature, so by construction"
    return outcome("undecided gates, points fewer", two_way(np.array(fewer)[:, None]), level, note)


# ---- what the paper's own numbers decide ----------------------------------------------------------------------

FEDEM_PRINTS = {"CIFAR10": 84.3, "CIFAR100": 44.1}  # FedEM's own column where FedMN's table has other numbers
FEDEM_COMPONENTS = 3  # in all of FedEM's experiments


def sentences() -> Iterator[Sentence]:
    """Sentences of the paper beside its tables I and II."""
    layer1 = (one for one in paper_tables() if one["metric"].startswith("blocks in layer 1 "))
    first = [one for one in layer1 if one["paper"] == "FedMN"]
    encoders = pd.Series({one["dataset"]: int(float(one["value_percent"])) for one in first})
    says = "the number of encoders in FedMN are set as the same as the number of components in FedEM on each dataset"
    said = ", ".join(f"{number} encoders on {name}" for name, number in encoders.items())
    said = f"FedEM has {FEDEM_COMPONENTS} components everywhere; Table I has {said}"
    yield "IV-C", says, encoders == FEDEM_COMPONENTS, said

    numbers = printed_table("FedMN", "II")
    others = numbers.drop(columns="FedMN")
    margin = others["FedEM"] - others.drop(columns="FedEM").max(axis=1)
    said = f"leads by {', '.join(f'{value:.1f}' for value in margin)} points"
    yield "IV-C", "FedEM outperforms the other baselines", margin > 0, said

    above = numbers["FedAvg+"] > numbers[["FedAvg", "FedProx"]].max(axis=1)
    says = "FedAvg+ outperforms FedAvg and FedProx on CIFAR10 but is not as good as them on other datasets"
    said = f"FedAvg+ is ahead of both on {', '.join(above.index[above])}"
    yield "IV-C", says, above == (above.index == "CIFAR10"), said

    above = numbers["ClusteredFL"] > numbers["FedAvg+"]
    where = ", ".join(
        f"{name} ({numbers.loc[name, 'ClusteredFL']} against {numbers.loc[name, 'FedAvg+']})"
        for name in above.index[above]
    )
    meant = "right if it means 'not on every one', wrong if it means 'on none'"
    says = "Clustered FL cannot outperform FedAvg+ on all datasets"
    yield "IV-C", says, ~above, f"it does on {where}: {meant}"

    margin = numbers["FedMN"] - others.max(axis=1)
    own = numbers.loc[list(FEDEM_PRINTS), "FedMN"] - pd.Series(FEDEM_PRINTS)
    said = f"leads by {', '.join(f'{value:.1f}' for value in margin)} points; against the numbers that FedEM's authors publish "
    said += f"({', '.join(f'{value} on {name}' for name, value in FEDEM_PRINTS.items())}) it is behind on "
    said += ", ".join(own.index[own < 0])
    yield "IV-C", "our proposed FedMN outperforms all the baselines", margin > 0, said
