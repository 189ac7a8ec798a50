// Which panels, and when they are drawn again.
const wanted = (name) => data.kind === "all" || data.kind === name;
if (wanted("curves")) curvesPanel();
if (wanted("importance")) importancePanel();
if (wanted("parallel")) parallelPanel();
if (data.kind !== "all") for (const each of document.querySelectorAll("section")) each.className = "wide";

function drawAll() {
  for (const { element: target, draw } of panels) draw(Math.max(280, target.getBoundingClientRect().width));
  highlightPointed();
}
drawAll();
addEventListener("resize", drawAll);
dark.addEventListener("change", drawAll);
