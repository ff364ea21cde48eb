"""PFL-MoE: FedAvg, then every client mixes the global model with one of its own by a gate."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pfl_lite.errors import InputError
from pfl_lite.methods.base import Batch, Carry, Gated, RunSettings, Work, number, pack, stack, unpack, word
from pfl_lite.methods.fedavg import FedAvg
from pfl_lite.methods.gate import FIXED_BIAS, GateOptimizer, fresh_gate, gate_logit
from pfl_lite.methods.split import Cut
from pfl_lite.models import Network, Params

SMALLEST = 4  # images: with fewer, a quarter of them is none


@dataclass(frozen=True)
class PFLMoE(FedAvg, Gated):
    """Guo et al. (2021), algorithm 1: y = g M(theta; x) + (1 - g) M(theta_i; x), g = sigmoid(G(w_i; x)) (eqs 8, 9).

    Training is FedAvg's. Then each client, sending nothing, tunes all layers of its expert theta_i on three quarters of its
    images (eq. 6) and its gate w_i, one linear layer on the pixels, on the other quarter (eq. 10), `ft_epochs` epochs each. The
    experts stay as they are while the gate learns. All gates start alike. A client of fewer than four images has none: g = 0.

    The paper trains both in turns, the gate by SGD; its code first all epochs of the expert, then all of the gate, by Adam with
    weight decay: `schedule=sequential gate_optimizer=adam gate_decay=0.0005`. The paper's "outputs" are logits in its code. The
    share of the two parts (3 : 1) is the code's. Chapter: *A gate between two experts*.
    """

    name = "pfl_moe"
    about = "FedAvg, then a gate at every client mixes the global model and a tuned one"
    ft_epochs = 1

    mix: str = word("logits", "probs")
    """What is mixed: `logits`, or `probs`, the probabilities."""
    schedule: str = word("interleaved", "sequential")
    """`interleaved`: the expert's epochs and the gate's take turns; `sequential`: first the expert's, then the gate's."""
    gate_optimizer: str = word("sgd", "adam")
    """Of the gate: `sgd` without momentum, or `adam`."""
    gate_lr: float = number(0.001, least=0)
    """The gate's learning rate beta."""
    gate_decay: float = number(0.0, least=0)
    """Weight decay of the gate, added to the gradient."""
    gate_experts: str = word("eval", "train")
    """How the experts answer while the gate learns, where a network has dropout: as in use (`eval`), or with it (`train`)."""
    gate: str = word("learned", *FIXED_BIAS)
    """`learned`, or fixed: `global` (g = 1: FedAvg), `personal` (g = 0: the tuned expert), `equal` (g = 1/2: their mean)."""

    def advise(self, run: RunSettings, sizes: Tensor | None = None) -> str | None:
        if sizes is None:
            return None
        few = int((sizes < SMALLEST).sum())
        if self.gate != "learned" or not run.ft_epochs or not few:
            return None
        return (
            f"{self.name}: {few} of {len(sizes)} clients have fewer than {SMALLEST} training images, none of them for a "
            "gate: they use their own expert alone (g = 0)"
        )

    # ---- the mixture ----------------------------------------------------------------------------------------------

    def cut(self, network: Network) -> Cut:
        """The network cut below what the client's expert tunes; raises InputError for a cut that cannot be."""
        return Cut(network, next(iter(network.layers)), self.name)

    def gate_reads(self, cut: Cut, theta: Params, x: Tensor, read: Tensor) -> Tensor:
        """The gate's input [b, d], from images x and what the cut's upper part reads of them: the pixels."""
        return x.flatten(1)

    def share(self, network: Network, model: Params, x: Tensor) -> Tensor:
        """g [b] of a model on images x [b, C, H, W]: the weight of the global expert (eq. 8), alone before fine-tuning."""
        if "gate/weight" not in model:
            return x.new_ones(len(x))
        cut, theta = self.cut(network), unpack("global", model)
        return gate_logit(model, self.gate_reads(cut, theta, x, cut.below(theta, x))).sigmoid()

    def mixture(self, z: Tensor, general: Tensor, own: Tensor) -> Tensor:
        """The experts' logits [b, K] mixed by g = sigmoid(z), z [b] (eq. 9); the logarithm where probabilities are mixed."""
        z = z[:, None]
        if self.mix == "logits":
            return z.sigmoid() * general + (-z).sigmoid() * own
        return torch.logaddexp(
            F.logsigmoid(z) + general.log_softmax(1), F.logsigmoid(-z) + own.log_softmax(1)
        )

    def predict(self, network: Network, model: Params, x: Tensor) -> Tensor:
        if "gate/weight" not in model:  # before fine-tuning there is the global model alone
            return network(model, x)
        cut, theta = self.cut(network), unpack("global", model)
        read = cut.below(theta, x)  # both experts read the same
        z = gate_logit(model, self.gate_reads(cut, theta, x, read))
        general, own = (cut.above(network, expert, read) for expert in (theta, unpack("expert", model)))
        return self.mixture(z, general, own)

    def to_module(self, network: Network, model: Params) -> nn.Module:
        mixed = "gate/weight" in model
        return super().to_module(network, model) if mixed else network.to_module(model)

    # ---- training -------------------------------------------------------------------------------------------------

    def initial(self, network: Network, clients: int, seed: int) -> Params:
        if self.mix == "probs" and network.classes == 1:
            raise InputError(f"{self.name}: one output has no probabilities to mix, use mix=logits")
        start, cut = network.init(seed), self.cut(network)
        image = torch.zeros(1, *network.shape, dtype=network.dtype, device=network.device)
        width = self.gate_reads(cut, start, image, cut.below(start, image)).shape[1]
        gate = fresh_gate(width, seed)
        return start | {name: tensor.to(network.device, network.dtype) for name, tensor in gate.items()}

    def init(self, start: Params, network: Network, clients: int) -> tuple[Params, Params]:
        gate = pack("gate", unpack("gate", start))
        return {name: tensor for name, tensor in start.items() if name not in gate}, stack(gate, clients)

    def fine_tune(self, received: Params, client: Params, work: Work, rule: str) -> Params:
        cut, network = self.cut(work.network), work.network
        read = cut.reader(work, received)
        in_use = self.gate_experts == "eval"

        def logits(params: Params) -> Callable[[Batch], Tensor]:
            """An expert's logits [b, K], as the gate sees them."""
            return lambda batch: cut.above(network if in_use else work.training(batch), params, read(batch))

        general = work.fixed(logits(received)) if in_use else logits(received)
        gate_input = work.fixed(lambda batch: self.gate_reads(cut, received, batch.x, read(batch)))

        loss_of_head = cut.loss(work, received, read)

        def tune(expert: Carry, batch: Batch) -> Carry:
            return sgd.step(expert, work.grad(loss_of_head, expert[0], batch)) if expert[0] else expert

        def learn(own: Callable[[Batch], Tensor]) -> Callable[[Carry, Batch], Carry]:
            def loss_of_gate(gate: Params, batch: Batch) -> Tensor:
                z = gate_logit(gate, gate_input(batch))  # [b]
                return batch.loss(self.mixture(z, general(batch), own(batch)))

            return lambda gate, batch: optimizer.step(gate, work.grad(loss_of_gate, gate[0], batch))

        sgd, optimizer = work.optimizer, GateOptimizer(self.gate_optimizer, self.gate_lr, self.gate_decay)
        expert = sgd.start(cut.start(received))
        gate = optimizer.start(self.gate_start(client, work))
        epochs, gate_epochs = work.epochs(part="per"), work.epochs("gate", part="gate")
        turns: Iterable[tuple[Iterable[Batch], Iterable[Batch]]]
        turns = [(chain.from_iterable(epochs), chain.from_iterable(gate_epochs))]  # one of all epochs
        if self.gate == "learned" and self.schedule == "interleaved":
            turns = zip(epochs, gate_epochs, strict=True)  # one an epoch
        for turn, gate_turn in turns:
            expert = work.over_batches(tune, expert, turn)
            if self.gate == "learned":
                own = logits(received | expert[0])
                own = work.fixed(own) if in_use and self.schedule == "sequential" else own
                gate = work.over_batches(learn(own), gate, gate_turn)
        return pack("global", received) | pack("expert", received | expert[0]) | gate[0]

    def gate_start(self, client: Params, work: Work) -> Params:
        """The gate before its first step; one that will not learn is what its bias makes it."""
        learned = self.gate == "learned"
        idle = torch.as_tensor(work.size("train") < SMALLEST if learned else True, device=work.network.device)
        as_fixed = {"gate/weight": 0.0, "gate/bias": FIXED_BIAS["personal" if learned else self.gate]}
        return {name: torch.where(idle, as_fixed[name], tensor) for name, tensor in client.items()}

    def inspect(self, server: Params, clients: Params) -> tuple[Params, Params]:
        return server, {}  # only where the gates start
