// Eight postal sorting offices and their mail, dealt from a pool of real 8x8 digits: how alike the offices are is chosen here.
// Pure functions; nothing here draws.
(() => {
  "use strict";
  const { generator } = typeof document === "undefined" ? require("../../pfl_lite/static/explorer.js") : pflExplorer;
  const [SIDE, CLASSES, TRAIN, TEST] = [8, 10, 40, 50]; // TRAIN and TEST images per office
  const PIXELS = SIDE * SIDE;

  // What differs, the question that a player answers, and how to tell.
  const KINDS = {
    none: { name: "nothing differs", about: "All offices sort the same kind of mail." },
    label: { name: "label skew: different digits", about: "Each office serves its own postal codes, so it sees mostly two digits." },
    feature: { name: "feature shift: different hands", about: "Each office's customers write in their own hand: slanted, turned, squeezed." },
    concept: { name: "concept shift: different meanings", about: "In the country of offices E to H some digits trade their meanings." },
    quantity: { name: "quantity skew: different amounts", about: "Towns get a lot of mail, villages a handful of letters." },
  };
  // Digits that trade places in the other country, the best known pair first.
  const SWAPS = [[1, 7], [4, 9], [3, 5], [0, 6], [2, 8]];
  // Every office's hand: turn and slant in degrees, width and height as factors.
  const HANDS = [[0, 0, 1, 1], [35, 0, 1, 1], [-35, 0, 1, 1], [0, 35, 0.8, 1],
    [0, -35, 0.8, 1], [15, 0, 0.65, 1.1], [-15, 0, 1.1, 0.65], [70, 0, 1, 1]];

  // A pool {pixels: [images * 64] in 0 to 1, labels} from a string of four bits a pixel; image number n shows digit n % 10.
  function unpack(text) {
    const bytes = atob(text);
    const pixels = new Float64Array(2 * bytes.length);
    for (let at = 0; at < bytes.length; at++) {
      const byte = bytes.charCodeAt(at);
      pixels[2 * at] = (byte >> 4) / 15;
      pixels[2 * at + 1] = (byte & 15) / 15;
    }
    return { pixels, labels: Array.from({ length: pixels.length / PIXELS }, (_, n) => n % CLASSES) };
  }

  // An image in another hand: every pixel looks up where it came from, between four neighbors.
  function written(image, [turn, slant, wide, high], strength) {
    const [angle, shear] = [turn, slant].map((degrees) => (strength * degrees * Math.PI) / 180);
    const [sx, sy] = [1 + strength * (wide - 1), 1 + strength * (high - 1)];
    const [cos, sin, tan, mid] = [Math.cos(angle), Math.sin(angle), Math.tan(shear), (SIDE - 1) / 2];
    const at = (r, c) => (r < 0 || c < 0 || r >= SIDE || c >= SIDE ? 0 : image[r * SIDE + c]);
    const out = new Float64Array(PIXELS);
    for (let r = 0; r < SIDE; r++) {
      for (let c = 0; c < SIDE; c++) {
        const [dx, dy] = [(c - mid) / sx, (r - mid) / sy];
        const [x, y] = [cos * dx + sin * dy + tan * dy + mid, -sin * dx + cos * dy + mid];
        const [left, top] = [Math.floor(x), Math.floor(y)];
        const [u, v] = [x - left, y - top];
        const across = (row) => (1 - u) * at(row, left) + u * at(row, left + 1);
        out[r * SIDE + c] = (1 - v) * across(top) + v * across(top + 1);
      }
    }
    return out;
  }

  // Whole numbers near `shares` times `total`, by largest remainders, the first of equals first.
  function whole(shares, total) {
    const all = shares.reduce((a, b) => a + b, 0);
    const exact = shares.map((share) => (share / all) * total);
    const counts = exact.map(Math.floor);
    const order = exact.map((_, c) => c).sort((a, b) => exact[b] - counts[b] - (exact[a] - counts[a]) || a - b);
    const missing = total - counts.reduce((a, b) => a + b, 0);
    for (const c of order.slice(0, missing)) counts[c]++;
    return counts;
  }

  function shuffled(values, uniform) {
    const out = [...values];
    for (let i = out.length - 1; i > 0; i--) {
      const j = Math.floor(uniform() * (i + 1));
      [out[i], out[j]] = [out[j], out[i]];
    }
    return out;
  }

  // Offices' images: [{train: {x, y, pixels}, test: {...}}] for a kind of difference, its strength from 0 to 1, and a seed.
  function deal(pool, { kind, strength, seed, offices = 8 }) {
    const uniform = generator(seed);
    const numbers = shuffled(pool.labels.map((_, n) => n), uniform);
    const queues = Array.from({ length: CLASSES }, (_, c) => numbers.filter((n) => pool.labels[n] === c));
    const half = queues[0].length / 2;
    const taken = { train: new Array(CLASSES).fill(0), test: new Array(CLASSES).fill(half) };
    const large = Array.from({ length: offices }, (_, i) => (kind === "quantity" ? (1 - 0.5 * strength) ** i : 1));
    const amounts = whole(large, TRAIN * offices).map((amount) => Math.max(amount, 2));
    const swaps = SWAPS.slice(0, kind === "concept" ? Math.round(strength * SWAPS.length) : 0);
    return Array.from({ length: offices }, (_, i) => {
      const favors = (c) => c === i % CLASSES || c === (i + 5) % CLASSES;
      const skewed = (c) => (1 - strength) / CLASSES + (favors(c) ? strength / 2 : 0);
      const shares = Array.from({ length: CLASSES }, (_, c) => (kind === "label" ? skewed(c) : 1 / CLASSES));
      const meaning = Array.from({ length: CLASSES }, (_, c) => c);
      if (i >= offices / 2) for (const [a, b] of swaps) { meaning[a] = b; meaning[b] = a; }
      const some = (split, amount) => {
        // Which digit gets the odd image changes from office to office.
        const turned = whole(shares.map((_, c) => shares[(c + i) % CLASSES]), amount);
        const counts = turned.map((_, c) => turned[(c - i + CLASSES) % CLASSES]);
        const [first, end] = split === "train" ? [0, half] : [half, 2 * half];
        const images = shuffled(counts.flatMap((count, c) => Array.from({ length: count }, () => {
          const number = queues[c][taken[split][c]];
          taken[split][c] = taken[split][c] + 1 < end ? taken[split][c] + 1 : first;
          return number;
        })), uniform);
        const x = new Float64Array(images.length * PIXELS);
        images.forEach((number, place) => {
          const image = pool.pixels.subarray(number * PIXELS, (number + 1) * PIXELS);
          x.set(kind === "feature" ? written(image, HANDS[i % HANDS.length], strength) : image, place * PIXELS);
        });
        return { x, y: images.map((number) => meaning[pool.labels[number]]), images };
      };
      return { train: some("train", amounts[i]), test: some("test", TEST) };
    });
  }

  const offices = { KINDS, SWAPS, SIDE, PIXELS, CLASSES, unpack, written, whole, deal };
  if (typeof document === "undefined") module.exports = offices;
  else globalThis.pflOffices = offices;
})();
