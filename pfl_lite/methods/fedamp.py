"""FedAMP: the server sends every client a mix of the models that resemble its own."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pfl_lite.methods.base import Method, Round, Work, flatten, number, pack, pulled, stack, unpack, word
from pfl_lite.models import Network, Params


@dataclass(frozen=True)
class FedAMP(Method):
    """Huang et al. (2021), algorithm 1: u_i = sum_j xi_ij w_j, then w_i = argmin f_i(w) + (lam/2) ||w - u_i||^2.

    xi_ij = alpha A'(||w_i - w_j||^2) with A'(x) = exp(-x/sigma)/sigma, and xi_ii = 1 - the others. A free alpha can make xi_ii
    negative; here alpha follows from `self_weight`, the least that any client gives itself. `lam` is lambda/alpha in the paper's
    letters. Clients mix from their first upload on; absent ones stay in the mix with their last model, and so do those whose
    upload is not finite. A client that never took part is scored with the common start. Chapter: *Neighbors*.
    """

    name = "fedamp"
    about = "each client is pulled toward a mix of the models most like its own"
    tracked = ("attention",)
    finetune = "plain_sgd"

    lam: float = number(1.0, least=0)
    """Strength of the pull toward u_i."""
    sigma: float = number(0.0, least=0)
    """Width of the attention, a squared distance; 0: a quantile of the pairs' after the first round, fixed from then on."""
    quantile: float = number(0.5, least=0, most=1)
    """Which quantile: 0.5 is the median; with G equal groups only about 1/G of the pairs are near, and it must be lower."""
    self_weight: float = number(0.5, least=0, below=1)
    """xi_ii of the client with the nearest neighbors; the others keep more for themselves."""
    start: str = word("cloud", "own")
    """Local training starts from the received mix u_i (`cloud`) or from the client's own w_i (`own`)."""

    def init(self, start: Params, network: Network, clients: int) -> tuple[Params, Params]:
        like, own = next(iter(start.values())), stack(start, clients)
        server = pack("model", own) | {
            "attention": torch.eye(clients, dtype=torch.float64, device=like.device),
            "uploaded": torch.zeros(clients, dtype=torch.bool, device=like.device),
            "sigma": like.new_tensor(self.sigma, dtype=torch.float64),
        }
        return server, own

    def download(self, server: Params, client: Params, id: int | Tensor) -> Params:
        row = server["attention"][id]  # [N]
        models = unpack("model", server)  # [N, ...]
        # float64 on a GPU, whose float32 products may be TF32: a row of the identity has to give back the model it names
        exact = {name: w if w.device.type == "cpu" else w.double() for name, w in models.items()}
        return {name: torch.tensordot(row.to(w), w, dims=1).to(models[name]) for name, w in exact.items()}

    def local(self, received: Params, client: Params, work: Work) -> tuple[Params, Params]:
        begin = received if self.start == "cloud" else client
        trained = work.sgd(pulled(work.loss, self.lam, received), begin)
        return trained, trained

    def aggregate(self, server: Params, uploads: Params, round: Round) -> Params:
        whole = flatten(uploads).isfinite().all(1)  # [S]
        ids = round.ids[whole]
        models = {
            name: rows.index_copy(0, ids, uploads[name][whole])
            for name, rows in unpack("model", server).items()
        }
        uploaded = server["uploaded"].index_fill(0, ids, True)
        w = flatten(models).double()  # [N, P]
        distance = torch.cdist(w, w, compute_mode="donot_use_mm_for_euclid_dist") ** 2  # [N, N]
        sigma = server["sigma"]
        if sigma == 0:
            present = distance[uploaded][:, uploaded]
            pairs = present[tuple(torch.triu_indices(len(present), len(present), 1))]
            sigma = pairs.quantile(self.quantile) if len(pairs) else sigma
        attention = self.attention(distance, sigma, uploaded)
        return pack("model", models) | {"attention": attention, "uploaded": uploaded, "sigma": sigma}

    def attention(self, distance: Tensor, sigma: Tensor, uploaded: Tensor) -> Tensor:
        """xi [N, N] from squared distances [N, N], among those who have uploaded; the identity for the others."""
        pairs = (
            uploaded[:, None] & uploaded & ~torch.eye(len(uploaded), dtype=torch.bool, device=distance.device)
        )
        near = torch.where(pairs, torch.exp(-distance / sigma) / sigma, 0.0).nan_to_num(0, 0, 0)  # A'
        most = near.sum(1).max()
        alpha = torch.where(most > 0, (1 - self.self_weight) / most, 0.0)
        others = alpha * near
        return others + torch.diag(1 - others.sum(1))

    def personal(self, received: Params, client: Params, work: Work) -> Params:
        return client

    def inspect(self, server: Params, clients: Params) -> tuple[Params, Params]:
        return {}, {"attention": server["attention"]}  # [N, N]
