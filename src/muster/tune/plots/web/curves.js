// Learning curves; where every trial reported once, the values in the order of the trials instead.
function curvesPanel() {
  const isHistory = !data.hasProgress;
  const { made, head } = panel(isHistory ? "Results in the order of the trials" : "Learning curves");
  const trials = data.trials.map((trial, index) => ({ ...trial, index }));
  const shown = trials.filter((t) => (isHistory ? t.value !== null : t.curve && t.curve.values.some((v) => v !== null)));
  if (!shown.length) {
    made.append(element("p", { className: "empty" }, `no trial has reported ${data.metric} yet`));
    return;
  }
  const hasTime = !isHistory && shown.some((t) => t.curve.seconds[t.curve.seconds.length - 1] > 0);
  let byTime = false;
  const marks = legend(isHistory
    ? [["--full", "trials"], ["--best", "best so far"]]
    : [["--early", "ended earlier"], ["--full", "ran to the end"], ["--best", "best trial"]]);
  if (!isHistory && shown.some((t) => t.status === "ERROR")) marks.append(element("span", {}, "✕ failed"));
  head.append(marks);
  const canvas = svg("svg", { role: "img", "aria-label": `${data.metric} of all trials` }, made);
  let points = [], hot = null, place = null;

  const xs = (t) => (isHistory ? [t.n] : byTime ? t.curve.seconds : t.curve.iterations);
  const ys = (t) => (isHistory ? [t.value] : t.curve.values);

  function draw(width) {
    const height = 340, left = 58, right = width - 14, top = 16, bottom = height - 42;
    canvas.replaceChildren();
    canvas.setAttribute("viewBox", `0 0 ${width} ${height}`);
    canvas.setAttribute("height", height);
    const best = data.best === null ? null : data.trials[data.best].value;
    const x = scale(shown.flatMap(xs).filter((v) => v !== null), left + 8, right, {});
    const y = scale(shown.flatMap(ys).filter((v) => v !== null), bottom - (data.mode === "min" ? 26 : 10), top + (data.mode === "max" ? 18 : 8), { mayBeLog: true, keep: best });
    frame(x, y, { left, right, bottom, height, width });
    place = (t) => xs(t).map((v, i) => [v, ys(t)[i]]).filter(([, v]) => v !== null && (!y.log || v > 0)).map(([a, b]) => [x.at(a), y.at(b)]);
    svg("rect", { x: left, y: top - 10, width: right - left + 14, height: bottom - top + 10 }, svg("clipPath", { id: "curve-area" }, canvas));
    const area = svg("g", { "clip-path": "url(#curve-area)" }, canvas);
    points = [];
    (isHistory ? drawHistory : drawLines)(area, x, y);
    hot = svg("path", { class: "hot" }, area);
  }

  function frame(x, y, { left, right, bottom, height, width }) {
    for (const tick of y.ticks) {
      svg("line", { class: "grid", x1: left, x2: right, y1: y.at(tick), y2: y.at(tick) }, canvas);
      svg("text", { x: left - 8, y: y.at(tick) + 4, "text-anchor": "end" }, canvas, shortNumber(tick));
    }
    for (const tick of x.ticks.filter((t) => isHistory || byTime || Number.isInteger(t))) {
      svg("text", { x: x.at(tick), y: bottom + 17, "text-anchor": "middle" }, canvas, shortNumber(tick));
    }
    svg("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }, canvas);
    const name = isHistory ? "trial" : byTime ? "seconds of training" : "training iteration";
    svg("text", { x: (left + right) / 2, y: height - 6, "text-anchor": "middle", class: "strong" }, canvas, name);
    svg("text", { transform: `translate(12 ${bottom / 2}) rotate(-90)`, "text-anchor": "middle", class: "strong" }, canvas, shortened(data.metric, 40));
  }

  function drawLines(area, x, y) {
    const crowd = Math.min(0.8, Math.max(0.16, 16 / shown.length));
    const isFull = (t) => t.curve.iterations[t.curve.iterations.length - 1] >= data.longest;
    for (const t of [...shown].sort((a, b) => isFull(a) - isFull(b))) {
      const path = place(t);
      for (const [px, py] of path) points.push([px, py, t.index]);
      if (t.index === data.best || !path.length) continue;
      const colour = `var(${isFull(t) ? "--full" : "--early"})`;
      svg("path", { class: "line", d: "M" + path.join("L"), stroke: colour, opacity: isFull(t) ? crowd : crowd * 0.8 }, area);
      const [px, py] = path[path.length - 1];
      if (t.status === "ERROR") svg("path", { d: `M${px - 4} ${py - 4}l8 8m0 -8l-8 8`, stroke: "var(--ink)", "stroke-width": 1.5 }, area);
      else svg("circle", { cx: px, cy: py, r: 2, fill: colour, opacity: Math.min(1, crowd * 2) }, area);
    }
    if (data.best === null || !data.trials[data.best].curve) return;
    const path = place(trials[data.best]);
    if (!path.length) return;
    svg("path", { class: "best-line", d: "M" + path.join("L") }, area);
    labelBest(path[path.length - 1]);
  }

  function drawHistory(area, x, y) {
    const crowd = Math.min(0.85, Math.max(0.3, 120 / shown.length));
    let running = null, steps = "";
    for (const t of shown) {
      const [[px, py]] = place(t).concat([[x.at(t.n), y.at(t.value)]]);
      points.push([px, py, t.index]);
      svg("circle", { cx: px, cy: py, r: 3.5, fill: "var(--full)", opacity: crowd }, area);
      if (running === null || (data.mode === "max" ? t.value > running : t.value < running)) {
        running = t.value;
        steps += steps ? `H${px}V${py}` : `M${px} ${py}`;
      }
    }
    svg("path", { class: "best-line", d: `${steps}H${x.at(shown[shown.length - 1].n)}` }, area);
    if (data.best !== null) {
      const [at] = place(trials[data.best]);
      svg("circle", { cx: at[0], cy: at[1], r: 5.5, fill: "var(--best)" }, area);
      labelBest(at);
    }
  }

  function labelBest([px, py]) {
    const below = data.mode === "min";
    svg("text", { x: px, y: py + (below ? 17 : -9), "text-anchor": "end", class: "best halo" }, canvas, shortNumber(data.trials[data.best].value, 3));
  }

  function nearest(px, py) {
    let found = null, reach = 26 ** 2;
    for (const [x, y, index] of points) {
      const away = (x - px) ** 2 + (y - py) ** 2;
      if (away < reach) [found, reach] = [index, away];
    }
    return found;
  }

  function highlight(index) {
    const t = index === null ? null : trials[index];
    const path = t && (isHistory ? t.value !== null : t.curve) ? place(t) : [];
    const last = path[path.length - 1];
    hot.setAttribute("d", last ? `M${path.join("L")}M${last[0] - 5} ${last[1]}a5 5 0 1 0 10 0a5 5 0 1 0 -10 0` : "");
  }

  if (hasTime) {
    const swap = element("button", { type: "button" }, "over time");
    swap.addEventListener("click", () => {
      byTime = !byTime;
      swap.textContent = byTime ? "over iterations" : "over time";
      draw(canvas.getBoundingClientRect().width);
      highlightPointed();
    });
    head.append(swap);
  }
  watch(canvas, nearest);
  panels.push({ element: canvas, draw, highlight });
}
