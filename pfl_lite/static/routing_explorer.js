// The routing explorer of *Assembling a network per client*: which blocks each client assembles, round by round.
// The recorded logits are in the page; bits, activity and measures are computed here.
// tests/test_widgets.py runs this very file and compares its routes and words with pfl_lite's.
(() => {
  "use strict";
  const { sum, mean, generator, drawing, items, start } = typeof document === "undefined" ? require("./explorer.js") : pflExplorer;
  const sigmoid = (logit) => 1 / (1 + Math.exp(-logit));

  // Decisions in order: the links into layer 2, 3, ... row by row (target, source), then the output bits.
  function edges(blocks) {
    const all = [];
    for (let l = 1; l < blocks.length; l++)
      for (let j = 0; j < blocks[l]; j++) for (let k = 0; k < blocks[l - 1]; k++) all.push({ layer: l, to: j, from: k });
    for (let j = 0; j < blocks[blocks.length - 1]; j++) all.push({ layer: blocks.length, to: 0, from: j });
    return all;
  }

  // From bits and logits to the routes that are used: activity by layer, and the safety path where one would be dead.
  function routes(blocks, bits, logits) {
    const all = edges(blocks);
    const used = [...bits];
    const active = blocks.map((n, l) => new Array(n).fill(l === 0));
    let safety = 0;
    for (let l = 1; l <= blocks.length; l++) {
      const open = all.map((edge, e) => ({ ...edge, e })).filter((edge) => edge.layer === l && active[l - 1][edge.from]);
      if (!open.some((edge) => used[edge.e])) {
        const best = open.reduce((a, b) => (logits[b.e] > logits[a.e] ? b : a));
        used[best.e] = 1;
        safety++;
      }
      for (const edge of open)
        if (l < blocks.length) active[l][edge.to] ||= Boolean(used[edge.e]);
        else active[l - 1][edge.from] = Boolean(used[edge.e]); // an output block that nobody reads is not sent
    }
    return { bits: used, active, safety };
  }

  // Mean share of equal bits over pairs of clients of the same group, and of different groups.
  function agreement(bits, groups) {
    const [same, other] = [[], []];
    for (let i = 0; i < bits.length; i++)
      for (let j = i + 1; j < bits.length; j++)
        (groups[i] === groups[j] ? same : other).push(mean(bits[i].map((bit, e) => Number(bit === bits[j][e]))));
    return { same: mean(same), other: mean(other) };
  }

  // From the record {blocks, groups, colors, rounds, logits [rounds][clients][decisions], measures} and the settings
  // {at, kind, draw, width} to {found, measures, svg, sentence}.
  function view(record, { at, kind, draw, width }) {
    const { blocks, groups, colors, rounds, logits, measures } = record;
    const uniform = generator(draw);
    const found = logits[at].map((own) =>
      routes(blocks, own.map((each) => Number(kind === "draw" ? uniform() < sigmoid(each) : each > 0)), own));
    const agree = agreement(found.map((one) => one.bits), groups);
    const hidden = found.map((one) => sum(one.active.slice(1).map((layer) => sum(layer.map(Number)))));
    const percent = (value) => (Number.isNaN(value) ? "-" : `${Math.round(100 * value)}%`);
    const values = [mean(hidden).toFixed(1), percent(agree.same), percent(agree.other)];
    const shown = measures.map(([name, remark], i) => [name, values[i], remark]);
    const order = groups.map((_, i) => i).sort((a, b) => groups[a] - groups[b] || a - b);
    const columns = Math.max(1, Math.floor(width / 150));
    const [w, h] = [width / columns, 128];
    const height = h * Math.ceil(order.length / columns);
    const parts = [];
    order.forEach((i, place) => {
      const [left, top] = [(place % columns) * w, Math.floor(place / columns) * h];
      const x = (l) => left + 22 + (l * (w - 44)) / blocks.length;
      const y = (l, j) => top + 30 + ((j + 0.5) * (h - 40)) / (blocks[l] ?? 1);
      parts.push(`<g style="--dot:${colors[i]}"><text x="${left + 10}" y="${top + 16}">client ${i}, group ${groups[i]}</text>`);
      edges(blocks).forEach(({ layer, to, from }, e) => {
        const { active } = found[i];
        const live = found[i].bits[e] && active[layer - 1][from] && (layer === blocks.length || active[layer][to]);
        parts.push(`<line class="${live ? "live" : "dead"}" x1="${x(layer - 1)}" y1="${y(layer - 1, from)}" ` +
          `x2="${x(layer)}" y2="${y(layer, to)}"><title>pi = ${sigmoid(logits[at][i][e]).toFixed(2)}</title></line>`);
      });
      found[i].active.forEach((layer, l) => layer.forEach((on, j) => {
        parts.push(`<circle class="${on ? "" : "off"}" cx="${x(l)}" cy="${y(l, j)}" r="6">` +
          `<title>${l ? `layer ${l + 1}, block ${j + 1}` : `encoder ${j + 1}`}: ${on ? "active" : "not sent"}</title></circle>`);
      }));
      parts.push(`<rect x="${x(blocks.length) - 5}" y="${y(blocks.length, 0) - 5}" width="10" height="10"><title>output</title></rect></g>`);
    });
    const sentence = `round ${rounds[at]}: ${shown.map(([name, value, remark]) => `${name} ${value} ${remark}`).join(", ")}`;
    const svg = drawing(width, height, `Routes of ${order.length} clients, ${sentence}`, parts);
    return { found, measures: agree, shown, svg, sentence };
  }

  function build(root, part, record) {
    root.innerHTML = `<form>${pflPlaying.slider(record.rounds)}` +
      '<label><span>decisions</span><select name="kind"><option value="threshold">pi above one half</option>' +
      '<option value="draw">a random draw</option></select></label>' +
      '<label data-row="draw"><span>draw <output></output></span><input type="range" name="draw" min="0" max="99" ' +
      'value="0"></label></form><dl></dl><p class="spoken" role="status"></p><div class="picture"></div>';
    const input = (name) => part(`[name="${name}"]`);
    pflPlaying.start(part);
    return (width) => {
      const state = { at: Number(input("at").value), kind: input("kind").value, draw: Number(input("draw").value) };
      part('[data-row="draw"]').hidden = state.kind !== "draw";
      for (const [name, value] of [["at", record.rounds[state.at]], ["draw", state.draw]]) {
        input(name).parentElement.querySelector("output").textContent = value;
        input(name).setAttribute("aria-valuetext", value);
      }
      const { shown, svg, sentence } = view(record, { ...state, width });
      part("dl").innerHTML = items(shown);
      part(".picture").innerHTML = svg;
      return sentence;
    };
  }

  if (typeof document === "undefined") module.exports = { edges, routes, agreement, view };
  else start("routing", build);
})();
