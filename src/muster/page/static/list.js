// Every experiment and cluster that the page may show: search, order, and a choice to compare.
import { html, useEffect, useState } from "./vendor/preact-htm.js";
import { STATUS_COLOURS, STATUS_SIGNS, STATUS_WORDS, clockTime, money, shortNumber } from "./format.js";
import { hashOf, overOf } from "./selection.js";

export function StateCounts({ counts }) {
  return html`<span class="counts">${Object.entries(STATUS_WORDS).filter(([status]) => counts[status]).map(([status, word]) => html`<span key=${status} class="count"><span style=${{ color: STATUS_COLOURS[status] }} aria-hidden="true">${STATUS_SIGNS[status]}</span> ${counts[status].toLocaleString("en")} ${word}</span>`)}</span>`;
}

/** What each column shows, and what it is ordered by. */
const COLUMNS = {
  experiment: { of: (each) => each.name.toLowerCase() },
  state: { of: (each) => each.state || "" },
  best: { of: (each) => each.best ?? NaN, isNumber: true },
  trials: { of: (each) => overOf(each.counts), isNumber: true },
  "by state": { of: (each) => (each.counts || {}).ERROR || 0 },
  cost: { of: (each) => each.cost ?? NaN, isNumber: true },
  "last result": { of: (each) => each.changed },
};

function ordered(rows, sort, isDown) {
  if (!COLUMNS[sort]) return rows;
  const of = COLUMNS[sort].of, sign = isDown ? -1 : 1;
  return [...rows].sort((a, b) => { const one = of(a), other = of(b); return one !== one ? 1 : other !== other ? -1 : one < other ? -sign : one > other ? sign : 0; });
}

export function List({ source, view, change }) {
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
  useEffect(() => { if (list && list.experiments.length + list.clusters.length === 1) change(list.experiments.length ? { e: list.experiments[0].key } : { c: list.clusters[0].key }, "quiet"); }, [list]);
  if (problem) return html`<p class="note bad" role="alert">${problem}</p>`;
  if (!list) return html`<p class="waiting">Loading …</p>`;
  const open = (part) => (event) => { if (event.ctrlKey || event.metaKey) return; event.preventDefault(); change({ q: "", sort: "", down: false, cmp: "", ...part }, true); };
  const chosen = new Set(view.cmp ? view.cmp.split(",") : []), pick = (key) => { const next = new Set(chosen); if (next.has(key)) next.delete(key); else next.add(key); change({ cmp: [...next].join(",") }); };
  const wanted = view.q.toLowerCase(), shown = ordered(list.experiments.filter((each) => [each.name, each.state, each.metric, each.address].some((text) => String(text || "").toLowerCase().includes(wanted))), view.sort, view.down);
  const head = (name) => { const state = view.sort === name ? (view.down ? "descending" : "ascending") : "none"; return html`<th scope="col" key=${name} class=${COLUMNS[name].isNumber ? "number" : ""} aria-sort=${state}><button onClick=${() => change({ sort: view.sort === name && view.down ? "" : name, down: view.sort === name ? !view.down : false })}>${name}${state === "none" ? "" : state === "ascending" ? " ↑" : " ↓"}</button></th>`; };
  return html`<main id="main" tabindex="-1"><header class="top"><div class="title"><h1>muster</h1></div></header>
    <section class="band" data-test="list"><h2>Experiments</h2>${list.experiments.length ? html`<div class="filters"><label class="find">Find <input id="find" type="search" value=${view.q} placeholder="name, state, metric" onInput=${(event) => change({ q: event.target.value })} /></label><span class="passing" role="status" data-test="listed">${shown.length} of ${list.experiments.length} experiments</span>
      <button disabled=${chosen.size < 2} onClick=${() => change({ es: [...chosen].join(","), cmp: "", q: "", sort: "", down: false }, true)}>Compare${chosen.size > 1 ? ` ${chosen.size}` : " (choose two)"}</button></div>
      <div class="table-box short" tabindex="0" aria-label="Experiments"><table><thead><tr>${Object.keys(COLUMNS).map(head)}</tr></thead><tbody>
      ${shown.map((each) => html`<tr key=${each.key}><th scope="row" title=${each.address || ""}><input type="checkbox" aria-label=${`Compare ${each.name}`} checked=${chosen.has(each.key)} onChange=${() => pick(each.key)} /> <a href=${hashOf({ e: each.key })} onClick=${open({ e: each.key })}>${each.name}</a></th><td><span class=${`badge ${each.state || ""}`} title=${each.raised || ""}>${each.state || "…"}</span></td>
        <td class="number">${each.best === null || each.best === undefined ? "" : `${shortNumber(each.best)} ${each.metric}`}</td><td class="number">${each.counts ? html`${overOf(each.counts).toLocaleString("en")}${each.of ? html` of ${each.of.toLocaleString("en")} <progress max=${each.of} value=${overOf(each.counts)} aria-label=${`Progress of ${each.name}`}></progress>` : ""}` : ""}</td>
        <td>${each.problem ? html`<span class="bad">${each.problem}</span>` : each.counts ? html`<${StateCounts} counts=${each.counts} />` : ""}</td><td class="number">${each.cost === null || each.cost === undefined ? "" : money(each.cost)}</td><td>${clockTime(each.changed, true)}</td></tr>`)}</tbody></table></div>` : html`<p class="note" data-test="empty">No experiment was found. <code>muster dashboard PATH</code> opens one; <code>tuner.fit()</code> makes one.</p>`}</section>
    ${list.clusters.length ? html`<section class="band"><h2>Clusters</h2><div class="table-box short" tabindex="0" aria-label="Clusters"><table><thead><tr><th scope="col">cluster</th><th scope="col">state</th><th scope="col" class="number">machines</th><th scope="col" class="number">spent</th><th scope="col" class="number">per hour</th><th scope="col">problem</th></tr></thead><tbody>
      ${list.clusters.map((each) => html`<tr key=${each.key}><th scope="row"><a href=${hashOf({ c: each.key })} onClick=${open({ c: each.key })}>${each.name}</a></th><td>${each.is_up ? "up" : "down"}</td><td class="number">${each.machines ?? ""}</td><td class="number">${money(each.spent)}</td><td class="number">${money(each.per_hour)}</td><td class="bad">${each.problem || ""}</td></tr>`)}</tbody></table></div></section>` : null}</main>`;
}
