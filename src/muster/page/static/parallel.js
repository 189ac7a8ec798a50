// Parallel coordinates on a canvas: one axis per parameter, the metric last; drag along an axis to filter by it.
import { html, useEffect, useLayoutEffect, useRef } from "./vendor/preact-htm.js";
import { axisTicks, fitted, prepared, scaleColour, shortNumber, showTip, themeColours, trialLines } from "./format.js";
import { isLogarithmic, rangeOf } from "./selection.js";

const AXES = 9, TOP = 34, BOTTOM = 22, SIDE = 46, COLOURS = 12, MOST_LINES = 4000, WHILE_DRAGGING = 1500;

/** The columns that are chosen for the table, by default parameters and the other goals; the metric is last. */
function axesOf(table, metricKey, chosen) {
  const metric = table.column(metricKey), goals = table.summary.goals.map((name) => table.column(`metric/${name}`));
  const wanted = chosen ? chosen.split("|").map((key) => table.column(key)).filter((each) => each && each.group !== "trial") : [...table.params.filter((each) => spread(each, table.rows)).slice(0, AXES - 1), ...goals];
  const axes = [...new Set(wanted)].filter((each) => each && each !== metric && spread(each, table.rows)).slice(0, 2 * AXES);
  return metric ? [...axes, metric] : axes;
}
function spread(column, rows) {
  for (let row = 1; row < rows; row++) if (column.values[row] !== column.values[0]) return true;
  return rows < 2;
}

/** How a value becomes a height, and back. */
function scaleFor(column, rows, height) {
  let [low, high] = rangeOf(column, rows);
  const isLog = isLogarithmic(column, rows), to = isLog ? Math.log10 : (value) => value, from = isLog ? (value) => 10 ** value : (value) => value;
  if (column.kind === "word") { low -= 0.5; high += 0.5; }
  const a = to(low), b = to(high), span = height - TOP - BOTTOM;
  return { y: (value) => TOP + span * (1 - (to(value) - a) / (b - a || 1)), value: (y) => from(a + (b - a) * (1 - (y - TOP) / span)), low, high, isLog };
}

export function ParallelPlot({ table, mask, metricKey, mode, ranges, setRange, chosen, version, hovered, best, openTrial }) {
  const canvas = useRef(null), held = useRef(/** @type {any} */ ({}));
  const height = 300;
  const draw = (isDragging) => {
    if (!canvas.current) return;
    const { context, width } = prepared(canvas.current, height), colours = themeColours();
    const axes = axesOf(table, metricKey, chosen);
    if (axes.length < 2) {
      context.fillStyle = colours.quiet;
      context.fillText("Parallel coordinates need two parameters that differ between trials.", 12, 30);
      held.current = { axes: [] };
      return;
    }
    const scales = axes.map((column) => scaleFor(column, table.rows, height));
    const gap = (width - 2 * SIDE) / (axes.length - 1), xs = axes.map((_, at) => SIDE + gap * at);
    held.current = { ...held.current, axes, scales, xs }; // a drag continues while it draws
    const jitter = axes.map((column) => (column.kind === "word" ? 0.5 : 0));
    const lines = (rows, style, lineWidth) => {
      context.strokeStyle = style; context.lineWidth = lineWidth;
      context.beginPath();
      for (const row of rows) {
        let isDown = false;
        for (let at = 0; at < axes.length; at++) {
          const value = axes[at].at(row);
          if (!Number.isFinite(value)) { isDown = false; continue; }
          const shift = jitter[at] ? (((row * 2654435761) % 1000) / 1000 - 0.5) * jitter[at] : 0;
          const y = scales[at].y(value + shift);
          if (isDown) context.lineTo(xs[at], y); else { context.moveTo(xs[at], y); isDown = true; }
        }
      }
      context.stroke();
    };
    const metric = table.column(metricKey), shown = [];
    for (let row = 0; row < table.rows; row++) if (mask[row]) shown.push(row);
    const most = isDragging ? WHILE_DRAGGING : MOST_LINES, step = Math.max(1, shown.length / most);
    const sample = step === 1 ? shown : Array.from({ length: Math.floor(shown.length / step) }, (_, at) => shown[Math.floor(at * step)]);
    if (shown.length < table.rows) {
      const back = [], every = Math.max(1, Math.ceil(table.rows / 400));
      for (let row = 0; row < table.rows; row += every) back.push(row);
      lines(back, colours.faint, 1);
    }
    const groups = Array.from({ length: COLOURS }, () => []);
    const [low, high] = metric ? rangeOf(metric, table.rows) : [0, 1], isLog = metric && isLogarithmic(metric, table.rows);
    const to = isLog ? Math.log : (value) => value;
    for (const row of sample) {
      let share = metric ? (to(metric.at(row)) - to(low)) / (to(high) - to(low)) : 0.5;
      if (mode === "min") share = 1 - share;
      groups[Number.isFinite(share) ? Math.min(COLOURS - 1, Math.floor(share * COLOURS)) : 0].push(row);
    }
    const alpha = Math.max(0.06, Math.min(0.8, 120 / Math.max(1, sample.length)) );
    groups.forEach((rows, at) => lines(rows, scaleColour(at / (COLOURS - 1), at > COLOURS - 3 ? Math.min(1, alpha * 3) : alpha), 1));
    held.current.sample = sample;
    if (best >= 0 && mask[best]) lines([best], colours.text, 2.5);
    const lit = held.current.near >= 0 ? held.current.near : hovered;
    if (lit >= 0 && lit < table.rows) lines([lit], colours.accent, 3);
    drawAxes(context, axes, scales, xs, gap, ranges, colours, height);
  };
  const drawnBy = [version, mask, metricKey, ranges, hovered, chosen];
  useLayoutEffect(() => { if (held.current.axes) draw(Boolean(held.current.drag)); }, drawnBy); // at once: an effect would be a frame late
  useEffect(() => { if (!held.current.axes) draw(false); }, drawnBy); // the first time: header and table are painted before
  useEffect(() => {
    const again = () => draw(false);
    window.addEventListener("resize", again);
    return () => window.removeEventListener("resize", again);
  });
  const place = (event) => {
    const box = canvas.current.getBoundingClientRect();
    return [event.clientX - box.left, Math.max(TOP, Math.min(height - BOTTOM, event.clientY - box.top))];
  };
  const nearest = (x) => {
    const { xs = [] } = held.current;
    let best = -1;
    xs.forEach((each, at) => { if (Math.abs(each - x) < 24 && (best < 0 || Math.abs(each - x) < Math.abs(xs[best] - x))) best = at; });
    return best;
  };
  const leave = (event) => { showTip(event, null); if (held.current.near >= 0) { held.current.near = -1; draw(false); } };
  const down = (event) => {
    const [x, y] = place(event), axis = nearest(x);
    if (axis < 0) { const near = lineAt([x, y]); if (near >= 0) openTrial(near); return; }
    held.current.drag = { axis, from: y, moved: false };
    canvas.current.setPointerCapture(event.pointerId);
    event.preventDefault();
  };
  /** The trial whose line is at a place; -1 when none is near. */
  const lineAt = (/** @type {number[]} */ [px, py]) => {
    const { axes = [], scales, xs = [], sample = [] } = held.current, at = xs.findIndex((x, place) => place < xs.length - 1 && px >= x && px <= xs[place + 1]);
    let found = -1, least = 7;
    if (at < 0) return found;
    const part = (px - xs[at]) / (xs[at + 1] - xs[at]), shift = (column, row) => (column.kind === "word" ? (((row * 2654435761) % 1000) / 1000 - 0.5) * 0.5 : 0);
    for (const row of sample.length > 4000 ? [] : sample) {
      const a = scales[at].y(axes[at].at(row) + shift(axes[at], row)), b = scales[at + 1].y(axes[at + 1].at(row) + shift(axes[at + 1], row)), far = Math.abs(a + (b - a) * part - py);
      if (far < least) { least = far; found = row; }
    }
    return found;
  };
  const move = (event) => {
    const drag = held.current.drag;
    if (!drag) {
      const isAxis = nearest(place(event)[0]) >= 0, near = isAxis ? -1 : lineAt(place(event));
      canvas.current.style.cursor = isAxis ? "ns-resize" : near >= 0 ? "pointer" : "default";
      showTip(event, near < 0 ? null : trialLines(table, near, [metricKey], near === best));
      if (near !== (held.current.near ?? -1)) { held.current.near = near; draw(false); }
      return;
    }
    showTip(event, null);
    const y = place(event)[1], { axes, scales } = held.current, scale = scales[drag.axis];
    if (Math.abs(y - drag.from) < 3 && !drag.moved) return;
    drag.moved = true;
    setRange(axes[drag.axis].key, [scale.value(Math.max(y, drag.from)), scale.value(Math.min(y, drag.from))]);
  };
  const up = () => {
    const drag = held.current.drag;
    held.current.drag = null;
    if (drag && !drag.moved) setRange(held.current.axes[drag.axis].key, null);
    else if (drag) draw(false);
  };
  return html`<div class="canvas-box"><canvas ref=${canvas} role="img" data-test="parallel"
    aria-label=${`Parallel coordinates of ${table.params.length} parameters and ${metricKey.slice(7)}; the filters above the table do the same by keyboard.`}
    onPointerDown=${down} onPointerMove=${move} onPointerUp=${up} onPointerCancel=${up} onPointerLeave=${leave}></canvas></div>`;
}

function drawAxes(context, axes, scales, xs, gap, ranges, colours, height) {
  context.lineWidth = 1;
  axes.forEach((column, at) => {
    const x = xs[at], scale = scales[at];
    context.strokeStyle = colours.line;
    context.beginPath(); context.moveTo(x, TOP); context.lineTo(x, height - BOTTOM); context.stroke();
    context.fillStyle = colours.text;
    context.textAlign = at === 0 ? "left" : at === axes.length - 1 ? "right" : "center";
    const edge = at === 0 ? 6 : at === axes.length - 1 ? xs[at] + SIDE - 6 : x;
    context.fillText(fitted(context, scale.isLog ? `${column.name} (log)` : column.name, gap - 10), edge, 16);
    context.fillStyle = colours.quiet;
    context.textAlign = at === axes.length - 1 ? "right" : "left";
    const label = (text, y) => {
      const side = at === axes.length - 1 ? x - 5 : x + 5, cutText = fitted(context, text, Math.min(90, gap - 8)), wide = context.measureText(cutText).width;
      context.fillStyle = colours.panel; context.globalAlpha = 0.75;
      context.fillRect(at === axes.length - 1 ? side - wide - 2 : side - 2, y - 10, wide + 4, 13);
      context.globalAlpha = 1; context.fillStyle = colours.quiet;
      context.fillText(cutText, side, y);
    };
    if (column.kind === "word") column.words.slice(0, 12).forEach((word, code) => label(word, scale.y(code) + 4));
    else {
      const ticks = axisTicks(column, scale.low, scale.high, scale.isLog, 5);
      for (const value of ticks.length > 1 ? ticks : [scale.low, scale.high]) label(shortNumber(value), Math.max(TOP + 9, Math.min(height - BOTTOM - 2, scale.y(value) + 4)));
    }
    const range = ranges[column.key];
    if (range) {
      const top = Math.max(TOP, scale.y(range[1])), bottom = Math.min(height - BOTTOM, scale.y(range[0]));
      context.fillStyle = colours.accent; context.globalAlpha = 0.28;
      context.fillRect(x - 7, top, 14, Math.max(2, bottom - top));
      context.globalAlpha = 1; context.strokeStyle = colours.accent;
      context.strokeRect(x - 7, top, 14, Math.max(2, bottom - top));
    }
  });
  context.textAlign = "left";
}
