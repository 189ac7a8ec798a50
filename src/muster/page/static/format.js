// Numbers, times and colours as the page shows them. Nothing here touches the document but `themeColours`.

/** Okabe and Ito's colours, which most colour-blind people can tell apart. */
export const STATUS_COLOURS = {
  PENDING: "#7f7f7f", RUNNING: "#1f84c4", PAUSED: "#c77700",
  TERMINATED: "#008f68", STOPPED: "#8a63c9", ERROR: "#d55e00", INTERRUPTED: "#c0609a",
};
export const STATUS_WORDS = {
  PENDING: "waiting", RUNNING: "running", PAUSED: "paused",
  TERMINATED: "done", STOPPED: "stopped early", ERROR: "failed", INTERRUPTED: "interrupted",
};
export const STATUS_SIGNS = {
  PENDING: "○", RUNNING: "▶", PAUSED: "‖", TERMINATED: "✓", STOPPED: "■", ERROR: "✕", INTERRUPTED: "!",
};
export const PALETTE = ["#1f84c4", "#c77700", "#008f68", "#c0609a", "#d55e00", "#8a63c9", "#8a7000", "#4f8f9f"];
export const MACHINE_COLOURS = {
  QUEUED: "#9a9a9a", REQUESTED: "#b8923a", ALLOCATED: "#c77700", RAY_INSTALLING: "#3f9ad6", RAY_RUNNING: "#008f68",
  RAY_STOP_REQUESTED: "#cc79a7", RAY_STOPPING: "#cc79a7", RAY_STOPPED: "#b0668f", TERMINATING: "#8c6d9c",
  TERMINATED: "#777777", ALLOCATION_FAILED: "#d55e00", RAY_INSTALL_FAILED: "#d55e00",
  TERMINATION_FAILED: "#d55e00", ALLOCATION_TIMEOUT: "#d55e00",
};
/** On a dark ground, best is bright; on a light one, best is dark: no yellow on white. Every step has a contrast of 3 with its ground. */
const SCALES = {
  dark: [[122, 96, 152], [98, 116, 176], [78, 132, 176], [60, 148, 165], [48, 160, 150], [53, 183, 121], [110, 206, 88], [181, 222, 43], [253, 231, 37]],
  light: [[128, 150, 182], [110, 140, 178], [90, 128, 175], [66, 112, 165], [45, 98, 155], [34, 80, 142], [42, 60, 125], [52, 36, 106], [60, 5, 85]],
};

/** A colour of a scale that also reads in grey; `share` from 0 (worst) to 1 (best). */
export function scaleColour(share, alpha = 1) {
  const SCALE = SCALES[document.documentElement.dataset.theme] || SCALES.light, place = Math.max(0, Math.min(1, share)) * (SCALE.length - 1);
  const low = Math.floor(place), high = Math.min(SCALE.length - 1, low + 1), part = place - low;
  const mix = SCALE[low].map((value, at) => Math.round(value + (SCALE[high][at] - value) * part));
  return `rgba(${mix[0]},${mix[1]},${mix[2]},${alpha})`;
}

const WHOLE = new Intl.NumberFormat("en"); // making one for every number costs more than all the rest

export function shortNumber(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (Number.isInteger(value) && Math.abs(value) < 1e7) return WHOLE.format(value);
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(2).replace("e+", "e");
  return String(Number(value.toPrecision(4)));
}

export function shortDuration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  const s = Math.max(0, seconds);
  if (s < 90) return `${s < 10 ? Number(s.toFixed(1)) : Math.round(s)} s`;
  if (s < 5400) return `${Math.round(s / 60)} min`;
  if (s < 172800) return `${Number((s / 3600).toFixed(1))} h`;
  return `${Math.round(s / 86400)} days`;
}

export function clockTime(at, withDay = false) {
  if (!Number.isFinite(at)) return "–";
  const date = new Date(at * 1000);
  const time = date.toTimeString().slice(0, 8);
  return withDay ? `${date.toISOString().slice(0, 10)} ${time}` : time;
}

export function money(value) {
  if (value === null || value === undefined) return "–";
  return `$${value >= 100 ? value.toFixed(0) : value >= 0.095 || value === 0 ? value.toFixed(2) : Number(value.toPrecision(2))}`;
}

/** The colours of the theme in force, for canvases. */
export function themeColours() {
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(name).trim();
  return { text: of("--text"), quiet: of("--quiet"), line: of("--line"), ground: of("--ground"),
    panel: of("--panel"), accent: of("--accent"), faint: of("--faint") };
}

/** Makes a canvas sharp on this screen; returns its context and its size in CSS pixels. */
export function prepared(canvas, height) {
  const width = Math.max(50, canvas.parentElement.clientWidth);
  const ratio = window.devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = "12px system-ui, DejaVu Sans, sans-serif";
  return { context, width, height };
}

/** A colour like "#0072b2" or "rgb(0, 0, 0)" as one number, as an image's pixels are on this computer (little-endian). */
function packed(colour, alpha) {
  const probe = /** @type {CanvasRenderingContext2D} */ (document.createElement("canvas").getContext("2d"));
  probe.fillStyle = colour;
  const text = String(probe.fillStyle), parts = [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16));
  return ((Math.round(alpha * 255) << 24) | (parts[2] << 16) | (parts[1] << 8) | parts[0]) >>> 0;
}
const known = new Map();
export function pixelColour(colour, alpha) {
  const key = `${colour}${alpha}`;
  if (!known.has(key)) known.set(key, packed(colour, alpha));
  return known.get(key);
}

/** Thousands of small rectangles as one image: a canvas call for each would take most of a frame. */
export class PixelLayer {
  constructor(width, height) {
    this.ratio = window.devicePixelRatio || 1;
    this.width = Math.max(1, Math.round(width * this.ratio));
    this.height = Math.max(1, Math.round(height * this.ratio));
    this.pixels = new Uint32Array(this.width * this.height);
  }
  /** Fills a rectangle, given in CSS pixels; what is outside is left out. */
  rect(x, y, wide, high, colour) {
    const left = Math.max(0, Math.round(x * this.ratio)), top = Math.max(0, Math.round(y * this.ratio));
    const right = Math.min(this.width, Math.max(left + 1, Math.round((x + wide) * this.ratio)));
    const bottom = Math.min(this.height, Math.max(top + 1, Math.round((y + high) * this.ratio)));
    for (let row = top; row < bottom; row++) // `fill` takes longer for a few pixels
      for (let at = row * this.width + left, end = row * this.width + right; at < end; at++) this.pixels[at] = colour;
  }
  draw(context) {
    const canvas = document.createElement("canvas");
    canvas.width = this.width; canvas.height = this.height;
    const image = new ImageData(new Uint8ClampedArray(this.pixels.buffer), this.width, this.height);
    /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d")).putImageData(image, 0, 0);
    context.save();
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.drawImage(canvas, 0, 0);
    context.restore();
  }
}

/** Round values between two ends, for an axis. */
export function ticksBetween(low, high, most) {
  if (!(high > low)) return [low];
  const rough = (high - low) / Math.max(1, most), power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough) || rough;
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9; at += step) found.push(Number(at.toPrecision(12)));
  return found;
}

/** Values for an axis: words, powers of ten, or round numbers; whole ones for integers. */
export function axisTicks(column, low, high, isLog, most) {
  if (column.kind === "word") return column.words.map((_, code) => code).slice(0, 12);
  if (isLog) {
    const powers = ticksBetween(Math.ceil(Math.log10(low)), Math.floor(Math.log10(high)), most).filter(Number.isInteger).map((power) => 10 ** power);
    if (powers.length > 1) return powers;
  }
  const found = ticksBetween(low, high, most);
  return isWhole(column) ? found.filter(Number.isInteger) : found;
}

/** Whether a column holds integers only. */
export function isWhole(column) {
  if (column.wholeOf !== column.values || column.wholeRows !== column.rows) {
    column.wholeOf = column.values; column.wholeRows = column.rows;
    column.whole = column.values.every((value) => Number.isInteger(value) || !Number.isFinite(value));
  }
  return column.whole;
}

/** A value of a column as text. */
export function cellText(column, row) {
  if (column.kind === "word") return column.text(row) || "";
  return column.name === "time_total_s" ? shortDuration(column.at(row)) : shortNumber(column.at(row));
}

let tip = null, tipOwner = null;
/** Show lines of text next to the pointer, or hide those of the same element. Text only: names of users must not become markup. */
export function showTip(event, lines) {
  if (!lines || !lines.length) {
    if (tip && tipOwner === event.currentTarget) tip.hidden = true; // a chart that is drawn again hides no other chart's
    return;
  }
  if (!tip) {
    tip = document.body.appendChild(document.createElement("div"));
    tip.className = "tip"; tip.dataset.test = "tip";
    tip.setAttribute("aria-hidden", "true"); // for a pointer only: the table has the same for readers
  }
  tip.hidden = false; tipOwner = event.currentTarget;
  tip.textContent = lines.join("\n");
  const box = tip.getBoundingClientRect(), x = event.clientX + 14, y = event.clientY + 14;
  tip.style.left = `${Math.max(4, x + box.width > innerWidth - 8 ? event.clientX - box.width - 10 : x)}px`;
  tip.style.top = `${Math.max(4, y + box.height > innerHeight - 8 ? event.clientY - box.height - 10 : y)}px`;
}

/** What a tooltip says of a trial: its state, what is plotted, and what was searched. */
export function trialLines(table, row, keys, isBest) {
  const status = table.status(row), shown = new Set(), lines = [`${table.ids[row]} · ${STATUS_WORDS[status] || status}${isBest ? " · best" : ""}`];
  for (const column of [...keys.map((key) => table.column(key)), ...table.params.slice(0, 6), table.trial("training_iteration"), table.trial("error")]) {
    if (!column || shown.has(column.key) || Number.isNaN(column.at(row))) continue;
    shown.add(column.key);
    lines.push(`${column.name === "training_iteration" ? "iteration" : column.name}: ${cellText(column, row)}`);
  }
  return lines;
}

/** Text cut so that it fits. */
export function fitted(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let cutAt = text.length;
  while (cutAt > 1 && context.measureText(`${text.slice(0, cutAt)}…`).width > width) cutAt = Math.floor(cutAt * 0.8);
  return `${text.slice(0, cutAt)}…`;
}
