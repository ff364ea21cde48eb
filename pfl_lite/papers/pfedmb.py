"""pFedMB: its tables I to III and figure 5 as data, and what the paper says of them and of figures 3 and 4."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.spatial.distance import pdist
from scipy.special import entr

from pfl_lite.engine.history import diverged_in
from pfl_lite.papers.experiment import DEFAULT_BUDGET, NEXT, Arm, Experiment, Settings, crossed, printed
from pfl_lite.papers.statement import (
    ClaimResult,
    NotTestable,
    Run,
    Runs,
    Sentence,
    ahead,
    by_seed,
    by_unit,
    claim,
    count,
    difference,
    estimate,
    linked,
    outcome,
    per_client,
    printed_table,
)
from pfl_lite.papers.statistics import Array, Estimate, best_rank, resampled, two_way, verdict

SHARED_ALPHA = {"branches": 5, "alpha_scope": "shared"}
PLAIN_MEAN = SHARED_ALPHA | {"aggregation": "plain"}
PLAIN_RATES = tuple({"lr": lr} for lr in (0.02, 0.05, 0.1))
BRANCH_RATES = tuple({"lr": lr, "alpha_lr": alpha_lr} for lr, alpha_lr in ((0.1, 0.1), (0.1, 0.3)))

# The paper's budget, "until convergence": the most rounds by number of clients, and when a run is looked at and ends before.
LONGEST = {10: 100, 15: 100, 50: 300}
ALL_TRAIN = {"ft_every": 5, "patience": 15}
LOOKED_AT = {10: ALL_TRAIN, 15: ALL_TRAIN, 50: {"ft_every": 20, "patience": 60}}
FACTORS = {"ft_factors": "0,0.1,1"}
SEARCHED = {"search_rounds": 20, "candidates": (6, 9), "common": FACTORS}
# Optimizer and regularization are not stated: each search begins with plain SGD and with momentum, and climbs from there.
STARTS: tuple[Settings, ...] = (
    {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.005},
    {"lr": 0.1, "momentum": 0.0, "weight_decay": 0.005},
)
RUNGS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
DECAYS = (0.0, 0.001, 0.005, 0.01)


def climbing(start: Settings | None = None, **ladders: tuple[float, ...]) -> Settings:
    """The search of an arm with the paper's budget: a method's own settings at their `start`, and the ladders it climbs."""
    own = start or {}
    steps = {"lr": RUNGS} | (ladders or {"weight_decay": DECAYS})
    return {"grid": tuple(one | own for one in STARTS), "ladders": steps}


# Each of B branches gets a B-th of the mixed layer's gradient and the whole of weight decay, which is so B times as strong.
BRANCH_SEARCH: Settings = {
    "grid": (
        {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.001, "alpha_lr": 0.1, "rate": "effective"},
        {"lr": 0.1, "momentum": 0.0, "weight_decay": 0.001, "alpha_lr": 0.1, "rate": "effective"},
        {"lr": 0.03, "momentum": 0.9, "weight_decay": 0.001, "alpha_lr": 0.1, "rate": "plain"},
    ),
    "ladders": {"lr": RUNGS, "weight_decay": DECAYS, "alpha_lr": (0.01, 0.03, 0.1, 0.3, 1.0)},
}
CLIMBS: dict[str, Settings] = {
    **dict.fromkeys(("local", "fedavg", "fedper"), climbing()),
    "fedprox": climbing({"mu": 0.01}, mu=(0.001, 0.01, 0.1, 1.0)),
    # pFedMe's rate is that of w_i along lam (w_i - theta_i): lr lam stays below 1, beyond which w_i overshoots theta_i
    "pfedme": {
        "grid": (
            {"lr": 0.003, "momentum": 0.9, "weight_decay": 0.005, "inner_lr": 0.03},
            {"lr": 0.03, "momentum": 0.0, "weight_decay": 0.005, "inner_lr": 0.03},
        ),
        "ladders": {"lr": (0.001, 0.003, 0.01, 0.03, 0.06), "inner_lr": (0.003, 0.01, 0.03, 0.1)},
    },
    "ifca": climbing({"clusters": 2}, clusters=(2, 3, 5, 8)),
    "fedfomo": climbing({"models": 5}, models=(2, 5, 10, 15)),
    "fedamp": climbing({"lam": 0.1}, lam=(0.01, 0.1, 1.0, 10.0)),
    "pfedmb": BRANCH_SEARCH,
}
CLIMB = (
    "Optimizer and regularization are not stated: each search begins with momentum 0.9 and with plain SGD, weight decay 0.005 "
    "(pFedMB: 0.001, as each branch gets all of it and only a share of the gradient), and climbs from the best candidate to its "
    "neighbors in rate and in the method's own setting (weight decay, where it has none; pFedMB: weight decay and alpha's rate) "
    "until six have been tried, and on to nine while the best stands at the edge of what was tried and the list of values goes "
    "on; 20 rounds of another seed (100) on the clients' validation images"
)
TUNED = (
    "Fine-tuning is not specified: each method's own client routine once more, E = 5 epochs, with the learning rate, a tenth "
    "of it, or not at all, whichever gives the best mean validation accuracy at the end of the run."
)


def length(rounds: int, looked: Settings | None = None) -> str:
    """The first deviation of each of these experiments; `looked`: when a run may end before its last round."""
    ends = f"{rounds} rounds"
    if looked:
        ends = (
            f"until the mean validation accuracy after fine-tuning, looked at every {looked['ft_every']} rounds, has not risen "
            f"for {looked['patience']} rounds, at most {rounds} rounds, and keep the last model"
        )
    return f"Rounds: the paper trains until convergence and does not say how long; we train {ends}."


def table1_deviations(rounds: str, seeds: str, chosen: str, tuned: str) -> tuple[str, ...]:
    """Where Table I leaves the paper: how long runs are, how many, how settings are chosen, and how clients fine-tune."""
    return (
        rounds,
        seeds,
        f"{chosen}; the row without alpha-weighting takes "
        "the rates of the row with it, so that only the aggregation differs (rates of its own might serve it better); "
        f"{NEXT}.",
        "How alpha stays on the simplex is not stated: softmax of logits that start at 0.",
        tuned,
        "Normalization is not stated: per-channel mean and standard deviation of CIFAR-10, no augmentation.",
        "Participation is not stated for this table: all ten clients train in every round.",
        "Local trains as many epochs as FedAvg's clients (rounds x E) instead of until convergence.",
        "pFedMB's clients train 2 E epochs a round (E on alpha, E on W), as in the paper: twice the others' local work.",
    )


def table1_arms(plain: Settings, branched: Settings) -> tuple[Arm, ...]:
    """The rows of Table I, with how the rates of both kinds of methods are searched."""

    def arm(key: str, label: str, column: str, **how: Any) -> Arm:
        return Arm(key, key.partition("-")[0], label, printed("pFedMB", "I", column), **how)

    unweighted: Settings = {"settings": PLAIN_MEAN, "rates_of": "pfedmb", "grid": ()}
    without = "pFedMB without alpha-weighting (eq. 6)"
    return (
        arm("local", "Local", "Local", **plain),
        arm("fedavg", "FedAvg", "FedAvg", **plain),
        arm("pfedmb-plain", without, "pFedMB w/o alpha-weighted avg", **unweighted),
        arm("pfedmb", "pFedMB (eq. 5)", "pFedMB", settings=SHARED_ALPHA, **branched),
    )


TABLE1_SEEDS = (0, 1, 2, 3, 4)

PFEDMB_TABLE1 = Experiment(
    name="pfedmb-table1",
    title="pFedMB, Table I: five pairs of clients on CIFAR-10",
    data="cifar10",
    partition="pairs",
    clients=10,
    rounds=30,
    epochs=5,
    batch_size=64,
    ft_every=1,
    ft_epochs=5,
    seeds=TABLE1_SEEDS,
    arms=table1_arms({"grid": PLAIN_RATES}, {"grid": BRANCH_RATES}),
    deviations=table1_deviations(
        length(30),
        f"Seeds: {len(TABLE1_SEEDS)} planned instead of the paper's three runs; the last two were added when the first three had "
        "left open whether pFedMB is above Local, and verdicts allow for the second look.",
        "Learning rates, momentum and weight decay are not stated in the paper: plain SGD here, the rates chosen on the clients' "
        "validation images after 5 rounds of another seed (100), three candidates for Local and FedAvg, two pairs of rates for "
        "pFedMB",
        "Fine-tuning is not specified: each method's own client routine once more, E = 5 epochs (pFedMB: 5 on alpha, 5 on W).",
    ),
    paper_budget=SEARCHED
    | LOOKED_AT[10]
    | {
        "rounds": LONGEST[10],
        "seeds": (0, 1, 2),
        "arms": table1_arms(climbing(), BRANCH_SEARCH),
        "deviations": table1_deviations(
            length(LONGEST[10], LOOKED_AT[10]), "Seeds: 3 planned, as in the paper.", CLIMB, TUNED
        ),
    },
)

PAIRED_RATES = ({"lr": 0.05}, {"lr": 0.1})

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


class Column(NamedTuple):
    """A column of Table II; `words` are those of the printed table, `branches` the B of Table III."""

    data: str
    partition: str
    clients: int
    words: str
    branches: int
    rounds: int


TABLE2_SETTINGS = {
    "random2-15": Column("cifar10", "classes:2", 15, "random 2 classes; 15", 6, 10),
    "random2-50": Column("cifar10", "classes:2", 50, "random 2 classes; 50", 10, 30),
    "dirichlet-15": Column("cifar10", "dirichlet:0.4", 15, "Dirichlet 0.4; 15", 7, 10),
    "dirichlet-50": Column("cifar10", "dirichlet:0.4", 50, "Dirichlet 0.4; 50", 6, 30),
    "cifar100-15": Column(
        "cifar100", "shares:20:0.3:0.7", 15, "random 20 classes, different sizes; 15", 3, 10
    ),
    "cifar100-50": Column(
        "cifar100", "shares:20:0.3:0.7", 50, "random 20 classes, different sizes; 50", 3, 30
    ),
}

TABLE2_LABELS = {
    "local": "Local", "fedavg": "FedAvg", "fedprox": "FedProx", "fedper": "FedPer", "pfedme": "pFedMe",
    "ifca": "IFCA", "fedfomo": "FedFomo", "fedamp": "FedAMP", "pfedmb": "pFedMB",
}  # fmt: skip


def table2(setting: str) -> str:
    """The experiment of a column of Table II."""
    return f"pfedmb-table2-{setting}"


def pfedmb_table2(setting: str) -> Experiment:
    """One column of pFedMB's table II: nine methods on CIFAR-10 or CIFAR-100, 15 or 50 clients."""
    data, partition, clients, words, branches, rounds = TABLE2_SETTINGS[setting]
    paper = {key: printed("pFedMB", "II", label, words) for key, label in TABLE2_LABELS.items()}

    def arms(searches: dict[str, Settings], branched: Settings) -> tuple[Arm, ...]:
        own = {"pfedmb": {"branches": branches} | branched}
        return tuple(
            Arm(key, key, label, paper[key], settings=own.get(key, {}), **searches[key])
            for key, label in TABLE2_LABELS.items()
        )

    follows = table2(setting.replace("-15", "-50")) if clients == 15 else None
    return Experiment(
        name=table2(setting),
        title=f"pFedMB, Table II: {words.replace('; ', ', ')} clients, {'CIFAR-100' if data == 'cifar100' else 'CIFAR-10'}",
        data=data,
        partition=partition,
        clients=clients,
        rounds=rounds,
        epochs=5,
        batch_size=64,
        participation=1.0 if clients == 15 else 0.2,
        arms=arms({key: {"grid": grid} for key, grid in TABLE2_GRIDS.items()}, {"rate": "effective"}),
        deviations=table2_deviations(
            length(rounds),
            "Learning rates and each method's own settings are not stated: plain SGD here, four candidates a method, chosen on "
            "the clients' validation images after 5 rounds of another seed (100)",
            branches,
            "pFedMB's step on the branches is divided by the sum of the squares of alpha, so that its mixed layers move at the "
            "chosen rate: with B branches of equal weight they would move at a B-th of it, and with these rates, ten branches "
            "and 50 clients all four candidates were still at 50% on validation images after five rounds (a search that the "
            "ledger does not hold).",
            "pFedMe: lam = 15, K = 5; IFCA: two or five clusters; FedFomo: 5 or 10 models; FedAMP: lam = 0.1 or 1; "
            "FedProx: mu = 0.01 or 0.1; FedPer: the last layer is private. A method with a setting of its own tries two values "
            "of it with two rates, the others four rates.",
            "Fine-tuning is not specified: each method's own client routine once more, E = 5 epochs.",
            shared=clients == 15,
        ),
        ft_epochs=5,
        eval_every=5,
        searched_in=follows,
        paper_budget=SEARCHED
        | LOOKED_AT[clients]
        | {
            "rounds": LONGEST[clients],
            "arms": arms(CLIMBS, {}),
            "eval_every": LOOKED_AT[clients]["ft_every"],
            "deviations": table2_deviations(
                length(LONGEST[clients], LOOKED_AT[clients]),
                CLIMB,
                branches,
                "pFedMB's step on the branches is divided by the sum of the squares of alpha, so that its mixed layers move at "
                "the chosen rate, or not: both are searched.",
                "pFedMe: lam = 15, K = 5; FedPer: the last layer is private.",
                TUNED,
                shared=clients == 15,
            ),
        },
    )


def table2_deviations(
    rounds: str, chosen: str, branches: int, step: str, own: str, tuned: str, *, shared: bool
) -> tuple[str, ...]:
    """Where a column of Table II leaves the paper; `shared`: the settings are those of the setting with 50 clients.

    The other texts say how long runs are, how settings are chosen, the size of pFedMB's step, the methods' own settings and how
    clients fine-tune.
    """
    return (
        rounds,
        chosen + (", with 50 clients; the same choice serves 15 clients" if shared else "") + f"; {NEXT}.",
        f"pFedMB has the number of branches that the paper found best in this setting (Table III: {branches}), which the "
        "paper searched and we do not; every layer has an alpha of its own.",
        step,
        "pFedMB's clients train 2 E epochs a round, alpha and then the branches, as the paper has it; the others train E.",
        own,
        "Two classes per client: every class has as many holders as any other. Dirichlet: a client that has its share of the "
        "images gets no more, as in PFNM's code, and each has at least ten.",
        tuned,
        "Normalization is not stated: per-channel mean and standard deviation, no augmentation.",
        "Local's clients train when they are sampled, as many epochs as FedAvg's, instead of until convergence.",
    )


BRANCHES = (2, 5, 10, 20)
MORE_BRANCHES = (2, 3, 5, 6, 7, 10, 15, 20)


def branches_name(setting: str) -> str:
    """What the scan over numbers of branches is called in a setting; in the one that the paper draws it is Fig. 5."""
    return "pfedmb-fig5" if setting == "random2-50" else f"pfedmb-table3-{setting}"


def pfedmb_branches(setting: str) -> Experiment:
    """pFedMB with several numbers of branches in a setting of Table II: Fig. 5, and what Table III is chosen from."""
    base, column = pfedmb_table2(setting), TABLE2_SETTINGS[setting]
    best = column.branches

    def arm(number: int, branched: Settings) -> Arm:
        paper, home = None, None
        if number == best:
            paper, home = base.arm("pfedmb").paper, base.name
        key, settings = f"b{number}", {"branches": number} | branched
        return Arm(key, "pfedmb", f"B = {number}", paper, (), settings, rates_of="pfedmb", run_of=home)

    def arms(candidates: tuple[int, ...], branched: Settings) -> tuple[Arm, ...]:
        return tuple(arm(number, branched) for number in sorted({*candidates, best}))

    deviations = (
        f"The learning rates are those chosen for B = {best}, the paper's best, whose run is that of Table II; {NEXT}, "
        "and the other numbers of branches follow.",
        "B is compared on validation images, each row's accuracy on test images.",
    )
    return replace(
        base,
        name=branches_name(setting),
        title=f"pFedMB, {'Fig. 5' if setting == 'random2-50' else 'Table III'}: numbers of branches, "
        f"{column.words.replace('; ', ', ')} clients",
        arms=arms(BRANCHES, {"rate": "effective"}),
        drawn=setting == "random2-50",  # Fig. 5
        seeds=(0,),
        searched_in=base.name,
        deviations=(length(base.rounds), *deviations),
        paper_budget=base.paper_budget
        | {
            "arms": arms(MORE_BRANCHES, {}),
            "seeds": base.seeds,
            "searched_in": base.name,
            "deviations": (length(LONGEST[base.clients], LOOKED_AT[base.clients]), *deviations),
        },
    )


def our_addition(
    setting: str,
    name: str,
    change: str,
    why: str,
    rows: dict[str, tuple[str, Settings]],
    seeds: tuple[int, ...] = (0,),
) -> Experiment:
    """Rows of Table I or of a setting of Table II once more, with a setting of our choice instead of the one that was searched.

    Args:
        setting: of Table II, or `table1`: whose paper budget is taken.
        name: the experiment's.
        change: what is different, for its title.
        why: its only deviation from that table.
        rows: key, whose first word is the method -> what its label adds, and all that its search would have chosen.
        seeds: those of the results.
    """
    table, where = PFEDMB_TABLE1, "Table I"
    if setting != "table1":
        table = pfedmb_table2(setting)
        where = f"Table II, {TABLE2_SETTINGS[setting].words.replace('; ', ', ')} clients"
    base = table.at("paper")
    return replace(
        base,
        name=name,
        title=f"Our addition to pFedMB's {where}: {change}",
        budget=DEFAULT_BUDGET,
        arms=tuple(
            Arm(key, method, f"{TABLE2_LABELS[method]}, {words}", None, (), chosen)
            for key, (words, chosen) in rows.items()
            for method in [key.partition("-")[0]]
        ),
        seeds=seeds,
        searched_in=None,
        deviations=(why,),
    )


def pfedmb_decay(setting: str) -> Experiment:
    """Our addition: where would FedAvg and pFedMB end, had their short search kept the weight decay it starts with?"""
    clients, branches = TABLE2_SETTINGS[setting].clients, TABLE2_SETTINGS[setting].branches
    plain, ladders = STARTS[0], BRANCH_SEARCH["ladders"]
    mixed = BRANCH_SEARCH["grid"][0] | {"branches": branches, "alpha_lr": ladders["alpha_lr"][-1]}
    rows = {"fedavg-decay": plain, "pfedmb-decay": mixed}
    if clients == 15:
        rows["pfedmb-more-decay"] = mixed | {"weight_decay": plain["weight_decay"]}
    return our_addition(
        setting,
        decay_name(setting),
        "with weight decay",
        "FedAvg and pFedMB as in that table with the paper's budget, all other settings included, but with the weight decay "
        f"at which their searches begin (FedAvg: {plain['weight_decay']}, as FedProx and IFCA keep it; pFedMB: "
        f"{mixed['weight_decay']}, and with 15 clients also FedAvg's); these searches of {SEARCHED['search_rounds']} rounds "
        "chose none.",
        {key: (f"weight decay {chosen['weight_decay']}", chosen) for key, chosen in rows.items()},
        (0, 1, 2) if clients == 15 else (0,),
    )


def decay_name(setting: str) -> str:
    """What the experiment with weight decay is called in a setting of Table II."""
    return "pfedmb-decay" if setting == "random2-50" else f"pfedmb-decay-{setting}"


def pfedmb_slower(setting: str, alpha_lr: float) -> Experiment:
    """Our addition: where would rows end on CIFAR-100 at the next lower rate, which a short search passed over?

    Args:
        setting: of Table II.
        alpha_lr: pFedMB's there; the other settings are those of both columns.
    """
    branches = TABLE2_SETTINGS[setting].branches
    rows: dict[str, Settings] = {
        "fedavg": STARTS[0] | {"lr": 0.01},
        "fedprox": STARTS[0] | {"lr": 0.01, "mu": 0.001},
        "ifca": STARTS[0] | {"lr": 0.01, "clusters": 3},
        "pfedmb": BRANCH_SEARCH["grid"][2] | {"branches": branches, "lr": 0.03, "alpha_lr": alpha_lr},
    }
    return our_addition(
        setting,
        slower_name(setting),
        "at the next lower rate",
        "FedAvg, FedProx, IFCA and pFedMB as in that table with the paper's budget, all other settings included, but at the next "
        f"lower rate of their ladders; searches of {SEARCHED['search_rounds']} rounds chose the higher one.",
        {f"{method}-slower": (f"rate {chosen['lr']}", chosen) for method, chosen in rows.items()},
    )


def slower_name(setting: str) -> str:
    """What the experiment at the next lower rate is called in a setting of Table II."""
    return f"pfedmb-slower-{setting}"


def pfedmb_momentum(setting: str) -> Experiment:
    """Our addition: with unequal mixtures, where would rows end with the optimizer that IFCA's search chose?"""
    rows: dict[str, Settings] = {"fedavg": STARTS[0]}
    few = TABLE2_SETTINGS[setting].clients == 15
    if few:
        rows["pfedmb"] = (
            BRANCH_SEARCH["grid"][0] | STARTS[0] | {"branches": TABLE2_SETTINGS[setting].branches}
        )
    names = " and ".join(TABLE2_LABELS[method] for method in rows)
    return our_addition(
        setting,
        momentum_name(setting),
        f"{names} with momentum",
        f"{names} as in that table with the paper's budget, but with momentum {STARTS[0]['momentum']}, rate {STARTS[0]['lr']} "
        f"and weight decay {STARTS[0]['weight_decay']}, as IFCA's search chose them; their own searches chose plain SGD.",
        {f"{method}-momentum": (f"momentum {chosen['momentum']}", chosen) for method, chosen in rows.items()},
        (0, 1, 2) if few else (0,),
    )


def momentum_name(setting: str) -> str:
    """What the experiment with momentum is called in a setting of Table II."""
    return f"pfedmb-momentum-{setting}"


LESS_DECAY = BRANCH_SEARCH["grid"][0] | {"lr": 0.03}
PFEDMB = (
    PFEDMB_TABLE1,
    *map(pfedmb_table2, TABLE2_SETTINGS),
    *map(pfedmb_branches, TABLE2_SETTINGS),
    *map(pfedmb_decay, ("random2-50", "random2-15")),
    pfedmb_slower("cifar100-50", 0.3),
    pfedmb_slower("cifar100-15", 0.1),
    *map(pfedmb_momentum, ("dirichlet-50", "dirichlet-15")),
    # is it weight decay, with which eq. 5 is best, that holds eq. 6 back?
    our_addition(
        "table1",
        decay_name("table1"),
        "eq. 6 with less weight decay",
        "pFedMB without alpha-weighting as in that table with the paper's budget, all other settings included, but with weight "
        f"decay {LESS_DECAY['weight_decay']}; the search of eq. 5, whose settings eq. 6 takes over, chose 0.01.",
        {
            "pfedmb-plain-decay": (f"eq. 6, weight decay {LESS_DECAY['weight_decay']}", LESS_DECAY | PLAIN_MEAN),
        },
        PFEDMB_TABLE1.at("paper").seeds,
    ),
)  # fmt: skip


# ---- what runs decide ------------------------------------------------------------------------------------------


def alphas(run: Run) -> dict[int, Array]:
    """Branch weights of all clients at the rounds that kept them: round -> [clients, branches]."""
    kept = (run.get("watch") or {}).get("alpha") or {}
    weights = {int(at): np.array(value, dtype=float) for at, value in kept.items()}
    weights = {at: a[:, 0] if a.ndim == 3 and a.shape[1] == 1 else a for at, a in sorted(weights.items())}
    if not weights or any(a.ndim != 2 or len(a) % 2 for a in weights.values()):
        raise NotTestable(
            f"{run['arm']} seed {run['seed']} kept no alpha that all layers share, or has no whole pairs"
        )
    return weights


def in_pairs(alpha: Array) -> Array:
    """Alpha [clients, branches] as [pairs, 2, branches]; clients 2p and 2p+1 are pair p."""
    return alpha.reshape(len(alpha) // 2, 2, -1)


def last_pairs(run: Run) -> Array:
    """Alpha of the last watched round as [pairs, 2, branches]."""
    return in_pairs(list(alphas(run).values())[-1])


def apart(pairs: Array) -> Array:
    """The L1 distance of the two alphas of every pair, [pairs]."""
    return np.abs(pairs[:, 0] - pairs[:, 1]).sum(-1)


def between(alpha: Array) -> float:
    """The mean L1 distance between the mean alphas of two pairs; alpha [clients, branches], two clients a pair. At most 2."""
    return float(pdist(in_pairs(alpha).mean(1), "cityblock").mean())


def branches_used(pairs: Array) -> int:
    """How many different branches are the strongest one of some pair (mean alpha of its two clients)."""
    return len(set(pairs.mean(1).argmax(-1).tolist()))


def entropy(alpha: Array) -> float:
    """Mean over clients of the entropy of alpha [clients, branches], in nats."""
    return float(entr(alpha).sum(-1).mean())


CHAIN = ("pfedmb", "pfedmb-plain", "fedavg", "local")


@claim(
    "B1",
    "pfedmb-table1",
    CHAIN,
    "Five pairs: pFedMB (eq. 5) > pFedMB (eq. 6) > FedAvg > Local, all after fine-tuning (Table I)",
)
def chain(runs: Runs, level: float) -> ClaimResult:
    """Paired differences over pairs of clients and seeds for each link of the chain."""
    accuracy = {arm: per_client(runs[arm]) for arm in CHAIN}
    links = {
        f"{a} - {b}": estimate(by_unit(accuracy[a] - accuracy[b], runs[a][0])) for a, b in pairwise(CHAIN)
    }
    weakest = min(links.values(), key=lambda link: link.interval[0])
    each = [
        "{} {:+.2f} ± {:.2f} (s.e.) [{:+.2f}, {:+.2f}]".format(name, *link[:2], *link.interval)
        for name, link in links.items()
    ]
    if any(not run.get("final_before_ft") for arm in CHAIN for run in runs[arm]):
        each.append("some runs are scored without fine-tuning")
    statistic = "the paired difference whose interval reaches lowest, points"
    decided = verdict([*links.values()], level)
    return outcome(statistic, weakest, level, "; ".join(each), decided)


def in_steps(leads: Array, step: int) -> Estimate:
    """The mean of leads [seeds] between times that are known to a step, with no less than the error of rounding both.

    Else three seeds that agree to the round, as equal methods often do, would be taken for certainty.
    """
    one = two_way(leads[:, None])
    return one._replace(se=max(one.se, step / np.sqrt(6 * len(leads))))


@claim(
    "B2",
    "pfedmb-table1",
    CHAIN[:3],
    "Five pairs: pFedMB (eq. 5) reaches 99% of its own final accuracy sooner than eq. 6 and FedAvg: for good, for the first "
    "time, and in local work (Fig. 4)",
)
def faster(runs: Runs, level: float) -> ClaimResult:
    """How much later each of the others is at 99% of its own last value, three ways, of the rounds that all runs have.

    The curve after fine-tuning decides where every run kept it. Work counts in units of E epochs: pFedMB's clients train 2 E
    epochs a round, the others E, so that its lead in rounds is no lead in work. A last look at a rate of its own, which only
    the runs that end there have, is no point of a curve.
    """

    def point(entry: dict[str, Any], quantity: str) -> bool:
        return entry.get(quantity) is not None and not (quantity == "tuned_accuracy" and "factor" in entry)

    # quantity -> rounds at 99% for good, and for the first time, after which a curve may fall again [arms, seeds]; most rounds
    # from one evaluation to the next
    found: dict[str, tuple[Array, Array, int]] = {}
    for quantity in ("tuned_accuracy", "personal_accuracy"):
        curves = [
            [{r["round"]: r[quantity] for r in run["rounds"] if point(r, quantity)} for run in runs[arm]]
            for arm in CHAIN[:3]
        ]
        common = sorted(set.intersection(*(set(curve) for arm in curves for curve in arm)))
        if len(common) > 1:
            values = np.array([[[curve[at] for at in common] for curve in arm] for arm in curves])
            there, rounds = values >= 0.99 * values[..., -1:], np.array(common)
            stays = np.logical_and.accumulate(there[..., ::-1], -1)[..., ::-1]  # from here to the last round
            found[quantity] = rounds[stays.argmax(-1)], rounds[there.argmax(-1)], max(np.diff(rounds))
    if not found:
        raise NotTestable("the runs have no accuracy curve in common")
    decides, (for_good, first, watched) = next(iter(found.items()))
    work = np.array([2, 2, 1])[:, None] * for_good  # passes over the data, in units of E epochs
    ways = {
        "rounds for good": (for_good, 1),
        "rounds for the first time": (first, 1),
        "local work": (work, 2),
    }
    leads = {
        f"{way}, over {CHAIN[i]}": in_steps(late[i] - late[0], step * watched)
        for way, (late, step) in ways.items()
        for i in (1, 2)
    }
    names = {"tuned_accuracy": "after fine-tuning", "personal_accuracy": "before fine-tuning"}
    each = [
        f"{names[quantity]} "
        + ", ".join(f"{arm} {n:.1f}" for arm, n in zip(CHAIN, rounds.mean(1), strict=False))
        for quantity, (rounds, *_) in found.items()
    ]
    weakest, lead = max(leads.items(), key=lambda one: one[1].p_above())
    note = f"mean rounds {'; '.join(each)}; leads: " + ", ".join(
        f"{way} {one.value:+.1f}" for way, one in leads.items()
    )
    statistic = f"lead of eq. 5 in {weakest}, {names[decides]}"
    decided = verdict([*leads.values()], level)
    return outcome(statistic, lead, level, note, decided)


@claim(
    "B3",
    "pfedmb-table1",
    CHAIN[:1],
    "Five pairs, eq. 5: at the end both clients of every pair use the same branch and their alphas are "
    "closer than 0.2 in L1 distance, which those of different pairs on average are not (Fig. 3a; the threshold is ours)",
)
def twins_agree(runs: Runs, _: float) -> ClaimResult:
    """The largest L1 distance inside a pair, and equal argmax, per seed; alphas that never moved are no agreement."""
    pairs = [last_pairs(run) for run in runs["pfedmb"]]
    strangers = np.array([between(a.reshape(-1, a.shape[-1])) for a in pairs])  # [seeds]
    distance = np.array([apart(a) for a in pairs])  # [seeds, pairs]
    same = np.array([a[:, 0].argmax(-1) == a[:, 1].argmax(-1) for a in pairs])
    decided = by_seed(list(((distance < 0.2) & same).all(1) & (strangers >= 0.2)))
    note = (
        f"closer than 0.2 in {(distance < 0.2).sum()}, same branch in {same.sum()} of {same.size} pairs; "
        f"different pairs {strangers.min():.2f} apart on average, or more"
    )
    statistic = "largest L1 distance of alpha inside a pair"
    return ClaimResult(statistic, decided, float(distance.max()), threshold=0.2, note=note)


@claim(
    "B4",
    "pfedmb-table1",
    CHAIN[:1],
    "Five pairs, eq. 5: at the end the pairs use more different branches than if each pair chose one at random (Fig. 3a, where "
    "all five differ)",
)
def pairs_differ(runs: Runs, level: float) -> ClaimResult:
    """The number of different argmax branches of the pairs' mean alphas, over the seeds, against chance."""
    pairs = [last_pairs(run) for run in runs["pfedmb"]]
    used = [branches_used(a) for a in pairs]
    number, branches = pairs[0].shape[0], pairs[0].shape[-1]
    more, fewer = by_chance(used, number, branches)
    expected = branches * (1 - (1 - 1 / branches) ** number)
    decided = "held" if more < level else "failed" if fewer < level else "undecided"
    note = (
        f"branches used, by seed: {', '.join(map(str, used))}; all {number} pairs differ in {used.count(number)} of {len(used)}; "
        f"chance alone would do as well with probability {more:.2g}"
    )
    statistic = "different branches, mean of the seeds"
    return ClaimResult(statistic, decided, float(np.mean(used)), threshold=expected, note=note)


def by_chance(used: Sequence[int], pairs: int, branches: int) -> tuple[float, float]:
    """How likely pairs that choose branches at random use so many different ones or more, so many or fewer, in all seeds."""
    # how likely so many different branches are in one seed, before the first pair
    one = np.eye(1, pairs + 1)[0]
    count = np.arange(pairs + 1)
    for _ in range(pairs):
        one = one * count / branches + np.concatenate([[0.0], (one * (branches - count) / branches)[:-1]])
    total = np.ones(1)
    for _ in used:
        total = np.convolve(total, one)
    return float(total[sum(used) :].sum()), float(total[: sum(used) + 1].sum())


@claim(
    "B5",
    "pfedmb-table1",
    CHAIN[:2],
    "Five pairs, eq. 6: the pairs' alphas move apart more slowly than with eq. 5, and at the end at least two pairs share a "
    "branch (Fig. 3b)",
)
def plain_separates_less(runs: Runs, level: float) -> ClaimResult:
    """Distance between the pairs' mean alphas (mean over pairs of pairs and rounds), eq. 5 minus eq. 6, and eq. 6's branches."""
    excess, shared = [], []
    for weighted, plain in zip(runs["pfedmb"], runs["pfedmb-plain"], strict=True):
        a, b, pairs = alphas(weighted), alphas(plain), last_pairs(plain)
        common = sorted(set(a) & set(b))
        if len(common) < 2:
            raise NotTestable(f"seed {plain['seed']} kept alpha at fewer than two rounds in common")
        gaps = [between(a[at]) - between(b[at]) for at in common]
        excess.append(np.trapezoid(gaps, common) / (common[-1] - common[0]))
        shared.append(branches_used(pairs) < len(pairs))
    farther = two_way(np.array(excess)[:, None])
    parts = {verdict([farther], level, planned=2), by_seed(shared)}
    decided = "failed" if "failed" in parts else "undecided" if "undecided" in parts else "held"
    number, branches = pairs.shape[0], pairs.shape[-1]
    by_luck = 1 - by_chance([number], number, branches)[0]
    note = f"pairs share a branch under eq. 6 in {sum(shared)} of {len(shared)} seeds, and with random branches in {by_luck:.0%}"
    statistic = "distance between the pairs' alphas, eq. 5 minus eq. 6, mean over rounds"
    return outcome(statistic, farther, level, note, decided)


@claim(
    "B13",
    "pfedmb-table1",
    ("pfedmb", "fedavg"),
    "pFedMB sends B times FedAvg's floats in training (up: plus alpha), and its collapsed model is as large "
    "as FedAvg's (by construction)",
)
def sends_b_times(runs: Runs, _: float) -> ClaimResult:
    """Floats down and up of pFedMB over FedAvg's, at every round in which the same clients took part."""
    ratios, fits, branches = [], [], 0
    for ours, plain in zip(runs["pfedmb"], runs["fedavg"], strict=True):
        branches = last_pairs(ours).shape[-1]
        theirs = {r["round"]: r for r in plain["rounds"] if r["floats_down"]}
        for r in ours["rounds"]:
            other = theirs.get(r["round"])
            if other and other["clients"] == r["clients"]:
                ratios.append(r["floats_down"] / other["floats_down"])
                alpha = r["floats_up"] - branches * other["floats_up"]  # B or L*B a client: nearly nothing
                as_large = r["floats_down"] == branches * other["floats_down"]
                fits.append(as_large and 0 <= alpha <= branches * other["floats_up"] / 1000)
    if not ratios:
        raise NotTestable("no round of the two methods sent anything with the same clients")
    decided = "held" if all(fits) else "failed"
    note = f"one of the {branches} branches has FedAvg's floats in {sum(fits)} of {len(fits)} rounds"
    statistic = "floats down, pFedMB over FedAvg"
    return ClaimResult(statistic, decided, float(np.mean(ratios)), threshold=branches, note=note)


@claim(
    "B14",
    "pfedmb-table1",
    ("fedavg", "pfedmb"),
    "Fine-tuning adds more to FedAvg than to pFedMB (our addition: personalization apart from fine-tuning)",
)
def tuning_helps_fedavg_more(runs: Runs, level: float) -> ClaimResult:
    """(tuned - before) of FedAvg minus (tuned - before) of pFedMB, paired over pairs of clients and seeds."""
    gain = {arm: per_client(runs[arm]) - per_client(runs[arm], part="final_before_ft") for arm in runs}
    more = estimate(by_unit(gain["fedavg"] - gain["pfedmb"], runs["fedavg"][0]))
    note = ", ".join(f"{arm} gains {some.mean():+.2f}" for arm, some in gain.items())
    return outcome("gain by fine-tuning, FedAvg minus pFedMB, points", more, level, note)


linked(
    "B15",
    "pfedmb-table1",
    "Five pairs: pFedMB (eq. 5) is above FedAvg and above Local, all after fine-tuning (Table I; B1 without its inner links, "
    "added after B1 had been tested)",
    ahead("pfedmb-table1", "pfedmb", "fedavg", "local"),
)


METHODS = tuple(TABLE2_LABELS)
RIVALS = tuple(key for key in METHODS if key != "pfedmb")


@claim(
    "B6",
    "pfedmb-table2",
    {table2(setting): METHODS for setting in TABLE2_SETTINGS},
    "pFedMB has the best mean rank over the six settings (Table II)",
)
def best_mean_rank(runs: dict[str, Runs], level: float) -> ClaimResult:
    """Mean rank over the settings of the best rival minus pFedMB's, against methods that are all equal.

    Settings of one kind, with 15 and with 50 clients, share their search where runs are long: they are one block. So few blocks
    can refute the claim but not show that it holds.
    """
    if len(runs) < len(TABLE2_SETTINGS):
        raise NotTestable(f"a mean rank needs all {len(TABLE2_SETTINGS)} settings")
    scores = np.array([[np.nanmean(per_client(one[key])) for key in METHODS] for one in runs.values()])
    lost = np.array(
        [[any(diverged_in(run["rounds"]) for run in one[key]) for key in METHODS] for one in runs.values()]
    )
    kinds = [setting.rpartition("-")[0] for setting in TABLE2_SETTINGS]
    found = best_rank(np.where(lost, np.nan, scores), METHODS.index("pfedmb"), blocks=kinds)
    ranked = sorted(zip(METHODS, found.mean, strict=True), key=lambda one: one[1])
    note = (
        f"mean ranks: {', '.join(f'{key} {rank:.2f}' for key, rank in ranked)}; it is ahead of every rival with p = "
        f"{found.p_best:.2g} at most, and equal methods would be as far behind with p = {found.p_beaten:.2g}"
    )
    if (least := 0.5 ** len({*kinds})) >= level:
        note += (
            f"; so few kinds of settings cannot show it (p = {least:.2g} even for a method that leads in all)"
        )
    statistic = "mean rank of the best rival minus pFedMB's"
    return ClaimResult(statistic, found.verdict(level), found.lead, threshold=0.0, note=note)


linked(
    "B7",
    "pfedmb-table2",
    "Dirichlet, 50 clients: pFedMB is more than 1 point above every other method (Table II)",
    ahead(table2("dirichlet-50"), "pfedmb", *RIVALS, above=1.0),
)
linked(
    "B8",
    "pfedmb-table2",
    "Two random classes: FedAvg and FedProx, fine-tuned, are at most 1.1 points below pFedMB (Table II)",
    [
        difference((name, key), (name, "pfedmb"), above=-1.1)
        for name in map(table2, ("random2-15", "random2-50"))
        for key in ("fedavg", "fedprox")
    ],
)
linked(
    "B9",
    "pfedmb-table2",
    "FedFomo gains less than 1.4 points over Local with Dirichlet's labels and nothing on CIFAR-100, FedAMP at most 0.2 on "
    "CIFAR-100 with 50 clients (Table II)",
    [
        *ahead(map(table2, ("dirichlet-15", "dirichlet-50")), "local", "fedfomo", above=-1.4),
        *ahead(map(table2, ("cifar100-15", "cifar100-50")), "local", "fedfomo"),
        *ahead(table2("cifar100-50"), "local", "fedamp", above=-0.2),
    ],
)
linked(
    "B10",
    "pfedmb-table2",
    "Dirichlet's labels and CIFAR-100: fine-tuned FedAvg is above FedAMP, FedFomo and IFCA (Table II)",
    ahead(
        map(table2, ("dirichlet-15", "dirichlet-50", "cifar100-15", "cifar100-50")),
        *("fedavg", "fedamp", "fedfomo", "ifca"),
    ),
)

SCAN = tuple(f"b{number}" for number in BRANCHES)


@claim(
    "B11",
    "pfedmb-fig5",
    SCAN,
    "Two random classes, 50 clients: accuracy rises with the number of branches up to about 10 and falls after it (Fig. 5)",
)
def one_peak(runs: Runs, level: float) -> ClaimResult:
    """Accuracy at B = 10 minus that at either end; held needs one peak at 10, too."""
    accuracy = {key: per_client(runs[key]) for key in SCAN}
    ends = [estimate(accuracy["b10"] - accuracy[end]) for end in (SCAN[0], SCAN[-1])]
    nearer = min(ends, key=lambda end: end.value)
    means = [float(accuracy[key].mean()) for key in SCAN]
    peak = int(np.argmax(means))
    rises = np.diff(means) > 0
    single = SCAN[peak] == "b10" and rises[:peak].all() and not rises[peak:].any()
    decided = verdict(ends, level)
    note = ", ".join(f"{key} {mean:.2f}" for key, mean in zip(SCAN, means, strict=True))
    decided = "undecided" if decided == "held" and not single else decided
    return outcome("B = 10 minus the better end of the scan, points", nearer, level, note, decided)


def best_number(runs: Runs) -> tuple[int, Array]:
    """The number of branches with the best mean validation accuracy, and that of each draw of seeds and clients."""
    accuracy = np.array([[run["final"]["val_accuracy"] for run in runs[key]] for key in SCAN], dtype=float)
    accuracy = np.moveaxis(accuracy, 0, -1)  # [seeds, clients, numbers]
    numbers, means, drawn = np.array(BRANCHES), np.nanmean(accuracy, axis=(0, 1)), resampled(accuracy)
    return int(numbers[means.argmax()]), numbers[drawn.argmax(-1)]


@claim(
    "B12",
    "pfedmb-table3",
    {"pfedmb-fig5": SCAN, "pfedmb-table3-cifar100-50": SCAN},
    "50 clients: more branches are best with two random classes of CIFAR-10 than on CIFAR-100 (Table III)",
)
def fewer_on_cifar100(runs: dict[str, Runs], level: float) -> ClaimResult:
    """Best number of branches on CIFAR-10's two classes minus that on CIFAR-100, and how often it is so in draws of clients."""
    if len(runs) < 2:
        raise NotTestable("the two data sets must both be there")
    (here, drawn), (there, others) = (
        best_number(runs[name]) for name in ("pfedmb-fig5", "pfedmb-table3-cifar100-50")
    )
    sure = float((drawn > others).mean())
    decided = "held" if sure > 1 - level else "failed" if sure < level else "undecided"
    note = f"best on validation images: CIFAR-10 {here}, CIFAR-100 {there}; more on CIFAR-10 in {sure:.0%} of the draws"
    statistic = "best number of branches, CIFAR-10 minus CIFAR-100"
    return ClaimResult(statistic, decided, float(here - there), threshold=0.0, note=note)


# ---- what the paper's own numbers decide ----------------------------------------------------------------------


def sentences() -> Iterator[Sentence]:
    """Sentences of the paper beside its tables I to III."""
    row = printed_table("pFedMB", "I").iloc[0]
    eq5, eq6 = row["pFedMB"], row["pFedMB w/o alpha-weighted avg"]
    says = "pFedMB improves FedAvg and alpha-weighted averaging is effective"
    said = f"{eq5 - row['FedAvg']:+.2f} points against FedAvg, {eq5 - eq6:+.2f} against pFedMB without it; a mean of three runs, "
    yield "V-B", says, pd.Series([eq5 > row["FedAvg"], eq5 > eq6]), said + "without any standard deviation"

    numbers = printed_table("pFedMB", "II")
    behind = numbers.rsub(numbers.max(axis=1), axis=0)  # the best of a setting
    rank = numbers.rank(axis=1, ascending=False)["pFedMB"].astype(int)
    margin = numbers["pFedMB"] - numbers.drop(columns="pFedMB").max(axis=1)
    said = f"first in {count(rank == 1)}; ranks {listed(rank)}; the smallest lead is {margin[margin > 0].min():.2f} points, "
    says = "pFedMB is the best in almost all the settings"
    yield "V-C", says, rank == 1, said + "without any standard deviation"

    best, lost = numbers.iloc[[0, 4]].idxmax(axis=1), behind["pFedMB"].iloc[[0, 4]]
    says = (
        "Even in 15 clients with random 2 classes [...] and 15 clients setting using CIFAR100, pFedMB is comparable to the best "
        "methods FedAMP and pFedMe, respectively"
    )
    said = " and ".join(f"{name} by {points:.2f}" for name, points in zip(best, lost, strict=True))
    fits = (best == ["FedAMP", "pFedMe"]) & (lost < 1)
    yield "V-C", says, fits, f"behind {said} points (comparable: less than one point)"

    easy = numbers.index.str.contains("random 2 classes")
    other = behind.loc[~easy, ["FedAMP", "FedFomo"]]
    near: Any = other["FedAMP"].idxmin()
    low, high = (f"{value:.2f}" for value in (other["FedFomo"].min(), other["FedFomo"].max()))
    rivals = numbers.loc[near].drop(["Local", "FedAMP"])
    beaten = [str(name) for name in rivals.index[rivals < numbers.loc[near, "FedAMP"]]]
    says = "FedAMP and FedFomo do not perform well except in random 2 classes"
    said = f"FedFomo is {low} to {high} points behind the best there; but FedAMP is only {other.loc[near, 'FedAMP']:.2f} "
    fits = pd.Series((other > 1).to_numpy().ravel())
    yield "V-C", says, fits, said + f"behind in {near}, ahead of {' and '.join(beaten)}"

    here, elsewhere = (behind.loc[some, ["FedAvg", "FedProx"]].max() for some in (easy, ~easy))
    row = numbers.iloc[0]
    below = [f"{name} {row[name]:.2f}" for name in ("FedAvg", "FedProx") if row[name] < row["Local"]]
    says = "FedAvg and FedProx also perform well especially in random 2 classes"
    said = f"there at most {here['FedAvg']:.2f} and {here['FedProx']:.2f} points behind the best, elsewhere up to "
    said += f"{elsewhere['FedAvg']:.2f} and {elsewhere['FedProx']:.2f}"
    said += f"; with 15 clients {', '.join(below)} is below Local {row['Local']:.2f}" if below else ""
    yield "V-C", says, here < elsewhere, said

    worst, helps = behind.max().sort_values(), numbers["pFedMB"] > numbers["Local"]
    says = "pFedMB is the most balanced method that is effective in every setting"
    said = f"above Local in {count(helps)}; its largest distance to the best of a setting is {worst['pFedMB']:.2f} points, "
    said += f"that of {worst.index[1]}, the next, {worst.iloc[1]:.2f}"
    yield "V-C", says, pd.Series([worst.index[0] == "pFedMB", *helps]), said

    branches = printed_table("pFedMB", "III")["pFedMB"].astype(int)  # tuned
    yield "V-D", "the required number of branches is at most 10", branches <= 10, listed(branches)

    many = branches.index.str.contains("CIFAR100")
    few, more = branches[many], branches[~many]
    says = "[CIFAR100, with more classes shared among clients,] results in fewer branches"
    yield "V-D", says, few < more.min(), f"{listed(few)} against {listed(more)}"


def listed(numbers: pd.Series) -> str:
    """Numbers as a sentence lists them."""
    return ", ".join(map(str, numbers))
