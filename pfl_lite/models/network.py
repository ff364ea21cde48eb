"""A network as a function of its parameters, so that one network serves every client."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call

from pfl_lite.errors import InputError
from pfl_lite.models.train_mode import DROPOUTS, check_layers, is_statistic, training_twin
from pfl_lite.seeds import generator

Params = dict[str, Tensor]


@contextmanager
def torch_seeded(seed: int, purpose: str, *numbers: int) -> Iterator[None]:
    """A block in which torch's global generator draws the start values of one purpose, and after which it is as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(generator(seed, purpose, *numbers).integers(2**62)))
        yield


def layers_of(names: Iterable[str]) -> dict[str, list[str]]:
    """Group parameter names by the layer that holds them, in order: `conv1.weight`, `conv1.bias` belong to `conv1`."""
    layers: dict[str, list[str]] = {}
    for name in names:
        layers.setdefault(name.rpartition(".")[0], []).append(name)
    return layers


def floats_of(module: nn.Module) -> Params:
    """Parameters and running statistics of a module, layer by layer; counters are left out."""
    return {name: tensor for name, tensor in module.state_dict().items() if tensor.is_floating_point()}


class Parts(nn.Module):
    """A network in two parts, `classify(extract(x))`: the convolutions with their pooling, and the layers after them."""

    def extract(self, x: Tensor) -> Tensor:
        """What the first layer after the convolutions reads, flattened [b, d]: the pixels of a network without convolutions."""
        return x.flatten(1)

    def hidden(self, a: Tensor) -> Tensor:
        """What the last layer reads [b, h], from what `extract` gives."""
        return a

    def classify(self, a: Tensor) -> Tensor:
        """Logits [b, K] from what `extract` gives: by the layer that was made last, of what `hidden` gives."""
        return list(self.children())[-1](self.hidden(a))

    def features(self, x: Tensor) -> Tensor:
        """What the last layer reads [b, h], of images x [b, C, H, W]."""
        return self.hidden(self.extract(x))

    def forward(self, x: Tensor) -> Tensor:
        """Logits [b, K] of images x [b, C, H, W]."""
        return self.classify(self.extract(x))


class MethodAsModule(nn.Module):
    """One method of a module as a module, so that it can be called with other parameters."""

    def __init__(self, network: nn.Module, method: str) -> None:
        super().__init__()
        self.network, self.method = network, method

    def forward(self, x: Tensor) -> Tensor:
        return getattr(self.network, self.method)(x)


class Predictor(nn.Module):
    """A prediction rule with its own parameters as a plain torch module, for models that are more than one plain network."""

    def __init__(self, network: Network, rule: Callable[..., Tensor], model: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._network, self._rule = network, rule
        # torch forbids dots in the names of a ParameterDict, and "/" may stand in them
        self.model = nn.ParameterDict({name.replace(".", "|"): nn.Parameter(t) for name, t in model.items()})

    def forward(self, x: Tensor) -> Tensor:
        """Logits [b, K] of images x [b, C, H, W]."""
        model = {name.replace("|", "."): tensor for name, tensor in self.model.items()}
        return self._rule(self._network, model, x)


class Network:
    """A plain torch module used as a function: `network(params, x) -> logits`.

    The module is only a template; the parameters are passed in at every call, under torch's own names. Running statistics of
    batch norm are among them. A call is made in evaluation mode; `training` gives the network in training mode.

    Args:
        name: the name under which the network is listed.
        build: makes a fresh module, drawing its initial values from torch's global generator.
        dtype: floating-point type of the parameters.
        device: where the parameters live.
        shape: (C, H, W) of the images it is made for.

    Raises:
        InputError: a layer would not train here as torch trains it (see `train_mode.misfit`).
    """

    def __init__(
        self,
        name: str,
        build: Callable[[], nn.Module],
        *,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
        shape: tuple[int, ...] = (),
    ) -> None:
        self.name, self.build, self.dtype, self.device, self.shape = name, build, dtype, device, shape
        with torch.random.fork_rng(devices=[]):  # its random values are never used
            self._template = build()
        check_layers(name, self._template)
        self._template.to(device=device, dtype=dtype).eval()
        self.layers = layers_of(floats_of(self._template))
        self._own = {name for layer in self.layers.values() for name in layer}
        self.dropout = any(isinstance(layer, DROPOUTS) for layer in self._template.modules())
        self.batch_norm = any(is_statistic(name) for layer in self.layers.values() for name in layer)
        self._resized: dict[int, Network] = {}
        twin = training_twin(self._template)
        self._twin: Network | None = None
        if twin is not None:
            self._twin = copy.copy(self)
            self._twin._template, self._moving = twin

    def try_out(self, classes: int) -> None:
        """Raise an InputError unless the module makes logits [2, K] of two images, and draws no random numbers of its own.

        Where `Parts` answers `classify` for it, the layer made last must be the one that `classify` alone asks.
        """
        trial, answers = copy.deepcopy(self._template).cpu().train(), []
        for layer in trial.modules():
            if isinstance(layer, DROPOUTS):
                layer.p = 0.0
        x = torch.linspace(-1, 1, 2 * math.prod(self.shape), dtype=self.dtype).reshape(2, *self.shape)
        if isinstance(trial, Parts) and type(trial).classify is Parts.classify:
            name, last = list(trial.named_children())[-1]
            early: list[object] = []
            hook = last.register_forward_hook(lambda *call: early.append(call))
            with torch_seeded(0, "trial"), torch.no_grad():
                trial.features(x)
            hook.remove()
            if early:
                raise InputError(
                    f"network {self.name} makes its layer '{name}' last, but `extract` or `hidden` asks it: make layers in the "
                    "order in which an image goes through them, or answer `classify`"
                )
        for seed in (0, 1):
            with torch_seeded(seed, "trial"), torch.no_grad():
                answers.append(trial(x))
        shapes = [tuple(one.shape) if isinstance(one, Tensor) else type(one).__name__ for one in answers]
        if shapes[0] != (2, classes):
            raise InputError(
                f"network {self.name} must answer with logits [images, {classes}], not with {shapes[0]} for two images"
            )
        if not torch.equal(*answers):
            raise InputError(
                f"network {self.name} draws random numbers in its `forward`, which cannot be repeated here: "
                "write dropout as a layer, nn.Dropout"
            )

    @property
    def parameters(self) -> int:
        """How many floats the plain network learns (P in the papers); running statistics are not among them."""
        return sum(tensor.numel() for tensor in self._template.parameters())

    def __call__(self, params: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Logits [b, K] of images x [b, C, H, W] under the given parameters.

        Raises:
            InputError: a parameter is missing, or has a name that is not the network's.
        """
        if self._own - params.keys():  # else the template's random values would be used
            raise InputError(f"network {self.name} needs its parameter '{min(self._own - params.keys())}'")
        try:
            return functional_call(self._template, dict(params), (x,))
        except AttributeError as error:
            if strange := [name for name in params if name not in self._own]:
                raise InputError(
                    f"network {self.name} has no parameter '{strange[0]}' (its own: {', '.join(sorted(self._own))}): "
                    "`unpack(prefix, params)` takes off the prefix that `pack` put before a name"
                ) from error
            raise

    def features(self, params: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """What the last layer reads [b, d], for images x [b, C, H, W]; the last layer's own parameters are not used."""
        below = [name for layer in list(self.layers)[:-1] for name in self.layers[layer]]
        return self._part("features", {name: params[name] for name in below}, x)

    def extract(self, params: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """What the first layer after the convolutions reads [b, d], for images x [b, C, H, W]; only their parameters are used."""
        return self._part("extract", params, x)

    def classify(self, params: Mapping[str, Tensor], a: Tensor) -> Tensor:
        """Logits [b, K] from what `extract` gives [b, d]; the parameters of the convolutions are not used."""
        return self._part("classify", params, a)

    def check_part(self, method: str) -> None:
        """Raise an InputError unless the network can be asked for a part: `features`, `extract` or `classify`."""
        if not hasattr(self._template, method):
            raise InputError(
                f"this method asks for `{method}`, which network {self.name} has not: derive its class from "
                "`pfl_lite.models.Parts`, and answer `extract`, `hidden` and `classify`"
            )

    def _part(self, method: str, params: Mapping[str, Tensor], x: Tensor) -> Tensor:
        self.check_part(method)
        part = MethodAsModule(self._template, method)
        return functional_call(part, {f"network.{name}": tensor for name, tensor in params.items()}, (x,))

    def training(self, key: Tensor | None, real: Tensor | None = None) -> Network:
        """The network in training mode for one mini-batch, until asked for the next; itself without dropout and batch norm.

        Args:
            key: int64 [], decides the dropout masks.
            real: [b], 0 for images that are padding and are left out of the batch's statistics.
        """
        if self._twin is None:
            return self
        for layer in self._moving:
            layer.key, layer.real = key, real  # type: ignore[assignment]
        return self._twin

    def resized(self, outputs: int) -> Network:
        """The same architecture with another number of outputs of the last layer, made once."""
        if outputs in self._resized:
            return self._resized[outputs]

        def build() -> nn.Module:
            module = self.build()
            above, _, name = self.last.rpartition(".")
            setattr(
                module.get_submodule(above), name, nn.Linear(self._classifier(module).in_features, outputs)
            )
            return module

        self._resized[outputs] = Network(
            self.name, build, dtype=self.dtype, device=self.device, shape=self.shape
        )
        return self._resized[outputs]

    @property
    def last(self) -> str:
        """Name of the last layer, the classifier."""
        return list(self.layers)[-1]

    @property
    def classes(self) -> int:
        """K, outputs of the last layer."""
        return self._classifier(self._template).out_features

    def _classifier(self, module: nn.Module) -> nn.Linear:
        """The last layer of a module of this network.

        Raises:
            InputError: it is not `nn.Linear` with a bias.
        """
        layer = module.get_submodule(self.last)
        if not isinstance(layer, nn.Linear) or layer.bias is None:
            raise InputError(
                f"this method needs nn.Linear with a bias as the last layer that network {self.name} creates, "
                f"not {type(layer).__name__} {self.last}"
            )
        return layer

    def is_dense(self, layer: str) -> bool:
        """Whether a layer's weight is a matrix, and not a stack of filters or the scale of a batch norm."""
        weight = getattr(self._template.get_submodule(layer), "weight", None)
        return weight is not None and weight.dim() == 2

    @property
    def in_parts(self) -> bool:
        """Whether `extract` and `classify` can be asked for."""
        return isinstance(self._template, Parts)

    def init(self, seed: int, copy: int = 0) -> Params:
        """Initial parameters number `copy`; different copies are independent draws."""
        with torch_seeded(seed, "initial parameters", copy):
            module = self.build()
            if (fetch := getattr(module, "load_pretrained", None)) is not None:
                fetch()
        return {name: t.detach().to(self.device, self.dtype) for name, t in floats_of(module).items()}

    def to_module(self, params: Mapping[str, Tensor]) -> nn.Module:
        """A plain torch module that holds these parameters.

        Raises:
            InputError: names or shapes do not fit this network (from `load_state_dict`).
        """
        module = self.build().to(next(iter(params.values())).dtype).eval()
        counters = {name: t for name, t in module.state_dict().items() if not t.is_floating_point()}
        try:
            module.load_state_dict(
                counters | {name: tensor.detach().cpu() for name, tensor in params.items()}
            )
        except RuntimeError as error:
            wants = {name: tuple(tensor.shape) for name, tensor in floats_of(module).items()}
            found = {name: tuple(tensor.shape) for name, tensor in params.items()}
            name = next(name for name in [*wants, *found] if wants.get(name) != found.get(name))
            many = name in found and found[name][1:] == wants.get(name)
            raise InputError(
                f"these parameters do not fit the network {self.name}: {name} is {wants.get(name, 'not there')} in the network, "
                f"{found.get(name, 'not there')} among the parameters"
                + " (one more axis in front is several models)"
                * many
            ) from error
        return module
