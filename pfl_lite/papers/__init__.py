"""Every table and figure of the papers that we run, by name; a table of several settings is a group of experiments."""

from __future__ import annotations

from pfl_lite.errors import InputError, one_of
from pfl_lite.papers import fedmn, pfedmb
from pfl_lite.papers.experiment import BUDGETS, DEFAULT_BUDGET, Arm, Experiment, Settings, paper_tables
from pfl_lite.papers.fedmn import FEDMN
from pfl_lite.papers.pfedmb import PFEDMB, PFEDMB_TABLE1, TABLE2_SETTINGS
from pfl_lite.papers.pflmoe import ALL, PFLMOE, pflmoe
from pfl_lite.papers.pflmoe import sentences as pflmoe_sentences
from pfl_lite.papers.scenarios import SCENARIOS, WHEN

__all__ = [
    "BUDGETS", "DEFAULT_BUDGET", "EXPERIMENTS", "GROUPS", "LONG", "PFEDMB_TABLE1", "PROPOSED", "SCENARIOS", "SENTENCES",
    "TABLE2_SETTINGS", "Arm", "Experiment", "Settings", "every_budget", "get_experiment", "home_of", "members", "paper_tables",
    "pflmoe", "stand_ins",
]  # fmt: skip

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment for experiment in (*PFEDMB, *FEDMN, *PFLMOE, *WHEN)
}

GROUPS: dict[str, tuple[str, ...]] = {
    "pfedmb-table2": tuple(map(pfedmb.table2, TABLE2_SETTINGS)),
    "pfedmb-table3": tuple(map(pfedmb.branches_name, TABLE2_SETTINGS)),
    "pfedmb-fig3": ("pfedmb-table1",),
    "pfedmb-fig4": ("pfedmb-table1",),
    "fedmn-table2": tuple(map(fedmn.table2, ("cifar10", "cifar100", "emnist", "femnist"))),
    "fedmn-fig2": tuple(map(fedmn.fig2_name, ("emnist", "cifar10"))),
    "pflmoe-tables": ALL,
    "pflmoe-fig1": ALL,
    "pflmoe-fig2": ALL,
    "pflmoe-fig3": ("pflmoe-fmnist-lenet-0.9",),
    "pflmoe-fig4": ("pflmoe-cifar10-lenet-0.9",),
    "pflmoe-fig5": ("pflmoe-cifar10-vgg16-2",),
}
"""What goes by one name in a paper and is made of the runs of other experiments: a table of several settings, a figure."""

SENTENCES = {"pFedMB": pfedmb.sentences, "FedMN": fedmn.sentences, "PFL-MoE": pflmoe_sentences}
"""What each paper says that its own printed numbers decide."""

PROPOSED = ("pfedmb", "fedmn", "pfl_mf", "pfl_mfe")
"""The methods that the papers propose: a table says their place in its order."""

LONG = ("pfedmb-table2",)
"""Groups of which every row has run with the paper's budget, so that their claims are told from it."""

LISTED = "`pfl-lite experiments` lists them all"


def every_budget() -> list[Experiment]:
    """All experiments, each with every budget that it has."""
    some = EXPERIMENTS.values()
    return [one.at(budget) for one in some for budget in BUDGETS if budget == one.budget or one.paper_budget]


def get_experiment(name: str, budget: str = DEFAULT_BUDGET) -> Experiment:
    """An experiment by name, with one of its budgets.

    Raises:
        InputError: an unknown name or budget, a group of experiments, or an experiment without that budget.
    """
    if name in GROUPS:
        raise InputError(f"{name} is a group of experiments: take one of them ({', '.join(GROUPS[name])})")
    return EXPERIMENTS[one_of("experiment", name, EXPERIMENTS, LISTED)].at(budget)


def home_of(experiment: Experiment, arm: Arm) -> tuple[Experiment, Arm]:
    """The experiment that makes an arm's runs, and the arm there: its own, or the one whose runs it shows."""
    if arm.run_of is None:
        return experiment, arm
    home = get_experiment(arm.run_of, experiment.budget)
    return home, home.arm(str(arm.rates_of))


def stand_ins(group: str) -> tuple[str, ...]:
    """Experiments named after a group that are not of it: what stands in for its data or networks; none of a single one."""
    there = GROUPS.get(group, ())
    return tuple(name for name in EXPERIMENTS if there and name.startswith(f"{group}-") and name not in there)


def members(name: str) -> tuple[str, ...]:
    """The experiments that a name stands for: those of a group, or itself; raises InputError for an unknown name."""
    return GROUPS.get(one_of("experiment", name, [*EXPERIMENTS, *GROUPS], LISTED), (name,))
