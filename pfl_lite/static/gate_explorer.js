// The gate explorer of *A gate between two experts*: one image, two experts' probabilities, and their mixture under any g.
// The experts' logits and the learned gates are in the page; the mixture is computed here.
// tests/test_widgets.py runs this very file and compares its mixtures and words with pfl_lite's.
(() => {
  "use strict";
  const { sum, safe, drawing, start } = typeof document === "undefined" ? require("./explorer.js") : pflExplorer;
  const argmax = (values) => values.indexOf(Math.max(...values));

  const KINDS = ["global", "personal", "mixed"]; // the bars' classes in the style sheet

  function softmax(logits) {
    const most = Math.max(...logits);
    const weights = logits.map((value) => Math.exp(value - most));
    return weights.map((weight) => weight / sum(weights));
  }

  // g weighs the global expert; the experts' logits are mixed, as PFL-MoE's code does.
  const mix = (g, general, personal) => softmax(general.map((value, c) => g * value + (1 - g) * personal[c]));

  // From the record {classes, experts, images: [{name, about, label, g, global, personal, side, pixels}]} and the settings
  // {at, g, width} to {probabilities, shown, svg, picture, sentence}.
  function view(record, { at, g, width }) {
    const image = record.images[at];
    const names = record.classes;
    const probabilities = [softmax(image.global), softmax(image.personal), mix(g, image.global, image.personal)];
    const shown = probabilities.map((values, i) =>
      [record.experts[i], names[argmax(values)], argmax(values) === image.label ? "right" : "wrong"]);
    const [left, row] = [Math.min(16 + 7 * Math.max(...names.map((name) => name.length)), width / 3), 27];
    const height = names.length * row + 42;
    const long = width - left - 12;
    const parts = ['<text x="0" y="12">probability of each class</text>'];
    for (const share of [0, 0.5, 1]) {
      const x = left + share * long;
      parts.push(`<line x1="${x}" x2="${x}" y1="20" y2="${height - 20}"/><text class="middle" x="${x}" y="${height - 4}">${share}</text>`);
    }
    names.forEach((name, c) => {
      const y = 22 + c * row;
      const bold = c === image.label ? ' font-weight="700"' : "";
      parts.push(`<text class="end" x="${left - 8}" y="${y + 16}"${bold}>${safe(name)}</text>`);
      probabilities.forEach((values, i) =>
        parts.push(`<rect class="${KINDS[i]}" x="${left}" y="${y + 7 * i + 1}" width="${Math.max(values[c] * long, 0.5)}" ` +
          `height="6"><title>${record.experts[i]}: ${(100 * values[c]).toFixed(1)}%</title></rect>`));
    });
    const cell = 112 / image.side;
    const pixels = [...image.pixels].map((digit, place) => {
      const shade = 255 - Math.round((parseInt(digit, 16) * 255) / 15);
      const [x, y] = [(place % image.side) * cell, Math.floor(place / image.side) * cell];
      return `<rect x="${x}" y="${y}" width="${cell + 0.2}" height="${cell + 0.2}" style="fill:rgb(${shade},${shade},${shade})"/>`;
    });
    const picture = `<svg role="img" width="112" height="112" aria-label="an image of class ${safe(names[image.label])}">${pixels.join("")}</svg>`;
    const sentence = shown.map(([name, value, remark]) => `${name} says ${value}, ${remark}`).join("; ");
    return { probabilities, shown, svg: drawing(width, height, sentence, parts), picture, sentence };
  }

  function build(root, part, record) {
    const options = record.images.map(({ name }, i) => `<option value="${i}">${safe(name)}</option>`).join("");
    root.innerHTML = `<form><label><span>image</span><select name="at">${options}</select></label>` +
      '<label><span>g, weight of the global expert <output></output></span><input type="range" name="g" min="0" max="1" ' +
      'step="0.01"><i aria-hidden="true"><b>▲</b></i></label></form><p class="about"></p><div class="seen"><div></div>' +
      '<dl></dl></div><p class="spoken" role="status"></p><div class="picture"></div>';
    return (width, event) => {
      const at = Number(part('[name="at"]').value);
      const slider = part('[name="g"]');
      if (!event || event.target.name === "at") slider.value = record.images[at].g; // start at what the gate says
      const g = Number(slider.value);
      part("output").textContent = g.toFixed(2);
      const shows = view(record, { at, g, width });
      part(".about").textContent = `${record.images[at].about} (▲)`;
      part("i b").style.left = `${100 * record.images[at].g}%`;
      part(".seen div").innerHTML = shows.picture;
      part("dl").innerHTML = shows.shown.map(([name, value, remark], i) =>
        `<div><dt class="${KINDS[i]}">${name}</dt><dd>${safe(value)}<small>${remark}</small></dd></div>`).join("");
      part(".picture").innerHTML = shows.svg;
      return shows.sentence;
    };
  }

  if (typeof document === "undefined") module.exports = { softmax, mix, view };
  else start("gate", build);
})();
