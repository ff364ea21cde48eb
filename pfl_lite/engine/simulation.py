"""Federated rounds: sampling, download, local work, upload, aggregation, and what is kept of them.

The engine knows a method only by the answers of `pfl_lite.methods.base.Method`. Everything here is a function of the
configuration alone: evaluating more or less often, stopping and resuming, or mapping clients differently changes no model.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only
from tqdm import tqdm

from pfl_lite.config import DTYPES, TUNING, RunConfig, make_config
from pfl_lite.data.federation import Federation, make_federation
from pfl_lite.engine.batched import Vmap
from pfl_lite.engine.checkpoint import read_checkpoint, write_checkpoint
from pfl_lite.engine.evaluate import Scorer, check_whole_test
from pfl_lite.engine.history import History, converged_in, diverged_in, has_converged
from pfl_lite.engine.local_training import LocalSettings, LocalWork
from pfl_lite.engine.mapping import Loop, Mapping, PerClient
from pfl_lite.engine.processes import over_processes
from pfl_lite.engine.report import code_version, device_name, final_scores, versions, write_models
from pfl_lite.errors import InputError
from pfl_lite.files import plain
from pfl_lite.methods import Method
from pfl_lite.methods.base import Newcomers, Round, Sequential
from pfl_lite.models import NETWORKS, Network, Params, make_network
from pfl_lite.seeds import generator

MAPPINGS: dict[str, type[Mapping]] = {"loop": Loop, "vmap": Vmap}
"""How the clients of a round are done, by the name of the engine."""
WATCHED_ROUNDS = (0, 1, 2, 5, 10, 20, 30, 40, 50, 75, 100, 150, 200, 300, 400, 500)
ROUND_KEYS = ("round", "clients", "floats_down", "floats_up", "diverged")
"""What an entry of the history says of a round's training; the rest are scores."""
ALL_WATCHED, SMALL_STATE = 20, 200  # so many first rounds are all watched where the state is so small


class Simulation:
    """A federation in training: `step()` is one round, `evaluate()` looks without touching.

    Args:
        config: the run; `auto` settings are resolved here, and the device `auto` is that of a federation given.
        federation: the clients' data, if already built (it must fit the configuration).
        mapping: makes the mapping that does the clients' work, from network, federation, seed and execution settings, in place
            of the one that the configuration's engine names; no number depends on it but for rounding.
    """

    def __init__(
        self,
        config: RunConfig,
        federation: Federation | None = None,
        *,
        mapping: Callable[..., Mapping] | None = None,
    ) -> None:
        if federation is not None and config.device == "auto":
            config = replace(config, device=federation.images.device.type)
        config = self.config = config.resolved(None if federation is None else federation.size)
        self.trained_on = device_name(config.device)
        self.method: Method = config.method
        advice = self.method.advise(config)  # was given where the configuration was made
        if federation is None:
            federation = make_federation(
                config.data,
                config.partition,
                config.clients,
                config.seed,
                val_fraction=config.val_fraction,
                split=config.split,
                size=NETWORKS[config.model].size,
                dtype=DTYPES[config.dtype],
                device=config.device,
            )
        check_fits(federation, config)
        if config.whole_test:
            check_whole_test(federation, config)
        if (remark := self.method.advise(config, federation.train_sizes)) not in (None, advice):
            warnings.warn(str(remark), stacklevel=2)
        self.federation = federation
        self.network: Network = make_network(
            config.model,
            federation.channels,
            federation.size,
            federation.classes,
            dtype=DTYPES[config.dtype],
            device=config.device,
        )
        if self.network.batch_norm and not self.method.traits.fits_batch_norm:
            raise InputError(
                f"{self.method.name} does arithmetic on weights that running statistics of batch norm would not survive: "
                f"use a network without batch norm, not {config.model}"
            )
        self.settings = LocalSettings(
            *(config.epochs, config.batch_size, config.lr, config.momentum, config.weight_decay),
            rounds=config.rounds,
            needs_rng_key=self.network.dropout or self.method.traits.needs_rng_key,
            augment=config.augment,
        )
        make_mapping = MAPPINGS[config.engine] if mapping is None else mapping
        self.map: Mapping = make_mapping(self.network, federation, config.seed, config.execution)
        self.start = self.method.initial(self.network, config.clients, config.seed)
        self.server, self.clients = self.method.init(self.start, self.network, config.clients)
        self.everyone = torch.arange(config.clients, device=config.device)
        self.unseen = held_out_clients(config)
        self.members = self.everyone[~torch.isin(self.everyone, self.unseen)]
        self.sampled = torch.zeros(config.clients, dtype=torch.bool, device=config.device)  # ever
        self.round, self.seconds, self.training_seconds = 0, 0.0, 0.0
        self.history = History(
            train_sizes=federation.train_sizes.tolist(),
            val_sizes=federation.val_sizes.tolist(),
            test_sizes=federation.test_sizes.tolist(),
            unseen=self.unseen.tolist(),
        )
        self._tuned: Params | None = None  # of this round
        self.tuning_is_next_round = (
            self.tuning == self.settings
            and config.ft_mode == "own_update"
            and type(self.method).fine_tune is Method.fine_tune
            and self.method.finetune == "own_update"
            and not isinstance(self.method, Sequential)
            and len(self.sample(1)) == config.clients
        )
        self._ahead: tuple[int, tuple[Params, ...], tuple[int, int]] | None = None

    # ---- training -------------------------------------------------------------------------------------------------

    def sample(self, number: int) -> Tensor:
        """Sorted ids of the clients that take part in round `number`: S = max(1, round(C N)), uniform without replacement.

        Clients that are held out (`unseen`) are not among the N.
        """
        count = max(1, round(self.config.participation * len(self.members)))
        drawn = generator(self.config.seed, "participation", number).choice(
            len(self.members), count, replace=False
        )
        return self.members[torch.from_numpy(drawn).to(self.config.device)].sort().values

    def local_work(self, number: int, ids: Tensor) -> tuple[tuple[Params, ...], tuple[int, int]]:
        """(uploads, client states, models after local work) [S, ...] of the sampled clients; floats that went down and up."""
        if self._ahead is not None and self._ahead[0] == number:
            return self._ahead[1], self._ahead[2]

        handed_on: Params | None = None

        def one(server: Params, client: Params, work: LocalWork) -> tuple[Params, ...]:
            nonlocal handed_on
            received = self.method.download(handed_on or server, client, work.id)
            upload, client = self.method.local(received, client, work)
            if isinstance(self.method, Sequential):
                handed_on = self.method.hand_over(server, upload)
            tuned = self.method.after_local(upload, client) if self.tuning_is_next_round else {}
            return (
                upload,
                client,
                tuned,
                {"floats": traffic(self.method, received, upload, self.network.device)},
            )

        started = time.perf_counter()
        *answers, counted = self.map(one, self.server, self.clients, ids, number, self.settings)
        down, up = counted["floats"].sum(0).tolist()  # waits for a GPU
        self.training_seconds += time.perf_counter() - started
        return tuple(answers), (down, up)

    def advance(self) -> dict[str, Any]:
        """Train one round without scoring it; returns who took part, the floats that travelled, and whose weights diverged."""
        self.round, self._tuned = self.round + 1, None
        ids = self.sample(self.round)
        (uploads, states, _), (down, up) = self.local_work(self.round, ids)
        self._ahead = None
        sizes = self.federation.train_sizes.to(ids.device)[ids]
        self.server = self.method.aggregate(
            self.server, uploads, Round(self.round, ids, sizes, len(self.members), self.config.seed)
        )
        self.sampled[ids] = True
        self.clients = {name: rows.index_copy(0, ids, states[name]) for name, rows in self.clients.items()}
        entry = {"round": self.round, "clients": ids.tolist(), "floats_down": down, "floats_up": up}
        if lost := ids[~finite(ids, uploads, states)].tolist():
            if self.diverged_in is None:
                self.warn_of(lost)
            entry["diverged"] = lost
        return entry

    def warn_of(self, lost: list[int]) -> None:
        """Say which clients this round has left with weights that are no finite numbers, and what may help."""
        who = f"client {lost[0]}" if len(lost) == 1 else f"{len(lost)} clients, {lost[0]} the first of them,"
        warnings.warn(
            f"{self.method.name} diverged: after round {self.round} {who} had weights that are not finite numbers; "
            f"try a learning rate below {self.config.lr:g}{' or fewer local epochs' * (self.config.epochs > 1)}",
            stacklevel=4,
        )

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

    def personal_models(self) -> Params:
        """The models that are scored, stacked over all clients [N, ...]."""

        def one(server: Params, client: Params, work: LocalWork) -> tuple[Params]:
            received = self.method.download(server, client, work.id)
            return (self.method.personal(received, client, work),)

        return self._each_client(one, self.newcomer_states())

    def newcomer_states(self) -> Params:
        """Client states in which those who never took part have done what the method asks of a newcomer; nothing is kept."""
        new = self.everyone[~self.sampled]
        method = self.method
        if self.round == 0 or not len(new) or not isinstance(method, Newcomers):
            return self.clients

        def one(server: Params, client: Params, work: LocalWork) -> tuple[Params]:
            return (method.adapt_newcomer(method.download_newcomer(server, client, work.id), client, work),)

        counted = self.map.images_trained
        states = self.map(
            one,
            self.server,
            self.clients,
            new,
            self.round + 1,
            self.settings,
        )[0]
        self.map.images_trained = counted  # a newcomer's steps belong to looking, not to training
        return {name: rows.index_copy(0, new, states[name]) for name, rows in self.clients.items()}

    def state(self) -> Params:
        """The clients' own state as a reader may want to see it, stacked [N, ...] (pFedMB's alpha, IFCA's clusters, ...)."""
        return self.method.inspect(self.server, self.clients)[1]

    @property
    def tuning(self) -> LocalSettings:
        """How clients fine-tune: as they train, where the run says nothing else."""
        own = {name.removeprefix("ft_"): getattr(self.config, name) for name in TUNING}
        given = {name: value for name, value in own.items() if value is not None}
        return replace(self.settings, epochs=self.config.ft_epochs, **given)

    def tuned_models(self, factor: float = 1.0) -> Params:
        """All clients' models after `ft_epochs` of fine-tuning from where training stands, stacked [N, ...].

        `factor` multiplies fine-tuning's learning rate; with 0 the models stay as they are.

        Fine-tuning after round t visits the mini-batches of round t + 1. With every client taking part, the same settings
        and the method's own update, it is the local work of the next round, which is then done only once.
        """
        if factor == 0:
            return self.personal_models()
        if self.tuning_is_next_round and factor == 1:
            self._ahead = (self.round + 1, *self.local_work(self.round + 1, self.everyone))
            return self._ahead[1][2]
        method, config = self.method, self.config
        rule = "plain_sgd" if "plain_sgd" in (config.ft_mode, method.finetune) else "own_update"

        def one(server: Params, client: Params, work: LocalWork) -> tuple[Params]:
            return (method.fine_tune(method.download(server, client, work.id), client, work, rule),)

        started = time.perf_counter()
        tuned = self.map(
            one,
            self.server,
            self.newcomer_states(),
            self.everyone,
            self.round + 1,
            replace(self.tuning, lr=factor * self.tuning.lr),
        )[0]
        self.map.driver.settle()  # the clock stops when the work is done, not when it is ordered
        self.training_seconds += time.perf_counter() - started
        return tuned

    def _each_client(self, function: PerClient, clients: Params | None = None) -> Params:
        """One answer a client, for all clients, with nothing trained."""
        rows = self.clients if clients is None else clients
        return self.map(function, self.server, rows, self.everyone, self.round, self.settings)[0]

    @property
    def scorer(self) -> Scorer:
        """What scores models by the method's rule, on all clients."""
        return Scorer(self.method, self.network, self.federation, self.map, self.settings)

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
        if has_converged(self.history.rounds, config.patience):
            entry["converged"] = last = True
            if "personal_accuracy" not in entry:
                self._score_own(entry)
        if last and config.tuning_factors:
            self._choose_tuning(entry)
        if last and config.whole_test:
            self._whole_test(entry)
        state = self.state() if self.method.tracked else {}
        for name in self.method.tracked:
            small = self.round <= ALL_WATCHED and state[name].numel() <= SMALL_STATE
            if last or self.round in WATCHED_ROUNDS or small:
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
            tried[factor] = scores["val_tuned_accuracy"], models, scores
        best = max(tried, key=lambda factor: tried[factor][0])
        self._tuned = tried[best][1]
        entry |= tried[best][2]
        entry["factor"], entry["factors"] = (
            best,
            {f"{factor:g}": score for factor, (score, _, _) in tried.items()},
        )

    # ---- the whole run --------------------------------------------------------------------------------------------

    def run(
        self,
        *,
        checkpoint: Path | None = None,
        stop: Callable[[], bool] | None = None,
        progress: bool | None = None,
    ) -> bool:
        """Play the remaining rounds; True when the last one is done, False when `stop()` came first.

        Args:
            checkpoint: written after every round, and continued from if it is there.
            stop: asked before every round.
            progress: show a bar (default: only on a terminal).
        """
        if checkpoint is not None and checkpoint.exists():
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
                if entry.get("personal_accuracy") is not None:
                    bar.set_postfix(accuracy=f"{100 * entry['personal_accuracy']:.1f}%")
                bar.update()
                if checkpoint is not None:
                    self.save(checkpoint)
        return True

    def save(self, path: Path) -> None:
        """Write a checkpoint atomically: states, history and the configuration they belong to."""
        write_checkpoint(path, self.config, self._content())

    def _content(self) -> dict[str, Any]:
        return {
            "round": self.round,
            "server": self.server,
            "clients": self.clients,
            "history": asdict(self.history),
            "tuned": self._tuned,
            "sampled": self.sampled,
            "clock": [self.seconds, self.training_seconds, self.map.images_trained],
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

    def load(self, path: Path, trained_by: RunConfig | None = None) -> None:
        """Continue from a checkpoint.

        Args:
            path: the file.
            trained_by: the run that it belongs to, if that is another one whose training is the same (FedAvg's, of methods that
                differ in what clients do after the last round): its training is taken over, and what follows it is done.

        Raises:
            InputError: the file is damaged or no checkpoint, or of another configuration, or the other run trains differently.
        """
        content = read_checkpoint(path, self.config, set(self._content()), trained_by)
        untrained = self.clients
        self._take(content)
        if trained_by is None:
            return
        self.clients = untrained
        if self.done:
            started, entry = time.perf_counter(), self.history.rounds.pop()
            self._record({name: entry[name] for name in ROUND_KEYS if name in entry})
            self.seconds += time.perf_counter() - started

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
            "device": self.trained_on,
            "versions": versions(),
            "code": code_version(),
        }
        return plain(report | ({"final_before_ft": final_scores(self.history, "personal")} if tuned else {}))

    def save_models(self, path: Path) -> None:
        """Write the models without pickle: `initial/`, `global/`, `personal/` [N, ...] and `state/` arrays in one .npz."""
        shared, state = self.method.inspect(self.server, self.clients)
        groups = {"initial": self.start, "global": shared, "personal": self.scored_models(), "state": state}
        write_models(path, self.config.as_dict()["method"], groups)


def traffic(method: Method, received: Params, upload: Params, device: torch.device | str) -> Tensor:
    """Floats [2] that went down to one client and up from it in one round, as the method counts its messages.

    They are on the run's device, as a client's other answers are; filled there, because a copy would wait for it.
    """
    counts = method.cost(received, upload)
    return torch.stack([n if isinstance(n, Tensor) else torch.full((), n, device=device) for n in counts])


def finite(ids: Tensor, *answers: Params) -> Tensor:
    """Of which clients [S] all numbers in some answers, tensors [S, ...] each, are finite: [S]."""
    whole = torch.ones_like(ids, dtype=torch.bool)
    for t in (t for answer in answers for t in answer.values() if t.numel()):
        whole &= t.isfinite().reshape(len(ids), -1).all(1)
    return whole


def held_out_clients(config: RunConfig) -> Tensor:
    """Sorted ids of the `unseen` clients, which never take part in training, drawn uniformly."""
    drawn = generator(config.seed, "unseen clients").choice(config.clients, config.unseen, replace=False)
    return torch.from_numpy(drawn).to(config.device).sort().values


def described(federation: Federation) -> dict[str, Any]:
    """The settings of a run that a federation decides."""
    dtype = str(federation.images.dtype).removeprefix("torch.")
    return {"data": federation.name, "clients": len(federation), "dtype": dtype}


def check_fits(federation: Federation, config: RunConfig) -> None:
    """Raise an InputError unless a federation is what a (resolved) configuration says."""
    for name, given in (described(federation) | {"device": federation.images.device.type}).items():
        if (asked := getattr(config, name)) != given:
            raise InputError(f"the federation given has {name} {given}, but the run asks for {name} {asked}")
    empty = [i for i, images in enumerate(federation.train_sizes.tolist()) if not images]
    if empty:
        raise InputError(f"client {empty[0]} has no training images: leave it out of the federation")


def run(
    method: str | Method = "fedavg",
    *,
    federation: Federation | None = None,
    workers: int = 1,
    **settings: Any,
) -> Simulation:
    """Train one method and return the finished simulation: `.history`, `.report()`, `.scored_models()`.

    `run("fedprox", mu=0.1, data="digits", partition="dirichlet:0.4", clients=8, rounds=20)`; every name is a field of `RunConfig`
    or a hyper-parameter of the method. `workers` processes share out the clients of a round.

    A federation given says what `data`, `clients` and `dtype` are (they need not be repeated, and must not be contradicted),
    and where the run is computed, unless `device` does: then the federation is copied there, and the simulation returned is
    back beside the federation given (one on the CPU, so that NumPy and Matplotlib can read its tensors).

    Raises:
        InputError: a setting that does not exist or cannot be; raised before any work starts.
    """
    if federation is not None:
        settings = described(federation) | settings
    config = make_config(method, **settings)
    there = federation
    if federation is not None and config.device != "auto":
        there = federation.to(config.device)
    simulation = Simulation(config, there, mapping=over_processes(workers, config, there))
    simulation.run()
    return simulation if federation is None else simulation.beside(federation)
