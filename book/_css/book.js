// A picture wider than a phone is shown whole; a tap shows it at reading size, to be scrolled, and a second tap whole again.
document.addEventListener("DOMContentLoaded", () => {
  const phone = window.matchMedia("(max-width: 576px)").matches;
  const [which, size] = phone ? ["img", "large"] : ['img[src*="map-of-methods"]', "closer"]; // the map is small on a desk, too
  for (const image of document.querySelectorAll(`.bd-article figure ${which}`)) {
    const figure = image.closest("figure");
    const turn = (event) => { // what was pointed at stays in sight
      const [x, y] = [(event.offsetX ?? 0) / image.clientWidth, (event.offsetY ?? 0) / image.clientHeight];
      figure.classList.toggle(size);
      figure.scrollTo(x * image.clientWidth - figure.clientWidth / 2, y * image.clientHeight - figure.clientHeight / 2);
    };
    image.tabIndex = 0;
    image.setAttribute("role", "button");
    image.title = "enlarge or shrink";
    image.addEventListener("click", turn);
    image.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); turn(event); }
    });
  }
});
// A table wider than a phone scrolls in its box, and a line above it says so.
window.addEventListener("load", () => {
  if (!window.matchMedia("(max-width: 576px)").matches) return;
  for (const table of document.querySelectorAll(".bd-article table")) {
    const box = table.closest(".pst-scrollable-table-container, .output");
    if (!box || box.scrollWidth < box.clientWidth + 24) continue;
    const words = document.createElement("p");
    words.className = "swipe";
    words.textContent = "The table goes on to the right: swipe.";
    box.before(words);
  }
});
// Printed sentences go on below on a phone. Printed columns, which have two spaces side by side, must keep their lines.
document.addEventListener("DOMContentLoaded", () => {
  for (const printed of document.querySelectorAll(".cell_output pre"))
    printed.classList.toggle("sentences", !/\S {2,}\S/.test(printed.textContent));
});
// The entries of a list of references have a role that no list may hold, so that a screen reader counts none of them.
document.addEventListener("DOMContentLoaded", () => {
  for (const entry of document.querySelectorAll(".citation-list > .citation")) entry.setAttribute("role", "listitem");
});
// One switch opens all folded code of a page. The next page remembers it; Alt+C is its key.
document.addEventListener("DOMContentLoaded", () => {
  const folded = document.querySelectorAll(".bd-article details.hide");
  const place = document.querySelector(".article-header-buttons");
  if (!folded.length || !place) return;
  const button = document.createElement("button");
  button.type = "button";
  button.className = "btn btn-sm pst-navbar-icon code-switch";
  button.title = "Show all code (Alt+C)";
  button.setAttribute("aria-label", "Show all code");
  button.innerHTML = '<span class="btn__icon-container"><i class="fas fa-code"></i></span>';
  const show = (all) => {
    for (const one of folded) one.open = all;
    button.setAttribute("aria-pressed", all);
    try { localStorage.setItem("all-code", all); } catch { /* a browser that keeps nothing forgets this as well */ }
  };
  const turn = () => show(button.getAttribute("aria-pressed") !== "true");
  let before = "false";
  try { before = localStorage.getItem("all-code"); } catch { /* as above */ }
  show(before === "true");
  button.addEventListener("click", turn);
  document.addEventListener("keydown", (event) => {
    if (event.altKey && event.code === "KeyC") { event.preventDefault(); turn(); }
  });
  place.prepend(button);
});
// The answers of a quiz stand in another order at every visit; without scripts, in the order of the source.
document.addEventListener("DOMContentLoaded", () => {
  for (const quiz of document.querySelectorAll(".quiz")) {
    const answers = [...quiz.querySelectorAll(":scope > details")];
    for (let last = answers.length - 1; last > 0; last--) {
      const other = Math.floor(Math.random() * (last + 1));
      [answers[last], answers[other]] = [answers[other], answers[last]];
    }
    quiz.append(...answers);
  }
});
// The theme's buttons have labels that do not say what stands in them: one is named by its words, the other has no words but a label.
document.addEventListener("DOMContentLoaded", () => {
  for (const button of document.querySelectorAll(".search-button-field")) button.removeAttribute("aria-label");
  for (const button of document.querySelectorAll(".theme-switch-button")) {
    const unnamed = () => {
      for (const icon of button.querySelectorAll("[title], svg")) {
        icon.removeAttribute("title");
        icon.removeAttribute("aria-labelledby");
        icon.querySelector("title")?.remove();
      }
    };
    unnamed();
    new MutationObserver(unnamed).observe(button, { childList: true, subtree: true }); // icons may be drawn later
  }
  for (const summary of document.querySelectorAll("summary[aria-label]")) summary.removeAttribute("aria-label"); // its words say it
});
// The theme lets the keyboard scroll code that is wider than its box, but does not look again when folded code is shown.
const shown = new ResizeObserver((seen) => {
  for (const { target } of seen) if (target.scrollWidth > target.clientWidth) target.tabIndex = 0;
});
document.addEventListener("DOMContentLoaded", () => document.querySelectorAll("pre").forEach((code) => shown.observe(code)));
