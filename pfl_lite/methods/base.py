"""What a method is: the answers to five questions, written for one client.

The engine asks these questions and does everything else: it samples clients, draws batches, maps the per-client functions over
clients (one after another, or as one batched computation), evaluates, counts floats, keeps checkpoints. A method therefore never
loops over clients, never draws a random number for a batch, and never sees another client's data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from pfl_lite.errors import InputError
from pfl_lite.methods.weighted_mean import weighted_mean
from pfl_lite.models import Network, Params


class Batch(NamedTuple):
    """A mini-batch of one client: images x [b, C, H, W], labels y [b], and which rows are real.

    `real` [b] is 1 for images and 0 for padding; it is None where nothing is padded. `active` says whether the step counts at
    all (a client with fewer steps than the others idles); None means yes.
    """

    x: Tensor
    y: Tensor
    real: Tensor | None = None
    active: Tensor | None = None


Loss = Callable[[Params, Batch], Tensor]


class Work(Protocol):
    """What the engine hands to one client: its network, its own data, and local SGD."""

    network: Network

    def loss(self, params: Params, batch: Batch) -> Tensor:
        """Mean cross-entropy of the plain network on a mini-batch."""

    def sgd(
        self,
        loss: Loss,
        params: Params,
        *,
        phase: str = "weights",
        lr: float | None = None,
        scale: Params | None = None,
        plain: bool = False,
        project: Callable[[Params], Params] | None = None,
    ) -> Params:
        """E local epochs of mini-batch SGD on `params`, with fresh optimiser state.

        Args:
            loss: differentiated in its first argument, once a mini-batch.
            phase: names the stream of mini-batches; two phases of one round see different orders.
            lr: the learning rate (the run's own if None).
            scale: multiplies the learning rate, one tensor a parameter name.
            plain: leave out the run's momentum and weight decay.
            project: applied to the parameters after every step.
        """

    def data(self, split: str) -> Iterator[Batch]:
        """This client's `train`, `val` or `test` images in large batches, for looking only."""


@dataclass(frozen=True)
class Method:
    """A federated learning method; its fields are its hyper-parameters.

    States are flat dicts of tensors: the server's as it is, the clients' stacked with one row a client ([N, ...]). Every function
    but `init` and `aggregate` is written for ONE client and sees one row.
    """

    name: ClassVar[str]
    about: ClassVar[str]
    one_model: ClassVar[bool] = False
    """Every client's scored model is the global model, so that scoring it once is enough."""
    watched: ClassVar[tuple[str, ...]] = ()
    """Which parts of `state` a run keeps from round to round."""

    def start(self, network: Network, seed: int) -> Params:
        """The parameters that everybody starts from."""
        return network.init(seed)

    def init(self, start: Params, network: Network, clients: int) -> tuple[Params, Params]:
        """What the server keeps, and what each client keeps (stacked [N, ...]), before the first round."""
        raise NotImplementedError

    def download(self, server: Params, client: Params) -> Params:
        """The tensors that go down to one client (they are counted)."""
        return server

    def local(self, received: Params, client: Params, work: Work) -> tuple[Params, Params]:
        """One client's work in one round: what it sends up (it is counted), and what it keeps."""
        raise NotImplementedError

    def aggregate(self, server: Params, uploads: Params, sizes: Tensor, ids: Tensor) -> Params:
        """The new server state, from uploads [S, ...] of the sampled clients `ids` [S] with `sizes` [S] training images.

        By default the mean weighted by training size (McMahan et al. 2017, algorithm 1).
        """
        return weighted_mean(uploads, sizes, server)

    def personal(self, server: Params, client: Params, work: Work) -> Params:
        """The model that is scored for this client."""
        raise NotImplementedError

    def predict(self, network: Network, model: Params, x: Tensor) -> Tensor:
        """Logits [b, K] of the scored model on images x [b, C, H, W]."""
        return network(model, x)

    def global_model(self, server: Params) -> Params | None:
        """The one model of the server in plain form, for methods that have one."""
        return None

    def server_model(self, server: Params) -> Params:
        """The server's share of the model as it is kept: branches and clusters along the first axis; empty if there is none."""
        return server

    def after_local(self, upload: Params, client: Params) -> Params:
        """The client's plain model as it stands at the end of its local work, before aggregation."""
        return upload

    def own_update(self, server: Params, client: Params, work: Work) -> Params:
        """Fine-tune by the method's own client routine, run once more from what the client would download."""
        return self.after_local(*self.local(self.download(server, client), client, work))

    def plain_sgd(self, server: Params, client: Params, work: Work) -> Params:
        """Fine-tune the scored model by plain local SGD."""
        return work.sgd(work.loss, self.personal(server, client, work))

    def state(self, clients: Params) -> Params:
        """What a reader may want to see of the clients' own state, stacked [N, ...]."""
        return clients


def stack(client: Params, clients: int) -> Params:
    """Give every one of N clients the same initial state: [...] -> [N, ...]."""
    return {name: tensor.expand(clients, *tensor.shape).clone() for name, tensor in client.items()}


def squared_distance(a: Params, b: Params) -> Tensor:
    """||a - b||^2 over all tensors of `a` (a scalar)."""
    return torch.stack([((a[name] - b[name]) ** 2).sum() for name in a]).sum()


def check_at_least(method: str, **bounds: tuple[Any, float]) -> None:
    """Raise an InputError unless each hyper-parameter is at least its bound: `check_at_least("fedprox", mu=(self.mu, 0))`."""
    for name, (value, least) in bounds.items():
        if not value >= least:
            raise InputError(f"{method}: {name} must be {least} or more, not {value}")


def check_choice(method: str, **choices: tuple[str, tuple[str, ...]]) -> None:
    """Raise an InputError unless each option is one of its valid values."""
    for name, (value, valid) in choices.items():
        if value not in valid:
            raise InputError(f"{method}: {name} must be one of {', '.join(valid)}, not '{value}'")
