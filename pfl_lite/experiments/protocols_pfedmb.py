"""pFedMB's tables I to III and figure 5, as data."""

from __future__ import annotations

from dataclasses import replace

from pfl_lite.experiments.experiment import NEXT, Arm, Experiment, Settings, crossed, printed

SHARED_ALPHA = {"branches": 5, "alpha_scope": "shared"}
PLAIN_RATES = tuple({"lr": lr} for lr in (0.02, 0.05, 0.1))
BRANCH_RATES = tuple({"lr": lr, "alpha_lr": alpha_lr} for lr, alpha_lr in ((0.1, 0.1), (0.1, 0.3)))
THIRD_RATES = (
    {"lr": 0.05, "alpha_lr": 0.1},
)  # so that with the paper's budget every search has three candidates
CONVERGED = {10: 100, 15: 100, 50: 300}  # clients: rounds that stand for the paper's "until convergence"
PAPER_SEARCH_ROUNDS = 20


def length(rounds: int) -> str:
    """The first deviation of each of these experiments."""
    return f"Rounds: the paper trains until convergence and does not say how long; we train {rounds} rounds."


def table1_deviations(rounds: int, searched: int, candidates: str) -> tuple[str, ...]:
    """Where Table I leaves the paper."""
    return (
        length(rounds),
        "Learning rates, momentum and weight decay are not stated in the paper: plain SGD here, the rates chosen on the clients' "
        f"validation images after {searched} rounds of another seed (100), {candidates}; the row without alpha-weighting takes "
        "the rates of the row with it, so that only the aggregation differs (rates of its own might serve it better); "
        f"{NEXT}.",
        "How alpha stays on the simplex is not stated: softmax of logits that start at 0.",
        "Fine-tuning is not specified: each method's own client routine once more, E = 5 epochs (pFedMB: 5 on alpha, 5 on W).",
        "Normalisation is not stated: per-channel mean and standard deviation of CIFAR-10, no augmentation.",
        "Participation is not stated for this table: all ten clients train in every round.",
        "Local trains as many epochs as FedAvg's clients (rounds x E) instead of until convergence.",
        "pFedMB's clients train 2 E epochs a round (E on alpha, E on W), as in the paper: twice the others' local work.",
    )


def table1_arms(branch_rates: tuple[Settings, ...]) -> tuple[Arm, ...]:
    """The rows of Table I."""
    return (
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
            "pfedmb", "pfedmb", "pFedMB (eq. 5)", printed("pFedMB", "I", "pFedMB"), branch_rates, SHARED_ALPHA
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
    arms=table1_arms(BRANCH_RATES),
    paper_table="pFedMB, Table I",
    metric="unweighted mean over clients of test accuracy after fine-tuning (%)",
    deviations=table1_deviations(
        30, 5, "three candidates for Local and FedAvg, two pairs of rates for pFedMB"
    ),
    paper_budget={
        "rounds": CONVERGED[10],
        "arms": table1_arms(BRANCH_RATES + THIRD_RATES),
        "search_rounds": PAPER_SEARCH_ROUNDS,
        "deviations": table1_deviations(CONVERGED[10], PAPER_SEARCH_ROUNDS, "three candidates a method"),
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
    own: dict[str, Settings] = {"pfedmb": {"branches": branches, "rate": "effective"}}
    arms = tuple(
        Arm(key, key, label, printed("pFedMB", "II", label, words), TABLE2_GRIDS[key], own.get(key, {}))
        for key, label in TABLE2_LABELS.items()
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
        deviations=table2_deviations(rounds, 5, branches, shared=clients == 15),
        ft_every=0,
        eval_every=5,
        searched_in=f"pfedmb-table2-{setting.replace('-15', '-50')}" if clients == 15 else None,
        paper_budget={
            "rounds": CONVERGED[clients],
            "search_rounds": PAPER_SEARCH_ROUNDS,
            "searched_in": None,
            "deviations": table2_deviations(CONVERGED[clients], PAPER_SEARCH_ROUNDS, branches, shared=False),
        },
    )


def table2_deviations(rounds: int, searched: int, branches: int, *, shared: bool) -> tuple[str, ...]:
    """Where a column of Table II leaves the paper; `shared`: the settings are those of the setting with 50 clients."""
    return (
        length(rounds),
        "Learning rates and each method's own settings are not stated: plain SGD here, four candidates a method, chosen on "
        f"the clients' validation images after {searched} rounds of another seed (100)"
        + (", with 50 clients; the same choice serves 15 clients" if shared else "")
        + f"; {NEXT}.",
        f"pFedMB has the number of branches that the paper found best in this setting (Table III: {branches}), which the "
        "paper searched and we do not; every layer has an alpha of its own.",
        "pFedMB's step on the branches is divided by the sum of the squares of alpha, so that its mixed layers move at the "
        "chosen rate: with B branches of equal weight they would move at a B-th of it, and with these rates, ten branches and "
        "50 clients all four candidates were still at 50 % on validation images after five rounds (a search that the ledger "
        "does not hold).",
        "pFedMB's clients train 2 E epochs a round, alpha and then the branches, as the paper has it; the others train E.",
        "pFedMe: lam = 15, K = 5; IFCA: two or five clusters; FedFomo: 5 or 10 models; FedAMP: lam = 0.1 or 1; "
        "FedProx: mu = 0.01 or 0.1; FedPer: the last layer is private. A method with a setting of its own tries two values of it "
        "with two rates, the others four rates.",
        "Two classes a client: every class has as many holders as any other. Dirichlet: a client that has its share of the "
        "images gets no more, as in PFNM's code, and each has at least ten.",
        "Fine-tuning is not specified: each method's own client routine once more, E = 5 epochs.",
        "Normalisation is not stated: per-channel mean and standard deviation, no augmentation.",
        "Local's clients train when they are sampled, as many epochs as FedAvg's, instead of until convergence.",
    )


BRANCHES = (2, 5, 10, 20)
MORE_BRANCHES = (2, 3, 5, 6, 7, 10, 15, 20)


def branches_name(setting: str) -> str:
    """What the scan over numbers of branches is called in a setting; in the one that the paper draws it is Fig. 5."""
    return "pfedmb-fig5" if setting == "random2-50" else f"pfedmb-table3-{setting}"


def pfedmb_branches(setting: str) -> Experiment:
    """pFedMB with several numbers of branches in a setting of Table II: Fig. 5, and what Table III is chosen from."""
    base, best, words = pfedmb_table2(setting), TABLE2_SETTINGS[setting][4], TABLE2_SETTINGS[setting][3]
    shown = base.arm("pfedmb").paper

    def arms(candidates: tuple[int, ...]) -> tuple[Arm, ...]:
        return tuple(
            Arm(
                f"b{number}",
                "pfedmb",
                f"B = {number}",
                shown if number == best else None,
                (),
                {"branches": number, "rate": "effective"},
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
        arms=arms(BRANCHES),
        paper_table="pFedMB, Fig. 5" if setting == "random2-50" else "pFedMB, Table III",
        seeds=(0,),
        searched_in=base.name,
        deviations=(length(base.rounds), *deviations),
        paper_budget=base.paper_budget
        | {
            "arms": arms(MORE_BRANCHES),
            "seeds": base.seeds,
            "searched_in": base.name,
            "deviations": (length(CONVERGED[base.clients]), *deviations),
        },
    )


PFEDMB = (PFEDMB_TABLE1, *map(pfedmb_table2, TABLE2_SETTINGS), *map(pfedmb_branches, TABLE2_SETTINGS))
