"""pFedMB's tables I to III and figure 5, as data."""

from __future__ import annotations

from dataclasses import replace

from pfl_lite.experiments.experiment import NEXT, Arm, Experiment, Settings, crossed, printed

SHARED_ALPHA = {"branches": 5, "alpha_scope": "shared"}
PLAIN_RATES = tuple({"lr": lr} for lr in (0.02, 0.05, 0.1))
BRANCH_RATES = tuple({"lr": lr, "alpha_lr": alpha_lr} for lr, alpha_lr in ((0.1, 0.1), (0.1, 0.3)))

# The paper's budget, "until convergence": the most rounds by number of clients, and when a run is looked at and ends before.
LONGEST = {10: 100, 15: 100, 50: 300}
LOOKED_AT = {15: {"ft_every": 5, "patience": 15}, 50: {"ft_every": 20, "patience": 60}}
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
    "until six have been tried, and on to nine while the best stands at the edge of what was tried; 20 rounds of another "
    "seed (100) on the clients' validation images"
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


def table1_deviations(rounds: int, chosen: str, tuned: str) -> tuple[str, ...]:
    """Where Table I leaves the paper; `chosen`: how settings are, `tuned`: how clients fine-tune."""
    return (
        length(rounds),
        f"{chosen}; the row without alpha-weighting takes "
        "the rates of the row with it, so that only the aggregation differs (rates of its own might serve it better); "
        f"{NEXT}.",
        "How alpha stays on the simplex is not stated: softmax of logits that start at 0.",
        tuned,
        "Normalisation is not stated: per-channel mean and standard deviation of CIFAR-10, no augmentation.",
        "Participation is not stated for this table: all ten clients train in every round.",
        "Local trains as many epochs as FedAvg's clients (rounds x E) instead of until convergence.",
        "pFedMB's clients train 2 E epochs a round (E on alpha, E on W), as in the paper: twice the others' local work.",
    )


def table1_arms(plain: Settings, branched: Settings) -> tuple[Arm, ...]:
    """The rows of Table I, with how the rates of both kinds of methods are searched."""
    return (
        Arm("local", "local", "Local", printed("pFedMB", "I", "Local"), **plain),
        Arm("fedavg", "fedavg", "FedAvg", printed("pFedMB", "I", "FedAvg"), **plain),
        Arm(
            "pfedmb-plain",
            "pfedmb",
            "pFedMB without alpha-weighting (eq. 6)",
            printed("pFedMB", "I", "pFedMB w/o alpha-weighted avg"),
            (),
            settings=SHARED_ALPHA | {"aggregation": "plain"},
            rates_of="pfedmb",
        ),
        Arm(
            "pfedmb",
            "pfedmb",
            "pFedMB (eq. 5)",
            printed("pFedMB", "I", "pFedMB"),
            settings=SHARED_ALPHA,
            **branched,
        ),
    )


PFEDMB_TABLE1 = Experiment(
    name="pfedmb-table1",
    title="pFedMB, Table I: five pairs of clients on CIFAR-10",
    data="cifar10",
    partition="pairs",
    clients=10,
    rounds=30,
    epochs=5,
    batch_size=64,
    arms=table1_arms({"grid": PLAIN_RATES}, {"grid": BRANCH_RATES}),
    paper_table="pFedMB, Table I",
    metric="unweighted mean over clients of test accuracy after fine-tuning (%)",
    deviations=table1_deviations(
        30,
        "Learning rates, momentum and weight decay are not stated in the paper: plain SGD here, the rates chosen on the clients' "
        "validation images after 5 rounds of another seed (100), three candidates for Local and FedAvg, two pairs of rates for "
        "pFedMB",
        "Fine-tuning is not specified: each method's own client routine once more, E = 5 epochs (pFedMB: 5 on alpha, 5 on W).",
    ),
    paper_budget=SEARCHED
    | {
        "rounds": LONGEST[10],
        "arms": table1_arms(climbing(), BRANCH_SEARCH),
        "deviations": table1_deviations(LONGEST[10], CLIMB, TUNED),
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
# name: data set, partition, clients, how the printed table says it, B of table III, rounds
TABLE2_SETTINGS = {
    "random2-15": ("cifar10", "classes:2", 15, "random 2 classes; 15", 6, 10),
    "random2-50": ("cifar10", "classes:2", 50, "random 2 classes; 50", 10, 30),
    "dirichlet-15": ("cifar10", "dirichlet:0.4", 15, "Dirichlet 0.4; 15", 7, 10),
    "dirichlet-50": ("cifar10", "dirichlet:0.4", 50, "Dirichlet 0.4; 50", 6, 30),
    "cifar100-15": ("cifar100", "shares:20:0.3:0.7", 15, "random 20 classes, different sizes; 15", 3, 10),
    "cifar100-50": ("cifar100", "shares:20:0.3:0.7", 50, "random 20 classes, different sizes; 50", 3, 30),
}

TABLE2_LABELS = {
    "local": "Local", "fedavg": "FedAvg", "fedprox": "FedProx", "fedper": "FedPer", "pfedme": "pFedMe",
    "ifca": "IFCA", "fedfomo": "FedFomo", "fedamp": "FedAMP", "pfedmb": "pFedMB",
}  # fmt: skip


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

    follows = f"pfedmb-table2-{setting.replace('-15', '-50')}" if clients == 15 else None
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
        arms=arms({key: {"grid": grid} for key, grid in TABLE2_GRIDS.items()}, {"rate": "effective"}),
        paper_table="pFedMB, Table II",
        metric="unweighted mean over clients of test accuracy after fine-tuning (%)",
        deviations=table2_deviations(
            length(rounds),
            "Learning rates and each method's own settings are not stated: plain SGD here, four candidates a method, chosen on "
            "the clients' validation images after 5 rounds of another seed (100)",
            branches,
            "pFedMB's step on the branches is divided by the sum of the squares of alpha, so that its mixed layers move at the "
            "chosen rate: with B branches of equal weight they would move at a B-th of it, and with these rates, ten branches "
            "and 50 clients all four candidates were still at 50 % on validation images after five rounds (a search that the "
            "ledger does not hold).",
            "pFedMe: lam = 15, K = 5; IFCA: two or five clusters; FedFomo: 5 or 10 models; FedAMP: lam = 0.1 or 1; "
            "FedProx: mu = 0.01 or 0.1; FedPer: the last layer is private. A method with a setting of its own tries two values "
            "of it with two rates, the others four rates.",
            "Fine-tuning is not specified: each method's own client routine once more, E = 5 epochs.",
            shared=clients == 15,
        ),
        ft_every=0,
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
    clients fine-tune; an empty one is left out.
    """
    said = (
        rounds,
        chosen + (", with 50 clients; the same choice serves 15 clients" if shared else "") + f"; {NEXT}.",
        f"pFedMB has the number of branches that the paper found best in this setting (Table III: {branches}), which the "
        "paper searched and we do not; every layer has an alpha of its own.",
        step,
        "pFedMB's clients train 2 E epochs a round, alpha and then the branches, as the paper has it; the others train E.",
        own,
        "Two classes a client: every class has as many holders as any other. Dirichlet: a client that has its share of the "
        "images gets no more, as in PFNM's code, and each has at least ten.",
        tuned,
        "Normalisation is not stated: per-channel mean and standard deviation, no augmentation.",
        "Local's clients train when they are sampled, as many epochs as FedAvg's, instead of until convergence.",
    )
    return tuple(filter(None, said))


BRANCHES = (2, 5, 10, 20)
MORE_BRANCHES = (2, 3, 5, 6, 7, 10, 15, 20)


def branches_name(setting: str) -> str:
    """What the scan over numbers of branches is called in a setting; in the one that the paper draws it is Fig. 5."""
    return "pfedmb-fig5" if setting == "random2-50" else f"pfedmb-table3-{setting}"


def pfedmb_branches(setting: str) -> Experiment:
    """pFedMB with several numbers of branches in a setting of Table II: Fig. 5, and what Table III is chosen from."""
    base, best, words = pfedmb_table2(setting), TABLE2_SETTINGS[setting][4], TABLE2_SETTINGS[setting][3]
    shown = base.arm("pfedmb").paper

    def arms(candidates: tuple[int, ...], branched: Settings) -> tuple[Arm, ...]:
        return tuple(
            Arm(
                f"b{number}",
                "pfedmb",
                f"B = {number}",
                shown if number == best else None,
                (),
                {"branches": number} | branched,
                rates_of="pfedmb",
                run_of=base.name if number == best else None,
            )
            for number in sorted({*candidates, best})
        )

    deviations = (
        f"The learning rates are those chosen for B = {best}, the paper's best, whose run is that of Table II; {NEXT}, "
        "and the other numbers of branches follow.",
        "B is compared on validation images, each row's accuracy on test images.",
    )
    return replace(
        base,
        name=branches_name(setting),
        title=f"pFedMB, {'Fig. 5' if setting == 'random2-50' else 'Table III'}: numbers of branches, "
        f"{words.replace('; ', ', ')} clients",
        arms=arms(BRANCHES, {"rate": "effective"}),
        paper_table="pFedMB, Fig. 5" if setting == "random2-50" else "pFedMB, Table III",
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


PFEDMB = (PFEDMB_TABLE1, *map(pfedmb_table2, TABLE2_SETTINGS), *map(pfedmb_branches, TABLE2_SETTINGS))
