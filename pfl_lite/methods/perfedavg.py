"""Per-FedAvg: a start from which one step of adaptation goes far."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from pfl_lite.methods.base import Batch, Traits, Work, number, train_gradient, word
from pfl_lite.methods.fedavg import FedAvg
from pfl_lite.models import Params


@dataclass(frozen=True)
class PerFedAvg(FedAvg):
    """Fallah et al. (2020), algorithm 1: clients descend F_i(w) = f_i(w - a grad f_i(w)), a = `inner_lr`.

    Every mini-batch gives one outer step, whose inner gradient comes from a second mini-batch. `fo` leaves the Hessian out, `hf`
    takes it exactly, by differentiating through the inner step (the paper's HF estimates it by differences). Scored is w after
    one step of `inner_lr` on the whole training data (some public code adapts on test data). The mean is weighted by n_i (the
    paper: `weights="uniform"`). Chapter: *Two models, one tie*.
    """

    name = "perfedavg"
    about = "a global model trained to be good after one step of adaptation"
    traits = Traits(fits_batch_norm=False)
    finetune = "plain_sgd"

    inner_lr: float = number(0.01, least=0)
    """a, the rate of adaptation; 0 is FedAvg."""
    variant: str = word("fo", "hf")
    """`fo`: first order; `hf`: with the Hessian term."""

    def adapt(self, w: Params, gradient: Params) -> Params:
        """w - a gradient."""
        return {name: w[name] - self.inner_lr * gradient[name] for name in w}

    def local(self, received: Params, client: Params, work: Work) -> tuple[Params, Params]:
        def outer(w: Params, batch: Batch, inner: Batch) -> Params:
            if self.variant == "fo":
                return work.grad(work.loss, self.adapt(w, work.grad(work.loss, w, inner)), batch)

            def adapted_loss(w: Params, batch: Batch) -> Tensor:
                return work.loss(self.adapt(w, work.grad(work.loss, w, inner)), batch)

            return work.grad(adapted_loss, w, batch)  # (I - a H) grad f(w')

        return work.sgd(None, received, direction=outer, phase=("weights", "inner")), client

    def personal(self, received: Params, client: Params, work: Work) -> Params:
        return self.adapt(received, train_gradient(received, work))
