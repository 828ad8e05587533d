/* The vote explorer and the consensus-focus explorer: Knowledge Vote and Consensus Focus once more, in the reader's
   browser. A test holds the functions of `window.kd3a` against `kd3a.consensus`; nothing here asks a server.

   `q` is always [sample][teacher][class]; a coalition is a list of teacher indices. */
(() => {
  "use strict";
  const FALLBACK = 0.001; // n_p of a sample without supporters

  // --- formulas -----------------------------------------------------------------------------------------------

  const sum = (values) => values.reduce((a, b) => a + b, 0);

  /** Index of the largest value; among equals the lowest. */
  const argmax = (values) => values.reduce((best, v, i) => (v > values[best] ? i : best), 0);

  const mean = (rows) => rows[0].map((_, c) => sum(rows.map((row) => row[c])) / rows.length);

  /** One sample, q as [teacher][class]: who passes the gate, who supports the consensus class, p and n_p. */
  function vote(q, gate, coalition = q.map((_, k) => k)) {
    const confident = coalition.filter((k) => Math.max(...q[k]) > gate);
    let supporters = [];
    if (confident.length) {
      const votes = q[0].map((_, c) => sum(confident.map((k) => q[k][c])));
      const elected = argmax(votes);
      supporters = confident.filter((k) => argmax(q[k]) === elected);
    }
    const heard = supporters.length ? supporters : coalition;
    return { confident, supporters, p: mean(heard.map((k) => q[k])), n: supporters.length || FALLBACK };
  }

  /** Q(S'): the sum over samples of n_p times the largest p. */
  function quality(q, gate, coalition) {
    if (!coalition.length) return 0;
    return sum(
      q.map((one) => {
        const { p, n } = vote(one, gate, coalition);
        return n * Math.max(...p);
      })
    );
  }

  /** All coalitions' qualities, and from them leave-one-out and Shapley values: {qualities, leaveOneOut, shapley}. */
  function consensusFocus(q, gate) {
    const teachers = q[0].length;
    const everybody = (1 << teachers) - 1;
    const members = (mask) => [...Array(teachers).keys()].filter((k) => mask & (1 << k));
    const qualities = [...Array(everybody + 1).keys()].map((mask) => quality(q, gate, members(mask)));
    const leaveOneOut = members(everybody).map((k) => qualities[everybody] - qualities[everybody & ~(1 << k)]);
    const factorial = (n) => (n < 2 ? 1 : n * factorial(n - 1));
    const shapley = members(everybody).map((k) =>
      sum(
        qualities.map((value, mask) => {
          if (mask & (1 << k)) return 0;
          const size = members(mask).length;
          const share = (factorial(size) * factorial(teachers - size - 1)) / factorial(teachers);
          return share * (qualities[mask | (1 << k)] - value);
        })
      )
    );
    return { qualities, leaveOneOut, shapley };
  }

  /** Weights of the K sources and, last, of the distilled domain; a negative value counts as none. */
  function domainWeights(focus, sizes, targetSize) {
    let scores = focus.map((value, k) => Math.max(value, 0) * sizes[k]);
    if (!sum(scores)) scores = sizes;
    const target = targetSize / (sum(sizes) + targetSize);
    return [...scores.map((score) => ((1 - target) * score) / sum(scores)), target];
  }

  window.kd3a = { vote, quality, consensusFocus, domainWeights };

  // --- page elements --------------------------------------------------------------------------------------------

  /** An element with attributes and children; a text is a child too. */
  function make(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  }

  const percent = (share) => `${Math.round(100 * share)} %`;

  /** A labelled range input with its value beside it; `show` turns the value into words. */
  function slider(id, text, { min, max, step, value }, show, changed) {
    const input = make("input", { type: "range", id, min, max, step, value });
    const output = make("output", { for: id });
    const update = () => {
      output.textContent = show(Number(input.value));
      input.setAttribute("aria-valuetext", output.textContent);
    };
    input.addEventListener("input", () => {
      update();
      changed();
    });
    update();
    const row = make("div", { class: "explorer-slider" }, make("label", { for: id }, text), input, output);
    return { row, input };
  }

  const GATE = { min: 0.1, max: 0.99, step: 0.01 };
  const gateSlider = (id, value, changed) =>
    slider(id, "confidence gate g", { ...GATE, value }, (g) => g.toFixed(2), changed);

  /** A table in a box that scrolls; the first cell of a row is its heading. */
  function table(caption, head, rows) {
    const top = make("tr", {}, ...head.map((cell) => make("th", { scope: "col" }, cell)));
    const body = rows.map(([name, ...cells]) =>
      make("tr", {}, make("th", { scope: "row" }, name), ...cells.map((cell) => make("td", {}, cell)))
    );
    const whole = [make("caption", {}, caption), make("thead", {}, top), make("tbody", {}, ...body)];
    const box = { class: "explorer-table", tabindex: 0, role: "region", "aria-label": caption };
    return make("div", box, make("table", {}, ...whole));
  }

  /** Bars of a distribution, one per class; the largest is marked. */
  function bars(p, classes) {
    const best = argmax(p);
    const told = `${classes[best]} with ${percent(p[best])}`;
    const columns = p.map((value, c) =>
      make(
        "span",
        { class: c === best ? "explorer-bar best" : "explorer-bar" },
        make("i", { style: `height: ${Math.max(3, 100 * value)}%` }),
        make("b", {}, classes[c])
      )
    );
    return make("span", { class: "explorer-bars", role: "img", "aria-label": told }, ...columns);
  }

  const meter = (share, text) =>
    make("span", { class: "explorer-meter" }, make("b", {}, text), make("i", { style: `width: ${100 * share}%` }));

  // --- the vote explorer ------------------------------------------------------------------------------------------

  function voteExplorer(root, data, id) {
    const { names, classes, truth, images } = data;
    const all = data.q.map((sample) => sample.map((row) => row.map((value) => value / 1000)));
    const gate = gateSlider(`${id}-gate`, data.gate, draw);
    const choice = make("fieldset", { class: "explorer-images" }, make("legend", {}, "target image"));
    images.forEach((image, i) => {
      const input = make("input", { type: "radio", name: `${id}-image`, value: i, id: `${id}-image-${i}` });
      input.checked = !i;
      input.addEventListener("change", draw);
      const picture = make("img", { src: image.src, alt: `target image ${i + 1}`, width: 48, height: 48, class: "dark-light" });
      choice.append(input, make("label", { for: `${id}-image-${i}` }, picture));
    });
    const said = make("p", { class: "explorer-said", "aria-live": "polite" });
    const one = make("div"), whole = make("div");
    root.replaceChildren(gate.row, choice, one, said, whole);
    draw();

    function draw() {
      const g = Number(gate.input.value);
      const image = images[Number(choice.querySelector("input:checked").value)];
      drawOne(all[image.row], truth[image.row], g);
      drawAll(g);
    }

    function drawOne(q, label, g) {
      const { confident, supporters, p, n } = vote(q, g);
      const fate = (k) =>
        supporters.includes(k) ? "supports" : confident.includes(k) ? "outvoted" : "below the gate";
      const rows = names.map((name, k) => {
        const tag = make("span", { class: `explorer-tag ${fate(k).split(" ")[0]}` }, fate(k));
        return [name, bars(q[k], classes), percent(Math.max(...q[k])), tag];
      });
      rows.push(["consensus", bars(p, classes), percent(Math.max(...p)), `weight ${n}`]);
      one.replaceChildren(table("What the teachers say of this image", ["teacher", "q", "largest", "fate"], rows));
      const right = argmax(p) === label ? "right" : "wrong";
      const outcome = supporters.length
        ? `${supporters.length} of ${names.length} teachers support class ${classes[argmax(p)]}`
        : `nobody is left; the mean of all teachers says ${classes[argmax(p)]}, with almost no weight`;
      said.textContent = `At g = ${g.toFixed(2)}, ${outcome}. The label, which the target lacks, is ${classes[label]}: ${right}.`;
    }

    function drawAll(g) {
      const outcomes = all.map((q, i) => {
        const { supporters, p } = vote(q, g);
        return { support: supporters.length, right: argmax(p) === truth[i] };
      });
      const rows = [...names.keys(), names.length].map((support) => {
        const those = outcomes.filter((o) => o.support === support);
        const right = those.filter((o) => o.right).length;
        const share = those.length / outcomes.length;
        return [`${support}`, meter(share, percent(share)), those.length ? percent(right / those.length) : "–"];
      });
      const caption = `All ${all.length} images at this gate`;
      whole.replaceChildren(table(caption, ["supporters", "share of images", "consensus right"], rows));
    }
  }

  // --- the consensus-focus explorer ---------------------------------------------------------------------------------

  function focusExplorer(root, data, id) {
    const { names, rates, sizes, targetSize, accuracy } = data;
    const teachers = names.map((_, k) => data.q[k].map((rate) => rate.map((row) => row.map((value) => value / 1000))));
    const sliders = names.map((name, k) =>
      slider(
        `${id}-${k}`,
        `wrong labels in ${name}`,
        { min: 0, max: rates.length - 1, step: 1, value: data.start[k] },
        (i) => percent(rates[i]),
        draw
      )
    );
    const gate = gateSlider(`${id}-gate`, data.gate, draw);
    const kind = make("select", { id: `${id}-kind` });
    for (const [value, text] of [["leaveOneOut", "leave-one-out"], ["shapley", "Shapley"]])
      kind.append(make("option", { value }, text));
    kind.addEventListener("change", draw);
    const chooser = make("div", { class: "explorer-slider" },
      make("label", { for: `${id}-kind` }, "weights follow"), kind, make("span"));
    const said = make("p", { class: "explorer-said", "aria-live": "polite" });
    const result = make("div");
    root.replaceChildren(...sliders.map((s) => s.row), gate.row, chooser, result, said);
    draw();

    function draw() {
      const g = Number(gate.input.value);
      const chosen = sliders.map((s) => Number(s.input.value));
      const q = teachers[0][0].map((_, i) => names.map((_, k) => teachers[k][chosen[k]][i]));
      const focus = consensusFocus(q, g);
      const alpha = domainWeights(focus[kind.value], sizes, targetSize);
      const sure = names.map((_, k) => q.filter((one) => Math.max(...one[k]) > g).length / q.length);
      const rows = names.map((name, k) => [
        name,
        meter(alpha[k], alpha[k].toFixed(2)),
        focus.leaveOneOut[k].toFixed(0),
        focus.shapley[k].toFixed(0),
        percent(sure[k]),
        percent(accuracy[k][chosen[k]]),
      ]);
      const last = alpha.length - 1;
      rows.push(["distilled", meter(alpha[last], alpha[last].toFixed(2)), "–", "–", "–", "–"]);
      const head = ["source", "weight α", "leave-one-out", "Shapley", "sure", "right"];
      result.replaceChildren(table("What each source is worth", head, rows));
      const best = argmax(alpha.slice(0, last));
      const least = argmax(alpha.slice(0, last).map((a) => -a));
      const whole = focus.qualities[focus.qualities.length - 1];
      said.textContent =
        `Q(S) is ${whole.toFixed(0)} over ${q.length} images. ${names[best]} weighs most, ${names[least]} least. ` +
        `“Sure” is the share of images on which the teacher passes the gate; “right” needs labels, which the target lacks.`;
    }
  }

  // --- start --------------------------------------------------------------------------------------------------------

  const KINDS = { vote: voteExplorer, focus: focusExplorer };

  function mount() {
    document.querySelectorAll("[data-explorer]").forEach((root, i) => {
      const data = JSON.parse(root.querySelector("script[type='application/json']").textContent);
      KINDS[root.dataset.explorer](root, data, `explorer-${i}`);
    });
  }

  window.kd3a.mount = mount;
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", mount);
  else mount();
})();
