// Parallel coordinates: one line per trial through its parameters to its metric, coloured by the metric.
function parallelPanel() {
  const { made } = panel("Parameters of the trials", { wide: true });
  if (data.axes.length < 2 || !data.lines.length) {
    const why = data.lines.length ? "no parameter differs between the trials" : "no trial has a result yet";
    made.append(element("p", { className: "empty" }, why));
    return;
  }
  const canvas = svg("svg", { role: "img", "aria-label": "parameters of all trials" }, made);
  const rowOf = new Map(data.lines.map((trial, row) => [trial, data.rows[row]]));
  const top = 50, bottom = 340, height = 380, count = data.axes.length;
  let left = 0, step = 0, hot = null;

  const x = (column) => left + column * step;
  const y = (place) => bottom - place * (bottom - top);
  const path = (row) => "M" + row.map((place, column) => `${x(column)} ${y(place)}`).join("L");

  function draw(width) {
    left = Math.min(80, width * 0.09);
    step = (width - left - 60) / (count - 1);
    canvas.replaceChildren();
    canvas.setAttribute("viewBox", `0 0 ${width} ${height}`);
    canvas.setAttribute("height", height);
    const crowd = Math.min(0.85, Math.max(0.25, 30 / data.lines.length));
    for (const trial of data.lines) {
      const { shade } = data.trials[trial];
      if (trial === data.best) continue;
      svg("path", { class: "line", d: path(rowOf.get(trial)), stroke: shadeColour(shade), opacity: Math.min(1, crowd * (1.6 - shade)) }, canvas);
    }
    if (data.best !== null) drawBest(rowOf.get(data.best));
    hot = svg("path", { class: "hot" }, canvas);
    data.axes.forEach((axis, column) => drawAxis(axis, column));
  }

  function drawBest(row) {
    svg("path", { class: "best-line", d: path(row) }, canvas);
    svg("text", { x: x(count - 1) + 12, y: y(row[count - 1]) + 4, class: "best" }, canvas, "best");
  }

  function drawAxis(axis, column) {
    if (column === count - 1) drawGradient(column);
    else svg("line", { class: "axis", x1: x(column), x2: x(column), y1: y(0), y2: y(1) }, canvas);
    for (const [place, label] of axis.ticks) {
      svg("line", { class: "axis", x1: x(column) - 5, x2: x(column), y1: y(place), y2: y(place) }, canvas);
      svg("text", { x: x(column) - 8, y: y(place) + 4, "text-anchor": "end", class: "strong halo" }, canvas, shortened(label, 14));
    }
    const name = svg("text", { x: x(column), y: top - 26, "text-anchor": "middle", class: "name" }, canvas, shortened(axis.name, Math.max(5, Math.floor(step / 9.4))));
    svg("title", {}, name, axis.name);
    if (axis.log) svg("text", { x: x(column), y: top - 11, "text-anchor": "middle" }, canvas, "log");
  }

  // The metric's own axis is the legend of the colours.
  function drawGradient(column) {
    const id = "metric-ramp", parts = 12;
    const ramp = svg("linearGradient", { id, x1: 0, x2: 0, y1: 1, y2: 0 }, canvas);
    for (let n = 0; n <= parts; n++) {
      const shade = data.mode === "min" ? n / parts : 1 - n / parts;
      svg("stop", { offset: n / parts, "stop-color": shadeColour(shade) }, ramp);
    }
    svg("rect", { x: x(column) - 3, y: y(1), width: 6, height: y(0) - y(1), fill: `url(#${id})` }, canvas);
  }

  function nearest(px, py) {
    const at = Math.min(Math.max((px - left) / step, 0), count - 1);
    const column = Math.min(Math.floor(at), count - 2), share = at - column;
    let found = null, reach = 14;
    for (const [trial, row] of rowOf) {
      const away = Math.abs(y(row[column] + (row[column + 1] - row[column]) * share) - py);
      if (away < reach) [found, reach] = [trial, away];
    }
    return found;
  }

  function highlight(trial) {
    hot.setAttribute("d", rowOf.has(trial) ? path(rowOf.get(trial)) : "");
  }

  watch(canvas, nearest);
  panels.push({ element: canvas, draw, highlight });
  const notes = [`Each line is a trial; ${data.mode === "min" ? "low" : "high"} ${shortened(data.metric, 30)} stands out.`];
  if (data.lines.length < data.trials.length) notes.push(`${data.lines.length} of ${data.trials.length} trials are drawn: finite values only, at most 600.`);
  if (data.leftOut) notes.push(`${data.leftOut} less important parameter${data.leftOut > 1 ? "s are" : " is"} left out.`);
  made.append(element("p", { className: "note" }, notes.join(" ")));
}
