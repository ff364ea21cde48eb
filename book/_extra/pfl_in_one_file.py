"""Personalized federated learning in one file: thirteen methods, from FedAvg to pFedMB, on scikit-learn's digits.

Made by tools/one_file.py from the cells of the book "Personalized federated learning, by running it", and tested to give the
numbers of its package. It needs NumPy, PyTorch and scikit-learn: python pfl_in_one_file.py
Code: BSD-3-Clause, the pfl_lite authors.
"""

import zlib
from types import SimpleNamespace

import numpy as np
import torch
import torch.nn.functional as F
from torch.func import grad


def generator(seed: int, purpose: str, *numbers: int | str) -> np.random.Generator:
    """The generator of one purpose, e.g. `generator(0, "batches", round, client, "weights")`."""
    words = [zlib.crc32(word.encode()) if isinstance(word, str) else word for word in (purpose, *numbers)]
    return np.random.default_rng([seed, *words])


def epoch_orders(seed: int, round: int, client: int, phase: str, samples: int, epochs: int) -> np.ndarray:
    """The order [epochs, samples] in which one client visits its images in one phase of one round."""
    rng = generator(seed, "batches", round, client, phase)
    orders = [rng.permutation(samples) for _ in range(epochs)]
    return np.array(orders, dtype=np.int64).reshape(epochs, samples)  # a phase may have no epochs


class Federation(SimpleNamespace):
    def __len__(self):
        return len(self.train)


def pairs_of_digits(seed=0):  # ten clients; clients 2p and 2p + 1 share the digits 2p and 2p + 1
    from sklearn.datasets import load_digits

    pixels, names = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(pixels))
    x = torch.tensor(pixels[order] / 16).view(-1, 1, 8, 8)
    y = torch.tensor(names[order])
    train, test = [], []
    for i in range(10):
        mine = torch.where(y // 2 == i // 2)[0][i % 2 :: 2]  # every other image of the pair of digits
        train.append(mine[len(mine) // 4 :])
        test.append(mine[: len(mine) // 4])
    sizes = torch.tensor([len(rows) for rows in train])
    return Federation(images=x, labels=y, train=train, train_sizes=sizes, test_images=x, test_labels=y, test=test)


def mlp(w, x):  # one hidden layer
    return F.linear(F.linear(x.flatten(1), w["fc1.weight"], w["fc1.bias"]).relu(), w["fc2.weight"], w["fc2.bias"])


def first_weights(shapes, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return {name: 0.1 * torch.randn(shape, generator=rng, dtype=torch.float64) for name, shape in shapes.items()}


# FedAvg (Federated learning in twenty lines)
def fedavg(federation, start, rounds, E, b, lr):
    def softmax_regression(w, x):
        return x.flatten(1) @ w["fc.weight"].T + w["fc.bias"]  # [b, 64] -> [b, 10]

    def client_update(model, theta, t, i, E, b, lr, fed=federation, seed=0):
        w, mine = theta, fed.train[i]  # start at the global model; mine: [n_i] indices
        for order in epoch_orders(seed, t, i, "weights", len(mine), E):  # [n_i], E times
            for rows in mine[order].split(b):  # [b]: the images of one mini-batch
                w = {name: p.detach().requires_grad_() for name, p in w.items()}
                guess = model(w, fed.images[rows])  # [b, 10]
                loss = F.cross_entropy(guess, fed.labels[rows])  # scalar
                step = torch.autograd.grad(loss, list(w.values()))  # shapes as in w
                pairs = zip(w.items(), step, strict=True)
                w = {name: (p - lr * g).detach() for (name, p), g in pairs}
        return w

    def server_executes(model, theta, T, E, b, lr, C=1.0, fed=federation, seed=0):
        for t in range(1, T + 1):
            m = max(1, round(C * len(fed)))  # how many clients take part
            draw = generator(seed, "participation", t)
            S = sorted(draw.choice(len(fed), m, replace=False))
            models = [client_update(model, theta, t, i, E, b, lr, fed, seed) for i in S]
            sizes = torch.tensor([len(fed.train[i]) for i in S]).double()  # n_i, [m]
            share = sizes / sizes.sum()  # [m], sums to 1
            theta = {name: sum(a * w[name] for a, w in zip(share, models, strict=True)) for name in theta}
        return theta

    theta = server_executes(softmax_regression, start, rounds, E, b, lr)
    return [theta] * len(federation.train)


# Local, and FedAvg with fine-tuning (One model or many)
def local_or_tuned(fed, start, rounds, E, b, lr, tune=False):
    def sgd(model, w, fed, i, t, E, b, lr, seed=0):  # office i in round t
        mine = fed.train[i]  # [n_i] indices
        for order in epoch_orders(seed, t, i, "weights", len(mine), E):  # [n_i], E times
            for rows in mine[order].split(b):  # [b]
                w = {name: p.detach().requires_grad_() for name, p in w.items()}
                loss = F.cross_entropy(model(w, fed.images[rows]), fed.labels[rows])
                step = torch.autograd.grad(loss, list(w.values()))
                pairs = zip(w.items(), step, strict=True)
                w = {name: (p - lr * g).detach() for (name, p), g in pairs}
        return w

    def train(model, models, rounds, average, fed, E=1, b=32, lr=0.2):
        share = fed.train_sizes.double() / fed.train_sizes.sum()  # n_i / n, [N]
        for t in rounds:
            models = [sgd(model, w, fed, i, t, E, b, lr) for i, w in enumerate(models)]
            if average:
                pairs = list(zip(share, models, strict=True))
                mean = {name: sum(a * w[name] for a, w in pairs) for name in models[0]}
                models = [mean] * len(fed)
        return models

    model = lambda w, x: F.linear(x.flatten(1), w["fc.weight"], w["fc.bias"])  # noqa: E731
    models = train(model, [start] * len(fed.train), range(1, rounds + 1), tune, fed, E, b, lr)
    return train(model, models, [rounds + 1], False, fed, E, b, lr) if tune else models


# FedProx and SCAFFOLD (Pulling toward the center)
def with_less_drift(skewed, start, rounds, EPOCHS, BATCH, LR, mu=None):  # SCAFFOLD if there is no mu
    def flat(params, stacked=0):  # all tensors as one vector [P]; stacked=1: [N, P]
        return torch.cat([p.flatten(stacked) for p in params.values()], -1)

    def shaped(w, like=start):  # the tensors, by name, that the vector w holds
        parts = w.split([p.numel() for p in like.values()])
        pairs = zip(like.items(), parts, strict=True)
        return {name: part.view_as(p) for (name, p), part in pairs}

    def loss(w, x, y):  # mean cross-entropy (nats) of the model w [P]
        return F.cross_entropy(mlp(shaped(w), x), y)

    gradient = torch.func.grad(loss)  # FedAvg's direction: gradient(w, x, y) is [P]

    def one_round(directions, theta, t):  # the mean of the clients' last models, [P]
        ends = [walk(direction, theta, t, i)[-1] for i, direction in enumerate(directions)]
        return torch.stack(ends).mean(0)

    def walk(direction, theta, t, i, epochs=EPOCHS, most=None):  # client i's path, [K + 1, P]
        path, mine = [theta], skewed.train[i]  # mine: [n_i] image indices
        for order in epoch_orders(0, t, i, "weights", len(mine), epochs):
            for rows in mine[order].split(BATCH):  # [b]
                d = direction(path[-1], skewed.images[rows], skewed.labels[rows])  # [P]
                path.append(path[-1] - LR * d)
        return torch.stack(path if most is None else path[: most + 1])

    def fedprox(theta, mu):  # FedProx's direction around the received theta
        return lambda w, x, y: gradient(w, x, y) + mu * (w - theta)

    def scaffold(c, c_i):  # SCAFFOLD's direction for one client
        return lambda w, x, y: gradient(w, x, y) + c - c_i  # eq. 3 of the paper

    def scaffold_round(theta, c, own, t):  # the next theta [P], c [P] and own [N, P]
        ends, renewed = [], []
        for i, c_i in enumerate(own):
            path = walk(scaffold(c, c_i), theta, t, i)
            K = len(path) - 1
            ends.append(path[-1])
            renewed.append(c_i - c + (theta - path[-1]) / (K * LR))  # eq. 4, option II
        ends, renewed = torch.stack(ends), torch.stack(renewed)  # [N, P]
        return ends.mean(0), c + (renewed - own).mean(0), renewed  # eq. 5

    theta, N = flat(start), len(skewed.train)
    c, own = torch.zeros_like(theta), torch.zeros(N, len(theta), dtype=theta.dtype)
    for t in range(1, rounds + 1):
        if mu is None:
            theta, c, own = scaffold_round(theta, c, own, t)
        else:
            theta = one_round([fedprox(theta, mu)] * N, theta, t)
    return [shaped(theta)] * N


# FedPer, FedRep and LG-FedAvg (Sharing a part)
def sharing_a_part(fed, start, rounds, EPOCHS, BATCH, LR, private=("fc2",), head_first=False):
    net, N = mlp, len(fed.train)

    def loss(moving, fixed, x, y):  # mean cross-entropy (nats) of the whole network
        return F.cross_entropy(net(fixed | moving, x), y)

    gradient = torch.func.grad(loss)  # with respect to `moving` alone

    def sgd(moving, fixed, t, i, phase="weights", epochs=EPOCHS):  # the trained tensors
        mine = fed.train[i]  # [n_i]
        for order in epoch_orders(0, t, i, phase, len(mine), epochs):
            for rows in mine[order].split(BATCH):  # [b]
                g = gradient(moving, fixed, fed.images[rows], fed.labels[rows])
                moving = {name: p - LR * g[name] for name, p in moving.items()}
        return moving

    def pick(w, layers):  # the tensors of these layers
        return {name: p for name, p in w.items() if name.split(".")[0] in layers}

    def together(s, p, t, i):  # FedPer and LG-FedAvg
        both = sgd(s | p, {}, t, i)
        return {name: both[name] for name in s}, {name: both[name] for name in p}

    def head_then_base(s, p, t, i, head_epochs=3):  # FedRep
        p = sgd(p, s, t, i, phase="head", epochs=head_epochs)
        return sgd(s, p, t, i), p

    def by_hand(client, private, rounds=2):  # the shared part, and one private part per client
        p = pick(start, private)
        s, parts = {name: w for name, w in start.items() if name not in p}, [p] * N
        share = fed.train_sizes.double() / fed.train_sizes.sum()  # n_i / n, [N]
        for t in range(1, rounds + 1):
            sent, parts = zip(*(client(s, parts[i], t, i) for i in range(N)), strict=True)
            for name in s:
                stacked = torch.stack([one[name] for one in sent])  # [N, ...]
                s[name] = torch.tensordot(share, stacked, dims=1)  # the weighted mean
        return s, parts

    s, parts = by_hand(head_then_base if head_first else together, private, rounds)
    return [s | p for p in parts]


# Ditto and pFedMe (Two models, one tie)
def tied(fed, start, rounds, BATCH, ETA, method="ditto", **options):
    def federated(client, world, w, kept, rounds, **options):  # last w, and what all keep
        visit, share = world  # visit(t, i) -> f, batches; share: [N]
        for t in range(1, rounds + 1):
            answers = []
            for i, mine in enumerate(kept):
                answers.append(client(w, mine, *visit(t, i), **options))
            w = sum(a * sent for a, (sent, _) in zip(share, answers, strict=True))
            kept = [mine for _, mine in answers]
        return w, kept

    def ditto(w, v, f, batches, lam, eta):
        received = w
        for f_b in batches():
            leash = lam * (v - received)
            w, v = w - eta * grad(f_b)(w), v - eta * (grad(f_b)(v) + leash)
        return w, v  # sent, kept

    def pfedme(w, _, f, batches, lam, K, inner_lr, eta):
        theta = w
        for f_b in batches():
            for _ in range(K):
                theta = theta - inner_lr * (grad(f_b)(theta) + lam * (theta - w))
            w = w - eta * lam * (w - theta)
        return w, theta

    def images(t, i):  # what client i sees: its whole loss, and its mini-batches of round t
        def on(rows):  # the mean cross-entropy (nats) on these images, as a function of w
            x, y = fed.images[rows].flatten(1), fed.labels[rows]  # [b, 64], [b]
            W = 10 * x.shape[1]  # the number of weights; ten biases follow them
            return lambda w: F.cross_entropy(x @ w[:W].view(10, -1).T + w[W:], y)

        def batches(phase="weights"):
            for order in epoch_orders(0, t, i, phase, len(fed.train[i]), 1):  # [n_i]
                for rows in fed.train[i][order].split(BATCH):
                    yield on(rows)

        return on(fed.train[i]), batches

    w = torch.cat([start["fc.weight"].flatten(), start["fc.bias"]])
    share = fed.train_sizes.double() / fed.train_sizes.sum()  # n_i / n, [N]
    client = {"ditto": ditto, "pfedme": pfedme}[method]
    _, kept = federated(client, (images, share), w, [w] * len(share), rounds, eta=ETA, **options)
    return [{"fc.weight": v[:-10].view(10, -1), "fc.bias": v[-10:]} for v in kept]


# IFCA (Clusters)
def clustered(fed, starts, rounds, E, BATCH, ETA):
    N, sizes = len(fed.train), fed.train_sizes.double()

    def loss_of(w, x, y):  # mean cross-entropy of model w on images x [b, 1, H, W]
        logits = F.linear(x.flatten(1), w["fc.weight"], w["fc.bias"])  # [b, 10]
        return F.cross_entropy(logits, y)

    def mine(data, i):  # the training images and labels of client i
        return data.images[data.train[i]], data.labels[data.train[i]]

    def sgd(w, i, t):  # the model of client i after E epochs in round t
        x, y = mine(fed, i)
        for order in epoch_orders(0, t, i, "weights", len(y), E):  # [n_i]
            for place in torch.from_numpy(order).split(BATCH):  # [b]
                w = {name: p.detach().requires_grad_() for name, p in w.items()}
                loss = loss_of(w, x[place], y[place])
                slopes = torch.autograd.grad(loss, list(w.values()))
                steps = zip(w.items(), slopes, strict=True)
                w = {name: (p - ETA * g).detach() for (name, p), g in steps}
        return w

    def mean_of(models, members):  # the members' models, weighted by n_i
        share = sizes[members] / sizes[members].sum()  # [m]
        rows = [models[i] for i in members]
        return {name: sum(a * w[name] for a, w in zip(share, rows, strict=True)) for name in rows[0]}

    def favorite(models, x, y):  # the position of the model with the lowest loss
        return int(np.argmin([loss_of(w, x, y).item() for w in models]))

    def ifca(starts, rounds):  # the models, and each client's last choice
        models = list(starts)
        for t in range(1, rounds + 1):
            choice = [favorite(models, *mine(fed, i)) for i in range(N)]
            trained = [sgd(models[choice[i]], i, t) for i in range(N)]
            for j in range(len(models)):
                members = [i for i in range(N) if choice[i] == j]
                if members:  # an empty cluster keeps its model
                    models[j] = mean_of(trained, members)
        return models, choice

    models, choice = ifca(starts, rounds)
    return [models[j] for j in choice]


# FedEM (Mixtures)
def blended(glyphs, starts, rounds, E, b, lr):  # starts: [M, ...]; the models, and pi [N, M]
    def losses(models, x, y):  # cross-entropy of every image and component, [b, M]
        weight = models["fc.weight"]  # [M, K, d]
        logits = torch.einsum("bd,mkd->bmk", x.flatten(1), weight) + models["fc.bias"]
        target = y[:, None].expand(-1, len(weight))  # [b, M]
        return F.cross_entropy(logits.transpose(1, 2), target, reduction="none")

    def em_round(models, pi, number, E, b, lr):  # the next models [M, ...] and pi [N, M]
        sent, new_pi = [], []
        for i, mine in enumerate(glyphs.train):  # mine: [n_i] indices
            x, y = glyphs.images[mine], glyphs.labels[mine]
            q = (pi[i].log() - losses(models, x, y)).softmax(1)  # E-step: [n_i, M]
            new_pi.append(q.mean(0))  # M-step for pi: [M]
            w = models
            for order in epoch_orders(0, number, i, "weights", len(mine), E):  # [n_i]
                for place in torch.from_numpy(order).split(b):  # [b]
                    w = {name: p.detach().requires_grad_() for name, p in w.items()}
                    each = losses(w, x[place], y[place])  # [b, M]
                    loss = (q[place] * each).sum(1).mean()  # q travels with its image
                    slopes = torch.autograd.grad(loss, list(w.values()))
                    steps = zip(w.items(), slopes, strict=True)
                    w = {name: (p - lr * g).detach() for (name, p), g in steps}
            sent.append(w)
        share = glyphs.train_sizes.double() / glyphs.train_sizes.sum()  # n_i / n, [N]
        merged = {}
        for name in models:
            merged[name] = sum(a * w[name] for a, w in zip(share, sent, strict=True))
        return merged, torch.stack(new_pi)

    N, M = len(glyphs.train), len(starts["fc.bias"])
    models, pi = starts, torch.full((N, M), 1 / M, dtype=torch.float64)
    for number in range(1, rounds + 1):
        models, pi = em_round(models, pi, number, E, b, lr)
    return models, pi


# pFedMB (pFedMB: branches that clients mix)
def branched(federation, network, branches, rounds, EPOCHS, BATCH, LR, ALPHA_LR):  # branches: [B, ...]
    def batches(number, i, phase):
        rows = federation.train[i]  # [n_i]
        for order in epoch_orders(0, number, i, phase, len(rows), EPOCHS):  # [n_i], E times
            yield from rows[order].split(BATCH)  # [b]

    def loss(w, a, batch):  # f_i(W, alpha) on one mini-batch
        guess = network(mix(w, a), federation.images[batch])  # [b, K]
        return F.cross_entropy(guess, federation.labels[batch])

    def mix(branches, a):
        alpha = a.softmax(-1)  # [B]; below, eq. 1: [B, ...] -> [...]
        return {name: torch.tensordot(alpha, t, dims=1) for name, t in branches.items()}

    def client(i, branches, a, number):  # branches[name] [B, ...], a [B]
        w = branches
        for batch in batches(number, i, "alpha"):
            a = a - ALPHA_LR * grad(loss, argnums=1)(w, a, batch)  # eq. 3
        for batch in batches(number, i, "weights"):
            g = grad(loss)(w, a, batch)
            w = {name: w[name] - LR * g[name] for name in w}  # eq. 4
        return a, w

    def one_round(branches, logits, number):  # logits [N, B]
        sent = [client(i, branches, logits[i], number) for i in range(10)]
        logits = torch.stack([a for a, _ in sent])  # [N, B]
        share = federation.train_sizes[:, None] * logits.softmax(-1)  # n_i alpha_ib
        share = share / share.sum(0)  # [N, B], each column sums to 1
        merged = {}
        for name in branches:
            uploads = torch.stack([w[name] for _, w in sent])  # [N, B, ...]
            merged[name] = torch.einsum("ib,ib...->b...", share, uploads)  # eq. 5
        return merged, logits

    B = len(next(iter(branches.values())))
    logits = torch.zeros(len(federation.train), B, dtype=torch.float64)
    for number in range(1, rounds + 1):
        branches, logits = one_round(branches, logits, number)
    return [mix(branches, a) for a in logits], logits.softmax(-1)


def accuracy(fed, answers):  # mean over clients (%); answers(i, x) are scores [b, 10] of client i's model
    pairs = [(answers(i, fed.test_images[rows]).argmax(1), fed.test_labels[rows]) for i, rows in enumerate(fed.test)]
    return 100 * torch.stack([(guess == y).double().mean() for guess, y in pairs]).mean().item()


def main(rounds=5, E=2, b=32, lr=0.1):
    fed = pairs_of_digits()
    linear = lambda w, x: F.linear(x.flatten(1), w["fc.weight"], w["fc.bias"])  # noqa: E731
    shapes = {"fc.weight": (10, 64), "fc.bias": (10,)}
    start, starts = first_weights(shapes), [first_weights(shapes, seed) for seed in range(5)]
    stacked = {name: torch.stack([w[name] for w in starts]) for name in shapes}
    deep = first_weights({"fc1.weight": (64, 64), "fc1.bias": (64,), "fc2.weight": (10, 64), "fc2.bias": (10,)})
    budget = (rounds, E, b, lr)
    models = {
        "Local": (linear, local_or_tuned(fed, start, *budget)),
        "FedAvg": (linear, fedavg(fed, start, *budget)),
        "PFL-FT": (linear, local_or_tuned(fed, start, *budget, tune=True)),
        "FedProx": (mlp, with_less_drift(fed, deep, *budget, mu=0.1)),
        "SCAFFOLD": (mlp, with_less_drift(fed, deep, *budget)),
        "FedPer": (mlp, sharing_a_part(fed, deep, *budget)),
        "FedRep": (mlp, sharing_a_part(fed, deep, *budget, head_first=True)),
        "LG-FedAvg": (mlp, sharing_a_part(fed, deep, *budget, private=("fc1",))),
        "Ditto": (linear, tied(fed, start, rounds, b, lr, lam=0.5)),
        "pFedMe": (linear, tied(fed, start, rounds, b, lr, "pfedme", lam=2.0, K=3, inner_lr=0.1)),
        "IFCA": (linear, clustered(fed, starts, *budget)),
        "pFedMB": (linear, branched(fed, linear, stacked, rounds, E, b, 0.5, 0.3)[0]),
    }
    for name, (network, mine) in models.items():
        reads = accuracy(fed, lambda i, x, network=network, mine=mine: network(mine[i], x))
        print(f"{name:12} {reads:5.1f}%")
    parts, pi = blended(fed, stacked, *budget)
    each = [{name: t[m] for name, t in parts.items()} for m in range(5)]  # a mixture of probabilities, not of scores
    reads = accuracy(fed, lambda i, x: sum(p * linear(w, x).softmax(1) for p, w in zip(pi[i], each, strict=True)))
    print(f"{'FedEM':12} {reads:5.1f}%")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
