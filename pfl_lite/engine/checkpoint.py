"""Where a run goes on from: a file with everything that it has computed, and the runs that may take it over."""

from __future__ import annotations

import operator
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from pfl_lite.config import TUNING, RunConfig, with_defaults
from pfl_lite.errors import InputError
from pfl_lite.files import atomic_path


def write_checkpoint(path: Path, config: RunConfig, content: dict[str, Any]) -> None:
    """Write a run's content atomically, with the configuration that it belongs to."""
    with atomic_path(path) as temporary:
        torch.save({"config": trajectory(config)} | content, temporary)


def read_checkpoint(
    path: Path, config: RunConfig, names: set[str], trained_by: RunConfig | None
) -> dict[str, Any]:
    """What a checkpoint holds under some names.

    Args:
        path: the file.
        config: the run that goes on from it.
        names: what must be there.
        trained_by: the run that it belongs to, if that is another one whose training is the same.

    Raises:
        InputError: the file is damaged or no checkpoint, or of another configuration, or the other run trains differently.
    """
    if trained_by is not None and not trains_alike(config, trained_by):
        raise InputError(
            f"{config.method.name} does not train as {trained_by.method.name} does: it needs a run of its own"
        )
    try:
        content = torch.load(path, map_location=config.device, weights_only=True)
        if not (isinstance(content, dict) and names | {"config"} <= content.keys()):
            raise ValueError("written by torch, but no checkpoint")
    except Exception as error:  # torch raises many kinds for a file that is not its own
        raise InputError(f"checkpoint {path} cannot be read: delete it to start this run anew") from error
    mine, there = trajectory(trained_by or config), with_defaults(content["config"])
    other = [name for name in mine if there.get(name) != mine[name]]
    if other:
        raise InputError(
            f"checkpoint {path} belongs to another configuration (it differs in {', '.join(other)}): "
            "name another checkpoint, or delete this one"
        )
    if content["round"] > config.rounds:
        raise InputError(
            f"checkpoint {path} is already at round {content['round']}: ask for that many rounds or more"
        )
    return content


def trajectory(config: RunConfig) -> dict[str, Any]:
    """The settings that a checkpoint must agree on; most runs may be continued for more rounds than first asked for."""
    free = {"clients_per_batch", "convolution", "graphs"} | (
        set() if config.method.traits.anneals else {"rounds"}
    )
    return {name: value for name, value in config.as_dict().items() if name not in free}


def trains_alike(a: RunConfig, b: RunConfig) -> bool:
    """Whether two runs do the same until the last round, and differ only in what clients do after it."""
    if a.patience or b.patience:  # when training ends depends on what clients do after a round
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
