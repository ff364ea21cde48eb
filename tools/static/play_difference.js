// Which difference do I have? Mail of some offices and three numbers; the player names the kind of difference.
(() => {
  "use strict";
  if (typeof document === "undefined") return;
  const { generator } = pflExplorer;
  const { METHODS, learner, drawn } = pflPlay;
  const { KINDS, SWAPS, PIXELS, SIDE, CLASSES, unpack, deal } = pflOffices;
  const { mail, start } = pflFrame;
  const [HIDDEN, ROUNDS, SHOWN] = [16, 8, [0, 1, 4, 6]];
  const shape = { pixels: PIXELS, hidden: HIDDEN, classes: CLASSES };
  const swapped = (strength) =>
    SWAPS.slice(0, Math.round(strength * SWAPS.length)).map(([a, b]) => `${a} and ${b}`).join(", ");
  const WHY = {
    none: () => "Amounts, digits, hands and meanings are alike everywhere. FedAvg is ahead of Local, since eight offices know " +
      "more than one, and fine-tuning has nothing to add.",
    label: () => "Look at the labels: every office has its own few digits. Local does well, because its task is small; " +
      "FedAvg has to tell all ten apart.",
    feature: () => "Look at the strokes: each office's digits are turned, slanted or squeezed in the same way. The labels are " +
      "right, and the hands differ.",
    concept: (strength) => `Look at the same shape in two offices: ${swapped(strength)} trade places in Easton's country. ` +
      "No single model can read both.",
    quantity: () => "Look at the numbers of images: the town has many times the village's mail. Local fails in the villages, " +
      "and FedAvg helps them out.",
  };

  function build(root, part, { offices, pool: packed }) {
    const pool = unpack(packed);
    const answer = ([value, { name }]) => `<button type="button" data-kind-of="${value}">${name}</button>`;
    const options = Object.entries(KINDS).map(answer).join("");
    root.innerHTML = part("script").outerHTML + `<p><b>What differs between these offices?</b> Below each image is the label that its
      office gives it.</p><ul class="mail"></ul><dl></dl><div class="buttons answers">${options}</div><div role="status" class="feedback"></div>
      <div class="buttons"><button type="button" class="main" name="next">Next federation</button></div><p class="note"></p>`;
    let [seed, asked, right, truth, dealt] = [Math.floor(Date.now() / 1000) % 10000, 0, 0, null, []];
    const offer = () => mail(part(".mail"), offices, dealt, SHOWN, { pixels: PIXELS, side: SIDE }, 10);

    const score = () => {
      const hint = "Look at the digits, the labels, the amounts, and the three numbers.";
      part(".note").textContent = asked ? `${right} right of ${asked}.` : hint;
    };
    function next() {
      seed++;
      const uniform = generator(seed);
      const names = Object.keys(KINDS);
      truth = { kind: names[Math.floor(uniform() * names.length)], strength: 0.6 + 0.4 * uniform(), answered: false };
      dealt = deal(pool, { ...truth, seed });
      offer();
      part(".feedback").innerHTML = "";
      root.querySelectorAll("[data-kind-of]").forEach((button) => { button.disabled = false; });
      part("dl").innerHTML = "<div><dt>accuracy of three methods</dt><dd>training …</dd></div>";
      score();
      const mine = seed;
      setTimeout(() => { if (mine === seed) numbers(); }, 30);
    }
    function numbers() {
      const [train, test] = ["train", "test"].map((split) => dealt.map((one) => learner({ ...one[split], ...shape })));
      const o = { lr: 0.5, steps: 5, tuning: 10 };
      const starts = [drawn(seed, PIXELS, HIDDEN, CLASSES)];
      const after = (name) => {
        let state = METHODS[name].start(starts, train, o);
        for (let t = 0; t < ROUNDS; t++) state = METHODS[name].round(state, train, o);
        return state;
      };
      const [alone, together] = [after("local"), after("fedavg")];
      const tried = [["Local", "local", alone], ["FedAvg", "fedavg", together], ["FedAvg, then fine-tuning", "pfl_ft", together]];
      const shown = tried.map(([words, name, state]) => {
        const accuracy = METHODS[name].personal(state, train, o).map((model, i) => test[i].accuracy(model));
        return [words, 100 * accuracy.reduce((a, b) => a + b, 0) / accuracy.length, 100 * Math.min(...accuracy)];
      });
      part("dl").innerHTML = shown.map(([words, mean, worst]) => `<div><dt>${words}</dt><dd>${mean.toFixed(0)}%</dd>` +
        `<dt>worst office ${worst.toFixed(0)}%</dt></div>`).join("");
    }
    root.addEventListener("click", ({ target }) => {
      const guess = target.dataset.kindOf;
      if (!guess || truth.answered) return;
      truth.answered = true;
      asked++;
      const good = guess === truth.kind;
      right += good;
      root.querySelectorAll("[data-kind-of]").forEach((button) => { button.disabled = button.dataset.kindOf !== truth.kind; });
      const verdict = good ? "Right." : `No, ${KINDS[truth.kind].name.split(":")[0]}.`;
      part(".feedback").innerHTML = `<p class="said ${good ? "right" : "wrong"}"><b>${verdict}</b> ` +
        `${WHY[truth.kind](truth.strength)}</p>`;
      score();
      part("[name=next]").focus();
    });
    part("[name=next]").addEventListener("click", next);
    next();
    return offer;
  }

  start("difference", build);
})();
