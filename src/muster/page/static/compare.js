// Trials or experiments side by side: how they went, what they were given, what came out.
import { html, useEffect, useRef, useState } from "./vendor/preact-htm.js";
import { placeOf } from "./charts.js";
import { PALETTE, STATUS_WORDS, cellText, money, shortDuration, shortNumber, showTip, themeColours } from "./format.js";
import { bestRow, hashOf, overOf, sumOf } from "./selection.js";
import { COST } from "./trials.js";

/** A table with a column for each thing; rows whose cells differ come first and are marked. */
function SideBySide({ heads, groups, name }) {
  const isOther = (cells) => cells.some((cell) => cell !== cells[0]);
  return html`<div class="table-box short" tabindex="0" aria-label=${name} data-test="side-by-side"><table><thead><tr><td></td>${heads.map((head, at) => html`<th scope="col" key=${at}><span class="swatch" style=${{ background: PALETTE[at % PALETTE.length] }}></span>${head}</th>`)}</tr></thead>
    <tbody>${groups.flatMap(([title, rows]) => [html`<tr key=${title} class="group"><th scope="rowgroup" colspan=${heads.length + 1}>${title}</th></tr>`,
      ...[...rows].sort((a, b) => Number(isOther(b[1])) - Number(isOther(a[1]))).map(([key, cells]) => html`<tr key=${`${title}/${key}`} class=${isOther(cells) ? "differs" : ""}><th scope="row" title=${key}>${key}</th>${cells.map((cell, at) => html`<td key=${at} title=${String(cell)}>${cell}</td>`)}</tr>`)])}</tbody></table></div>`;
}

export function CompareTrials({ table, view, change, openTrial }) {
  const rows = view.cmp.split(",").map((id) => table.ids.indexOf(id)).filter((row) => row >= 0);
  if (!rows.length) return null;
  const of = (columns) => columns.map((column) => [column.name === "training_iteration" ? "iteration" : column.name, rows.map((row) => (Number.isNaN(column.at(row)) ? "" : cellText(column, row)))]).filter(([, cells]) => cells.some((cell) => cell !== ""));
  const own = ["training_iteration", "time_total_s", "starts", "machine", "error", "failed_at"].map((name) => table.trial(name)), states = rows.map((row) => STATUS_WORDS[table.status(row)] || "");
  const heads = rows.map((row) => html`<button class="link" onClick=${() => openTrial(row)}>${table.ids[row]}</button>`);
  return html`<div class="panel wide" data-test="compare"><div class="panel-head"><h3>Compared trials <small>${rows.length < 2 ? "choose another one in the table" : "their curves are in the learning curves; what differs comes first"}</small></h3><button onClick=${() => change({ cmp: "" })}>Close</button></div>
    <${SideBySide} name="Compared trials" heads=${heads} groups=${[["outcome", [["state", states], ...of(own), ...of(table.metrics)]], ["parameters", of(table.params)]]} /></div>`;
}

/** The best value so far of one experiment: pairs of x and value. */
export function bestSoFar(table, byTime) {
  const { metric, mode, modes } = table.summary, column = table.column(`metric/${metric}`), points = [], isDown = (modes[0] || mode) === "min";
  if (!column || column.kind === "word") return points;
  const times = table.trial("reported").values, rows = [];
  let first = Infinity, best = NaN;
  for (let row = 0; row < table.rows; row++) { if (table.trial("created").values[row] < first) first = table.trial("created").values[row]; if (Number.isFinite(column.at(row)) && table.isAllowed(row)) rows.push(row); }
  rows.sort((a, b) => (byTime ? times[a] - times[b] : a - b));
  for (const row of rows) {
    if (Number.isNaN(best) || (isDown ? column.at(row) < best : column.at(row) > best)) best = column.at(row);
    points.push([byTime ? (times[row] - first) / 60 : row + 1, best]);
  }
  return points;
}

export function CompareExperiments({ source, view, change }) {
  const keys = view.es.split(","), [tables, setTables] = useState([]), [problem, setProblem] = useState(""), box = useRef(null), byTime = view.by === "time";
  useEffect(() => {
    let isOver = false, timer = 0;
    const load = async () => {
      try { const found = await Promise.all(keys.map((key) => source.table(key))); if (!isOver) { setTables((before) => (found.every((table, at) => before[at] && before[at].generation === table.generation && before[at].change === table.change) ? before : found)); setProblem(""); } } catch (error) { if (!isOver) setProblem(error.message); }
      if (!isOver && source.isLive) timer = setTimeout(load, 5000);
    };
    load();
    return () => { isOver = true; clearTimeout(timer); };
  }, [view.es]);
  useEffect(() => {
    if (!tables.length || !box.current) return undefined;
    const colours = themeColours(), lines = tables.map((table) => bestSoFar(table, byTime)), x = [...new Set(lines.flatMap((points) => points.map(([at]) => at)))].sort((a, b) => a - b);
    if (!x.length) return undefined;
    const data = [x, ...lines.map((points) => { const known = new Map(points), last = points.length ? points[points.length - 1][0] : -1; let value; return x.map((at) => { value = known.get(at) ?? value; return at > last ? undefined : value; }); })];
    const uPlot = /** @type {any} */ (window.uPlot), axis = { stroke: colours.quiet, grid: { stroke: colours.line, width: 0.5 }, ticks: { stroke: colours.line }, font: "12px system-ui, DejaVu Sans" };
    const series = tables.map((table, at) => ({ label: table.summary.name, stroke: PALETTE[at % PALETTE.length], width: 2, points: { show: x.length < 3 }, paths: uPlot.paths.stepped({ align: 1 }) }));
    const plot = new uPlot({ width: box.current.clientWidth, height: 300, series: [{ label: byTime ? "minutes" : "trials" }, ...series], legend: { show: false }, scales: { x: { time: false } },
      axes: [{ ...axis, label: byTime ? "minutes since the first trial" : "trials", labelSize: 18, size: 34, labelFont: "12px system-ui" }, { ...axis, size: 56, values: (_, values) => values.map(shortNumber) }] }, data, box.current);
    plot.over.addEventListener("mousemove", (event) => {
      const at = placeOf(x, plot.posToVal(event.offsetX, "x")), known = tables.map((table, each) => [table.summary.name, data[each + 1][at]]).filter(([, value]) => value !== undefined);
      showTip(event, known.length ? [byTime ? `${shortNumber(x[at])} minutes` : `${x[at]} trials`, ...known.map(([name, value]) => `${name}: ${shortNumber(value)}`)] : null);
    });
    plot.over.addEventListener("mouseleave", (event) => showTip(event, null));
    const again = () => plot.setSize({ width: box.current.clientWidth, height: 300 });
    window.addEventListener("resize", again);
    return () => { window.removeEventListener("resize", again); showTip({ currentTarget: plot.over }, null); plot.destroy(); };
  }, [tables, byTime]);
  const best = tables.map((table) => bestRow(table, `metric/${table.summary.metric}`, table.summary.modes[0] || table.summary.mode));
  const spans = tables.map((table) => { let from = Infinity, until = -Infinity; for (const name of ["created", "reported", "ended"]) for (const at of table.trial(name).values.subarray(0, table.rows)) { if (at < from) from = at; if (at > until) until = at; } return until - from; });
  const params = [...new Set(tables.flatMap((table) => table.params.map((each) => each.key)))], cell = (table, key, at) => { const column = best[at] < 0 ? null : table.column(key); return !column || Number.isNaN(column.at(best[at])) ? "" : cellText(column, best[at]); };
  const outcome = [["state", tables.map((table) => table.summary.state)], ["metric", tables.map((table) => `${table.summary.metric} (${table.summary.modes[0] || table.summary.mode})`)], ["best", tables.map((table, at) => cell(table, `metric/${table.summary.metric}`, at))], ["best trial", tables.map((table, at) => (best[at] < 0 ? "" : table.ids[best[at]]))],
    ["trials", tables.map((table) => `${overOf(table.summary.counts).toLocaleString("en")}${table.summary.of ? ` of ${table.summary.of.toLocaleString("en")}` : ""}`)], ["by state", tables.map((table) => Object.entries(table.summary.counts).map(([state, count]) => `${count} ${STATUS_WORDS[state]}`).join(", "))],
    ["elapsed", spans.map(shortDuration)], ["cost", tables.map((table) => (table.column(COST) ? money(sumOf(table.column(COST), table.rows)) : ""))], ["scheduler", tables.map((table) => table.summary.scheduler)], ["searcher", tables.map((table) => table.summary.search_alg)]];
  return html`<main id="main" tabindex="-1"><header class="top"><div class="title"><h1>Compare ${keys.length} experiments</h1></div></header>
    ${problem ? html`<p class="note bad" role="alert">${problem}</p>` : null}${!tables.length && !problem ? html`<p class="waiting">Loading …</p>` : null}
    ${tables.length ? html`<section class="band" data-test="compare-experiments"><div class="grid"><div class="panel wide"><div class="panel-head"><h2>Best so far</h2><label>over <select value=${view.by} onChange=${(event) => change({ by: event.target.value })}><option value="">trials</option><option value="time">time</option></select></label></div><div ref=${box} role="img" aria-label=${`The best value so far of ${keys.length} experiments.`}></div><ul class="legend">${tables.map((table, at) => html`<li key=${at}><span class="swatch" style=${{ background: PALETTE[at % PALETTE.length] }}></span>${table.summary.name}</li>`)}</ul></div>
      <div class="panel wide"><${SideBySide} name="Compared experiments" heads=${tables.map((table, at) => html`<a href=${hashOf({ e: keys[at] })}>${table.summary.name}</a>`)} groups=${[["outcome", outcome], ["parameters of the best trial", params.map((key) => [key.slice(7), tables.map((table, at) => cell(table, key, at))])]]} /></div></div></section>` : null}</main>`;
}
