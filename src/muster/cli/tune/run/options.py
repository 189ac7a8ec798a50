"""Define the options of `muster tune run`, in the groups that its help shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from muster.base.text import did_you_mean

HELP = """Tune a command: each trial runs it once, with different values.

    {lr} in COMMAND becomes the value of the key lr, and {args} becomes all other keys. A trial
    reports with `tune.report`, or with a JSON line such as {"loss": 0.3} in its output; --report reads other
    output. Put -- before a COMMAND of several words with options. See docs/tune-cli.md for specs.

    \b
    Examples:
      muster tune run 'python train.py --lr {lr}' --space lr=loguniform:1e-5:1e-1 --metric val_loss
      muster tune run --space x=uniform:0:1 --metric y --mode max -n 50 -- ./simulate --x {x}
      muster tune run 'Rscript fit.R {args}' --space-file space.yaml --metric rmse --report text
      muster tune run --sweep sweep.yaml --scheduler asha --dry-run
    """
EPILOG = (
    "Exit codes: 0 done; 1 some trials failed; 2 bad input, or no trial reported the metric; 3 a budget or "
    "deadline stopped it; 130 interrupted."
)
_FILE, _SOME = click.Path(path_type=Path, dir_okay=False), click.IntRange(min=1)
_MORE, _ENGINE = click.FloatRange(min=0, min_open=True), click.Choice(["local", "ray", "slurm"])


def _option(names: str, text: str, metavar: str | None = None, **more: Any) -> click.Option:  # noqa: ANN401
    return click.Option(names.split(), help=text, metavar=metavar, **more)


GROUPS = {
    "Search space": [
        _option("--space", "Domain or value of KEY, such as uniform:0:1.", "KEY=SPEC", multiple=True),
        _option("--space-file", "YAML file of keys and specs.", type=_FILE),
        _option("--sweep", "Sweep file of Weights & Biases.", type=_FILE),
        _option("--points", "YAML or JSON list of configs to try first.", type=_FILE),
    ],
    "Goal": [
        _option("--metric", "Value to optimize, or several.", "NAME,.."),
        _option("--mode", "Optimization directions. Default: min, or the sweep's.", "[min|max],.."),
        _option("--also", "Other values that --report text reads.", "A,B"),
        _option("--report", "How to read results, such as csv:log.csv.", "WAY", multiple=True),
    ],
    "Search": [
        _option("-n --samples", "Trials, or rounds of a grid. Default: 10; 1 for a grid.", "N", type=_SOME),
        _option("--search", "Search algorithm. Default: auto; random for a grid.", "NAME[:K=V,..]"),
        _option("--scheduler", "Scheduler that stops trials early, such as asha.", "NAME[:K=V,..]"),
        _option("--seed", "Seed of the search.", "N", type=int),
        _option("--concurrent", "Trials at a time. Default: as many as fit.", "N", type=_SOME),
    ],
    "Command": [
        _option("--args", "Style of {args}: equals, space, hydra, hydra+, hydra++, json, flags.", "STYLE"),
        _option("--env", "Environment variable; V may have placeholders.", "K=V", multiple=True),
        _option("--env-args", "Pass all keys as variables.", "[PREFIX]", is_flag=False, flag_value=""),
        _option("--cwd", "Working directory. Default: the current one.", "DIR"),
        _option("--shell", "Run the command with /bin/sh.", is_flag=True),
        _option("--ok-exit ok_exit_codes", "Exit codes that are not failures. Default: 0.", "CODES"),
        _option("--grace grace_s", "Time between the stop signal and SIGKILL.", "SECONDS", type=float),
        _option("--stop-signal", "Signal that stops the command. Default: SIGTERM.", "SIGNAL"),
        _option("--stop-command", "Command to run after a stop.", "COMMAND"),
        _option("--checkpoint", "Files or directories that are checkpoints.", "GLOB"),
        _option("--log-limit", "Maximum size of a trial's output. Default: 65MB.", "SIZE"),
    ],
    "Resources and limits": [
        _option("--cpus", "CPUs of a trial. Default: 1.", "X", type=float),
        _option("--gpus", "GPUs of a trial.", "X", type=float),
        _option("--engine", "Where trials run. Default: a Ray cluster, if any, else here.", type=_ENGINE),
        _option("--stop", "Stop a trial when KEY reaches VALUE.", "KEY=VALUE", multiple=True),
        _option("--time-budget", "Stop the experiment after this time.", "SECONDS", type=_MORE),
        _option("--deadline", "Finish, with all trials saved, within this time.", "SECONDS", type=_MORE),
        _option("--cost-budget", "Most that the experiment may cost.", "USD", type=_MORE),
        _option("--price-per-hour", "Price of this machine per hour.", "USD", type=_MORE),
        _option("--trial-time-limit", "Fail a trial that runs longer.", "SECONDS", type=_MORE),
        _option("--retries", "Restarts of a failed trial. Default: 0.", "N", type=click.IntRange(min=-1)),
        _option("--fail-fast", "Stop at the first failed trial.", is_flag=True),
    ],
    "Output": [
        _option("--name", "Name of the experiment.", "NAME"),
        _option("--storage", "Directory or URL of experiments. Default: ~/ray_results.", "DIR"),
        _option("--keep", "Checkpoints to keep per trial. Default: all.", "N", type=_SOME),
        _option("--dry-run", "Print the first 3 commands; run nothing.", is_flag=True),
        _option("--check", "Run one trial, and print what it reported.", is_flag=True),
        _option("--json as_json", "Print the result as JSON (docs/tune-cli.md).", is_flag=True),
    ],
}


class _Run(click.Command):
    """Shows its options in groups, and knows why an option may be unknown."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            near = did_you_mean(error.option_name, [name for each in self.params for name in each.opts])
            text = f"no such option {error.option_name}; {near}".rstrip("; ?")
            raise click.UsageError(f"{text}; put -- before COMMAND if it has options", ctx) from error

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups = {**GROUPS, "Other": [option for option in [self.get_help_option(ctx)] if option]}
        for title, options in groups.items():
            with formatter.section(title):
                formatter.write_dl([record for each in options if (record := each.get_help_record(ctx))])


@click.pass_context
def _run(ctx: click.Context, /, command: tuple[str, ...], **asked: Any) -> None:  # noqa: ANN401
    from muster.cli.console import remark
    from muster.cli.tune.command import print_lines
    from muster.cli.tune.run.experiment import run_command

    lines, code = run_command(command, asked, remark)
    print_lines(lines)
    ctx.exit(code)


run = _Run(
    "run",
    params=[
        click.Argument(["command"], nargs=-1, metavar="COMMAND..."),
        *(option for options in GROUPS.values() for option in options),
    ],
    callback=_run,
    help=HELP,
    epilog=EPILOG,
    short_help="Tune a command.",
)
