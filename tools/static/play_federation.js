// Train a federation here: eight offices with real digits, seven methods, accuracy by office and traffic, round by round.
(() => {
  "use strict";
  if (typeof document === "undefined") return;
  const { METHODS, learner, drawn, weights } = pflPlay;
  const { KINDS, PIXELS, SIDE, CLASSES, unpack, deal } = pflOffices;
  const { dot, line, lit, slider, mail, player, start } = pflFrame;
  const [HIDDEN, ROUNDS] = [16, 20];
  const NAMES = { local: "Local", fedavg: "FedAvg", pfl_ft: "fine-tuning", fedper: "FedPer", ditto: "Ditto", ifca: "IFCA", pfedmb: "pFedMB" };
  const shape = { pixels: PIXELS, hidden: HIDDEN, classes: CLASSES };
  const P = weights(PIXELS, HIDDEN, CLASSES);
  const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
  const percent = (share) => Math.round(100 * share);

  function build(root, part, { offices, methods, pool: packed }) {
    const pool = unpack(packed);
    const kinds = Object.entries(KINDS).map(([value, { name }]) => `<option value="${value}">${name}</option>`).join("");
    root.innerHTML = part("script").outerHTML + `<form><div class="sliders"><label><span>what differs</span>
      <select name="kind">${kinds}</select></label>${slider("strength", "how strongly", { min: 0, max: 100, step: 10, value: 90 })}
      ${slider("steps", "local steps per round", { min: 1, max: 20, step: 1, value: 5 })}</div>
      <p class="about"></p><ul class="mail"></ul>
      <div class="buttons"><button type="button" class="main" name="play"></button><button type="button" name="round">One round</button>
      <button type="button" name="again">Start again</button><button type="button" name="deal">New mail</button></div>
      <p class="spoken" role="status"></p>
      <div class="scroll" tabindex="0" role="region" aria-label="Accuracy by office"><table>
      <thead></thead><tbody></tbody></table></div><svg role="img"></svg></form><p class="note">A network of
      ${P.toLocaleString("en")} numbers; 40 training images per office, unless amounts differ, and 50 test images.
      The star marks the highest mean. Traffic: numbers that one office has received and sent so far. Nothing leaves this page.</p>`;
    part("[name=kind]").value = "label";
    const value = (name) => Number(part(`[name="${name}"]`).value);
    let [seed, round, dealt, train, test, states, curves] = [1, 0, [], [], [], {}, {}];
    const settings = () => ({ lr: 0.5, steps: value("steps"), tuning: 10, cut: HIDDEN * (PIXELS + 1), lam: 0.3, clusters: 2,
      branches: 3, alpha_lr: 1 });

    function scored(name) {
      return METHODS[name].personal(states[name], train, settings()).map((model, i) => test[i].accuracy(model));
    }
    function again() {
      stop();
      round = 0;
      const starts = [0, 1, 2].map((copy) => drawn(100 * seed + copy, PIXELS, HIDDEN, CLASSES));
      for (const name of Object.keys(NAMES)) {
        states[name] = METHODS[name].start(starts, train, settings());
        curves[name] = [{ accuracy: scored(name), traffic: 0 }];
      }
      draw();
    }
    const offer = () => mail(part(".mail"), offices, dealt, offices.map((_, i) => i), { pixels: PIXELS, side: SIDE });
    function dealAgain() {
      const kind = part("[name=kind]").value;
      dealt = deal(pool, { kind, strength: value("strength") / 100, seed });
      train = dealt.map((one) => learner({ ...one.train, ...shape }));
      test = dealt.map((one) => learner({ ...one.test, ...shape }));
      offer();
      part(".about").textContent = KINDS[kind].about;
      again();
    }
    function step() {
      if (round >= ROUNDS) return false;
      round++;
      for (const name of Object.keys(NAMES)) {
        states[name] = METHODS[name].round(states[name], train, settings());
        const { down, up } = METHODS[name].traffic(P, settings());
        curves[name].push({ accuracy: scored(name), traffic: curves[name][round - 1].traffic + down + up });
      }
      draw();
      return round < ROUNDS;
    }

    function draw() {
      part("[data-of=strength] output").textContent = `${value("strength")}%`;
      part("[data-of=steps] output").textContent = value("steps");
      const now = Object.keys(NAMES).map((name) => ({ name, ...curves[name][round] }));
      const top = Math.max(...now.map(({ accuracy }) => percent(mean(accuracy))));
      part("thead").innerHTML = `<tr><th scope="col" style="text-align:left">round ${round}</th><th scope="col">mean</th>` +
        offices.map((office) => `<th scope="col">${dot(office)}</th>`).join("") + "</tr>";
      const star = (accuracy) => (round && percent(mean(accuracy)) === top ? " <span title='highest mean'>★</span>" : "");
      const sent = (traffic) => (traffic ? `${(traffic / 1000).toFixed(0)} thousand` : "no traffic");
      const bar = (share, i) => `<i><b style="width:${100 * share}%;background:${line(offices[i])}"></b></i>`;
      part("tbody").innerHTML = now.map(({ name, accuracy, traffic }) => `<tr><th scope="row">${NAMES[name]}${star(accuracy)}` +
        `<small>${sent(traffic)}</small></th><td class="mean">${percent(mean(accuracy))}</td>` +
        accuracy.map((share, i) => `<td>${percent(share)}${bar(share, i)}</td>`).join("") + "</tr>").join("");
      const means = now.map(({ name, accuracy }) => `${NAMES[name]} ${percent(mean(accuracy))}`);
      part(".spoken").textContent = `Round ${round}. ${means.map((words) => `${words} percent`).join(", ")}`;
      chart(now);
    }
    function chart(now) {
      const narrow = root.clientWidth < 520;
      const [wide, high, left, right, size] = narrow ? [380, 280, 34, 100, 14] : [720, 300, 42, 120, 15];
      const x = (t) => left + (t / ROUNDS) * (wide - left - right);
      const y = (share) => high - 34 - share * (high - 52);
      const parts = [0, 0.5, 1].map((share) => `<line class="grid" x1="${left}" x2="${wide - right}" y1="${y(share)}" y2="${y(share)}"/>` +
        `<text class="soft" x="${left - 6}" y="${y(share) + 5}" text-anchor="end" font-size="${size}">${100 * share}</text>`);
      parts.push(...[0, 10, 20].map((t) =>
        `<text class="soft" x="${x(t)}" y="${high - 14}" text-anchor="middle" font-size="${size}">${t}</text>`));
      parts.push(`<text class="soft" x="${left}" y="14" font-size="${size}">mean accuracy of the offices (%), by round</text>`);
      const ends = now.map(({ name, accuracy }) => ({ name, at: y(mean(accuracy)) })).sort((a, b) => a.at - b.at);
      ends.forEach((one, n) => { one.label = n ? Math.max(one.at, ends[n - 1].label + size + 2) : Math.max(one.at, 24); });
      // From the lowest name upwards: none below the line of 0, where the rounds stand, and none moves more than it must.
      ends.reduceRight((floor, one) => { one.label = Math.min(one.label, floor); return one.label - size - 2; }, y(0) - 5);
      const shade = (name) => lit(methods[name]);
      for (const { name, label, at: end } of ends) {
        const path = curves[name].map(({ accuracy }, t) => `${x(t).toFixed(1)},${y(mean(accuracy)).toFixed(1)}`).join(" ");
        parts.push(`<polyline points="${path}" fill="none" stroke="${shade(name)}" stroke-width="2.5"/>`);
        parts.push(`<circle cx="${x(round)}" cy="${end}" r="3.5" fill="${shade(name)}"/>`);
        // Only the last points lead to their names: from an earlier one the line would look like a forecast.
        if (round === ROUNDS) parts.push(`<path d="M${x(round)} ${end} L${wide - right + 8} ${label}" stroke="${shade(name)}"/>`);
        parts.push(`<rect x="${wide - right + 10}" y="${label - 5}" width="10" height="10" fill="${shade(name)}"/>` +
          `<text x="${wide - right + 25}" y="${label + 5}" font-size="${size}">${NAMES[name]}</text>`);
      }
      const picture = part("svg");
      picture.setAttribute("viewBox", `0 0 ${wide} ${high}`);
      const means = now.map(({ name, accuracy }) => `${NAMES[name]} ${percent(mean(accuracy))}`);
      picture.setAttribute("aria-label", `Mean accuracy after ${round} rounds: ${means.join(", ")}`);
      picture.innerHTML = parts.join("");
    }

    root.addEventListener("input", ({ target }) => {
      if (target.name === "kind" || target.name === "strength") dealAgain();
      else draw();
    });
    const stop = player(part("[name=play]"), step, { words: "Train 20 rounds", wait: 30 });
    part("[name=round]").addEventListener("click", () => { stop(); step(); });
    part("[name=again]").addEventListener("click", again);
    part("[name=deal]").addEventListener("click", () => { seed++; dealAgain(); });
    window.addEventListener("resize", draw);
    dealAgain();
    return () => { offer(); draw(); };
  }

  start("federation", build);
})();
