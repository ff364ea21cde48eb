"""What methods share that keep several models, one a cluster of clients."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from pfl_lite.methods.base import Batch, Work, select, train_mean
from pfl_lite.methods.weighted_mean import weighted_mean
from pfl_lite.models import Network, Params


def losses_of_all(network: Network, models: Params, batch: Batch) -> Tensor:
    """Loss [b, k] of every image of a batch under each of the stacked models [k, ...]."""
    count = len(next(iter(models.values())))
    each = [network(select(models, j), batch.x) for j in range(count)]
    return torch.stack([batch.losses(outputs) for outputs in each], 1)


def training_losses(models: Params, work: Work) -> Tensor:
    """Loss [n, k] of the client's training images under each of the stacked models; padding may follow."""
    return torch.cat([losses_of_all(work.network, models, batch) for batch in work.data("train")])


def best_model(models: Params, work: Work) -> Tensor:
    """Which of the stacked models [k, ...] has the lowest loss on the client's training images; the first in a tie."""
    losses = train_mean(training_losses(models, work), work)
    return torch.where(losses.isnan(), torch.inf, losses).argmin()  # else the least were a model that is lost


def mean_by_cluster(uploads: Params, cluster: Tensor, weights: Tensor, previous: Params) -> Params:
    """The weighted mean of the members' models in every cluster; an empty cluster keeps its previous one.

    Args:
        uploads: tensors [S, ...].
        cluster: each client's cluster [S].
        weights: aggregation weights [S].
        previous: tensors [k, ...].
    """
    count = len(next(iter(previous.values())))
    member = F.one_hot(cluster.long(), count)  # [S, k]
    spread = {name: x[:, None].expand(-1, count, *x.shape[1:]) for name, x in uploads.items()}
    return weighted_mean(spread, weights[:, None] * member, previous)


def bipartition(updates: Tensor) -> Tensor:
    """Two halves of updates [m, P] by complete linkage on -cos: bool [m], False for the half that holds the first one."""
    from sklearn.cluster import AgglomerativeClustering

    direction = F.normalize(updates.double(), dim=1, eps=1e-300)
    distance = (1 - direction @ direction.T).cpu().numpy()
    labels = AgglomerativeClustering(2, metric="precomputed", linkage="complete").fit_predict(distance)
    return torch.from_numpy(labels != labels[0]).to(updates.device)


def nearer_half(memory: Params, client: int, updates: Tensor, second: Tensor) -> bool:
    """Whether an absent client belongs to the second half: by the mean cosine to its last update, else the larger half."""
    if not memory["known"][client]:
        return bool(second.sum() > len(second) / 2)
    likeness = F.cosine_similarity(memory["updates"][client][None], updates)  # [m]
    return bool(likeness[second].mean() > likeness[~second].mean())
