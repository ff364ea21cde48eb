// The gate explorer of *A gate between two experts*: one image, two experts' probabilities, and their mixture under any g.
// The experts' logits and the learned gates are in the page; the mixture is computed here.
// tests/test_widgets.py runs this very file and compares its mixtures with NumPy's.
(() => {
  "use strict";
  const sum = (values) => values.reduce((a, b) => a + b, 0);
  const argmax = (values) => values.indexOf(Math.max(...values));

  function softmax(logits) {
    const most = Math.max(...logits);
    const weights = logits.map((value) => Math.exp(value - most));
    return weights.map((weight) => weight / sum(weights));
  }

  // g weighs the global expert; the experts' logits are mixed, as PFL-MoE's code does.
  const mix = (g, general, personal) => softmax(general.map((value, c) => g * value + (1 - g) * personal[c]));

  // From the record {classes, images: [{client, label, share, g, global, personal, pixels, side}]} and the settings
  // {at, g, width} to {probabilities, shown, svg, sentence}.
  function view(record, { at, g, width }) {
    const image = record.images[at];
    const [general, personal, mixed] = [softmax(image.global), softmax(image.personal), mix(g, image.global, image.personal)];
    const names = record.classes;
    const hit = (values) => (argmax(values) === image.label ? "right" : "wrong");
    const shown = [
      ["global expert", names[argmax(general)], hit(general)],
      ["personal expert", names[argmax(personal)], hit(personal)],
      ["mixture", names[argmax(mixed)], hit(mixed)],
    ];
    const [left, row] = [Math.min(110, width / 3), 27];
    const height = names.length * row + 26;
    const long = width - left - 12;
    const parts = ['<text x="0" y="12">probability of each class</text>'];
    names.forEach((name, c) => {
      const y = 22 + c * row;
      const bold = c === image.label ? ' font-weight="700"' : "";
      parts.push(`<text class="end" x="${left - 8}" y="${y + 16}"${bold}>${name}</text>`);
      [["global", general], ["personal", personal], ["mixed", mixed]].forEach(([kind, values], place) =>
        parts.push(`<rect class="${kind}" x="${left}" y="${y + 7 * place + 1}" width="${Math.max(values[c] * long, 0.5)}" ` +
          `height="6"><title>${kind}: ${(100 * values[c]).toFixed(1)} %</title></rect>`));
    });
    const cell = 112 / image.side;
    const pixels = [...image.pixels].map((digit, place) => {
      const shade = 255 - Math.round((parseInt(digit, 16) * 255) / 15);
      const [x, y] = [(place % image.side) * cell, Math.floor(place / image.side) * cell];
      return `<rect x="${x}" y="${y}" width="${cell + 0.2}" height="${cell + 0.2}" style="fill:rgb(${shade},${shade},${shade})"/>`;
    });
    const picture = `<svg role="img" width="112" height="112" aria-label="an image of class ${names[image.label]}">${pixels.join("")}</svg>`;
    const sentence = shown.map(([name, value, remark]) => `${name} says ${value}, ${remark}`).join("; ");
    const svg = `<svg role="img" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" ` +
      `aria-label="${sentence}">${parts.join("")}</svg>`;
    const about = `client ${image.client}: ${Math.round(100 * image.share)} % of its training images are ` +
      `${names[image.label]}; its gate gives this image g = ${image.g.toFixed(2)}`;
    return { probabilities: { general, personal, mixed }, shown, svg, picture, about, sentence };
  }

  function mount(root) {
    root.dataset.mounted = "yes";
    const record = JSON.parse(root.querySelector("script").textContent);
    const options = record.images.map(({ client, label }, i) =>
      `<option value="${i}">client ${client}, class ${record.classes[label]}</option>`).join("");
    root.innerHTML = `<form><label><span>image</span><select name="at">${options}</select></label>` +
      '<label><span>g, weight of the global expert <output></output></span><input type="range" name="g" min="0" max="1" ' +
      'step="0.01"></label></form><p class="about"></p><div class="image"></div><dl></dl>' +
      '<p class="key"><span class="global">global expert</span> <span class="personal">personal expert</span> ' +
      '<span class="mixed">mixture</span></p><p class="spoken" role="status"></p><div class="picture"></div>';
    const part = (selector) => root.querySelector(selector);
    function draw(event) {
      const at = Number(part('[name="at"]').value);
      const slider = part('[name="g"]');
      if (!event || event.target.name === "at") slider.value = record.images[at].g; // start at what the gate says
      const g = Number(slider.value);
      part("output").textContent = g.toFixed(2);
      const shows = view(record, { at, g, width: Math.max(root.clientWidth - 24, 240) });
      part(".about").textContent = shows.about;
      part(".image").innerHTML = shows.picture;
      part("dl").innerHTML = shows.shown.map(([name, value, remark]) =>
        `<div><dt>${name}</dt><dd>${value}<small>${remark}</small></dd></div>`).join("");
      part(".picture").innerHTML = shows.svg;
      if (part(".spoken").textContent !== shows.sentence) part(".spoken").textContent = shows.sentence;
    }
    part("form").addEventListener("input", draw);
    part("form").addEventListener("submit", (event) => event.preventDefault());
    window.addEventListener("resize", () => draw({ target: {} }));
    draw();
  }

  if (typeof document === "undefined") {
    module.exports = { softmax, mix, view };
  } else {
    const start = () => document.querySelectorAll('[data-kind="gate"]:not([data-mounted])').forEach(mount);
    start();
    setTimeout(start, 300); // JupyterLab runs the script of an output before the output is on the page
  }
})();
