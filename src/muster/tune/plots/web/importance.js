// Bars of parameter importance, with what chance can do.
function importancePanel() {
  const { made } = panel("Parameter importance");
  const { problem, chance } = data.importance, entries = data.importance.entries.slice(0, 14);
  if (problem) {
    made.append(element("p", { className: "empty" }, problem));
    return;
  }
  const hasDirections = entries.some(({ share, direction }) => direction && share > chance);
  const canvas = svg("svg", { role: "img", "aria-label": "parameter importance" }, made);

  function draw(width) {
    const row = Math.min(38, 300 / entries.length), top = 8, height = top + row * entries.length + 26;
    const left = Math.min(170, width * 0.36), room = Math.floor(left / 7.2);
    const most = Math.max(entries[0].share, chance, 0.05), reach = Math.max(60, width - left - (hasDirections ? 150 : 60));
    const x = (share) => left + (share / most) * reach;
    canvas.replaceChildren();
    canvas.setAttribute("viewBox", `0 0 ${width} ${height}`);
    canvas.setAttribute("height", height);
    const bottom = top + row * entries.length;
    svg("line", { class: "axis", x1: x(chance), x2: x(chance), y1: top, y2: bottom + 4, "stroke-dasharray": "4 3" }, canvas);
    svg("text", { x: x(chance), y: bottom + 18, "text-anchor": "middle" }, canvas, "chance");
    entries.forEach(({ name, share, direction }, n) => {
      const clear = share > chance, middle = top + row * (n + 0.5);
      const label = svg("text", { x: left - 8, y: middle + 4, "text-anchor": "end", class: "strong" }, canvas, shortened(name, room));
      svg("title", {}, label, name);
      svg("rect", { x: left, y: middle - row * 0.31, width: Math.max(1, x(share) - left), height: row * 0.62, rx: 2, fill: clear ? "var(--full)" : "var(--bar-chance)" }, canvas);
      const text = `${Math.round(share * 100)}%${clear && direction ? `  ${direction}` : ""}`;
      svg("text", { x: x(share) + 6, y: middle + 4, class: clear ? "strong halo" : "halo" }, canvas, text);
    });
  }

  panels.push({ element: canvas, draw });
  const hidden = data.importance.entries.length - entries.length;
  const more = hidden ? ` ${hidden} more parameters lie below these.` : "";
  made.append(element("p", { className: "note" }, data.explanation + more));
}
