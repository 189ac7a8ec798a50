// What happened when: trials by machine, machines by state, waiting demand, spend. All share one time axis.
import { html, useEffect, useRef } from "./vendor/preact-htm.js";
import { MACHINE_COLOURS, PALETTE, PixelLayer, STATUS_COLOURS, clockTime, fitted, money, pixelColour, prepared, shortDuration, shortNumber, showTip, themeColours, ticksBetween, trialLines } from "./format.js";

const LEFT = 92, RIGHT = 10, AXIS = 20;

function timeAxis(context, [from, until], width, height, colours) {
  const span = until - from, x = (at) => LEFT + ((at - from) / (span || 1)) * (width - LEFT - RIGHT);
  const nice = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800];
  const step = nice.find((each) => span / each <= Math.max(2, (width - LEFT) / 90)) || 2592000;
  context.strokeStyle = colours.line; context.lineWidth = 0.5; context.fillStyle = colours.quiet; context.textAlign = "center";
  const offset = new Date(from * 1000).getTimezoneOffset() * 60;
  for (let at = Math.ceil((from - offset) / step) * step + offset; at <= until; at += step) {
    context.beginPath(); context.moveTo(x(at), 0); context.lineTo(x(at), height - AXIS); context.stroke();
    const text = step >= 86400 ? new Date(at * 1000).toISOString().slice(5, 10) : clockTime(at).slice(0, step < 60 ? 8 : 5);
    if (x(at) > LEFT + 14 && x(at) < width - 20) context.fillText(text, x(at), height - 6);
  }
  context.textAlign = "left";
  return x;
}

/** A canvas over time: `paint` draws, dragging chooses a part of the time, a click picks what is there, `tell` says what that is. */
function TimeCanvas({ paint, span, chosen, setTime, height, label, name, deps, pick, tell }) {
  const canvas = useRef(null), held = useRef(/** @type {any} */ ({}));
  const draw = () => {
    if (!canvas.current) return;
    const made = prepared(canvas.current, height), colours = themeColours();
    const x = timeAxis(made.context, span, made.width, height, colours);
    held.current.width = made.width;
    held.current.things = paint(made.context, x, made.width, height - AXIS, colours) || [];
    const shown = held.current.drag && held.current.drag.to ? [held.current.drag.from, held.current.drag.to].sort((a, b) => a - b) : chosen && chosen.map(x);
    if (shown) {
      made.context.fillStyle = colours.accent; made.context.globalAlpha = 0.15;
      made.context.fillRect(shown[0], 0, Math.max(1, shown[1] - shown[0]), height - AXIS);
      made.context.globalAlpha = 1;
    }
  };
  useEffect(draw, [span[0], span[1], chosen, height, ...deps]);
  useEffect(() => { window.addEventListener("resize", draw); return () => window.removeEventListener("resize", draw); });
  const at = (event) => Math.max(LEFT, Math.min(held.current.width - RIGHT, event.clientX - canvas.current.getBoundingClientRect().left));
  const toTime = (pixel) => span[0] + ((pixel - LEFT) / (held.current.width - LEFT - RIGHT)) * (span[1] - span[0]);
  const down = (event) => { held.current.drag = { from: at(event), to: null }; canvas.current.setPointerCapture(event.pointerId); };
  const hitAt = (event) => {
    const box = canvas.current.getBoundingClientRect(), px = event.clientX - box.left, py = event.clientY - box.top;
    return (held.current.things || []).find((each) => px >= each.x - 2 && px <= each.x + each.w + 2 && py >= each.y && py <= each.y + each.h);
  };
  const move = (event) => {
    const drag = held.current.drag, hit = drag ? null : hitAt(event);
    if (drag && Math.abs(at(event) - drag.from) > 3) { drag.to = at(event); draw(); }
    const time = toTime(at(event)), lines = drag || !tell ? null : tell(hit ? hit.thing : null, time);
    showTip(event, lines && lines.length ? [...lines, clockTime(time, true)] : null);
  };
  const keys = (event) => { // the arrows go through the time, as the pointer does
    const by = { ArrowLeft: -0.02, ArrowRight: 0.02 }[event.key], box = canvas.current.getBoundingClientRect();
    if (!by) return;
    event.preventDefault();
    const share = held.current.share = Math.max(0, Math.min(1, (held.current.share ?? 0.5) + by));
    move({ currentTarget: canvas.current, clientX: box.left + LEFT + share * (held.current.width - LEFT - RIGHT), clientY: box.top + height / 2 });
  };
  const up = (event) => {
    const drag = held.current.drag;
    held.current.drag = null;
    if (!drag) return;
    if (drag.to !== null) { setTime([toTime(Math.min(drag.from, drag.to)), toTime(Math.max(drag.from, drag.to))]); return; }
    const hit = hitAt(event);
    if (hit && pick) pick(hit.thing); else if (chosen) setTime(null);
  };
  return html`<div class="canvas-box"><canvas ref=${canvas} role="img" aria-label=${label} data-test=${name} tabindex=${tell ? 0 : -1} onKeyDown=${keys} onBlur=${(event) => showTip(event, null)}
    onPointerDown=${down} onPointerMove=${move} onPointerUp=${up} onPointerLeave=${(event) => showTip(event, null)}></canvas></div>`;
}

/** Each machine's trials side by side, in as many slots as it ran at once; kept while the table stays as it is. */
function slotsOf(table, machines, lanes, version, before) {
  if (before && before.table === table && before.version === version && before.lanes === lanes) return before;
  const starts = table.trial("started").values, ends = table.trial("ended").values;
  const busyUntil = new Map(), slots = [], order = new Uint32Array(table.rows).map((_, row) => row).sort((a, b) => starts[a] - starts[b]);
  for (const row of order) {
    const machine = machines.values[row];
    if (machine === 65535 || machine >= lanes || Number.isNaN(starts[row])) continue;
    const ended = Number.isNaN(ends[row]) ? Infinity : ends[row], busy = busyUntil.get(machine) || [];
    let slot = 0;
    while (slot < busy.length && busy[slot] > starts[row] + 1e-6) slot++;
    if (slot === busy.length) slot = busy.length < 24 ? busy.length : row % 24;
    busy[slot] = ended; busyUntil.set(machine, busy); slots.push([row, slot]);
  }
  return { table, version, lanes, slots, counts: new Map([...busyUntil].map(([machine, busy]) => [machine, busy.length])) };
}

export function TrialTimeline({ table, mask, span, chosen, setTime, version, openTrial, best, metricKey }) {
  const layout = useRef(/** @type {any} */ (null)), machines = table.trial("machine"), lanes = Math.max(1, Math.min(40, machines.words.length));
  const height = AXIS + Math.max(70, Math.min(320, lanes * 26));
  const paint = (context, x, width, room, colours) => {
    const lane = room / lanes, status = table.trial("status"), starts = table.trial("started").values, ends = table.trial("ended").values, reports = table.trial("reported").values;
    context.fillStyle = colours.text;
    machines.words.slice(0, lanes).forEach((word, at) => context.fillText(fitted(context, word, LEFT - 8), 4, lane * at + lane / 2 + 4));
    const made = layout.current = slotsOf(table, machines, lanes, version, layout.current), layer = new PixelLayer(width, room + AXIS);
    const dots = status.words.map((word) => [0.12, 0.9].map((alpha) => pixelColour(STATUS_COLOURS[word] || colours.text, alpha)));
    const boxOf = ([row, slot]) => {
      const machine = machines.values[row], count = made.counts.get(machine), high = (lane - 4) / count;
      const until = Number.isNaN(ends[row]) ? Math.max(reports[row] || 0, span[1] - table.zeroTime) : ends[row];
      const left = x(starts[row] + table.zeroTime), right = x(until + table.zeroTime);
      return right < LEFT || left > width ? null : { x: Math.max(LEFT, left), w: Math.max(1, Math.min(width - RIGHT, right) - Math.max(LEFT, left) - (high > 3 ? 1 : 0)), y: lane * machine + 2 + slot * high, h: Math.max(1, high - (high > 3 ? 1 : 0)), thing: row };
    };
    for (const place of made.slots) {
      const box = boxOf(place);
      if (box) layer.rect(box.x, box.y, box.w, box.h, (dots[status.values[place[0]]] || dots[0])[mask[place[0]]]);
    }
    layer.draw(context);
    const star = mask[best] && made.slots.filter(([row]) => row === best).map(boxOf)[0];
    if (star) { context.strokeStyle = colours.text; context.lineWidth = 2; context.strokeRect(star.x, star.y, Math.max(3, star.w), star.h); context.fillStyle = colours.text; context.fillText("★", Math.min(width - 14, star.x + star.w + 3), star.y + Math.min(star.h, 12)); }
    return { find: (test) => { for (const place of made.slots) { const box = mask[place[0]] ? boxOf(place) : null; if (box && test(box)) return box; } return undefined; } }; // 100,000 boxes that are kept take longer than all else
  };
  return html`<${TimeCanvas} paint=${paint} span=${span} chosen=${chosen} setTime=${setTime} height=${height} pick=${openTrial} name="timeline" tell=${(row) => (row === null ? null : trialLines(table, row, [metricKey, "trial/machine"], row === best))}
    label=${`When each trial ran, on ${machines.words.length} machines.`} deps=${[version, mask]} />`;
}

/** Copies of PBT: each trial is a line, each copy an arrow from its donor. */
export function LineagePlot({ copies, table, openTrial }) {
  const rows = [...new Set(copies.flatMap(([donor, target]) => [donor, target]))].sort((a, b) => a - b).slice(0, 60);
  const place = new Map(rows.map((row, at) => [row, at])), most = Math.max(1, ...copies.map((each) => Math.max(each[2], each[3])));
  const W = 720, H = rows.length * 18 + 30, x = (iteration) => 90 + (iteration / most) * (W - 110), y = (row) => 14 + place.get(row) * 18;
  return html`<svg class="lineage" data-test="lineage" viewBox=${`0 0 ${W} ${H}`} role="img" aria-label=${`${copies.length} copies among ${rows.length} trials.`}>
    ${rows.map((row) => html`<g key=${row}><line x1="90" x2=${W - 20} y1=${y(row)} y2=${y(row)} class="lane" />
      <text x="4" y=${y(row) + 4} onClick=${() => openTrial(row)}>${table.ids[row]}</text></g>`)}
    ${copies.filter(([donor, target]) => place.has(donor) && place.has(target)).slice(-400).map(([donor, target, at, from], index) => html`
      <g key=${index}><title>${`${table.ids[target]} copied ${table.ids[donor]} (iteration ${from}) at iteration ${at}`}</title><line x1=${x(from)} y1=${y(donor)} x2=${x(at)} y2=${y(target)} class="copy" /><circle cx=${x(at)} cy=${y(target)} r="3.5" class="copy-end" /></g>`)}
    <text x="90" y=${H - 4}>iteration 0</text><text x=${W - 20} y=${H - 4} text-anchor="end">${most}</text></svg>`;
}

/** A state or a verdict as people write it. */
export function words(name) { return String(name).replaceAll(/[_-]/g, " ").toLowerCase().replace("ray ", "Ray "); }

/** What a list of steps had at a time; the last one before it. */
function stepAt(steps, time) {
  let found = null;
  for (const step of steps) { if (step[0] > time) break; found = step; }
  return found;
}

export function MachineTimeline({ view, span, chosen, setTime, pick }) {
  const machines = view.machines.slice(-120), row = machines.length > 40 ? 5 : machines.length > 16 ? 11 : 18;
  const height = AXIS + Math.max(40, machines.length * row + 4);
  const paint = (context, x, width, room, colours) => {
    const things = [];
    machines.forEach((machine, at) => {
      const y = 2 + at * row, changes = machine.changes;
      if (row >= 11) { context.fillStyle = colours.text; context.fillText(fitted(context, `${machine.node_type}${machine.market === "spot" ? " spot" : ""}`, LEFT - 8), 4, y + row - 3); }
      changes.forEach(([from, state], place) => {
        const isLast = place === changes.length - 1;
        if (isLast && (state === "TERMINATED" || state === "ALLOCATION_FAILED")) {
          context.fillStyle = MACHINE_COLOURS[state];
          if (x(from) >= LEFT && x(from) <= width - RIGHT) context.fillRect(x(from), y, 3, row - 2);
          return;
        }
        const until = isLast ? view.now : changes[place + 1][0], left = Math.max(LEFT, x(from)), right = Math.min(width - RIGHT, x(until));
        if (right < LEFT || left > width - RIGHT) return;
        context.fillStyle = MACHINE_COLOURS[state] || colours.text;
        context.fillRect(left, y, Math.max(1, right - left), row - 2);
        things.push({ x: left, w: Math.max(1, right - left), y, h: row - 2, thing: { ...machine, state, from, until } });
      });
    });
    return things;
  };
  return html`<${TimeCanvas} paint=${paint} span=${span} chosen=${chosen} setTime=${setTime} height=${height} pick=${pick} name="machines" tell=${(machine) => machine && [`${machine.node_type} ${machine.market} ${machine.zone}`, machine.machine, `${words(machine.state)} for ${shortDuration(machine.until - machine.from)}`, machine.price_per_hour ? `${money(machine.cost)} at ${money(machine.price_per_hour)} per hour` : "price unknown"]}
    label=${`States of ${view.machines.length} machines over time.`} deps=${[view]} />`;
}

/** Stacked counts over time: machines by type and market, or waiting requests by verdict. */
export function StackedTimeline({ steps, names, colours: own, span, chosen, setTime, name, label, unit }) {
  const paint = (context, x, width, room, colours) => {
    const most = Math.max(1, ...steps.map(([, counts]) => names.reduce((sum, each) => sum + (counts[each] || 0), 0)));
    const y = (value) => room - 4 - (value / most) * (room - 14);
    context.fillStyle = colours.quiet; context.textAlign = "right";
    for (const tick of ticksBetween(0, most, 3)) if (!unit || Number.isInteger(tick)) context.fillText(shortNumber(tick), LEFT - 6, y(tick) + 4);
    context.textAlign = "left";
    let floor = steps.map(() => 0);
    names.forEach((each, place) => {
      const top = steps.map(([, counts], at) => floor[at] + (counts[each] || 0));
      context.fillStyle = own[each] || PALETTE[place % PALETTE.length];
      context.beginPath();
      steps.forEach(([at], index) => {
        const left = Math.max(LEFT, x(at)), right = Math.min(width - RIGHT, index + 1 < steps.length ? x(steps[index + 1][0]) : x(span[1]));
        if (right > left && top[index] > floor[index]) context.rect(left, y(top[index]), right - left, y(floor[index]) - y(top[index]));
      });
      context.fill();
      floor = top;
    });
  };
  return html`<${TimeCanvas} paint=${paint} span=${span} chosen=${chosen} setTime=${setTime} height=${130} name=${name} label=${label} deps=${[steps]}
    tell=${(_, time) => { const step = stepAt(steps, time); return step && names.filter((each) => step[1][each]).map((each) => `${words(each)}: ${step[1][each]}`); }} />`;
}

/** What was spent at a time, and what an hour cost then. */
function spendLines(points, time) {
  const next = points.findIndex(([at]) => at > time);
  if (next <= 0) return points.length && next < 0 ? [`${money(points[points.length - 1][1])} spent`] : null;
  const [[from, before], [until, after]] = [points[next - 1], points[next]], slope = (after - before) / (until - from || 1);
  return [`${money(before + slope * (time - from))} spent`, `${money(slope * 3600)} per hour`];
}

export function SpendTimeline({ points, span, chosen, setTime }) {
  const paint = (context, x, width, room, colours) => {
    const most = Math.max(0.01, ...points.map(([, value]) => value)), y = (value) => room - 4 - (value / most) * (room - 14);
    context.fillStyle = colours.quiet; context.textAlign = "right";
    for (const tick of ticksBetween(0, most, 3)) context.fillText(money(tick), LEFT - 6, y(tick) + 4);
    context.textAlign = "left"; context.strokeStyle = colours.accent; context.lineWidth = 2;
    context.beginPath();
    let isDown = false;
    for (const [at, value] of points) { const px = x(at); if (px < LEFT || px > width - RIGHT) continue; if (isDown) context.lineTo(px, y(value)); else { context.moveTo(px, y(value)); isDown = true; } }
    context.stroke();
  };
  return html`<${TimeCanvas} paint=${paint} span=${span} chosen=${chosen} setTime=${setTime} height=${110} name="spend" label="Money spent over time." deps=${[points]} tell=${(_, time) => spendLines(points, time)} />`;
}
