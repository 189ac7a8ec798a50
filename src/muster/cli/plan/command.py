"""Implement `muster plan`, which asks the planner and shows its answer; nothing is changed anywhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import click
from msgspec.structs import replace
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from muster.base.codec import encode_plain
from muster.base.text import money
from muster.cli.console import BAD, GOOD, HEADING, QUIET, emit, more_line, show
from muster.cli.plan.report import PlanNode, PlanReport, RequestRow, build_report
from muster.cluster.model import Objective, offer_name
from muster.cluster.plan import SERVED, Reason
from muster.cluster.planner.pack import what_if
from muster.config.demand_file import load_demand, load_nodes
from muster.errors import ConfigError
from muster.providers.kind import load_spec

NOT_SATISFIED = 3

_FILE = click.Path(path_type=Path)  # whether it can be read is checked by the loader, like any other mistake

_EPILOG = """\b
Examples:
  muster plan cluster.yaml --demand demand.yaml
  muster plan cluster.yaml --demand demand.yaml --nodes nodes.yaml
  muster plan cluster.yaml --demand demand.yaml --objective utilization
  muster plan cluster.yaml --demand demand.yaml --json | jq '.price.after'

\b
The demand file (YAML or JSON; every key is optional):
  demands:      [{resources: {CPU: 4, GPU: 1}, count: 8, labels: {zone: a}}]
  gangs:        [{id: pg, strategy: STRICT_SPREAD, bundles: [{resources: {CPU: 2}}]}]
  constraints:  [{resources: {CPU: 64}}]
  nodes:        [{id: i-1, type: gpu, available: {CPU: 2}, idle_s: 400}]

\b
Exit codes:
  0  all demand is placed or planned
  2  bad input; the error names file, line, key and fix
  3  some demand is blocked or infeasible; the plan shows why
"""


@click.command(epilog=_EPILOG, context_settings={"max_content_width": 88})
@click.argument("config", type=_FILE)
@click.option("--demand", "demand_file", type=_FILE, required=True, help="File with the waiting requests.")
@click.option(
    "--nodes", "nodes_file", type=_FILE, help="File with the existing nodes, if the demand file has none."
)
@click.option(
    "--objective",
    type=click.Choice([objective.value for objective in Objective]),
    help="Planner objective. Default: that of CONFIG.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document (docs/plan.md).")
@click.pass_context
def plan(
    ctx: click.Context,
    config: Path,
    demand_file: Path,
    nodes_file: Path | None,
    objective: str | None,
    as_json: bool,
) -> None:
    """Show what a cluster would launch and terminate for a demand, the cost, and the reasons.

    CONFIG is the cluster's YAML file, as for `ray up`. Launches nothing. The running
    autoscaler decides with the same function.
    """
    spec = load_spec(config)
    if objective is not None:
        spec = replace(spec, objective=Objective(objective))
    wanted = load_demand(demand_file, spec)
    if nodes_file is not None:
        if wanted.nodes:
            raise ConfigError(
                f"are also given by {nodes_file}", path="nodes", file=str(demand_file), fix="keep one"
            )
        wanted = replace(wanted, nodes=load_nodes(nodes_file, spec))
    report = build_report(what_if(spec, wanted))
    if as_json:
        emit(encode_plain(report))
    else:
        show(*render_plan(report))
    ctx.exit(0 if report.satisfied else NOT_SATISFIED)


MAX_ROWS = 20  # per section; programs read --json
MAX_NAMES = 3
LEAST_TEXT = 36  # columns for a text beside cells; in fewer it does not read well


def render_plan(report: PlanReport) -> Iterator[RenderableType]:
    """Yield the parts of the page, top to bottom."""
    assumed = "; no head is listed, so an empty one is assumed" if report.head_assumed else ""
    yield Text.assemble((report.cluster, HEADING), f": plan by {report.objective}{assumed}")
    yield from _launches(report)
    yield from _stops(report)
    if not report.launch and not report.stop:
        yield Text("\nNothing to launch, nothing to stop.")
    yield _price(report)
    yield from _items("Demands", report.demands)
    yield from _items("Gangs", report.gangs)
    yield from _items("Constraints", report.constraints)
    yield from _nodes(report.nodes)
    yield from _node_types(report)
    yield _conclusion(report)


def _launches(report: PlanReport) -> Iterator[RenderableType]:
    rows = _Rows(first=2, gap=3, justify=("right", "left", "left", "left", "right", "right"))
    for launch in report.launch[:MAX_ROWS]:
        is_usual = not launch.zone and launch.market == "on-demand"
        rows.add(
            str(launch.count),
            Text(launch.node_type, style=GOOD),
            launch.machine_type,
            "" if is_usual else offer_name(launch.zone, launch.market),
            "no price" if launch.price_per_hour is None else f"{money(launch.price_per_hour)} each",
            "" if launch.total_per_hour is None else f"{money(launch.total_per_hour)} per hour",
        )
    return _section("Launch", rows, len(report.launch))


def _stops(report: PlanReport) -> Iterator[RenderableType]:
    rows = _Rows(first=3)
    for stop in report.stop[:MAX_ROWS]:
        price = "" if stop.price_per_hour is None else f"; saves {money(stop.price_per_hour)} per hour"
        rows.add(
            Text(stop.node, style=BAD),
            stop.node_type,
            stop.reason.value,
            f"{stop.detail}{price}".lstrip("; "),
        )
    return _section("Stop", rows, len(report.stop))


def _price(report: PlanReport) -> Text:
    price = report.price
    text = Text(f"\nCost per hour: ${price.now:,.2f} now")
    if price.launch:
        text.append(f" + ${price.launch:,.2f} launched")
    if price.stop:
        text.append(f" - ${price.stop:,.2f} stopped")
    text.append(" = ")
    text.append(f"${price.after:,.2f} after", style=HEADING)
    if price.unpriced:
        text.append(f"\n(without {_names(price.unpriced)}: no price_per_hour)", style=QUIET)
    return text


def _items(title: str, items: Sequence[RequestRow]) -> Iterator[RenderableType]:
    """The reasons stand below their item; items that are not served come first."""
    rows = _Rows(first=3)
    for item in sorted(items, key=_is_served)[:MAX_ROWS]:
        served = _is_served(item)
        rows.add(
            Text("ok" if served else "NO", style=GOOD if served else BAD),
            str(item.count),
            Text(item.name, style=HEADING),
            f"{item.strategy} gang" if item.resources is None else f"{{{item.resources}}}",
        )
        for why in item.why:
            reason = Text(f"  {why.reason.value}", style="" if why.reason in SERVED else BAD)
            rows.add("", f"  {why.count}", reason, why.detail or why.target)
        if not served and item.rejected:
            by_reason: dict[Reason, list[str]] = {}
            for name, rejected in item.rejected.items():
                by_reason.setdefault(rejected, []).append(name)
            clauses = (f"{one.value}: {_names(names)}" for one, names in by_reason.items())
            rows.add("", "", "", Text("; ".join(clauses), style=QUIET))
    return _section(title, rows, len(items))


def _is_served(item: RequestRow) -> bool:
    return item.served == item.count


def _nodes(nodes: Iterable[PlanNode]) -> Iterator[RenderableType]:
    """Nodes of one type that share a reason share a row."""
    groups: dict[tuple[Reason, str, str], list[str]] = {}
    for node in nodes:
        groups.setdefault((node.reason, node.node_type, node.detail), []).append(node.node)
    rows = _Rows(first=3)
    for (reason, node_type, detail), names in list(groups.items())[:MAX_ROWS]:
        shown = f"{_names(names)}: {detail}" if detail else _names(names)
        rows.add(str(len(names)), node_type, reason.value, shown)
    return _section("Nodes", rows, len(groups))


def _node_types(report: PlanReport) -> Iterator[RenderableType]:
    rows = _Rows(first=2)
    for verdict in report.node_types[:MAX_ROWS]:
        rows.add(verdict.node_type, verdict.reason.value, verdict.detail)
    yield from _section("Node types", rows, len(report.node_types))
    if report.unknown_sizes:
        names = _names(report.unknown_sizes)
        fix = "give its resources in the cluster file, or nodes with a total in the demand file"
        yield Text(f"\nOf unknown size, so nothing is placed on it: {names}; {fix}", style=BAD)


def _conclusion(report: PlanReport) -> Text:
    items = (*report.demands, *report.gangs, *report.constraints)
    asked, served = sum(item.count for item in items), sum(item.served for item in items)
    if not asked:
        return Text("\nNothing is waiting.")
    if report.satisfied:
        return Text(f"\nAll {asked:,} requests are placed or planned.", style=GOOD)
    left_out = [item.name for item in items if not _is_served(item)]
    return Text(f"\n{asked - served:,} of {asked:,} requests are not served: {_names(left_out)}", style=BAD)


def _section(title: str, rows: _Rows, count: int) -> Iterator[RenderableType]:
    """A heading and its rows; nothing at all when there are none."""
    if count:
        yield Text(f"\n{title}", style=HEADING)
        yield Padding(rows, (0, 0, 0, 2), expand=False)
    yield from more_line(count - MAX_ROWS)


class _Rows:
    """Shows short cells and, in the last one, a text that may be long.

    The text stands beside the cells if a line has room for its longest word and for a few others; if not, it
    stands below the first cells. So a word is broken only where it is longer than the line.
    """

    def __init__(self, first: int, gap: int = 2, justify: Sequence[JustifyMethod] = ()) -> None:
        self._first, self._gap, self._justify = first, gap, justify
        self._rows: list[list[Text]] = []

    def add(self, *cells: str | Text) -> None:
        self._rows.append([Text(cell) if isinstance(cell, str) else cell for cell in cells])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        widths = [max(cell.cell_len for cell in column) for column in zip(*self._rows, strict=True)]
        words = [cell_len(word) for row in self._rows for word in row[-1].plain.split()]
        longest = max(words, default=0)
        wanted = min(widths[-1], max(LEAST_TEXT, longest))
        if sum(widths[:-1]) + self._gap * (len(widths) - 1) + wanted <= options.max_width:
            yield self._beside()
        else:
            yield from self._below(widths, options.max_width, longest)

    def _beside(self) -> Table:
        table = Table.grid(padding=(0, self._gap, 0, 0))
        for number, _ in enumerate(self._rows[0], 1):
            justify = self._justify[number - 1] if self._justify else "left"
            table.add_column(justify=justify, no_wrap=number < len(self._rows[0]), overflow="fold")
        for row in self._rows:
            table.add_row(*row)
        return table

    def _below(self, widths: Sequence[int], room: int, longest: int) -> Iterator[RenderableType]:
        start = sum(widths[: self._first - 1]) + self._gap * (self._first - 1)
        indent = max(2, min(start + 2, room - longest))
        for row in self._rows:
            line = Text(overflow="fold")
            for cell, width in zip(row[: self._first], widths, strict=False):
                line.append_text(cell).append(" " * (width - cell.cell_len + self._gap))
            line.rstrip()
            text = Text("  ", overflow="fold").join(cell for cell in row[self._first :] if cell.plain)
            if line.plain and line.cell_len + self._gap + text.cell_len <= room:
                yield Text(" " * self._gap, overflow="fold").join((line, text))
                continue
            yield from (line,) if line.plain else ()
            yield from (Padding(text, (0, 0, 0, indent), expand=False),) if text.plain else ()


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(names[:MAX_NAMES])
    return shown if len(names) <= MAX_NAMES else f"{shown} and {len(names) - MAX_NAMES:,} more"
