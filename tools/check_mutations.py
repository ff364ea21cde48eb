"""Break methods, partitions, the engine and verdicts on purpose, one line at a time: does a test notice? `make mutations`.

Every entry of `CHANGES` is a text that occurs in its file exactly once (line breaks and spaces may differ), what stands in its
place, and why it matters: a sign, a weight, a term, an index. The package is copied to a temporary folder, one mutation is made,
and the tests of its method run against the copy until the first failure (all tests of methods, where a file serves several). A
mutation that no test notices has survived; then the exit code is 1, as it is where a text is gone. That the tests pass without a
mutation is for `make test` to say.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 300.0  # seconds a mutation
CAUGHT, SURVIVED = 1, 0  # exit codes of pytest that mean so


class Mutation(NamedTuple):
    """One change that must not go unnoticed."""

    file: str
    """Inside `pfl_lite/`."""
    old: str
    """Occurs exactly once in the file."""
    new: str
    why: str


# file -> (old, new, why)
CHANGES: dict[str, list[tuple[str, str, str]]] = {
    # ---- what all methods share ----
    "methods/weighted_mean.py": [
        ("share = (a / torch.where(total > 0, total, 1.0))", "share = (a / len(a))", "weights that do not sum to 1"),
        ("torch.where(anyone, mixed, previous[name])", "mixed", "no fallback where nobody has weight"),
        (".double()  # [S] or [S, B]", ".float()  # [S] or [S, B]", "tiny weights lose their digits"),
    ],
    "methods/base.py": [
        ("return weighted_mean(uploads, round.sizes, server)",
         "return weighted_mean(uploads, torch.ones_like(round.sizes), server)", "the usual mean forgets the clients' sizes"),
        ("return loss(w, batch) + strength / 2 *", "return loss(w, batch) + strength *", "a pull of twice the strength"),
        ('return self.sizes if kind == "size" else',
         'return self.sizes if kind != "size" else', "size and uniform weights exchanged"),
        ("step = velocity = {name: self.momentum * velocity[name] + g",
         "step = velocity = {name: velocity[name] + g", "momentum of 1"),
        ("g + self.decay * params[name]", "g - self.decay * params[name]", "weight decay that grows the weights"),
        ("return (w if project is None else project(w)), *velocity", "return w, *velocity", "nothing is projected after a step"),
        ("step = {name: scale[name] * g for name, g in step.items()}", "pass", "no scale of the rate"),
        ("replace(self.optimizer, momentum=0.0, decay=0.0) if plain else",
         "self.optimizer if plain else", "plain steps with momentum"),
    ],
    "methods/split.py": [
        ('"last": len(layers) - 1', '"last": len(layers) - 2', "the head has one layer more"),
        ("max(others, default=-1) + 1", "max(others, default=-1)", "the last convolution counts as dense"),
        ("for layer in layers[first:]", "for layer in layers[:first]", "the layers before the cut instead of after it"),
        ("return {name: trained[name] for name in received}, {name: trained[name] for name in client}",
         "return {name: trained[name] for name in received}, client", "the private part never learns"),
        ("if name not in private}", "if name in private}", "the private part travels"),
        ("return self.network.extract(params, x) if self.dense else x",
         "return x.flatten(1) if self.dense else x", "the head reads pixels"),
        ("self.dense = network.in_parts and", "self.dense = False and", "the extractor runs for every mini-batch"),
    ],
    "methods/clusters.py": [
        ("likeness[second].mean() > likeness[~second].mean()",
         "likeness[second].mean() < likeness[~second].mean()", "an absent client joins those unlike it"),
        ("argmin()", "argmax()", "the worst model instead of the best"),
        ("weights[:, None] * member", "member", "cluster means forget the clients' sizes"),
        ("distance = (1 - direction @ direction.T)",
         "distance = (1 + direction @ direction.T)", "unlike updates are put together"),
        ("labels != labels[0]", "labels == labels[0]", "the halves change their names"),
    ],
    # ---- the training loop ----
    "engine/local_training.py": [
        ("return new if active is None else keep_idle(active, new, carry)",
         "return new", "a client with fewer batches trains on padding"),
        ("shuffled[samples // 4 :]", "shuffled", "`per` is all of the images"),
        ('generator(self.seed, "augment", self.round, i, phase)',
         'generator(self.seed, "augment", self.round, i)', "two phases are shifted alike"),
        ('generator(self.seed, "augment", self.round, i, phase)',
         'generator(self.seed, "augment", self.round, phase)', "all clients are shifted alike"),
        ('if self.settings.augment != "none":\n            return function',
         'if self.settings.augment == "other":\n            return function', "what augmentation changes is looked up"),
        ("(-mean / std).numpy()", "(0 * std).numpy()", "borders of the mean grey"),
        ('generator(seed, "batches", round, client, phase)',
         'generator(seed, "batches", round, client)', "two phases see one order"),
        ('generator(seed, "batches", round, client, phase)',
         'generator(seed, "batches", client, phase)', "the same mini-batches in every round"),
        ("[rng.permutation(samples) for _ in range(epochs)]",
         "[rng.permutation(samples)] * epochs", "one order for all epochs"),
    ],
    "engine/rounds.py": [
        ("self.config.participation * len(self.members)",
         "self.config.participation * self.config.clients", "who is held out counts among the N that are sampled"),
        ("len(self.members), count, replace=False", "len(self.members), count, replace=True", "drawn with replacement"),
        ('"participation", number)', '"participation")', "the same clients in every round"),
        ("self.everyone[~torch.isin(self.everyone, self.unseen)]", "self.everyone", "who is held out trains"),
        ("ids, sizes, len(self.members), self.config.seed)",
         "ids, sizes, self.config.clients, self.config.seed)", "who is held out counts among the N of a mean"),
        ("self.federation.train_sizes.to(ids.device)[ids]",
         "self.federation.train_sizes.to(ids.device)[: len(ids)]", "sizes of other clients"),
        ("rows.index_copy(0, ids, states[name])",
         "rows.index_copy(0, self.everyone[: len(ids)], states[name])", "places in the round taken for client ids"),
        ("self.sampled[ids] = True", "self.sampled[:] = True", "newcomers count as trained"),
        ("if self.round == 0 or not len(new)", "if not len(new)", "newcomers adapt before the first round"),
        ("states, settings = self.newcomer_states(), replace",
         "states, settings = self.clients, replace", "newcomers are tuned from another model than they are scored with"),
        ("and not isinstance(self.method, Sequential)", "", "tuning hands a chain on"),
        ("if self.tuning_is_next_round and factor == 1 and", "if self.tuning_is_next_round and", "every factor is 1"),
        ("lr=factor * settings.lr)", "lr=settings.lr)", "the factor of fine-tuning's rate does nothing"),
        ("and len(self.sample(1)) == config.clients", "", "tuning is the next round's work, though clients are absent"),
        ("self.tuning == self.settings\n", "True\n", "tuning at the run's rate in the place of its own"),
        ("self._ahead = (self.round + 1, *self", "self._ahead = (self.round, *self", "a round is computed twice"),
        ("self.everyone, self.round + 1, settings)[0]",
         "self.everyone, self.round, settings)[0]", "tuning visits the last round's mini-batches"),
        ("whole &= t.isfinite()", "whole = t.isfinite()", "only the last tensor is looked at"),
        ("down, up = counted", "up, down = counted", "floats down and up exchanged"),
    ],
    "engine/simulation.py": [
        ("or last or self.round % config.eval_every", "or self.round % config.eval_every", "the last round goes unscored"),
        ("seen.pop(str(self.round), None)", "pass", "what was watched of a round that is the last no more"),
        ("(round <= ALL_WATCHED and", "(round <= ALL_WATCHED or", "large states are watched as often as small ones"),
        ('any(extra) or late or "whole_test"', 'any(extra) or "whole_test"', "states of a round that is the last no more"),
        ("models, split, self.round)", 'models, "test", self.round)', "validation scores of test images"),
        ("models, split, self.round)", 'models, "val", self.round)', "test scores of validation images"),
        ('scores[f"val_tuned_{self.history.metric}"], models',
         'scores[f"tuned_{self.history.metric}"], models', "test images choose the factor of fine-tuning"),
        ("best = max(tried,", "best = min(tried,", "the worst factor is kept"),
        ("self.round >= self.config.rounds or", "self.round > self.config.rounds or", "a round too many"),
        ('self._ahead, self.sampled = None, content["sampled"]',
         "self._ahead = None", "who goes on forgets who has taken part"),
        ("self.clients, self._tuned = untrained, None", "pass", "an heir begins with the other run's clients"),
        ('late or "whole_test" in entry or', "late or", "scores on all test images of a round that is the last no more"),
        ('final_scores(self.history, "tuned" if tuned else "personal")',
         'final_scores(self.history, "personal")', "final scores of the models before fine-tuning"),
    ],
    "engine/mapping.py": [
        ("np.argsort(places), device)", "np.array(places), device)", "answers in the order of the groups"),
    ],
    "engine/batched.py": [
        ("< mine(self.counts)", "<= mine(self.counts)", "one image of padding counts"),
        ("* np.arange(steps)[:, None], 0, size)", "* np.arange(steps)[:, None], 1, size)", "an idle step has an image"),
        ("place, place < size)", "place, place <= size)", "one image of padding is looked at"),
        ('torch.where(self.size("val") > 0, self.mean_loss(params, "val"), train)',
         'torch.where(self.size("val") > 0, train, self.mean_loss(params, "val"))', "held-out images are the training images"),
        ("self.images_trained += work.images_trained", "self.images_trained += work.images_computed", "padding is training"),
    ],
    "engine/checkpoint.py": [
        ('set() if config.method.traits.anneals else {"rounds"}', '{"rounds"}', "who anneals goes on for more rounds"),
        ('if content["round"] > config.rounds:', 'if content["round"] >= config.rounds:', "a finished run cannot be read"),
        ("getattr(a.method, name) == getattr(b.method, name) for name in common)",
         "True for name in common)", "with other settings the training is the same"),
    ],
    # ---- searches ----
    "papers/experiment.py": [
        ('-candidate["validation_accuracy"]', 'candidate["validation_accuracy"]', "the worst candidate is chosen"),
        ("within = len(tried) < wanted", "within = len(tried) <= wanted", "a candidate more than the protocol says"),
        ("or len(tried) >= most", "or len(tried) > most", "a candidate more than the most"),
        ("(ranked if within else ranked[:1])", "ranked[:1]", "a search that ends where its best has no neighbors left"),
        ("(ranked if within else ranked[:1])", "ranked", "a search that does not end at its best"),
        ("(other - at) * (to - at) > 0 for other in tried)", "False for other in tried)", "away from the edge it goes on"),
        ("for to in (at + 1, at - 1):", "for to in (at + 1,):", "a search that only climbs"),
    ],
    "results/runner.py": [
        ('accuracy(report, "val_accuracy") / 100', 'accuracy(report, "test_accuracy") / 100', "test images choose the settings"),
        ('best = min(candidates, key=best_first)["settings"]',
         'best = candidates[-1]["settings"]', "the last candidate is entered as chosen"),
    ],
    # ---- one method a file ----
    "methods/local.py": [
        ("return {}, work.sgd(work.loss, client)", "return {}, client", "nobody learns"),
    ],
    "methods/fedavg.py": [
        ("round.weights(self.weights)", "round.weights('uniform')", "every client counts the same"),
    ],
    "methods/fedprox.py": [
        ("pulled(work.loss, self.mu, received), received)", "work.loss, received)", "no proximal term: FedAvg"),
        ('finetune = "plain_sgd"', 'finetune = "own_update"', "the pull stays while fine-tuning"),
    ],
    "methods/pfl_ft.py": [
        ("ft_epochs = 1", "ft_epochs = 0", "no fine-tuning by default"),
    ],
    "methods/pfl_fb.py": [
        ("return received | work.sgd(loss, cut.start(received), part=self.part)",
         "return work.sgd(work.loss, received, part=self.part)", "the base tunes along: PFL-FT"),
        ("cut.start(received), part=self.part)", "cut.start(received))", "the gate's quarter of the images is trained on"),
    ],
    "methods/fedper.py": [
        ("layers_from(network, self.head,", "layers_from(network, 'last',", "the cut is always before the last layer"),
    ],
    "methods/fedrep.py": [
        ("head = self.fit_head(received, client, work)", "head = client", "the head is never trained"),
        ("return work.sgd(loss_of_base, received), head",
         "return work.sgd(loss_of_base, received), client", "the trained head is forgotten"),
        ("epochs=self.head_epochs", "epochs=None", "the head trains E epochs"),
        ("return self.fit_head(received, client, work)", "return client", "a newcomer is scored with the untrained head"),
    ],
    "methods/lg_fedavg.py": [
        ("for name in names} - top", "for name in names} & top", "FedPer instead"),
    ],
    "methods/pfedmb.py": [
        ("round.sizes[:, None] * alpha", "alpha", "eq. 5 forgets n_i"),
        ("1 / (weights**2).sum(-1)", "(weights**2).sum(-1)", "the effective rate upside down"),
        ("alpha.clamp(-30, 30) if", "alpha if", "logits without a bound"),
        ("network.init(seed, copy=b)", "network.init(seed)", "equal branches, which stay equal for ever"),
        ("return weighted_mean(branches, round.sizes, server)  # eq. 6", "pass", "eq. 6 is eq. 5"),
    ],
    "methods/pfedme.py": [
        ("theta = {k: torch.sub(theta[k], gradient[k], alpha=self.inner_lr)",
         "theta = {k: torch.sub(w[k], gradient[k], alpha=self.inner_lr)", "the inner steps do not add up"),
        ("self.lam * (w[k] - theta[k])", "(w[k] - theta[k])", "w moves by eta instead of eta lambda"),
        ("return w, theta\n", "return w, w\n", "w is scored for theta (the authors' code)"),
        ("(1 - self.beta) * w + self.beta * mean[name]", "self.beta * mean[name]", "beta without its complement"),
    ],
    "methods/ifca.py": [
        ("copy=self.draw * self.clusters + j", "copy=self.draw * self.clusters", "equal models, which tie for ever"),
        ('work.sgd(work.loss, select(received, chosen["cluster"])) | chosen',
         "work.sgd(work.loss, select(received, 0)) | chosen", "everybody trains the first model"),
        ("return select(received, best_model(received, work))",
         'return select(received, client["cluster"])', "no new choice over the final models"),
    ],
    "methods/cfl.py": [
        ("label[round.ids[here]] += second.long()",
         "label[: len(second)] += second.long()", "places in the cell taken for client ids (the authors' code)"),
        ("mean < self.eps1 and largest > self.eps2",
         "mean < self.eps1 or largest > self.eps2", "one of the two conditions is enough"),
        ("updates.norm(dim=1).max()",
         "updates.abs().max()", "the largest number in the place of the largest norm (FedEM's code)"),
        ("round.number > self.warmup", "round.number >= self.warmup", "the first split one round early"),
        ("if len(updates) <= 2", "if len(updates) <= 1", "cells of two split"),
        ("step = mean_by_cluster(delta, cluster[round.ids]",
         "step = mean_by_cluster(delta, torch.zeros_like(cluster)[round.ids]", "everybody moves the first cell"),
        ('torch.where(chosen >= 0, chosen, server["cluster"][id])', 'server["cluster"][id]', "a newcomer does not choose"),
    ],
    "methods/fedfomo.py": [
        ("gain = baseline - work.held_out_loss", "gain = 2 * baseline - work.held_out_loss", "gains from the wrong baseline"),
        (".sqrt()\n", "\n", "squared distances"),
        ("weight = scores.clamp_min(0)", "weight = scores.abs()", "harmful models count as well"),
        ("weight = weight / torch.where(total > 0, total, 1.0)", "pass", "weights that do not sum to 1"),
        ("heard(models[name] - w)), own[name])",
         "heard(models[name] - w)), w)", "back to the baseline where no weight is positive (the authors' code)"),
        ('pack("own", mixed) | pack("before", mixed)', 'pack("own", mixed) | pack("before", before)', "the baseline never moves"),
        ("epsilon = max(0.0, self.epsilon - 0.05 * round.number)", "epsilon = self.epsilon", "exploration for ever"),
        ("key=lambda n: -float(row[n])", "key=lambda n: float(row[n])", "the least useful first"),
        ("if n != i)", "if True)", "oneself among the others"),
    ],
    "methods/fedamp.py": [
        ("pulled(work.loss, self.lam, received), begin)", "work.loss, begin)", "no pull towards the mix (PFLlib)"),
        ("torch.exp(-distance / sigma)", "torch.exp(distance / sigma)", "attention for the unlike"),
        ("alpha = torch.where(most > 0, (1 - self.self_weight) / most, 0.0)",
         "alpha = sigma", "a free alpha makes the own weight negative"),
        ("return others + torch.diag(1 - others.sum(1))",
         "return others + torch.eye(len(others))", "rows that sum to more than 1"),
        ("uploaded[:, None] & uploaded & ~", "~", "those who never uploaded are in the mix"),
        ("pairs.quantile(self.quantile)", "pairs.mean()", "the mean in the place of the median"),
        ("begin = received if self.start", "begin = received if True or self.start", "`own` starts from the mix as well"),
        ("if sigma == 0:", "if True:", "a new width every round"),
    ],
    "methods/fedem.py": [
        ('client["mixture"].log() - training_losses(models, work)',
         "-training_losses(models, work)", "the E-step forgets the prior"),
        ("share = q[batch.place]", "share = q[: len(batch.place)]", "responsibilities of other images (FL-bench)"),
        ("(share * losses_of_all(work.training(batch), models, batch)).sum(1)",
         "losses_of_all(work.training(batch), models, batch).sum(1)", "the M-step forgets the responsibilities"),
        (".log_softmax(1) for m", " for m", "logits mixed in the place of probabilities"),
        ("network.init(seed, copy=m)", "network.init(seed)", "equal components, which stay equal"),
        ('return {"mixture": train_mean(self.responsibilities(received, client, work), work)}',
         "return client", "a newcomer keeps uniform weights"),
    ],
    "methods/ditto.py": [
        ("pulled(work.loss, self.lam, received), client)", "pulled(work.loss, self.lam, client), client)", "tied to itself"),
        ("return work.sgd(work.loss, received), self.adapt_newcomer(received, client, work)",
         "new = work.sgd(work.loss, received)\n        return new, self.adapt_newcomer(new, client, work)",
         "tied to the model after training instead of as received"),
    ],
    "methods/apfl.py": [
        ("{name: alpha * g for name, g in through.items()}", "through", "the chain rule's factor alpha is lost"),
        ("(alpha - work.lr * moved).clamp(0, 1)", "(alpha + work.lr * moved).clamp(0, 1)", "the share climbs the loss"),
        ("alpha - work.lr * moved).clamp(0, 1)", "alpha - work.lr * moved)", "a share outside 0 to 1"),
        ("alpha * v[name] + (1 - alpha) * w[name]", "alpha * v[name] + alpha * w[name]", "alpha twice (lgcollins/FedRep)"),
    ],
    "methods/perfedavg.py": [
        ("w[name] - self.inner_lr * gradient[name]", "w[name] + self.inner_lr * gradient[name]", "adaptation uphill"),
        ("return self.adapt(received, train_gradient(received, work))", "return received", "scored without adaptation"),
        ('if self.variant == "fo":', "if True:", "the Hessian term is never there"),
        ('phase=("weights", "inner")', 'phase=("weights", "weights")', "one mini-batch for both gradients"),
    ],
    "methods/scaffold.py": [
        ("g + c[name] - own[name] for", "g - c[name] + own[name] for", "the correction's sign"),
        ("own[name] - c[name] - change[name] / work.steps / work.lr",
         "own[name] - change[name] / work.steps / work.lr", "option II without c"),
        ("/ work.steps / work.lr", "/ work.lr", "option II without the number of steps"),
        ("drift = {name: new[name] - own[name] for name in c}",
         "drift = new", "the server adds new controls instead of their change"),
        ("share = len(round.ids) / round.clients", "share = 1.0", "c moves by the whole mean, not by S/N"),
        ("self.server_lr for name", "share = 1.0 name", "no server rate"),
    ],
    "methods/moon.py": [
        ("F.softplus(push - pull)", "F.softplus(pull - push)", "near and far exchanged"),
        ('torch.where(client["seen"], w, received[name])', "w", "the first time the start counts as the previous model"),
        ("F.cosine_similarity(z, far) / self.temperature", "F.cosine_similarity(z, far)", "one temperature is missing"),
        ("+ self.mu * batch.mean(contrast)", "+ batch.mean(contrast)", "no weight of the term"),
        ('pack("previous", trained)', 'pack("previous", received)', "the previous model is the global one"),
        ('h = F.relu(F.linear(h, w["projection1.weight"], w["projection1.bias"]))',
         'h = F.linear(h, w["projection1.weight"], w["projection1.bias"])', "a projection head without its ReLU"),
    ],
    "methods/pfedhn.py": [
        ("w - trained[name] for name", "trained[name] - w for name", "the change's sign"),
        ('leaves["embedding"][round.ids])', 'leaves["embedding"][: len(round.ids)])', "places taken for client ids"),
        ("change / len(round.ids)", "change", "a sum in the place of a mean"),
        ("step = shrink * gradient + self.server_decay * w", "step = gradient + self.server_decay * w", "nothing is clipped"),
        ("shrink * gradient + self.server_decay * w", "shrink * gradient", "no weight decay"),
        ('self.server_momentum * server[f"velocity/{name}"] + step', "step", "no momentum"),
        ("self.embedding or 1 + clients // 4", "self.embedding or 1", "the paper's size of an embedding"),
    ],
    # ---- modular networks, dropout and batch norm ----
    "models/modular.py": [
        ("copy=j) for j in range(self.layers[0])", "copy=0) for j in range(self.layers[0])", "equal encoders"),
        ("std * torch.randn", "torch.randn", "blocks that start large"),
        ("return [*below, last * split_decisions(bits, layers)[1]]", "return [*below, last]", "a block that is not read is sent"),
        ("active.append((link @ active[-1] > 0)", "active.append((link.sum(1) > 0)", "links from inactive blocks count"),
        ("last * split_decisions(bits, layers)[1]", "last", "blocks that nobody reads travel"),
        ("torch.where(eligible > 0, scores, -torch.inf)", "scores", "a safety path from an inactive block"),
        ("flatten().argmax()", "flatten().argmin()", "the least likely link"),
        ("torch.where(needed & chosen, 1.0, bits)", "torch.where(chosen, 1.0, bits)", "a safety path nobody needs"),
        ("return torch.cat([*safe, _with_best(outputs, output_scores, active, empty)])",
         "return torch.cat([*safe, outputs])", "no output bit"),
        ("return gates / torch.where(total == 0, 1.0, total)", "return gates", "sums instead of means in eq. 11"),
        ("_shares(link * source)", "_shares(link)", "what an inactive block says is heard"),
        ("_shares(outputs * active[-1])", "_shares(outputs)", "inactive output blocks vote"),
        ("            h = h.relu()", "            pass", "linear hidden blocks"),
        ("if number < len(layers):", "if number <= len(layers):", "output blocks with a ReLU"),
        ("dropout(h.transpose(0, 1), fold(key, number), rate).transpose(0, 1)",
         "dropout(h, fold(key, number), rate)", "masks that padding shifts"),
    ],
    "models/train_mode.py": [
        ("x * keep_mask(key, rate, x.shape) / (1 - rate)", "x * keep_mask(key, rate, x.shape)", "dropout that shrinks"),
        (">= int(rate * (1 << 53))", ">= int((1 - rate) * (1 << 53))", "the share kept instead of removed"),
        ("dropout(x, fold(self.key, self.number)", "dropout(x, self.key", "equal masks in every layer"),
        ("x.shape[:2]), fold(self.key, self.number)", "x.shape[:2]), self.key", "equal masks of channels"),
        ("if mean.requires_grad:", "if True:", "frozen batch norm in training mode"),
        ("ctx.save_for_backward(running_mean - mean, running_var - var)",
         "ctx.save_for_backward(running_mean - mean, running_var)", "running variances that vanish"),
        ("unbiased = biased.detach() * count / (count - 1).clamp_min(1)",
         "unbiased = biased.detach()", "running variances are unbiased"),
        ("x.new_ones(len(x)) if self.real is None else self.real", "x.new_ones(len(x))", "padding in a batch's statistics"),
        ("STATISTICS_RATE = 0.1", "STATISTICS_RATE = 0.2", "statistics that move twice as fast"),
    ],
    "methods/fedmn.py": [
        ("(t / max(rounds - 1, 1))", "(t / max(rounds, 1))", "the last round does not reach tau_end"),
        ("min(work.round - 1 - self.pretrain, rounds - 1)", "min(work.round - 1, rounds - 1)", "pre-training cools"),
        ("bits + (v - v.detach())", "bits", "the router never learns"),
        ("bits + (v - v.detach())", "v", "soft gates instead of hard ones"),
        ("held(torch.ones_like(bits) if soft else bits, self.layers)",
         "held(bits, self.layers)", "soft gates with inactive blocks"),
        ('draws[now["step"] if sample else 0]', "draws[0]", "the same noise in every mini-batch"),
        ('in_use(now["bits"], self.layers) if self.selective else',
         'in_use(now["bits"], self.layers) if True else', "soft gates that save floats"),
        ("if not self.in_turns or", "if self.in_turns or", "schedules exchanged"),
        ("*below, last = layers_of(plain).values()", "_, *below, last = layers_of(plain).values()", "one layer is not planted"),
        ('torch.where(client["active"].sum() > 0, client["bits"], bits)', 'client["bits"]', "newcomers without bits"),
        ('work.uniform("fixed routes", (total,), per="run")',
         'work.uniform("fixed routes", (total,))', "fixed routes that change"),
        ("upload = where_used(used, trained, start, self.layers) |", "upload = trained |", "unused blocks decay"),
        ("(switches if round_s else 0)", "switches", "switches of soft gates are counted"),
        ("return server | {name: w for name, w in upload.items() if name in server}",
         "return None", "the chain forgets what a client does not use"),
        ('tuned["bits"] = self.decide(tuned, work)[1]', "pass", "a fine-tuned model scored with a noisy draw"),
    ],
    "methods/blocks.py": [
        ('torch.ones_like(sizes) if rule == "code" else sizes', "sizes", "code with sizes"),
        ("weights = sizes[:, None] * used", "weights = used", "block means forget the clients' sizes"),
        ('before = old if rule in ("normalized", "delta") else', "before =", "unused blocks vanish"),
        ("mean = share * mean", "pass", "the printed rule without its shrinkage"),
        ("old + share * (mean - old)", "mean", "delta without its factor"),
        ("row.long().sum() * tensor[0].numel()", "tensor.numel()", "inactive blocks are counted"),
        ("torch.where(like(row, before) > 0, new[name], before)", "new[name]", "unused blocks move"),
    ],
    "models/router.py": [
        ("(eps.log() - (-eps).log1p() + logits)", "(eps.log() - (-eps).log1p() - logits)", "the bit's probability is 1 - pi"),
        ("+ logits) / tau)", "+ logits))", "no temperature"),
        ("F.normalize(h, dim=1, eps=1e-12).relu()", "h.relu()", "features of any length"),
        ("F.normalize(h, dim=1, eps=1e-12).relu()", "F.normalize(h, dim=1, eps=1e-12)", "no ReLU in the router"),
    ],
    "methods/gate.py": [
        ("{name: d + self.decay * gate[name]", "{name: d", "no weight decay of the gate"),
        ("0.9 * first[name] + 0.1 * d for", "0.9 * first[name] + d for", "Adam's first moment grows"),
        ("0.999 * second[name] + 0.001 * d**2", "0.999 * second[name] + 0.001 * d", "Adam divides by the mean"),
        ("(1 - 0.9**steps, 1 - 0.999**steps)", "(1 - 0.9 + 0 * steps, 1 - 0.999 + 0 * steps)", "bias stays"),
        (".sqrt() + 1e-8)", ".sqrt() + 1e-3)", "a large constant in Adam"),
        ("- self.lr * g[name]", "+ self.lr * g[name]", "the gate climbs"),
        ('"global": 1000.0, "personal": -1000.0', '"global": -1000.0, "personal": 1000.0', "held at the other"),
        ('torch_seeded(seed, "gate")', 'torch_seeded(0, "gate")', "every seed starts its gates alike"),
    ],
    "methods/pfl_moe.py": [
        ("z.sigmoid() * general + (-z).sigmoid() * own",
         "(-z).sigmoid() * general + z.sigmoid() * own", "the gate weighs the other expert"),
        ("F.logsigmoid(z) + general.log_softmax(1)", "F.logsigmoid(z) + general", "probabilities that do not sum to 1"),
        ('work.epochs(part="per")', 'work.epochs(part="all")', "the expert learns from the gate's images"),
        ('work.epochs("gate", part="gate")', 'work.epochs("gate", part="per")', "the gate learns from the expert's images"),
        ('work.epochs("gate", part="gate")', 'work.epochs("weights", part="gate")', "the gate's epochs are not its own"),
        ('self.gate == "learned" and self.schedule == "interleaved"',
         'self.gate == "learned" and self.schedule != "interleaved"', "schedules exchanged"),
        ("own = logits(received | expert[0])", "own = logits(received)", "the gate learns between two global models"),
        ('work.size("train") < SMALLEST if learned', "False if learned", "a gate that never learned is used"),
        ("SMALLEST = 4", "SMALLEST = 5", "four images are too few"),
        ('for expert in (theta, unpack("expert", model))',
         'for expert in (unpack("expert", model), theta)', "experts exchanged in use"),
        ("stack(gate, clients)", "stack({k: 0 * v for k, v in gate.items()}, clients)", "gates start at zero"),
        ("general = work.fixed(logits(received)) if in_use",
         "general = work.fixed(logits(received)) if True", "one expert without dropout"),
        ('own = work.fixed(own) if in_use and self.schedule == "sequential" else own',
         'own = work.fixed(own) if self.schedule == "sequential" else own', "no dropout in sequence"),
        ("network if in_use else work.training(batch)", "network", "dropout never reaches the gate"),
        ('if self.gate != "learned" or not run.ft_epochs or not few', "if not few", "a warning where no gate learns"),
    ],
    "methods/pfl_mf.py": [
        ("Cut(network, self.head,", 'Cut(network, "dense",', "the head cannot be chosen"),
    ],
    "methods/pfl_mfe.py": [
        ("cut.network.features(theta, x) if last else", "", "the last layer's gate reads what is below"),
        ("read.flatten(1)", "x.flatten(1)", "the gate reads pixels"),
        ('("dense", "last", first)', '("dense", "last", first, "conv2")', "a cut that the gate cannot read"),
    ],
    # ---- training images, test images ----
    "engine/augment.py": [
        ("rows = height + down - PADDING", "rows = height + down", "shifted to one side only"),
        ("width.flip(0), width", "width, width.flip(0)", "mirrored when it should not be"),
        ("+ right - PADDING", "- right + PADDING", "shifted the other way"),
        ("& (place < side)", "& (place <= side)", "one border is not black"),
        ("moved, black[:, None, None])", "moved, 0 * black[:, None, None])", "grey borders"),
        ("2 * PADDING + 1, 2]", "2 * PADDING, 2]", "one shift to the right is missing"),
    ],
    "engine/evaluate.py": [
        ("right, each = right * batch.real, each * batch.real", "pass", "padding is scored"),
        ("weights=sizes[present] if weighted else None",
         "weights=None if weighted else sizes[present]", "plain and weighted means exchanged"),
        ("present = sizes > 0", "present = sizes >= 0", "clients without images count"),
        ('data.class_counts("train").numpy()', 'data.class_counts("test").numpy()', "shares of the test images"),
        ("shares = trained * (held > 0)", "shares = trained", "shares of classes that cannot be tested"),
        ("(shares * by_class).sum(1) / shares.sum(1)", "by_class.mean(1) + 0 * shares.sum(1)", "every class counts the same"),
        ("right.sum(1) / held.sum()", "right.sum(1) / right.shape[1]", "not a share"),
        ("F.one_hot(y, classes) * correct[:, None]", "F.one_hot(y, classes)", "every answer is right"),
    ],
    # ---- clients ----
    "data/recipes.py": [
        ("order = rng.permutation(len(present))", "order = np.arange(len(present))", "the seed chooses no classes"),
        ("holders[chosen] += 1", "pass", "some classes have more holders"),
        ("held < sizes.sum() / clients", "held <= sizes.sum()", "a client may hold almost everything"),
        ("sizes[rich] - minimum, counts[rich, c]", "counts[rich, c]", "who gives images becomes poor"),
        ("np.lexsort((surplus.round(9), -remainder))", "np.lexsort((-surplus.round(9), -remainder))",
         "equal clients differ in size"),
        ("+ (classes // self.count) * group[:, None]", "+ group[:, None]", "concepts that are close"),
        ("_dirichlet(self.beta, len(of), rng)", "_dirichlet(self.alpha, len(of), rng)", "beta does nothing"),
    ],
    "data/federation.py": [
        ("test.gather(1, train.argmax(1, keepdim=True))", "test.gather(1, test.argmax(1, keepdim=True))",
         "the constant answer has seen the test images"),
        ("else [self.labels, self.test_labels]", "else []", "a digest that forgets the labels"),
        ('images.train_labels, clients, ("train", "val")', 'images.train_labels, clients, ("train",)',
         "validation labels of another client"),
    ],
    # ---- verdicts ----
    "papers/statistics.py": [
        ("1 - ONE_SIDED, self.df", "LEVEL, self.df", "an interval of 90%"),
        ("self.value - half, self.value + half", "self.value - self.se, self.value + self.se", "an interval of one error"),
        ("(self.value - bound) / self.se, self.df", "(self.value + bound) / self.se, self.df", "the bound on the other side"),
        ("if np.isfinite(self.se) else 1.0", "if np.isfinite(self.se) else 0.0", "what has no error decides"),
        ("Estimate(-self.value, self.se, self.df)", "Estimate(self.value, self.se, self.df)", "below is above"),
        ("sum(squares) - rest, *squares", "sum(squares) - rest", "less than clients alone tell"),
        ("sum(squares) - rest, *squares", "squares[1]", "no variance between seeds"),
        ("/ ((seeds - 1) * (clients - 1))", "/ (seeds * clients)", "a rest without its degrees of freedom"),
        ("df = seeds - 1 or clients - 1", "df = clients - 1", "degrees of freedom of the clients"),
        ("clients * (ONE_SEED**2 - 1) / ONE_SEED_CLIENTS", "ONE_SEED**2 - 1", "one factor for any number of clients"),
        ("widening(clients) * (means - middle)", "(means - middle)", "an order of one seed too sure"),
        ("size=(draws, 1, clients)", "size=(draws, seeds, clients)", "clients that are others in each seed"),
        ("sum(one.se**2 for one in parts)", "max(one.se**2 for one in parts)", "a sum as sure as its least sure part"),
        ("min(one.df for one in parts)", "max(one.df for one in parts)", "the most degrees of freedom"),
        ("(len(p) - place) * p[i]", "p[i]", "no correction for many looks"),
        ("worst = max(worst, min(", "worst = max(0.0, min(", "adjusted p-values that fall"),
        ("if all(part.p_above() < level", "if any(part.p_above() < level", "one link holds a chain"),
        ("[1.0] * (planned - len(parts))", "[]", "looks that were planned do not count"),
        ("nan=-np.inf), axis=-1", "nan=np.inf), axis=-1", "what is no number ranks first"),
        ("float(p_each.max())", "float(p_each.min())", "ahead of one rival is ahead of all"),
        ("(1 + (chance <= lead + 1e-9).sum())", "(1 + (chance >= lead + 1e-9).sum())", "beaten upside down"),
        ("names = np.array(range(len(placed)) if blocks is None else blocks)",
         "names = np.array(range(len(placed)))", "settings of one search count twice"),
        ("float(np.abs(means - paper).mean())", "float((means - paper).mean())", "gaps that cancel"),
        ("np.maximum(scale, 1)", "x.shape[-1]", "tau counts ties as differences"),
    ],
    "papers/statement.py": [
        ("LOOKS = (1, 2, 3, 5)", "LOOKS = (1, 2, 3, 4, 5)", "a fourth seed decides"),
        ("if planned >= LOOKS[-1] else ONE_SIDED", "if planned > LOOKS[-1] else ONE_SIDED", "two looks at the level of one"),
        ("found if seeds > 1 else", "found if seeds > 0 else", "one seed as sure as three"),
        ("if twins else difference", "if False else difference", "twins count as two clients"),
        ("best < max(GUESSING / classes,", "best < max(0.0,", "who guesses is a rival"),
        ("np.inf, 1) if alone else", "0.0, 1) if alone else", "one model's number decides"),
        ("unseen = [1.0] * (len(links) - len(known))", "unseen = []", "the family is what has run"),
        ("if starts and seeds == 1", "if False and seeds == 1", "one random start decides"),
        ('"undecided" if any(holds)', '"held" if any(holds)', "one seed holds for all"),
        ("sorted(shared) if len(shared) > 1 else its_own", "its_own", "seeds of settings are not paired"),
        ("part.p_below(above) - part.p_above(above)", "part.p_above(above) - part.p_below(above)",
         "the strongest link is called the weakest"),
    ],
    "results/verdicts.py": [
        ("common[: looked_at(len(common))]", "common", "every new seed is a look"),
        ('if lacking and result.verdict == "held"', 'if lacking and result.verdict == "failed"', "held without all runs"),
        ("if seeds == 2 and result.se is not None", "if seeds == 1 and result.se is not None", "two seeds decide"),
        ("level_of(planned)", "level_of(1)", "the level forgets the second look"),
        ("with_seeds(found[arm], seeds)", "found[arm][: len(seeds)]", "seeds are paired by place"),
        ("diverged_in(run[\"rounds\"]) is not None", "False", "nobody says that a run diverged"),
    ],
    "engine/history.py": [
        ('[f"{prefix}_{quantity}"] = mean(each, sizes * ~held_out)',
         '[f"{prefix}_{quantity}"] = mean(each, sizes)', "who is held out counts in the mean"),
        ('self.test_sizes if split == "test" else self.val_sizes',
         "self.test_sizes", "validation answers divided by test images"),
        ("np.isfinite(each) * ~held_out)", "np.isfinite(each))", "who is held out counts on all test images"),
        ("sizes * held_out)", "sizes)", "newcomers' mean is everyone's"),
        ("key=lambda score: rank(score[1]))[0]", "key=lambda score: score)[0]", "the last round counts as the best"),
        ("scores[-1][0] - best >= patience", "scores[-1][0] - best > patience", "a round more than the rule says"),
        ("for entry in rounds[1:] if entry.get(name)", "for entry in rounds if entry.get(name)", "round 0 counts"),
        ("name = tuned if any", "name = tuned if not any", "fine-tuning does not count"),
    ],
}  # fmt: skip

SHARED = {"weighted_mean", "base", "split", "clusters", "blocks"}
BY_FILE = {"gate", "pfl_moe", "pfl_mf", "pfl_mfe"}  # whose tests are chosen by their file
METHODS = {Path(file).stem for file in CHANGES if file.startswith("methods/")} - SHARED - BY_FILE
MUTATIONS = [Mutation(file, *change) for file, changes in CHANGES.items() for change in changes]

# which test file, `tests/test_methods_NAME.py`, stands for which of the package's
FAMILIES = {
    "sharing": ("split", "pfl_ft", "pfl_fb", "fedper", "fedrep", "lg_fedavg"),
    "ties": ("pfedme", "ditto", "apfl", "perfedavg"),
    "clusters": ("clusters", "ifca", "cfl"),
    "neighbours": ("fedfomo", "fedamp"),
    "mixtures": ("pfedmb", "fedem"),
    "drift": ("fedprox", "scaffold", "moon"),
    "generated": ("pfedhn",),
    "modular": ("modular", "router", "blocks", "fedmn"),
    "experts": ("split",),
}
ALONE = {
    "train_mode": "tests/test_training_mode.py",
    **dict.fromkeys(("gate", "pfl_moe", "pfl_mf", "pfl_mfe", "augment"), "tests/test_methods_experts.py"),
    "evaluate": "tests/test_rounds.py tests/test_methods_experts.py",
    "local_training": "tests/test_engine.py::test_batches_of_one_phase_do_not_depend_on_other_phases_rounds_or_clients "
    "tests/test_methods.py",
    "mapping": "tests/test_batching.py::test_answers_of_groups_come_back_in_the_callers_order",
    "batched": "tests/test_rounds.py tests/test_engine.py",
    "checkpoint": "tests/test_methods_modular.py::test_fedmn_run_that_anneals_cannot_be_continued_for_more_rounds "
    "tests/test_engine.py",
    "experiment": "tests/test_search.py",
    "run": "tests/test_sweep.py::"
    "test_a_tie_between_candidates_goes_to_the_first_of_the_grid_in_whatever_order_they_finished "
    "tests/test_search.py",
    "recipes": "tests/test_partition.py",
    "federation": "tests/test_federation.py",
    "statistics": "tests/test_statistics.py",
    "statement": "tests/test_claims_of_tables.py",
    "verdicts": "tests/test_claims.py tests/test_claims_of_tables.py",
    "rounds": "tests/test_rounds.py tests/test_engine.py tests/test_convergence.py",
    "simulation": "tests/test_rounds.py tests/test_engine.py tests/test_convergence.py",
    "history": "tests/test_rounds.py tests/test_convergence.py",
}


def tests_for(file: str) -> tuple[str, ...]:
    """The test files that ought to notice a change in a file: its family's and the general ones."""
    stem = Path(file).stem
    if stem in ALONE:
        return tuple(ALONE[stem].split())
    everywhere = stem in ("base", "weighted_mean", "work")
    own = [family for family, members in FAMILIES.items() if everywhere or stem in members]
    return (*(f"tests/test_methods_{family}.py" for family in own), "tests/test_methods.py")


def mutated(source: str, old: str, new: str) -> str:
    """The source with one text replaced, however it is laid out; raises ValueError unless it occurs exactly once."""
    if source.count(old) == 1:
        return source.replace(old, new)
    found = list(re.finditer(r"\s*".join(map(re.escape, re.findall(r"\w+|[^\w\s]", old))), source))
    if len(found) != 1:
        raise ValueError(f"this text occurs {len(found)} times instead of once: {old!r}")
    return source[: found[0].start()] + new.strip() + source[found[0].end() :]


class TestsOf:
    """A pytest plugin: only the tests that name a method, steps worked out by hand first; they are quick and notice most."""

    def __init__(self, method: str) -> None:
        self.method = method

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Choose and sort from what was collected."""
        items[:] = [item for item in items if self.method in item.name]
        items.sort(key=lambda item: "by_hand" not in item.name)


def run_tests(folder: Path, tests: tuple[str, ...], method: str) -> None:
    """In a process of its own: pytest with the package of `folder`; exits with pytest's code."""
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1), os.dup2(silence, 2)
    sys.path.insert(0, str(folder))
    import pytest

    import pfl_lite

    assert Path(pfl_lite.__file__).is_relative_to(folder)
    os._exit(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *tests], plugins=[TestsOf(method)]))


def outcome(mutation: Mutation, folder: Path, tests: tuple[str, ...]) -> str:
    """`caught`, `survived`, or what else became of the tests under a mutation."""
    package = folder / "pfl_lite"
    shutil.rmtree(package, ignore_errors=True)
    shutil.copytree(ROOT / "pfl_lite", package, ignore=shutil.ignore_patterns("__pycache__"))
    path = package / mutation.file
    path.write_text(mutated(path.read_text(), mutation.old, mutation.new))
    stem = Path(mutation.file).stem
    method = stem if stem in METHODS else ""
    process = multiprocessing.get_context("fork").Process(target=run_tests, args=(folder, tests, method))
    process.start()
    process.join(LIMIT)
    if process.is_alive():
        process.kill()
        process.join()
        return "caught (too slow)"
    return {CAUGHT: "caught", SURVIVED: "survived"}.get(
        process.exitcode or 0, f"pytest exit code {process.exitcode}"
    )


def main() -> int:
    """Try every mutation; 1 if any survived or could not be tried."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "words", nargs="*", help="only mutations whose file or reason holds one of these words"
    )
    words = parser.parse_args().words
    gone: list[str] = []
    chosen = [m for m in MUTATIONS if not words or any(word in f"{m.file} {m.why}" for word in words)]
    for mutation in list(chosen):
        try:
            mutated((ROOT / "pfl_lite" / mutation.file).read_text(), mutation.old, mutation.new)
        except (ValueError, OSError) as error:
            gone.append(f"gone: pfl_lite/{mutation.file}: {error}")
            chosen.remove(mutation)
    os.chdir(ROOT)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # what every run would import, once for all; never pfl_lite
    for module in (
        "torch.func",
        "torch._dynamo",
        "sklearn.cluster",
        "sklearn.datasets",
        "scipy.stats",
        "tqdm",
    ):
        importlib.import_module(module)
    for plugin in importlib.metadata.entry_points(group="pytest11"):
        plugin.load()

    wrong, started = [], time.perf_counter()
    with tempfile.TemporaryDirectory() as temporary:
        for number, mutation in enumerate(chosen, 1):
            result = outcome(mutation, Path(temporary), tests_for(mutation.file))
            if not result.startswith("caught"):
                wrong.append(mutation)
            print(f"{number:>3}/{len(chosen)}  {result:<10}{mutation.file:<28}{mutation.why}", flush=True)
    seconds = time.perf_counter() - started
    print(f"\n{len(chosen) - len(wrong)} of {len(chosen)} mutations caught in {seconds:.0f} s")
    for mutation in wrong:
        print(
            f"survived: pfl_lite/{mutation.file}: {mutation.why}\n    - {mutation.old}\n    + {mutation.new}"
        )
    print("\n".join(gone))
    return 1 if wrong or gone else 0


if __name__ == "__main__":
    sys.exit(main())
