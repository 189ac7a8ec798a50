// The page: a list, or one experiment and one cluster in four bands. The URL holds what is chosen.
import { html, render, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/preact-htm.js";
import { clockTime, money, shortDuration, shortNumber } from "./format.js";
import { FRONT, NUMBER, SHARE, SHARE_NAME, openSource } from "./data.js";
import { EMPTY_VIEW, bestRow, countOf, hashOf, maskOf, overOf, sumOf, viewOf } from "./selection.js";
import { COST, Filters, TrialsTable } from "./trials.js";
import { ParallelPlot } from "./parallel.js";
import { CurvePlot, ImportanceBars, ScatterPlot } from "./charts.js";
import { LineagePlot, TrialTimeline } from "./timeline.js";
import { CopyText, TrialDrawer, WhyDrawer } from "./drawer.js";
import { ClusterBand, WhyBand } from "./cluster.js";
import { CompareExperiments, CompareTrials } from "./compare.js";
import { List, StateCounts } from "./list.js";

const source = openSource();

const GESTURE_MS = 800; // changes that follow each other so fast are one step: a drag, a word that is typed

/**
 * The view, and a function that changes it. Back undoes a step (true) or a gesture (default); "quiet" is neither.
 * @returns {[import("./selection.js").View, (part: Partial<import("./selection.js").View>, kind?: boolean | "quiet") => void]}
 */
function useView() {
  const [view, setView] = useState(viewOf(location.hash || source.start));
  const current = useRef(view), timer = useRef(0), changedAt = useRef(-Infinity);
  current.current = view;
  useEffect(() => {
    const back = () => { clearTimeout(timer.current); changedAt.current = -Infinity; setView(viewOf(location.hash || source.start)); };
    window.addEventListener("popstate", back);
    window.addEventListener("hashchange", back);
    return () => { window.removeEventListener("popstate", back); window.removeEventListener("hashchange", back); };
  }, []);
  const change = (part, /** @type {boolean | "quiet"} */ kind = false) => {
    const next = { ...current.current, ...part };
    current.current = next;
    setView(next);
    clearTimeout(timer.current);
    const isStep = kind === true || (kind !== "quiet" && performance.now() - changedAt.current > GESTURE_MS);
    changedAt.current = kind === false ? performance.now() : -Infinity;
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
    let table = null, stop = () => {}, isOver = false, isWaiting = false, version = 0, timer = 0, held = null; // deltas that came while a table was loaded
    const show = (more) => { if (!isOver) setState((before) => ({ ...before, ...more })); };
    const repaint = () => {
      if (isWaiting) return;
      isWaiting = true;
      requestAnimationFrame(() => { isWaiting = false; version += 1; show({ table, version, problem: "" }); });
    };
    const load = async () => {
      held = held || [];
      try {
        table = await source.table(key);
        const later = held;
        held = null;
        later.forEach(take);
        show({ table, problem: "", version: (version += 1), connection: source.isLive ? "live" : "report" });
        return true;
      } catch (error) {
        show({ problem: error.message, connection: "lost" });
        if (!isOver && source.isLive) timer = setTimeout(begin, 3000);
        return false;
      }
    };
    const take = (delta) => {
      if (held) held.push(delta);
      else if (delta.generation !== table.generation) load(); // its columns are others
      else if (delta.change >= table.change) { table.apply(delta); repaint(); window.musterLastDelta = performance.now(); }
    };
    const begin = async () => {
      if (!(await load()) || isOver || !source.isLive) return;
      stop();
      stop = source.listen(() => `/api/experiment/${key}/events?since=${table.generation}-${table.change}`, {
        reset: take, // held while a table is loaded, as deltas are: two loads at once would lose one's rows
        delta: take,
        curves: () => { table.curveChange += 1; repaint(); },
      }, (connection, problem) => show({ connection, problem }));
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

/** How long it is until a moment, in words. */
function until(at) {
  const left = at - Date.now() / 1000;
  return left > 0 ? `in ${shortDuration(left)}` : "over";
}

function Header({ table, cluster, connection, view, change, theme, metricKey, mode, act }) {
  const summary = table.summary, isRunning = summary.state === "running";
  useTick(isRunning);
  const created = table.trial("created").values, ended = table.trial("ended").values, reported = table.trial("reported").values;
  const over = overOf(summary.counts);
  const { first, last } = useMemo(() => {
    let first = Infinity, last = -Infinity;
    for (let row = 0; row < table.rows; row++) {
      if (created[row] < first) first = created[row];
      const end = Number.isNaN(ended[row]) ? reported[row] : ended[row];
      if (end > last) last = end;
    }
    return { first, last };
  }, [table.change, table]);
  const now = isRunning ? Math.max(last, Date.now() / 1000 - table.zeroTime) : last, elapsed = Math.max(0, now - first);
  const rate = elapsed > 0 ? over / elapsed : 0, total = summary.of, left = total ? total - over : null;
  const goals = summary.goals.length > 1 ? summary.goals.map((name, at) => [`metric/${name}`, summary.modes[at]]).filter(([, each]) => each !== "obs") : [[metricKey, mode]];
  const front = table.column(FRONT), first0 = front ? countOf(front.values.map((each) => (each === 0 ? 1 : 0))) : 0;
  const eta = isRunning && rate > 0 && left ? left / rate : null;
  return html`<header class="top"><div class="title"><h1>${summary.name}</h1><span class=${`badge ${summary.state}`}>${summary.state}</span><${Connection} connection=${connection} isRunning=${isRunning} /></div>
    <div class="figures" data-test="figures">
      ${goals.map(([key, each], at) => { const best = bestRow(table, key, each); return html`<div key=${key}><b data-test=${at ? "best-too" : "best"}>${best < 0 ? "–" : shortNumber(table.column(key).at(best))}</b> best ${key.slice(7)} (${each}) ${best < 0 ? null : html`<button class="link" onClick=${() => change({ open: table.ids[best] }, true)}>★ ${table.ids[best]}</button>${table.isAllowed(best) ? "" : " violates a constraint"}`}</div>`; })}
      ${front ? html`<div><b>${first0.toLocaleString("en")}</b> <button class="link" onClick=${() => change({ r: { ...view.r, [FRONT]: [0, 0] } }, true)}>on the Pareto front</button></div>` : null}
      <div><b data-test="trials">${over.toLocaleString("en")}${total ? ` of ${total.toLocaleString("en")}` : ""}</b> trials <${StateCounts} counts=${summary.counts} /></div>
      ${elapsed > 0 && Number.isFinite(elapsed) ? html`<div><b>${shortDuration(elapsed)}</b> elapsed</div>` : null}${rate ? html`<div><b>${shortNumber(rate * 3600)}</b> trials per hour</div>` : null}
      ${eta === null ? null : html`<div><b>${shortDuration(eta)}</b> to go</div>`}
      ${summary.budget_s ? html`<div><b>${shortDuration(summary.budget_s)}</b> time budget</div>` : null}
      ${table.column(COST) || summary.cost_budget ? html`<div><b data-test="trial-cost">${money(table.column(COST) ? sumOf(table.column(COST), table.rows) : 0)}</b> ${summary.cost_budget ? `of ${money(summary.cost_budget)} ` : ""}spent by trials</div>` : null}
      ${summary.deadline ? html`<div data-test="deadline">deadline <b>${clockTime(summary.deadline, true)}</b>${isRunning ? `, ${until(summary.deadline)}` : ""}</div>` : null}
      ${cluster ? html`<div><b>${money(cluster.spent)}</b> spent, <b>${money(cluster.per_hour)}</b> per hour</div>` : null}
    </div>
    ${summary.note ? html`<p class="note" data-test="note">Note: ${summary.note}</p>` : null}
    ${summary.pilots ? html`<p class="note" data-test="pilots">Slurm pilots: ${summary.pilots}</p>` : null}
    ${act && isRunning ? html`<${Actions} act=${act} summary=${summary} />` : null}
    ${summary.raised ? html`<p class="note bad" data-test="raised">fit() raised ${summary.raised}</p>` : null}
    ${summary.ended_by ? html`<p class="note" data-test="ended-by">Ended by its ${summary.ended_by}, with everything saved. With ${summary.ended_by === "budget" ? "a larger one" : "a later one"} it continues.</p>` : null}
    ${summary.resume ? html`<p class="note" data-test="resume">To resume: <${CopyText} text=${summary.resume} /></p>` : null}
    ${summary.problem ? html`<p class="note bad" role="alert" data-test="problem">${summary.problem} What was read before is shown.</p>` : null}
    ${summary.unreadable ? html`<p class="note bad">${summary.unreadable} records of this experiment are damaged and left out.</p>` : null}</header>`;
}

/** Stops the experiment or changes its limits, where `muster dashboard --allow-actions` allows it. */
function Actions({ act, summary }) {
  const ask = (question, value, use) => { const given = window.prompt(question, value); if (given !== null && Number(given) > 0) act(use(Number(given))); };
  return html`<p class="note" data-test="actions"><button onClick=${() => { if (window.confirm("Stop this experiment? Everything is saved, and it can be resumed.")) act({ stop: true }); }}>Stop the experiment</button>
    ${summary.cost_budget ? html` <button onClick=${() => ask("New total budget in USD, including what was already spent", summary.cost_budget, (value) => ({ cost_budget: value }))}>Change the budget</button>` : null}
    ${summary.deadline ? html` <button onClick=${() => ask("New deadline, in hours from now", "1", (value) => ({ deadline: Date.now() / 1000 + value * 3600 }))}>Change the deadline</button>` : null}</p>`;
}

function Connection({ connection, isRunning }) {
  const words = { live: isRunning ? "live" : "connected", lost: "Disconnected: trying again …", loading: "Loading …", report: "a report", none: "" }[connection];
  return html`<span class=${`connection ${connection}`} role="status" data-test="connection">${words}</span>`;
}

function ColumnChoice({ table, value, change, label, first }) {
  const columns = [...table.columns.filter((each) => each.group !== "trial" || ["training_iteration", "time_total_s", "created"].includes(each.name)), ...(table.goal() ? [{ key: SHARE, name: SHARE_NAME }] : [])]; // made when it is chosen: it sorts all trials
  return html`<label>${label} <select value=${value} onChange=${(event) => change(event.target.value)}>${first ? html`<option value=${first}>${first}</option>` : null}${columns.map((each) => html`<option key=${each.key} value=${each.key}>${each.name}</option>`)}</select></label>`;
}

const isNumber = (column) => Boolean(column && column.kind !== "word");

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
  const numbers = table.params.filter((each) => each.kind !== "word"), otherGoal = summary.goals.length > 1 && table.column(`metric/${summary.goals[1]}`) ? `metric/${summary.goals[1]}` : "";
  const valueKey = isNumber(table.column(view.colour)) ? view.colour : metricKey, surface = view.surface && isNumber(table.column(valueKey)) ? valueKey : "", xs = [!surface && table.column(otherGoal), numbers[0], table.params[0], table.trial("training_iteration")];
  const xKey = table.column(view.x) ? view.x : xs.find(Boolean).key, second = surface && numbers.find((each) => each.key !== xKey);
  const yKey = table.column(view.y) ? view.y : second ? second.key : metricKey === "metric/" ? "trial/time_total_s" : otherGoal ? goal : metricKey;
  const pareto = view.pareto ? view.pareto === "1" : Boolean(otherGoal), best = bestRow(table, metricKey, mode);
  const colour = view.colour || (summary.counts.STOPPED ? "trial/training_iteration" : "state"); // values of different rungs do not compare
  const historyX = view.by === "time" ? "trial/reported" : NUMBER;
  const up = (key) => { const at = summary.goals.indexOf(key.slice(7)); return key === metricKey ? mode !== "min" : at >= 0 ? summary.modes[at] !== "min" : false; };
  const marked = [table.ids.indexOf(view.open), bestRow(table, metricKey, mode, mask)];
  if (!table.rows) return html`<section class="band"><h2>Trials</h2><p class="note" data-test="empty">No trial has been made yet. This page fills itself as soon as one is.</p></section>`;
  const curves = html`<${CurvePlot} source=${source} experiment=${view.e} table=${table} metric=${metricKey.slice(7)} mode=${mode} isLog=${view.log} compared=${view.cmp} openTrial=${openTrial} mask=${mask} marked=${marked} curveChange=${table.curveChange} filterKey=${isFiltered ? `${view.q}|${view.st}|${ranges}|${times}` : ""} isFiltered=${isFiltered} />`;
  const parallel = html`<${ParallelPlot} best=${best} openTrial=${openTrial} table=${table} mask=${mask} metricKey=${metricKey} mode=${mode} ranges=${view.r} setRange=${setRange} chosen=${view.cols} version=${version} hovered=${hovered} />`;
  const importance = html`<${ImportanceBars} table=${table} mask=${laterMask} metricKey=${metricKey} mode=${mode} />`;
  if (view.only) return html`<section class="band" data-test="trials-band"><div class="panel"><h2>${{ parallel: "Parallel coordinates", importance: `Importance for ${metricKey.slice(7)}` }[view.only] || "Learning curves"}</h2>${view.only === "parallel" ? parallel : view.only === "importance" ? importance : curves}</div></section>`;
  return html`<section class="band" aria-labelledby="trials-title" data-test="trials-band"><h2 id="trials-title">Trials</h2>
    <${Filters} table=${table} view=${view} change=${change} mask=${mask} count=${count} metricKey=${metricKey} />
    <div class="grid">
      <div class="panel"><div class="panel-head"><h3>Learning curves</h3><label>of <select value=${metricKey} onChange=${(event) => change({ metric: event.target.value })}>${table.metrics.filter((each) => each.kind !== "word").map((each) => html`<option key=${each.key} value=${each.key}>${each.name}</option>`)}</select></label>
          <label><input type="checkbox" checked=${view.log} onChange=${() => change({ log: !view.log })} /> log</label></div>
        ${curves}</div>
      <div class="panel"><div class="panel-head"><h3>Scatter</h3><${ColumnChoice} table=${table} value=${xKey} label="x" change=${(key) => change({ x: key })} /><${ColumnChoice} table=${table} value=${yKey} label="y" change=${(key) => change({ y: key })} />
          <${ColumnChoice} table=${table} value=${surface || colour} label="color" first="state" change=${(key) => change({ colour: key })} />
          <label><input type="checkbox" checked=${pareto} onChange=${() => change({ pareto: pareto ? "0" : "1" })} /> Pareto front</label>
          <label><input type="checkbox" checked=${view.surface} onChange=${() => change({ surface: !view.surface })} /> surface</label></div>
        <${ScatterPlot} table=${table} mask=${soonMask} xKey=${xKey} yKey=${yKey} setRanges=${setRanges} version=${version} pareto=${pareto} goals=${{ x: up(xKey), y: up(yKey) }} openTrial=${openTrial} best=${best} colour=${surface || colour} surface=${Boolean(surface)} name="scatter" /></div>
      ${table.column(metricKey) ? html`<div class="panel wide"><div class="panel-head"><h3>Best ${metricKey.slice(7)} so far</h3><label>over <select value=${view.by} onChange=${(event) => change({ by: event.target.value })}><option value="">trials</option><option value="time">time</option></select></label></div>
        <${ScatterPlot} table=${table} mask=${soonMask} xKey=${historyX} yKey=${metricKey} setRanges=${setRanges} version=${version} pareto=${false} goals=${{ x: true, y: up(metricKey) }} openTrial=${openTrial} best=${best} colour=${view.colour} name="history" tall=${200} steps=${true} isLog=${view.log} /></div>` : null}
      ${view.cmp ? html`<${CompareTrials} table=${table} view=${view} change=${change} openTrial=${openTrial} />` : null}
      <div class="panel wide"><h3>Parallel coordinates <small>drag along an axis to filter, click it to clear; “Columns” chooses the axes; a stronger color is a ${mode === "min" ? "lower" : "higher"} ${metricKey.slice(7)}</small></h3>
        ${parallel}</div>
      <div class="panel wide table-panel"><${TrialsTable} table=${table} mask=${soonMask} view=${view} change=${change} openTrial=${openTrial} metricKey=${metricKey} version=${version} hover=${setHovered} best=${best} /></div>
      <div class="panel"><h3>Importance <small>how much of ${metricKey.slice(7)} each parameter explains</small></h3>${importance}</div>
      ${table.trial("machine").words.length ? html`<div class="panel"><h3>Trials by machine <small>drag to choose a time</small></h3><${TrialTimeline} best=${best} metricKey=${metricKey} table=${table} mask=${laterMask} span=${span} chosen=${view.t} setTime=${(t) => change({ t })} version=${version} openTrial=${openTrial} /></div>` : null}
      ${copies.length ? html`<div class="panel wide"><h3>Lineage <small>${copies.length} copies of the population</small></h3><${LineagePlot} copies=${copies} table=${table} openTrial=${openTrial} /></div>` : null}
    </div></section>`;
}

function Page() {
  const [view, change] = useView(), theme = useTheme(view), experiment = useExperiment(view.e), cluster = useCluster(view.c);
  const [list, setList] = useState(null), [said, setSaid] = useState("");
  useEffect(() => { source.list().then(setList, () => {}); }, []);
  useLayoutEffect(() => { // with the drawer, not a frame later: the next key is for what is drawn
    const keys = (event) => {
      if (event.key === "Escape" && (view.open || view.why)) change({ open: "", why: "" }, true);
      if (event.key === "/" && !document.activeElement.matches("input:not([type=checkbox]), select, textarea")) { const find = document.getElementById("find"); if (find) { event.preventDefault(); find.focus(); } }
    };
    window.addEventListener("keydown", keys);
    return () => window.removeEventListener("keydown", keys);
  });
  const table = experiment.table, name = table ? table.summary.name : cluster.view ? cluster.view.name : "", isDrawn = Boolean((view.open && table) || (view.why && view.c)); // the plots make room for it
  useEffect(() => { document.title = name ? `${name} · muster` : "muster"; }, [name]);
  useEffect(() => { document.body.classList.toggle("with-drawer", isDrawn); window.dispatchEvent(new Event("resize")); }, [isDrawn]);
  const span = useMemo(() => spanOf(table, cluster.view), [table && table.change, table, cluster.view]);
  const tools = html`<nav class="tools" aria-label="Page"><a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); const main = document.getElementById("main"); if (main) main.focus(); }}>Skip to the content</a>
    ${(view.e || view.c || view.es) && !(list && list.experiments.length + list.clusters.length === 1) ? html`<a href="#" onClick=${(event) => { event.preventDefault(); change({ ...EMPTY_VIEW, theme: view.theme }, true); }}>All experiments and clusters</a>` : null}
    ${list && list.clusters.length && (view.e || view.c) ? html`<label>Cluster <select value=${view.c} onChange=${(event) => change({ c: event.target.value })}><option value="">none</option>${list.clusters.map((each) => html`<option key=${each.key} value=${each.key}>${each.name}</option>`)}</select></label>` : null}
    <button onClick=${() => change({ theme: theme === "dark" ? "light" : "dark" }, "quiet")} data-test="theme">${theme === "dark" ? "Light" : "Dark"}</button></nav>`;
  if (view.es) return html`${tools}<${CompareExperiments} key=${theme} source=${source} view=${view} change=${change} />`;
  if (!view.e && !view.c) return html`${tools}<${List} source=${source} view=${view} change=${change} />`;
  const act = !list || !list.actions ? null : (request) => source.act(view.e, request).then(() => { setSaid("Requested: the driver applies it within a second."); setTimeout(() => setSaid(""), 8000); }, (error) => setSaid(error.message));
  const ask = (subject) => change({ why: subject, open: "" }, true);
  const metricKey = table ? (view.metric && table.column(view.metric) ? view.metric : `metric/${table.summary.metric}`) : "", mode = table ? table.summary.modes[Math.max(0, table.summary.goals.indexOf(metricKey.slice(7)))] || table.summary.mode : "max";
  return html`${tools}<main id="main" tabindex="-1">
    ${view.e && !table ? html`<header class="top">${experiment.problem ? html`<p class="note bad" role="alert" data-test="problem">${experiment.problem}</p>` : html`<p class="waiting" role="status">Loading the experiment …</p>`}</header>` : null}
    ${table ? html`<${Header} table=${table} cluster=${cluster.view} connection=${experiment.connection} view=${view} change=${change} theme=${theme} metricKey=${metricKey} mode=${mode} act=${act} />
      ${said ? html`<p class="note" role="status" data-test="said">${said}</p>` : null}
      ${experiment.problem ? html`<p class="note bad" role="alert" data-test="problem">${experiment.problem}</p>` : null}
      <${Trials} key=${`${view.e}${theme}`} state=${experiment} view=${view} change=${change} cluster=${cluster.view} span=${span} />` : null}
    ${view.e || !cluster.view ? null : html`<header class="top"><h1>${name}</h1></header>`}
    ${cluster.problem ? html`<p class="note bad" role="alert">${cluster.problem}</p>` : null}
    ${cluster.view ? html`<div key=${theme}><${ClusterBand} view=${cluster.view} span=${span} chosen=${view.t} setTime=${(t) => change({ t })} ask=${ask} /><${WhyBand} view=${cluster.view} chosen=${view.t} ask=${ask} /></div>` : null}
  </main>
  ${view.open && table ? html`<${TrialDrawer} key=${view.open + theme} source=${source} experiment=${view.e} id=${view.open} table=${table} version=${experiment.version} view=${cluster.view} metric=${metricKey.slice(7)} page=${view} change=${change} act=${act} close=${() => change({ open: "" }, true)} />` : null}
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
