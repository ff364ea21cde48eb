"""Federated rounds: sampling, download, local work, upload, aggregation, and the models that clients have at the end.

The engine knows a method only by the answers of `pfl_lite.methods.base.Method`. Everything here is a function of the
configuration alone: stopping and resuming, or mapping clients differently, changes no model.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pfl_lite.config import DTYPES, TUNING, RunConfig
from pfl_lite.data.csv_clients import TableCard
from pfl_lite.data.federation import Federation, make_federation
from pfl_lite.data.task import CLASSES, task_of
from pfl_lite.engine.batched import Vmap
from pfl_lite.engine.evaluate import check_whole_test
from pfl_lite.engine.local_training import LocalSettings, LocalWork
from pfl_lite.engine.mapping import Loop, Mapping
from pfl_lite.errors import InputError, expect
from pfl_lite.methods import Method
from pfl_lite.methods.base import Newcomers, Round, Sequential
from pfl_lite.models import NETWORKS, Network, Params, make_network
from pfl_lite.seeds import generator

MADE = ("partition", "split", "val_fraction")
"""How a federation given was made: left at their defaults, these settings of a run are the federation's."""
MAPPINGS: dict[str, type[Mapping]] = {"loop": Loop, "vmap": Vmap}
"""How the clients of a round are done, by the name of the engine."""


class Part:
    """What a run is before anything is trained: method, network, start, and who is drawn for a round.

    Of the federation it takes the shape of the images alone: a server needs no client's images for it, and a client's machine
    only its own.
    """

    def __init__(
        self, config: RunConfig, federation: Federation, *, mapping: Callable[..., Mapping] | None = None
    ) -> None:
        self.config, self.federation, self.method = config, federation, config.method
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
                f"use a network without batch norm, not {config.model}, or put nn.GroupNorm in its place"
            )
        if self.method.traits.needs_classes and task_of(federation.labels) is not CLASSES:
            raise InputError(
                f"{self.method.name} works with probabilities of classes, but these labels are numbers: "
                "use another method for them"
            )
        self.settings = LocalSettings(
            *(config.epochs, config.batch_size, config.lr, config.momentum, config.weight_decay),
            rounds=config.rounds,
            needs_rng_key=self.network.dropout or self.method.traits.needs_rng_key,
            augment=config.augment,
        )
        make_mapping = MAPPINGS[config.engine] if mapping is None else mapping
        self.map: Mapping = make_mapping(self.network, federation, config)
        self.start = self.method.initial(self.network, config.clients, config.seed)
        self.server, self.clients = self.method.init(self.start, self.network, config.clients)
        for name, rows in self.clients.items():
            if rows.shape[:1] != (config.clients,):
                raise InputError(
                    f"{type(self.method).__name__}.init must give '{name}', a state of the clients, a row for each of "
                    f"{config.clients} clients, not {list(rows.shape)}: stack(own, clients) makes them"
                )
        self.everyone = torch.arange(config.clients, device=config.device)
        drawn = generator(config.seed, "unseen clients").choice(config.clients, config.unseen, replace=False)
        # they never take part in training
        self.unseen = torch.from_numpy(drawn).to(config.device).sort().values
        self.members = self.everyone[~torch.isin(self.everyone, self.unseen)]

    def sample(self, number: int) -> Tensor:
        """Sorted ids of the clients that take part in round `number`: S = max(1, round(C N)), uniform without replacement.

        Clients that are held out (`unseen`) are not among the N.
        """
        count = max(1, round(self.config.participation * len(self.members)))
        drawn = generator(self.config.seed, "participation", number).choice(
            len(self.members), count, replace=False
        )
        return self.members[torch.from_numpy(drawn).to(self.config.device)].sort().values


class Rounds(Part):
    """A federation in training, a round at a time, with nothing scored and nothing recorded; arguments as of `Simulation`."""

    def __init__(
        self,
        config: RunConfig,
        federation: Federation | None = None,
        *,
        mapping: Callable[..., Mapping] | None = None,
    ) -> None:
        if federation is None:
            config = config.resolved()
        else:
            known = described(federation)
            if config.device == "auto":
                config = replace(config, device=federation.images.device.type)
            config = config.resolved(federation.size)
            unsaid = {name for name in MADE if getattr(config, name) == getattr(RunConfig, name)}
            config = replace(config, **{name: value for name, value in known.items() if name in unsaid})
        advice = config.method.advise(config)  # was given where the configuration was made
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
        if (remark := config.method.advise(config, federation.train_sizes)) not in (None, advice):
            warnings.warn(str(remark), stacklevel=2)
        super().__init__(config, federation, mapping=mapping)
        self.sampled = torch.zeros(config.clients, dtype=torch.bool, device=config.device)  # ever
        self.round, self.training_seconds = 0, 0.0
        self.tuning_is_next_round = (
            self.tuning == self.settings
            and config.ft_mode == "own_update"
            and type(self.method).fine_tune is Method.fine_tune
            and self.method.finetune == "own_update"
            and not isinstance(self.method, Sequential)
            and len(self.sample(1)) == config.clients
        )
        # a round that fine-tuning has computed, and the clock before it
        self._ahead: tuple[int, tuple[Params, ...], tuple[int, int], tuple[float, int]] | None = None

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
            sent = floats_sent(self.method, received, upload, self.network.device)
            return upload, client, tuned, {"floats": sent}

        started = time.perf_counter()
        *answers, counted = self.map(one, self.server, self.clients, ids, number, self.settings)
        down, up = counted["floats"].sum(0).tolist()  # waits for a GPU
        self.training_seconds += time.perf_counter() - started
        return tuple(answers), (down, up)

    def advance(self) -> dict[str, Any]:
        """Train one round without scoring it; returns who took part, the floats that travelled, and whose weights diverged."""
        self.round += 1
        ids = self.sample(self.round)
        (uploads, states, _), (down, up) = self.local_work(self.round, ids)
        self._ahead = None
        if lost_names := self.clients.keys() - states.keys():
            raise InputError(
                f"{type(self.method).__name__}.local must return all that its client keeps, as init gave it: "
                f"'{min(lost_names)}' is not there"
            )
        sizes = self.federation.train_sizes.to(ids.device)[ids]
        self.server = self.method.aggregate(
            self.server, uploads, Round(self.round, ids, sizes, len(self.members), self.config.seed)
        )
        self.sampled[ids] = True
        self.clients = {name: rows.index_copy(0, ids, states[name]) for name, rows in self.clients.items()}
        entry = {"round": self.round, "clients": ids.tolist(), "floats_down": down, "floats_up": up}
        if lost := ids[~finite(ids, uploads, states)].tolist():
            entry["diverged"] = lost
        return entry

    # ---- the clients' models --------------------------------------------------------------------------------------

    def personal_models(self) -> Params:
        """The models that are scored, stacked over all clients [N, ...]."""

        def one(server: Params, client: Params, work: LocalWork) -> tuple[Params]:
            received = self.method.download(server, client, work.id)
            return (self.method.personal(received, client, work),)

        states = self.newcomer_states()
        return self.map(one, self.server, states, self.everyone, self.round, self.settings)[0]

    def newcomer_states(self) -> Params:
        """Client states in which those who never took part have done what the method asks of a newcomer; nothing is kept."""
        new = self.everyone[~self.sampled]
        method = self.method
        if self.round == 0 or not len(new) or not isinstance(method, Newcomers):
            return self.clients

        def one(server: Params, client: Params, work: LocalWork) -> tuple[Params]:
            return (method.adapt_newcomer(method.download_newcomer(server, client, work.id), client, work),)

        counted = self.map.images_trained
        states = self.map(one, self.server, self.clients, new, self.round + 1, self.settings)[0]
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

    def tuned_models(self, factor: float = 1.0, *, epochs: int | None = None) -> Params:
        """All clients' models after `ft_epochs` of fine-tuning from where training stands, stacked [N, ...].

        `factor` multiplies fine-tuning's learning rate; with 0 the models stay as they are. `epochs` replaces `ft_epochs`.

        Fine-tuning after round t visits the mini-batches of round t + 1. With every client taking part, the same settings
        and the method's own update, it is the local work of the next round, which is then done only once.
        """
        if factor == 0:
            return self.personal_models()
        settings = self.tuning if epochs is None else replace(self.tuning, epochs=epochs)
        if self.tuning_is_next_round and factor == 1 and settings == self.tuning:
            before = self.training_seconds, self.map.images_trained
            self._ahead = (self.round + 1, *self.local_work(self.round + 1, self.everyone), before)
            return self._ahead[1][2]
        method, config = self.method, self.config
        rule = "plain_sgd" if "plain_sgd" in (config.ft_mode, method.finetune) else "own_update"

        def one(server: Params, client: Params, work: LocalWork) -> tuple[Params]:
            return (method.fine_tune(method.download(server, client, work.id), client, work, rule),)

        started = time.perf_counter()
        states, settings = self.newcomer_states(), replace(settings, lr=factor * settings.lr)
        tuned = self.map(one, self.server, states, self.everyone, self.round + 1, settings)[0]
        self.map.driver.settle()  # the clock stops when the work is done, not when it is ordered
        self.training_seconds += time.perf_counter() - started
        return tuned


def floats_sent(method: Method, received: Params, upload: Params, device: torch.device | str) -> Tensor:
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


def described(federation: Federation) -> dict[str, Any]:
    """The settings of a run that a federation decides, those that it knows; raises InputError for something else."""
    wanted = "federation must be a Federation, as make_federation(images, ...) makes one"
    expect(federation, Federation, wanted)
    dtype = str(federation.images.dtype).removeprefix("torch.")
    known = {"data": federation.name, "clients": len(federation), "dtype": dtype}
    return known | {name: value for name in MADE if (value := getattr(federation, name)) is not None}


def check_fits(federation: Federation, config: RunConfig) -> None:
    """Raise an InputError unless a federation is what a (resolved) configuration says."""
    for name, given in (described(federation) | {"device": federation.images.device.type}).items():
        if (asked := getattr(config, name)) != given:
            raise InputError(f"the federation given has {name} {given}, but the run asks for {name} {asked}")
    empty = [i for i, images in enumerate(federation.train_sizes.tolist()) if not images]
    if empty:
        raise InputError(f"client {empty[0]} has no training images: leave it out of the federation")
    for name in ("patience", "ft_factors"):
        if getattr(config, name) and not federation.val_sizes.any():
            raise InputError(f"{name} must be left out where there are no validation images")
    if config.augment != "none" and isinstance(federation.card, TableCard):
        raise InputError(
            f"augment must be none for tables, not {config.augment}: it shifts and mirrors images"
        )
