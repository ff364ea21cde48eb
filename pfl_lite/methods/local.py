"""Local: every client learns alone."""

from __future__ import annotations

from dataclasses import dataclass

from pfl_lite.methods.base import Method, Round, Work, stack
from pfl_lite.models import Network, Params


@dataclass(frozen=True)
class Local(Method):
    """No communication: theta_i <- SGD(theta_i; D_i), from one common start. Chapter: *One model or many*."""

    name = "local"
    about = "every client trains alone on its own data"

    def init(self, start: Params, network: Network, clients: int) -> tuple[Params, Params]:
        return {}, stack(start, clients)

    def local(self, received: Params, client: Params, work: Work) -> tuple[Params, Params]:
        return {}, work.sgd(work.loss, client)

    def aggregate(self, server: Params, uploads: Params, round: Round) -> Params:
        return server

    def personal(self, received: Params, client: Params, work: Work) -> Params:
        return client

    def after_local(self, upload: Params, client: Params) -> Params:
        return client

    def inspect(self, server: Params, clients: Params) -> tuple[Params, Params]:
        return server, {}  # the client's state is its scored model
