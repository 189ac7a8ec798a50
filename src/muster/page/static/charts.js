// Learning curves (uPlot), the scatter plot with its Pareto front, and the bars of importance.
import { html, useEffect, useMemo, useRef, useState } from "./vendor/preact-htm.js";
import { PALETTE, PixelLayer, STATUS_COLOURS, fitted, pixelColour, prepared, shortNumber, themeColours, ticksBetween } from "./format.js";
import { countOf, importanceOf, isLogarithmic, packedMask, paretoOf, rangeOf } from "./selection.js";

const FEW = 24;

/** Bands of all trials that pass, or their own lines when they are few; the chosen and the best one stand out. */
export function CurvePlot({ source, experiment, table, metric, mask, marked, curveChange, filterKey, isFiltered }) {
  const box = useRef(null), [found, setFound] = useState(null), [problem, setProblem] = useState("");
  const busy = useRef({ running: false, again: false });
  const rows = [];
  for (let row = 0; row < mask.length && rows.length <= FEW; row++) if (mask[row]) rows.push(row);
  const isFew = isFiltered && rows.length <= FEW;
  const lines = [...new Set([...(isFew ? rows : []), ...marked.filter((row) => row >= 0)])].slice(0, FEW + 4);
  const load = async () => {
    if (busy.current.running) { busy.current.again = true; return; }
    busy.current.running = true;
    try {
      const keep = isFiltered && table.rows <= 60000 ? packedMask(mask) : "";
      const [band, raw] = await Promise.all([
        source.curves(experiment, metric, keep), lines.length ? source.curvesOf(experiment, metric, lines) : {},
      ]);
      setFound({ band, raw, lines }); setProblem("");
    } catch (error) { setProblem(error.message); }
    busy.current.running = false;
    if (busy.current.again) { busy.current.again = false; load(); }
  };
  useEffect(() => { const timer = setTimeout(load, isFiltered ? 250 : 20); return () => clearTimeout(timer); }, [experiment, metric, filterKey, curveChange, table, lines.join(",")]);
  useEffect(() => {
    if (!found || !box.current || (!found.band.x.length && !Object.keys(found.raw).length)) return undefined;
    const plot = curvePlot(box.current, found, table);
    const again = () => plot.setSize({ width: box.current.clientWidth, height: 300 });
    window.addEventListener("resize", again);
    return () => { window.removeEventListener("resize", again); plot.destroy(); };
  }, [found]);
  const behind = found && found.band.behind;
  return html`<div class="plot" data-test="curves">
    <div ref=${box} role="img" aria-label=${`Learning curves of ${metric}: the middle half, the range and single trials over iterations.`}></div>
    ${problem ? html`<p class="note bad">${problem}</p>` : null}
    ${found && !found.band.points && !behind ? html`<p class="note">No results were logged yet${source.isLive ? "" : " in this report"}. Curves come from result.json in the trials' directories.</p>` : null}
    ${!found && !problem ? html`<p class="note">Loading …</p>` : null}
    ${found && found.band.left_out ? html`<p class="note">There are too many results to keep: ${found.band.left_out.toLocaleString("en")} of ${table.rows.toLocaleString("en")} trials are not part of the bands.</p>` : null}
    ${behind ? html`<p class="note" role="status">Reading results: ${behind.toLocaleString("en")} of ${table.rows.toLocaleString("en")} trials to go; what is shown stands for all of them.</p>` : null}
  </div>`;
}

function curvePlot(box, found, table) {
  const colours = themeColours(), { band, raw, lines } = found;
  const points = new Set(band.x);
  for (const [xs] of Object.values(raw)) for (const x of xs) points.add(x);
  const x = [...points].sort((a, b) => a - b), place = new Map(x.map((value, at) => [value, at]));
  const spreadOut = (xs, ys) => {
    const out = new Array(x.length).fill(undefined);
    xs.forEach((value, at) => { out[place.get(value)] = ys[at]; });
    return out;
  };
  const series = [{ label: "iteration" }], data = [x], bands = [];
  const add = (values, options) => { data.push(values); series.push({ spanGaps: true, points: { show: false }, ...options }); return series.length - 1; };
  if (band.x.length) {
    const [lowest, low, middle, high, highest] = band.bands.map((values) => spreadOut(band.x, values));
    const ends = [add(lowest, { label: "lowest", stroke: "transparent" }), add(highest, { label: "highest", stroke: "transparent" })];
    const most = [add(low, { label: "10 %", stroke: "transparent" }), add(high, { label: "90 %", stroke: "transparent" })];
    add(middle, { label: "middle", stroke: colours.accent, width: 2 });
    bands.push({ series: [ends[1], ends[0]], fill: "rgba(0,114,178,0.10)" }, { series: [most[1], most[0]], fill: "rgba(0,114,178,0.22)" });
  }
  lines.forEach((row, at) => {
    const line = raw[row];
    if (line && line[0].length) add(spreadOut(line[0], line[1]), { label: table.ids[row] || String(row), stroke: PALETTE[(at + 1) % PALETTE.length], width: 1.5, points: { show: line[0].length < 3 } });
  });
  const axis = { stroke: colours.quiet, grid: { stroke: colours.line, width: 0.5 }, ticks: { stroke: colours.line }, font: "12px system-ui, DejaVu Sans" };
  return new window.uPlot({
    width: box.clientWidth, height: 300, series, bands, legend: { show: false }, scales: { x: { time: false } },
    axes: [{ ...axis, label: "iteration", labelSize: 18, labelFont: "12px system-ui", size: 34 }, { ...axis, size: 56, values: (_, values) => values.map(shortNumber) }],
    cursor: { drag: { x: true, y: false } },
  }, data, box);
}

/** Rows that pass and that no other one beats in both. */
function frontOf(table, mask, xKey, yKey, goals) {
  const xs = table.column(xKey), ys = table.column(yKey), rows = [];
  if (!xs || !ys) return [];
  for (let row = 0; row < table.rows; row++) if (mask[row]) rows.push(row);
  return paretoOf(xs.values, ys.values, rows, goals.x, goals.y);
}

/** Where each trial's dot is; found once for a state of the table, as a brush changes only what passes. */
function placesOf(table, xs, ys, sx, sy, spread, before, version, width) {
  if (before && before.table === table && before.xs === xs && before.ys === ys && before.version === version && before.width === width) return before;
  const x = new Float32Array(table.rows), y = new Float32Array(table.rows);
  for (let row = 0; row < table.rows; row++) {
    x[row] = sx.at(xs.at(row) + spread(xs, row));
    y[row] = sy.at(ys.at(row) + spread(ys, row));
  }
  return { table, xs, ys, version, width, x, y };
}

/** Any column against any other; drag a rectangle to filter by both. */
export function ScatterPlot({ table, mask, xKey, yKey, setRanges, version, pareto, goals, openTrial }) {
  const canvas = useRef(null), held = useRef(/** @type {any} */ ({})), height = 300, LEFT = 58, RIGHT = 12, TOP = 10, BOTTOM = 38;
  const front = useMemo(() => (pareto ? frontOf(table, mask, xKey, yKey, goals) : []), [table, version, mask, xKey, yKey, pareto, goals.x, goals.y]);
  const draw = () => {
    if (!canvas.current) return;
    const { context, width } = prepared(canvas.current, height), colours = themeColours(), xs = table.column(xKey), ys = table.column(yKey);
    if (!xs || !ys) return;
    const scale = (column, from, until) => {
      let [low, high] = rangeOf(column, table.rows);
      const isLog = isLogarithmic(column, table.rows), to = isLog ? Math.log10 : (value) => value, back = isLog ? (value) => 10 ** value : (value) => value;
      if (column.kind === "word") { low -= 0.5; high += 0.5; }
      const a = to(low), b = to(high), pad = (b - a) * 0.03;
      return { at: (value) => from + ((to(value) - a + pad) / (b - a + 2 * pad || 1)) * (until - from), value: (pixel) => back(((pixel - from) / (until - from)) * (b - a + 2 * pad) + a - pad), low, high, isLog };
    };
    const sx = scale(xs, LEFT, width - RIGHT), sy = scale(ys, height - BOTTOM, TOP);
    held.current = { ...held.current, sx, sy };
    context.strokeStyle = colours.line; context.fillStyle = colours.quiet; context.lineWidth = 0.5;
    const ticks = (column, s) => column.kind === "word" ? column.words.map((_, code) => code).slice(0, 12) : s.isLog
      ? ticksBetween(Math.ceil(Math.log10(s.low)), Math.floor(Math.log10(s.high)), 6).filter(Number.isInteger).map((power) => 10 ** power) : ticksBetween(s.low, s.high, 5);
    const label = (column, value) => (column.kind === "word" ? column.words[value] : shortNumber(value));
    context.textAlign = "center";
    for (const value of ticks(xs, sx)) {
      const x = sx.at(value);
      context.beginPath(); context.moveTo(x, TOP); context.lineTo(x, height - BOTTOM); context.stroke();
      context.fillText(fitted(context, label(xs, value), 70), x, height - BOTTOM + 14);
    }
    context.textAlign = "right";
    for (const value of ticks(ys, sy)) {
      const y = sy.at(value);
      context.beginPath(); context.moveTo(LEFT, y); context.lineTo(width - RIGHT, y); context.stroke();
      context.fillText(fitted(context, label(ys, value), LEFT - 8), LEFT - 6, y + 4);
    }
    context.textAlign = "center"; context.fillStyle = colours.text;
    context.fillText(fitted(context, xs.name, width - 100), (LEFT + width) / 2, height - 6);
    const status = table.trial("status"), size = table.rows > 3000 ? 2 : table.rows > 500 ? 3 : table.rows > 60 ? 5 : 7;
    const spread = (column, row) => (column.kind === "word" ? (((row * 2654435761) % 1000) / 1000 - 0.5) * 0.5 : 0);
    const places = held.current.places = placesOf(table, xs, ys, sx, sy, spread, held.current.places, version, width);
    const layer = new PixelLayer(width, height), faint = pixelColour(colours.faint, 0.5);
    const dots = status.words.map((word) => pixelColour(STATUS_COLOURS[word] || colours.text, table.rows > 2000 ? 0.75 : 0.9));
    for (const passes of [0, 1]) // first those that do not pass
      for (let row = 0; row < table.rows; row++) {
        const x = places.x[row], y = places.y[row];
        if (mask[row] === passes && x === x && y === y) layer.rect(x - size / 2, y - size / 2, size, size, passes ? dots[status.values[row]] ?? faint : faint);
      }
    layer.draw(context);
    if (pareto) {
      context.strokeStyle = colours.text; context.lineWidth = 1.5;
      context.beginPath();
      front.forEach((row, at) => { const p = [sx.at(xs.at(row)), sy.at(ys.at(row))]; if (at) context.lineTo(p[0], p[1]); else context.moveTo(p[0], p[1]); });
      context.stroke();
      for (const row of front) { context.beginPath(); context.arc(sx.at(xs.at(row)), sy.at(ys.at(row)), 4, 0, 7); context.stroke(); }
    }
    const bound = (column) => (column.group === "metric" ? (table.summary.constraints || {})[column.name] : undefined);
    context.strokeStyle = colours.text; context.lineWidth = 1; context.setLineDash([5, 4]);
    if (bound(xs) !== undefined) { const x = sx.at(bound(xs)); if (x >= LEFT && x <= width - RIGHT) { context.beginPath(); context.moveTo(x, TOP); context.lineTo(x, height - BOTTOM); context.stroke(); } }
    if (bound(ys) !== undefined) { const y = sy.at(bound(ys)); if (y >= TOP && y <= height - BOTTOM) { context.beginPath(); context.moveTo(LEFT, y); context.lineTo(width - RIGHT, y); context.stroke(); } }
    context.setLineDash([]);
    const drag = held.current.drag;
    if (drag && drag.to) {
      context.strokeStyle = colours.accent; context.lineWidth = 1;
      context.strokeRect(Math.min(drag.from[0], drag.to[0]), Math.min(drag.from[1], drag.to[1]), Math.abs(drag.to[0] - drag.from[0]), Math.abs(drag.to[1] - drag.from[1]));
    }
  };
  useEffect(draw, [version, mask, xKey, yKey, pareto, goals.x, goals.y]);
  useEffect(() => { window.addEventListener("resize", draw); return () => window.removeEventListener("resize", draw); });
  const place = (event) => { const b = canvas.current.getBoundingClientRect(); return [event.clientX - b.left, event.clientY - b.top]; };
  const down = (event) => { held.current.drag = { from: place(event), to: null }; canvas.current.setPointerCapture(event.pointerId); };
  const move = (event) => { const drag = held.current.drag; if (drag) { drag.to = place(event); draw(); } };
  const up = () => {
    const { drag, sx, sy } = held.current;
    held.current.drag = null;
    if (!drag || !sx) return;
    if (!drag.to || Math.hypot(drag.to[0] - drag.from[0], drag.to[1] - drag.from[1]) < 4) { pick(drag.from); return; }
    const sorted = (a, b) => (a < b ? [a, b] : [b, a]);
    setRanges({ [xKey]: sorted(sx.value(drag.from[0]), sx.value(drag.to[0])), [yKey]: sorted(sy.value(drag.from[1]), sy.value(drag.to[1])) });
  };
  const pick = ([px, py]) => {
    const { sx, sy } = held.current, xs = table.column(xKey), ys = table.column(yKey);
    let best = -1, nearest = 81;
    for (let row = 0; row < table.rows; row++) {
      if (!mask[row]) continue;
      const far = (sx.at(xs.at(row)) - px) ** 2 + (sy.at(ys.at(row)) - py) ** 2;
      if (far < nearest) { nearest = far; best = row; }
    }
    if (best >= 0) openTrial(best); else setRanges({ [xKey]: null, [yKey]: null });
  };
  return html`<div class="canvas-box"><canvas ref=${canvas} role="img" data-test="scatter" aria-label=${`${yKey} against ${xKey}, ${countOf(mask)} trials${pareto ? `, ${front.length} of them on the Pareto front` : ""}.`}
    onPointerDown=${down} onPointerMove=${move} onPointerUp=${up}></canvas></div>`;
}

export function ImportanceBars({ table, mask, metricKey, mode }) {
  const [found, setFound] = useState([]);
  useEffect(() => { const timer = setTimeout(() => setFound(importanceOf(table, metricKey, mask, mode).slice(0, 14)), 200); return () => clearTimeout(timer); }, [table, metricKey, mask, mode]);
  if (!found.length) return html`<p class="note">It takes eight trials with a value of ${metricKey.slice(7) || "the metric"}, and parameters that differ.</p>`;
  return html`<ol class="bars" data-test="importance">${found.map((each) => html`<li key=${each.key}>
    <span class="bar-name" title=${each.name}>${each.name}</span>
    <meter min="0" max="1" value=${each.share} aria-label=${`${each.name}: ${(each.share * 100).toFixed(0)} %`}></meter>
    <span class="bar-value">${(each.share * 100).toFixed(0)} %</span></li>`)}</ol>`;
}
