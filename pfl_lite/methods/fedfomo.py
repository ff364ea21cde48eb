"""FedFomo: every client picks, from the others' models, those that help it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pfl_lite.methods.base import (
    Newcomers,
    Round,
    Work,
    floats_in,
    number,
    pack,
    select,
    squared_distance,
    stack,
    unpack,
)
from pfl_lite.models import Network, Params
from pfl_lite.models.mixing import mix


@dataclass(frozen=True)
class FedFomo(Newcomers):
    """Zhang et al. (2021), eqs 3 to 5: theta_i <- theta_i^- + sum_n w_n (theta_n - theta_i^-), w_n by the loss on held-out data.

    w_n is proportional to max(0, (L(theta_i^-) - L(theta_n)) / ||theta_n - theta_i^-||), where theta_i^- is the client's model
    before its last training and L its loss on its validation images, which never train (on its training images where it has no
    others: give it some by `val_fraction`). If no w_n is positive the client keeps its current model (the authors' code goes
    back to theta_i^-). Candidates are the client's own model and, of those uploaded in the last round, the ones with the
    highest summed weights so far; each place goes to a random one with probability epsilon.
    Differences from the authors' code: the l2 distance, no spectral sub-models, no weight for models that are not finite.
    Chapter: *Neighbors*.
    """

    name = "fedfomo"
    about = "clients mix the models of others that do well on their own validation images"
    tracked = ("weights",)
    finetune = "plain_sgd"

    models: int = number(5, least=1)
    """M, candidates a round, the client's own model included; 1 is Local."""
    epsilon: float = number(0.3, least=0, most=1)
    """Share of candidates drawn at random, less 0.05 for every round played before the draw, the first included."""

    def init(self, start: Params, network: Network, clients: int) -> tuple[Params, Params]:
        like, own = next(iter(start.values())), stack(start, clients)
        server = pack("model", own) | {
            "affinity": like.new_zeros(clients, clients, dtype=torch.float64),
            "candidates": torch.full((clients, min(self.models, clients) - 1), -1, device=like.device),
        }  # -1: no client
        return server, pack("own", own) | pack("before", own) | stack(
            {"weights": like.new_zeros(clients)}, clients
        )

    def download(self, server: Params, client: Params, id: int | Tensor) -> Params:
        chosen = server["candidates"][id]  # [M - 1]; the client's own model need not travel
        own = torch.as_tensor(id, device=chosen.device).reshape(1)
        named = chosen >= 0  # other places hold zeros, not a model that was not meant for this client
        models = {
            name: torch.where(named.reshape(-1, *[1] * (w.dim() - 1)), w, 0.0)
            for name, w in select(unpack("model", server), chosen.clamp_min(0)).items()
        }
        return models | {"places": torch.cat([own, chosen])}

    def cost(self, received: Params, upload: Params) -> tuple[int | Tensor, int | Tensor]:
        """Only the models of real candidates travel."""
        rows = [tensor for name, tensor in received.items() if name != "places"]
        one = sum(t[0].numel() if len(t) else 0 for t in rows)
        return (received["places"][1:] >= 0).sum() * one, floats_in(upload)

    def updated(self, received: Params, client: Params, work: Work) -> tuple[Params, Params, Tensor]:
        """The client's model after the update, its state with that model, and the unclipped weights [M], own model first."""
        own, before, places = unpack("own", client), unpack("before", client), received["places"]
        models = {name: torch.cat([w[None], received[name]]) for name, w in own.items()}  # [M, ...]
        baseline = work.held_out_loss(before)

        def worth(n: int) -> Tensor:
            distance = squared_distance(before, select(models, n)).sqrt()
            gain = baseline - work.held_out_loss(select(models, n))
            useful = (distance > 0) & (places[n] >= 0) & gain.isfinite()
            return torch.where(useful, gain / torch.where(useful, distance, 1.0), 0.0)

        scores = torch.stack([worth(n) for n in range(len(places))])  # eq. 4, [M]
        weight = scores.clamp_min(0)
        total = weight.sum()
        weight = weight / torch.where(total > 0, total, 1.0)

        def heard(rows: Tensor) -> Tensor:  # 0 times a number that is not finite is none
            return torch.where((weight > 0).reshape(-1, *[1] * (rows.dim() - 1)), rows, 0.0)

        mixed = {
            name: torch.where(total > 0, w + mix(weight, heard(models[name] - w)), own[name])
            for name, w in before.items()
        }  # eq. 3
        everyone = torch.arange(len(client["weights"]), device=weight.device)
        row = mix(weight, (places[:, None] == everyone).to(weight))  # [N]
        return mixed, pack("own", mixed) | pack("before", mixed) | {"weights": row}, scores

    def local(self, received: Params, client: Params, work: Work) -> tuple[Params, Params]:
        mixed, state, scores = self.updated(received, client, work)
        trained = work.sgd(work.loss, mixed)
        return trained | {"scores": scores}, state | pack("own", trained)

    def aggregate(self, server: Params, uploads: Params, round: Round) -> Params:
        ids, affinity, asked = round.ids, server["affinity"].clone(), server["candidates"][round.ids]
        for place in range(asked.shape[1]):  # scores[:, 0] is the own model's
            score = torch.where(asked[:, place] >= 0, uploads["scores"][:, place + 1], 0.0)
            affinity[ids, asked[:, place].clamp_min(0)] += score.to(affinity)
        models = {name: w.index_copy(0, ids, uploads[name]) for name, w in unpack("model", server).items()}
        candidates = self.choose(affinity, round)
        return pack("model", models) | {"affinity": affinity, "candidates": candidates}

    def choose(self, affinity: Tensor, round: Round) -> Tensor:
        """Every client's candidates [N, M - 1] for the next round, of those who uploaded in this one; -1: no client."""
        clients, rng = len(affinity), round.random("candidates")
        epsilon = max(0.0, self.epsilon - 0.05 * round.number)
        chosen = torch.full((clients, min(self.models, clients) - 1), -1)
        for i, row in enumerate(affinity.cpu()):
            left = sorted((n for n in round.ids.tolist() if n != i), key=lambda n: -float(row[n]))
            for place in range(min(chosen.shape[1], len(left))):
                pick = int(rng.integers(len(left))) if rng.random() < epsilon else 0
                chosen[i, place] = left.pop(pick)
        return chosen.to(affinity.device)

    def adapt_newcomer(self, received: Params, client: Params, work: Work) -> Params:
        return self.updated(received, client, work)[1]

    def personal(self, received: Params, client: Params, work: Work) -> Params:
        return unpack("own", client)

    def inspect(self, server: Params, clients: Params) -> tuple[Params, Params]:
        return {}, {"weights": clients["weights"]}  # [N, N]
