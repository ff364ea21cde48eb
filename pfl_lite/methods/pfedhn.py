"""pFedHN: a network at the server that writes the clients' networks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pfl_lite.methods.base import Method, Round, Traits, Work, number, pack, unpack
from pfl_lite.models import Network, Params
from pfl_lite.models.network import torch_seeded


@dataclass(frozen=True)
class PFedHN(Method):
    """Shamsian et al. (2021), algorithm 1: theta_i = h(e_i; phi); the client's change moves phi and e_i through the chain rule.

    h is an MLP on the client's embedding with one linear head a parameter tensor of the client's network. The paper takes one
    client a step; a round here takes the mean over the sampled ones, so that S of the paper's steps are one of ours. phi and e
    never leave the server. A client that never took part has its initial embedding, but for weight decay.
    Chapter: *Generated models*.
    """

    name = "pfedhn"
    about = "a hypernetwork at the server generates every client's model from an embedding"
    tracked = ("embedding",)
    traits = Traits(fits_batch_norm=False)
    finetune = "plain_sgd"

    embedding: int = number(0, least=0)
    """Numbers in a client's embedding; 0: 1 + N // 4."""
    hidden: int = number(100, least=1)
    """Width of the hypernetwork's hidden layers."""
    depth: int = number(3, least=0)
    """How many there are; 0: every head is linear in the embedding."""
    server_lr: float = number(0.01, above=0)
    """Learning rate of hypernetwork and embeddings."""
    server_momentum: float = number(0.9, least=0, below=1)
    """Their momentum, kept from round to round."""
    server_decay: float = number(0.001, least=0)
    """Their weight decay."""
    clip: float = number(50.0, above=0)
    """Largest norm of their gradient."""

    def initial(self, network: Network, clients: int, seed: int) -> Params:
        plain = network.init(seed)
        width = self.embedding or 1 + clients // 4
        with torch_seeded(seed, "hypernetwork"):
            embedding = torch.randn(clients, width)
            layers: dict[str, nn.Linear] = {}
            for d in range(1, self.depth + 1):
                layers[f"hidden{d}"], width = nn.Linear(width, self.hidden), self.hidden
            layers |= {name: nn.Linear(width, tensor.numel()) for name, tensor in plain.items()}
        phi: Params = {
            f"{name}.{part}": t for name, layer in layers.items() for part, t in layer.named_parameters()
        }
        # a head's bias has the shape of what it writes, so that it need not be remembered
        phi |= {f"{name}.bias": phi[f"{name}.bias"].view(tensor.shape) for name, tensor in plain.items()}
        like = next(iter(plain.values()))
        return {k: t.detach().to(like) for k, t in (pack("hyper", phi) | {"embedding": embedding}).items()}

    def init(self, start: Params, network: Network, clients: int) -> tuple[Params, Params]:
        return start | pack("velocity", {name: torch.zeros_like(t) for name, t in start.items()}), {}

    def generate(self, server: Params, embedding: Tensor) -> Params:
        """theta = h(e; phi), the parameters [...] of a client's network from its embedding [e]; or [S, ...] from [S, e]."""
        phi, x = unpack("hyper", server), embedding
        for d in range(1, self.depth + 1):
            x = F.relu(F.linear(x, phi[f"hidden{d}.weight"], phi[f"hidden{d}.bias"]))  # [..., hidden]
        heads = [name.removesuffix(".bias") for name in phi if name.endswith(".bias")][self.depth :]
        written = {name: F.linear(x, phi[f"{name}.weight"]) for name in heads}  # [floats of a tensor]
        biases = {name: phi[f"{name}.bias"] for name in heads}
        return {
            name: w.view(*x.shape[:-1], *biases[name].shape) + biases[name] for name, w in written.items()
        }

    def download(self, server: Params, client: Params, id: int | Tensor) -> Params:
        return self.generate(server, server["embedding"][id])

    def local(self, received: Params, client: Params, work: Work) -> tuple[Params, Params]:
        trained = work.sgd(work.loss, received)
        return {name: w - trained[name] for name, w in received.items()}, client  # delta_i

    def aggregate(self, server: Params, uploads: Params, round: Round) -> Params:
        own = {name: tensor for name, tensor in server.items() if not name.startswith("velocity/")}
        with torch.enable_grad():
            leaves = {name: tensor.detach().requires_grad_() for name, tensor in own.items()}
            theta = self.generate(leaves, leaves["embedding"][round.ids])  # [S, ...]
            change = torch.stack([(theta[name] * uploads[name]).sum() for name in theta]).sum()
            values = torch.autograd.grad(change / len(round.ids), list(leaves.values()))
        norm = torch.stack([g.norm() for g in values]).norm()
        shrink = (self.clip / norm.clamp_min(torch.finfo(norm.dtype).tiny)).clamp_max(1)
        moved: Params = {}
        for (name, w), gradient in zip(own.items(), values, strict=True):  # torch's SGD
            step = shrink * gradient + self.server_decay * w
            velocity = self.server_momentum * server[f"velocity/{name}"] + step
            moved |= {name: w - self.server_lr * velocity, f"velocity/{name}": velocity}
        return moved

    def personal(self, received: Params, client: Params, work: Work) -> Params:
        return received

    def inspect(self, server: Params, clients: Params) -> tuple[Params, Params]:
        return pack("hyper", unpack("hyper", server)), {"embedding": server["embedding"]}  # [N, e]
