"""What happened in a run, round by round and client by client."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from pfl_lite.engine.evaluate import mean
from pfl_lite.errors import unknown

if TYPE_CHECKING:
    import pandas as pd


DIVERGED = 1e6  # a mean cross-entropy above it is as good as none
WORSE = 10  # times the loss before any training: of the runs in data/results that did not diverge none ends above 2


def diverged_in(rounds: Sequence[dict[str, Any]]) -> int | None:
    """The first round that left a client with weights that are no finite numbers, from entries of a history; None if none did."""
    return next((int(entry["round"]) for entry in rounds if entry.get("diverged")), None)


def converged_in(rounds: Sequence[dict[str, Any]]) -> int | None:
    """The round in which a run with `patience` ended, from entries of a history; None if it went on to the last."""
    return next((int(entry["round"]) for entry in rounds if entry.get("converged")), None)


def rank(score: float) -> float:
    """What scores are compared by: one that is not a number, which no comparison would place, is below all others."""
    return -math.inf if math.isnan(score) else score


def has_converged(rounds: Sequence[dict[str, Any]], patience: int, metric: str = "accuracy") -> bool:
    """Whether the mean validation accuracy (or other `metric`) of the scored models has not risen for `patience` rounds up to
    the last entry.

    Scored are fine-tuned models where the entries have them, else the method's own. Round 0, before any training, does not count.
    """
    tuned = f"val_tuned_{metric}"
    name = tuned if any(tuned in entry for entry in rounds) else f"val_personal_{metric}"
    scores = [(entry["round"], entry[name]) for entry in rounds[1:] if entry.get(name) is not None]
    if not patience or not scores or scores[-1][0] != rounds[-1]["round"]:
        return False
    best = max(scores, key=lambda score: rank(score[1]))[0]  # the first of equal ones
    return bool(scores[-1][0] - best >= patience)


@dataclass
class History:
    """The record of a run; `rounds` is a list of plain dicts, as in the JSON file.

    Each entry holds `round`, the ids of its `clients`, `floats_down` and `floats_up` (sums over the sampled clients) and, where
    models were scored, means over clients such as `personal_accuracy`, `global_loss`, `tuned_accuracy` (a fraction; nats) with
    the lists they are means of under `per_client`. `diverged`, where it is there, lists the clients whom the round left with
    weights or other state that are no finite numbers. `converged` marks the entry with which a run with `patience` ended, and
    `factors`, with `ft_factors`, holds the mean validation accuracy that each factor of fine-tuning's rate came to, and `factor`
    the one that was kept. In the last entry of a run with `whole_test`, each kind of model (`global`,
    `personal`, `tuned`) has under that name the means `global_test` and `local_test` and the lists of all clients,
    `global_test_clients` and `local_test_clients`.
    """

    rounds: list[dict[str, Any]] = field(default_factory=list)
    watch: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The method's own state (pFedMB's alpha, ...) at some rounds: name -> round -> nested lists. `share`, where a gate mixes
    experts, is the mean weight of the shared one over each client's test images, after the last round's fine-tuning."""
    train_sizes: list[int] = field(default_factory=list)
    test_sizes: list[int] = field(default_factory=list)
    val_sizes: list[int] = field(default_factory=list)
    unseen: list[int] = field(default_factory=list)
    """Clients held out of training: they have means of their own, `unseen_personal_accuracy` and so on."""
    metric: str = "accuracy"
    """What stands in the place of `accuracy` in all names above: `r2` where labels are numbers."""

    def add_scores(
        self, entry: dict[str, Any], model: str, split: str, correct: np.ndarray, loss: np.ndarray
    ) -> None:
        """Write one model's summed scores and losses of all clients [N] into a round's entry."""
        sizes = np.array(self.test_sizes if split == "test" else self.val_sizes, dtype=float)
        with np.errstate(invalid="ignore", divide="ignore"):
            values = {self.metric: correct / sizes, "loss": loss / sizes}
        prefix = model if split == "test" else f"val_{model}"
        held_out = np.isin(np.arange(len(sizes)), self.unseen)
        for quantity, each in values.items():
            entry[f"{prefix}_{quantity}"] = mean(each, sizes * ~held_out)
            entry[f"{prefix}_{quantity}_weighted"] = mean(each, sizes * ~held_out, weighted=True)
            if self.unseen and split == "test":
                entry[f"unseen_{prefix}_{quantity}"] = mean(each, sizes * held_out)
            entry.setdefault("per_client", {})[f"{prefix}_{quantity}"] = each.tolist()

    def add_whole_test(self, entry: dict[str, Any], model: str, accuracies: dict[str, np.ndarray]) -> None:
        """Write one model's accuracies on all test images ([N]) into a round's entry."""
        held_out = np.isin(np.arange(len(self.train_sizes)), self.unseen)
        scores: dict[str, Any] = entry.setdefault("whole_test", {}).setdefault(model, {})
        for name, each in accuracies.items():
            scores[name] = mean(each, np.isfinite(each) * ~held_out)
            scores[f"{name}_clients"] = each.tolist()

    @staticmethod
    def copy_scores(entry: dict[str, Any], model: str, twin: str) -> None:
        """Enter the scores of one model under a second name too."""
        for table in (entry, entry["per_client"]):
            table.update(
                {name.replace(model, twin): value for name, value in table.items() if f"{model}_" in name}
            )

    def compact(self) -> list[dict[str, Any]]:
        """The rounds for a small file: of the per-client lists only test accuracies (`metric`) stay, under the model's name."""

        def short(values: Any) -> Any:
            return [round(v, 6) for v in values] if isinstance(values, list) else values

        def slim(name: str, value: Any) -> Any:
            if name == "whole_test":
                return {
                    model: {key: short(kept) for key, kept in scores.items()}
                    for model, scores in value.items()
                }
            if name != "per_client":
                return value
            return {
                each.removesuffix(f"_{self.metric}"): short(values)
                for each, values in value.items()
                if each.endswith(f"_{self.metric}") and not each.startswith("val_")
            }

        return [{name: slim(name, value) for name, value in entry.items()} for entry in self.rounds]

    def frame(self) -> pd.DataFrame:
        """A tidy table: one row a round, client, model (personal, global, tuned), split and quantity (accuracy, loss)."""
        import pandas as pd

        rows = []
        for entry in self.rounds:
            for name, values in entry.get("per_client", {}).items():
                *split, model, quantity = name.split("_")
                rows += [
                    (entry["round"], client, model, "val" if split else "test", quantity, value)
                    for client, value in enumerate(values)
                ]
        return pd.DataFrame(rows, columns=["round", "client", "model", "split", "quantity", "value"])

    def means(self) -> pd.DataFrame:
        """A row a round: the floats that it moved and the means over clients, in columns named as in `rounds`, lists left out."""
        import pandas as pd

        told = [{n: v for n, v in entry.items() if not isinstance(v, list | dict)} for entry in self.rounds]
        return pd.DataFrame(told)

    def curve(self, name: str = "personal_accuracy") -> tuple[list[int], list[float]]:
        """Rounds and values of one mean, e.g. `plt.plot(*history.curve("tuned_accuracy"))`; InputError if there is none."""
        if self.rounds and not any(name in entry for entry in self.rounds):
            means = {key for entry in self.rounds for key, value in entry.items() if isinstance(value, float)}
            raise unknown("curve", name, means)
        points = [(entry["round"], entry[name]) for entry in self.rounds if entry.get(name) is not None]
        return [r for r, _ in points], [value for _, value in points]
