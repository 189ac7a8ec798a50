// The trial table as typed arrays, how deltas change it, and where data comes from: a server or this very file.

import { frontsOf } from "./selection.js";

const NOTHING = 65535;
export const FRONT = "trial/front", NUMBER = "trial/number", SHARE = "trial/share", SHARE_NAME = "share of trials";

/** One column: numbers as Float32Array, words as codes in a Uint16Array. */
class TrialColumn {
  constructor(head, index, values, rows) {
    this.index = index;
    this.name = head.name;
    this.group = head.group;
    this.kind = head.kind;
    this.odd = head.odd;
    this.words = head.words;
    this.key = `${head.group}/${head.name}`;
    this.values = values;
    this.rows = rows;
  }
  /** A number for sorting and drawing; NaN for nothing. */
  at(row) {
    const value = this.values[row];
    return this.kind === "word" && value === NOTHING ? NaN : value;
  }
  text(row) {
    return this.kind === "word" ? (this.values[row] === NOTHING ? "" : this.words[this.values[row]]) : this.values[row];
  }
  grow(rows) {
    if (rows > this.values.length) {
      const size = Math.max(rows, this.values.length * 2, 64);
      const more = this.kind === "word" ? new Uint16Array(size).fill(NOTHING) : new Float32Array(size).fill(NaN);
      more.set(this.values);
      this.values = more;
    }
  }
  set(row, value) {
    if (this.kind === "word") this.values[row] = value === null ? NOTHING : value;
    else this.values[row] = value === null ? NaN : Number(String(value).replace("inf", "Infinity"));
  }
}

export class TrialTable {
  constructor(buffer) {
    const view = new DataView(buffer), length = view.getUint32(0, true), text = new TextDecoder();
    const head = JSON.parse(text.decode(new Uint8Array(buffer, 4, length)));
    let offset = 4 + length;
    const padded = (size) => size + ((4 - (size % 4)) % 4);
    this.generation = head.generation;
    this.change = head.change;
    this.rows = head.rows;
    this.zeroTime = head.zero_time;
    this.leftOut = head.left_out;
    this.summary = head.summary;
    this.curveChange = 0;
    const names = text.decode(new Uint8Array(buffer, offset, head.id_bytes));
    this.ids = head.rows ? names.split("\n") : [];
    offset += padded(head.id_bytes);
    this.columns = head.columns.map((each, index) => {
      const isWord = each.kind === "word", size = head.rows * (isWord ? 2 : 4);
      const values = isWord ? new Uint16Array(buffer, offset, head.rows) : new Float32Array(buffer, offset, head.rows);
      offset += padded(size);
      return new TrialColumn(each, index, values.slice(), head.rows);
    });
    this.byKey = new Map(this.columns.map((each) => [each.key, each]));
    this.front = null;
    this.share = null;
    this.number = null;
  }
  column(key) { return key === FRONT ? this.fronts() : key === NUMBER ? this.numbers() : key === SHARE ? this.shares() : this.byKey.get(key); }
  /** The place of each trial in the order of creation. */
  numbers() {
    if (!this.number || this.number.values.length !== this.rows) {
      const values = Float32Array.from({ length: this.rows }, (_, row) => row + 1);
      this.number = new TrialColumn({ name: "trial", group: "trial", kind: "number", odd: 0, words: [] }, -1, values, this.rows);
    }
    return this.number;
  }
  /** The first goal, where it is a number. */
  goal() { const found = this.byKey.get(`metric/${this.summary.metric}`); return found && found.kind !== "word" ? found : undefined; }
  /** The share of trials whose last value of the first goal is at most that of a trial: against the goal, its distribution. */
  shares() {
    const goal = this.goal();
    if (!goal) return undefined;
    if (!this.share || this.share.change !== this.change) {
      const values = new Float32Array(this.rows).fill(NaN), rows = [...values.keys()].filter((row) => Number.isFinite(goal.at(row))).sort((a, b) => goal.at(b) - goal.at(a));
      rows.forEach((row, at) => { values[row] = at && goal.at(rows[at - 1]) === goal.at(row) ? values[rows[at - 1]] : 1 - at / rows.length; });
      this.share = { change: this.change, column: new TrialColumn({ name: SHARE_NAME, group: "trial", kind: "number", odd: 0, words: [] }, -1, values, this.rows) };
      this.share.column.key = SHARE;
    }
    return this.share.column;
  }
  /** With several goals: which front of the last values a trial is on, 0 for the Pareto front; found once for a state. */
  fronts() {
    const { goals, modes } = this.summary, wanted = goals.map((name, at) => [this.byKey.get(`metric/${name}`), modes[at]]).filter(([column, mode]) => column && mode !== "obs");
    if (wanted.length < 2) return undefined;
    if (!this.front || this.front.change !== this.change) {
      const rows = [];
      for (let row = 0; row < this.rows; row++)
        if (wanted.every(([column]) => Number.isFinite(column.at(row))) && this.isAllowed(row)) rows.push(row);
      const values = new Float32Array(this.rows).fill(NaN), found = frontsOf(wanted.map(([column, mode]) => [column.values, mode === "max" ? 1 : -1]), rows);
      rows.forEach((row, at) => { values[row] = found[at]; });
      this.front = { change: this.change, column: new TrialColumn({ name: "front", group: "trial", kind: "number", odd: 0, words: [] }, -1, values, this.rows) };
    }
    return this.front.column;
  }
  /** Whether the last values of a trial violate no constraint. */
  isAllowed(row) {
    const bounds = Object.entries(this.summary.constraints || {});
    return bounds.every(([name, bound]) => this.byKey.has(`metric/${name}`) && this.byKey.get(`metric/${name}`).at(row) <= bound);
  }
  trial(name) { return this.byKey.get(`trial/${name}`); }
  get params() { return this.columns.filter((each) => each.group === "config"); }
  get metrics() { return this.columns.filter((each) => each.group === "metric"); }
  status(row) { return this.trial("status").text(row) || "PENDING"; }
  /** Seconds since the epoch. */
  time(row, name) { return this.trial(name).at(row) + this.zeroTime; }
  apply(delta) {
    this.zeroTime = delta.zero_time;
    for (const [index, fresh] of Object.entries(delta.words))
      for (const [code, word] of fresh) this.columns[index].words[code] = word;
    for (const [row, id, ...values] of delta.rows) {
      if (row >= this.rows) {
        this.rows = row + 1;
        for (const column of this.columns) column.grow(this.rows);
      }
      this.ids[row] = id;
      values.forEach((value, index) => this.columns[index].set(row, value));
    }
    this.change = delta.change;
    this.summary = delta.summary;
  }
}

async function fetched(path, options = {}) {
  let response;
  try { response = await fetch(path, { credentials: "same-origin", ...options }); } catch { throw new Error("The server does not answer: is `muster dashboard` still running?"); }
  if (response.ok) return response;
  let problem = `the server answered ${response.status}`;
  try { problem = (await response.json()).problem || problem; } catch { /* plain text */ }
  if (response.status === 401) problem = "This page is no longer signed in: open the link that `muster dashboard` prints.";
  throw new Error(problem);
}

/** Where data comes from: the server that sent this page. */
class ServerSource {
  isLive = true;
  start = "";
  listed = null;
  listedAt = 0;
  /** The list; what is asked for twice in a second, by two parts of the page, is fetched once. */
  async list() {
    if (!this.listed || performance.now() - this.listedAt > 1000) {
      this.listedAt = performance.now();
      this.listed = fetched("/api/list").then((answer) => answer.json());
    }
    return this.listed;
  }
  async table(key) { return new TrialTable(await (await fetched(`/api/experiment/${key}/table`)).arrayBuffer()); }
  async curves(key, metric, keep) {
    const more = keep ? `&keep=${encodeURIComponent(keep)}` : "";
    return (await fetched(`/api/experiment/${key}/curves?metric=${encodeURIComponent(metric)}${more}`)).json();
  }
  async curvesOf(key, metric, rows) {
    const path = `/api/experiment/${key}/curves?metric=${encodeURIComponent(metric)}&rows=${rows.join(",")}`;
    return (await (await fetched(path)).json()).rows;
  }
  async lineage(key) { return (await (await fetched(`/api/experiment/${key}/lineage`)).json()).copies; }
  async trial(key, id) { return (await fetched(`/api/experiment/${key}/trial/${encodeURIComponent(id)}`)).json(); }
  async cluster(key) { return (await fetched(`/api/cluster/${key}/view`)).json(); }
  /** Asks the driver of an experiment to stop or change something; the server must allow it. */
  async act(key, request) { await fetched(`/api/experiment/${key}/request`, { method: "POST", headers: { "x-muster-action": "1" }, body: JSON.stringify(request) }); }
  async why(key, subject) { return (await fetched(`/api/cluster/${key}/why?subject=${encodeURIComponent(subject)}`)).json(); }
  /** Listens for events until the returned function is called; the browser reconnects and says where it was. */
  listen(path, handlers, onState) {
    let stream, timer, isOver = false, wait = 1000;
    const open = () => {
      stream = new EventSource(typeof path === "function" ? path() : path);
      stream.onopen = () => { wait = 1000; onState("live", ""); };
      for (const [kind, handle] of Object.entries(handlers))
        stream.addEventListener(kind, (event) => handle(JSON.parse(event.data)));
      stream.onerror = () => {
        onState("lost", "");
        fetched("/api/list").catch((error) => onState("lost", error.message)); // a stream does not say why
        stream.close(); // by itself it would give up after an answer that is not a stream
        if (!isOver) timer = setTimeout(open, wait);
        wait = Math.min(10000, wait * 1.5);
      };
    };
    open();
    return () => { isOver = true; clearTimeout(timer); stream.close(); };
  }
}

/** Where data comes from in a page that was exported: the page itself. */
class EmbeddedSource {
  isLive = false;
  constructor(data) { this.data = data; this.start = data.start || ""; }
  async list() { return this.data.list; }
  async table(key) {
    const bytes = Uint8Array.from(atob(this.data.tables[key]), (letter) => letter.charCodeAt(0));
    return new TrialTable(bytes.buffer);
  }
  async curves(key, metric) { return this.data.curves[key][metric] || { x: [], bands: [[], [], [], [], []], points: 0 }; }
  async curvesOf(key, metric, rows) {
    const known = this.data.raw[key] || {};
    return Object.fromEntries(rows.filter((row) => known[`${row}/${metric}`]).map((row) => [row, known[`${row}/${metric}`]]));
  }
  async lineage(key) { return this.data.lineage[key]; }
  async trial(key, id) {
    const found = this.data.trials[key][id];
    if (!found) throw new Error("The details of this trial are not part of this report; the table has its values.");
    return found;
  }
  async cluster(key) { return this.data.clusters[key]; }
  async why(key, subject) {
    const found = (this.data.why[key] || {})[subject];
    if (!found) throw new Error("A report holds the newest answers only: ask `muster why`.");
    return found;
  }
  async act() { throw new Error("A report changes nothing."); }
  listen() { return () => {}; }
}

export function openSource() {
  const embedded = document.getElementById("muster-data");
  return embedded ? new EmbeddedSource(JSON.parse(embedded.textContent)) : new ServerSource();
}
