"""Defines the `muster` group: imports sub-commands lazily and turns errors into exit codes."""

from __future__ import annotations

import importlib
from typing import IO, Any, NamedTuple

import click

from muster import __version__
from muster.errors import MusterError, SimulationError


class CommandEntry(NamedTuple):
    """A CommandEntry names a sub-command's module, which is imported on use, so that `--help` stays fast."""

    module: str
    attribute: str
    summary: str


COMMANDS = {
    "plan": CommandEntry(
        "muster.cli.plan.command", "plan", "Show what a cluster would launch and stop, and why."
    ),
    "sim": CommandEntry(
        "muster.cli.sim.command", "sim", "Run the autoscaler against a simulated cloud with faults."
    ),
    "up": CommandEntry("muster.cli.up_down", "up", "Start the cluster of a file, or its monitor."),
    "status": CommandEntry(
        "muster.cli.status.command", "status", "Show the machines, waiting requests and spend of a cluster."
    ),
    "why": CommandEntry(
        "muster.cli.why", "why", "Show the reason for the state of a machine, request or node type."
    ),
    "monitor": CommandEntry(
        "muster.cli.monitor", "monitor", "Run the autoscaler of a cluster (a daemon on its head)."
    ),
    "down": CommandEntry("muster.cli.up_down", "down", "Stop a cluster and everything that belongs to it."),
    "tune": CommandEntry("muster.cli.tune.command", "tune", "List, show, export and resume experiments."),
}

BAD_INPUT = 2
SIMULATION_FAILED = 1


class _Refused(click.ClickException):
    """A MusterError on its way to the exit code."""

    exit_code = BAD_INPUT

    def show(self, file: IO[Any] | None = None) -> None:
        from muster.cli.console import complain

        complain(self.message)


class _Failed(_Refused):
    """A SimulationError on its way to the exit code."""

    exit_code = SIMULATION_FAILED


class LazyGroup(click.Group):
    """A LazyGroup holds the commands that are named in COMMANDS."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        command: click.Command = getattr(importlib.import_module(entry.module), entry.attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - click's signature
        try:
            return super().invoke(ctx)
        except MusterError as problem:
            kind = _Failed if isinstance(problem, SimulationError) else _Refused
            raise kind(str(problem)) from problem


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 88},
    epilog="Exit codes: 0 done; 1 a simulation failed; 2 bad input; others: see each command's --help.",
)
@click.version_option(__version__, message="muster %(version)s")
def cli() -> None:
    """Scale Ray clusters, tune hyperparameters, and see the reason for every decision.

    \b
    Try:
      muster plan examples/plan/cluster.yaml --demand examples/plan/demand.yaml
      muster sim day
      muster up examples/laptop.yaml
      muster tune ls results/my_experiment
    """


def main() -> None:
    """Runs the `muster` script."""
    cli(prog_name="muster")


if __name__ == "__main__":
    main()
