"""Implements `muster plan`, which asks the planner and shows its answer; nothing is changed anywhere."""

from __future__ import annotations

from pathlib import Path

import click
from msgspec.structs import replace

from muster.base.codec import encode_plain
from muster.cli.console import emit, show
from muster.cli.plan.report import build_report
from muster.cli.plan.view import render_plan
from muster.cluster.model import Objective
from muster.cluster.what_if import what_if
from muster.config.demand_file import load_demand, load_nodes
from muster.config.load import load_config
from muster.config.to_spec import to_spec
from muster.errors import ConfigError

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
    "--nodes", "nodes_file", type=_FILE, help="File with the existing nodes, when the demand file has none."
)
@click.option(
    "--objective",
    type=click.Choice([objective.value for objective in Objective]),
    help="Objective to plan by, instead of that of CONFIG.",
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
    """Show what a cluster would launch and stop for a demand, what it costs, and why.

    CONFIG is the cluster's YAML file, as for `ray up`. The answer comes from the same function that decides
    in the running autoscaler. Nothing is launched.
    """
    spec = to_spec(load_config(config))
    if objective is not None:
        spec = replace(spec, objective=Objective(objective))
    wanted = load_demand(demand_file, spec)
    if nodes_file is not None:
        if wanted.nodes:
            raise ConfigError(
                f"are also given by {nodes_file}; keep one", path="nodes", file=str(demand_file)
            )
        wanted = replace(wanted, nodes=load_nodes(nodes_file, spec))
    report = build_report(what_if(spec, wanted))
    if as_json:
        emit(encode_plain(report))
    else:
        show(*render_plan(report))
    ctx.exit(0 if report.satisfied else NOT_SATISFIED)
