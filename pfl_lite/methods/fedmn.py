"""FedMN: a pool of blocks, and a network that reads a client's data and chooses its blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from pfl_lite.errors import InputError
from pfl_lite.methods.base import (
    Batch,
    Carry,
    Round,
    RunSettings,
    Sequential,
    Work,
    check_at_least,
    check_choice,
    check_positive,
    pack,
    stack,
    unpack,
)
from pfl_lite.methods.blocks import block_means, floats_in_use, where_used
from pfl_lite.methods.weighted_mean import weighted_mean
from pfl_lite.models import Network, Params
from pfl_lite.models.modular import (
    ModularNetwork,
    decisions,
    held,
    in_use,
    safety_path,
)
from pfl_lite.models.network import Predictor, layers_of
from pfl_lite.models.router import Router, concrete
from pfl_lite.models.training import fold
from pfl_lite.seeds import generator

MOST_DECISIONS = 1_000_000


@dataclass(frozen=True)
class FedMN(Sequential):
    """Wang et al. (2022), algorithm 1: a router reads all training images and labels and says which blocks a client uses.

    A round: logit Pi = the router's mean output (eqs. 9-10), one V from the binary concrete distribution (eq. 5), local SGD on
    encoders, router and the active blocks, and means over the clients that used a block. Where the paper is silent or
    contradicts itself: bits are hard and the router learns straight through them, where the client has what a bit would read;
    the noise is drawn once a round (the paper's rounds have one epoch), the gradient's logits come from the mini-batch; a link
    from an inactive block is void, and a last block without output bit is not fetched either; where nothing would reach the
    output the likeliest link is switched on; block means are normalised (as printed, a block that not everybody uses shrinks);
    clients work in parallel; scored is V = 1[Pi > 1/2] of the final router on training images. The router's mean parts images
    from labels: clients that differ only in which label goes with which image get equal Pi.
    Chapter: *Assembling a network per client*.
    """

    name: ClassVar[str] = "fedmn"
    about: ClassVar[str] = (
        "a pool of blocks; a network reads a client's data and chooses which of them it uses"
    )
    tracked: ClassVar[tuple[str, ...]] = ("logits", "active")
    needs_rng_key: ClassVar[bool] = True
    anneals: ClassVar[bool] = True

    blocks: str = "2x2x2"
    """n_1 x ... x n_L: encoders, then blocks in every layer; L is 2 or more."""
    encoder_width: int = 512
    """Outputs of an encoder."""
    width: int = 256
    """Outputs of a hidden block."""
    router_width: int = 128
    """d_x, outputs of the router's image encoder."""
    label_width: int = 64
    """d_y, outputs of the router's label encoder."""
    dropout: float = 0.5
    """Share of a hidden block's outputs that training removes."""
    block_std: float = 0.01
    """Standard deviation of the blocks' first weights; the default is the released code's."""
    gate: str = "st"
    """`st`: hard bits, straight-through gradient; `soft`: v itself, nothing inactive; `sample`: new bits every mini-batch."""
    aggregation: str = "normalized"
    """`normalized` (a block by the sizes of its users), `literal` (as printed), `delta` (of changes), `code` (no sizes)."""
    schedule: str = "parallel"
    """`parallel`: all start from the server's model; `sequential`: from what those before them in the round made of it."""
    infer: str = "threshold"
    """Bits for scoring: `threshold`: 1[Pi > 1/2]; `last_sample`: those of the client's last round."""
    routing: str = "learned"
    """`learned`; `random`: fair bits, drawn once a client; `all`: every bit is 1. The last two have no router."""
    tau_start: float = 1.0
    """Temperature in the first round."""
    tau_end: float = 0.1
    """Temperature in the last; it falls exponentially."""
    pretrain: int = 0
    """Rounds of FedAvg on the plain network, whose layers below the last then start every encoder."""

    def __post_init__(self) -> None:
        sizes = self.blocks.split("x")
        if len(sizes) < 2 or not all(size.isdecimal() and int(size) for size in sizes):
            raise InputError(
                "fedmn: blocks must be two or more whole numbers above 0, one a layer, such as 2x2x2, "
                f"not '{self.blocks}'"
            )
        if decisions(self.layers) > MOST_DECISIONS:
            raise InputError(
                f"fedmn: blocks={self.blocks} has {decisions(self.layers):,} decisions, more than {MOST_DECISIONS:,}"
            )
        check_at_least(
            self.name, encoder_width=(self.encoder_width, 1), width=(self.width, 1), pretrain=(self.pretrain, 0),
            router_width=(self.router_width, 1), label_width=(self.label_width, 1), dropout=(self.dropout, 0),
        )  # fmt: skip
        if self.dropout >= 1:
            raise InputError(f"fedmn: dropout must be below 1, not {self.dropout}")
        check_positive(self.name, block_std=self.block_std, tau_start=self.tau_start, tau_end=self.tau_end)
        check_choice(
            self.name,
            gate=(self.gate, ("st", "soft", "sample")),
            aggregation=(self.aggregation, ("normalized", "literal", "delta", "code")),
            schedule=(self.schedule, ("parallel", "sequential")),
            infer=(self.infer, ("threshold", "last_sample")),
            routing=(self.routing, ("learned", "random", "all")),
        )

    def advise(self, run: RunSettings, sizes: Tensor | None = None) -> str | None:
        if run.rounds <= self.pretrain:
            raise InputError(f"fedmn: rounds must be more than pretrain ({self.pretrain}), not {run.rounds}")
        if self.in_turns and run.resolved().engine == "vmap":
            raise InputError("fedmn: schedule sequential needs clients one after another: use --engine loop")
        return None

    # ---- the parts -------------------------------------------------------------------------------------------------

    @property
    def layers(self) -> tuple[int, ...]:
        """n_1, ..., n_L."""
        return tuple(int(size) for size in self.blocks.split("x"))

    @property
    def learned(self) -> bool:
        """Whether there is a router."""
        return self.routing == "learned"

    @property
    def selective(self) -> bool:
        """Whether only active blocks travel: soft gates and gates drawn for every mini-batch may need each."""
        return self.gate == "st" or not self.learned

    def modules(self, network: Network) -> ModularNetwork:
        """The encoders and blocks."""
        return ModularNetwork(
            *(network, self.layers, self.encoder_width, self.width, network.classes),
            *(self.dropout, self.block_std),
        )

    def router(self, network: Network) -> Router:
        """The network that decides which blocks a client uses."""
        encoder = network.resized(self.router_width)
        return Router(encoder, self.label_width, network.classes, decisions(self.layers))

    def initial(self, network: Network, clients: int, seed: int) -> Params:
        if self.pretrain and len(network.layers) < 2:
            raise InputError(
                f"fedmn: pretrain trains the layers below the last, and {network.name} has none: use pretrain=0"
            )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(generator(seed, "blocks and router").integers(2**62)))
            start = self.modules(network).init(seed)
            if self.learned:
                start |= pack("router", self.router(network).init(seed, copy=self.layers[0]))
        return start | (pack("plain", network.init(seed)) if self.pretrain else {})

    def init(self, start: Params, network: Network, clients: int) -> tuple[Params, Params]:
        like, total = next(iter(start.values())), decisions(self.layers)
        state = {"logits": like.new_zeros(total), "bits": like.new_zeros(total)}
        state |= {
            "active": like.new_zeros(sum(self.layers[1:])),
            "safety": like.new_zeros((), dtype=torch.int64),
        }
        return start, stack(state, clients)

    def decide(self, model: Params, work: Work, eps: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """logit Pi [E] of this client, its bits [E] = 1[v > 1/2] (1[Pi > 1/2] without noise), and switches of the safety path."""
        total, like = decisions(self.layers), next(iter(model.values()))
        scores, bits = like.new_zeros(total), like.new_ones(total)
        if self.routing == "random":
            bits = (work.uniform("fixed routes", (total,), fixed=True) > 0.5).to(like)
        if self.learned:
            router, params = self.router(work.network), unpack("router", model)
            scores = work.train_mean(torch.cat([router(params, b.x, b.y) for b in work.data("train")]))
            chosen = scores > 0 if eps is None else concrete(eps, scores, self.temperature(work)) > 0.5
            bits = chosen.to(like)
        return scores, *safety_path(bits, scores, self.layers)

    # ---- a round ---------------------------------------------------------------------------------------------------

    def temperature(self, work: Work) -> float:
        """tau_t of the rounds after pre-training; fine-tuning has the last one's."""
        rounds = work.rounds - self.pretrain
        t = min(work.round - 1 - self.pretrain, rounds - 1)
        return self.tau_start * (self.tau_end / self.tau_start) ** (t / max(rounds - 1, 1))

    def download(self, server: Params, client: Params, id: int | Tensor) -> Params:
        return pack("plain", unpack("plain", server)) or server

    def local(self, received: Params, client: Params, work: Work) -> tuple[Params, Params]:
        if plain := unpack("plain", received):
            return pack("plain", work.sgd(work.loss, plain)), client
        modules = self.modules(work.network)
        sample, soft = (self.learned and self.gate == kind for kind in ("sample", "soft"))
        tau, steps = self.temperature(work), work.most_steps if sample else 1
        draws = work.uniform("gates", (steps, decisions(self.layers)))  # [steps, E]
        scores, bits, switches = self.decide(received, work, draws[0])

        def batch_logits(w: Params, batch: Batch) -> Tensor:
            """The router's mean output [E] over the mini-batch."""
            key = fold(batch.key, self.layers[0])  # type: ignore[arg-type]
            return self.router(work.network).mean(unpack("router", w), batch.x, batch.y, key, batch.real)

        def one_batch(carry: Carry, batch: Batch) -> Carry:
            w, velocity, now = carry
            bits, eps = now["bits"], draws[now["step"] if sample else 0]
            now = now | {"step": now["step"] + 1}
            if sample:
                logits = batch_logits(w, batch)
                drawn = (concrete(eps, logits, tau) > 0.5).to(logits)
                bits, switched = safety_path(drawn, logits, self.layers)
                now |= {"bits": bits, "safety": now["safety"] + switched}
            active = held(torch.ones_like(bits) if soft else bits, self.layers)

            def loss(w: Params, batch: Batch) -> Tensor:
                gates = bits
                if self.learned:
                    v = concrete(eps, batch_logits(w, batch), tau)
                    gates = v if soft else bits + (v - v.detach())
                return batch.cross_entropy(modules(w, batch.x, gates, active, batch.key, batch.real))

            return *work.descend(w, velocity, work.grad(loss, w, batch)), now

        fixed = not (sample or soft)  # the round's bits are those in use
        now = {"bits": bits, "step": torch.zeros_like(switches), "safety": client["safety"]}
        now["safety"] = now["safety"] + (switches if fixed else 0)
        trained, _, now = work.scan(one_batch, (received, work.init_momentum(received), now))
        used = in_use(now["bits"], self.layers) if self.selective else torch.ones_like(client["active"])
        state = {"logits": scores, "bits": now["bits"], "active": used, "safety": now["safety"]}
        return where_used(used, trained, received, self.layers) | {"active": used}, state

    def cost(self, received: Params, upload: Params) -> tuple[int | Tensor, int | Tensor]:
        """Encoders, router and the blocks in use, down (once the router has come and decided) and up."""
        if "active" not in upload:
            return super().cost(received, upload)
        floats = floats_in_use(upload["active"], received, self.layers)
        return floats, floats

    @property
    def in_turns(self) -> bool:
        return self.schedule == "sequential"

    def hand_over(self, server: Params, upload: Params) -> Params | None:
        if not self.in_turns or "active" not in upload:
            return None
        # blocks that it did not use are as the clients before it left them
        return {name: w for name, w in upload.items() if name != "active"}

    def aggregate(self, server: Params, uploads: Params, round: Round) -> Params:
        if plain := unpack("plain", uploads):
            plain = weighted_mean(plain, round.sizes, unpack("plain", server))
            last = round.number == self.pretrain
            return self.planted(server, plain) if last else server | pack("plain", plain)
        return block_means(self.aggregation, server, uploads, round.sizes, self.layers)

    def planted(self, server: Params, plain: Params) -> Params:
        """The modules at the end of pre-training: every encoder has the plain network's layers below its last."""
        *below, _ = layers_of(plain).values()
        body = {name: plain[name] for layer in below for name in layer}
        grown = pack("encoder", {name: w.expand_as(server[f"encoder/{name}"]) for name, w in body.items()})
        grown |= pack("router/x", body) if self.learned else {}
        return {name: grown.get(name, w) for name, w in server.items() if not name.startswith("plain/")}

    # ---- which model is scored -------------------------------------------------------------------------------------

    def personal(self, server: Params, client: Params, work: Work) -> Params:
        if plain := unpack("plain", server):
            return pack("plain", plain)
        _, bits, _ = self.decide(server, work)
        if self.infer == "last_sample":
            bits = torch.where(client["active"].sum() > 0, client["bits"], bits)  # if there was one
        return server | {"bits": bits}

    def predict(self, network: Network, model: Params, x: Tensor) -> Tensor:
        if plain := unpack("plain", model):
            return network(plain, x)
        bits = model["bits"]
        return self.modules(network)(model, x, bits, held(bits, self.layers))

    def to_module(self, network: Network, model: Params) -> nn.Module:
        return Predictor(network, self.predict, model)

    def after_local(self, upload: Params, client: Params) -> Params:
        if "active" not in upload:
            return upload
        return {name: w for name, w in upload.items() if name != "active"} | {"bits": client["bits"]}

    def own_update(self, server: Params, client: Params, work: Work) -> Params:
        tuned = super().own_update(server, client, work)
        if "bits" in tuned and self.infer == "threshold":
            tuned["bits"] = self.decide(tuned, work)[1]  # by the tuned router, without noise
        return tuned

    def plain_sgd(self, server: Params, client: Params, work: Work) -> Params:
        model, modules = self.personal(server, client, work), self.modules(work.network)
        if "bits" not in model:
            return super().plain_sgd(server, client, work)
        active = held(model["bits"], self.layers)
        fixed = {k: w for k, w in model.items() if k == "bits" or k.startswith("router/")}

        def loss(w: Params, batch: Batch) -> Tensor:
            return batch.cross_entropy(modules(w, batch.x, model["bits"], active, batch.key, batch.real))

        return fixed | work.sgd(loss, {k: w for k, w in model.items() if k not in fixed})
