// Be the server: offices' losses are bowls in the plane. Drag their lowest points, press Round, and see where the models go.
(() => {
  "use strict";
  if (typeof document === "undefined") return;
  const { METHODS, bowl, hessian, lowest } = pflPlay;
  const { line, inkOn, slider, chips, player, start } = pflFrame;
  const [UNIT, WIDE, HIGH] = [62, 720, 480];
  const at = ([x, y]) => [WIDE / 2 + UNIT * x, HIGH / 2 - UNIT * y];
  const points = (path) => path.map((one) => at(one).map((value) => value.toFixed(1)).join(",")).join(" ");
  const NAMES = [["fedavg", "FedAvg"], ["fedprox", "FedProx"], ["scaffold", "SCAFFOLD"], ["pfedme", "pFedMe"], ["ifca", "Two clusters"]];
  const SAYS = {
    fedavg: "Each office walks downhill from your model; you take the mean of where they end. With one step per round you walk " +
      "toward the cross. With many, every office goes nearly to its own lowest point, steep or not, and you end near the plain " +
      "mean of these points.",
    fedprox: "The same with a rubber band to your model. The stronger the band, the shorter the walk, and the smaller the drift.",
    scaffold: "Each step is corrected by how this office's slope differs from the mean slope. The walks turn parallel, and you " +
      "reach the cross however long they are.",
    pfedme: "Each office keeps a model of its own (ring) on a leash to yours. Pull the leash tighter, and the rings come to you.",
    ifca: "You hold two models. Each office takes the one that suits it better, and you average within each camp.",
  };
  // Optimum, steepness, direction in degrees of every office.
  const PLACES = {
    camps: [[-3.6, 1.6, 1, 20], [-4.2, -0.6, 0.6, 70], [-2.8, -1.9, 1.4, 120], [3.4, 1.2, 1, 150], [4, -1.2, 0.7, 40]],
    apart: [[-2.2, 1.5, 1, 10], [-1, 2.2, 0.8, 60], [-2.6, 0, 1.2, 110], [-1.2, -1, 0.9, 160], [4.4, -2.4, 1.8, 135]],
    around: [[0, 2.8, 1.6, 0], [3.6, 0.8, 0.5, 50], [2.2, -2.4, 1, 100], [-2.2, -2.4, 0.7, 30], [-3.6, 0.8, 1.8, 90]],
  };

  function build(root, part, { offices }) {
    const script = part("script").outerHTML;
    root.innerHTML = script + `<form>${chips("method", "Your method", NAMES, "fedavg")}<p class="about"></p>
      <div class="buttons"><button type="button" class="main" name="round">Round</button><button type="button" name="play"></button>
      <button type="button" name="again">Start again</button></div>
      <svg class="plane" tabindex="-1" viewBox="0 0 ${WIDE} ${HIGH}" role="group" aria-label="The plane of models"></svg><dl></dl>
      <p class="spoken" role="status"></p>
      <div class="sliders">${slider("steps", "local steps per round", { min: 1, max: 60, step: 1, value: 20 })}
      ${slider("mu", "μ, strength of the band", { min: 0, max: 3, step: 0.1, value: 0.5 })}
      ${slider("lam", "λ, strength of the leash", { min: 0.1, max: 5, step: 0.1, value: 1 })}
      <label><span>where the offices lie</span><select name="places"><option value="camps">two camps</option>
      <option value="apart">one apart</option><option value="around">all around</option></select></label>
      ${slider("steepness", "<span>steepness of <b></b></span>", { min: 0.2, max: 2, step: 0.1, value: 1 })}
      ${slider("degrees", "<span>direction of <b></b></span>", { min: 0, max: 175, step: 5, value: 0 })}</div></form>
      <p class="note">Drag a circle, or reach it with Tab and move it with the arrow keys. The cross is the best single model.</p>`;
    const plane = part("svg");
    const value = (name) => Number(part(`[name="${name}"]`).value);
    let [bowls, state, trail, round, chosen] = [[], null, [], 0, 0];

    const method = () => part("[name=method]:checked").value;
    // pFedMe's own models are nearly at rest after 60 inner steps; one step of its other model per round shows the leash best.
    const settings = () => ({ lr: 0.25, steps: method() === "pfedme" ? 1 : value("steps"), mu: value("mu"), lam: value("lam"), clusters: 2,
      inner_steps: 60, inner_lr: 0.12 });
    const clients = () => bowls.map(bowl);
    function place() {
      bowls = PLACES[part("[name=places]").value].map(([x, y, steepness, degrees]) =>
        ({ optimum: [x, y], steepness, degrees, H: hessian(steepness, degrees) }));
    }
    function again() {
      stop();
      const starts = [Float64Array.of(-0.6, 3), Float64Array.of(0.9, -3)];
      state = METHODS[method()].start(starts, bowls, settings());
      [trail, round] = [[METHODS[method()].server(state)], 0];
      draw();
    }
    function step() {
      state = METHODS[method()].round(state, clients(), settings());
      trail.push(METHODS[method()].server(state));
      round++;
      draw();
      return round % 20 !== 0;
    }

    function draw() {
      const [now, o] = [METHODS[method()], settings()];
      const big = root.clientWidth < 520 ? 1.8 : 1; // on a phone, so that a finger can hold an office
      const best = lowest(bowls);
      const own = now.personal(state, clients(), o);
      const parts = bowls.map(({ optimum, steepness, degrees }, i) => {
        const [x, y] = at(optimum);
        const [narrow, long] = [1, 0.1].map((flat) => UNIT * Math.sqrt((2 * 0.4) / (steepness * flat)));
        return `<ellipse cx="${x}" cy="${y}" rx="${narrow}" ry="${long}" transform="rotate(${-degrees} ${x} ${y})" fill="${line(offices[i])}" ` +
          `fill-opacity="0.1" stroke="${line(offices[i])}" stroke-opacity="0.7"/>`;
      });
      parts.push(...(state.paths || []).map((path, i) =>
        `<polyline points="${points(path)}" fill="none" stroke="${line(offices[i])}" stroke-width="${3 * big}"/>`));
      trail[0].forEach((_, j) => parts.push(`<polyline points="${points(trail.map((models) => models[j]))}" fill="none" ` +
        'stroke="var(--shared)" stroke-width="2.5" stroke-dasharray="2 5"/>'));
      const [cx, cy] = at(best);
      parts.push(`<path d="M${cx - 9 * big} ${cy} h${18 * big} M${cx} ${cy - 9 * big} v${18 * big}" stroke="var(--ink)" ` +
        `stroke-width="${3 * big}"/>`);
      if (method() === "pfedme" && round) own.forEach((model, i) => {
        const [x, y] = at(model);
        parts.push(`<circle cx="${x}" cy="${y}" r="${8 * big}" fill="none" stroke="${line(offices[i])}" stroke-width="${4 * big}"/>`);
      });
      bowls.forEach(({ optimum }, i) => {
        const [x, y] = at(optimum);
        const { name, color } = offices[i];
        parts.push(`<g class="office" tabindex="0" role="button" data-office="${i}" aria-label="${name}, lowest at ` +
          `${optimum.map((one) => one.toFixed(1)).join(", ")}; arrow keys move it"><circle cx="${x}" cy="${y}" r="${15 * big}" fill="${color}" ` +
          `stroke="${line(offices[i])}" stroke-width="2" class="${i === chosen ? "chosen" : ""}"/>` +
          `<text x="${x}" y="${y + 5.5 * big}" text-anchor="middle" font-size="${16 * big}" font-weight="700" ` +
          `style="fill:${inkOn(color)}">${name[0]}</text></g>`);
      });
      now.server(state).forEach((model, j, all) => {
        const [x, y] = at(model);
        parts.push(`<path transform="translate(${x} ${y}) scale(${big})" d="M0 -13 l13 13 l-13 13 l-13 -13 z" ` +
          'fill="var(--shared)" stroke="var(--paper)" stroke-width="2.5"/>' +
          `<text x="${x + 18 * big}" y="${y + 6 * big}" font-size="${17 * big}" font-weight="600" ` +
          `style="paint-order:stroke;stroke:var(--tint);stroke-width:5px">you${all.length > 1 ? ` ${j + 1}` : ""}</text>`);
      });
      const focused = document.activeElement?.dataset?.office;
      const inside = plane.contains(document.activeElement);
      plane.innerHTML = parts.join("");
      if (inside && focused !== undefined) plane.querySelector(`[data-office="${focused}"]`).focus();
      const mean = (models) => clients().reduce((total, client, i) => total + client.loss(models[i]), 0) / bowls.length;
      const served = METHODS[method()] === METHODS.ifca ? own : bowls.map(() => now.server(state)[0]);
      const far = Math.hypot(...[0, 1].map((k) => now.server(state)[0][k] - best[k]));
      const shown = [["round", round], ["distance to the cross", method() === "ifca" ? "–" : far.toFixed(3)],
        [method() === "ifca" ? "mean loss, own camp's model" : "mean loss of your model", mean(served).toFixed(3)],
        ["… of the best single model", mean(bowls.map(() => best)).toFixed(3)]];
      if (method() === "pfedme") shown.push(["… of the offices' own", mean(own).toFixed(3)]);
      part("dl").innerHTML = shown.map(([name, number]) => `<div><dt>${name}</dt><dd>${number}</dd></div>`).join("");
      part(".spoken").textContent = shown.map(([name, number]) => `${name} ${number}`).join(", ");
      part(".about").textContent = SAYS[method()];
      for (const name of ["steps", "mu", "lam", "steepness", "degrees"]) {
        part(`[data-of=${name}] output`).textContent = `${value(name)}${name === "degrees" ? "°" : ""}`;
        const b = part(`[data-of=${name}] b`);
        if (b) b.textContent = offices[chosen].name;
      }
      part("[data-of=steps]").hidden = method() === "pfedme";
      part("[data-of=mu]").hidden = method() !== "fedprox";
      part("[data-of=lam]").hidden = method() !== "pfedme";
    }

    function choose(i) {
      chosen = i;
      part("[name=steepness]").value = bowls[i].steepness;
      part("[name=degrees]").value = bowls[i].degrees;
    }
    function move(i, [x, y]) {
      bowls[i].optimum = [Math.min(Math.max(x, -5.5), 5.5), Math.min(Math.max(y, -3.6), 3.6)];
      draw();
    }
    let held = null;
    plane.addEventListener("pointerdown", (event) => {
      const office = event.target.closest(".office");
      if (!office) return;
      held = Number(office.dataset.office);
      choose(held);
      plane.setPointerCapture(event.pointerId);
      draw();
      plane.querySelector(`[data-office="${held}"]`).focus();
      event.preventDefault();
    });
    plane.addEventListener("pointermove", (event) => {
      if (held === null) return;
      const place = new DOMPoint(event.clientX, event.clientY).matrixTransform(plane.getScreenCTM().inverse());
      move(held, [(place.x - WIDE / 2) / UNIT, (HIGH / 2 - place.y) / UNIT]);
    });
    for (const ended of ["pointerup", "pointercancel"]) plane.addEventListener(ended, () => { held = null; });
    plane.addEventListener("focusin", (event) => {
      const i = Number(event.target.closest(".office")?.dataset.office ?? chosen);
      if (i !== chosen) { choose(i); draw(); }
    });
    plane.addEventListener("keydown", (event) => {
      const turn = { ArrowLeft: [-0.2, 0], ArrowRight: [0.2, 0], ArrowUp: [0, 0.2], ArrowDown: [0, -0.2] }[event.key];
      if (!turn) return;
      event.preventDefault();
      const { optimum } = bowls[chosen];
      move(chosen, [optimum[0] + turn[0], optimum[1] + turn[1]]);
    });
    root.addEventListener("input", ({ target }) => {
      if (target.name === "method") return again();
      if (target.name === "places") { place(); choose(chosen); return again(); }
      if (target.name === "steepness" || target.name === "degrees") {
        Object.assign(bowls[chosen], { [target.name]: Number(target.value) });
        bowls[chosen].H = hessian(bowls[chosen].steepness, bowls[chosen].degrees);
      }
      draw();
    });
    const stop = player(part("[name=play]"), step, { words: "Play 20", wait: 250 });
    part("[name=round]").addEventListener("click", () => { stop(); step(); });
    part("[name=again]").addEventListener("click", again);
    place();
    choose(0);
    again();
    return draw;
  }

  start("server", build);
})();
