"""Define the `muster` group: imports sub-commands lazily and turns errors into exit codes."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, NamedTuple

import click

from muster import __version__
from muster.base.text import did_you_mean
from muster.errors import MusterError, is_deliberate


class CommandEntry(NamedTuple):
    """Names a sub-command's module, which is imported on use, so that `--help` stays fast."""

    module: str
    attribute: str
    summary: str


def _entries(module: str, **summaries: str) -> dict[str, CommandEntry]:
    """Return the commands of one module; `_` stands for `-`, and a trailing one avoids a Python keyword."""
    return {
        attribute.strip("_").replace("_", "-"): CommandEntry(module, attribute, summary)
        for attribute, summary in summaries.items()
    }


GROUPS = {
    "Tune": {
        **_entries("muster.cli.tune.command", tune="Tune commands; list, show, plot and resume experiments."),
        **_entries("muster.cli.dashboard", dashboard="Show experiments and clusters in a browser."),
        **_entries("muster.cli.report", report="Report a result from a script in a trial."),
        **_entries("muster.cli.compat", compat="Port Ray Tune scripts to muster."),
        **_entries("muster.cli.as_ray", as_ray="Run a command with muster in place of Ray."),
    },
    "Cluster": {
        **_entries("muster.cli.up_down", up="Create or update a cluster."),
        **_entries("muster.cli.status.command", status="Show machines, demand and spend of a cluster."),
        **_entries("muster.cli.why", why="Explain the state of a machine, request or node type."),
        **_entries("muster.cli.up_down", down="Stop a cluster and terminate its machines."),
        **_entries("muster.cli.gc", gc="List and terminate orphaned machines."),
    },
    "Remote": _entries(
        "muster.cli.cluster.commands",
        exec_="Run a command on the head.",
        submit="Copy a script to the head and run it.",
        attach="Open a shell on the head or on a worker.",
        rsync_up="Copy files to the head.",
        rsync_down="Copy files from the head.",
        get_head_ip="Print the address of the head.",
        get_worker_ips="Print the addresses of the workers.",
        logs="Show the monitor log or a worker's setup log.",
    ),
    "Plan and cost": {
        **_entries("muster.cli.plan.command", plan="Show what a cluster would launch and terminate."),
        **_entries("muster.cli.estimate", estimate="Estimate the cost of an experiment."),
        **_entries("muster.cli.backtest", backtest="Replay a cluster's history with other settings."),
    },
    "Advanced": {
        **_entries("muster.cli.monitor", monitor="Run the autoscaler daemon on a head."),
        **_entries("muster.cli.kuberay", kuberay_autoscaler="Run the autoscaler of a RayCluster."),
        **_entries("muster.cli.provider.command", provider="Check a node provider against the contract."),
        **_entries("muster.cli.sim.command", sim="Simulate the autoscaler or a tuner."),
        **_entries("muster.cli.cluster.commands", kill_random_node="Kill Ray on a random worker."),
    },
}
COMMANDS = {name: entry for commands in GROUPS.values() for name, entry in commands.items()}
# Earlier names, which keep working and which the help does not list.
ALIASES = {"page": "dashboard", "quote": "estimate"}

BAD_INPUT = 2
INTERRUPTED = 130


class _Refused(click.ClickException):
    """A MusterError on its way to the exit code."""

    exit_code = BAD_INPUT

    def show(self, file: IO[Any] | None = None) -> None:
        from muster.cli.console import complain

        complain(self.message)


@contextmanager
def _usage_in_one_line() -> Iterator[None]:
    """Make one line of click's four, with the nearest command where one is misspelt."""
    try:
        yield
    except click.exceptions.NoArgsIsHelpError:
        raise  # the whole help
    except click.UsageError as error:
        path = "muster" if error.ctx is None else error.ctx.command_path
        text = error.format_message().replace("\n", " ")
        if error.ctx is not None and isinstance(error.ctx.command, click.Group):
            word = text.partition("'")[2].partition("'")[0]
            near = did_you_mean(word, error.ctx.command.list_commands(error.ctx))
            text = text if text.endswith("?") or not near else f"{text} D{near[1:]}"
        text = text if text.endswith("?") else f"{text.rstrip('.')}; see {path} --help"
        raise _Refused(f"{path}: {text[:1].lower()}{text[1:]}") from error


class LazyGroup(click.Group):
    """Holds the commands that are named in COMMANDS."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(ALIASES.get(cmd_name, cmd_name))
        if entry is None:
            return None
        command: click.Command = getattr(importlib.import_module(entry.module), entry.attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:<{width}}", entry.summary) for name, entry in commands.items()])

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:  # noqa: ANN401 - click's signature
        with _usage_in_one_line():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - click's signature
        try:
            with _usage_in_one_line():
                return super().invoke(ctx)
        except MusterError as problem:
            raise _Refused(str(problem)) from problem
        except KeyboardInterrupt as problem:
            raise click.exceptions.Exit(INTERRUPTED) from problem
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as problem:
            if is_deliberate(problem):
                raise _Refused(str(problem)) from problem
            raise


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 88},
    epilog="Exit codes: 0 done; 2 bad input; others: see each command's --help.",
)
@click.version_option(__version__, message="muster %(version)s")
def cli() -> None:
    """Tune hyperparameters and autoscale Ray clusters.

    Hyperparameter tuning that survives crashes, and a Ray autoscaler that knows what things cost.

    \b
    Examples:
      muster tune demo
      muster tune ls
      muster up examples/laptop.yaml
    """


def main() -> None:
    """Run the `muster` script."""
    cli(prog_name="muster")


if __name__ == "__main__":
    main()
