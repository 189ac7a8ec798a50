// The page: a list, or one experiment and one cluster in four bands. The URL holds what is chosen.
import { html, render, useEffect, useMemo, useRef, useState } from "./vendor/preact-htm.js";
import { STATUS_COLOURS, STATUS_SIGNS, STATUS_WORDS, clockTime, money, shortDuration, shortNumber } from "./format.js";
import { openSource } from "./data.js";
import { bestRow, countOf, sumOf, hashOf, maskOf, viewOf } from "./selection.js";
import { COST, Filters, TrialsTable } from "./trials.js";
import { ParallelPlot } from "./parallel.js";
import { CurvePlot, ImportanceBars, ScatterPlot } from "./charts.js";
import { LineagePlot, TrialTimeline } from "./timeline.js";
import { TrialDrawer, WhyDrawer } from "./drawer.js";
import { ClusterBand, WhyBand } from "./cluster.js";

const source = openSource();

/** @returns {[import("./selection.js").View, (part: Partial<import("./selection.js").View>, isStep?: boolean) => void]} */
function useView() {
  const [view, setView] = useState(viewOf(location.hash));
  const current = useRef(view), timer = useRef(0);
  current.current = view;
  useEffect(() => {
    const back = () => setView(viewOf(location.hash));
    window.addEventListener("popstate", back);
    window.addEventListener("hashchange", back);
    return () => { window.removeEventListener("popstate", back); window.removeEventListener("hashchange", back); };
  }, []);
  const change = (part, isStep = false) => {
    const next = { ...current.current, ...part };
    current.current = next;
    setView(next);
    clearTimeout(timer.current);
    if (isStep) history.pushState(null, "", hashOf(next));
    else timer.current = setTimeout(() => history.replaceState(null, "", hashOf(current.current)), 120);
  };
  return [view, change];
}

function useTheme(view) {
  const [dark, setDark] = useState(matchMedia("(prefers-color-scheme: dark)").matches);
  useEffect(() => {
    const query = matchMedia("(prefers-color-scheme: dark)"), seen = () => setDark(query.matches);
    query.addEventListener("change", seen);
    return () => query.removeEventListener("change", seen);
  }, []);
  const theme = view.theme || (dark ? "dark" : "light");
  document.documentElement.dataset.theme = theme;
  return theme;
}

/** The table of an experiment, kept up to date: at most one repaint per frame. */
function useExperiment(key) {
  const [state, setState] = useState({ table: null, problem: "", connection: "loading", version: 0 });
  useEffect(() => {
    if (!key) { setState({ table: null, problem: "", connection: "none", version: 0 }); return undefined; }
    let table = null, stop = () => {}, isOver = false, isWaiting = false, version = 0, timer = 0;
    const show = (more) => { if (!isOver) setState((before) => ({ ...before, ...more })); };
    const repaint = () => {
      if (isWaiting) return;
      isWaiting = true;
      requestAnimationFrame(() => { isWaiting = false; version += 1; show({ table, version, problem: "" }); });
    };
    const load = async () => {
      try {
        table = await source.table(key);
        show({ table, problem: "", version: (version += 1), connection: source.isLive ? "live" : "report" });
        return true;
      } catch (error) {
        show({ problem: error.message, connection: "lost" });
        if (!isOver && source.isLive) timer = setTimeout(begin, 3000);
        return false;
      }
    };
    const begin = async () => {
      if (!(await load()) || isOver || !source.isLive) return;
      stop();
      stop = source.listen(() => `/api/experiment/${key}/events?since=${table.generation}-${table.change}`, {
        reset: (event) => { if (event.generation !== table.generation) load(); },
        delta: (delta) => { if (delta.generation !== table.generation) return; table.apply(delta); repaint(); window.musterLastDelta = performance.now(); },
        curves: () => { table.curveChange += 1; repaint(); },
      }, (connection) => show({ connection }));
    };
    setState({ table: null, problem: "", connection: "loading", version: 0 });
    begin();
    return () => { isOver = true; clearTimeout(timer); stop(); };
  }, [key]);
  return state;
}

function useCluster(key) {
  const [state, setState] = useState({ view: null, problem: "", version: 0 });
  useEffect(() => {
    if (!key) { setState({ view: null, problem: "", version: 0 }); return undefined; }
    let isOver = false, version = 0;
    const load = async () => {
      try { const view = await source.cluster(key); if (!isOver) setState({ view, problem: "", version: (version += 1) }); }
      catch (error) { if (!isOver) setState((before) => ({ ...before, problem: error.message })); }
    };
    load();
    const stop = source.listen(`/api/cluster/${key}/events`, { cluster: load }, () => {});
    return () => { isOver = true; stop(); };
  }, [key]);
  return state;
}

/** A value that follows once it has stood still: for what need not be drawn in every frame of a brush. */
function useLater(value, wait) {
  const [later, setLater] = useState(value);
  useEffect(() => { const timer = setTimeout(() => setLater(value), wait); return () => clearTimeout(timer); }, [value]);
  return later.length === value.length ? later : value;
}

function useTick(isRunning) {
  const [, setTick] = useState(0);
  useEffect(() => { if (!isRunning) return undefined; const timer = setInterval(() => setTick((tick) => tick + 1), 1000); return () => clearInterval(timer); }, [isRunning]);
}

function StateCounts({ counts }) {
  return html`<span class="counts">${Object.entries(STATUS_WORDS).filter(([status]) => counts[status]).map(([status, word]) => html`<span key=${status} class="count"><span style=${{ color: STATUS_COLOURS[status] }} aria-hidden="true">${STATUS_SIGNS[status]}</span> ${counts[status].toLocaleString("en")} ${word}</span>`)}</span>`;
}

/** How long it is until a moment, in words. */
function until(at) {
  const left = at - Date.now() / 1000;
  return left > 0 ? `in ${shortDuration(left)}` : "over";
}

function Header({ table, cluster, connection, view, change, theme, metricKey, mode }) {
  const summary = table.summary, isRunning = summary.state === "running";
  useTick(isRunning);
  const created = table.trial("created").values, ended = table.trial("ended").values, reported = table.trial("reported").values;
  const { first, last, over } = useMemo(() => {
    let first = Infinity, last = -Infinity, over = 0;
    for (let row = 0; row < table.rows; row++) {
      if (created[row] < first) first = created[row];
      const end = Number.isNaN(ended[row]) ? reported[row] : ended[row];
      if (end > last) last = end;
      if (!Number.isNaN(ended[row])) over += 1;
    }
    return { first, last, over };
  }, [table.change, table]);
  const now = isRunning ? Math.max(last, Date.now() / 1000 - table.zeroTime) : last, elapsed = Math.max(0, now - first);
  const rate = elapsed > 0 ? over / elapsed : 0, total = summary.of, left = total ? total - over : null;
  const best = bestRow(table, metricKey, mode), value = best < 0 ? null : table.column(metricKey).at(best);
  const eta = isRunning && rate > 0 && left ? left / rate : null;
  return html`<header class="top"><div class="title"><h1>${summary.name}</h1><span class=${`badge ${summary.state}`}>${summary.state}</span><${Connection} connection=${connection} isRunning=${isRunning} /></div>
    <div class="figures" data-test="figures">
      <div><b data-test="best">${value === null ? "–" : shortNumber(value)}</b> best ${metricKey.slice(7)} (${mode}) ${best < 0 ? null : html`<button class="link" onClick=${() => change({ open: table.ids[best] }, true)}>${table.ids[best]}</button>`}</div>
      <div><b data-test="trials">${over.toLocaleString("en")}${total ? ` of ${total.toLocaleString("en")}` : ""}</b> trials <${StateCounts} counts=${summary.counts} /></div>
      <div><b>${Number.isFinite(elapsed) ? shortDuration(elapsed) : "–"}</b> elapsed</div><div><b>${rate ? shortNumber(rate * 3600) : "–"}</b> trials per hour</div>
      ${eta === null ? null : html`<div><b>${shortDuration(eta)}</b> to go</div>`}
      ${summary.budget_s ? html`<div><b>${shortDuration(summary.budget_s)}</b> time budget</div>` : null}
      ${table.column(COST) || summary.cost_budget ? html`<div><b data-test="trial-cost">${money(table.column(COST) ? sumOf(table.column(COST), table.rows) : 0)}</b> ${summary.cost_budget ? `of ${money(summary.cost_budget)} ` : ""}spent by trials</div>` : null}
      ${summary.deadline ? html`<div data-test="deadline">deadline <b>${clockTime(summary.deadline, true)}</b>${isRunning ? `, ${until(summary.deadline)}` : ""}</div>` : null}
      ${cluster ? html`<div><b>${money(cluster.spent)}</b> spent, <b>${money(cluster.per_hour)}</b> per hour</div>` : null}
    </div>
    ${summary.ended_by ? html`<p class="note" data-test="ended-by">Ended by its ${summary.ended_by}, with everything saved. With ${summary.ended_by === "budget" ? "a larger one" : "a later one"} it goes on: <code>muster tune resume PATH ${summary.ended_by === "budget" ? "--cost-budget" : "--deadline"} …</code></p>` : null}
    ${summary.problem ? html`<p class="note bad" role="alert" data-test="problem">${summary.problem} What was read before is shown.</p>` : null}
    ${summary.unreadable ? html`<p class="note bad">${summary.unreadable} records of this experiment are damaged and left out.</p>` : null}</header>`;
}

function Connection({ connection, isRunning }) {
  const words = { live: isRunning ? "live" : "connected", lost: "Disconnected: trying again …", loading: "Loading …", report: "a report", none: "" }[connection];
  return html`<span class=${`connection ${connection}`} role="status" data-test="connection">${words}</span>`;
}

function ColumnChoice({ table, value, change, label }) {
  const columns = table.columns.filter((each) => each.group !== "trial" || ["training_iteration", "time_total_s", "created"].includes(each.name));
  return html`<label>${label} <select value=${value} onChange=${(event) => change(event.target.value)}>${columns.map((each) => html`<option key=${each.key} value=${each.key}>${each.name}</option>`)}</select></label>`;
}

function Trials({ state, view, change, cluster, span }) {
  const { table, version } = state, summary = table.summary, [hovered, setHovered] = useState(-1), [copies, setCopies] = useState([]);
  const goal = `metric/${summary.metric}`, metricKey = view.metric && table.column(view.metric) ? view.metric : table.column(goal) ? goal : table.metrics.length ? table.metrics[0].key : "metric/";
  const place = summary.goals.indexOf(metricKey.slice(7)), mode = place >= 0 ? summary.modes[place] || summary.mode : summary.mode;
  const ranges = JSON.stringify(view.r), times = view.t ? view.t.join() : "";
  const mask = useMemo(() => maskOf(table, view), [table, version, view.q, view.st, ranges, times]);
  const isLarge = table.rows > 2000; // then what a brush does not draw itself waits until it rests
  const soonMask = useLater(mask, isLarge ? 140 : 50), laterMask = useLater(mask, isLarge ? 300 : 150), count = countOf(mask), isFiltered = count < table.rows;
  const setRange = (key, range) => { const next = { ...view.r }; if (range) next[key] = range; else delete next[key]; change({ r: next }); };
  const setRanges = (given) => { const next = { ...view.r }; for (const [key, range] of Object.entries(given)) { if (range) next[key] = range; else delete next[key]; } change({ r: next }); };
  const openTrial = (row) => change({ open: table.ids[row] }, true);
  useEffect(() => { let isOver = false; if (summary.policy_bytes) source.lineage(view.e).then((found) => { if (!isOver) setCopies(found); }, () => {}); return () => { isOver = true; }; }, [view.e, summary.policy_bytes]);
  const numbers = table.params.filter((each) => each.kind !== "word"), xKey = table.column(view.x) ? view.x : (numbers[0] || table.params[0] || table.columns[2]).key;
  const otherGoal = summary.goals.length > 1 ? `metric/${summary.goals[1]}` : "", yKey = table.column(view.y) ? view.y : metricKey === "metric/" ? "trial/time_total_s" : metricKey;
  const up = (key) => { const at = summary.goals.indexOf(key.slice(7)); return key === metricKey ? mode !== "min" : at >= 0 ? summary.modes[at] !== "min" : false; };
  const marked = [table.ids.indexOf(view.open), bestRow(table, metricKey, mode, mask)];
  if (!table.rows) return html`<section class="band"><h2>Trials</h2><p class="note" data-test="empty">No trial has been made yet. This page fills itself as soon as one is.</p></section>`;
  return html`<section class="band" aria-labelledby="trials-title" data-test="trials-band"><h2 id="trials-title">Trials</h2>
    <${Filters} table=${table} view=${view} change=${change} count=${count} metricKey=${metricKey} />
    <div class="grid">
      <div class="panel"><div class="panel-head"><h3>Learning curves</h3><label>of <select value=${metricKey} onChange=${(event) => change({ metric: event.target.value })}>${table.metrics.filter((each) => each.kind !== "word").map((each) => html`<option key=${each.key} value=${each.key}>${each.name}</option>`)}</select></label></div>
        <${CurvePlot} source=${source} experiment=${view.e} table=${table} metric=${metricKey.slice(7)} mask=${mask} marked=${marked} curveChange=${table.curveChange} filterKey=${isFiltered ? `${view.q}|${view.st}|${ranges}|${times}` : ""} isFiltered=${isFiltered} /></div>
      <div class="panel"><div class="panel-head"><h3>Scatter</h3><${ColumnChoice} table=${table} value=${xKey} label="x" change=${(key) => change({ x: key })} /><${ColumnChoice} table=${table} value=${yKey} label="y" change=${(key) => change({ y: key })} />
          <label><input type="checkbox" checked=${view.pareto} onChange=${() => change({ pareto: !view.pareto, ...(otherGoal && !view.pareto ? { x: otherGoal, y: goal } : {}) })} /> Pareto front</label></div>
        <${ScatterPlot} table=${table} mask=${soonMask} xKey=${xKey} yKey=${yKey} setRanges=${setRanges} version=${version} pareto=${view.pareto} goals=${{ x: up(xKey), y: up(yKey) }} openTrial=${openTrial} /></div>
      <div class="panel wide"><h3>Parallel coordinates <small>drag along an axis to filter, click it to clear; bright is ${mode === "min" ? "low" : "high"}</small></h3>
        <${ParallelPlot} table=${table} mask=${mask} metricKey=${metricKey} mode=${mode} ranges=${view.r} setRange=${setRange} version=${version} hovered=${hovered} /></div>
      <div class="panel wide table-panel"><${TrialsTable} table=${table} mask=${soonMask} view=${view} change=${change} openTrial=${openTrial} metricKey=${metricKey} version=${version} hover=${setHovered} /></div>
      <div class="panel"><h3>Importance <small>how much of ${metricKey.slice(7)} each parameter explains</small></h3><${ImportanceBars} table=${table} mask=${laterMask} metricKey=${metricKey} mode=${mode} /></div>
      <div class="panel"><h3>Trials by machine <small>drag to choose a time</small></h3><${TrialTimeline} table=${table} mask=${laterMask} span=${span} chosen=${view.t} setTime=${(t) => change({ t })} version=${version} openTrial=${openTrial} /></div>
      ${copies.length ? html`<div class="panel wide"><h3>Lineage <small>${copies.length} copies of the population</small></h3><${LineagePlot} copies=${copies} table=${table} openTrial=${openTrial} /></div>` : null}
    </div></section>`;
}

function List({ change }) {
  const [list, setList] = useState(null), [problem, setProblem] = useState("");
  useEffect(() => {
    let isOver = false, timer = 0;
    const load = async () => {
      try { const found = await source.list(); if (!isOver) { setList(found); setProblem(""); } } catch (error) { if (!isOver) setProblem(error.message); }
      if (!isOver && source.isLive) timer = setTimeout(load, 3000);
    };
    load();
    return () => { isOver = true; clearTimeout(timer); };
  }, []);
  useEffect(() => { if (list && list.experiments.length + list.clusters.length === 1) change(list.experiments.length ? { e: list.experiments[0].key } : { c: list.clusters[0].key }); }, [list]);
  if (problem) return html`<p class="note bad" role="alert">${problem}</p>`;
  if (!list) return html`<p class="waiting">Loading …</p>`;
  const open = (part) => (event) => { event.preventDefault(); change(part, true); };
  return html`<main id="main"><header class="top"><div class="title"><h1>muster</h1></div></header>
    <section class="band" data-test="list"><h2>Experiments</h2>${list.experiments.length ? html`<div class="table-box short" tabindex="0" aria-label="Experiments"><table><thead><tr><th scope="col">experiment</th><th scope="col">state</th><th scope="col" class="number">best</th><th scope="col" class="number">trials</th><th scope="col">by state</th><th scope="col">changed</th></tr></thead><tbody>
      ${list.experiments.map((each) => html`<tr key=${each.key}><th scope="row"><a href=${hashOf({ e: each.key })} onClick=${open({ e: each.key })}>${each.name}</a></th><td>${each.state || "…"}</td>
        <td class="number">${each.best === null || each.best === undefined ? "" : `${shortNumber(each.best)} ${each.metric}`}</td><td class="number">${each.counts ? `${Object.values(each.counts).reduce((a, b) => a + b, 0).toLocaleString("en")}${each.of ? ` of ${each.of.toLocaleString("en")}` : ""}` : ""}</td>
        <td>${each.problem ? html`<span class="bad">${each.problem}</span>` : each.counts ? html`<${StateCounts} counts=${each.counts} />` : ""}</td><td>${clockTime(each.changed, true)}</td></tr>`)}</tbody></table></div>` : html`<p class="note" data-test="empty">No experiment was found. <code>muster dashboard PATH</code> opens one; <code>tuner.fit()</code> makes one.</p>`}</section>
    <section class="band"><h2>Clusters</h2>${list.clusters.length ? html`<div class="table-box short" tabindex="0" aria-label="Clusters"><table><thead><tr><th scope="col">cluster</th><th scope="col">state</th><th scope="col" class="number">machines</th><th scope="col" class="number">spent</th><th scope="col" class="number">per hour</th><th scope="col"></th></tr></thead><tbody>
      ${list.clusters.map((each) => html`<tr key=${each.key}><th scope="row"><a href=${hashOf({ c: each.key })} onClick=${open({ c: each.key })}>${each.name}</a></th><td>${each.is_up ? "up" : "down"}</td><td class="number">${each.machines ?? ""}</td><td class="number">${money(each.spent)}</td><td class="number">${money(each.per_hour)}</td><td class="bad">${each.problem || ""}</td></tr>`)}</tbody></table></div>` : html`<p class="note">No cluster has files on this computer.</p>`}</section></main>`;
}

function Page() {
  const [view, change] = useView(), theme = useTheme(view), experiment = useExperiment(view.e), cluster = useCluster(view.c);
  const [list, setList] = useState(null);
  useEffect(() => { source.list().then(setList, () => {}); }, []);
  useEffect(() => {
    const keys = (event) => {
      if (event.key === "Escape" && (view.open || view.why)) change({ open: "", why: "" }, true);
      if (event.key === "/" && !["INPUT", "SELECT", "TEXTAREA"].includes(document.activeElement.tagName)) { const find = document.getElementById("find"); if (find) { event.preventDefault(); find.focus(); } }
    };
    window.addEventListener("keydown", keys);
    return () => window.removeEventListener("keydown", keys);
  });
  const table = experiment.table;
  useEffect(() => { document.title = table ? `${table.summary.name} · muster` : "muster"; }, [table]);
  const span = useMemo(() => spanOf(table, cluster.view), [table && table.change, table, cluster.view]);
  const tools = html`<nav class="tools" aria-label="Page"><a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); const main = document.getElementById("main"); if (main) main.focus(); }}>Skip to the content</a>
    ${view.e || view.c ? html`<a href="#" onClick=${(event) => { event.preventDefault(); change({ e: "", c: "", open: "", why: "", r: {}, q: "", st: "", t: null }, true); }}>All experiments and clusters</a>` : null}
    ${list && list.clusters.length && (view.e || view.c) ? html`<label>Cluster <select value=${view.c} onChange=${(event) => change({ c: event.target.value })}><option value="">none</option>${list.clusters.map((each) => html`<option key=${each.key} value=${each.key}>${each.name}</option>`)}</select></label>` : null}
    <button onClick=${() => change({ theme: theme === "dark" ? "light" : "dark" })} data-test="theme">${theme === "dark" ? "Light" : "Dark"}</button></nav>`;
  if (!view.e && !view.c) return html`${tools}<${List} change=${change} />`;
  const ask = (subject) => change({ why: subject, open: "" }, true);
  const metricKey = table ? (view.metric && table.column(view.metric) ? view.metric : `metric/${table.summary.metric}`) : "", mode = table ? table.summary.modes[Math.max(0, table.summary.goals.indexOf(metricKey.slice(7)))] || table.summary.mode : "max";
  return html`${tools}<main id="main" tabindex="-1">
    ${view.e && !table ? html`<header class="top">${experiment.problem ? html`<p class="note bad" role="alert" data-test="problem">${experiment.problem}</p>` : html`<p class="waiting" role="status">Loading the experiment …</p>`}</header>` : null}
    ${table ? html`<${Header} table=${table} cluster=${cluster.view} connection=${experiment.connection} view=${view} change=${change} theme=${theme} metricKey=${metricKey} mode=${mode} />
      ${experiment.problem ? html`<p class="note bad" role="alert" data-test="problem">${experiment.problem}</p>` : null}
      <${Trials} key=${`${view.e}${theme}`} state=${experiment} view=${view} change=${change} cluster=${cluster.view} span=${span} />` : null}
    ${cluster.problem ? html`<p class="note bad" role="alert">${cluster.problem}</p>` : null}
    ${cluster.view ? html`<div key=${theme}><${ClusterBand} view=${cluster.view} span=${span} chosen=${view.t} setTime=${(t) => change({ t })} ask=${ask} /><${WhyBand} view=${cluster.view} chosen=${view.t} ask=${ask} /></div>` : null}
    ${table && !view.c ? html`<section class="band quiet" data-test="no-cluster"><h2>Cluster</h2><p class="note">No cluster is chosen. <code>muster dashboard PATH --cluster NAME</code> shows its machines, its spend and its reasons on the same time axis.</p></section>` : null}
  </main>
  ${view.open && table ? html`<${TrialDrawer} key=${view.open} source=${source} experiment=${view.e} id=${view.open} table=${table} version=${experiment.version} view=${cluster.view} close=${() => change({ open: "" }, true)} />` : null}
  ${view.why && view.c ? html`<${WhyDrawer} key=${view.why} source=${source} cluster=${view.c} subject=${view.why} version=${cluster.version} close=${() => change({ why: "" }, true)} />` : null}`;
}

/** The time that all bands show: from the first thing known to the last. */
function spanOf(table, cluster) {
  let from = Infinity, until = -Infinity;
  if (table && table.rows) {
    for (const name of ["created", "reported", "ended"]) {
      const values = table.trial(name).values;
      for (let row = 0; row < table.rows; row++) { const at = values[row] + table.zeroTime; if (at < from) from = at; if (at > until) until = at; }
    }
    if (table.summary.state === "running") until = Math.max(until, table.summary.now);
  }
  if (cluster) for (const machine of cluster.machines) {
    if (machine.changes.length && machine.changes[0][0] < from) from = machine.changes[0][0];
    const last = machine.paid_from !== null && machine.paid_until === null ? cluster.now : machine.changes.length ? machine.changes[machine.changes.length - 1][0] : -Infinity;
    if (last > until) until = last;
  }
  if (!(until > from)) return [Date.now() / 1000 - 60, Date.now() / 1000];
  return [from, until + (until - from) * 0.01];
}

const root = document.getElementById("page");
root.textContent = "";
render(html`<${Page} />`, root);
