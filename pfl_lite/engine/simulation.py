"""A run: rounds with their scores and history, checkpoints, the report. Scoring more or less often changes no model."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only
from tqdm import tqdm

from pfl_lite.atomic_files import locked, plain
from pfl_lite.config import RunConfig, make_config
from pfl_lite.data.federation import Federation
from pfl_lite.data.task import task_of
from pfl_lite.engine.checkpoint import NAME_ANOTHER, read_checkpoint, write_checkpoint
from pfl_lite.engine.evaluate import Scorer
from pfl_lite.engine.history import DIVERGED, WORSE, History, converged_in, diverged_in, has_converged, rank
from pfl_lite.engine.mapping import Mapping
from pfl_lite.engine.processes import Forked, over_processes
from pfl_lite.engine.report import code_version, device_name, final_scores, versions, write_models
from pfl_lite.engine.rounds import Rounds, described
from pfl_lite.errors import InputError, expect
from pfl_lite.methods import Method
from pfl_lite.methods.base import Gated
from pfl_lite.models import Params

WATCHED_ROUNDS = (0, 1, 2, 5, 10, 20, 30, 40, 50, 75, 100, 150, 200, 300, 400, 500)
ROUND_KEYS = ("round", "clients", "floats_down", "floats_up", "diverged")
"""What an entry of the history says of a round's training; the rest are scores."""
ALL_WATCHED, SMALL_STATE = 20, 200  # so many first rounds are all watched where the state is so small


class Simulation(Rounds):
    """A federation in training: `step()` is one round, `evaluate()` looks without touching.

    Args:
        config: the run; `auto` settings are resolved here, and the device `auto` is that of a federation given.
        federation: the clients' data, if already built (it must fit the configuration).
        mapping: makes the mapping that does the clients' work, from network, federation and configuration, in place of the one
            that the configuration's engine names; no number depends on it but for rounding.
    """

    def __init__(
        self,
        config: RunConfig,
        federation: Federation | None = None,
        *,
        mapping: Callable[..., Mapping] | None = None,
    ) -> None:
        expect(
            config,
            RunConfig,
            'a simulation takes a configuration, as make_config("fedavg", rounds=5) makes one',
        )
        super().__init__(config, federation, mapping=mapping)
        self.trained_on, self.seconds = device_name(self.config.device), 0.0
        self._tuned: Params | None = None  # of this round
        self._exploded = False
        self.scorer = Scorer(self.method, self.map, self.settings)
        sizes = {
            f"{split}_sizes": getattr(self.federation, f"{split}_sizes").tolist()
            for split in ("train", "val", "test")
        }
        self.history = History(
            **sizes, unseen=self.unseen.tolist(), metric=task_of(self.federation.labels).metric
        )

    # ---- a round, and what it came to -----------------------------------------------------------------------------

    def advance(self) -> dict[str, Any]:
        """`Rounds.advance`, with a warning the first time that a client's weights are lost."""
        self._tuned = None
        entry = super().advance()
        if (lost := entry.get("diverged")) and self.diverged_in is None:
            who = (
                f"client {lost[0]}"
                if len(lost) == 1
                else f"{len(lost)} clients, {lost[0]} the first of them,"
            )
            warnings.warn(
                f"{self.method.name} diverged: after round {self.round} {who} had weights that are not finite numbers; "
                f"try a learning rate below {self.config.lr:g}{' or fewer local epochs' * (self.config.epochs > 1)}",
                stacklevel=3,
            )
        return entry

    @property
    def diverged_in(self) -> int | None:
        """The first round that left a client with weights that are no finite numbers; None if none did."""
        return diverged_in(self.history.rounds)

    @property
    def done(self) -> bool:
        """Whether the last round has been played: the configuration's, or the one in which the run converged."""
        return self.round >= self.config.rounds or converged_in(self.history.rounds) is not None

    def step(self) -> dict[str, Any]:
        """Play one round and return its entry in the history."""
        started = time.perf_counter()
        if self.round == 0 and not self.history.rounds:
            self._record({"round": 0, "clients": [], "floats_down": 0, "floats_up": 0})
        entry = self._record(self.advance())
        self.seconds += time.perf_counter() - started
        return entry

    # ---- looking, without touching --------------------------------------------------------------------------------

    def evaluate(self) -> dict[str, Any]:
        """Scores of the method's own models as they stand, as an entry of the history holds them; nothing is kept."""
        entry: dict[str, Any] = {}
        self._score_own(entry)
        return entry

    def _score(self, entry: dict[str, Any], name: str, models: Params) -> None:
        """Score one model a client (the global one for {}) on every client's test and validation images."""
        for split in ("test", "val"):
            correct, loss = self.scorer.sums(self.server, models, split, self.round)
            self.history.add_scores(entry, name, split, correct, loss)

    def _whole_test(self, entry: dict[str, Any]) -> None:
        """Score the final models of every kind on all test images."""
        shared = self.method.global_model(self.server) is not None
        kinds: dict[str, Params] = {"global": {}} if shared else {}
        kinds |= {"personal": {} if self.method.traits.one_model else self.personal_models()}
        kinds |= {"tuned": self._tuned} if self._tuned is not None else {}
        for kind, models in kinds.items():
            self.history.add_whole_test(entry, kind, self.scorer.whole_test(self.server, models, self.round))

    def _record(self, entry: dict[str, Any]) -> dict[str, Any]:
        """Score what the configuration asks for after this round, and append the entry."""
        config, last = self.config, self.round == self.config.rounds
        self.history.rounds.append(entry)
        if self.round == 0 or last or self.round % config.eval_every == 0:
            self._score_own(entry)
        due = config.ft_every and self.round % config.ft_every == 0
        if config.ft_epochs and (due or (last and not config.ft_factors)):
            self._tuned = self.tuned_models()
            self._score(entry, "tuned", self._tuned)
        if has_converged(self.history.rounds, config.patience, self.history.metric):
            entry["converged"] = last = True
            if f"personal_{self.history.metric}" not in entry:
                self._score_own(entry)
        if last and config.tuning_factors:
            self._choose_tuning(entry)
        if last and self._tuned is not None and isinstance(self.method, Gated):
            shares = self.scorer.shares(self.method, self.server, self._tuned, self.round)
            self.history.watch["share"] = {str(self.round): shares}
        if last and config.whole_test:
            self._whole_test(entry)
        loss, before = entry.get("personal_loss") or 0, self.history.rounds[0].get("personal_loss") or 0
        if not self._exploded and (loss > DIVERGED or (last and loss > WORSE * before > 0)):
            self._exploded = True
            warnings.warn(
                f"{self.method.name} diverged: after round {self.round} the mean loss is {loss:.4g}, before any training "
                f"{before:.4g}; try a learning rate below {self.config.lr:g}",
                stacklevel=4,
            )
        state = self.state() if self.method.tracked else {}
        for name in self.method.tracked:
            if last or is_watched(self.round, state[name].numel()):
                self.history.watch.setdefault(name, {})[str(self.round)] = state[name].double().cpu().tolist()
        return entry

    def _score_own(self, entry: dict[str, Any]) -> None:
        """Score the method's own models, before any fine-tuning."""
        if self.method.global_model(self.server) is not None:
            self._score(entry, "global", {})
        if self.method.traits.one_model:
            self.history.copy_scores(entry, "global", "personal")
        else:
            self._score(entry, "personal", self.personal_models())

    def _choose_tuning(self, entry: dict[str, Any]) -> None:
        """Fine-tune with each factor of `ft_factors`; keep the models that do best on validation images, and their scores."""
        tried: dict[float, tuple[float, Params, dict[str, Any]]] = {}
        for factor in self.config.tuning_factors:
            models = self.tuned_models(factor) if factor != 1 or self._tuned is None else self._tuned
            scores: dict[str, Any] = {"per_client": dict(entry.get("per_client", {}))}
            self._score(scores, "tuned", models)
            tried[factor] = scores[f"val_tuned_{self.history.metric}"], models, scores
        best = max(tried, key=lambda factor: rank(tried[factor][0]))
        _, self._tuned, scores = tried[best]
        factors = {f"{factor:g}": score for factor, (score, _, _) in tried.items()}
        entry |= scores | {"factor": best, "factors": factors}

    # ---- the whole run --------------------------------------------------------------------------------------------

    def run(
        self,
        *,
        checkpoint: Path | str | None = None,
        stop: Callable[[], bool] | None = None,
        progress: bool | None = None,
    ) -> bool:
        """Play the remaining rounds; True when the last one is done, False when `stop()` came first.

        Args:
            checkpoint: written after every round, and continued from if it is there.
            stop: asked before every round.
            progress: show a bar (default: only on a terminal).
        """
        if checkpoint is not None and Path(checkpoint).exists():
            self.load(checkpoint)
        total = self.config.rounds
        with tqdm(
            total=total,
            initial=self.round,
            desc=self.method.name,
            disable=None if progress is None else not progress,
        ) as bar:
            while not self.done:
                if stop is not None and stop():
                    return False
                entry = self.step()
                metric = self.history.metric
                if (found := entry.get(f"personal_{metric}")) is not None:
                    bar.set_postfix({metric: f"{100 * found:.1f}%"})
                bar.update()
                if checkpoint is not None:
                    self.save(checkpoint)
        return True

    def save(self, path: Path | str) -> None:
        """Write a checkpoint atomically: states, history and the configuration they belong to."""
        who = {"federation": self.federation.digest()}
        write_checkpoint(Path(path), self.config, self._content() | who)

    def _content(self) -> dict[str, Any]:
        clock = self.training_seconds, self.map.images_trained
        if self._ahead is not None and not self.done:  # it is not kept: who goes on computes it again
            clock = self._ahead[3]
        return {
            "round": self.round,
            "server": self.server,
            "clients": self.clients,
            "history": asdict(self.history),
            "tuned": self._tuned,
            "sampled": self.sampled,
            "clock": [self.seconds - (self.training_seconds - clock[0]), *clock],
        }

    def _take(self, content: dict[str, Any]) -> None:
        self.round, self.server, self.clients = (content[name] for name in ("round", "server", "clients"))
        self._ahead, self.sampled = None, content["sampled"]
        self.history, self._tuned = History(**content["history"]), content["tuned"]
        self.seconds, self.training_seconds, self.map.images_trained = content["clock"]

    def beside(self, federation: Federation) -> Simulation:
        """This simulation, with all that it has computed, on the device of another copy of its federation."""
        if self.federation is federation:
            return self
        config = replace(self.config, device=federation.images.device.type)
        there = Simulation(config, federation)
        there._take(tree_map_only(Tensor, lambda t: t.to(config.device), self._content()))
        there.trained_on = self.trained_on
        return there

    def load(self, path: Path | str, trained_by: RunConfig | None = None) -> None:
        """Continue from a checkpoint.

        Args:
            path: the file.
            trained_by: the run that it belongs to, if that is another one whose training is the same (FedAvg's, of methods that
                differ in what clients do after the last round): its training is taken over, and what follows it is done.

        Raises:
            InputError: the file is damaged or no checkpoint, or of another configuration, or the other run trains differently.
        """

        def models(server: Params) -> Iterable[Callable[[], Params]]:
            there = copy(self)
            there.server = server  # by its stage
            return there.personal_models, lambda: there.tuned_models(epochs=0)

        content = read_checkpoint(Path(path), self.config, self._content(), models, trained_by)
        here = self.federation.digest()
        if content.get("federation", here) != here:
            raise InputError(
                f"checkpoint {path} belongs to clients with other images or labels: "
                f"{NAME_ANOTHER}, or delete this one"
            )
        untrained = self.clients
        self._take(content)
        if trained_by is not None:
            self.clients, self._tuned = untrained, None
        if trained_by is None if self.done else not self._was_last:
            return
        started, entry = time.perf_counter(), self.history.rounds.pop()
        self._tuned = None
        for seen in self.history.watch.values():
            seen.pop(str(self.round), None)
        self._record({name: entry[name] for name in ROUND_KEYS if name in entry})
        self.seconds += time.perf_counter() - started

    @property
    def _was_last(self) -> bool:
        """Whether the newest round has scores, or states that are watched, that it has only as a run's last one."""
        entry, config = self.history.rounds[-1] if self.history.rounds else {}, self.config
        every = {"personal_loss": config.eval_every, "tuned_loss": config.ft_every}
        extra = (name in entry and (not often or self.round % often > 0) for name, often in every.items())
        kept = [name for name, seen in self.history.watch.items() if str(self.round) in seen]
        state = self.state() if kept else {}
        late = any(name not in state or not is_watched(self.round, state[name].numel()) for name in kept)
        return any(extra) or late or "whole_test" in entry or "factors" in entry

    # ---- results --------------------------------------------------------------------------------------------------

    def scored_models(self) -> Params:
        """What `final` and `personal/` hold: the fine-tuned models if `ft_epochs` > 0, else the method's own."""
        return self._tuned if self._tuned is not None else self.personal_models()

    def report(self) -> dict[str, Any]:
        """The run as plain values: what the JSON file holds.

        Raises:
            InputError: nothing has been trained yet.
        """
        if not self.history.rounds:
            raise InputError("there is nothing to report before the first round: call run() or step() first")
        tuned = bool(self.config.ft_epochs)
        report = {
            "kind": "run",
            "method": self.method.name,
            "config": self.config.as_dict(),
            "complete": self.done,
            "parameters": self.network.parameters,
            "rounds": self.history.compact(),
            "watch": self.history.watch,
            "final": final_scores(self.history, "tuned" if tuned else "personal"),
            "seconds": round(self.seconds, 2),
            "images_trained": self.map.images_trained,
            "images_per_second": round(self.map.images_trained / max(self.training_seconds, 1e-9), 1),
            "data_card": asdict(self.federation.card),
            "majority": self.federation.majority().round(4),
            "device": self.trained_on,
            # on which the last bits depend
            "threads": 1 if isinstance(self.map, Forked) else torch.get_num_threads(),
            "versions": versions(),
            "code": code_version(),
        }
        if self.history.unseen:
            report["unseen"] = self.history.unseen
        return plain(report | ({"final_before_ft": final_scores(self.history, "personal")} if tuned else {}))

    def save_models(self, path: Path | str) -> None:
        """Write the models without pickle: `initial/`, `global/`, `personal/` [N, ...] and `state/`, as .npz or .safetensors.

        Raises InputError for another ending.
        """
        if Path(path).suffix.lower() not in (".npz", ".safetensors"):
            raise InputError(
                f"{path} must end in .npz or .safetensors: load_model reads it, and torch.save keeps a .pt of that"
            )
        shared, state = self.method.inspect(self.server, self.clients)
        groups = {"initial": self.start, "global": shared, "personal": self.scored_models(), "state": state}
        data = self.federation
        shape = {"channels": data.channels, "size": data.size, "classes": data.classes}
        network = {"name": self.config.model, **shape, "mean": data.card.mean, "std": data.card.std}
        write_models(Path(path), {"method": self.config.as_dict()["method"], "network": network}, groups)


def is_watched(round: int, numbers: int) -> bool:
    """Whether a state of so many numbers is kept of a round that need not be the last."""
    return round in WATCHED_ROUNDS or (round <= ALL_WATCHED and numbers <= SMALL_STATE)


def sign_of_life(simulation: Simulation, name: str = "") -> Callable[[], bool]:
    """A `stop` that never stops a run, but says every 30 seconds how far it is, above the bar or where there is none.

    On a terminal the bar counts the rounds, so that only the clients of a long one are told.
    """
    said = time.monotonic()

    def sign(clients: str = "") -> bool:
        nonlocal said
        if not clients and sys.stderr.isatty():
            said = time.monotonic()
        elif time.monotonic() - said > 30:
            tqdm.write(
                f"{name}round {simulation.round} of {simulation.config.rounds}{clients}", file=sys.stderr
            )
            said = time.monotonic()
        return False

    simulation.map.progress = lambda done, of: sign(f": client {done} of {of}")
    return sign


def prepared(
    method: str | Method, federation: Federation | None, workers: int, **settings: Any
) -> Simulation:
    """A run before its first round; arguments as of `run`."""
    config = make_config(method, **({} if federation is None else described(federation)) | settings)
    there = federation
    if federation is not None and config.device != "auto":
        there = federation.to(config.device)
    return Simulation(config, there, mapping=over_processes(workers, config))


def run(
    method: str | Method = "fedavg",
    *,
    federation: Federation | None = None,
    workers: int = 1,
    checkpoint: Path | str | None = None,
    **settings: Any,
) -> Simulation:
    """Train one method and return the finished simulation: `.history`, `.report()`, `.scored_models()`.

    `run("fedprox", mu=0.1, data="digits", partition="dirichlet:0.4", clients=8, rounds=20)`; every name is a field of `RunConfig`
    or a hyper-parameter of the method. `workers` processes share out the clients of a round. `checkpoint` is written after every
    round, and continued from if it is there.

    A federation given says what `data`, `clients` and `dtype` are, and how it was made (`partition`, which is `given` for
    clients made by hand, `split`, `val_fraction`); they need not be repeated, and must not be contradicted. It also says
    where the run is computed, unless `device` does: then the federation is copied there, and the simulation returned is
    back beside the federation given (one on the CPU, so that NumPy and Matplotlib can read its tensors).

    Raises:
        InputError: a setting that does not exist or cannot be, or a checkpoint that another call trains into; raised before any
            work starts.
    """
    simulation = prepared(method, federation, workers, **settings)
    with locked(checkpoint):
        simulation.run(checkpoint=checkpoint)
    return simulation if federation is None else simulation.beside(federation)
