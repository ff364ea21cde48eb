"""Scoring sees nothing that did not travel: what a client downloads, and what it keeps itself."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
from toy import FAST, five_clients, same

from pfl_lite.config import make_config
from pfl_lite.engine.simulation import Simulation
from pfl_lite.methods import METHODS, Method
from pfl_lite.methods.base import RunSettings, Work
from pfl_lite.models import Params

USUAL: dict[str, dict[str, Any]] = {
    "cfl": {"warmup": 0, "eps1": 0.7, "eps2": 0.8},  # it splits in the first round
    "fedfomo": {"models": 3},
    "fedmn": {"blocks": "1x2x2", "gate": "soft"},
    "moon": {"model": "small_cnn"},
}


def watched(kind: type[Method], sent: list[Params], seen: list[Params]) -> type[Method]:
    """The method, which notes every message that goes down, and everything that a client is scored or tuned by."""

    def noted(hook: str) -> Any:
        def message(self: Method, server: Params, client: Params, id: Any) -> Params:
            sent.append(dict(getattr(kind, hook)(self, server, client, id)))
            return sent[-1]

        return message

    def looked(hook: str) -> Any:
        def answer(self: Method, received: Params, client: Params, work: Work, *rule: str) -> Params:
            seen.append(received)
            found: Params = getattr(kind, hook)(self, received, client, work, *rule)
            return found

        return answer

    asked = [hook for hook in ("download", "download_newcomer") if hasattr(kind, hook)]
    looks = [hook for hook in ("personal", "adapt_newcomer", "fine_tune") if hasattr(kind, hook)]
    down, look = {hook: noted(hook) for hook in asked}, {hook: looked(hook) for hook in looks}
    return type(kind.__name__, (kind,), {**down, **look})


@pytest.mark.parametrize("method", METHODS)
def test_scoring_sees_nothing_that_did_not_travel(method: str) -> None:
    sent: list[Params] = []
    seen: list[Params] = []
    settings = (
        FAST | {"epochs": 1, "model": "linear", "unseen": 1, "participation": 0.5} | USUAL.get(method, {})
    )
    if method in ("fedper", "fedrep", "lg_fedavg", "pfl_fb", "pfl_mf", "pfl_mfe", "pfedmb"):
        settings |= {"model": "small_cnn"}
    if method != "fedem":
        settings |= {"ft_epochs": 1, "ft_mode": "plain_sgd"}
    plain = make_config(method, **settings)
    spied = watched(type(plain.method), sent, seen)(**asdict(plain.method))
    federation = five_clients()
    sim, usual = (
        Simulation(make_config(m, **_of_run(settings, plain)), federation) for m in (spied, plain.method)
    )
    for one in (sim, usual):
        one.run(progress=False)
    assert seen and all(any(message is each for each in sent) for message in seen)
    assert same(sim.scored_models(), usual.scored_models(), 0)


def _of_run(settings: dict[str, Any], config: RunSettings) -> dict[str, Any]:
    """The settings that are not the method's own."""
    return {name: value for name, value in settings.items() if hasattr(config, name)}
