// The comparison explorer of *Compare the methods*: curves, clients in pairs, and ranks, from the runs of the ledger.
// The runs' accuracies are in the page; comparison.js computes what is compared, and this file shows it.
// tests/test_widgets.py runs both files and compares their numbers with pandas' and their words with pfl_lite's.
(() => {
  "use strict";
  const inPage = typeof document !== "undefined";
  const { safe, fixed, drawing, start } = inPage ? pflExplorer : require("./explorer.js");
  const { kept, curves, paired, against, ranks } = inPage ? pflComparison : require("./comparison.js");
  const plural = (number, word) => `${number} ${word}${number === 1 ? "" : "s"}`;
  const show = (value, digits = 1) => fixed(value, digits);
  const DASHES = ["", "7 3", "2 3", "9 3 2 3", "12 4"]; // methods of one color differ in these

  function ticks(low, high) {
    const rough = Math.max(high - low, 0.5) / 5;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
    const first = Math.floor(low / step + 1e-9);
    const steps = Math.max(Math.ceil(high / step - 1e-9) - first, 1);
    return Array.from({ length: steps + 1 }, (_, i) => Number(((first + i) * step).toFixed(6)));
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
      if (seeds > 1) parts.push(`<polygon points="${path(high)} ${path(low, true)}" style="fill:${method.color}"/>`);
      parts.push(`<polyline points="${path(value)}" stroke-dasharray="${DASHES[method.dash]}" style="stroke:${method.color}"/>`);
      at.forEach((round, i) => {
        if (at.length < 12 && !Number.isNaN(value[i]))
          parts.push(`<circle cx="${x(round)}" cy="${y(value[i])}" r="3.5" style="fill:${method.color}">` +
            `<title>${safe(method.name)}, round ${round}: ${show(value[i])}</title></circle>`);
      });
    }
    return drawing(width, Math.min(0.62 * width, 400) + 40, words, parts);
  }

  function drawPairs({ methods: [a, b], rows }, width, words) {
    const values = rows.flatMap((row) => row.values);
    const size = Math.min(width, 460);
    const scale = ticks(Math.min(...values), Math.max(...values));
    const { x, y, parts } = axes(size, size, scale, scale, [`A: ${a.name} (%)`, `B: ${b.name} (%)`]);
    parts.push(`<line class="diagonal" x1="${x(scale[0])}" y1="${y(scale[0])}" ` +
      `x2="${x(scale.at(-1))}" y2="${y(scale.at(-1))}"/>`);
    for (const { seed, client, values: [p, q] } of rows)
      parts.push(`<circle cx="${x(p).toFixed(1)}" cy="${y(q).toFixed(1)}" r="4" style="fill:${b.color}">` +
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
    const nothing = (words) =>
      ({ table: null, svg: "", sentence: `${head}: ${words}${lacking}`, remark: `${words}${lacking}` });
    if (kind === "curves") {
      const lines = curves(entry, metric, summary, methods).sort((p, q) => q.value.at(-1) - p.value.at(-1));
      if (!lines.length) return nothing("choose a method that has it");
      const said = lines.map(({ method, value }) => `${method.name} ${show(value.at(-1))}`).join(", ");
      const sentence = `${head}, ${record.summaries[summary]}, after the last round: ${said}${lacking}`;
      const body = lines.map(({ method, value, at: rounds, seeds }) => [method, show(value.at(-1)), rounds.at(-1), seeds]);
      const table = { head: ["last round (%)", "round", "seeds"], body };
      return { lines, table, svg: drawCurves(lines, width, sentence), sentence, remark: lacking.slice(2) };
    }
    const pairs = paired(entry, metric, kind === "pairs" && a === b ? [] : chosen);
    if (!pairs.rows.length) return nothing(`choose ${kind === "pairs" ? "two methods" : "methods"} with a common seed`);
    const counted = `${plural(pairs.rows.length, "client")} of ${plural(pairs.seeds.length, "seed")}`;
    if (kind === "ranks") {
      const found = ranks(pairs);
      const body = found.map(({ method, rank, mean, worst }) => [method, show(rank, 2), show(mean), show(worst)]);
      const said = body.map(([method, rank, mean, worst]) => `${method.name} ${rank} (${mean}, ${worst})`).join(", ");
      const bars = found.map(({ rank }) => rank / found.length);
      return { found, table: { head: ["mean rank", "mean (%)", "worst tenth (%)"], body, bars }, svg: "",
        sentence: `${head}; ${counted}; mean rank (mean, worst tenth): ${said}${lacking}`, remark: `${counted}${lacking}` };
    }
    if (pairs.methods.length < 2) return nothing("choose two methods with a common seed");
    if (pairs.methods[0].key !== a) { // the record's order, not the reader's
      pairs.methods.reverse();
      pairs.rows.forEach(({ values }) => values.reverse());
    }
    const found = against(pairs);
    const percent = (share) => `${Math.round(100 * share)}%`;
    const points = `${found.difference < 0 ? "" : "+"}${show(found.difference, 2)}`;
    const [first, second] = pairs.methods.map(({ name }) => name);
    const remark = `${counted}: ${second} is above ${first} for ${percent(found.above)}, below for ${percent(found.below)}, ` +
      `equal for ${percent(found.equal)}; mean difference ${points} points`;
    const sentence = `${head}; ${remark}`;
    return { found, table: null, svg: drawPairs(pairs, width, sentence), sentence, remark };
  }

  const swatch = ({ color, dash }) => '<svg class="swatch" aria-hidden="true" width="26" height="10">' +
    `<polyline points="1,5 25,5" stroke-dasharray="${DASHES[dash]}" style="stroke:${color}"/></svg>`;

  // The numbers of a view, a row a method; a bar goes with the first number.
  function numbers({ head, body, bars }) {
    const cell = (value, share) => `<td>${share ? `<i style="width:${(60 * share).toFixed(0)}%"></i>` : ""}${value}</td>`;
    const heads = ["method", ...head].map((name) => `<th scope="col">${name}</th>`);
    const lines = body.map(([method, ...values], i) => `<tr><th scope="row">${swatch(method)}${safe(method.name)}</th>` +
      `${values.map((value, at) => cell(value, at ? 0 : bars?.[i])).join("")}</tr>`);
    return `<thead><tr>${heads.join("")}</tr></thead><tbody>${lines.join("")}</tbody>`;
  }

  function build(root, part, record) {
    const options = (pairs) =>
      pairs.map(([value, name]) => `<option value="${safe(String(value))}">${safe(name)}</option>`).join("");
    const select = (name, words, pairs) =>
      `<label data-row="${name}"><span>${words}</span><select name="${name}">${options(pairs)}</select></label>`;
    root.innerHTML = `<form>${select("at", "experiment", record.experiments.map(({ title }, i) => [i, title]))}` +
      `${select("metric", "accuracy on", [])}${select("kind", "view", record.views)}` +
      `${select("summary", "summary", Object.entries(record.summaries))}${select("a", "A, across", [])}${select("b", "B, up", [])}` +
      '<fieldset data-row="methods"><legend>methods</legend><div></div><button type="button" value="all">all</button> ' +
      '<button type="button" value="">none</button></fieldset></form>' +
      '<p class="spoken" role="status"></p><p class="about"></p><div class="picture"></div><table></table>';
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
    for (const button of root.querySelectorAll("button")) button.addEventListener("click", () => {
      for (const box of boxes()) box.checked = Boolean(button.value);
      part("form").dispatchEvent(new Event("input"));
    });
    return (width, event) => {
      if (!event || event.target.name === "at") begin();
      const kind = value("kind");
      for (const [row, kinds] of Object.entries({ summary: "curves", a: "pairs", b: "pairs", methods: "curves ranks" }))
        part(`[data-row="${row}"]`).hidden = !kinds.includes(kind);
      const methods = boxes().filter(({ checked }) => checked).map((box) => box.value);
      const { table, svg, sentence, remark } = view(record, { at: Number(value("at")), kind, metric: value("metric"),
        summary: value("summary"), methods, a: value("a"), b: value("b"), width });
      part(".about").textContent = remark;
      part(".picture").innerHTML = svg;
      part("table").innerHTML = table ? numbers(table) : "";
      return sentence;
    };
  }

  if (inPage) start("comparison", build);
  else module.exports = { ticks, view };
})();
