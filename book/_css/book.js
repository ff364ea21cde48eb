// A picture wider than a phone is shown whole; a tap shows it at reading size, to be scrolled, and a second tap whole again.
document.addEventListener("DOMContentLoaded", () => {
  if (!window.matchMedia("(max-width: 576px)").matches) return;
  for (const image of document.querySelectorAll(".bd-article figure img")) {
    const turn = () => image.closest("figure").classList.toggle("large");
    image.tabIndex = 0;
    image.setAttribute("role", "button");
    image.title = "enlarge or shrink";
    image.addEventListener("click", turn);
    image.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); turn(); }
    });
  }
});
// The entries of a list of references have a role that no list may hold, so that a screen reader counts none of them.
document.addEventListener("DOMContentLoaded", () => {
  for (const entry of document.querySelectorAll(".citation-list > .citation")) entry.setAttribute("role", "listitem");
});
