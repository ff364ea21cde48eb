// The partition explorer of the book: everything is computed in the page, no library and no network.
// tests/test_widgets.py runs this very file and compares its numbers with NumPy's and pfl_lite's.
(() => {
  "use strict";
  const { sum, generator, drawing, items, start } = typeof document === "undefined" ? require("./explorer.js") : pflExplorer;
  const IMAGES = 100; // images of each class

  // Standard normal, by Box and Muller.
  const normal = (uniform) => Math.sqrt(-2 * Math.log(uniform())) * Math.cos(2 * Math.PI * uniform());

  // Logarithm of a Gamma(shape, 1) variable, by Marsaglia and Tsang (2000). A shape below 1 is reached
  // from shape + 1 with u^(1/shape), which underflows for a small shape: hence the logarithm.
  function logGamma(shape, uniform) {
    if (shape < 1) return logGamma(shape + 1, uniform) + Math.log(uniform()) / shape;
    const d = shape - 1 / 3;
    const c = 1 / Math.sqrt(9 * d);
    for (;;) {
      const x = normal(uniform);
      const v = (1 + c * x) ** 3;
      if (v > 0 && Math.log(uniform()) < 0.5 * x * x + d * (1 - v + Math.log(v))) return Math.log(d * v);
    }
  }

  // Gamma variables divided by their sum are Dirichlet distributed.
  function dirichlet(length, alpha, uniform) {
    const logs = Array.from({ length }, () => logGamma(alpha, uniform));
    const most = Math.max(...logs);
    const weights = logs.map((value) => Math.exp(value - most));
    return weights.map((weight) => weight / sum(weights));
  }

  // Share matrices are [clients][classes], every column sums to 1.
  const table = (rows, columns) => Array.from({ length: rows }, () => new Array(columns).fill(0));

  // Each class dealt over the clients: no cap and no minimum, other than pfl_lite's `dirichlet:alpha`.
  function dirichletShares(clients, classes, alpha, uniform) {
    const shares = table(clients, classes);
    for (let c = 0; c < classes; c++)
      dirichlet(clients, alpha, uniform).forEach((share, i) => (shares[i][c] = share));
    return shares;
  }

  // k distinct classes per client: those held least so far, ties at random; equal shares of a class.
  function classShares(clients, classes, k, uniform) {
    const shares = table(clients, classes);
    const holders = new Array(classes).fill(0);
    for (let i = 0; i < clients; i++) {
      const ticket = holders.map(() => uniform());
      const order = holders.map((_, c) => c).sort((a, b) => holders[a] - holders[b] || ticket[a] - ticket[b]);
      for (const c of order.slice(0, k)) { holders[c]++; shares[i][c] = 1; }
    }
    return shares.map((row) => row.map((share, c) => share / Math.max(holders[c], 1)));
  }

  // Counts by largest remainders; of equal ones the client favoured least so far comes first.
  function apportion(shares, sizes) {
    const counts = table(shares.length, sizes.length);
    const surplus = new Array(shares.length).fill(0);
    const round9 = (value) => Math.round(value * 1e9);
    sizes.forEach((size, c) => {
      const quota = shares.map((row) => row[c] * size);
      if (!shares.some((row) => row[c] > 0)) return;
      const floor = quota.map((value) => Math.floor(value + 1e-9));
      const rest = quota.map((value, i) => (shares[i][c] > 0 ? round9(value - floor[i]) : -Infinity));
      const before = surplus.map(round9);
      const order = quota.map((_, i) => i).sort((a, b) =>
        rest[a] === rest[b] ? before[a] - before[b] || a - b : rest[b] - rest[a]);
      for (const i of order.slice(0, size - sum(floor))) floor[i]++;
      floor.forEach((count, i) => { counts[i][c] = count; surplus[i] += count - quota[i]; });
    });
    return counts;
  }

  // The same four numbers as pfl_lite's `heterogeneity`.
  function measures(counts) {
    const sizes = counts.map(sum);
    const total = sum(sizes);
    const everybody = counts[0].map((_, c) => sum(counts.map((row) => row[c])) / total);
    const labels = counts.filter((_, i) => sizes[i] > 0).map((row) => row.map((count) => count / sum(row)));
    const distances = labels.map((row) => 0.5 * sum(row.map((p, c) => Math.abs(p - everybody[c]))));
    const effective = labels.map((row) => Math.exp(-sum(row.map((p) => (p > 0 ? p * Math.log(p) : 0)))));
    const sorted = [...sizes].sort((a, b) => a - b);
    return {
      label_distance: sum(distances) / labels.length,
      effective_classes: sum(effective) / labels.length,
      size_ratio: sorted[sorted.length - 1] / sorted[0],
      size_gini: sum(sorted.map((size, i) => (2 * i + 1 - sizes.length) * size)) / (sizes.length * total),
    };
  }

  // From settings {kind, alpha, k, clients, classes, seed, width} to {counts, measures, svg, sentence}.
  function view({ kind, alpha, k, clients, classes, seed, width }) {
    const shares = kind === "dirichlet" ? dirichletShares(clients, classes, alpha, generator(seed))
      : classShares(clients, classes, Math.min(k, classes), generator(seed));
    const counts = apportion(shares, new Array(classes).fill(IMAGES));
    const found = measures(counts);
    const ratio = found.size_ratio.toFixed(1).replace("Infinity", "∞");
    const shown = [
      ["label distance", found.label_distance.toFixed(2), "0: alike, towards 1: disjoint"],
      ["effective classes", found.effective_classes.toFixed(1), `a client, of ${classes}`],
      ["size ratio", ratio, ratio === "∞" ? "a client has no image" : "most over fewest images"],
    ];
    const sizes = counts.map(sum);
    const [left, top, bars] = [34, 22, 56];
    const cell = (width - left - 6) / clients;
    const row = Math.min(Math.max(cell, 16), 26);
    const grid = top + bars + 12;
    const height = grid + classes * row + 40;
    const [x, y] = [(i) => left + (i + 0.5) * cell, (c) => grid + (c + 0.5) * row];
    const every = (step) => (step >= 16 ? 1 : step >= 9 ? 2 : 5);
    const most = Math.max(...counts.flat());
    const parts = [`<text x="0" y="12">images per client (largest: ${Math.max(...sizes)})</text>`];
    sizes.forEach((size, i) => {
      const tall = (bars * size) / Math.max(...sizes);
      parts.push(`<rect class="bar" x="${x(i) - 0.35 * cell}" y="${top + bars - tall}" ` +
        `width="${0.7 * cell}" height="${tall}"><title>client ${i}: ${size} images</title></rect>`);
      if (i % every(cell) === 0)
        parts.push(`<text class="middle" x="${x(i)}" y="${grid + classes * row + 15}">${i}</text>`);
    });
    for (let c = 0; c < classes; c++) {
      parts.push(`<line x1="${left}" x2="${width - 6}" y1="${y(c)}" y2="${y(c)}"/>`);
      parts.push(`<text class="end" x="${left - 8}" y="${y(c) + 4}">${c}</text>`);
      counts.forEach((own, i) => {
        const radius = 0.48 * Math.min(cell, row) * Math.sqrt(own[c] / most);
        if (own[c] > 0)
          parts.push(`<circle cx="${x(i)}" cy="${y(c)}" r="${radius.toFixed(2)}">` +
            `<title>client ${i}, class ${c}: ${own[c]} images</title></circle>`);
      });
    }
    parts.push(`<text class="middle" x="${left + (clients * cell) / 2}" y="${height - 6}">client</text>`);
    parts.push(`<text class="middle" transform="translate(10 ${y(classes / 2)}) rotate(-90)">class</text>`);
    const sentence = shown.map(([name, value]) => `${name} ${value.replace("∞", "infinite")}`).join(", ");
    const svg = drawing(width, height, `${classes} classes at ${clients} clients: ${sentence}`, parts);
    return { counts, measures: found, shown, svg, sentence };
  }

  const SLIDERS = [ // name, label, smallest, largest, step, start; alpha is set by its decimal logarithm
    ["alpha", "a, concentration", -1.3, 2, 0.05, -0.4],
    ["k", "classes per client, k", 1, 20, 1, 2],
    ["clients", "clients", 2, 30, 1, 12],
    ["classes", "classes", 2, 20, 1, 10],
    ["seed", "seed", 0, 99, 1, 0],
  ];

  function build(root, part) {
    const slider = ([name, label, min, max, step, value]) =>
      `<label data-row="${name}"><span>${label} <output></output></span><input type="range" name="${name}" ` +
      `min="${min}" max="${max}" step="${step}" value="${value}"></label>`;
    root.innerHTML = '<form><label><span>partition</span><select name="kind"><option value="dirichlet">' +
      'Dirichlet(a)</option><option value="classes">k classes per client</option></select></label>' +
      SLIDERS.map(slider).join("") +
      '</form><dl></dl><p class="spoken" role="status"></p><div class="picture"></div>';
    const input = (name) => part(`[name="${name}"]`);
    return (width) => {
      const state = { kind: input("kind").value, width };
      input("k").max = input("classes").value;
      for (const [name] of SLIDERS) {
        const value = Number(input(name).value);
        state[name] = name === "alpha" ? Number((10 ** value).toPrecision(2)) : value;
        part(`[data-row="${name}"] output`).textContent = state[name];
        input(name).setAttribute("aria-valuetext", state[name]);
      }
      part('[data-row="alpha"]').hidden = state.kind !== "dirichlet";
      part('[data-row="k"]').hidden = state.kind !== "classes";
      const { shown, svg, sentence } = view(state);
      part("dl").innerHTML = items(shown);
      part(".picture").innerHTML = svg;
      return sentence;
    };
  }

  if (typeof document === "undefined") module.exports = { generator, dirichlet, classShares, apportion, measures, view };
  else start("partition", build);
})();
