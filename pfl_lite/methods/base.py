"""What a method is: the answers to five questions, written for one client.

The engine asks these questions and does everything else: it samples clients, draws batches, maps the per-client functions over
clients (one after another, or as one batched computation), evaluates, counts floats, keeps checkpoints. A method therefore never
loops over clients, never draws a random number for a batch, and never sees another client's data. `Rounds` of
`pfl_lite.engine.rounds` shows in which order the questions are asked in a round.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial, wraps
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from pfl_lite.data.task import task_of
from pfl_lite.errors import InputError, refused
from pfl_lite.methods.weighted_mean import weighted_mean
from pfl_lite.models import Network, Params
from pfl_lite.models.mixing import mix
from pfl_lite.models.network import Predictor
from pfl_lite.models.train_mode import STATISTICS_RATE, is_statistic
from pfl_lite.seeds import generator


class Batch(NamedTuple):
    """A mini-batch of one client: images x [b, C, H, W], labels y [b], and where they stand among the client's images.

    `place` [b] counts the client's images of the split from 0. `real` [b] is 1 for images and 0 for padding; it is None where
    nothing is padded. `active` says whether the step counts at all (a client with fewer steps than the others idles); None
    means yes. `key` [] is a number of the mini-batch's own, from which dropout masks come; None where no loss asks for it.
    """

    x: Tensor
    y: Tensor
    place: Tensor
    real: Tensor | None = None
    active: Tensor | None = None
    key: Tensor | None = None

    def mean(self, each: Tensor) -> Tensor:
        """Mean of one number an image [b] over the batch, padding left out."""
        return each.mean() if self.real is None else (each * self.real).sum() / self.real.sum().clamp_min(1)

    def losses(self, outputs: Tensor) -> Tensor:
        """The loss [b] of every row under outputs [b, K]: cross-entropy where labels are classes, else squared error."""
        return task_of(self.y).loss(outputs, self.y, reduction="none")

    def loss(self, outputs: Tensor) -> Tensor:
        """Mean loss of outputs [b, K] over the batch, padding left out."""
        if self.real is None:
            return task_of(self.y).loss(outputs, self.y)
        return self.mean(self.losses(outputs))


Loss = Callable[[Params, Batch], Tensor]
Direction = Callable[..., Params]
Carry = tuple[Params, ...]
Value = TypeVar("Value")


def stepped(w: Tensor, step: Tensor, rate: float | Tensor) -> Tensor:
    """w - rate step; `rate` is a tensor [] where clients of one computation have rates of their own."""
    return w - rate * step if isinstance(rate, Tensor) else torch.sub(w, step, alpha=rate)


@dataclass(frozen=True)
class SGD:
    """SGD with momentum and weight decay, as torch does it; running statistics follow the batches', whatever the run's SGD."""

    momentum: float
    decay: float
    lr: float | Tensor
    batch_norm: bool = False

    def start(self, params: Params) -> Carry:
        """The parameters and their momentum buffers: zeros, or {} without momentum."""
        return params, {name: torch.zeros_like(w) for name, w in params.items()} if self.momentum else {}

    def step(
        self, carry: Carry, gradient: Params, scale: Mapping[str, float | Tensor] | None = None
    ) -> Carry:
        """New parameters and momentum buffers; `scale` multiplies the learning rate, by name."""
        (params, velocity), step = carry, gradient
        if self.decay:
            step = {name: g + self.decay * params[name] for name, g in step.items()}
        if self.momentum:
            step = velocity = {name: self.momentum * velocity[name] + g for name, g in step.items()}
        if scale is not None:
            step = {name: scale[name] * g for name, g in step.items()}
        moved = {name: stepped(w, step[name], self.lr) for name, w in params.items()}
        if self.batch_norm:
            moved |= {
                name: torch.sub(w, gradient[name], alpha=STATISTICS_RATE)
                for name, w in params.items()
                if is_statistic(name)
            }
        return moved, velocity


class Work(Protocol):
    """What the engine hands to one client: its network, its own data, and local SGD.

    `training`, `loss` and `sgd` are written here; the engine supplies the rest.
    """

    network: Network
    lr: float | Tensor
    """The run's learning rate eta."""
    round: int
    """The round's number, from 1."""

    @property
    def rounds(self) -> int:
        """T, how many rounds the run has."""

    @property
    def steps(self) -> int | Tensor:
        """K, how many mini-batches its E local epochs have."""

    @property
    def optimizer(self) -> SGD:
        """The run's SGD with momentum and weight decay, step by step: for a method whose steps `sgd` cannot take."""

    def uniform(self, purpose: str, shape: tuple[int, ...], *, per: str = "round") -> Tensor:
        """Random numbers in (0, 1) [shape] of this client for one purpose: new ones per `round`, per `run`, or per `batch`,
        [K, *shape] with as many rows as the client with the most mini-batches has of them."""

    def training(self, batch: Batch) -> Network:
        """The network in training mode (dropout, batch norm) for one mini-batch: what losses are made of."""
        return self.network.training(batch.key, batch.real)

    def size(self, split: str) -> int | Tensor:
        """How many images the client has in a split."""

    def loss(self, params: Params, batch: Batch) -> Tensor:
        """Mean loss of the plain network, in training mode, on a mini-batch: cross-entropy where labels are classes."""
        return batch.loss(self.training(batch)(params, batch.x))

    def grad(self, loss: Loss, params: Params, batch: Batch) -> Params:
        """d loss / d params, a tensor a name; inside another loss it can be differentiated again."""

    def sgd(
        self,
        loss: Loss | None,
        params: Params,
        *,
        direction: Direction | None = None,
        phase: str | tuple[str, ...] = "weights",
        epochs: int | None = None,
        part: str = "all",
        lr: float | Tensor | None = None,
        scale: Mapping[str, float | Tensor] | None = None,
        plain: bool = False,
        project: Callable[[Params], Params] | None = None,
    ) -> Params:
        """E local epochs of mini-batch SGD on `params`, with fresh optimizer state.

        Args:
            loss: what is descended, `loss(params, batch)`.
            params: where SGD begins.
            direction: `direction(params, batch) -> Params` in the place of a loss's gradient.
            phase: names the stream of mini-batches; two phases of one round see different orders. Several names give the
                direction as many batches a step.
            epochs: passes over the data (the run's E if None).
            part: `all` of the training images, or `per`: a fixed three quarters of them, chosen by the client's seed.
            lr: the learning rate (the run's own if None).
            scale: multiplies the learning rate, by parameter name.
            plain: leave out the run's momentum and weight decay.
            project: applied to the parameters after every step.
        """
        if not params:
            return params
        optimizer = replace(self.optimizer, momentum=0.0, decay=0.0) if plain else self.optimizer
        optimizer = optimizer if lr is None else replace(optimizer, lr=lr)
        if direction is None:
            if loss is None:
                raise InputError("sgd needs a loss to descend, or a direction to go along")
            direction = partial(self.grad, loss)

        def step(carry: Carry, *batches: Batch) -> Carry:
            w, *velocity = optimizer.step(carry, direction(carry[0], *batches), scale)
            return (w if project is None else project(w)), *velocity

        return self.over_batches(step, optimizer.start(params), phase=phase, epochs=epochs, part=part)[0]

    def over_batches(
        self,
        step: Callable[..., Carry],
        carry: Carry,
        *streams: Iterable[Batch],
        phase: str | tuple[str, ...] = "weights",
        epochs: int | None = None,
        part: str = "all",
    ) -> Carry:
        """`carry = step(carry, batch)` over the mini-batches of local training, or over given streams: the loop under `sgd`.

        A step is a function of its tensors alone: a GPU records it and does it again without Python (see `graphs`).
        """

    def epochs(
        self, phase: str = "weights", epochs: int | None = None, part: str = "all"
    ) -> Iterator[Iterable[Batch]]:
        """A stream of mini-batches for each local epoch, to train two things in turns; a `part` may also be `gate`, the quarter
        beside `per`."""

    def fixed(self, function: Callable[[Batch], Tensor]) -> Callable[[Batch], Tensor]:
        """`function(batch)` [b, ...] of training mini-batches, for what of an image does not change while the client trains.

        It is computed once for every training image and looked up by the image's place; where mini-batches show augmented
        images, it is computed for each of them.
        """

    def data(self, split: str) -> Iterator[Batch]:
        """This client's `train`, `val` or `test` images in large batches, for looking only."""

    def held_out_loss(self, params: Params) -> Tensor:
        """Mean cross-entropy on the validation images; on the training images where the client has no others."""


class RunSettings(Protocol):
    """What a method may ask of a run's configuration (`pfl_lite.config.RunConfig`, which has all settings)."""

    @property
    def clients(self) -> int: ...  # N
    @property
    def rounds(self) -> int: ...  # T
    @property
    def lr(self) -> float: ...
    @property
    def momentum(self) -> float: ...
    @property
    def ft_epochs(self) -> int: ...
    @property
    def engine(self) -> str: ...
    def resolved(self) -> RunSettings:
        """The same settings with every `auto` replaced by what it means."""


class Round(NamedTuple):
    """What the server knows of one round: its number (from 1), the ids [S] and training sizes [S] of those who took part,
    how many clients could have (N), and the run's seed.
    """

    number: int
    ids: Tensor
    sizes: Tensor
    clients: int
    seed: int = 0

    def weights(self, kind: str) -> Tensor:
        """Aggregation weights [S]: training sizes (`size`), or the same for all (`uniform`)."""
        return self.sizes if kind == "size" else torch.ones_like(self.sizes)

    def random(self, purpose: str) -> np.random.Generator:
        """The server's random numbers of this round for one purpose."""
        return generator(self.seed, purpose, self.number)


HOOKS = {
    "aggregate": (1, "the server's new state"),
    "personal": (1, "the model that is scored"),
    "download": (1, "what goes down"),
    "init": (2, "what the server and what the clients keep"),
    "local": (2, "what goes up and what the client keeps"),
    "inspect": (2, "the server's model and what to see of the clients' states"),
}
"""Hooks that answer with one dict, or with two, and of what."""


def of_dicts(hook: str, answer: Callable[..., Any]) -> Callable[..., Any]:
    """A method's hook that raises an InputError where its answer is not one dict, or two."""
    number, what = HOOKS[hook]

    @wraps(answer)
    def checked(self: Method, *args: Any, **kwargs: Any) -> Any:
        given = answer(self, *args, **kwargs)
        dicts = given if number == 2 and isinstance(given, tuple) else (given,)
        if len(dicts) != number or not all(isinstance(one, dict) for one in dicts):
            one = f"a dict of tensors, {what}, not {type(given).__name__}"
            wanted = one if number == 1 else f"two dicts of tensors, {what} ({{}} for nothing)"
            raise InputError(f"{type(self).__name__}.{hook} must return {wanted}")
        return given

    return checked


def unanswered(method: Method, hook: str) -> InputError:
    """The error for a hook without a default that a method leaves out."""
    return InputError(
        f"{type(method).__name__} has no `{hook}`: a method answers `init`, `local` and `personal` itself, "
        "or inherits them, for example from FedAvg"
    )


def number(
    default: float,
    *,
    least: float = -math.inf,
    most: float = math.inf,
    above: float = -math.inf,
    below: float = math.inf,
    before: float | None = None,
) -> Any:
    """A hyper-parameter that must be at least, at most, above or below something, else an InputError says so.

    `before`: what runs had that were stored before the setting existed, where that is not the default.
    """

    def wanted(value: float) -> str | None:
        if math.isfinite(most):
            return None if least <= value <= most else f"between {least} and {most}"
        if not (least <= value < math.inf and value > above):
            return f"{least} or more" if math.isfinite(least) else f"above {above}"
        return None if value < below else f"below {below}"

    return field(
        default=default, metadata={"wanted": wanted, "before": default if before is None else before}
    )


def word(default: str, *others: str, before: str | None = None) -> Any:
    """A hyper-parameter that must be one of some words; `before` as of `number`."""

    def wanted(value: str) -> str | None:
        return None if value in (default, *others) else f"one of {', '.join((default, *others))}"

    return field(default=default, metadata={"wanted": wanted, "before": before or default})


class Traits(NamedTuple):
    """What the engine has to know of a method beside its answers."""

    one_model: bool = False
    """Every client's scored model is the global model, so that scoring it once is enough."""
    fits_batch_norm: bool = True
    """What it does to parameters, besides descending them, makes sense for running statistics too: means, distances, choices."""
    needs_rng_key: bool = False
    """Its losses draw masks of their own from `Batch.key`."""
    anneals: bool = False
    """A round's work depends on how many rounds there will be, so that a run cannot be continued for more than it was for."""
    grows: bool = False
    """Whether the server's state may come to hold more rows, or more tensors, than `init` gave it."""
    sheds: str = ""
    """How the names of those of the server's tensors begin that go when a first stage of training ends."""
    needs_classes: bool = False
    """It reads labels as classes, or mixes probabilities of classes."""


@dataclass(frozen=True)
class Method:
    """A federated learning method; its fields are its hyper-parameters.

    States are flat dicts of tensors: the server's as it is, the clients' stacked with one row a client ([N, ...]). Every function
    but `init` and `aggregate` is written for ONE client and sees one row.
    """

    name: ClassVar[str]
    about: ClassVar[str]
    tracked: ClassVar[tuple[str, ...]] = ()
    """Which parts of the clients' state (`inspect`) a run keeps from round to round."""
    finetune: ClassVar[str] = "own_update"
    """What a client does to fine-tune by the method's own rule: its local work once more, or `plain_sgd` on the scored model."""
    ft_epochs: ClassVar[int] = 0
    """`ft_epochs` of a run of this method, unless the run says otherwise."""
    traits: ClassVar[Traits] = Traits()

    def __init_subclass__(cls) -> None:
        """A name where it gives itself none, a `personal` that is asked, and a check of answers that are dicts."""
        if "name" not in vars(cls) and cls.__module__ != __name__:
            cls.name = cls.__name__.lower()
        if "personal" in vars(cls) and "traits" not in vars(cls):
            cls.traits = cls.traits._replace(one_model=False)
        for hook in HOOKS.keys() & vars(cls).keys():
            setattr(cls, hook, of_dicts(hook, vars(cls)[hook]))

    def __post_init__(self) -> None:
        """Check the hyper-parameters, one by one."""
        for one in fields(self):
            value, check = getattr(self, one.name), one.metadata.get("wanted")
            shown = f"'{value}'" if isinstance(value, str) else value
            with refused(TypeError, f"{self.name}: {one.name} must be a number, not {shown}"):
                wanted = check and check(value)
            if wanted:
                raise InputError(f"{self.name}: {one.name} must be {wanted}, not {shown}")

    # ---- what is kept, sent and learned ---------------------------------------------------------------------------

    def initial(self, network: Network, clients: int, seed: int) -> Params:
        """The parameters that every client starts from."""
        return network.init(seed)

    def init(self, start: Params, network: Network, clients: int) -> tuple[Params, Params]:
        """What the server keeps, and what each client keeps (stacked [N, ...]), before the first round."""
        raise unanswered(self, "init")

    def download(self, server: Params, client: Params, id: int | Tensor) -> Params:
        """The tensors that go down to client `id` (they are counted)."""
        return server

    def local(self, received: Params, client: Params, work: Work) -> tuple[Params, Params]:
        """One client's work in one round: what it sends up (it is counted), and what it keeps."""
        raise unanswered(self, "local")

    def aggregate(self, server: Params, uploads: Params, round: Round) -> Params:
        """The new server state, from uploads [S, ...] of the clients that took part in a round.

        By default the mean weighted by training size (McMahan et al. 2017, algorithm 1).
        """
        return weighted_mean(uploads, round.sizes, server)

    def cost(self, received: Params, upload: Params) -> tuple[int | Tensor, int | Tensor]:
        """Floats that go down to one client and up from it in a round; integers (cluster ids, counters) are not counted."""
        return floats_in(received), floats_in(upload)

    # ---- which model is scored ------------------------------------------------------------------------------------

    def personal(self, received: Params, client: Params, work: Work) -> Params:
        """The model that is scored for this client, from what it downloads and its own state alone."""
        raise unanswered(self, "personal")

    def predict(self, network: Network, model: Params, x: Tensor) -> Tensor:
        """Logits [b, K] of a scored model on images x [b, C, H, W]."""
        return network(model, x)

    def to_module(self, network: Network, model: Params) -> nn.Module:
        """A scored model as a plain torch module, which answers as `predict` does."""
        plain = type(self).predict is Method.predict
        return network.to_module(model) if plain else Predictor(network, self.predict, model)

    def global_model(self, server: Params) -> Params | None:
        """The one model of the server in the form that is scored, for methods that have one."""
        return None

    # ---- fine-tuning ----------------------------------------------------------------------------------------------

    def after_local(self, upload: Params, client: Params) -> Params:
        """The client's model as it stands at the end of its local work, before aggregation."""
        return upload

    def fine_tune(self, received: Params, client: Params, work: Work, rule: str) -> Params:
        """Fine-tune by a rule: `own_update`, the method's own client routine, run once more from what the client downloads, or
        `plain_sgd`, local SGD on the scored model.
        """
        if rule == "own_update":
            return self.after_local(*self.local(received, client, work))

        def loss(w: Params, batch: Batch) -> Tensor:
            return batch.loss(self.predict(work.training(batch), w, batch.x))

        return work.sgd(loss, self.personal(received, client, work))

    # ---- what a reader may look at --------------------------------------------------------------------------------

    def inspect(self, server: Params, clients: Params) -> tuple[Params, Params]:
        """The server's share of the model as it is kept (branches and clusters along the first axis), and what there is to see
        of the clients' own state, stacked [N, ...]; {} for nothing.
        """
        return server, clients

    # ---- whether a run fits ---------------------------------------------------------------------------------------

    def advise(self, run: RunSettings, sizes: Tensor | None = None) -> str | None:
        """Before the first round, look at the run's settings, and at the clients' training sizes [N] once they are known: raise
        an InputError for what cannot be, return one sentence of advice or None.
        """
        return None


class Newcomers(Method):
    """Beside a method: a client that has never taken part does something before it is scored."""

    def download_newcomer(self, server: Params, client: Params, id: int | Tensor) -> Params:
        """What goes down to it; by default what every client downloads."""
        return self.download(server, client, id)

    def adapt_newcomer(self, received: Params, client: Params, work: Work) -> Params:
        """Its state for this scoring; by default what a client round, without upload, leaves."""
        return self.local(received, client, work)[1]


class Sequential(Method):
    """Beside a method: the clients of a round work one after another, because each hands something on to the next."""

    @property
    def in_turns(self) -> bool:
        """Whether they do, by the method's settings."""
        return True

    def hand_over(self, server: Params, upload: Params) -> Params | None:
        """What the next client of the round takes for the server's state; None: the server's state, like every client."""
        return None


class Gated(Method):
    """Beside a method: tuned models mix experts by a gate, and a run keeps its mean over each client's test images (`watch`)."""

    @abstractmethod
    def share(self, network: Network, model: Params, x: Tensor) -> Tensor:
        """The weight g [b] of the shared expert in a tuned model's answers on images x [b, C, H, W]."""


def floats_in(message: Params) -> int:
    """Floating-point numbers in a message."""
    return sum(tensor.numel() for tensor in message.values() if tensor.is_floating_point())


def stack(client: Params, clients: int) -> Params:
    """Give every one of N clients the same initial state: [...] -> [N, ...], N times the same memory (nothing writes into it)."""
    return {name: tensor.expand(clients, *tensor.shape) for name, tensor in client.items()}


def pack(prefix: str, params: Mapping[str, Tensor]) -> Params:
    """Put a prefix before every name, so that several models fit into one flat dict."""
    return {f"{prefix}/{name}": tensor for name, tensor in params.items()}


def unpack(prefix: str, params: Mapping[str, Value]) -> dict[str, Value]:
    """What `pack` put under a prefix, with its plain names."""
    return {
        name.removeprefix(f"{prefix}/"): value
        for name, value in params.items()
        if name.startswith(f"{prefix}/")
    }


def select(params: Params, row: int | Tensor) -> Params:
    """Row `row` of every stacked tensor: [rows, ...] -> [...]; a tensor of row numbers gives as many rows."""
    return {name: tensor[row] for name, tensor in params.items()}


def flatten(params: Params) -> Tensor:
    """Stacked parameters [S, ...] as one matrix [S, P]."""
    return torch.cat([tensor.flatten(1) for tensor in params.values()], 1)


def squared_distance(a: Params, b: Params) -> Tensor:
    """||a - b||^2 over all tensors of `a` but running statistics (a scalar)."""
    return torch.stack([((a[name] - b[name]) ** 2).sum() for name in a if not is_statistic(name)]).sum()


def pulled(loss: Loss, strength: float, anchor: Params) -> Loss:
    """A loss with a rubber band: loss(w) + strength/2 ||w - anchor||^2."""

    def with_pull(w: Params, batch: Batch) -> Tensor:
        return loss(w, batch) + strength / 2 * squared_distance(w, anchor)

    return with_pull


def train_mean(each: Tensor, work: Work) -> Tensor:
    """Mean over the client's training images of numbers [n, ...] that follow their order, padding left out."""
    size = work.size("train")
    real = (torch.arange(len(each), device=each.device) < size).to(each.dtype)  # [n]
    return mix(real, each) / size


def train_gradient(params: Params, work: Work) -> Params:
    """Gradient of f_i, the mean loss over all training images."""

    def total(w: Params, batch: Batch) -> Tensor:
        count = len(batch.y) if batch.real is None else batch.real.sum()
        return batch.loss(work.network(w, batch.x)) * count

    parts = [work.grad(total, params, batch) for batch in work.data("train")]
    return {name: torch.stack([part[name] for part in parts]).sum(0) / work.size("train") for name in params}
