// Federated methods in plain JavaScript, for the playgrounds: pure functions, and nothing here draws.
// A model is one Float64Array. A client is {size, loss(model), gradient(model)}; every local step reads all of its data.
// tests/test_playgrounds.py runs this very file and holds every method against tests/reference, a second implementation in NumPy.
(() => {
  "use strict";
  const { generator } = typeof document === "undefined" ? require("./explorer.js") : pflExplorer;

  // a + scale * b, and the mean of many with weights.
  function plus(a, b, scale = 1) {
    const out = new Float64Array(a.length);
    for (let k = 0; k < out.length; k++) out[k] = a[k] + scale * b[k];
    return out;
  }
  function weightedMean(models, weights) {
    const total = weights.reduce((a, b) => a + b, 0);
    const mean = new Float64Array(models[0].length);
    models.forEach((model, i) => { for (let k = 0; k < mean.length; k++) mean[k] += (weights[i] / total) * model[k]; });
    return mean;
  }
  const sizes = (clients) => clients.map(({ size }) => size);
  function dot(a, b) {
    let total = 0;
    for (let k = 0; k < a.length; k++) total += a[k] * b[k];
    return total;
  }

  // `steps` steps of gradient descent; `path`, if given, collects every point.
  function descend(model, gradient, { lr, steps }, path) {
    for (let k = 0; k < steps; k++) {
      model = plus(model, gradient(model), -lr);
      if (path) path.push(model);
    }
    return model;
  }

  function softmax(logits) {
    const most = Math.max(...logits);
    const raised = logits.map((value) => Math.exp(value - most));
    const total = raised.reduce((a, b) => a + b, 0);
    return raised.map((value) => value / total);
  }

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

  // A bowl in the plane: 1/2 (x - optimum)' H (x - optimum), with H = {a, b, c} for [[a, b], [b, c]].
  function bowl({ optimum, H, size = 1 }) {
    const gradient = (x) => {
      const [dx, dy] = [x[0] - optimum[0], x[1] - optimum[1]];
      return Float64Array.of(H.a * dx + H.b * dy, H.b * dx + H.c * dy);
    };
    const loss = (x) => 0.5 * dot(Float64Array.of(x[0] - optimum[0], x[1] - optimum[1]), gradient(x));
    return { size, loss, gradient };
  }

  // A steepness along a direction (in degrees), and a tenth of it across.
  function hessian(steepness, degrees) {
    const [cos, sin] = [Math.cos((degrees * Math.PI) / 180), Math.sin((degrees * Math.PI) / 180)];
    const flat = 0.1 * steepness;
    return { a: steepness * cos * cos + flat * sin * sin, b: (steepness - flat) * cos * sin, c: steepness * sin * sin + flat * cos * cos };
  }

  // Where the mean of the bowls, weighted by size, is lowest.
  function lowest(bowls) {
    let [a, b, c, p, q] = [0, 0, 0, 0, 0];
    for (const { H, optimum: [x, y], size = 1 } of bowls) {
      a += size * H.a; b += size * H.b; c += size * H.c;
      p += size * (H.a * x + H.b * y); q += size * (H.b * x + H.c * y);
    }
    const area = a * c - b * b;
    return Float64Array.of((c * p - b * q) / area, (a * q - b * p) / area);
  }

  // A network: pixels, `hidden` units with ReLU, classes; cross-entropy. Its vector is layer after layer, row after row, the bias at
  // the end of each row. x is [images][pixels] in one array, y the labels.
  const weights = (pixels, hidden, classes) => hidden * (pixels + 1) + classes * (hidden + 1);
  function learner({ x, y, pixels, hidden, classes }) {
    const size = y.length;
    const cut = hidden * (pixels + 1);
    const [h, z] = [new Float64Array(hidden), new Float64Array(classes)];
    function forward(w, s) {
      for (let j = 0; j < hidden; j++) {
        const row = j * (pixels + 1);
        let value = w[row + pixels];
        for (let k = 0; k < pixels; k++) value += w[row + k] * x[s * pixels + k];
        h[j] = Math.max(value, 0);
      }
      for (let c = 0; c < classes; c++) {
        const row = cut + c * (hidden + 1);
        let value = w[row + hidden];
        for (let j = 0; j < hidden; j++) value += w[row + j] * h[j];
        z[c] = value;
      }
    }
    function logSum() {
      let [most, total] = [-Infinity, 0];
      for (const value of z) most = Math.max(most, value);
      for (const value of z) total += Math.exp(value - most);
      return most + Math.log(total);
    }
    function loss(w) {
      let total = 0;
      for (let s = 0; s < size; s++) { forward(w, s); total += logSum() - z[y[s]]; }
      return total / size;
    }
    function gradient(w) {
      const g = new Float64Array(w.length);
      const back = new Float64Array(hidden);
      for (let s = 0; s < size; s++) {
        forward(w, s);
        const log = logSum();
        back.fill(0);
        for (let c = 0; c < classes; c++) {
          const slope = (Math.exp(z[c] - log) - (c === y[s] ? 1 : 0)) / size;
          const row = cut + c * (hidden + 1);
          for (let j = 0; j < hidden; j++) { g[row + j] += slope * h[j]; back[j] += slope * w[row + j]; }
          g[row + hidden] += slope;
        }
        for (let j = 0; j < hidden; j++) {
          if (!(h[j] > 0)) continue;
          const row = j * (pixels + 1);
          for (let k = 0; k < pixels; k++) g[row + k] += back[j] * x[s * pixels + k];
          g[row + pixels] += back[j];
        }
      }
      return g;
    }
    // The class of every image.
    function predict(w) {
      return Array.from({ length: size }, (_, s) => { forward(w, s); return z.indexOf(Math.max(...z)); });
    }
    const accuracy = (w) => predict(w).filter((label, s) => label === y[s]).length / size;
    return { size, loss, gradient, predict, accuracy };
  }

  // A network's start: normal, of variance 2 / inputs; biases 0.
  function drawn(seed, pixels, hidden, classes) {
    const uniform = generator(seed);
    const normal = () => Math.sqrt(-2 * Math.log(uniform())) * Math.cos(2 * Math.PI * uniform());
    const w = new Float64Array(weights(pixels, hidden, classes));
    let at = 0;
    for (const [outputs, inputs] of [[hidden, pixels], [classes, hidden]])
      for (let j = 0; j < outputs; j++, at++)
        for (let k = 0; k < inputs; k++) w[at++] = normal() * Math.sqrt(2 / inputs);
    return w;
  }

  const METHODS = { local, fedavg: common, fedprox, scaffold, pfl_ft, fedper, ditto, pfedme, ifca, pfedmb };
  const core = { METHODS, plus, dot, descend, softmax, weightedMean, bowl, hessian, lowest, weights, learner, drawn };
  if (typeof document === "undefined") module.exports = core;
  else globalThis.pflPlay = core;
})();
