// The cluster band (machines, demand, spend) and the why band (the stream of decisions).
import { html, useMemo } from "./vendor/preact-htm.js";
import { MACHINE_COLOURS, PALETTE, clockTime, money, shortNumber } from "./format.js";
import { MachineTimeline, SpendTimeline, StackedTimeline, words } from "./timeline.js";

const WAIT_COLOURS = { placed: "#009e73", "waiting-for-node": "#56b4e9", "waiting-for-launch": "#0072b2", "waiting-for-resize": "#8ab6d6",
  infeasible: "#d55e00", invalid: "#a33c00", "blocked-by-type-limit": "#c77700", "blocked-by-cluster-limit": "#c98a00", "blocked-by-backoff": "#cc79a7", "blocked-by-gang": "#8a7000" };
const OVER = new Set(["TERMINATED", "ALLOCATION_FAILED"]);

/** Machines that exist, by type and market, after each change. */
export function capacitySteps(view) {
  const events = [], names = new Set();
  for (const machine of view.machines) {
    if (machine.paid_from === null) continue;
    const name = `${machine.node_type}${machine.market && machine.market !== "on-demand" ? ` ${machine.market}` : ""}`;
    names.add(name);
    events.push([machine.paid_from, name, 1]);
    if (machine.paid_until !== null) events.push([machine.paid_until, name, -1]);
  }
  events.sort((a, b) => a[0] - b[0]);
  const counts = {}, steps = [];
  for (const [at, name, by] of events) { counts[name] = (counts[name] || 0) + by; steps.push([at, { ...counts }]); }
  return { steps, names: [...names].sort() };
}

/** Money spent, at every change and in between. */
export function spendPoints(view, [from, until]) {
  const end = Math.min(until, view.now), times = [from, end];
  for (const machine of view.machines) { if (machine.paid_from !== null) times.push(machine.paid_from); if (machine.paid_until !== null) times.push(machine.paid_until); }
  const shown = [...new Set(times)].filter((at) => at >= from && at <= end).sort((a, b) => a - b), step = Math.max(1, Math.ceil(shown.length / 300));
  return shown.filter((_, at) => at % step === 0 || at === shown.length - 1).map((at) => {
    let sum = view.spent_before;
    for (const machine of view.machines) {
      if (machine.paid_from === null || machine.paid_from > at || !machine.price_per_hour) continue;
      const end = machine.paid_until === null ? view.now : machine.paid_until, whole = Math.max(1e-9, end - machine.paid_from);
      sum += machine.cost * Math.min(1, (at - machine.paid_from) / whole);
    }
    return [at, sum];
  });
}

function Legend({ names, colours }) {
  return html`<ul class="legend">${names.map((name) => html`<li key=${name}><span class="swatch" style=${{ background: colours[name] }}></span>${words(name)}</li>`)}</ul>`;
}

export function ClusterBand({ view, span, chosen, setTime, ask }) {
  const capacity = useMemo(() => capacitySteps(view), [view]), spend = useMemo(() => spendPoints(view, span), [view, span[0], span[1]]);
  const verdicts = [...new Set(view.demand.flatMap(([, counts]) => Object.keys(counts)))].filter((name) => name !== "placed");
  const at = chosen ? chosen[1] : view.now;
  const alive = view.machines.filter((each) => each.paid_from !== null && each.paid_from <= at && (each.paid_until === null || each.paid_until > at));
  const states = [...new Set(view.machines.flatMap((each) => each.changes.map((change) => change[1])))].filter((state) => !OVER.has(state));
  const shared = { span, chosen, setTime }, failures = Object.entries(view.failures);
  const colourOf = Object.fromEntries(capacity.names.map((name, place) => [name, PALETTE[place % PALETTE.length]]));
  return html`<section class="band" aria-labelledby="cluster-title" data-test="cluster-band"><h2 id="cluster-title">Cluster ${view.name} <small>${view.is_up ? "up" : "not up: its ledger is shown"}${view.known_since ? `, known since ${clockTime(view.known_since, true)}` : ""}</small></h2>
    ${view.problem ? html`<p class="note bad">${view.problem}</p>` : null}
    <div class="figures"><div><b>${alive.length}</b> ${alive.length === 1 ? "machine" : "machines"} ${chosen ? "then" : "now"}</div><div><b>${money(view.spent)}</b> spent</div><div><b>${money(alive.reduce((sum, each) => sum + (each.price_per_hour || 0), 0))}</b> per hour</div>
      ${view.budget ? html`<div data-test="budget">budget: ${view.budget}</div>` : null}
      ${failures.length ? html`<div><b>${failures.reduce((sum, [, count]) => sum + count, 0)}</b> failed launches: ${failures.slice(0, 4).map(([kind, count]) => `${kind} × ${count}`).join(", ")}</div>` : null}</div>
    ${view.machines.length ? html`<div class="grid"><div class="panel wide"><h3>Machines by state</h3><${MachineTimeline} view=${view} ...${shared} pick=${(machine) => ask(machine.machine)} /><${Legend} names=${states} colours=${MACHINE_COLOURS} />
        <p class="under">${view.machines.slice(-12).map((each) => html`<button class="link" key=${each.machine} onClick=${() => ask(each.machine)}>${each.machine}</button>${each.price_per_hour ? ` ${money(each.cost)}` : ""} `)}</p></div>
      <div class="panel"><h3>Machines by type and market</h3><${StackedTimeline} steps=${capacity.steps} names=${capacity.names} colours=${colourOf} ...${shared} name="capacity" label="Machines over time." unit=${1} /><${Legend} names=${capacity.names} colours=${colourOf} /></div>
      <div class="panel"><h3>Waiting requests by verdict</h3>${verdicts.length ? html`<${StackedTimeline} steps=${view.demand} names=${verdicts} colours=${WAIT_COLOURS} ...${shared} name="demand" label="Requests that wait, over time." unit=${1} /><${Legend} names=${verdicts} colours=${WAIT_COLOURS} />` : html`<p class="note">Nothing waited.</p>`}<button class="link" onClick=${() => ask("demand")}>Why does demand wait?</button></div>
      <div class="panel"><h3>Spend</h3><${SpendTimeline} points=${spend} ...${shared} /></div>
      <div class="panel"><h3>Used and free</h3><${Usage} nodes=${view.nodes} /></div>
      ${view.forecasts.length ? html`<${Forecasts} view=${view} />` : null}</div>` : html`<p class="note">This cluster has launched no machine yet.</p>`}
  </section>`;
}

/** What tuners expect: the trials that run, those still to come, and what their limits leave. */
function Forecasts({ view }) {
  const shape = (given) => Object.entries(given).map(([name, amount]) => `${shortNumber(amount)} ${name}`).join(", ");
  const coming = (each) => each.coming.map(([given, count, chance]) => `${count.toLocaleString("en")} × ${shape(given)}${chance < 1 ? ` (${Math.round(chance * 100)} %)` : ""}`).join("; ") || "none";
  return html`<div class="panel wide" data-test="forecasts"><h3>What tuners expect <small>machines are launched, kept and released by it</small></h3><div class="table-box short" tabindex="0" aria-label="Forecasts of tuners"><table>
    <thead><tr><th scope="col">experiment</th><th scope="col" class="number">trials running</th><th scope="col" class="number">can be moved</th><th scope="col">trials to come</th><th scope="col">deadline</th><th scope="col" class="number">budget left</th></tr></thead>
    <tbody>${view.forecasts.map((each) => html`<tr key=${each.experiment}><th scope="row" title=${each.experiment}>${each.experiment.split("/").pop()}</th><td class="number">${each.running}</td><td class="number">${each.movable}</td><td>${coming(each)}${each.is_complete ? "" : ", and more"}</td><td>${each.deadline ? clockTime(each.deadline, true) : ""}</td><td class="number">${each.budget_left === null ? "" : money(each.budget_left)}</td></tr>`)}</tbody></table></div></div>`;
}

function Usage({ nodes }) {
  if (!nodes.length) return html`<p class="note">No node reports now.</p>`;
  const shapes = new Map();
  for (const node of nodes) {
    const found = shapes.get(node.node_type) || { count: 0, total: {}, free: {} };
    found.count += 1;
    for (const [name, value] of Object.entries(node.total)) if (!name.includes(":")) { found.total[name] = (found.total[name] || 0) + value; found.free[name] = (found.free[name] || 0) + (node.free[name] || 0); }
    shapes.set(node.node_type, found);
  }
  return html`<ul class="usage">${[...shapes].map(([name, each]) => html`<li key=${name}><b>${name || "node"}</b> × ${each.count} ${Object.entries(each.total).filter(([kind]) => ["CPU", "GPU"].includes(kind)).map(([kind, total]) => html`
    <label key=${kind}>${kind} ${shortNumber(total - each.free[kind])} of ${shortNumber(total)} used <meter min="0" max=${total} value=${total - each.free[kind]}></meter></label>`)}</li>`)}</ul>`;
}

/** Who a verdict is about, for people: ids of Ray are in the tooltip. */
function subjectWords(verdict) {
  const kinds = { demand: "tasks and actors", gang: "a trial or another placement group", constraint: "the requested size of the cluster", node_type: "type", "node-type": "type" };
  return `${kinds[verdict.subject] || words(verdict.subject)}${["demand", "gang", "constraint"].includes(verdict.subject) ? "" : ` ${verdict.subject_id}`}`;
}

function actionWords(action) {
  const kind = action.type || action.t || Object.keys(action)[0] || "";
  const shape = action.shape ? Object.entries(action.shape).map(([name, count]) => `${count} × ${name}`).join(", ") : "";
  const offer = action.offer ? ` ${[action.offer.zone, action.offer.market].filter(Boolean).join("/")}${action.offer.price_per_hour ? ` at ${money(action.offer.price_per_hour)} per hour` : ""}` : "";
  const ids = (action.instance_ids || []).join(", ");
  return `${kind} ${shape}${offer}${ids ? ` (${ids})` : ""}`.trim();
}

export function WhyBand({ view, chosen, ask }) {
  const shown = view.decisions.filter((each) => !chosen || (each.at >= chosen[0] && each.at <= chosen[1])).slice(0, 80);
  return html`<section class="band" aria-labelledby="why-title" data-test="why-band"><h2 id="why-title">Why <small>the newest decisions${chosen ? " of the chosen time" : ""}; click a name for the whole story</small></h2>
    ${shown.length ? html`<ol class="decisions" tabindex="0">${shown.map((each) => html`<li key=${each.version}><time>${clockTime(each.at, true)}</time>
      <div>${each.actions.map((action, at) => html`<p key=${at} class="action">${actionWords(action)}</p>`)}
      <p class="moved">${Object.entries(each.moved).slice(0, 12).map(([id, state]) => html`<span key=${id}><button class="link" onClick=${() => ask(id)}>${id}</button> → ${words(state)} </span>`)}</p>
      <ul class="verdicts">${each.verdicts.slice(0, 20).map((verdict, at) => html`<li key=${at}><button class="link" onClick=${() => ask(verdict.subject === "demand" ? "demand" : verdict.subject_id)} title=${verdict.subject_id || ""}>${subjectWords(verdict)}</button> <b>${words(verdict.reason)}</b>${(verdict.count || 1) > 1 ? ` × ${verdict.count}` : ""}${verdict.detail ? `: ${verdict.detail}` : ""} ${verdict.target ? html`<button class="link" onClick=${() => ask(verdict.target)}>${verdict.target}</button>` : null}</li>`)}</ul>
      ${each.more_verdicts ? html`<p class="note">and ${each.more_verdicts} more verdicts</p>` : null}</div></li>`)}</ol>` : html`<p class="note">No decision is recorded${chosen ? " for this time" : ""}.</p>`}
  </section>`;
}
