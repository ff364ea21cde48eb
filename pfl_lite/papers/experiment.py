"""What an experiment is: partition, budgets, arms, grids, deviations, and the papers' printed numbers."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

from pfl_lite.errors import InputError, one_of

Settings = dict[str, Any]
BUDGETS = ("small", "paper")
DEFAULT_BUDGET = "small"
NEXT = (
    "a result in which a client's weights stop being finite numbers is started again with the next best candidate, "
    "and a candidate with such weights is chosen last"
)


def stored_folder() -> Path:
    """Where printed numbers, results and measurements lie: `data` of the repository, or where the package was installed
    without one, of the working folder.
    """
    here = Path(__file__).resolve().parents[2] / "data"
    return here if (here / "paper_tables.csv").is_file() else Path("data")


@cache
def paper_tables() -> tuple[dict[str, str], ...]:
    """The papers' printed numbers, one row a cell of a table (`paper_tables.csv`); empty if the file is not here."""
    path = stored_folder() / "paper_tables.csv"
    if not path.is_file():
        return ()
    with path.open(encoding="utf-8", newline="") as opened:
        return tuple(csv.DictReader(opened))


def printed(paper: str, table: str, method: str, setting: str = "", **where: str) -> float | None:
    """A number as the paper prints it, in percent: the first row that fits; None if the numbers are not at hand.

    `setting`: a part of what that column of the file holds; `where`: other columns, e.g. `dataset="CIFAR10"`.
    """
    wanted = {"paper": paper, "table": table, "method": method} | where
    for row in paper_tables():
        if setting in row["setting"] and wanted.items() <= row.items():
            return float(row["value_percent"])
    return None


@dataclass(frozen=True)
class Arm:
    """One row of a table: a method with fixed settings, and the grid that is searched on validation data."""

    key: str
    """What files and commands call it (`reproduce --methods`): the method, or the method and what tells it from its others."""
    method: str
    label: str
    """What tables call it."""
    paper: float | None
    """The paper's number for it in percent; None: the paper has no such row."""
    grid: tuple[Settings, ...]
    """The candidates; none where everything is fixed or taken over."""
    settings: Settings = field(default_factory=dict)
    ladders: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    """Setting -> its values in order: where the search goes on from the grid (`climbed`), in steps to the next value."""
    rates_of: str | None = None
    """Key of the arm whose chosen settings it takes over, and then has no grid: of the same experiment, of the one that searches
    (`searched_in`), or of `run_of`."""
    trained_by: str | None = None
    """Key of that arm where it takes over the training, too, and differs only in what clients do after the last round."""
    run_of: str | None = None
    """Name of the experiment with that arm where its runs are the same, and made there."""
    rounds: int | None = None
    """Rounds, where this arm is not trained for as many as the others."""
    search: Settings = field(default_factory=dict)
    """What its short search does otherwise than its results."""
    papers: dict[str, float | None] = field(default_factory=dict)
    """The printed numbers of an experiment with several measures; `paper` is that of the first."""


@dataclass(frozen=True)
class Experiment:
    """One table or figure: what is trained on what, for how long, and beside which printed numbers it is put.

    What has the name of a run's setting (`pfl_lite.config.RunConfig`) is that setting of every arm; `common` holds further ones.
    """

    name: str
    title: str
    data: str
    partition: str
    clients: int
    rounds: int
    epochs: int
    batch_size: int
    arms: tuple[Arm, ...]
    deviations: tuple[str, ...]
    participation: float = 1.0
    model: str = "lenet"
    ft_every: int = 0
    patience: int = 0
    """Rounds without a better validation accuracy after which a result ends; 0: every result has all its rounds."""
    ft_epochs: int | None = None
    """Epochs of fine-tuning after the last round; None stands for each method's own default."""
    eval_every: int = 1
    seeds: tuple[int, ...] = (0, 1, 2)
    search_rounds: int = 5
    search_seed: int = 100
    candidates: tuple[int, int] = (0, 0)
    """How many candidates an arm with ladders tries, and how many at most while its best stands at the edge of what was tried."""
    searched_in: str | None = None
    """Name of the experiment on the same data whose chosen settings this one takes over; it then searches nothing."""
    common: Settings = field(default_factory=dict)
    """What else all arms share."""
    measures: dict[str, str] = field(default_factory=lambda: {"test_accuracy": ""})
    """What is compared with the paper: names in a run's `final`, and what a table calls them."""
    drawn: bool = False
    """Whether the paper draws it and prints no number."""
    stands_in: str = ""
    """What is not the paper's and moves the numbers themselves (another network): no row is then more than a trend."""
    next_candidate: bool = True
    """Whether a result whose weights stop being finite numbers is started again with the next best candidate of its search."""
    unavailable: bool = False
    """Whether the data could not be had where the ledger was made: rows without a run say so and how to run them."""
    budget: str = DEFAULT_BUDGET
    """`small`: what two CPU cores do in hours; `paper`: what the paper spent."""
    paper_budget: Settings = field(default_factory=dict)
    """The fields that differ with the paper's budget; partition, model and comparison are not among them."""

    def at(self, budget: str) -> Experiment:
        """The same experiment with another budget, under a name of its own, so that the ledger keeps the two apart.

        Raises:
            InputError: an unknown budget, or the experiment has only one.
        """
        if one_of("budget", budget, BUDGETS) == self.budget:
            return self
        if not self.paper_budget:
            raise InputError(
                f"{self.name} is no paper's table: it has only one budget, leave --budget-name out"
            )
        changed = self.paper_budget | {"name": f"{self.name}-{budget}", "budget": budget, "paper_budget": {}}
        return replace(self, **changed)

    def rounds_of(self, arm: Arm) -> int:
        """For how many rounds an arm is trained."""
        return self.rounds if arm.rounds is None else arm.rounds

    def search_rounds_of(self, arm: Arm) -> int:
        """For how many rounds an arm's candidates are trained."""
        return int(arm.search.get("rounds", self.search_rounds))

    def scored(self, arm: Arm, candidate: Settings) -> bool:
        """Whether a stored candidate of an arm was trained for the protocol's rounds and with its seed."""
        wanted = {"rounds": self.search_rounds_of(arm), "seed": self.search_seed}
        return wanted.items() <= candidate.items()

    def command(self, methods: str, seeds: str = "") -> str:
        """What to type to train some arms (keys, separated by commas), or all."""
        words = [f"pfl-lite reproduce {self.name.removesuffix(f'-{self.budget}')}"]
        words += [f"--methods {methods}"] if methods else []
        words += [f"--seeds {seeds}"] if seeds else []
        words += [f"--budget-name {self.budget}"] if self.budget != DEFAULT_BUDGET else []
        return " ".join(words)

    @property
    def heading(self) -> str:
        """Title and budget, as a table says them."""
        lengths = f"{either(map(self.rounds_of, self.arms))} rounds"
        if self.patience:
            lengths = f"until validation accuracy has not risen for {self.patience} rounds, {lengths} at most"
        spent = f"{lengths}, {len(self.seeds)} seed{'s' * (len(self.seeds) > 1)} planned"
        return f"{self.title}; {self.budget} budget ({spent})"

    def settings(self, seed: int, rounds: int) -> Settings:
        """The settings that all arms share, as `make_config` takes them."""
        names = ("data", "model", "partition", "clients", "epochs", "batch_size", "participation", "ft_every")
        found: Settings = {name: getattr(self, name) for name in (*names, "eval_every", "patience")}
        found |= {"seed": seed, "rounds": rounds}
        found |= {} if self.ft_epochs is None else {"ft_epochs": self.ft_epochs}
        return found | self.common

    def arm(self, key: str) -> Arm:
        """One arm by its key; raises InputError for an unknown one."""
        arms = {arm.key: arm for arm in self.arms}
        return arms[one_of(f"row of {self.name}", key, arms)]


def own_names(names: Sequence[str]) -> list[str]:
    """What tells some experiments' names from one another: without the words with which all of them begin."""
    words = zip(*(name.split("-")[:-1] for name in names), strict=False)
    same = "".join(f"{each[0]}-" for each in takewhile(lambda each: len({*each}) == 1 < len(each), words))
    return [name.removeprefix(same) for name in names]


def either(numbers: Iterable[int]) -> str:
    """The different ones among some numbers, in order: `300 or 1000`."""
    return " or ".join(map(str, sorted(set(numbers))))


def crossed(rates: tuple[Settings, ...], **choices: tuple[Any, ...]) -> tuple[Settings, ...]:
    """Every rate with every value of one more setting: `crossed(({"lr": 0.05}, {"lr": 0.1}), mu=(0.01, 0.1))`."""
    ((name, values),) = choices.items()
    return tuple(rate | {name: value} for value in values for rate in rates)


def in_grid_order(grid: Iterable[Settings], candidates: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The candidates of a grid in its order, not in the order in which workers finished them."""
    return [one for settings in grid for one in candidates if one["settings"] == settings]


def best_first(candidate: dict[str, Any]) -> tuple[bool, float]:
    """What candidates are sorted by: validation accuracy, the best first, and those that diverged last."""
    return "diverged" in candidate, -candidate["validation_accuracy"]


def climbed(arm: Arm, scored: Sequence[dict[str, Any]], candidates: tuple[int, int]) -> tuple[Settings, ...]:
    """An arm's candidates as far as they are known: its grid, and then, one after another, neighbors of the best.

    Once all so far are scored, the next is one step along a ladder from the best candidate that has an untried neighbor, until
    as many have been tried as the first of `candidates` says; then only from the best of all, along a ladder on which it stands
    at the edge of what was tried, up to the second number. `scored` candidates count if they are among these. The order of the
    steps follows from the scores alone, so a search that was stopped goes on.
    """
    tried = list(arm.grid)
    wanted, most = candidates
    while arm.ladders:
        known = in_grid_order(tried, scored)
        if len(known) < len(tried) or len(tried) >= most:
            break
        ranked = [dict(one["settings"]) for one in sorted(known, key=best_first)]
        within = len(tried) < wanted
        steps = (
            step
            for settings in (ranked if within else ranked[:1])
            for step in _steps(arm, settings, None if within else ranked)
            if step not in tried
        )
        following = next(steps, None)
        if following is None:
            break
        tried.append(following)
    return tuple(tried)


def _steps(arm: Arm, settings: Settings, among: Sequence[Settings] | None) -> Iterator[Settings]:
    """One step up or down each ladder; with some settings given, only where these lie on one side of the step's start."""
    for name, rungs in arm.ladders.items():
        at = rungs.index(settings[name])
        for to in (at + 1, at - 1):
            tried = [] if among is None else [rungs.index(one[name]) for one in among]
            beyond = not any((other - at) * (to - at) > 0 for other in tried)
            if 0 <= to < len(rungs) and beyond:
                yield settings | {name: rungs[to]}
