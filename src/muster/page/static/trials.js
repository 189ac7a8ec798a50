// The table of trials, which draws only the rows in view, and the filters above it.
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/preact-htm.js";
import { STATUS_COLOURS, STATUS_SIGNS, STATUS_WORDS, money, shortDuration, shortNumber } from "./format.js";
import { FRONT } from "./data.js";
import { orderOf } from "./selection.js";

const ROW = 28, AROUND = 8;
const TIMES = new Set(["trial/created", "trial/started", "trial/reported", "trial/ended"]);
export const COST = "metric/cost_usd"; // what a trial has cost so far, where its price is known
const OWN = { training_iteration: "iteration", time_total_s: "time", reports: "results", starts: "starts", failures: "failures", cost_usd: "cost", failed_at: "failed at" };

export function shownColumns(table, chosen, metricKey) {
  if (chosen) return chosen.split("|").map((key) => table.column(key)).filter(Boolean);
  const failed = table.trial("error").words.length ? ["trial/error", "trial/failed_at"] : [];
  const keys = ["trial/status", FRONT, "trial/training_iteration", "trial/time_total_s", metricKey, ...table.summary.goals.map((name) => `metric/${name}`), ...failed];
  const found = [...keys.map((key) => table.column(key)), table.column(COST), ...table.params.slice(0, 6), ...table.metrics.slice(0, 3)];
  return [...new Set(found.filter(Boolean))];
}

function cellOf(table, column, row) {
  if (column.key === "trial/status") {
    const status = table.status(row);
    return html`<span class="state"><span class="sign" style=${{ color: STATUS_COLOURS[status] }} aria-hidden="true">${STATUS_SIGNS[status]}</span> ${STATUS_WORDS[status] || status}</span>`;
  }
  if (column.kind === "word") return column.text(row);
  if (column.key === COST) return Number.isNaN(column.at(row)) ? "" : money(column.at(row));
  return column.name === "time_total_s" ? (Number.isNaN(column.at(row)) ? "" : shortDuration(column.at(row))) : shortNumber(column.at(row));
}

export function TrialsTable({ table, mask, view, change, openTrial, metricKey, version, hover, best }) {
  const box = useRef(null), wanted = useRef(-1), [top, setTop] = useState(0), [room, setRoom] = useState(360), [focused, setFocused] = useState(0);
  const columns = shownColumns(table, view.cols, metricKey);
  const order = useMemo(() => orderOf(table, mask, view.sort, view.down), [table, mask, view.sort, view.down, version]);
  useEffect(() => {
    const seen = () => box.current && setRoom(box.current.clientHeight);
    seen();
    window.addEventListener("resize", seen);
    return () => window.removeEventListener("resize", seen);
  }, []);
  const first = Math.max(0, Math.floor(top / ROW) - AROUND), last = Math.min(order.length, Math.ceil((top + room) / ROW) + AROUND);
  const sortBy = (key) => change({ sort: view.sort === key && view.down ? "" : key, down: view.sort === key ? !view.down : false });
  const head = (key, name, isNumber) => {
    const state = view.sort === key ? (view.down ? "descending" : "ascending") : "none";
    return html`<th scope="col" class=${isNumber ? "number" : ""} aria-sort=${state} key=${key}><button onClick=${() => sortBy(key)} title=${name}>${name}${state === "none" ? "" : state === "ascending" ? " ↑" : " ↓"}</button></th>`;
  };
  const goTo = (place) => {
    const next = Math.max(0, Math.min(order.length - 1, place));
    setFocused(next);
    const y = next * ROW, node = box.current;
    if (y < node.scrollTop) node.scrollTop = y; else if (y + ROW * 2 > node.scrollTop + room) node.scrollTop = y + ROW * 2 - room;
    setTop(node.scrollTop); // at once: the next key is for the new row
    wanted.current = next;
  };
  useLayoutEffect(() => {
    const row = wanted.current >= 0 && box.current.querySelector(`tr[data-place="${wanted.current}"]`);
    if (row) row.focus({ preventScroll: true });
    wanted.current = -1;
  });
  const keys = (event, place) => {
    if (event.target !== event.currentTarget) return; // not the checkbox in it
    const page = Math.floor(room / ROW) - 2, moves = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page };
    if (event.key in moves) { event.preventDefault(); goTo(place + moves[event.key]); }
    else if (event.key === "Home") { event.preventDefault(); goTo(0); }
    else if (event.key === "End") { event.preventDefault(); goTo(order.length - 1); }
    else if (event.key === "Enter" || event.key === " ") { event.preventDefault(); openTrial(order[place]); }
  };
  const rows = [], chosen = new Set(view.cmp ? view.cmp.split(",") : []);
  const pick = (id) => { const next = new Set(chosen); if (next.has(id)) next.delete(id); else next.add(id); change({ cmp: [...next].slice(-12).join(",") }); };
  for (let place = first; place < last; place++) {
    const row = order[place];
    rows.push(html`<tr key=${row} data-place=${place} tabindex=${place === Math.min(focused, order.length - 1) ? 0 : -1} aria-rowindex=${place + 2}
      class=${view.open === table.ids[row] ? "chosen" : ""} onClick=${() => openTrial(row)} onKeyDown=${(event) => keys(event, place)} onMouseEnter=${() => hover(row)}>
      <th scope="row"><input type="checkbox" aria-label=${`Compare trial ${table.ids[row]}`} checked=${chosen.has(table.ids[row])} onClick=${(event) => event.stopPropagation()} onChange=${() => pick(table.ids[row])} /> ${row === best ? html`<span title="the best trial" aria-label="best">★</span> ` : ""}${table.ids[row]}</th>
      ${columns.map((column) => html`<td key=${column.key} class=${column.kind === "word" ? "" : "number"} title=${column.kind === "word" ? column.text(row) : ""}>${cellOf(table, column, row)}</td>`)}</tr>`);
  }
  return html`<div class="table-box" ref=${box} tabindex="-1" data-test="table" onScroll=${(event) => setTop(event.target.scrollTop)} onMouseLeave=${() => hover(-1)}>
    <table aria-rowcount=${order.length + 1} aria-label="Trials">
      <thead><tr>${head("id", "trial", false)}${columns.map((column) => head(column.key, OWN[column.name] || column.name, column.kind !== "word"))}</tr></thead>
      <tbody>${first > 0 ? html`<tr class="space" aria-hidden="true"><td style=${{ height: `${first * ROW}px` }}></td></tr>` : null}${rows}
      ${last < order.length ? html`<tr class="space" aria-hidden="true"><td style=${{ height: `${(order.length - last) * ROW}px` }}></td></tr>` : null}</tbody>
    </table>
    ${order.length ? null : html`<p class="note">${table.rows ? "No trial passes the filters." : "No trial has been made yet."}</p>`}
  </div>`;
}

/** Saves the trials that pass, with all columns, as a CSV file. */
function saveCsv(table, mask) {
  const cell = (value) => (/[",\r\n]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);
  const text = (column, row) => {
    if (column.key === "trial/status") return STATUS_WORDS[table.status(row)] || table.status(row);
    if (column.kind === "word") return column.text(row) || "";
    if (Number.isNaN(column.at(row))) return "";
    return TIMES.has(column.key) ? new Date(table.time(row, column.name) * 1000).toISOString() : String(Number(column.at(row).toPrecision(6)));
  };
  const lines = [["trial", ...table.columns.map((each) => each.key)].map(cell).join(",")];
  for (let row = 0; row < table.rows; row++) if (mask[row]) lines.push([table.ids[row], ...table.columns.map((each) => text(each, row))].map(cell).join(","));
  const link = document.createElement("a"), url = URL.createObjectURL(new Blob([`${lines.join("\n")}\n`], { type: "text/csv" }));
  link.href = url; link.download = `${table.summary.name}.csv`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

export function Filters({ table, view, change, mask, count, metricKey }) {
  const [text, setText] = useState(view.q), [isOpen, setOpen] = useState(false), [draft, setDraft] = useState({ key: "", low: "", high: "" });
  useEffect(() => setText(view.q), [view.q]);
  useEffect(() => { if (text === view.q) return undefined; const timer = setTimeout(() => change({ q: text }), 150); return () => clearTimeout(timer); }, [text]);
  const chosen = new Set(view.st ? view.st.split(",") : []);
  const toggle = (status) => { const next = new Set(chosen); if (next.has(status)) next.delete(status); else next.add(status); change({ st: [...next].join(",") }); };
  const counts = table.summary.counts, numbers = table.columns.filter((each) => each.kind !== "word" && each.group !== "trial");
  const add = (event) => {
    event.preventDefault();
    const key = draft.key || (numbers[0] && numbers[0].key);
    if (!key) return;
    const number = (value, other) => (value.trim() === "" || Number.isNaN(Number(value)) ? other : Number(value));
    change({ r: { ...view.r, [key]: [number(draft.low, -1e300), number(draft.high, 1e300)] } });
    setDraft({ key, low: "", high: "" });
  };
  const remove = (key) => { const next = { ...view.r }; delete next[key]; change({ r: next }); };
  const bound = (value) => (Math.abs(value) > 1e299 ? "" : shortNumber(value));
  const isAny = view.q || view.st || view.t || Object.keys(view.r).length;
  const shown = new Set(shownColumns(table, view.cols, metricKey).map((each) => each.key));
  const choose = (key) => { const next = new Set(shown); if (next.has(key)) next.delete(key); else next.add(key); change({ cols: [...next].join("|") }); };
  return html`<div class="filters">
    <label class="find">Find <input id="find" type="search" value=${text} placeholder="trial, word, machine" onInput=${(event) => setText(event.target.value)} /></label>
    <div class="states" role="group" aria-label="States">${Object.keys(STATUS_WORDS).filter((status) => counts[status] || chosen.has(status)).map((status) => html`
      <button key=${status} aria-pressed=${chosen.has(status)} onClick=${() => toggle(status)}><span style=${{ color: STATUS_COLOURS[status] }} aria-hidden="true">${STATUS_SIGNS[status]}</span> ${STATUS_WORDS[status]} ${(counts[status] || 0).toLocaleString("en")}</button>`)}</div>
    <form class="range" onSubmit=${add}><label>Range of <select value=${draft.key || (numbers[0] && numbers[0].key)} onChange=${(event) => setDraft({ ...draft, key: event.target.value })}>${numbers.map((each) => html`<option key=${each.key} value=${each.key}>${each.name}</option>`)}</select></label>
      <label>from <input size="6" inputmode="decimal" value=${draft.low} onInput=${(event) => setDraft({ ...draft, low: event.target.value })} /></label>
      <label>to <input size="6" inputmode="decimal" value=${draft.high} onInput=${(event) => setDraft({ ...draft, high: event.target.value })} /></label>
      <button disabled=${!numbers.length}>Add</button></form>
    <button aria-expanded=${isOpen} onClick=${() => setOpen(!isOpen)}>Columns</button> <button onClick=${() => saveCsv(table, mask)}>Save as CSV</button>
    <div class="in-force"><span class="passing" role="status" data-test="passing">${count.toLocaleString("en")} of ${table.rows.toLocaleString("en")} trials</span>
    ${isAny ? html`<button data-test="clear" onClick=${() => change({ q: "", st: "", r: {}, t: null })}>Clear filters</button>` : null}
    ${Object.entries(view.r).map(([key, [low, high]]) => html`<span class="chip" key=${key}>${bound(low)} ≤ ${key.slice(key.indexOf("/") + 1)} ≤ ${bound(high)} <button aria-label=${`Remove the filter by ${key}`} onClick=${() => remove(key)}>×</button></span>`)}
    ${view.t ? html`<span class="chip">chosen time <button aria-label="Remove the filter by time" onClick=${() => change({ t: null })}>×</button></span>` : null}</div>
    ${isOpen ? html`<fieldset class="columns"><legend>Columns${table.leftOut ? ` (${table.leftOut.toLocaleString("en")} more were left out: 200 are kept)` : ""}</legend>
      ${[...table.columns, table.column(FRONT)].filter(Boolean).map((each) => html`<label key=${each.key}><input type="checkbox" checked=${shown.has(each.key)} onChange=${() => choose(each.key)} /> ${OWN[each.name] || each.name}${each.odd ? ` (${each.odd} values are not numbers)` : ""}</label>`)}</fieldset>` : null}
  </div>`;
}
