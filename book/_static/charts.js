/* Charts whose points can be read one by one: with the slider, by keyboard, or with the pointer over the drawing.

   `kd3a.charts` writes the data: panels with series of points [x, y, low, high] and a text for each. */
(() => {
  "use strict";
  const SVG = "http://www.w3.org/2000/svg";
  const MARGIN = { left: 46, right: 12, top: 10, bottom: 40 };
  const HEIGHT = 300;

  function make(tag, attributes = {}, ...children) {
    const svg = ["svg", "g", "line", "path", "circle", "text"].includes(tag);
    const node = svg ? document.createElementNS(SVG, tag) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children);
    return node;
  }

  /** Round numbers between two ends: 1, 2 or 5 times powers of ten. */
  function ticks(low, high, log) {
    if (log) {
      const out = [];
      for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e++)
        for (const m of [1, 2, 5]) out.push(m * 10 ** e);
      return out.filter((v) => v >= low && v <= high);
    }
    const rough = (high - low) / 5 || 1;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((m) => m * power >= rough);
    const out = [];
    for (let v = Math.ceil(low / step) * step; v <= high + 1e-9; v += step) out.push(Number(v.toPrecision(6)));
    return out;
  }

  /** Where values of an axis lie between two pixels. */
  function scale(values, log, from, to) {
    const t = log ? Math.log10 : (v) => v;
    const ends = [Math.min(...values), Math.max(...values)].map(t);
    const pad = 0.06 * (ends[1] - ends[0] || 1);
    const [low, high] = [ends[0] - pad, ends[1] + pad];
    const place = (v) => from + ((t(v) - low) / (high - low)) * (to - from);
    return { place, ticks: ticks(log ? 10 ** low : low, log ? 10 ** high : high, log) };
  }

  function chart(root, data, id) {
    const select = make("select", { id: `${id}-panel` });
    data.panels.forEach((panel, i) => select.append(make("option", { value: i }, panel.name)));
    const slider = make("input", { type: "range", id: `${id}-at`, min: 0, step: 1, value: 0 });
    const said = make("p", { class: "explorer-said", "aria-live": "polite" });
    const drawing = make("div", { class: "chart-drawing" });
    const legend = make("p", { class: "chart-legend" });
    const chooser = make("div", { class: "explorer-slider" }, make("label", { for: select.id }, data.choose), select);
    const mover = make("div", { class: "explorer-slider" }, make("label", { for: slider.id }, data.move), slider);
    root.replaceChildren(...(data.panels.length > 1 ? [chooser] : []), legend, drawing, mover, said);
    let steps = [];

    function draw() {
      const { series, front } = data.panels[select.value];
      const width = Math.max(260, drawing.clientWidth);
      steps = [...new Set(series.flatMap((s) => s.points.map((p) => p[0])))].sort((a, b) => a - b);
      slider.max = steps.length - 1;
      const xs = scale(steps, data.log, MARGIN.left, width - MARGIN.right);
      const all = series.flatMap((s) => s.points.flatMap((p) => p.slice(1)));
      const ys = scale(all, false, HEIGHT - MARGIN.bottom, MARGIN.top);
      const svg = make("svg", { width, height: HEIGHT, role: "img", "aria-label": data.label });
      const text = (x, y, words, anchor) => make("text", { x, y, "text-anchor": anchor }, words);
      for (const v of ys.ticks) {
        const y = ys.place(v);
        svg.append(make("line", { class: "chart-grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: y, y2: y }));
        svg.append(text(MARGIN.left - 5, y + 4, String(v), "end"));
      }
      let last = -Infinity;
      for (const v of xs.ticks.filter((v) => !data.whole || Number.isInteger(v))) {
        if (xs.place(v) - last < 30) continue; // numbers must not touch
        last = xs.place(v);
        svg.append(text(last, HEIGHT - MARGIN.bottom + 16, String(v), "middle"));
      }
      svg.append(text((MARGIN.left + width) / 2, HEIGHT - 6, data.xlabel, "middle"));
      const line = (points) => "M" + points.map((p) => `${xs.place(p[0])} ${ys.place(p[1])}`).join("L");
      if (front) svg.append(make("path", { class: "chart-front", d: line(front) }));
      for (const s of series) {
        svg.append(make("path", { d: line(s.points), stroke: s.colour, fill: "none", "stroke-width": 1.8 }));
        for (const [x, y, low, high] of s.points) {
          const ends = { x1: xs.place(x), x2: xs.place(x), y1: ys.place(low), y2: ys.place(high), stroke: s.colour };
          svg.append(make("line", ends), make("circle", { cx: xs.place(x), cy: ys.place(y), r: 3.5, fill: s.colour }));
        }
      }
      const cursor = make("line", { class: "chart-cursor", y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom });
      svg.append(cursor);
      const seek = (event) => {
        const x = event.clientX - svg.getBoundingClientRect().left;
        const near = steps.map((v) => Math.abs(xs.place(v) - x));
        slider.value = near.indexOf(Math.min(...near));
        tell();
      };
      for (const kind of ["pointerdown", "pointermove"]) svg.addEventListener(kind, seek); // a tap does not move
      drawing.replaceChildren(svg);
      legend.replaceChildren(
        data.ylabel + ": ",
        ...series.map((s) => make("span", {}, make("i", { style: `background:${s.colour}` }), s.name))
      );
      tell();

      function tell() {
        const at = steps[slider.value];
        cursor.setAttribute("x1", xs.place(at));
        cursor.setAttribute("x2", xs.place(at));
        const words = series.flatMap((s) => s.points.flatMap((p, i) => (p[0] === at ? [s.texts[i]] : [])));
        said.textContent = words.join("; ") + ".";
        slider.setAttribute("aria-valuetext", said.textContent);
      }
      slider.oninput = tell;
    }

    select.addEventListener("change", () => ((slider.value = 0), draw()));
    new ResizeObserver(draw).observe(drawing);
    draw();
  }

  function mount() {
    document.querySelectorAll("[data-chart]").forEach((root, i) => {
      chart(root, JSON.parse(root.querySelector("script[type='application/json']").textContent), `chart-${i}`);
    });
  }

  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", mount);
  else mount();
})();
