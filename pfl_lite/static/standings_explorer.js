// The standings explorer of *Until convergence*: who would lead if all runs ended at a round, and where the paper puts them.
// tests/test_widgets.py runs this very file.
(() => {
  "use strict";
  const { safe, fixed, drawing, items, start } = typeof document === "undefined" ? require("./explorer.js") : pflExplorer;

  // From the record [{name, rounds, methods: [{name, color, paper, scores [rounds], level [rounds]}], tau [rounds],
  // gap [rounds]}] and the settings {setting, at, width} to {order, shown, svg, sentence}; `order` names the methods, best first.
  function view(record, { setting, at, width }) {
    const { rounds, methods, tau, gap } = record[setting];
    const order = [...methods].sort((a, b) => b.scores[at] - a.scores[at]);
    const level = order.filter((one) => one.level[at]);
    const shown = [
      ["in front", safe(order[0].name), level.length > 1 ? `level with it: ${level.length - 1} more` : "ahead of all others"],
      ["tau with the paper's order", fixed(tau[at], 2), "1: the same order, 0: no relation"],
      ["distance from the paper's numbers", fixed(gap[at], 1), "points, averaged over methods"],
    ];
    const [left, right, top, row] = [84, 16, 26, 26];
    const all = methods.flatMap((one) => [...one.scores, one.paper]);
    const low = Math.floor(Math.min(...all));
    const high = Math.max(Math.ceil(Math.max(...all)), low + 1); // where all are equal, too
    const x = (value) => left + ((value - low) / (high - low)) * (width - left - right);
    const bottom = top + row * order.length;
    const every = [1, 2, 5, 10, 20, 50].find((step) => (high - low) / step <= width / 80);
    const parts = [];
    for (let tick = Math.ceil(low / every) * every; tick <= high; tick += every)
      parts.push(`<line x1="${x(tick)}" x2="${x(tick)}" y1="${top - 8}" y2="${bottom}"/>` +
        `<text class="middle" x="${x(tick)}" y="${top - 13}">${tick}%</text>`);
    order.forEach((one, place) => {
      const [y, ours, theirs, paint] = [top + row * (place + 0.5), x(one.scores[at]), x(one.paper), `stroke:${one.color}`];
      parts.push(`<g><title>${safe(one.name)}: ${fixed(one.scores[at], 1)}%, in the paper ${fixed(one.paper, 1)}%</title>` +
        `<text class="end name" x="${left - 12}" y="${y + 4}">${safe(one.name)}</text>` +
        `<line style="${paint}" x1="${ours}" x2="${theirs}" y1="${y}" y2="${y}"/>` +
        `<path class="cross" style="${paint}" d="M${theirs - 5} ${y - 5}l10 10m0 -10l-10 10"/>` +
        `<circle style="${paint};fill:${one.level[at] ? one.color : "var(--paper)"}" cx="${ours}" cy="${y}" r="7"/></g>`);
    });
    const sentence = `round ${rounds[at]}: ${order.map((one) => `${one.name} ${fixed(one.scores[at], 1)}%`).join(", ")}; ` +
      shown.slice(1).map(([name, value]) => `${name} ${value}`).join(", ");
    const svg = drawing(width, bottom + 4, `Accuracy of ${order.length} methods, best first, ${sentence}`, parts);
    return { order: order.map(({ name }) => name), shown, svg, sentence };
  }

  function build(root, part, record) {
    const options = record.map(({ name }, i) => `<option value="${i}">${safe(name)}</option>`).join("");
    // Its last round would give away who leads in the end.
    root.innerHTML = `<form>${pflPlaying.slider(record[0].rounds, 0)}` +
      `<label><span>setting</span><select name="setting">${options}</select></label></form>` +
      '<dl></dl><p class="spoken" role="status"></p><div class="picture"></div>' +
      '<p class="about">Dot: ours after fine-tuning, if every run ended at this round; filled if it cannot be told from the leader. ' +
      "Cross: the paper's number.</p>";
    pflPlaying.start(part);
    return (width, event) => {
      const [slider, setting] = [part('[name="at"]'), Number(part('[name="setting"]').value)];
      const { rounds } = record[setting];
      if (event && event.target.name === "setting") slider.value = 0;
      slider.max = rounds.length - 1;
      const at = Number(slider.value);
      part("output").textContent = rounds[at];
      slider.setAttribute("aria-valuetext", `round ${rounds[at]}`);
      const { shown, svg, sentence } = view(record, { setting, at, width });
      part("dl").innerHTML = items(shown);
      part(".picture").innerHTML = svg;
      return sentence;
    };
  }

  if (typeof document === "undefined") module.exports = { view };
  else start("standings", build);
})();
