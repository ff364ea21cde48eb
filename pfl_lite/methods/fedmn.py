"""FedMN: a pool of blocks, and a network that reads a client's data and chooses its blocks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pfl_lite.errors import InputError
from pfl_lite.methods.base import (
    Batch,
    Carry,
    Round,
    RunSettings,
    Sequential,
    Traits,
    Work,
    number,
    pack,
    stack,
    train_mean,
    unpack,
    word,
)
from pfl_lite.methods.blocks import block_means, floats_in_use, where_used
from pfl_lite.methods.weighted_mean import weighted_mean
from pfl_lite.models import Network, Params
from pfl_lite.models.modular import ModularNetwork, decisions, held, in_use, safety_path
from pfl_lite.models.network import layers_of, torch_seeded
from pfl_lite.models.router import Router, concrete
from pfl_lite.models.train_mode import fold

MOST_DECISIONS = 1_000_000
PROGRAM: dict[str, str | float] = {
    "blocks": "1x1x1", "routing": "all", "schedule": "sequential", "aggregation": "code", "plant": "body", "block_std": 0.01,
    "dropout": 0.5, "pretrain_lr": 3.5, "output_scale": 3.5,
}  # fmt: skip
"""The released program (commit 289afc7) as settings: what a layer lists several times is one block, no bit is ever 0, and the
router has no gradient, so that a chain is left. Its clients go on from each other; its pre-training has 3.5 times the blocks'
rate; its soft bits, near 1/12 after a softmax, scale the logits by 3.5, because it divides by their sum inside a loop."""


@dataclass(frozen=True)
class FedMN(Sequential):
    """Wang et al. (2022), algorithm 1: a router reads all training images and labels and says which blocks a client uses.

    A round: logit Pi = the router's mean output (eqs. 9-10), one V from the binary concrete distribution (eq. 5), local SGD on
    encoders, router and the active blocks, and means over the clients that used a block. Where the paper is silent or
    contradicts itself: bits are hard and the router learns straight through them, where the client has what a bit would read;
    the noise is drawn once a round (the paper's rounds have one epoch), the gradient's logits come from the mini-batch; a link
    from an inactive block is void, and a last block without output bit is not fetched either; where nothing would reach the
    output the likeliest link is switched on; block means are normalized (as printed, a block that not every client uses shrinks);
    clients work in parallel; scored is V = 1[Pi > 1/2] of the final router on training images. The router's mean parts images
    from labels: clients that differ only in which label goes with which image get equal Pi.
    Chapter: *Assembling a network per client*.
    """

    name = "fedmn"
    about = "a pool of blocks; a network reads a client's data and chooses which of them it uses"
    tracked = ("logits", "active")
    traits = Traits(needs_rng_key=True, anneals=True, sheds="plain/", needs_classes=True)

    blocks: str = "2x2x2"
    """n_1 x ... x n_L: encoders, then blocks in every layer; L is 2 or more."""
    encoder_width: int = number(512, least=1)
    """Outputs of an encoder."""
    width: int = number(256, least=1)
    """Outputs of a hidden block."""
    router_width: int = number(128, least=1)
    """d_x, outputs of the router's image encoder."""
    label_width: int = number(64, least=1)
    """d_y, outputs of the router's label encoder."""
    dropout: float = number(0.0, least=0, below=1)
    """Share of a hidden block's outputs that training removes; the released code removes half, of 256."""
    block_std: float = number(0.0, least=0, before=0.01)
    """Standard deviation of the blocks' first weights; 0: sqrt(2 / inputs). The released code has 0.01, at widths 512 and 256."""
    gate: str = word("st", "soft", "sample")
    """`st`: hard bits, straight-through gradient; `soft`: v itself, nothing inactive; `sample`: new bits every mini-batch."""
    aggregation: str = word("normalized", "literal", "delta", "code")
    """`normalized` (a block by the sizes of its users), `literal` (as printed), `delta` (of changes), `code` (no sizes)."""
    schedule: str = word("parallel", "sequential")
    """`parallel`: all start from the server's model; `sequential`: from what those before them in the round made of it."""
    infer: str = word("threshold", "last_sample")
    """Bits for scoring: `threshold`: 1[Pi > 1/2]; `last_sample`: those of the client's last round."""
    routing: str = word("learned", "random", "all")
    """`learned`; `random`: fair bits, drawn once a client; `all`: every bit is 1. The last two have no router."""
    tau_start: float = number(1.0, above=0)
    """Temperature in the first round."""
    tau_end: float = number(0.1, above=0)
    """Temperature in the last; it falls exponentially."""
    codes: str = word("concat", "product")
    """The router reads image code and label code side by side (`concat`, eq. 9), or multiplied (`product`, eq. 8)."""
    normalize: str = word("joint", "each", before="each")
    """Of `concat`: length 1 has the concatenated code (`joint`, as printed), or `each` code, so that none drowns the other."""
    centre: bool = False
    """Clients send up their mean code too; the router then reads how far a client's lies from the mean of all."""
    router_lr: float = number(1.0, least=0)
    """The router's learning rate, as a multiple of the run's; 0: it stays as it was drawn, as in the released code."""
    router_part: str = word("all", "head")
    """What of the router learns: `all`, or its last layer (`head`): then a client reads its images once a round."""
    pretrain: int = number(0, least=0)
    """Rounds of FedAvg on the plain network, from which encoders and blocks then start (`plant`)."""
    pretrain_lr: float = number(1.0, above=0)
    """The learning rate of these rounds, as a multiple of the run's."""
    plant: str = word("function", "body", before="body")
    """`function`: every route starts as the plain network; `body`: encoders have its layers below the last, the rest is new."""
    plant_noise: float = number(0.1, least=0)
    """Of `function`: how much of their own first weights blocks and encoders keep, so that they are not all the same."""
    output_scale: float = number(1.0, above=0)
    """Factor on the logits: 3.5 is what the released code's division by the sum of its gates, inside a loop, amounts to."""

    def __post_init__(self) -> None:
        super().__post_init__()
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
            *(self.dropout, self.block_std, self.output_scale),
        )

    def router(self, network: Network) -> Router:
        """The network that decides which blocks a client uses."""
        encoder = network.resized(self.router_width)
        return Router(
            *(encoder, self.label_width, network.classes, decisions(self.layers)),
            *(self.codes, self.normalize),
        )

    def initial(self, network: Network, clients: int, seed: int) -> Params:
        if self.pretrain and len(network.layers) < 2:
            raise InputError(
                f"fedmn: pretrain trains the layers below the last, and {network.name} has none: use pretrain=0"
            )
        plain = network.init(seed) if self.pretrain else {}
        features = plain[f"{network.last}.weight"].shape[1] if plain and self.plant == "function" else 0
        if features > min(self.encoder_width, self.width if len(self.layers) > 2 else self.encoder_width):
            raise InputError(
                f"fedmn: with plant=function encoder_width and width must be {features} or more, which is what the last layer of "
                f"{network.name} reads: widen them, or use plant=body"
            )
        with torch_seeded(seed, "blocks and router"):
            start = self.modules(network).init(seed)
            if self.learned:
                start |= pack("router", self.router(network).init(seed, copy=self.layers[0]))
        if self.learned and self.centre:  # of the clients' mean codes, once there are some
            weight = start["router/out/weight"]
            start |= {"router/mean": weight.new_zeros(weight.shape[1]), "router/spread": weight.new_ones(())}
        return start | pack("plain", plain)

    def init(self, start: Params, network: Network, clients: int) -> tuple[Params, Params]:
        like, total = next(iter(start.values())), decisions(self.layers)
        state = {"logits": like.new_zeros(total), "bits": like.new_zeros(total)}
        state |= {
            "active": like.new_zeros(sum(self.layers[1:])),
            "safety": like.new_zeros((), dtype=torch.int64),
        }
        return start, stack(state, clients)

    def code(self, model: Params, work: Work) -> Tensor:
        """The mean code [d] of this client's training images."""
        router, params = self.router(work.network), unpack("router", model)
        return train_mean(torch.cat([router.code(params, b.x, b.y) for b in work.data("train")]), work)

    def decide(
        self, model: Params, work: Work, eps: Tensor | None = None, code: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """logit Pi [E] of this client, its bits [E] = 1[v > 1/2] (1[Pi > 1/2] without noise), and switches of the safety path."""
        total, like = decisions(self.layers), next(iter(model.values()))
        scores, bits = like.new_zeros(total), like.new_ones(total)
        if self.routing == "random":
            bits = (work.uniform("fixed routes", (total,), per="run") > 0.5).to(like)
        if self.learned:
            code = self.code(model, work) if code is None else code
            scores = self.router(work.network).logits(unpack("router", model), code)
            chosen = scores > 0 if eps is None else concrete(eps, scores, self.temperature(work)) > 0.5
            bits = chosen.to(like)
        return scores, *safety_path(bits, scores, self.layers)

    def stays(self, name: str) -> bool:
        """Whether a client leaves a part of the router as it came."""
        part = name.split("/")[1] if name.startswith("router/") else ""
        fixed = ("mean", "spread", *(("x", "y") if self.router_part == "head" else ()))
        return part in fixed or (bool(part) and self.router_lr == 0)

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
            return pack("plain", work.sgd(work.loss, plain, lr=work.lr * self.pretrain_lr)), client
        modules = self.modules(work.network)
        sample, soft = (self.learned and self.gate == kind for kind in ("sample", "soft"))
        tau, optimizer = self.temperature(work), work.optimizer
        draws = work.uniform("gates", (decisions(self.layers),), per="batch" if sample else "round")
        draws = draws if sample else draws[None]  # [K or 1, E]
        code = self.code(received, work) if self.learned else None
        scores, bits, switches = self.decide(received, work, draws[0], code)
        fixed = {name: tensor for name, tensor in received.items() if self.stays(name)}
        start = {name: tensor for name, tensor in received.items() if name not in fixed}
        rate = {name: self.router_lr if name.startswith("router/") else 1.0 for name in start}

        def batch_logits(w: Params, batch: Batch) -> Tensor:
            """The router's output [E] for the mini-batch, or for all images where their codes do not change in the round."""
            router, params = self.router(work.network), unpack("router", w | fixed)
            if code is not None and any(name.startswith("router/x/") for name in fixed):
                return router.logits(params, code)
            key = fold(batch.key, self.layers[0])  # type: ignore[arg-type]
            return router.logits(params, router.mean(params, batch.x, batch.y, key, batch.real))

        def one_batch(carry: Carry, batch: Batch) -> Carry:
            *sgd, now = carry
            bits, eps = now["bits"], draws[now["step"] if sample else 0]
            now = now | {"step": now["step"] + 1}
            if sample:
                logits = batch_logits(sgd[0], batch)
                drawn = (concrete(eps, logits, tau) > 0.5).to(logits)
                bits, switched = safety_path(drawn, logits, self.layers)
                now |= {"bits": bits, "safety": now["safety"] + switched}
            active = held(torch.ones_like(bits) if soft else bits, self.layers)

            def loss(w: Params, batch: Batch) -> Tensor:
                gates = bits
                if self.learned:
                    v = concrete(eps, batch_logits(w, batch), tau)
                    gates = v if soft else bits + (v - v.detach())
                return batch.loss(modules(w, batch.x, gates, active, batch.key, batch.real))

            return *optimizer.step(tuple(sgd), work.grad(loss, sgd[0], batch), rate), now

        round_s = not (sample or soft)  # the round's bits are those in use
        now = {"bits": bits, "step": torch.zeros_like(switches), "safety": client["safety"]}
        now["safety"] = now["safety"] + (switches if round_s else 0)
        trained, _, now = work.over_batches(one_batch, (*optimizer.start(start), now))
        used = in_use(now["bits"], self.layers) if self.selective else torch.ones_like(client["active"])
        state = {"logits": scores, "bits": now["bits"], "active": used, "safety": now["safety"]}
        upload = where_used(used, trained, start, self.layers) | {"active": used}
        return upload | ({"code": code} if self.centre and code is not None else {}), state

    def cost(self, received: Params, upload: Params) -> tuple[int | Tensor, int | Tensor]:
        """Encoders, router and the blocks in use: down (once the router has come and decided), and up what may have changed."""
        if "active" not in upload:
            return super().cost(received, upload)
        sent = {name: w for name, w in upload.items() if name != "active"}
        down, up = (floats_in_use(upload["active"], message, self.layers) for message in (received, sent))
        return down, up

    @property
    def in_turns(self) -> bool:
        return self.schedule == "sequential"

    def hand_over(self, server: Params, upload: Params) -> Params | None:
        if not self.in_turns or "active" not in upload:
            return None
        # blocks that it did not use are as the clients before it left them
        return server | {name: w for name, w in upload.items() if name in server}

    def aggregate(self, server: Params, uploads: Params, round: Round) -> Params:
        if plain := unpack("plain", uploads):
            plain = weighted_mean(plain, round.sizes, unpack("plain", server))
            last = round.number == self.pretrain
            return self.planted(server, plain) if last else server | pack("plain", plain)
        moving = {name: w for name, w in server.items() if name in uploads}
        new = server | block_means(self.aggregation, moving, uploads, round.sizes, self.layers)
        if "code" in uploads:
            new |= measured(uploads["code"], server)
        return new

    def planted(self, server: Params, plain: Params) -> Params:
        """The modules at the end of pre-training: every encoder has the plain network's layers below its last."""
        *below, last = layers_of(plain).values()
        body = {name: plain[name] for layer in below for name in layer}
        grown = pack("encoder", {name: w.expand_as(server[f"encoder/{name}"]) for name, w in body.items()})
        grown |= pack("router/x", body) if self.learned else {}
        if self.plant == "function":
            grown |= self.continued(server, plain, last)
        return {name: grown.get(name, w) for name, w in server.items() if not name.startswith("plain/")}

    def continued(self, server: Params, plain: Params, last: list[str]) -> Params:
        """Layers above the body under which every route is the plain network with its `last` layer (names of parameters).

        Encoders and hidden blocks hand on what they read, which is never negative after a ReLU, and the last blocks are the plain
        network's last layer; a little of their own first weights is added to each.
        """
        grown = {}
        for name, own in server.items():
            if not name.startswith("block") and name.removeprefix("encoder/") not in last:
                continue
            base = torch.zeros_like(own[0])
            kept = base if base.dim() == 1 else torch.eye(*base.shape).to(base)
            if name.startswith(f"block{len(self.layers)}/"):
                kept = plain[last[own.dim() == 2]]  # weight [K, h], bias [K]
            base[tuple(slice(size) for size in kept.shape)] = kept
            grown[name] = base + self.plant_noise * own
        return grown

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

    def after_local(self, upload: Params, client: Params) -> Params:
        if "active" not in upload:
            return upload
        model = {name: w for name, w in upload.items() if name not in ("active", "code")}
        return model | {"bits": client["bits"]}

    def fine_tune(self, received: Params, client: Params, work: Work, rule: str) -> Params:
        if rule == "own_update":
            upload, client = self.local(received, client, work)
            tuned = {name: w for name, w in received.items() if self.stays(name)}
            tuned |= self.after_local(upload, client)
            if "bits" in tuned and self.infer == "threshold":
                tuned["bits"] = self.decide(tuned, work)[1]  # by the tuned router, without noise
            return tuned
        model, modules = self.personal(received, client, work), self.modules(work.network)
        if "bits" not in model:
            return super().fine_tune(received, client, work, rule)
        active = held(model["bits"], self.layers)
        fixed = {k: w for k, w in model.items() if k == "bits" or k.startswith("router/")}

        def loss(w: Params, batch: Batch) -> Tensor:
            return batch.loss(modules(w, batch.x, model["bits"], active, batch.key, batch.real))

        return fixed | work.sgd(loss, {k: w for k, w in model.items() if k not in fixed})


def measured(codes: Tensor, before: Params) -> Params:
    """Mean [d] and spread [] of the clients' codes [S, d]: a root mean square over clients and numbers, if they differ at all."""
    mean = codes.mean(0)
    spread = (codes - mean).square().mean().sqrt()
    return {"router/mean": mean, "router/spread": torch.where(spread > 0, spread, before["router/spread"])}
