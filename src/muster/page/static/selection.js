// What is chosen: filters, brushes, order and columns, kept in the URL; and what follows from them, as pure functions.

/**
 * What is chosen: experiment, cluster, text, states, ranges by column, order, columns, axes, metric, time, drawers.
 * @typedef {{ e: string, c: string, q: string, st: string, r: Record<string, [number, number]>, sort: string, down: boolean,
 *   cols: string, x: string, y: string, metric: string, t: [number, number] | null, open: string, why: string,
 *   pareto: string, surface: boolean, log: boolean, theme: string, colour: string, by: string, cmp: string, es: string, only: string }} View
 */

/** @type {View} */
export const EMPTY_VIEW = {
  e: "", c: "", q: "", st: "", r: {}, sort: "", down: false, cols: "", x: "", y: "", metric: "", t: null, open: "", why: "", pareto: "", surface: false, log: false, theme: "", colour: "", by: "", cmp: "", es: "", only: "",
};

/** Reads the view out of the part of the URL after `#`. */
export function viewOf(hash) {
  const view = { ...EMPTY_VIEW, r: {} };
  const given = new URLSearchParams(hash.replace(/^#/, ""));
  for (const [name, value] of given) {
    if (!(name in EMPTY_VIEW)) continue;
    try {
      view[name] = name === "r" || name === "t" ? JSON.parse(value) : typeof EMPTY_VIEW[name] === "boolean" ? value === "1" : value;
    } catch { /* a link that was cut: the rest still holds */ }
  }
  if (!view.r || typeof view.r !== "object" || Array.isArray(view.r)) view.r = {};
  return view;
}

export function hashOf(view) {
  const out = new URLSearchParams();
  for (const [name, value] of Object.entries(view)) {
    if (name === "r" ? !Object.keys(value).length : !value) continue;
    out.set(name, typeof value === "object" ? JSON.stringify(value) : value === true ? "1" : value);
  }
  return `#${out}`;
}

/** Returns 1 for every trial that passes the text, the states, the ranges and the time. */
export function maskOf(table, view) {
  const rows = table.rows, mask = new Uint8Array(rows).fill(1);
  if (view.st) {
    const wanted = new Set(view.st.split(",")), status = table.trial("status");
    const codes = new Uint8Array(status.words.length);
    status.words.forEach((word, code) => { codes[code] = wanted.has(word) ? 1 : 0; });
    for (let row = 0; row < rows; row++) mask[row] &= codes[status.values[row]];
  }
  for (const [key, range] of Object.entries(view.r)) {
    const column = table.column(key);
    if (!column || !Array.isArray(range)) continue;
    const [low, high] = range, values = column.values, isWord = column.kind === "word";
    for (let row = 0; row < rows; row++) {
      const value = values[row];
      if (!(value >= low && value <= high) || (isWord && value === 65535)) mask[row] = 0;
    }
  }
  if (view.t) {
    const from = view.t[0] - table.zeroTime, until = view.t[1] - table.zeroTime;
    const begins = table.trial("created").values, ends = table.trial("ended").values;
    for (let row = 0; row < rows; row++) if (begins[row] > until || ends[row] < from) mask[row] = 0;
  }
  if (view.q) filterText(table, view.q, mask);
  return mask;
}

function filterText(table, query, mask) {
  const wanted = query.toLowerCase();
  const words = table.columns.filter((each) => each.kind === "word").map((column) => {
    const hits = new Uint8Array(column.words.length);
    column.words.forEach((word, code) => { hits[code] = word.toLowerCase().includes(wanted) ? 1 : 0; });
    return [column.values, hits];
  });
  for (let row = 0; row < table.rows; row++) {
    if (!mask[row] || table.ids[row].toLowerCase().includes(wanted)) continue;
    if (!words.some(([values, hits]) => values[row] !== 65535 && hits[values[row]])) mask[row] = 0;
  }
}

export function sumOf(column, rows) {
  let sum = 0;
  for (let row = 0; row < rows; row++) if (Number.isFinite(column.values[row])) sum += column.values[row];
  return sum;
}

/** How many trials are over; one that was paused and is stopped has no end time. */
export function overOf(counts) { return ["TERMINATED", "STOPPED", "ERROR"].reduce((sum, state) => sum + ((counts || {})[state] || 0), 0); }

export function countOf(mask) {
  let count = 0;
  for (let row = 0; row < mask.length; row++) count += mask[row];
  return count;
}

/** Rows that pass, in the order that was asked for; nothing comes last. */
export function orderOf(table, mask, key, isDown) {
  const rows = [];
  for (let row = 0; row < table.rows; row++) if (mask[row]) rows.push(row);
  const column = table.column(key);
  if (key === "id") rows.sort((a, b) => (table.ids[a] < table.ids[b] ? -1 : 1) * (isDown ? -1 : 1));
  else if (column) {
    const rank = column.kind === "word" ? wordRanks(column) : null, values = column.values;
    const of = (row) => (rank ? rank[values[row]] ?? NaN : values[row]), sign = isDown ? -1 : 1;
    rows.sort((a, b) => {
      const one = of(a), other = of(b);
      if (one !== one || other !== other) return one !== one ? (other !== other ? a - b : 1) : -1;
      return one === other ? a - b : (one - other) * sign;
    });
  } else if (isDown) rows.reverse();
  return rows;
}

function wordRanks(column) {
  const sorted = column.words.map((word, code) => [word, code]).sort((a, b) => (a[0] < b[0] ? -1 : 1)), rank = [];
  sorted.forEach(([, code], place) => { rank[code] = place; });
  return rank;
}

/** The row with the best value of a metric, that violates no constraint if there is such a one; -1 when no trial has one. */
export function bestRow(table, key, mode, mask) {
  const column = table.column(key);
  let best = -1, isAllowed = 0;
  if (!column || column.kind === "word") return best;
  const values = column.values, sign = mode === "min" ? -1 : 1, isBound = Object.keys(table.summary.constraints || {}).length > 0;
  for (let row = 0; row < table.rows; row++) {
    const value = values[row];
    if (!Number.isFinite(value) || (mask && !mask[row])) continue;
    const fits = isBound && !table.isAllowed(row) ? 0 : 1;
    if (best < 0 || fits > isAllowed || (fits === isAllowed && value * sign > values[best] * sign)) { best = row; isAllowed = fits; }
  }
  return best;
}

export function rangeOf(column, rows, mask) {
  let low = Infinity, high = -Infinity;
  if (column.kind === "word") return [0, Math.max(0, column.words.length - 1)];
  for (let row = 0; row < rows; row++) {
    const value = column.values[row];
    if (Number.isFinite(value) && (!mask || mask[row])) { if (value < low) low = value; if (value > high) high = value; }
  }
  return low > high ? [0, 1] : low === high ? [low - (Math.abs(low) * 0.05 || 0.5), high + (Math.abs(high) * 0.05 || 0.5)] : [low, high];
}

/** Whether the values of a column span orders of magnitude, so that a logarithm shows them better. */
export function isLogarithmic(column, rows) {
  if (column.kind === "word") return false;
  const [low, high] = rangeOf(column, rows);
  if (!(low > 0 && high / low > 100)) return false;
  let below = 0, count = 0; // numbers drawn evenly need no logarithm, however small the smallest is
  for (let row = 0, step = Math.max(1, Math.floor(rows / 500)); row < rows; row += step)
    if (Number.isFinite(column.values[row])) { count += 1; if (column.values[row] < low + (high - low) * 0.2) below += 1; }
  return below > count * 0.4;
}

/** How much of a metric each parameter explains, from 0 to 1: the numbers of tune/plots/data.py. Trials without a finite value are worst. */
export function importanceOf(table, metricKey, mask, mode) {
  const metric = table.column(metricKey), reports = table.trial("reports"), sign = mode === "min" ? -1 : 1, rows = [];
  if (!metric || metric.kind === "word") return [];
  for (let row = 0; row < table.rows; row++) if (mask[row] && (Number.isFinite(metric.values[row]) || reports.values[row] > 0)) rows.push(row);
  if (rows.length < 8) return [];
  const goal = ranksOf(byRung(table, rows, rows.map((row) => (Number.isFinite(metric.values[row]) ? sign * metric.values[row] : -Infinity))));
  return table.params.map((column) => ({ name: column.name, key: column.key, share: explained(column, rows, goal) }))
    .filter((each) => each.share !== null).sort((a, b) => b.share - a.share);
}

/** With early stopping, a trial that got further comes before one that was stopped: values of different rungs are not compared. */
function byRung(table, rows, values) {
  const status = table.trial("status"), stopped = status.words ? status.words.indexOf("STOPPED") : -1;
  if (stopped < 0 || !rows.some((row) => status.values[row] === stopped)) return values;
  const iterations = table.trial("training_iteration").values, ranks = ranksOf(values);
  return rows.map((row, at) => (values[at] === -Infinity ? -Infinity : (iterations[row] || 0) * (rows.length + 1) + ranks[at]));
}

function ranksOf(values) {
  const order = values.map((_, at) => at).sort((a, b) => values[a] - values[b]), ranks = new Float64Array(values.length);
  for (let at = 0; at < order.length;) {
    let end = at;
    while (end < order.length && values[order[end]] === values[order[at]]) end++;
    for (let each = at; each < end; each++) ranks[order[each]] = (at + end - 1) / 2;
    at = end;
  }
  return ranks;
}

/** The share of the goal's variance that groups of similar values explain: also what goes up and down again. */
function explained(column, rows, goal) {
  const groups = new Map(), values = rows.map((row) => column.values[row]), isSet = (value) => (column.kind === "word" ? value !== 65535 : value === value);
  const known = Float64Array.from(values.filter(isSet)).sort(), distinct = new Set(known).size;
  if (distinct > (column.kind === "word" ? 24 : Infinity) || !distinct || (distinct === 1 && known.length === rows.length)) return null;
  const limit = Math.min(8, Math.max(2, Math.floor(rows.length / 12))), edges = [];
  for (let part = 1; column.kind !== "word" && distinct > limit && part < limit; part++) {
    const at = (part / limit) * (known.length - 1), below = Math.floor(at);
    edges.push(known[below] + ((known[below + 1] ?? known[below]) - known[below]) * (at - below));
  }
  values.forEach((value, at) => {
    let group = !isSet(value) ? "none" : edges.length ? 0 : value;
    if (edges.length && group === 0) while (group < edges.length && edges[group] <= value) group++;
    const found = groups.get(group) || [0, 0];
    found[0] += goal[at]; found[1] += 1;
    groups.set(group, found);
  });
  if (groups.size < 2 || groups.size >= rows.length) return 0;
  const mean = goal.reduce((sum, value) => sum + value, 0) / goal.length;
  const total = goal.reduce((sum, value) => sum + (value - mean) ** 2, 0);
  let between = 0;
  for (const [sum, count] of groups.values()) between += count * (sum / count - mean) ** 2;
  const free = (groups.size - 1) / (rows.length - 1); // what chance alone would explain
  return Math.max(0, (between / (total || 1) - free) / (1 - free));
}

/** Rows that no other row beats in both; `up` says whether more is better. */
export function paretoOf(xs, ys, rows, upX, upY) {
  const sx = upX ? 1 : -1, sy = upY ? 1 : -1;
  const sorted = rows.filter((row) => Number.isFinite(xs[row]) && Number.isFinite(ys[row]))
    .sort((a, b) => sx * (xs[b] - xs[a]) || sy * (ys[b] - ys[a]));
  const front = [];
  let best = -Infinity;
  for (const row of sorted) if (sy * ys[row] > best) { best = sy * ys[row]; front.push(row); }
  return front;
}

/** The front of each row, 0 for those that no other one beats; `goals` are pairs of values and the sign of what is better. */
export function frontsOf(goals, rows) {
  const scores = rows.map((row) => goals.map(([values, sign]) => sign * values[row]));
  const order = rows.map((_, at) => at).sort((a, b) => { for (let one = 0; one < goals.length; one++) if (scores[a][one] !== scores[b][one]) return scores[b][one] - scores[a][one]; return 0; });
  const beats = (one, other) => scores[one].every((score, at) => score >= scores[other][at]) && scores[one].some((score, at) => score > scores[other][at]);
  const found = new Array(rows.length).fill(0), fronts = [];
  for (const at of order) { // whoever beats it comes before it; fronts are nested, so the first without one is found by halving
    let low = 0, high = fronts.length;
    while (low < high) {
      const middle = (low + high) >> 1, members = fronts[middle];
      const isBeaten = goals.length === 2 ? beats(members[members.length - 1], at) : members.some((other) => beats(other, at));
      if (isBeaten) low = middle + 1; else high = middle;
    }
    (fronts[low] = fronts[low] || []).push(at);
    found[at] = low;
  }
  return found;
}

/** A mask as short text for the server: bits in base64. */
export function packedMask(mask) {
  const bytes = new Uint8Array(Math.ceil(mask.length / 8));
  for (let row = 0; row < mask.length; row++) if (mask[row]) bytes[row >> 3] |= 1 << (row & 7);
  let text = "";
  for (const byte of bytes) text += String.fromCharCode(byte);
  return btoa(text);
}
