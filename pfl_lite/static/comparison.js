// What the comparison explorer computes, as pfl_lite.show.comparison does it; a page carries it in front of the explorer.
(() => {
  "use strict";
  const { sum, mean } = typeof document === "undefined" ? require("./explorer.js") : pflExplorer;

  // Hundredths of a point in base 36, all first digits before all second and all third; `-`, of a client without test images,
  // is no number.
  function decode(words) {
    const n = words.length / 3;
    return Array.from({ length: n }, (_, i) => parseInt(words[i] + words[n + i] + words[2 * n + i], 36) / 100);
  }

  const numbers = (values) => values.filter((value) => !Number.isNaN(value));

  // The mean of the lowest tenth, of ceil(n / 10) numbers.
  function worstTenth(values) {
    const some = numbers(values).sort((a, b) => a - b);
    return mean(some.slice(0, Math.ceil(some.length / 10)));
  }

  // What the chosen methods' runs kept of a metric: [{method, runs: [{seed, at, mean, worst_tenth, clients}]}].
  function kept(entry, metric, methods) {
    const scored = (run) => {
      const scores = typeof run[metric] === "string" ? run[run[metric]] : run[metric];
      if (!scores) return [];
      const [means, worst, clients] = scores.slice(1).map(decode);
      return [{ seed: run.seed, at: entry.rounds[scores[0]], mean: [...means, mean(numbers(clients))],
        worst_tenth: [...worst, worstTenth(clients)], clients }];
    };
    const chosen = entry.methods.filter(({ key }) => methods.includes(key));
    return chosen.map((method) => ({ method, runs: method.runs.flatMap(scored) })).filter(({ runs }) => runs.length);
  }

  // One line a method: the mean over its seeds at the rounds that all of them kept, and their range.
  function curves(entry, metric, summary, methods) {
    return kept(entry, metric, methods).map(({ method, runs }) => {
      const at = runs[0].at.filter((round) => runs.every((run) => run.at.includes(round)));
      const values = at.map((round) => runs.map((run) => run[summary][run.at.indexOf(round)]));
      return { method, at, seeds: runs.length, value: values.map(mean),
        low: values.map((each) => Math.min(...each)), high: values.map((each) => Math.max(...each)) };
    });
  }

  // Clients that all methods scored, of the seeds that all have: {methods, seeds, rows: [{seed, client, values}]}.
  function paired(entry, metric, methods) {
    const found = kept(entry, metric, methods);
    const all = found.map(({ runs }) => new Map(runs.map((run) => [run.seed, run.clients])));
    const seeds = all.length ? [...all[0].keys()].filter((seed) => all.every((own) => own.has(seed))).sort((a, b) => a - b) : [];
    const rows = seeds.flatMap((seed) => all[0].get(seed).map((_, client) =>
      ({ seed, client, values: all.map((own) => own.get(seed)[client]) })))
      .filter(({ values }) => !values.some(Number.isNaN));
    return { methods: found.map(({ method }) => method), seeds, rows };
  }

  // Of the second method against the first: shares of clients above, below, equal, and the mean difference in points.
  function against({ rows }) {
    const difference = rows.map(({ values: [a, b] }) => b - a);
    const share = (holds) => mean(difference.map((each) => Number(holds(each))));
    return { above: share((each) => each > 0), below: share((each) => each < 0), equal: share((each) => each === 0),
      difference: mean(difference) };
  }

  // Every method's mean rank over the clients (1 is best, equal ones share), mean and worst tenth; best rank first.
  function ranks({ methods, seeds, rows }) {
    const rank = (values, m) => 0.5 + sum(values.map((each) => (each > values[m] ? 1 : each === values[m] ? 0.5 : 0)));
    return methods.map((method, m) => ({ method, rank: mean(rows.map(({ values }) => rank(values, m))),
      mean: mean(rows.map(({ values }) => values[m])),
      worst: mean(seeds.map((seed) => worstTenth(rows.filter((row) => row.seed === seed).map(({ values }) => values[m])))) }))
      .sort((a, b) => a.rank - b.rank);
  }

  const comparison = { kept, curves, paired, against, ranks };
  if (typeof document === "undefined") module.exports = comparison;
  else globalThis.pflComparison = comparison;
})();
