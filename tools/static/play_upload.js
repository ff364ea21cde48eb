// What the server sees: an office sends the gradient of a linear model, and the server takes pictures and labels from it.
// Above, pure functions; tests/test_playgrounds.py holds them against NumPy. Below, the page.
(() => {
  "use strict";
  const node = typeof document === "undefined";
  const { generator } = node ? require("../../pfl_lite/static/explorer.js") : pflExplorer;
  const { plus, dot, descend, softmax, normals } = node ? require("./play_models.js") : pflModels;
  const [PIXELS, CLASSES] = [64, 10];
  const WIDE = PIXELS + 1; // a row per class: its weights, then its bias
  const LR = 0.3;

  // An untrained model: uniform between -1/8 and 1/8, as PyTorch starts a layer with 64 inputs.
  function untrained(seed) {
    const uniform = generator(seed);
    return Float64Array.from({ length: CLASSES * WIDE }, () => (2 * uniform() - 1) / 8);
  }
  const logits = (w, x) => Array.from({ length: CLASSES }, (_, c) => {
    let value = w[c * WIDE + PIXELS];
    for (let k = 0; k < PIXELS; k++) value += w[c * WIDE + k] * x[k];
    return value;
  });
  // Of the mean cross-entropy over images [{x, y}].
  function gradient(w, images) {
    const g = new Float64Array(w.length);
    for (const { x, y } of images) {
      softmax(logits(w, x)).forEach((p, c) => {
        const slope = (p - (c === y ? 1 : 0)) / images.length;
        for (let k = 0; k < PIXELS; k++) g[c * WIDE + k] += slope * x[k];
        g[c * WIDE + PIXELS] += slope;
      });
    }
    return g;
  }
  // What the server knows after `steps` local steps: the mean gradient on the way, from the models before and after.
  function upload(w, images, steps) {
    const end = descend(w, (model) => gradient(model, images), { lr: LR, steps });
    return plus(w, end, -1).map((value) => value / (LR * steps));
  }
  const noisy = (sent, sigma, normal) => sent.map((value) => value + (sigma ? sigma * normal() : 0));
  // The picture of a class's row.
  const rebuilt = (sent, c) => sent.slice(c * WIDE, c * WIDE + PIXELS).map((value) => value / sent[c * WIDE + PIXELS]);
  // The share of each label: an untrained model gives each about 0.1, and no share is negative.
  function told(sent) {
    const shares = Array.from({ length: CLASSES }, (_, c) => Math.max(1 / CLASSES - sent[c * WIDE + PIXELS], 0));
    const total = shares.reduce((a, b) => a + b, 0);
    return shares.map((share) => (total ? share / total : 1 / CLASSES)); // noise can leave no share at all
  }
  // The part of told shares that falls on wrong digits.
  const misplaced = (shares, images) => shares.reduce((total, share, c) =>
    total + Math.abs(share - images.filter(({ y }) => y === c).length / images.length) / 2, 0);
  // The correlation of two pictures.
  function likeness(a, b) {
    const mean = (values) => values.reduce((x, y) => x + y, 0) / values.length;
    const [p, q] = [a, b].map((values) => Array.from(values, (value) => value - mean(values)));
    const lengths = Math.sqrt(dot(p, p) * dot(q, q));
    return lengths ? dot(p, q) / lengths : 0;
  }
  // A common model after `rounds`: the mean of the offices' noisy gradients has noise sigma / sqrt(offices).
  function common(images, { offices, sigma, seed, rounds = 30, lr = 0.5 }) {
    const normal = normals(seed);
    return descend(untrained(seed), (w) => noisy(gradient(w, images), sigma / Math.sqrt(offices), normal), { lr, steps: rounds });
  }
  function accuracy(w, images) {
    const right = images.filter(({ x, y }) => { const z = logits(w, x); return z.indexOf(Math.max(...z)) === y; });
    return right.length / images.length;
  }
  // Image n of a pool.
  const image = ({ pixels, labels }, n) => ({ x: pixels.slice(n * PIXELS, (n + 1) * PIXELS), y: labels[n] });
  // Other mail of an office: `amount` images of the pool, each at most once.
  function others(pool, amount, seed) {
    const uniform = generator(seed);
    const numbers = pool.labels.map((_, n) => n);
    return Array.from({ length: amount }, () =>
      image(pool, numbers.splice(Math.floor(uniform() * numbers.length), 1)[0]));
  }

  const privacy = { normals, untrained, gradient, upload, noisy, rebuilt, told, misplaced, likeness, common, accuracy, image, others };
  if (node) { module.exports = privacy; return; }
  globalThis.pflUpload = privacy;

  const { unpack, SIDE } = pflOffices;
  const { slider, chips, paint, start } = pflFrame;
  const BATCHES = [1, 2, 4, 8, 16, 32, 64];
  const NOISES = [0, 0.01, 0.03, 0.1, 0.3, 1, 3];
  const WATCHED = [1, 5, 25, 100];
  const OFFICES = [5, 50, 500];

  function build(root, part, { pool: packed }) {
    const pool = unpack(packed);
    const half = pool.labels.length / 2;
    const images = pool.labels.map((_, n) => image(pool, n));
    const labels = Array.from({ length: CLASSES }, (_, c) => `<option>${c}</option>`).join("");
    const rows = Array.from({ length: CLASSES }, (_, c) =>
      `<li data-row="${c}"><canvas width="${SIDE}" height="${SIDE}" aria-hidden="true"></canvas><small></small></li>`).join("");
    const scale = (values) => ({ min: 0, max: values.length - 1, step: 1, value: 0 });
    root.innerHTML = part("script").outerHTML + `<form><div class="sees"><div><p><b>Your image</b></p>
      <div class="desk"><canvas class="sheet" tabindex="0" role="img" width="${SIDE}" height="${SIDE}"></canvas><i></i></div>
      <label><span>it is a</span><select name="label">${labels}</select></label></div>
      <div><p><b>What the server sees</b></p><ol class="rows" start="0" role="img">${rows}</ol></div></div>
      <div class="buttons"><button type="button" class="main" name="send">Send the gradient</button>
      <button type="button" name="next">Another image</button><button type="button" name="clear">Empty sheet</button></div>
      <dl></dl><p class="spoken" role="status"></p>
      <div class="sliders">${slider("batch", "images in the gradient", scale(BATCHES))}
      ${slider("steps", "local steps", { min: 1, max: 20, step: 1, value: 1 })}
      ${slider("noise", "noise on every number", scale(NOISES))}
      ${slider("watched", "rounds that the server watches", scale(WATCHED))}</div>
      ${chips("offices", "Offices that train a common model with this noise", OFFICES.map((n) => [`${n}`, n]), "50")}</form>
      <p class="note">Draw on your image with the mouse or a finger, or reach it with Tab, move with the arrow keys and ink with the space bar.
      The server makes one picture from each row of the gradient; below it is its guess of how much of your mail shows this digit. The row
      of your digit has a frame. Nothing leaves this page.</p>`;
    const sheet = part(".sheet");
    const value = (name) => Number(part(`[name="${name}"]`).value);
    let [number, cursor, drawn] = [0, 27, image(pool, 0).x];

    // The common model's accuracy, a mean of three trainings, takes a moment; only the noise and the number of offices change it.
    const prices = {};
    function price(offices, sigma) {
      const key = `${offices} ${sigma}`;
      if (!(key in prices)) {
        prices[key] = "…";
        setTimeout(() => {
          const scores = [0, 1, 2].map((seed) => accuracy(common(images.slice(0, half), { offices, sigma, seed }), images.slice(half)));
          prices[key] = `${Math.round((100 * scores.reduce((a, b) => a + b, 0)) / scores.length)}%`;
          draw();
        }, 30);
      }
      return prices[key];
    }

    function draw() {
      const [batch, sigma, watched] = [BATCHES[value("batch")], NOISES[value("noise")], WATCHED[value("watched")]];
      const [steps, label, offices] = [value("steps"), value("label"), Number(part("[name=offices]:checked").value)];
      const mail = [{ x: drawn, y: label }, ...others(pool, batch - 1, number)];
      const w = untrained(number);
      const sent = noisy(upload(w, mail, steps), sigma / Math.sqrt(watched), normals(number + 1));
      const shares = told(sent);
      paint(sheet, drawn, SIDE);
      Object.assign(part(".desk i").style, { left: `${100 * (cursor % SIDE) / SIDE}%`, top: `${100 * Math.floor(cursor / SIDE) / SIDE}%` });
      sheet.setAttribute("aria-label", `Your image; the cursor is in row ${Math.floor(cursor / SIDE) + 1}, column ${cursor % SIDE + 1}`);
      root.querySelectorAll("[data-row]").forEach((item, c) => {
        const picture = rebuilt(sent, c);
        const [low, high] = [Math.min(0, ...picture), Math.max(1, ...picture)]; // an exact copy looks exact
        paint(item.querySelector("canvas"), picture.map((one) => (one - low) / (high - low)), SIDE);
        item.querySelector("small").textContent = `${c}: ${Math.round(100 * shares[c])}%`;
        item.classList.toggle("yours", c === label);
      });
      const alike = likeness(rebuilt(sent, label), drawn);
      const wrong = misplaced(shares, mail);
      const shown = [["likeness of your image and the framed picture", alike.toFixed(2)],
        ["part of the server's guess on wrong digits", `${Math.round(100 * wrong)}%`],
        [`accuracy of the model of ${offices} offices`, price(offices, sigma)]];
      part("dl").innerHTML = shown.map(([name, said]) => `<div><dt>${name}</dt><dd>${said}</dd></div>`).join("");
      const words = shown.map(([name, said]) => `${name} ${said}`).join(", ");
      part(".spoken").textContent = words;
      part(".rows").setAttribute("aria-label", `Ten pictures, one for each digit; ${words}`);
      for (const [name, said] of Object.entries({ batch, steps, noise: sigma, watched })) {
        part(`[data-of=${name}] output`).textContent = said;
        part(`[name=${name}]`).setAttribute("aria-valuetext", said);
      }
    }

    function ink(at) {
      const [r, c] = [Math.floor(at / SIDE), at % SIDE];
      drawn = drawn.slice();
      for (const [down, right, much] of [[0, 0, 1], [0, 1, 0.4], [1, 0, 0.4], [0, -1, 0.4], [-1, 0, 0.4]]) {
        const [y, x] = [r + down, c + right];
        if (y >= 0 && x >= 0 && y < SIDE && x < SIDE) drawn[y * SIDE + x] = Math.max(drawn[y * SIDE + x], much);
      }
      draw();
    }
    function next() {
      number = (number + 7) % half;
      ({ x: drawn } = image(pool, number));
      part("[name=label]").value = pool.labels[number];
      draw();
    }
    let inking = false;
    function touched(event) {
      const { left, top, width, height } = sheet.getBoundingClientRect();
      const place = (at, size) => Math.min(Math.max(Math.floor((SIDE * at) / size), 0), SIDE - 1);
      cursor = place(event.clientY - top, height) * SIDE + place(event.clientX - left, width);
      ink(cursor);
    }
    sheet.addEventListener("pointerdown", (event) => {
      inking = true;
      sheet.setPointerCapture(event.pointerId);
      touched(event);
    });
    sheet.addEventListener("pointermove", (event) => { if (inking) touched(event); });
    for (const ended of ["pointerup", "pointercancel"]) sheet.addEventListener(ended, () => { inking = false; });
    sheet.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -SIDE, ArrowDown: SIDE }[event.key];
      if (by === undefined && event.key !== " ") return;
      event.preventDefault();
      if (event.key === " ") return ink(cursor);
      const stays = Math.abs(by) === 1 && Math.floor((cursor + by) / SIDE) !== Math.floor(cursor / SIDE);
      if (!stays && cursor + by >= 0 && cursor + by < PIXELS) cursor += by;
      draw();
    });
    root.addEventListener("input", draw);
    part("[name=send]").addEventListener("click", ({ target }) => { // from then on, every change is sent at once
      root.classList.remove("unsent");
      target.hidden = true;
    });
    root.classList.add("unsent");
    part("[name=next]").addEventListener("click", next);
    part("[name=clear]").addEventListener("click", () => { drawn = new Float64Array(PIXELS); draw(); });
    part("[name=label]").value = pool.labels[number];
    draw();
    return draw;
  }

  start("upload", build);
})();
