// Playing round after round: a button for it, and a slider over recorded rounds.
(() => {
  "use strict";
  // A reader who has asked for less motion sees the last picture at once.
  const still = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

  // A button that calls `step` again and again until it returns false or is pressed once more.
  function player(button, step, { words, wait }) {
    let timer = null;
    function stop() {
      clearTimeout(timer);
      timer = null;
      button.textContent = words;
    }
    function go() {
      let more = step();
      while (more !== false && still()) more = step();
      if (more === false) stop();
      else timer = setTimeout(go, wait);
    }
    button.textContent = words;
    button.addEventListener("click", () => {
      if (timer !== null) return stop();
      button.textContent = "Pause";
      timer = setTimeout(go, 0);
    });
    return stop;
  }

  // It opens at the last round, where there is most to see; from there, playing begins at the first.
  const slider = (rounds, opens = rounds.length - 1) => '<div class="rounds"><button type="button" class="main" name="play"></button>' +
    '<button type="button" name="back" aria-label="one round back">&#8722;</button>' +
    '<button type="button" name="forward" aria-label="one round forward">+</button>' +
    '<label><span>round <output></output></span><input type="range" name="at" min="0" ' +
    `max="${rounds.length - 1}" value="${opens}"></label></div>`;

  // Brings that slider and its buttons to life; a hand on the slider stops the playing.
  function start(part) {
    const at = part('[name="at"]');
    function show(place) {
      at.value = place;
      at.dispatchEvent(new Event("input", { bubbles: true }));
      return Number(at.value) < Number(at.max);
    }
    const step = () => show(at.value === at.max ? 0 : Number(at.value) + 1);
    const stop = player(part('[name="play"]'), step, { words: "Play", wait: 600 });
    for (const [name, by] of [["back", -1], ["forward", 1]])
      part(`[name="${name}"]`).addEventListener("click", () => { stop(); show(Number(at.value) + by); });
    at.addEventListener("input", (event) => { if (event.isTrusted) stop(); });
  }

  if (typeof document !== "undefined") globalThis.pflPlaying = { player, slider, start };
})();
