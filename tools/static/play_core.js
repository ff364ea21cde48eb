// Federated methods in plain JavaScript, for the playgrounds: pure functions, and nothing here draws.
// A model is one Float64Array. A client is {size, loss(model), gradient(model)}; every local step reads all of its data.
// tests/test_playgrounds.py runs this very file and holds every method against tests/reference, a second implementation in NumPy.
(() => {
  "use strict";
  const models = typeof document === "undefined" ? require("./play_models.js") : pflModels;
  const { plus, weightedMean, dot, descend, softmax } = models;
  const sizes = (clients) => clients.map(({ size }) => size);

  // Every method: start(starts, clients, o) makes a state; round(state, clients, o) gives the next; personal(state, clients, o) the
  // models that the clients use; server(state) what the server holds, as a list; traffic(P, o) the numbers that go down to one
  // client in a round, and up. `starts` are drawn independently, o are the settings. A state's `paths` are the clients' last steps.
  const common = {
    start: (starts) => ({ w: starts[0], paths: [] }),
    round: (state, clients, o) => {
      const paths = clients.map(() => [state.w]);
      const uploads = clients.map((client, i) => descend(state.w, client.gradient, o, paths[i]));
      return { ...state, w: weightedMean(uploads, sizes(clients)), paths };
    },
    personal: (state, clients) => clients.map(() => state.w),
    server: (state) => [state.w],
    traffic: (P) => ({ down: P, up: P }),
  };

  const local = {
    start: (starts, clients) => ({ own: clients.map(() => starts[0]), paths: [] }),
    round: (state, clients, o) => {
      const paths = state.own.map((model) => [model]);
      return { own: clients.map((client, i) => descend(state.own[i], client.gradient, o, paths[i])), paths };
    },
    personal: (state) => state.own,
    server: () => [],
    traffic: () => ({ down: 0, up: 0 }),
  };

  const fedprox = {
    ...common,
    round: (state, clients, o) => {
      const paths = clients.map(() => [state.w]);
      const uploads = clients.map((client, i) =>
        descend(state.w, (x) => plus(client.gradient(x), plus(x, state.w, -1), o.mu), o, paths[i]));
      return { w: weightedMean(uploads, sizes(clients)), paths };
    },
  };

  // Option II of the paper; means are uniform.
  const scaffold = {
    ...common,
    start: (starts, clients) => ({ w: starts[0], c: starts[0].map(() => 0), own: clients.map(() => starts[0].map(() => 0)), paths: [] }),
    round: ({ w, c, own }, clients, o) => {
      const paths = clients.map(() => [w]);
      const even = clients.map(() => 1);
      const uploads = clients.map((client, i) =>
        descend(w, (x) => plus(client.gradient(x), plus(c, own[i], -1)), o, paths[i]));
      const change = uploads.map((y) => plus(plus(w, y, -1).map((value) => value / (o.steps * o.lr)), c, -1));
      return { w: weightedMean(uploads, even), c: plus(c, weightedMean(change, even)), own: own.map((ci, i) => plus(ci, change[i])), paths };
    },
    traffic: (P) => ({ down: 2 * P, up: 2 * P }),
  };

  const pfl_ft = {
    ...common,
    personal: (state, clients, o) => clients.map((client) => descend(state.w, client.gradient, { lr: o.lr, steps: o.tuning })),
  };

  // The numbers from `o.cut` on are the head, which stays at home.
  const fedper = {
    start: (starts, clients) => ({ w: starts[0], heads: clients.map(() => starts[0]), paths: [] }),
    models: (state, o) => state.heads.map((head) => state.w.map((value, k) => (k < o.cut ? value : head[k]))),
    round: (state, clients, o) => {
      const begun = fedper.models(state, o);
      const paths = begun.map((model) => [model]);
      const heads = clients.map((client, i) => descend(begun[i], client.gradient, o, paths[i]));
      return { w: weightedMean(heads, sizes(clients)), heads, paths };
    },
    personal: (state, clients, o) => fedper.models(state, o),
    server: (state) => [state.w],
    traffic: (P, o) => ({ down: o.cut, up: o.cut }),
  };

  const ditto = {
    ...common,
    start: (starts, clients) => ({ w: starts[0], own: clients.map(() => starts[0]), paths: [] }),
    round: (state, clients, o) => {
      const own = clients.map((client, i) =>
        descend(state.own[i], (v) => plus(client.gradient(v), plus(v, state.w, -1), o.lam), o));
      return { ...common.round(state, clients, o), own };
    },
    personal: (state) => state.own,
  };

  const pfedme = {
    ...common,
    start: (starts, clients) => ({ w: starts[0], own: clients.map(() => starts[0]), paths: [] }),
    round: (state, clients, o) => {
      const paths = clients.map(() => [state.w]);
      const own = [];
      const uploads = clients.map((client, i) => {
        let theta = state.w;
        const envelope = (w) => { // its gradient; theta goes on from where it was
          for (let k = 0; k < o.inner_steps; k++)
            theta = plus(theta, plus(client.gradient(theta), plus(theta, w, -1), o.lam), -o.inner_lr);
          return plus(w, theta, -1).map((value) => o.lam * value);
        };
        const after = descend(state.w, envelope, o, paths[i]);
        own.push(theta);
        return after;
      });
      return { w: weightedMean(uploads, sizes(clients)), own, paths };
    },
    personal: (state) => state.own,
  };

  const best = (client, models) => {
    const losses = models.map(client.loss);
    return losses.indexOf(Math.min(...losses)); // the first of equals
  };
  const ifca = {
    start: (starts, clients, o) => ({ models: starts.slice(0, o.clusters), chosen: clients.map(() => -1), paths: [] }),
    round: ({ models }, clients, o) => {
      const chosen = clients.map((client) => best(client, models));
      const paths = clients.map((_, i) => [models[chosen[i]]]);
      const trained = clients.map((client, i) => descend(models[chosen[i]], client.gradient, o, paths[i]));
      return { chosen, paths, models: models.map((model, j) => {
        const members = clients.map((_, i) => i).filter((i) => chosen[i] === j);
        return members.length ? weightedMean(members.map((i) => trained[i]), members.map((i) => clients[i].size)) : model;
      }) };
    },
    personal: (state, clients) => clients.map((client) => state.models[best(client, state.models)]),
    server: (state) => state.models,
    traffic: (P, o) => ({ down: o.clusters * P, up: P }),
  };

  // One weight a branch for the whole network; the softmax of `a` keeps them positive with sum 1.
  const mixed = (branches, alpha) => weightedMean(branches, alpha); // alpha sums to 1
  const pfedmb = {
    start: (starts, clients, o) => ({ branches: starts.slice(0, o.branches), a: clients.map(() => new Array(o.branches).fill(0)), paths: [] }),
    round: ({ branches, a }, clients, o) => {
      a = clients.map((client, i) => { // eq. 3, the branches as received
        let own = a[i];
        for (let k = 0; k < o.steps; k++) {
          const alpha = softmax(own);
          const slope = client.gradient(mixed(branches, alpha));
          const along = branches.map((branch) => dot(slope, branch));
          const mean = dot(alpha, along);
          own = own.map((value, b) => value - o.alpha_lr * alpha[b] * (along[b] - mean));
        }
        return own;
      });
      const alphas = a.map(softmax);
      const trained = clients.map((client, i) => { // eq. 4
        let own = branches;
        for (let k = 0; k < o.steps; k++) {
          const slope = client.gradient(mixed(own, alphas[i]));
          own = own.map((branch, b) => plus(branch, slope, -o.lr * alphas[i][b]));
        }
        return own;
      });
      return { a, paths: [], branches: branches.map((branch, b) => // eq. 5
        weightedMean(trained.map((own) => own[b]), clients.map(({ size }, i) => size * alphas[i][b]))) };
    },
    personal: (state) => state.a.map((own) => mixed(state.branches, softmax(own))),
    server: (state) => state.branches,
    traffic: (P, o) => ({ down: o.branches * P, up: o.branches * P }),
  };

  const METHODS = { local, fedavg: common, fedprox, scaffold, pfl_ft, fedper, ditto, pfedme, ifca, pfedmb };
  const core = { METHODS, ...models };
  if (typeof document === "undefined") module.exports = core;
  else globalThis.pflPlay = core;
})();
