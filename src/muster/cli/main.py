"""Defines the `muster` group: imports sub-commands lazily and turns errors into exit codes."""

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
    """A CommandEntry names a sub-command's module, which is imported on use, so that `--help` stays fast."""

    module: str
    attribute: str
    summary: str


TUNE = {
    "tune": CommandEntry(
        "muster.cli.tune.command", "tune", "List, show, plot, compare, export and resume experiments."
    ),
    "page": CommandEntry(
        "muster.cli.page", "page", "Show experiments and clusters in a browser; write a report to mail."
    ),
    "quote": CommandEntry(
        "muster.cli.quote", "quote_command", "Show what an experiment will cost, before it is run."
    ),
    "compat": CommandEntry(
        "muster.cli.compat", "compat", "Change the imports of Ray Tune scripts; list what muster lacks."
    ),
}
AUTOSCALE = {
    "up": CommandEntry("muster.cli.up_down", "up", "Start the cluster of a file, or its monitor."),
    "status": CommandEntry(
        "muster.cli.status.command", "status", "Show the machines, waiting requests and spend of a cluster."
    ),
    "why": CommandEntry(
        "muster.cli.why", "why", "Show the reason for the state of a machine, request or node type."
    ),
    "down": CommandEntry("muster.cli.up_down", "down", "Stop a cluster and everything that belongs to it."),
    **{
        name: CommandEntry("muster.cli.cluster.commands", attribute, summary)
        for name, attribute, summary in (
            ("exec", "exec_", "Run a command on the head of a cluster."),
            ("submit", "submit", "Copy a script to the head and run it there."),
            ("attach", "attach", "Open a terminal on the head or on a worker."),
            ("rsync-up", "rsync_up", "Copy files to the head."),
            ("rsync-down", "rsync_down", "Copy files from the head."),
            ("get-head-ip", "get_head_ip", "Print the address of the head."),
            ("get-worker-ips", "get_worker_ips", "Print the addresses of the workers."),
            ("kill-random-node", "kill_random_node", "End Ray on a random worker, as a test."),
            ("logs", "logs", "Show the monitor's log, or how a worker was set up."),
        )
    },
    "gc": CommandEntry("muster.cli.gc", "gc", "List the machines of a cluster that nobody owns; end them."),
    "monitor": CommandEntry(
        "muster.cli.monitor", "monitor", "Run the autoscaler of a cluster (a daemon on its head)."
    ),
    "kuberay-autoscaler": CommandEntry(
        "muster.cli.kuberay",
        "kuberay_autoscaler",
        "Run the autoscaler of a RayCluster (a sidecar of its head).",
    ),
    "plan": CommandEntry(
        "muster.cli.plan.command", "plan", "Show what a cluster would launch and stop, and why."
    ),
    "backtest": CommandEntry(
        "muster.cli.backtest", "backtest", "Replay a cluster's history with other settings or prices."
    ),
    "provider": CommandEntry(
        "muster.cli.provider.command", "provider", "Check that a provider keeps what it promises."
    ),
    "sim": CommandEntry(
        "muster.cli.sim.command", "sim", "Run the autoscaler or a tuner in a simulated world."
    ),
}
COMMANDS = {**TUNE, **AUTOSCALE}

BAD_INPUT = 2


class _Refused(click.ClickException):
    """A MusterError on its way to the exit code."""

    exit_code = BAD_INPUT

    def show(self, file: IO[Any] | None = None) -> None:
        from muster.cli.console import complain

        complain(self.message)


@contextmanager
def _usage_in_one_line() -> Iterator[None]:
    """Makes one line of click's four, with the nearest command where one is misspelt."""
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
        width = max(map(len, COMMANDS))
        for title, commands in (("Find the best model", TUNE), ("Scale a cluster", AUTOSCALE)):
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
    """Find the best model, on one computer or on a cluster that grows for it and shrinks after it.

    muster.tune runs the trials of a Python script (from muster import tune); the commands below look at its
    experiments, and start, watch and explain clusters.

    \b
    Try:
      muster tune ls
      muster sim day
      muster up examples/laptop.yaml
    """


def main() -> None:
    """Runs the `muster` script."""
    cli(prog_name="muster")


if __name__ == "__main__":
    main()
