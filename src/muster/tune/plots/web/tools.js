// Small tools that the panels share: SVG elements, scales, the tooltip, and who is pointed at.
const data = JSON.parse(document.getElementById("data").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)");
const panels = []; // each: {element, draw(width), highlight(trial or null)}
let pointed = null; // the trial that is pointed at
const VIRIDIS = ["#440154", "#482878", "#3e4989", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6ece58", "#b5de2b"];

function svg(name, attributes = {}, parent = null, text = null) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== null) made.textContent = text;
  if (parent) parent.append(made);
  return made;
}

function element(name, attributes = {}, text = null) {
  const made = Object.assign(document.createElement(name), attributes);
  if (text !== null) made.textContent = text;
  return made;
}

// 0: good, 1: bad. Good is what stands out: dark on white, light on black.
function shadeColour(shade) {
  const at = (dark.matches ? 1 - shade : shade) * (VIRIDIS.length - 1);
  const low = Math.min(Math.floor(at), VIRIDIS.length - 2), share = at - low;
  const [from, to] = [VIRIDIS[low], VIRIDIS[low + 1]].map((c) => [1, 3, 5].map((i) => parseInt(c.slice(i, i + 2), 16)));
  return `rgb(${from.map((c, i) => Math.round(c + (to[i] - c) * share)).join(" ")})`;
}

function shortNumber(value, digits = 4) {
  if (value === null) return "none, NaN or infinite";
  if (Number.isInteger(value) && Math.abs(value) < 1e5) return String(value);
  const text = value.toPrecision(digits);
  return String(Number(text)).replace("e+", "e");
}

function shortened(text, room) {
  if (text.length <= room) return text;
  const parts = text.split("/");
  for (let first = 1; first < parts.length; first++) {
    const tail = "…/" + parts.slice(first).join("/");
    if (tail.length <= room) return tail;
  }
  const last = parts[parts.length - 1], head = Math.floor(room / 2);
  return last.slice(0, head) + "…" + last.slice(last.length - (room - head - 1));
}

function quantile(sorted, share) {
  return sorted[Math.round(share * (sorted.length - 1))];
}

// As for the PNG: outliers leave the picture rather than rule it.
function withoutOutliers(sorted) {
  let low = sorted[0], high = sorted[sorted.length - 1];
  const innerLow = quantile(sorted, 0.05), innerHigh = quantile(sorted, 0.95), width = innerHigh - innerLow;
  if (width > 0 && high - low > 3 * width) {
    low = Math.max(low, innerLow - width / 2);
    high = Math.min(high, innerHigh + width / 2);
  }
  return [low, high];
}

function looksLogarithmic(sorted) {
  const low = sorted[0], high = sorted[sorted.length - 1];
  if (!(low > 0) || high / low < 8) return false;
  const middle = quantile(sorted, 0.5);
  const byValue = (middle - low) / (high - low), byOrder = Math.log(middle / low) / Math.log(high / low);
  return Math.abs(byOrder - 0.5) < Math.abs(byValue - 0.5);
}

function scale(values, from, to, { mayBeLog = false, keep = null } = {}) {
  const sorted = Float64Array.from(values).sort();
  let [low, high] = withoutOutliers(sorted);
  const log = mayBeLog && looksLogarithmic(sorted.filter((v) => v >= low && v <= high));
  if (log) [low, high] = withoutOutliers(Float64Array.from(sorted.filter((v) => v > 0), Math.log)).map(Math.exp);
  if (keep !== null) [low, high] = [Math.min(low, keep), Math.max(high, keep)];
  if (low === high) [low, high] = log ? [low / 2, high * 2] : [low - (Math.abs(low) * 0.1 || 1), high + (Math.abs(high) * 0.1 || 1)];
  const wrap = log ? Math.log : (v) => v, a = wrap(low), b = wrap(high);
  const at = (v) => from + ((wrap(v) - a) / (b - a)) * (to - from);
  return { at, low, high, log, ticks: log ? logTicks(low, high) : linearTicks(low, high) };
}

function linearTicks(low, high, most = 8) {
  const raw = (high - low) / (most - 1), power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((f) => f * power).find((s) => s >= raw * 0.999);
  const ticks = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9; n++) ticks.push(Number((n * step).toPrecision(12)));
  return ticks;
}

function logTicks(low, high) {
  const ticks = [], factors = high / low < 50 ? [1, 2, 5] : [1];
  for (let p = Math.floor(Math.log10(low)); p <= Math.ceil(Math.log10(high)); p++) {
    for (const f of factors) ticks.push(Number((f * 10 ** p).toPrecision(3)));
  }
  return ticks.filter((t) => t >= low * 0.999 && t <= high * 1.001);
}

function panel(title, { wide = false } = {}) {
  const made = element("section", { className: wide ? "wide" : "" });
  const head = element("div", { className: "head" });
  head.append(element("h2", {}, title));
  made.append(head);
  document.getElementById("panels").append(made);
  return { made, head };
}

function legend(entries) {
  const made = element("div", { className: "legend" });
  for (const [colour, text] of entries) {
    const entry = element("span"), mark = element("i");
    mark.style.background = `var(${colour})`;
    entry.append(mark, text);
    made.append(entry);
  }
  return made;
}

function highlightPointed() {
  for (const each of panels) if (each.highlight) each.highlight(pointed);
}

function pointAt(trial, event) {
  pointed = trial;
  highlightPointed();
  const tip = document.getElementById("tip");
  tip.hidden = trial === null;
  if (trial === null) return;
  const { id, status, value, parameters } = data.trials[trial];
  const rows = [[data.metric, shortNumber(value)], ["status", status], ...Object.entries(parameters)];
  const table = element("table");
  for (const [name, text] of rows) {
    const row = table.insertRow();
    row.insertCell().textContent = shortened(name, 42);
    row.insertCell().textContent = shortened(String(text), 60);
  }
  tip.replaceChildren(element("b", {}, `trial ${id}${trial === data.best ? " (best)" : ""}`), table);
  const { width, height } = tip.getBoundingClientRect();
  const left = event.clientX + 16 + width > innerWidth ? event.clientX - width - 16 : event.clientX + 16;
  tip.style.left = `${Math.max(4, left)}px`;
  tip.style.top = `${Math.max(4, Math.min(event.clientY + 12, innerHeight - height - 8))}px`;
}

function watch(target, nearest) {
  target.addEventListener("pointermove", (event) => {
    const box = target.getBoundingClientRect();
    pointAt(nearest(event.clientX - box.left, event.clientY - box.top), event);
  });
  target.addEventListener("pointerleave", (event) => pointAt(null, event));
}
