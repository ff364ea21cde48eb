// Vectors, and what is trained in the playgrounds: bowls in the plane and a small network. Pure functions; nothing here draws.
(() => {
  "use strict";
  const { generator } = typeof document === "undefined" ? require("../../pfl_lite/static/explorer.js") : pflExplorer;

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

  // Standard normal numbers, one stream a seed.
  function normals(seed) {
    const uniform = generator(seed);
    return () => Math.sqrt(-2 * Math.log(uniform())) * Math.cos(2 * Math.PI * uniform());
  }

  // A network's start: normal, of variance 2 / inputs; biases 0.
  function drawn(seed, pixels, hidden, classes) {
    const normal = normals(seed);
    const w = new Float64Array(weights(pixels, hidden, classes));
    let at = 0;
    for (const [outputs, inputs] of [[hidden, pixels], [classes, hidden]])
      for (let j = 0; j < outputs; j++, at++)
        for (let k = 0; k < inputs; k++) w[at++] = normal() * Math.sqrt(2 / inputs);
    return w;
  }

  const models = { plus, dot, descend, softmax, weightedMean, bowl, hessian, lowest, weights, learner, normals, drawn };
  if (typeof document === "undefined") module.exports = models;
  else globalThis.pflModels = models;
})();
