// The alpha explorer of *pFedMB*: how much every client uses of every branch, round by round, for several runs side by side.
// The recorded weights are in the page; the measures are computed here.
// tests/test_widgets.py runs this very file and compares its numbers with NumPy's and its words with pfl_lite's.
(() => {
  "use strict";
  const { sum, mean, safe, fixed, drawing, start } = typeof document === "undefined" ? require("./explorer.js") : pflExplorer;

  // Total variation distance of two mixtures: half the sum of the differences.
  const distance = (a, b) => 0.5 * sum(a.map((value, i) => Math.abs(value - b[i])));

  // As many branches of equal weight would have this entropy: 1 for one branch, B for all alike.
  const effective = (weights) => Math.exp(-sum(weights.map((value) => (value > 0 ? value * Math.log(value) : 0))));

  // Of weights [clients][branches]: mean distances over pairs of clients, and the branches that a client uses.
  function measures(weights, groups) {
    const [same, other] = [[], []];
    for (let i = 0; i < weights.length; i++)
      for (let j = i + 1; j < weights.length; j++)
        (groups[i] === groups[j] ? same : other).push(distance(weights[i], weights[j]));
    return [mean(other), mean(same), mean(weights.map(effective))];
  }

  // From the record {groups, rounds, layers, runs: [{name, color, weights [rounds][clients][layers][branches]}], measures}
  // and the settings {at, layer, width} to {found, shown, svg, sentence}; `found` holds the measures of every run.
  function view(record, { at, layer, width }) {
    const { groups, rounds, layers, runs } = record;
    const weights = runs.map((run) => run.weights[at].map((own) => own[layer]));
    const found = weights.map((each) => measures(each, groups));
    const shown = record.measures.map(([name, remark], m) =>
      [name, remark, ...found.map((values) => fixed(values[m], 2))]);
    const order = groups.map((_, i) => i).sort((a, b) => groups[a] - groups[b] || a - b);
    const branches = weights[0][0].length;
    const [left, gap, top] = [width < 420 ? 26 : 60, 18, 44];
    const row = Math.min(Math.max(560 / order.length, 11), 22);
    const wide = (width - left - gap * (runs.length - 1)) / runs.length;
    const cell = wide / branches;
    const breaks = order.map((i, place) => order.slice(1, place + 1).filter((j, p) => groups[j] !== groups[order[p]]).length);
    const y = (place) => top + place * row + 7 * breaks[place];
    const height = y(order.length - 1) + row + 4;
    const parts = [];
    order.forEach((i, place) => parts.push(`<text class="end" x="${left - 8}" y="${y(place) + row / 2 + 4}">` +
      `${width < 420 ? i : `client ${i}`}</text>`));
    runs.forEach((run, r) => {
      const x = left + r * (wide + gap);
      parts.push(`<text class="name" x="${x}" y="14">${safe(run.name)}</text>`);
      for (let b = 0; b < branches; b++)
        parts.push(`<text class="middle" x="${x + (b + 0.5) * cell}" y="${top - 8}">${b}</text>`);
      order.forEach((i, place) => weights[r][i].forEach((value, b) => {
        const start = x + b * cell + 2;
        parts.push(`<g><title>${safe(run.name)}, client ${i}, branch ${b}: ${value.toFixed(2)}</title>` +
          `<rect class="track" x="${start}" y="${y(place) + 2}" width="${cell - 4}" height="${row - 4}"/>` +
          `<rect style="fill:${run.color}" x="${start}" y="${y(place) + 2}" width="${value * (cell - 4)}" height="${row - 4}"/></g>`);
      }));
    });
    const where = layers.length > 1 ? `, ${layers[layer]}` : "";
    const said = runs.map((run, r) => `${run.name}: ${shown.map(([name, , ...values]) => `${name} ${values[r]}`).join(", ")}`);
    const sentence = `round ${rounds[at]}${where}. ${said.join(". ")}`;
    const svg = drawing(width, height, `Weights of ${order.length} clients on ${branches} branches, ${sentence}`, parts);
    return { found, shown, svg, sentence };
  }

  function build(root, part, record) {
    const options = record.layers.map((name, i) => `<option value="${i}">${safe(name)}</option>`).join("");
    root.innerHTML = `<form>${pflPlaying.slider(record.rounds)}` +
      `<label data-row="layer"><span>layer</span><select name="layer">${options}</select></label></form>` +
      '<table></table><p class="spoken" role="status"></p><p class="about"></p><div class="picture"></div>';
    part('[data-row="layer"]').hidden = record.layers.length < 2;
    part(".about").textContent = record.about;
    pflPlaying.start(part);
    return (width) => {
      const at = Number(part('[name="at"]').value);
      part("output").textContent = record.rounds[at];
      part('[name="at"]').setAttribute("aria-valuetext", `round ${record.rounds[at]}`);
      const layer = Number(part('[name="layer"]').value);
      const { shown, svg, sentence } = view(record, { at, layer, width });
      const heads = record.runs.map(({ name, color }) =>
        `<th scope="col"><i style="background:${color}"></i>${safe(name)}</th>`);
      part("table").innerHTML = `<thead><tr><td></td>${heads.join("")}</tr></thead><tbody>` +
        shown.map(([name, remark, ...values]) => `<tr><th scope="row">${name}<small>${remark}</small></th>` +
          `${values.map((value) => `<td>${value}</td>`).join("")}</tr>`).join("") + "</tbody>";
      part(".picture").innerHTML = svg;
      return sentence;
    };
  }

  if (typeof document === "undefined") module.exports = { distance, effective, measures, view };
  else start("alpha", build);
})();
