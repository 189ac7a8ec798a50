// The drawer: one trial in detail, or one answer of `muster why`.
import { html, useEffect, useLayoutEffect, useRef, useState } from "./vendor/preact-htm.js";
import { TrialCurve } from "./charts.js";
import { COST } from "./trials.js";
import { STATUS_COLOURS, STATUS_SIGNS, STATUS_WORDS, clockTime, money, shortDuration } from "./format.js";

/** A command or a text, and a button that copies it. */
export function CopyText({ text, label = "Copy", isHidden = false }) {
  const [said, setSaid] = useState("");
  const copy = async () => { try { await navigator.clipboard.writeText(text); setSaid("Copied"); } catch { setSaid("Select and copy it"); } setTimeout(() => setSaid(""), 2000); };
  return html`<span class="copy">${isHidden ? null : html`<code tabindex="0">${text}</code>`} <button onClick=${copy}>${said || label}</button></span>`;
}

export function Drawer({ title, close, children }) {
  const box = useRef(null);
  useLayoutEffect(() => {
    const before = /** @type {HTMLElement | null} */ (document.activeElement);
    if (box.current) box.current.querySelector("button").focus();
    return () => { if (before && before.focus) before.focus({ preventScroll: true }); };
  }, []);
  const keys = (event) => { if (event.key === "Escape") { event.stopPropagation(); close(); } };
  return html`<section class="drawer" role="dialog" aria-label=${title} ref=${box} onKeyDown=${keys} data-test="drawer">
    <header><h2>${title}</h2><button onClick=${close} aria-label="Close">×</button></header>${children}</section>`;
}

function Pairs({ pairs, name }) {
  if (!pairs || !pairs.length) return null;
  return html`<section><h3>${name}</h3><dl class="pairs">${pairs.map(([key, value]) => html`<div key=${key}><dt title=${key}>${key}</dt><dd>${value}</dd></div>`)}</dl></section>`;
}

export function TrialDrawer({ source, experiment, id, close, version, table, view: cluster, metric, page, change, act }) {
  const [trial, setTrial] = useState(null), [problem, setProblem] = useState(""), [beat, setBeat] = useState(0), [copies, setCopies] = useState([]), row = table.ids.indexOf(id);
  const compared = new Set(page.cmp ? page.cmp.split(",") : []), place = trial && `${table.summary.address}/${trial.folder}`;
  const reports = row < 0 ? 0 : table.trial("reports").at(row), status = row < 0 ? "" : table.status(row);
  useEffect(() => {
    let isOver = false;
    source.trial(experiment, id).then((found) => { if (!isOver) { setTrial(found); setProblem(""); } }, (error) => { if (!isOver) setProblem(error.message); });
    return () => { isOver = true; };
  }, [experiment, id, status, Math.floor(reports / 5), beat]);
  useEffect(() => { if (!source.isLive || status !== "RUNNING") return undefined; const timer = setInterval(() => setBeat((each) => each + 1), 2000); return () => clearInterval(timer); }, [id, status]);
  useEffect(() => { let isOver = false; if (table.summary.policy_bytes) source.lineage(experiment).then((found) => { if (!isOver) setCopies(found.filter(([donor, target]) => donor === row || target === row)); }, () => {}); return () => { isOver = true; }; }, [experiment, id, table.summary.policy_bytes]);
  if (problem) return html`<${Drawer} title=${`Trial ${id}`} close=${close}><p class="note bad">${problem}</p></${Drawer}>`;
  if (!trial || trial.trial_id !== id) return html`<${Drawer} title=${`Trial ${id}`} close=${close}><p class="note">Loading …</p></${Drawer}>`;
  const { times } = trial, own = row < 0 || !table.column(COST) ? NaN : table.column(COST).at(row), cost = !Number.isNaN(own) ? own : row < 0 ? null : costOf(table, row, cluster);
  return html`<${Drawer} title=${`Trial ${id}`} close=${close}>
    <p class="headline"><span style=${{ color: STATUS_COLOURS[status] }} aria-hidden="true">${STATUS_SIGNS[status]}</span> <b>${STATUS_WORDS[status] || status}</b> ${trial.name} <button onClick=${() => { if (!compared.delete(id)) compared.add(id); change({ cmp: [...compared].slice(-12).join(",") }); }}>${compared.has(id) ? "Do not compare" : "Compare"}</button>
      ${act && ["RUNNING", "PENDING", "PAUSED"].includes(status) ? html` <button onClick=${() => { if (window.confirm(`Stop trial ${id}? It does not continue.`)) act({ trials: [id] }); }}>Stop this trial</button>` : null}</p>
    <section><h3>Why</h3><p data-test="why-words">${trial.why}</p></section>
    ${row >= 0 && metric ? html`<section data-test="own-curve"><h3>${metric} by iteration</h3><${TrialCurve} source=${source} experiment=${experiment} table=${table} row=${row} metric=${metric} reports=${reports} /></section>` : null}
    <section><h3>Time${cost === null ? "" : " and cost"}</h3><p>created ${clockTime(times.created, true)}${times.started ? `, started ${clockTime(times.started)}` : ""}${times.ended ? `, ended ${clockTime(times.ended)}, after ${shortDuration(times.ended - times.started)}` : ""}.
      ${trial.starts > 1 ? ` Started ${trial.starts} times.` : ""}${trial.failures ? ` Failed ${trial.failures === 1 ? "once" : `${trial.failures} times`}.` : ""}${cost === null ? "" : Number.isNaN(own) ? ` About ${money(cost)}, as its share of the machine.` : ` It has cost ${money(cost)}.`}</p></section>
    ${trial.folder ? html`<section><h3>Directory</h3><p><${CopyText} text=${place} /></p></section>` : null}
    ${copies.length ? html`<section data-test="own-lineage"><h3>Lineage</h3><ul>${copies.map(([donor, target, at, from], each) => html`<li key=${each}>${target === row ? `copied ${table.ids[donor]}, at its iteration ${from}, at iteration ${at}` : `was copied by ${table.ids[target]}, at its iteration ${at}, from iteration ${from}`}</li>`)}</ul></section>` : null}
    ${trial.error || trial.error_file ? html`<section><h3>Error</h3><p class="bad"><b>${trial.error_lines[0]}</b>${trial.error_lines[1] ? html`<br /><code>${trial.error_lines[1]}</code>` : null}</p><pre class="log" tabindex="0">${trial.error || trial.error_file}</pre></section>` : null}
    ${trial.config_json ? html`<p><${CopyText} text=${trial.config_json} label="Copy the config as JSON" isHidden=${true} /></p>` : null}
    <${Pairs} name="Config" pairs=${trial.config} /><${Pairs} name="Last result" pairs=${trial.result} />
    ${trial.checkpoints.length ? html`<section><h3>Checkpoints</h3><ul>${trial.checkpoints.map((name) => html`<li key=${name}>${name}</li>`)}</ul></section>` : null}
    ${Object.entries(trial.logs).map(([name, text]) => html`<section key=${name}><h3>${name}, the end of it</h3><pre class="log" tabindex="0">${text}</pre></section>`)}
    ${Object.keys(trial.logs).length || !trial.starts || !source.isLive ? null : html`<p class="note">No output: the trial printed nothing, or <code>RunConfig(log_to_file=True)</code> is not set.</p>`}
    <${Pairs} name="Added by muster" pairs=${trial.facts} />
  </${Drawer}>`;
}

/** What the machine cost while the trial ran, shared among the trials that ran there at the time; null when unknown. */
function costOf(table, row, cluster) {
  if (!cluster) return null;
  const machines = table.trial("machine"), ip = machines.text(row), machine = cluster.machines.find((each) => each.ip && each.ip === ip);
  if (!machine || !machine.price_per_hour) return null;
  const starts = table.trial("started").values, ends = table.trial("ended").values, now = cluster.now - table.zeroTime;
  const end = (each) => (Number.isNaN(ends[each]) ? now : ends[each]), from = starts[row], until = end(row);
  let shared = 0;
  for (let each = 0; each < table.rows; each++)
    if (machines.values[each] === machines.values[row] && starts[each] < until && end(each) > from) shared += Math.min(until, end(each)) - Math.max(from, starts[each]);
  return shared > 0 ? (machine.price_per_hour * (until - from) ** 2) / shared / 3600 : null;
}

export function WhyDrawer({ source, cluster, subject, close, version }) {
  const [found, setFound] = useState(null), [problem, setProblem] = useState("");
  useEffect(() => {
    let isOver = false;
    source.why(cluster, subject).then((report) => { if (!isOver) { setFound(report); setProblem(""); } }, (error) => { if (!isOver) setProblem(error.message); });
    return () => { isOver = true; };
  }, [cluster, subject, version]);
  const line = (each, at) => html`<li key=${at}><time>${clockTime(each.at)}</time> <b>${each.what}${each.count > 1 ? ` × ${each.count}` : ""}</b> ${each.details}</li>`;
  return html`<${Drawer} title=${`Why: ${subject}`} close=${close}>
    ${problem ? html`<p class="note bad">${problem}</p>` : null}${!found && !problem ? html`<p class="note">Loading …</p>` : null}
    ${found ? html`<p class="headline">${found.kind === found.subject ? "" : `${found.kind} `}<b>${found.subject}</b> of ${found.cluster}</p>${subject === "demand" && !found.pending.length ? html`<p>No request waits now.</p>` : null}${found.problem ? html`<p class="note bad">${found.problem}</p>` : null}
      ${found.machine ? html`<section><h3>Now</h3><p>${found.machine.state}${found.machine.reason ? `: ${found.machine.reason}` : ""} ${found.machine.detail || ""}</p></section>` : null}
      ${found.pending.length ? html`<section><h3>Waiting</h3><ul>${found.pending.map((each, at) => html`<li key=${at}><b>${each.reason}</b> × ${each.count ?? 1} ${each.detail || ""} ${each.target || ""}</li>`)}</ul></section>` : null}
      ${found.node_types.length ? html`<section><h3>Node types</h3><ul>${found.node_types.map((each) => html`<li key=${each.node_type}><b>${each.node_type}</b>: ${each.reason} ${each.detail || ""}</li>`)}</ul></section>` : null}
      ${found.offers.length ? html`<section><h3>Offers</h3><ul>${found.offers.map((each, at) => html`<li key=${at}>${each.zone || ""} ${each.market || ""} ${each.price_per_hour === null || each.price_per_hour === undefined ? "" : `${money(each.price_per_hour)} per hour`} ${each.reason || ""} ${each.detail || ""}</li>`)}</ul></section>` : null}
      ${found.machines.map((each) => html`<section key=${each.instance_id}><h3>${each.instance_id}</h3><p>${each.node_type} ${each.market} ${each.zone}: ${each.state}${each.cause ? `, ${each.cause}` : ""}; ${money(each.cost)}</p><ol class="story">${each.story.map(line)}</ol></section>`)}
      ${found.story.length ? html`<section><h3>How it changed</h3><ol class="story">${found.story.slice(-60).map(line)}</ol></section>` : null}` : null}
  </${Drawer}>`;
}
