// Plays the frames of `pfl_lite.show.plots.animate`: a slider and three buttons over pictures that are in the page.
(() => {
  "use strict";
  function mount(player) {
    player.dataset.ready = "";
    const frames = [...player.querySelectorAll("img")];
    const [slider] = player.querySelectorAll("input");
    const [output] = player.querySelectorAll("output");
    const [back, play, forward] = player.querySelectorAll("button");
    const still = frames.findIndex((frame) => !frame.hidden);
    let timer = null;
    // Until someone touches it, playing begins at the first frame, wherever the page opened.
    let fresh = true;
    const show = (at) => {
      const now = Math.min(Math.max(at, 0), frames.length - 1);
      frames.forEach((frame, i) => { frame.hidden = i !== now; });
      slider.value = now;
      output.textContent = frames[now].dataset.name;
      slider.setAttribute("aria-valuetext", frames[now].dataset.name);
    };
    const stop = () => {
      fresh = false;
      clearInterval(timer);
      timer = null;
      play.textContent = "Play";
    };
    const next = () => {
      show(Number(slider.value) + 1);
      if (Number(slider.value) === frames.length - 1) stop();
    };
    slider.addEventListener("input", () => { stop(); show(Number(slider.value)); });
    back.addEventListener("click", () => { stop(); show(Number(slider.value) - 1); });
    forward.addEventListener("click", () => { stop(); show(Number(slider.value) + 1); });
    play.addEventListener("click", () => {
      if (timer !== null) return stop();
      if (fresh || Number(slider.value) === frames.length - 1) show(0);
      fresh = false;
      play.textContent = "Pause";
      timer = setInterval(next, Number(player.dataset.interval));
    });
    player.querySelector(".controls").hidden = false;
    // On paper it cannot be played.
    addEventListener("beforeprint", () => show(still));
    show("opens" in player.dataset ? still : 0);
  }
  const start = () => document.querySelectorAll(".pfl-player:not([data-ready])").forEach(mount);
  start();
  setTimeout(start, 300); // JupyterLab runs the script of an output before the output is on the page
})();
