// The comparison explorer of *Compare the methods*: curves, clients in pairs, and ranks, from the runs of the ledger.
// The runs' accuracies are in the page; everything that is compared is computed here.
// tests/test_widgets.py runs this very file and compares its numbers with pandas' and its words with pfl_lite's.
(() => {
  "use strict";
  const sum = (values) => values.reduce((a, b) => a + b, 0);
  const mean = (values) => (values.length ? sum(values) / values.length : NaN);
  const safe = (text) => text.replace(/[&<>"]/g, (sign) => `&#${sign.charCodeAt()};`);
  const plural = (number, word) => `${number} ${word}${number === 1 ? "" : "s"}`;
  // Nine digits first: what adding up in another order changes is cut off, as pfl_lite does it.
  const show = (value, digits = 1) => (Number.isNaN(value) ? "-" : Number(value.toFixed(9)).toFixed(digits));
  const DASHES = ["", "7 3", "2 3", "9 3 2 3", "12 4"]; // methods of one colour differ in these

  // Three digits to the base 36 are a number of hundredths of a point; zzz stands for a client without test images.
  const decode = (text) => (text.match(/.{3}/g) || []).map((one) => (one === "zzz" ? NaN : parseInt(one, 36) / 100));

  // The mean of the lowest tenth, of ceil(n / 10) numbers.
  function worstTenth(values) {
    const some = values.filter((value) => !Number.isNaN(value)).sort((a, b) => a - b);
    return mean(some.slice(0, Math.ceil(some.length / 10)));
  }

  // What the chosen methods' runs kept of a metric: [{method, runs: [{seed, at, mean, worst_tenth, clients}]}].
  function kept(entry, metric, methods) {
    return entry.methods.filter(({ key }) => methods.includes(key)).map((method) => ({ method, runs: method.runs.flatMap((run) => {
      const scores = typeof run[metric] === "string" ? run[run[metric]] : run[metric];
      if (!scores) return [];
      const [at, means, worst, clients] = [scores[0], ...scores.slice(1).map(decode)];
      return [{ seed: run.seed, at, mean: means, worst_tenth: worst, clients }];
    }) })).filter(({ runs }) => runs.length);
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

  function ticks(low, high) {
    const rough = Math.max(high - low, 0.5) / 5;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
    const first = Math.floor(low / step + 1e-9);
    return Array.from({ length: Math.max(Math.ceil(high / step - 1e-9) - first, 1) + 1 }, (_, i) => Number(((first + i) * step).toFixed(6)));
  }

  // An empty plot with its axes, and where a point lies in it.
  function axes(width, height, across, up, names) {
    const [left, right, top, bottom] = [46, width - 16, 12, height - 40];
    const x = (value) => left + ((right - left) * (value - across[0])) / (across.at(-1) - across[0] || 1);
    const y = (value) => bottom - ((bottom - top) * (value - up[0])) / (up.at(-1) - up[0] || 1);
    const parts = [...up.map((value) => `<line x1="${left}" x2="${right}" y1="${y(value)}" y2="${y(value)}"/>` +
      `<text class="end" x="${left - 6}" y="${y(value) + 4}">${value}</text>`),
      ...across.map((value) => `<line x1="${x(value)}" x2="${x(value)}" y1="${top}" y2="${bottom}"/>` +
      `<text class="middle" x="${x(value)}" y="${bottom + 16}">${value}</text>`),
      `<text class="middle" x="${(left + right) / 2}" y="${height - 6}">${safe(names[0])}</text>`,
      `<text class="middle" transform="translate(12 ${(top + bottom) / 2}) rotate(-90)">${safe(names[1])}</text>`];
    return { x, y, parts };
  }

  const drawing = (width, height, words, parts) => `<svg role="img" width="${width}" height="${height}" ` +
    `viewBox="0 0 ${width} ${height}" aria-label="${safe(words)}">${parts.join("")}</svg>`;

  // Where there is more to see, without round 0: nobody has trained yet, and the lines would lie close together above it.
  function drawCurves(every, width, words) {
    const lines = every.map((line) => {
      const from = line.at.length > 1 && line.at[0] === 0 ? 1 : 0;
      const cut = (values) => values.slice(from);
      return { ...line, at: cut(line.at), value: cut(line.value), low: cut(line.low), high: cut(line.high) };
    });
    const all = lines.flatMap(({ low, high }) => [...low, ...high]).filter((value) => !Number.isNaN(value));
    const last = Math.max(...lines.flatMap(({ at }) => at), 1);
    const { x, y, parts } = axes(width, Math.min(0.62 * width, 400) + 40, ticks(0, last),
      ticks(Math.min(...all), Math.max(...all)), ["round", "test accuracy (%)"]);
    for (const { method, at, value, low, high, seeds } of lines) {
      const path = (values, backwards) => (backwards ? [...at.keys()].reverse() : [...at.keys()])
        .filter((i) => !Number.isNaN(values[i])).map((i) => `${x(at[i]).toFixed(1)},${y(values[i]).toFixed(1)}`).join(" ");
      if (seeds > 1) parts.push(`<polygon points="${path(high)} ${path(low, true)}" style="fill:${method.colour}"/>`);
      parts.push(`<polyline points="${path(value)}" stroke-dasharray="${DASHES[method.dash]}" style="stroke:${method.colour}"/>`);
      at.forEach((round, i) => { if (at.length < 12 && !Number.isNaN(value[i])) parts.push(`<circle cx="${x(round)}" ` +
        `cy="${y(value[i])}" r="3.5" style="fill:${method.colour}"><title>${safe(method.name)}, round ${round}: ${show(value[i])}</title></circle>`); });
    }
    return drawing(width, Math.min(0.62 * width, 400) + 40, words, parts);
  }

  function drawPairs({ methods: [a, b], rows }, width, words) {
    const values = rows.flatMap((row) => row.values);
    const size = Math.min(width, 460);
    const scale = ticks(Math.min(...values), Math.max(...values));
    const { x, y, parts } = axes(size, size, scale, scale, [`A: ${a.name} (%)`, `B: ${b.name} (%)`]);
    parts.push(`<line class="diagonal" x1="${x(scale[0])}" y1="${y(scale[0])}" x2="${x(scale.at(-1))}" y2="${y(scale.at(-1))}"/>`);
    for (const { seed, client, values: [p, q] } of rows)
      parts.push(`<circle cx="${x(p).toFixed(1)}" cy="${y(q).toFixed(1)}" r="4" style="fill:${b.colour}">` +
        `<title>client ${client}, seed ${seed}: A ${show(p)}, B ${show(q)}</title></circle>`);
    return drawing(size, size, words, parts);
  }

  // From the record and the settings {at, kind, metric, summary, methods, a, b, width} to {table, svg, sentence, remark}; the
  // sentence is for who cannot see the table, the remark is what the table does not say.
  function view(record, { at, kind, metric, summary, methods, a, b, width }) {
    const entry = record.experiments[at];
    const head = `${entry.title}; ${record.metrics[metric]}`;
    const chosen = kind === "pairs" ? [a, b] : methods;
    const without = entry.methods.filter(({ key }) => chosen.includes(key) && !kept(entry, metric, [key]).length);
    const lacking = without.length ? `; not kept by ${without.map(({ name }) => name).join(", ")}` : "";
    const nothing = (words) => ({ table: null, svg: "", sentence: `${head}: ${words}${lacking}`, remark: `${words}${lacking}` });
    if (kind === "curves") {
      const lines = curves(entry, metric, summary, methods).sort((p, q) => q.value.at(-1) - p.value.at(-1));
      if (!lines.length) return nothing("choose a method that has it");
      const said = lines.map(({ method, value }) => `${method.name} ${show(value.at(-1))}`).join(", ");
      const sentence = `${head}, ${record.summaries[summary]}, after the last round: ${said}${lacking}`;
      const body = lines.map(({ method, value, at: rounds, seeds }) => [method, show(value.at(-1)), rounds.at(-1), seeds]);
      return { lines, table: { head: ["last round (%)", "round", "seeds"], body }, svg: drawCurves(lines, width, sentence), sentence,
        remark: lacking.slice(2) };
    }
    const pairs = paired(entry, metric, kind === "pairs" && a !== b ? [a, b] : kind === "pairs" ? [] : methods);
    if (!pairs.rows.length) return nothing(kind === "pairs" ? "choose two methods with a common seed" : "choose methods with a common seed");
    const counted = `${plural(pairs.rows.length, "client")} of ${plural(pairs.seeds.length, "seed")}`;
    if (kind === "ranks") {
      const found = ranks(pairs);
      const said = found.map(({ method, rank, mean: own, worst }) => `${method.name} ${show(rank, 2)} (${show(own)}, ${show(worst)})`);
      const body = found.map(({ method, rank, mean: own, worst }) => [method, show(rank, 2), show(own), show(worst)]);
      return { found, table: { head: ["mean rank", "mean (%)", "worst tenth (%)"], body, bars: found.map(({ rank }) => rank / found.length) },
        svg: "", sentence: `${head}; ${counted}; mean rank (mean, worst tenth): ${said.join(", ")}${lacking}`,
        remark: `${counted}${lacking}` };
    }
    if (pairs.methods.length < 2) return nothing("choose two methods with a common seed");
    if (pairs.methods[0].key !== a) { // the record's order, not the reader's
      pairs.methods.reverse();
      pairs.rows.forEach(({ values }) => values.reverse());
    }
    const found = against(pairs);
    const percent = (share) => `${Math.round(100 * share)} %`;
    const points = `${found.difference < 0 ? "" : "+"}${show(found.difference, 2)}`;
    const sentence = `${head}; ${counted}: ${pairs.methods[1].name} is above ${pairs.methods[0].name} for ${percent(found.above)}, ` +
      `below for ${percent(found.below)}, equal for ${percent(found.equal)}; mean difference ${points} points`;
    return { found, table: null, svg: drawPairs(pairs, width, sentence), sentence, remark: sentence.slice(head.length + 2) };
  }

  const swatch = ({ colour, dash }) => '<svg class="swatch" aria-hidden="true" width="26" height="10"><polyline points="1,5 25,5" ' +
    `stroke-dasharray="${DASHES[dash]}" style="stroke:${colour}"/></svg>`;

  function mount(root) {
    root.dataset.mounted = "yes";
    const record = JSON.parse(root.querySelector("script").textContent);
    const options = (pairs) => pairs.map(([value, name]) => `<option value="${safe(String(value))}">${safe(name)}</option>`).join("");
    const select = (name, words, pairs) => `<label data-row="${name}"><span>${words}</span><select name="${name}">${options(pairs)}</select></label>`;
    root.innerHTML = `<form>${select("at", "experiment", record.experiments.map(({ title }, i) => [i, title]))}` +
      `${select("metric", "accuracy on", [])}${select("kind", "view", record.views)}` +
      `${select("summary", "summary", Object.entries(record.summaries))}${select("a", "A, across", [])}${select("b", "B, up", [])}` +
      '<fieldset data-row="methods"><legend>methods</legend><div></div><button type="button" value="all">all</button> ' +
      '<button type="button" value="">none</button></fieldset></form><p class="spoken" role="status"></p><p class="about"></p><div class="picture"></div><table></table>';
    const part = (selector) => root.querySelector(selector);
    const value = (name) => part(`[name="${name}"]`).value;
    const boxes = () => [...root.querySelectorAll('[type="checkbox"]')];
    function begin() { // another experiment: its metrics and methods
      const entry = record.experiments[value("at")];
      const names = entry.methods.map(({ key, name }) => [key, name]);
      part('[name="metric"]').innerHTML = options(entry.metrics.map((metric) => [metric, record.metrics[metric]]));
      for (const side of ["a", "b"]) {
        part(`[name="${side}"]`).innerHTML = options(names);
        part(`[name="${side}"]`).value = entry[side];
      }
      part("fieldset div").innerHTML = entry.methods.map((method) => `<label><input type="checkbox" value="${safe(method.key)}"` +
        `${method.start ? " checked" : ""}>${swatch(method)}<span>${safe(method.name)}</span></label>`).join("");
    }
    function draw(event) {
      if (!event || event.target.name === "at") begin();
      const kind = value("kind");
      for (const [row, kinds] of Object.entries({ summary: "curves", a: "pairs", b: "pairs", methods: "curves ranks" }))
        part(`[data-row="${row}"]`).hidden = !kinds.includes(kind);
      const { table, svg, sentence, remark } = view(record, { at: Number(value("at")), kind, metric: value("metric"), summary: value("summary"),
        methods: boxes().filter(({ checked }) => checked).map((box) => box.value), a: value("a"), b: value("b"),
        width: Math.max(root.clientWidth - 24, 240) });
      if (part(".spoken").textContent !== sentence) part(".spoken").textContent = sentence;
      part(".about").textContent = remark;
      part(".picture").innerHTML = svg;
      const cells = (values, bar) => values.map((each, i) =>
        `<td>${bar && !i ? `<i style="width:${(60 * bar).toFixed(0)}%"></i>` : ""}${each}</td>`).join("");
      part("table").innerHTML = table ? `<thead><tr><th scope="col">method</th>${table.head.map((each) => `<th scope="col">${each}</th>`).join("")}` +
        `</tr></thead><tbody>${table.body.map(([method, ...values], i) => `<tr><th scope="row">${swatch(method)}${safe(method.name)}</th>` +
          `${cells(values, table.bars?.[i])}</tr>`).join("")}</tbody>` : "";
    }
    part("form").addEventListener("input", draw);
    part("form").addEventListener("submit", (event) => event.preventDefault());
    for (const button of root.querySelectorAll("button")) button.addEventListener("click", (event) => {
      for (const box of boxes()) box.checked = Boolean(button.value);
      draw(event);
    });
    window.addEventListener("resize", () => draw({ target: {} }));
    draw();
  }

  if (typeof document === "undefined") {
    module.exports = { decode, worstTenth, curves, paired, against, ranks, ticks, view };
  } else {
    const start = () => document.querySelectorAll('[data-kind="comparison"]:not([data-mounted])').forEach(mount);
    start();
    setTimeout(start, 300); // JupyterLab runs the script of an output before the output is on the page
  }
})();
