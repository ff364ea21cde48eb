// What the explorers share; a page carries it in front of an explorer's own script.
(() => {
  "use strict";
  const sum = (values) => values.reduce((a, b) => a + b, 0);
  const mean = (values) => (values.length ? sum(values) / values.length : NaN);
  const safe = (text) => text.replace(/[&<>"]/g, (sign) => `&#${sign.charCodeAt()};`);
  // Nine digits first: what adding up in another order changes is cut off, as pfl_lite does it.
  const fixed = (value, digits) => (Number.isNaN(value) ? "-" : Number(value.toFixed(9)).toFixed(digits));

  // Uniform numbers in (0, 1): a counter through a 32-bit mixer, one stream a seed.
  function generator(seed) {
    let state = Math.imul(seed + 1, 0x85ebca6b);
    return () => {
      state = (state + 0x9e3779b9) | 0;
      let z = Math.imul(state ^ (state >>> 16), 0x21f0aaad);
      z = Math.imul(z ^ (z >>> 15), 0x735a2d97);
      return (((z ^ (z >>> 15)) >>> 0) + 0.5) / 2 ** 32;
    };
  }

  // A picture, and the words for who cannot see it.
  const drawing = (width, height, words, parts) => `<svg role="img" width="${width}" height="${height}" ` +
    `viewBox="0 0 ${width} ${height}" aria-label="${safe(words)}">${parts.join("")}</svg>`;

  // Of [name, value, remark] each, the items of a list in large digits.
  const items = (shown) => shown.map(([name, value, remark]) =>
    `<div><dt>${name}</dt><dd>${value}<small>${remark}</small></dd></div>`).join("");

  // A large record, which comes deflated and in base 64.
  function unpacked(text) {
    const bytes = Uint8Array.from(atob(text), (sign) => sign.charCodeAt());
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).json();
  }

  // Starts every explorer of a kind that is on the page. `build(root, part, record)` writes its controls, native inputs inside
  // their labels, so that keyboard and screen reader know them; `part` finds an element inside by its selector. It returns
  // `draw(width, event)`, which shows what the controls say and returns the sentence for who cannot see it; the first time
  // there is no event.
  function start(kind, build) {
    async function mount(root) {
      root.dataset.mounted = "yes";
      const part = (selector) => root.querySelector(selector);
      const kept = part("script");
      const draw = build(root, part, kept && (kept.dataset.packed ? await unpacked(kept.textContent) : JSON.parse(kept.textContent)));
      function refresh(event) {
        const sentence = draw(Math.max(root.clientWidth - 24, 240), event);
        if (part(".spoken").textContent !== sentence) part(".spoken").textContent = sentence;
      }
      part("form").addEventListener("input", refresh);
      part("form").addEventListener("submit", (event) => event.preventDefault());
      window.addEventListener("resize", refresh);
      refresh();
    }
    const find = () => document.querySelectorAll(`[data-kind="${kind}"]:not([data-mounted])`).forEach(mount);
    find();
    setTimeout(find, 300); // JupyterLab runs the script of an output before the output is on the page
  }

  const shared = { sum, mean, safe, fixed, generator, drawing, items, start };
  if (typeof document === "undefined") module.exports = shared;
  else globalThis.pflExplorer = shared;
})();
