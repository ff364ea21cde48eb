"""Where a run goes on from: a file with everything that it has computed, and the runs that may take it over."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import fields
from io import BytesIO
from pathlib import Path
from typing import Any

import torch

from pfl_lite import schema
from pfl_lite.atomic_files import plain, regular, write_bytes
from pfl_lite.config import STORED, TUNING, RunConfig, with_defaults
from pfl_lite.errors import InputError, refused
from pfl_lite.methods.base import Traits
from pfl_lite.models import Params

NAME_ANOTHER = "name another checkpoint (or folder of kept runs)"


def write_checkpoint(path: Path, config: RunConfig, content: dict[str, Any]) -> None:
    """Write a run's content atomically, with the configuration that it belongs to."""
    buffer = BytesIO()  # torch would tell of a full disk in words of its own
    torch.save({"config": trajectory(config)} | content, buffer)
    write_bytes(path, buffer.getbuffer())


def read_checkpoint(
    path: Path,
    config: RunConfig,
    fresh: dict[str, Any],
    models: Callable[[Params], Iterable[Callable[[], Params]]],
    trained_by: RunConfig | None,
) -> dict[str, Any]:
    """What a checkpoint holds, held against what a run has before its first round; raises InputError where they do not fit.

    Args:
        path: the file.
        config: the run that goes on from it.
        fresh: the same content of that run before its first round.
        models: what fine-tuned models may be like under a server's state; a gate's have tensors that others lack.
        trained_by: the run that it belongs to, if that is another one whose training is the same.
    """
    if trained_by is not None and not trains_alike(config, trained_by):
        raise InputError(
            f"{config.method.name} does not train as {trained_by.method.name} does: it needs a run of its own"
        )
    # torch raises many kinds for a file that is not its own
    with refused((Exception, InputError), unreadable(path)):
        content = torch.load(regular(path), map_location=config.device, weights_only=True)
        if not (isinstance(content, dict) and fresh.keys() | {"config"} <= content.keys()):
            raise ValueError("written by torch, but no checkpoint")
        if fault := STORED(content["config"]):
            raise ValueError(f"config{fault}")
        there = with_defaults(content["config"])
    mine = trajectory(trained_by or config)
    other = [name for name in mine if there.get(name) != mine[name]]
    if other:
        raise InputError(
            f"checkpoint {path} belongs to another configuration (it differs in {', '.join(other)}): "
            f"{NAME_ANOTHER}, or delete this one"
        )
    with refused(RecursionError, unreadable(path, "it is nested too deep")):
        fault = _fault(content, fresh, models, config, trained_by is not None)
    if fault:
        raise InputError(unreadable(path, fault))
    if content["round"] > config.rounds:
        raise InputError(
            f"checkpoint {path} is already at round {content['round']}: "
            f"ask for that many rounds or more, or {NAME_ANOTHER}"
        )
    return content


def unreadable(path: Path, fault: str = "") -> str:
    """The sentence on a file that no run can go on from."""
    why = f" ({fault})" if fault else ""
    right = "name another file, or delete this one if it is a checkpoint that is damaged"
    return f"checkpoint {path} cannot be read{why}: {right}"


def _fault(
    content: dict[str, Any],
    fresh: dict[str, Any],
    models: Callable[[Params], Iterable[Callable[[], Params]]],
    config: RunConfig,
    heir: bool,
) -> str | None:
    """Where a checkpoint's content is not what a run of its configuration would have written."""
    tensors = {"server": fresh["server"], "sampled": fresh["sampled"]}
    tensors |= {} if heir else {"clients": fresh["clients"]}  # an heir begins with its own
    for name, wanted in tensors.items():
        traits = config.method.traits if name == "server" else Traits()
        there, here = _kind(content[name], traits.grows), _kind(wanted, traits.grows)
        if traits.grows and isinstance(there, dict):  # also by tensors of its own
            there = {key: there.get(key) for key in here}
        if traits.sheds and not any(key.startswith(traits.sheds) for key in there):  # the first stage is over
            here = {key: kind for key, kind in here.items() if not key.startswith(traits.sheds)}
        if there != here:
            return f"its {name} is not made of this run's tensors"
    tuned, kind = None if heir else content["tuned"], _kind(content["tuned"])
    if tuned is not None and not (
        config.ft_epochs and any(kind == _kind(model()) for model in models(content["server"]))
    ):
        return "its tuned models are not those of this run's clients"
    grown = {"rounds": schema.rounds, "watch": schema.fields(rest=lambda _: schema.fields())}
    same = {name: schema.equal(one) for name, one in fresh["history"].items() if name not in grown}
    sizes = {name: same.pop(name) for name in ("train_sizes", "val_sizes", "test_sizes", "unseen")}
    history = schema.fields(grown | sizes, same)  # what came later may be missing
    clock, hands = content["clock"], (schema.number(), schema.number(), schema.size)
    if not isinstance(clock, list) or len(clock) != 3 or any(map(lambda rule, at: rule(at), hands, clock)):
        return "its clock has stopped"
    if fault := schema.count(content["round"]) or history(plain(content["history"])):
        return f"its history{fault}"
    played = [one["round"] for one in content["history"]["rounds"]]
    if played != list(range(content["round"] + 1)) and (played or content["round"]):
        return "its history is of other rounds"
    scored = any("tuned_loss" in entry for entry in content["history"]["rounds"][-1:])
    if not heir and scored != (tuned is not None):
        return "its tuned models are not those that its last round scored"
    return None


def _kind(value: Any, grows: bool = False) -> Any:
    """Names, types and shapes of tensors; without the first axis where it grows."""
    if isinstance(value, dict):
        return {name: _kind(one, grows) for name, one in value.items()}
    return (value.dtype, value.shape[int(grows) :]) if isinstance(value, torch.Tensor) else type(value)


def trajectory(config: RunConfig) -> dict[str, Any]:
    """The settings that a checkpoint must agree on; most runs may be continued for more rounds than first asked for."""
    free = {"clients_per_batch", "graphs"} | (set() if config.method.traits.anneals else {"rounds"})
    return {name: value for name, value in config.as_dict().items() if name not in free}


def trains_alike(a: RunConfig, b: RunConfig) -> bool:
    """Whether two runs do the same until the last round, and differ only in what clients do after it."""
    # when training ends, or what is scored on the way, depends on what clients do after a round
    if a.patience or b.patience or a.ft_every or b.ft_every:
        return False
    afterwards = {"method", "ft_epochs", "ft_mode", "ft_factors", *TUNING}
    settings = ({k: v for k, v in trajectory(c).items() if k not in afterwards} for c in (a, b))
    common = {f.name for f in fields(a.method)} & {f.name for f in fields(b.method)}
    return (
        operator.eq(*settings)
        and all(getattr(a.method, name) == getattr(b.method, name) for name in common)
        and all(
            getattr(type(a.method), name) is getattr(type(b.method), name)
            for name in ("download", "local", "aggregate")
        )
    )
