"""Every setting of a run in one place, checked before any work starts."""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, get_args, get_type_hints

import torch

from pfl_lite import schema
from pfl_lite.data.images import SPLIT_MODES
from pfl_lite.data.partition import is_file, load_partition, pinned
from pfl_lite.errors import InputError, unknown
from pfl_lite.methods import METHODS, Method, convert, convert_settings, make_method, owners_of
from pfl_lite.methods.fedavg import FedAvg
from pfl_lite.models import auto_network

TUNING = tuple(dict.fromkeys(f"ft_{name}" for name, _, _ in schema.SGD_BOUNDS))
DTYPES = {"float32": torch.float32, "float64": torch.float64}
WORDS: dict[str, tuple[str, ...]] = {
    "split": tuple(SPLIT_MODES),
    "augment": ("none", "crop_flip"),
    "ft_mode": ("own_update", "plain_sgd"),
    "engine": ("loop", "vmap", "auto"),
    "dtype": tuple(DTYPES),
}
"""Settings that are one of some words."""
GONE = {"convolution"}
"""Settings of earlier versions, which stored results still name: they said how a run was computed."""
MACHINE_KEYS = {"device", "engine", "clients_per_batch", "graphs", "tf32", *GONE}
"""Settings of where and how a run is computed: it is the same run whatever they say, but for rounding."""


@dataclass(frozen=True)
class RunConfig:
    """One run: a method, a federation and a budget. Two runs of equal configurations give equal numbers on one processor."""

    method: Method = field(default_factory=FedAvg)
    """The method with its own hyper-parameters."""
    data: str = "digits"
    """Data set (`pfl-lite datasets`)."""
    model: str = "auto"
    """Network (`pfl-lite models`); `auto` is small_cnn for digits, glyphs and glyphs10, LeNet-5 otherwise; of a federation
    given, LeNet-5 for its 32x32 images, small_cnn for others, mlp for those below 4x4."""
    partition: str = "dirichlet:0.4"
    """How images are shared out: iid, pairs, classes:K, dirichlet:ALPHA, dirichlet_rounded:ALPHA, shares:K:A:B, groups:G:ALPHA,
    pachinko:ALPHA:BETA, blocks:G, concept:G, writers, writers:K; or a file of `pfl-lite partition --out clients.npz`."""
    split: str = "published"
    """Training and test images: the data set's (`published`); each client's own, merged and cut 80 : 20 (`fedem`); or all of them
    merged and cut 80 : 20 once, in the same way for every seed (`recut`)."""
    clients: int = 10
    """N, the number of clients; a partition's file says it itself."""
    rounds: int = 10
    """T, communication rounds; the most there are if `patience` may end the run."""
    patience: int = 0
    """End the run once the mean validation accuracy of the scored models (fine-tuned ones, with `ft_epochs`) has not risen for so
    many rounds; 0: play all rounds. The model that is kept is the last, not the best."""
    epochs: int = 1
    """E, local epochs per round."""
    batch_size: int = 64
    """Images per mini-batch; a client's data or more is one full batch."""
    lr: float = 0.1
    """Local learning rate eta."""
    momentum: float = 0.0
    """Momentum of local SGD; its buffers start fresh every round and phase."""
    weight_decay: float = 0.0
    """Weight decay of local SGD."""
    participation: float = 1.0
    """C: max(1, round(C N)) clients are sampled in each round, uniformly without replacement."""
    unseen: int = 0
    """Clients that are held out of training and only scored, each by its method's rule for newcomers."""
    val_fraction: float = 0.2
    """Share of the training images that become validation images; a partition's file says itself which these are.
    Another share also deals other training and test images of the same classes to the clients."""
    augment: str = "none"
    """What happens to the images of training mini-batches: `none`, or `crop_flip`, each image shifted by up to four pixels and
    mirrored or not, at random. What is scored or looked at is never augmented."""
    seed: int = 0
    """Seed of everything random: partition, initial parameters, sampling, batches."""
    ft_epochs: int = 0
    """Epochs of fine-tuning after the last round; 0 scores the method's own models."""
    ft_mode: str = "own_update"
    """`own_update`: the method's client routine once more; `plain_sgd`: SGD on the scored model."""
    ft_lr: float | None = None
    """Learning rate of fine-tuning (left out: the run's own)."""
    ft_momentum: float | None = None
    """Momentum of fine-tuning (left out: the run's own)."""
    ft_weight_decay: float | None = None
    """Weight decay of fine-tuning (left out: the run's own)."""
    ft_batch_size: int | None = None
    """Images per mini-batch of fine-tuning (left out: the run's own)."""
    ft_factors: str = ""
    """Factors of fine-tuning's learning rate that are tried after the last round, such as `0,0.1,1`; the one with the best mean
    validation accuracy is kept. 0 leaves the models as they are. Empty: the rate itself, whatever comes of it."""
    ft_every: int = 0
    """Also score fine-tuned models every so many rounds (0: only after the last)."""
    eval_every: int = 1
    """Score models every so many rounds; round 0 and the last always are."""
    whole_test: bool = False
    """Also score the final models on all test images: overall, and by class in the proportions of each client's training."""
    engine: str = "auto"
    """`loop` (one client after another), `vmap` (all as one batch); `auto`: loop on a CPU, vmap on a GPU."""
    device: str = "auto"
    """`cpu`, `cuda`, or `auto`: cuda where there is one."""
    dtype: str = "float32"
    """`float32` or `float64`."""
    clients_per_batch: int = 0
    """Of `vmap`: how many clients of like size at most are computed together; 0: all on a CPU, on a GPU as many as fit."""
    graphs: bool = True
    """Of `vmap` on a GPU: record the step of a training loop as a CUDA graph, and replay it. What a step asks of Python, such as
    a counter of one's own, is then asked while it is recorded only; False asks every time."""
    tf32: bool = False
    """On a GPU: products in TF32, which keeps 10 bits of a float32's 23; False: exact ones."""

    def __post_init__(self) -> None:
        given = {name: value for name, value in vars(self).items() if value is not None or name not in TUNING}
        schema.check_bounds(given)
        beside: schema.Bounds = (
            ("unseen", lambda count: count < self.clients, f"below clients ({self.clients})"),
            ("ft_factors", _are_factors, "numbers of 0 or more, as in 0,0.1,1"),
            *((name, words.__contains__, f"one of {', '.join(words)}") for name, words in WORDS.items()),
        )
        schema.check_bounds(vars(self), beside)
        for name in (*TUNING, "ft_mode", "ft_factors"):
            idle = getattr(self, name) == getattr(RunConfig, name) or self.ft_epochs > 0
            self._check_beside(name, idle, "left out unless ft_epochs is positive")
        idle = is_file(self.partition) and self.val_fraction != RunConfig.val_fraction
        self._check_beside(
            "val_fraction", not idle, "left out where a partition's file says who validates on what"
        )
        self._check_beside(
            "ft_every", self.ft_every == 0 or self.ft_epochs > 0, "0 unless ft_epochs is positive"
        )
        looked = self.ft_every if self.ft_epochs else self.eval_every
        wanted = "0, or at least as many rounds as lie between two looks at the scored models"
        self._check_beside(
            "patience", self.patience == 0 or 0 < looked <= self.patience, f"{wanted} ({looked})"
        )
        for name in ("patience", "ft_factors"):
            known = self.val_fraction > 0 or not getattr(self, name)
            self._check_beside(name, known, "left out where there are no validation images")
        check_device(self.device)

    def _check_beside(self, name: str, right: bool, wanted: str) -> None:
        """Refuse a setting that another one rules out: what is wrong with it is not its value."""
        if not right:
            raise InputError(f"{name} must be {wanted}")

    @property
    def tuning_factors(self) -> tuple[float, ...]:
        """The numbers in `ft_factors`."""
        return tuple(float(word) for word in self.ft_factors.split(",") if self.ft_factors)

    def resolved(self, size: int | None = None) -> RunConfig:
        """The same run with every `auto` replaced by what it means here, for images of a `size` if that is given already.

        A partition's file is pinned to its content: two runs of one configuration have the same clients.
        """
        device = self.device if self.device != "auto" else ("cuda" if torch.cuda.is_available() else "cpu")
        engine = self.engine if self.engine != "auto" else ("vmap" if device == "cuda" else "loop")
        if engine == "loop" and self.clients_per_batch:
            raise InputError(
                "clients_per_batch belongs to the engine vmap: leave it out, or use --engine vmap"
            )
        return replace(
            self,
            device=device,
            engine=engine,
            model=auto_network(self.model, self.data, size),
            partition=pinned(self.partition),
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain values, with the method's name under `name` and its hyper-parameters beside it."""
        return asdict(self) | {"method": {"name": self.method.name, **asdict(self.method)}}


KINDS: dict[str, type] = {
    name: (get_args(hint) or (hint,))[0]
    for name, hint in get_type_hints(RunConfig).items()
    if name != "method"
}
# The type of every setting but the method; of one that may be left out, without None. No docstring: see below.
_RULES = {int: schema.count, float: schema.number(0, schema.WIDE), str: schema.text, bool: schema.flag}
# The rules of a method with its settings, and of a configuration, in a file. No docstrings: a rule is a function of `schema`.
METHOD = schema.fields({"name": schema.text}, rest=lambda _: schema.scalar)
STORED = schema.fields(
    {"method": METHOD},
    {name: schema.nullable(_RULES[kind]) if name in TUNING else _RULES[kind] for name, kind in KINDS.items()},
    rest=lambda _: schema.scalar,
)


def with_defaults(stored: dict[str, Any]) -> dict[str, Any]:
    """A stored configuration with the settings, also of its method, that came later: at their defaults, or as it was `before`.

    Those that are gone are left out.
    """
    kept = {name: value for name, value in stored.items() if name not in GONE}
    filled = {f.name: f.default for f in fields(RunConfig) if f.name != "method"} | kept
    own = stored.get("method", {})
    kind = METHODS.get(own.get("name", ""))
    if kind is None:
        return filled
    return filled | {"method": {f.name: f.metadata.get("before", f.default) for f in fields(kind)} | own}


def _are_factors(text: str) -> bool:
    """Whether `ft_factors` may be this text."""
    try:
        return all(0 <= float(word) < float("inf") for word in text.split(",") if text)
    except ValueError:
        return False


def check_device(device: str, valid: tuple[str, ...] = ("auto", "cpu", "cuda")) -> None:
    """Raise an InputError for a device that does not exist, or not here."""
    if device.startswith("cuda:"):
        raise InputError(
            f"device {device} is called cuda here: the variable CUDA_VISIBLE_DEVICES={device.removeprefix('cuda:')} "
            "chooses one GPU of several"
        )
    if device not in valid:
        raise InputError(f"device must be one of {', '.join(valid)}, not '{device}'")
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError(
            "device cuda was asked for, but torch finds no CUDA device here: use cpu (--device cpu, or auto)"
        )


def make_config(method: str | Method, **settings: Any) -> RunConfig:
    """A checked configuration from a method (or its name) and settings; unknown names belong to the method.

    Raises:
        InputError: an unknown method or setting, a value of the wrong type or out of range.
    """
    if not isinstance(method, str | Method | type):
        raise InputError(
            f"a method is a name, as 'fedavg', or FedAvg() with its settings, not {type(method).__name__}"
            + ": Simulation(config).run() runs a configuration" * isinstance(method, RunConfig)
        )
    if isinstance(method, type):
        raise InputError(f"a method is given by its name or with its settings: write {method.__name__}()")
    own = {name: value for name, value in settings.items() if name not in KINDS}
    kind = METHODS.get(method) if isinstance(method, str) else type(method)
    if kind is not None and (strange := own.keys() - {f.name for f in fields(kind)}):
        its, name = [f.name for f in fields(kind)], sorted(strange)[0]
        owners = owners_of(name)
        others = f"{name} is a setting of {', '.join(owners)}; " if owners else ""
        listed = (
            f"its own: {', '.join(its) or 'none'}; {others}`pfl-lite run --help` lists those of every run"
        )
        raise unknown(f"setting of {kind.name}", name, [*its, *KINDS], listed)
    if isinstance(method, str):
        method = make_method(method, **own)
    elif own:
        method = replace(method, **convert_settings(type(method), own))
    run = {
        name: convert(name, value, KINDS[name])
        for name, value in settings.items()
        if name in KINDS and not (value is None and name in TUNING)
    }
    if is_file(run.get("partition")) and "clients" not in run:
        run["clients"] = len(load_partition(run["partition"]))
    config = RunConfig(method=method, **({"ft_epochs": method.ft_epochs} | run))
    if advice := method.advise(config):
        warnings.warn(advice, stacklevel=2)
    return config
