// What the playgrounds share besides their numbers: where they start, controls, offices' mail, and playing round after round.
(() => {
  "use strict";
  if (typeof document === "undefined") return;
  const { safe } = pflExplorer;
  const { player } = pflPlaying;

  const dark = () => document.documentElement.dataset.theme === "dark" || document.body.dataset.jpThemeLight === "false";
  // The color of an office for lines on the page's ground, and the one for words on its own color.
  const line = (office) => (dark() ? office.dark : office.color);
  const channels = (color) => [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16));
  // The color of a method: on a dark ground half-way to white.
  const lit = (color) => (dark() ? `rgb(${channels(color).map((value) => Math.round((value + 255) / 2)).join(",")})` : color);
  function inkOn(color) {
    const [r, g, b] = channels(color).map((value) => (value / 255) ** 2.2);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.18 ? "#111111" : "#ffffff";
  }
  const dot = ({ name, color }) =>
    `<span class="dot" title="${name}" style="background:${color};color:${inkOn(color)}">${name[0]}</span>`;

  // A slider in its label; `words` makes the value readable.
  const slider = (name, title, { min, max, step, value }) =>
    `<label data-of="${name}"><span>${title} <output></output></span>` +
    `<input type="range" name="${name}" min="${min}" max="${max}" step="${step}" value="${value}"></label>`;
  const chips = (name, title, options, chosen) => `<fieldset><legend>${title}</legend><div class="chips">` +
    options.map(([value, words]) => `<label><input type="radio" name="${name}" value="${value}"` +
      `${value === chosen ? " checked" : ""}>${words}</label>`).join("") +
    "</div></fieldset>";

  // Pixels from 0 (white) to 1 on a canvas.
  function paint(canvas, pixels, side) {
    const picture = canvas.getContext("2d").createImageData(side, side);
    pixels.forEach((value, k) => {
      const shade = 255 - Math.round(235 * Math.min(value, 1));
      picture.data.set([shade, shade, shade, 255], 4 * k);
    });
    canvas.getContext("2d").putImageData(picture, 0, 0);
  }

  // Images of an office with the labels that it gives them.
  function mail(list, offices, dealt, places, { pixels: PIXELS, side }, amount = 5) {
    list.innerHTML = places.map((i) => {
      const { name } = offices[i];
      const labels = dealt[i].train.y.slice(0, amount);
      const canvas = `<canvas width="${side}" height="${side}" aria-hidden="true"></canvas>`;
      const some = labels.map((label) => `<div>${canvas}${label}</div>`).join("");
      return `<li style="border-left-color:${line(offices[i])}"><b><span>${name}</span>` +
        `<small title="training images">n = ${dealt[i].train.y.length}</small></b>` +
        `<div class="letters" role="img" aria-label="${safe(name)} reads ${labels.join(", ")}">${some}</div></li>`;
    }).join("");
    [...list.children].forEach((item, n) => item.querySelectorAll("canvas").forEach((canvas, place) =>
      paint(canvas, dealt[places[n]].train.x.subarray(place * PIXELS, (place + 1) * PIXELS), side)));
  }

  // Builds every playground of a kind that is on the page; `build(root, part, record)` returns a function that redraws it.
  function start(kind, build) {
    function mount(root) {
      root.dataset.mounted = "yes";
      const part = (selector) => root.querySelector(selector);
      const redraw = build(root, part, JSON.parse(part("script").textContent));
      root.addEventListener("submit", (event) => event.preventDefault());
      new MutationObserver(redraw).observe(document.documentElement, { attributeFilter: ["data-theme"] });
    }
    const find = () => document.querySelectorAll(`[data-play="${kind}"]:not([data-mounted])`).forEach(mount);
    find();
    setTimeout(find, 300); // JupyterLab runs the script of an output before the output is on the page
  }

  globalThis.pflFrame = { line, lit, inkOn, dot, slider, chips, paint, mail, player, start };
})();
