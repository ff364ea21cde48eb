"""A run so small that three machines on two cores finish it, the same for every method and in every way of running it."""

from __future__ import annotations

from typing import Any

RUN: dict[str, Any] = {
    "data": "digits", "partition": "dirichlet:1", "clients": 3, "rounds": 2, "lr": 0.1, "batch_size": 64, "seed": 1,
    "participation": 1.0, "eval_every": 2,
}  # fmt: skip
LAYERED = {
    "pfl_fb",
    "fedper",
    "fedrep",
    "lg_fedavg",
    "pfedmb",
    "moon",
    "pfl_mf",
    "pfl_mfe",
    "pfl_moe",
    "pfedhn",
}
"""Methods that treat layers differently, for which a linear model would be too little."""
OWN: dict[str, dict[str, Any]] = {
    "fedmn": {"encoder_width": 6, "width": 5, "router_width": 4, "label_width": 3},
    "cfl": {"warmup": 0},
    "fedfomo": {"models": 3},
} | {name: {"ft_epochs": 0} for name in ("pfl_ft", "pfl_fb", "pfl_moe", "pfl_mf", "pfl_mfe")}
ASKED = "fedavg"
"""For which method the nodes are asked who they are, where all methods run as one (`method = "every"`)."""
NAMED = {"method", "data", "partition", "model", "clients", "participation", "rounds", "epochs", "lr", "seed"}
NAMED |= {"files", "state-folder", "out", "patience-seconds"}  # what the app's configuration calls by name


def settings(method: str, **more: Any) -> dict[str, Any]:
    """The run's words for one method."""
    model = "small_cnn" if method in LAYERED else "linear"
    return RUN | {"method": method, "model": model} | OWN.get(method, {}) | more


def run_config(run: dict[str, Any]) -> str:
    """A run's words as `flwr run --run-config` takes them: those that the app does not name go into `set`."""
    rest = " ".join(f"{name}={value}" for name, value in run.items() if name not in NAMED)
    here = {name: value for name, value in run.items() if name in NAMED} | {"set": rest}
    return " ".join(f"{k}={v!r}" if isinstance(v, str) else f"{k}={v}" for k, v in here.items())
