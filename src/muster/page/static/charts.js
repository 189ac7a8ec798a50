// Learning curves (uPlot), the scatter plot with its Pareto front, and the bars of importance.
import { html, useEffect, useMemo, useRef, useState } from "./vendor/preact-htm.js";
import { PALETTE, PixelLayer, STATUS_COLOURS, STATUS_WORDS, axisTicks, clockTime, fitted, isWhole, pixelColour, prepared, scaleColour, shortNumber, showTip, themeColours, trialLines } from "./format.js";
import { countOf, importanceOf, isLogarithmic, packedMask, paretoOf, rangeOf } from "./selection.js";

const LINES = 200, LEVELS = 12, CELL = 6, REACH = 110, SURFACE_TRIALS = 1500;

/** A line for each trial that passes, or bands when they are many; the best, the open and the compared ones stand out. */
export function CurvePlot({ source, experiment, table, metric, mode, mask, marked, compared, isLog, openTrial, curveChange, filterKey, isFiltered }) {
  const box = useRef(null), [found, setFound] = useState(null), [problem, setProblem] = useState("");
  const busy = useRef({ running: false, again: false });
  const rows = [];
  for (let row = 0; row < mask.length && rows.length <= LINES; row++) if (mask[row]) rows.push(row);
  const isFew = rows.length <= LINES, others = (compared ? compared.split(",") : []).map((id) => table.ids.indexOf(id));
  const named = [...new Set([...marked, ...others])].filter((row) => row >= 0), lines = [...new Set([...(isFew ? rows : []), ...named])].slice(0, LINES + 20);
  const load = async () => {
    if (busy.current.running) { busy.current.again = true; return; }
    busy.current.running = true;
    try {
      const keep = isFiltered && table.rows <= 60000 ? packedMask(mask) : "";
      const [band, raw] = await Promise.all([
        source.curves(experiment, metric, keep), lines.length ? source.curvesOf(experiment, metric, lines) : {},
      ]);
      setFound({ band, raw, lines, named, others, isFew, mode, metric, isLog, best: marked[1], open: marked[0] }); setProblem("");
    } catch (error) { setProblem(error.message); }
    busy.current.running = false;
    if (busy.current.again) { busy.current.again = false; load(); }
  };
  useEffect(() => { const timer = setTimeout(load, isFiltered ? 250 : 20); return () => clearTimeout(timer); }, [experiment, metric, filterKey, curveChange, table, isLog, lines.join(","), named.join(",")]);
  useEffect(() => {
    if (!found || !box.current || (!found.band.x.length && !Object.keys(found.raw).length)) return undefined;
    return curvePlot(box.current, found, table, openTrial);
  }, [found]);
  const behind = found && found.band.behind;
  return html`<div class="plot" data-test="curves">
    <div ref=${box} role="img" aria-label=${`Learning curves of ${metric} over iterations: ${isFew ? `${lines.length} trials` : "the median, the middle 80 % and the range of all trials"}.`}></div>
    ${found && found.band.x.length ? html`<${CurveLegend} found=${found} table=${table} openTrial=${openTrial} />` : null}
    ${problem ? html`<p class="note bad">${problem}</p>` : null}
    ${found && !found.band.points && !behind ? html`<p class="note">${rows.length ? `No results were logged yet${source.isLive ? "" : " in this report"}. Curves come from result.json in the trials' directories.` : "No trial passes the filters."}</p>` : null}
    ${!found && !problem ? html`<p class="note">Loading …</p>` : null}
    ${found && found.band.left_out ? html`<p class="note">There are too many results to keep: ${found.band.left_out.toLocaleString("en")} of ${table.rows.toLocaleString("en")} trials are not part of the bands.</p>` : null}
    ${behind ? html`<p class="note" role="status">Reading results: ${behind.toLocaleString("en")} of ${table.rows.toLocaleString("en")} trials to go; what is shown stands for all of them.</p>` : null}
  </div>`;
}

/** Which trials are drawn how; with bands, how many trials are part of them at the end. */
function CurveLegend({ found, table, openTrial }) {
  const colours = themeColours(), { band, named, isFew, best, open } = found, last = band.counts ? band.counts[band.counts.length - 1] : 0, first = band.counts ? Math.max(...band.counts) : 0;
  return html`<ul class="legend" data-test="curve-legend">
    ${named.map((row) => html`<li key=${row}><span class="swatch" style=${{ background: namedColour(found, row, colours) }}></span><button class="link" onClick=${() => openTrial(row)}>${row === best ? "★ best " : row === open ? "open " : ""}${table.ids[row]}</button></li>`)}
    ${isFew ? html`<li><span class="swatch" style=${{ background: scaleColour(0.15) }}></span><span class="swatch" style=${{ background: scaleColour(0.6) }}></span><span class="swatch" style=${{ background: scaleColour(1) }}></span>one line per trial; a stronger color ends ${found.mode === "min" ? "lower" : "higher"}</li>`
    : html`<li><span class="swatch" style=${{ background: colours.accent }}></span>median</li><li><span class="swatch" style=${{ background: "rgba(31,132,196,0.45)" }}></span>10 to 90 %</li><li><span class="swatch" style=${{ background: "rgba(31,132,196,0.2)" }}></span>range of the trials that got so far: ${first.toLocaleString("en")}${last < first ? `, ${last.toLocaleString("en")} of them at the end` : ""}</li>`}</ul>`;
}

/** Compared trials have the colours that they have in the table beside. */
function namedColour(found, row, colours) {
  const at = found.others.indexOf(row);
  return at >= 0 ? PALETTE[at % PALETTE.length] : row === found.best ? colours.text : colours.accent;
}

/** Draws curves; returns what removes them. */
function curvePlot(box, found, table, openTrial, height = 300) {
  const colours = themeColours(), { raw, lines, isFew, named } = found, band = isFew ? { x: [], bands: [] } : found.band;
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
    bands.push({ series: [ends[1], ends[0]], fill: "rgba(31,132,196,0.14)" }, { series: [most[1], most[0]], fill: "rgba(31,132,196,0.26)" });
  }
  const finals = lines.map((row) => (raw[row] && raw[row][1].length ? raw[row][1][raw[row][1].length - 1] : NaN)), order = finals.filter(Number.isFinite).sort((a, b) => (found.mode === "min" ? b - a : a - b));
  const drawn = [...lines.keys()].sort((a, b) => Number(named.includes(lines[a])) - Number(named.includes(lines[b]))); // named ones on top
  for (const at of drawn) {
    const row = lines[at], line = raw[row], place = named.indexOf(row);
    if (!line || !line[0].length) continue;
    const share = order.length > 1 ? order.indexOf(finals[at]) / (order.length - 1) : 1, stroke = place >= 0 ? namedColour(found, row, colours) : scaleColour(share < 0 ? 0 : share, lines.length > 60 ? 0.55 : 0.8);
    add(spreadOut(line[0], line[1]), { label: table.ids[row] || String(row), stroke, width: place >= 0 ? 2.5 : 1.2, points: { show: line[0].length < 3 } });
  }
  const isLog = found.isLog && data.slice(1).every((values) => values.every((value) => value === undefined || value === null || value > 0));
  const axis = { stroke: colours.quiet, grid: { stroke: colours.line, width: 0.5 }, ticks: { stroke: colours.line }, font: "12px system-ui, DejaVu Sans" };
  const plot = new window.uPlot({
    width: box.clientWidth, height, series, bands, legend: { show: false }, scales: { x: { time: false }, ...(isLog ? { y: { distr: 3, range: (_, low, high) => [low / 1.1, high * 1.1] } } : {}) },
    axes: [{ ...axis, label: "iteration", labelSize: 18, labelFont: "12px system-ui", size: 34, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 1e6] }, { ...axis, size: 56, values: (_, values) => values.map(shortNumber), ...(isLog ? { label: "log", labelSize: 14, labelFont: "12px system-ui" } : {}) }],
    cursor: { drag: { x: true, y: false }, points: { show: false } },
  }, data, box);
  const near = (event) => curveNear(plot, event, lines, raw);
  plot.over.addEventListener("mousemove", (event) => {
    const at = near(event);
    if (at >= 0) { const [xs, ys] = raw[lines[at]], place = placeOf(xs, plot.posToVal(event.offsetX, "x")); showTip(event, [`${table.ids[lines[at]]}${lines[at] === found.best ? " · best" : ""}`, `iteration ${xs[place]}: ${shortNumber(ys[place])}`, ...trialLines(table, lines[at], [], false).slice(1)]); return; }
    if (!band.x.length) { showTip(event, null); return; }
    const place = placeOf(band.x, plot.posToVal(event.offsetX, "x")), words = ["lowest", "10 %", "median", "90 %", "highest"];
    showTip(event, [`iteration ${shortNumber(band.x[place])}: ${band.counts ? band.counts[place].toLocaleString("en") : "?"} trials got so far`, ...words.map((word, each) => `${word}: ${shortNumber(band.bands[each][place])}`)]);
  });
  plot.over.addEventListener("mouseleave", (event) => showTip(event, null));
  plot.over.addEventListener("click", (event) => { const at = near(event); if (at >= 0) openTrial(lines[at]); });
  const again = () => plot.setSize({ width: box.clientWidth, height });
  window.addEventListener("resize", again);
  return () => { window.removeEventListener("resize", again); showTip({ currentTarget: plot.over }, null); plot.destroy(); };
}

/** The curve of one trial, for its drawer. */
export function TrialCurve({ source, experiment, table, row, metric, reports }) {
  const box = useRef(null), [raw, setRaw] = useState(null);
  useEffect(() => { let isOver = false; source.curvesOf(experiment, metric, [row]).then((found) => { if (!isOver) setRaw(found); }, () => {}); return () => { isOver = true; }; }, [experiment, row, metric, reports, table.curveChange]);
  useEffect(() => {
    if (!raw || !raw[row] || !raw[row][0].length || !box.current) return undefined;
    return curvePlot(box.current, { raw, lines: [row], named: [row], others: [], isFew: true, open: row, best: -1, mode: "min" }, table, () => {}, 170);
  }, [raw]);
  return html`<div ref=${box} class="own-curve" role="img" aria-label=${`${metric} of this trial by iteration.`}></div>${raw && !(raw[row] && raw[row][0].length) ? html`<p class="note">No results of it are in this ${source.isLive ? "experiment" : "report"}.</p>` : null}`;
}

/** The place of the value in a sorted list that is nearest to another one. */
export function placeOf(xs, x) {
  let best = 0;
  xs.forEach((value, at) => { if (Math.abs(value - x) < Math.abs(xs[best] - x)) best = at; });
  return best;
}

/** The line within a few pixels of the pointer; -1 when there is none. */
function curveNear(plot, event, lines, raw) {
  let best = -1, least = 8;
  lines.forEach((row, at) => {
    if (!raw[row] || !raw[row][0].length) return;
    const [xs, ys] = raw[row], x = plot.posToVal(event.offsetX, "x"), place = placeOf(xs, x), other = x > xs[place] ? Math.min(xs.length - 1, place + 1) : Math.max(0, place - 1);
    const part = other === place ? 0 : (x - xs[place]) / (xs[other] - xs[place]), y = ys[place] + ((ys[other] ?? ys[place]) - ys[place]) * part;
    const far = Math.hypot(plot.valToPos(y, "y") - event.offsetY, other === place ? plot.valToPos(xs[place], "x") - event.offsetX : 0);
    if (far < least) { least = far; best = at; }
  });
  return best;
}

/** How the dots of a column are coloured: by state, by a word, or along a scale. Levels, the level of a row, and what they mean. */
function colouring(table, key, among = undefined) {
  const column = table.column(key), status = table.trial("status");
  if (!column) return { levels: status.words.map((word) => STATUS_COLOURS[word] || "#888888"), of: (row) => status.values[row], legend: [] };
  if (column.kind === "word") return { levels: column.words.map((_, at) => PALETTE[at % PALETTE.length]), of: (row) => column.values[row], legend: column.words.slice(0, 12).map((word, at) => [PALETTE[at % PALETTE.length], word]) };
  const [low, high] = rangeOf(column, table.rows, among), isLog = isLogarithmic(column, table.rows), to = isLog ? Math.log : (value) => value;
  const goal = column.group === "metric" ? table.summary.goals.indexOf(column.name) : -1, worst = goal >= 0 && table.summary.modes[goal] === "min" ? 1 : 0; // a stronger color is better
  const levels = Array.from({ length: LEVELS }, (_, at) => rgbOf(scaleColour(Math.abs(at / (LEVELS - 1) - worst)))), of = (row) => Math.floor(Math.min(0.999, Math.max(0, (to(column.at(row)) - to(low)) / (to(high) - to(low) || 1))) * LEVELS);
  const [least, most] = [low, high].map((end) => shortNumber(isWhole(column) ? Math.round(end) : end));
  const valueOf = (level) => { const value = to(low) + ((level + 0.5) / LEVELS) * (to(high) - to(low)); return isLog ? Math.exp(value) : value; };
  return { levels, of, valueOf, legend: [[levels[0], `${column.name}${isLog ? " (log)" : ""} ${least}`], [levels[LEVELS >> 1], ""], [levels[LEVELS - 1], most]] };
}
function rgbOf(text) { return `#${text.match(/[\d.]+/g).slice(0, 3).map((each) => Number(each).toString(16).padStart(2, "0")).join("")}`; }

/** Rows that pass, violate no constraint, and that no other one beats in both. */
function frontOf(table, mask, xKey, yKey, goals) {
  const xs = table.column(xKey), ys = table.column(yKey), rows = [];
  if (!xs || !ys) return [];
  for (let row = 0; row < table.rows; row++) if (mask[row] && table.isAllowed(row)) rows.push(row);
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

/** Levels on a grid of cells from the trials around each, of which near ones count more; none where no trial is near. */
function surfaceOf(table, mask, places, shade, colour, [left, top, right, bottom], before) {
  if (before && before.places === places && before.mask === mask && before.colour === colour) return before;
  const rows = [], across = Math.ceil((right - left) / CELL);
  for (let row = 0; row < table.rows; row++) if (mask[row] && shade.of(row) >= 0 && Number.isFinite(places.x[row]) && Number.isFinite(places.y[row])) rows.push(row);
  const step = Math.max(1, rows.length / SURFACE_TRIALS), sample = Array.from({ length: Math.floor(rows.length / step) }, (_, at) => rows[Math.floor(at * step)]);
  const px = sample.map((row) => places.x[row]), py = sample.map((row) => places.y[row]), found = sample.map((row) => shade.of(row));
  const levels = Float32Array.from({ length: across * Math.ceil((bottom - top) / CELL) }, (_, cell) => {
    const x = left + (cell % across) * CELL + CELL / 2, y = top + Math.floor(cell / across) * CELL + CELL / 2;
    let sum = 0, weight = 0, nearest = Infinity;
    for (let at = 0; at < px.length; at++) {
      const far = (px[at] - x) ** 2 + (py[at] - y) ** 2, part = 1 / (far + 40) ** 2;
      sum += part * found[at]; weight += part;
      if (far < nearest) nearest = far;
    }
    return nearest < REACH ** 2 ? sum / weight : NaN;
  });
  const at = (x, y) => (x < left || x >= right || y < top || y >= bottom ? NaN : levels[Math.floor((y - top) / CELL) * across + Math.floor((x - left) / CELL)]);
  return { places, mask, colour, levels, across, at, count: sample.length };
}

/** Any column against any other; drag a rectangle to filter by both. */
export function ScatterPlot({ table, mask, xKey, yKey, setRanges, version, pareto, goals, openTrial, best, colour, surface = false, name, tall = 300, steps = false, isLog = false }) {
  const canvas = useRef(null), held = useRef(/** @type {any} */ ({})), height = tall, LEFT = 58, RIGHT = 12, TOP = 24, BOTTOM = 38;
  const front = useMemo(() => (pareto ? frontOf(table, mask, xKey, yKey, goals) : []), [table, version, mask, xKey, yKey, pareto, goals.x, goals.y]);
  const done = useMemo(() => { const { values, words } = table.trial("status"), code = words.indexOf("TERMINATED"); return surface ? mask.map((passes, row) => (values[row] === code ? passes : 0)) : undefined; }, [table, version, mask, surface]); // values of different rungs do not compare
  const draw = () => {
    if (!canvas.current) return;
    const { context, width } = prepared(canvas.current, height), colours = themeColours(), xs = table.column(xKey), ys = table.column(yKey);
    if (!xs || !ys) return;
    const scale = (column, from, until) => {
      let [low, high] = rangeOf(column, table.rows);
      const isSpread = isLogarithmic(column, table.rows) || (isLog && column === ys && low > 0), to = isSpread ? Math.log10 : (value) => value, back = isSpread ? (value) => 10 ** value : (value) => value;
      if (column.kind === "word") { low -= 0.5; high += 0.5; }
      const a = to(low), b = to(high), pad = (b - a) * 0.03;
      return { at: (value) => from + ((to(value) - a + pad) / (b - a + 2 * pad || 1)) * (until - from), value: (pixel) => back(((pixel - from) / (until - from)) * (b - a + 2 * pad) + a - pad), low, high, isLog: isSpread };
    };
    const sx = scale(xs, LEFT, width - RIGHT), sy = scale(ys, height - BOTTOM, TOP);
    held.current = { ...held.current, sx, sy };
    context.strokeStyle = colours.line; context.fillStyle = colours.quiet; context.lineWidth = 0.5;
    const ticks = (column, s) => axisTicks(column, s.low, s.high, s.isLog, 5), isTime = ["trial/created", "trial/started", "trial/reported", "trial/ended"].includes(xKey);
    const label = (column, value) => (column.kind === "word" ? column.words[value] : column === xs && isTime ? clockTime(value + table.zeroTime).slice(0, sx.high - sx.low < 300 ? 8 : 5) : shortNumber(value));
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
    context.fillText(fitted(context, isTime ? "time" : sx.isLog ? `${xs.name} (log)` : xs.name, width - 100), (LEFT + width) / 2, height - 6);
    context.textAlign = "left";
    context.fillText(fitted(context, sy.isLog ? `${ys.name} (log)` : ys.name, width - 20), 8, 14);
    const size = table.rows > 3000 ? 2 : table.rows > 500 ? 3 : table.rows > 60 ? 5 : 7;
    const spread = (column, row) => (column.kind === "word" ? (((row * 2654435761) % 1000) / 1000 - 0.5) * 0.5 : 0);
    const places = held.current.places = placesOf(table, xs, ys, sx, sy, spread, held.current.places, `${version}${sy.isLog}`, width);
    const layer = new PixelLayer(width, height), faint = pixelColour(colours.faint, 0.5);
    const shade = colouring(table, colour, done), dots = shade.levels.map((each) => pixelColour(each, table.rows > 2000 ? 0.75 : 0.9)), ink = pixelColour(colours.text, 0.9);
    const field = held.current.field = surface && shade.valueOf ? surfaceOf(table, done, places, shade, colour, [LEFT, TOP, width - RIGHT, height - BOTTOM], held.current.field) : null;
    if (field) field.levels.forEach((level, cell) => {
      const x = LEFT + (cell % field.across) * CELL, y = TOP + Math.floor(cell / field.across) * CELL;
      if (level >= 0) layer.rect(x, y, Math.min(CELL, width - RIGHT - x), Math.min(CELL, height - BOTTOM - y), pixelColour(shade.levels[Math.round(level)], 0.7));
    });
    for (const passes of [0, 1]) // first those that do not pass
      for (let row = 0; row < table.rows; row++) {
        const x = places.x[row], y = places.y[row];
        if (mask[row] === passes && x === x && y === y) layer.rect(x - size / 2, y - size / 2, size, size, !passes || (field && !done[row]) ? faint : field ? ink : dots[shade.of(row)] ?? faint);
      }
    layer.draw(context);
    if (steps) drawSteps(context, table, mask, xs, ys, sx, sy, goals.y, width - RIGHT, colours);
    if (best >= 0 && mask[best] && Number.isFinite(places.x[best]) && Number.isFinite(places.y[best])) {
      context.strokeStyle = colours.text; context.fillStyle = colours.text; context.lineWidth = 2;
      context.beginPath(); context.arc(places.x[best], places.y[best], 6, 0, 7); context.stroke();
      context.textAlign = places.x[best] > width - 60 ? "right" : "left";
      context.fillText("★ best", places.x[best] + (places.x[best] > width - 60 ? -9 : 9), Math.max(TOP + 10, places.y[best] - 6));
    }
    if (pareto) {
      context.strokeStyle = colours.text; context.lineWidth = 1.5;
      context.beginPath();
      front.forEach((row, at) => { const p = [sx.at(xs.at(row)), sy.at(ys.at(row))]; if (at) context.lineTo(p[0], p[1]); else context.moveTo(p[0], p[1]); });
      context.stroke();
      for (const row of front) { context.beginPath(); context.arc(sx.at(xs.at(row)), sy.at(ys.at(row)), 4, 0, 7); context.stroke(); }
    }
    const bound = (column) => (column.group === "metric" ? (table.summary.constraints || {})[column.name] : undefined);
    context.fillStyle = colours.text; context.textAlign = "left";
    if (bound(xs) !== undefined && sx.at(bound(xs)) <= width - RIGHT) context.fillText(`${xs.name} ≤ ${shortNumber(bound(xs))}`, Math.max(LEFT, sx.at(bound(xs)) + 4), height - BOTTOM - 6);
    if (bound(ys) !== undefined && sy.at(bound(ys)) >= TOP) context.fillText(`${ys.name} ≤ ${shortNumber(bound(ys))}`, LEFT + 4, Math.min(height - BOTTOM - 4, sy.at(bound(ys)) - 4));
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
  useEffect(draw, [version, mask, xKey, yKey, pareto, goals.x, goals.y, best, colour, surface, isLog]);
  useEffect(() => { window.addEventListener("resize", draw); return () => window.removeEventListener("resize", draw); });
  const place = (event) => { const b = canvas.current.getBoundingClientRect(); return [event.clientX - b.left, event.clientY - b.top]; };
  const down = (event) => { held.current.drag = { from: place(event), to: null }; canvas.current.setPointerCapture(event.pointerId); };
  const move = (event) => {
    const drag = held.current.drag, near = drag ? -1 : nearest(place(event));
    if (drag) { drag.to = place(event); draw(); }
    showTip(event, near < 0 ? (drag ? null : surfaceLines(place(event))) : trialLines(table, near, [xKey, yKey, colour], near === best));
  };
  const up = () => {
    const { drag, sx, sy } = held.current;
    held.current.drag = null;
    if (!drag || !sx) return;
    if (!drag.to || Math.hypot(drag.to[0] - drag.from[0], drag.to[1] - drag.from[1]) < 4) { pick(drag.from); return; }
    const sorted = (a, b) => (a < b ? [a, b] : [b, a]);
    setRanges({ [xKey]: sorted(sx.value(drag.from[0]), sx.value(drag.to[0])), [yKey]: sorted(sy.value(drag.from[1]), sy.value(drag.to[1])) });
  };
  /** What the surface has at a place. @param {number[]} at */
  const surfaceLines = ([x, y]) => {
    const { field, sx, sy } = held.current, level = field ? field.at(x, y) : NaN, said = (column, value) => `${column.name}: ${column.kind === "word" ? column.words[Math.round(value)] : shortNumber(value)}`;
    return level >= 0 ? [`${table.column(colour).name}: about ${shortNumber(colouring(table, colour, done).valueOf(level))}, from trials nearby`, said(table.column(xKey), sx.value(x)), said(table.column(yKey), sy.value(y))] : null;
  };
  /** @param {number[]} at */
  const nearest = (at) => {
    const { places } = held.current, [px, py] = at;
    let found = -1, least = 81;
    for (let row = 0; places && row < Math.min(table.rows, places.x.length); row++) {
      const far = mask[row] ? (places.x[row] - px) ** 2 + (places.y[row] - py) ** 2 : Infinity;
      if (far < least) { least = far; found = row; }
    }
    return found;
  };
  const pick = (at) => { const near = nearest(at); if (near >= 0) openTrial(near); else setRanges({ [xKey]: null, [yKey]: null }); };
  const { legend } = colouring(table, colour, done), states = [...new Set(Object.keys(table.summary.counts))];
  return html`<div class="canvas-box"><canvas ref=${canvas} role="img" data-test=${name} aria-label=${`${yKey} against ${xKey}, ${countOf(mask)} trials${pareto ? `, ${front.length} of them on the Pareto front` : ""}${surface ? `, over a surface of ${colour} between them` : ""}.`}
    onPointerDown=${down} onPointerMove=${move} onPointerUp=${up} onPointerLeave=${(event) => showTip(event, null)}></canvas>
    ${steps ? null : html`<ul class="legend">${(legend.length ? legend : states.map((state) => [STATUS_COLOURS[state], STATUS_WORDS[state]])).map(([shown, word], at) => html`<li key=${at}><span class="swatch" style=${{ background: shown }}></span>${word}</li>`)}${surface ? html`<li>between trials: estimated from those nearby that are done</li>` : null}</ul>`}</div>`;
}

/** The best value so far, as steps from trial to trial. */
function drawSteps(context, table, mask, xs, ys, sx, sy, isUp, end, colours) {
  const rows = [];
  for (let row = 0; row < table.rows; row++) if (mask[row] && Number.isFinite(xs.at(row)) && Number.isFinite(ys.at(row)) && table.isAllowed(row)) rows.push(row);
  rows.sort((a, b) => xs.at(a) - xs.at(b));
  let best = NaN;
  context.strokeStyle = colours.accent; context.lineWidth = 2;
  context.beginPath();
  for (const row of rows) {
    const value = ys.at(row), x = sx.at(xs.at(row));
    if (!(Number.isNaN(best) || (isUp ? value > best : value < best))) continue;
    if (Number.isNaN(best)) context.moveTo(x, sy.at(value)); else { context.lineTo(x, sy.at(best)); context.lineTo(x, sy.at(value)); }
    best = value;
  }
  if (rows.length) context.lineTo(end, sy.at(best));
  context.stroke();
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
