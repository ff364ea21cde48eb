"""What is left to train of an experiment, from its protocol and the ledger; nothing is written here."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pfl_lite.config import RunConfig, make_config
from pfl_lite.errors import InputError
from pfl_lite.papers import Arm, Experiment, Settings, get_experiment
from pfl_lite.papers.experiment import best_first, climbed, in_grid_order
from pfl_lite.results.ledger import Ledger, Run, flat

Key = tuple[str, int, int | None]


@dataclass(frozen=True)
class Task:
    """One training run: a result (`candidate` is None) or one candidate of an arm's search."""

    experiment: str
    arm: str
    seed: int
    config: RunConfig
    candidate: int | None = None
    trained_by: tuple[Path, RunConfig] | None = None
    """Checkpoint and configuration of a finished run whose training it takes over, if that checkpoint is still there."""
    attempt: int | None = None
    """Number of the attempt, where another candidate takes over should this one diverge; it then ends with that round."""

    @property
    def key(self) -> Key:
        """What tells it from the others."""
        return self.arm, self.seed, self.candidate

    @property
    def title(self) -> str:
        """What a progress line calls it."""
        return title(*self.key)


def title(arm: str, seed: int, candidate: int | None) -> str:
    """What a progress line calls a run."""
    return f"{arm} seed {seed}" if candidate is None else f"{arm} candidate {candidate}"


class Plan:
    """The tasks of one experiment that the ledger does not answer yet, in the order in which they are worth most.

    Of all its arms, seeds and rounds, unless some are given.
    """

    def __init__(
        self,
        experiment: Experiment,
        ledger: Ledger,
        arms: Sequence[Arm] | None = None,
        seeds: Sequence[int] | None = None,
        rounds: int | None = None,
        device: str = "cpu",
        tf32: bool = False,
    ) -> None:
        self.experiment, self.ledger, self.rounds = experiment, ledger, rounds
        self.seeds = experiment.seeds if seeds is None else seeds
        # the others are trained by another experiment
        self.arms = [arm for arm in (experiment.arms if arms is None else arms) if arm.run_of is None]
        self.line = [experiment]  # and those that it takes settings from, one after another
        while (name := self.line[-1].searched_in) is not None:
            self.line.append(get_experiment(name, experiment.budget))
        self.searching = self.line[-1]
        self.machine = {"device": device, "tf32": tf32}
        # a full path, which means the same to workers elsewhere
        self.checkpoints = Path(os.path.realpath(ledger.folder)) / ".checkpoints" / experiment.name

    def searched(self, arm: Arm) -> list[dict[str, Any]]:
        """The candidates of an arm with a grid that were scored as its protocol says, not for other rounds or another seed."""
        return [one for one in self.known(arm) if self.searching.scored(arm, one)]

    def known(self, arm: Arm) -> list[dict[str, Any]]:
        """All candidates of an arm that have ever been scored, each with the settings, rounds and seed it was scored under."""
        entry = self.ledger.get(self.searching.name, arm.key, None)
        return [] if entry is None else list(entry["candidates"])

    def grid(self, arm: Arm) -> tuple[Settings, ...]:
        """The candidates of an arm's search, as far as the scores tell them: its grid, and the next ones on its ladders."""
        return climbed(arm, self.searched(arm), self.searching.candidates)

    def scored(self, arm: Arm) -> list[dict[str, Any]]:
        """The scored candidates of the present search in its order, not in the order in which workers finished them."""
        return in_grid_order(self.grid(arm), self.searched(arm))

    def source(self, arm: Arm) -> Arm:
        """The arm whose search serves this one: its own, or another's of the experiment that searches."""
        return self.searching.arm(arm.rates_of or arm.key)

    def sources(self) -> list[Arm]:
        """The arms whose searches serve those that are to be trained, each once."""
        return list({source.key: source for source in map(self.source, self.arms)}.values())

    def chosen(self, arm: Arm, seed: int | None = None) -> Settings | None:
        """The settings with the best validation accuracy, once the whole grid has been scored.

        Of a result with some `seed`: among those with which it has not diverged.
        """
        if not self.source(arm).grid:
            return {}
        candidates = self.candidates(arm, seed)
        return dict(candidates[0]["settings"]) if candidates else None

    def candidates(self, arm: Arm, seed: int | None = None) -> list[dict[str, Any]]:
        """The scored candidates, the best first and without those that diverged for a `seed`; none before the search is over."""
        source = self.source(arm)
        scored = self.scored(source)
        if len(scored) < len(self.grid(source)):
            return []
        used = [flat(one["config"]) for one in self.attempts(arm, seed)]
        return [
            one
            for one in sorted(scored, key=best_first)
            if not any(one["settings"].items() <= it.items() for it in used)
        ]

    def attempts(self, arm: Arm, seed: int | None) -> list[Run]:
        """The attempts at a result that diverged; of an arm that takes over another's training or rates: at that one's result."""
        if seed is None:
            return []
        if arm.trained_by is None and arm.rates_of is not None:
            return self.ledger.diverged(self.leader(arm).name, arm.rates_of, seed)
        return self.ledger.diverged(self.experiment.name, arm.trained_by or arm.key, seed)

    def leader(self, arm: Arm) -> Experiment:
        """The experiment with the arm whose rates an arm takes over: this one, or the nearest that it takes settings from."""
        with_it = (one for one in self.line if arm.rates_of in {other.key for other in one.arms})
        return next(with_it, self.searching)

    def awaits(self, arm: Arm, seed: int) -> bool:
        """Whether an arm that takes over rates must wait until the arm that it follows has found a rate that does not diverge."""
        if arm.rates_of is None or arm.trained_by is not None or not self.experiment.next_candidate:
            return False
        return not self.ledger.has(self.leader(arm).name, arm.rates_of, seed)

    def tasks(self) -> Iterator[Task]:
        """What can be trained now: searches of arms without rates, then results, all arms of a seed before the next seed."""
        name = self.experiment.name
        for arm in self.sources() if self.searching is self.experiment else []:
            if self.chosen(arm) is None:
                done = [one["settings"] for one in self.searched(arm)]
                for number, candidate in enumerate(self.grid(arm)):
                    if candidate not in done:
                        config = self.trial(arm, candidate)
                        yield Task(name, arm.key, self.experiment.search_seed, config, number)
        missing = self.missing()
        for arm, seed in missing:
            if self.chosen(arm) is None or self.awaits(arm, seed):
                continue
            config, trained_by = self.config(arm, seed), None
            entry = {"kind": "run", "experiment": name, "arm": arm.key, "seed": seed}
            # refuses to replace a complete run of another configuration
            self.ledger.check(entry | {"config": config.as_dict()})
            if arm.trained_by is not None:
                first = self.experiment.arm(arm.trained_by)
                if (first, seed) in missing:
                    continue  # until there is a training to take over
                trained_by = (self.checkpoint(first.key, seed), self.config(first, seed))
            yield Task(name, arm.key, seed, config, trained_by=trained_by, attempt=self.attempt(arm, seed))

    def attempt(self, arm: Arm, seed: int) -> int | None:
        """Number of the next attempt at a result; None where no other candidate takes over, should it diverge.

        That is so for the last candidate, for arms that take over another's training or rates, and where a complete shorter run
        is there, whose place in the ledger only a run of the same settings takes.
        """
        if arm.rates_of is not None or not self.experiment.next_candidate:
            return None
        if len(self.candidates(arm, seed)) < 2 or self.ledger.has(self.experiment.name, arm.key, seed):
            return None
        return self.next_number(arm, seed)

    def next_number(self, arm: Arm, seed: int) -> int:
        """One more than that of the last attempt that diverged."""
        return 1 + max((int(one["attempt"]) for one in self.attempts(arm, seed)), default=0)

    def config(self, arm: Arm, seed: int, chosen: Settings | None = None) -> RunConfig:
        """The configuration of an arm's result with the settings that its search chose, or with others."""
        settings = self.experiment.settings(seed, self.length(arm)) | self.machine
        chosen = self.chosen(arm, seed) or {} if chosen is None else chosen
        return make_config(arm.method, **(settings | arm.settings | chosen)).resolved()

    def trial(self, arm: Arm, candidate: Settings) -> RunConfig:
        """The configuration with which a candidate of an arm's grid is scored."""
        rounds = self.experiment.search_rounds_of(arm)
        settings = self.experiment.settings(self.experiment.search_seed, rounds) | self.machine
        settings |= (
            {"ft_every": 0, "eval_every": rounds, "patience": 0} | arm.settings | arm.search | candidate
        )
        return make_config(arm.method, **settings).resolved()

    def missing(self) -> list[tuple[Arm, int]]:
        """The results that the ledger lacks, all arms of a seed before the next seed."""
        return [(arm, seed) for seed in self.seeds for arm in self.arms if not self.has(arm, seed)]

    def length(self, arm: Arm) -> int:
        """For how many rounds an arm is trained: the protocol's, or fewer if fewer were asked for."""
        planned = self.experiment.rounds_of(arm)
        return planned if self.rounds is None else min(self.rounds, planned)

    def validate(self, earlier: Sequence[Plan] = ()) -> None:
        """Look at what is missing, with the first candidates, so that what cannot be done is told before any work.

        `earlier` are the plans that come before this one and may make what it needs.

        Raises:
            InputError: a setting that cannot be, settings that another experiment has not
                chosen yet, an arm that follows one which is neither there nor asked for, or a complete run of another
                configuration in the ledger.
        """
        name = self.experiment.name
        made = (*earlier, self)
        searched = {(one.experiment.name, source.key) for one in made for source in one.sources()}
        trained = {
            (one.experiment.name, arm.key, seed) for one in made for arm in one.arms for seed in one.seeds
        }
        for source in self.sources():
            if self.chosen(source) is None and (self.searching.name, source.key) not in searched:
                raise InputError(
                    f"{name} takes the settings of {source.key} that were chosen for {self.searching.name}: "
                    f"`{self.searching.command(source.key)}` comes first"
                )
        for arm, seed in self.missing():
            self.config(arm, seed, (*self.source(arm).grid, {})[0])
            leader = self.leader(arm)
            if self.awaits(arm, seed) and (leader.name, arm.rates_of, seed) not in trained:
                raise InputError(
                    f"{arm.key} of {name} follows {arm.rates_of} of {leader.name} to another rate, should that diverge: "
                    f"`{leader.command(str(arm.rates_of), str(seed))}` comes first"
                )
        for _ in self.tasks():
            pass  # each is held against the ledger

    def has(self, arm: Arm, seed: int) -> bool:
        """Whether the ledger holds a result."""
        return self.ledger.has(self.experiment.name, arm.key, seed, self.length(arm))

    def left(self, tasks: Iterable[Task] | None = None) -> int:
        """Runs that are still to be trained, those that wait for a search or for another's training included.

        `tasks`: those of this moment, where they are known, so that the ledger is not asked for them again.
        """
        known = self.tasks() if tasks is None else tasks
        return sum(task.candidate is not None for task in known) + len(self.missing())

    def checkpoint(self, arm: str, seed: int, candidate: int | None = None) -> Path:
        """Where a task continues from; search candidates, results and attempts at a result never share a file."""
        kind = f"search{candidate}"
        if candidate is None:
            number = self.next_number(self.experiment.arm(arm), seed)
            kind = "run" if number == 1 else f"run{number}"
        return self.checkpoints / f"{arm}-seed{seed}-{kind}.pt"
