"""Implement `muster tune`: the options of its commands; the modules that do the work are imported on use."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import click

from muster.cli.console import emit, has_colours, remark
from muster.cli.tune.columns import trial_row
from muster.cli.tune.experiment import ExperimentView
from muster.cli.tune.table import all_columns, check_name, strict_json, write_rows
from muster.errors import ConfigError, StoreError
from muster.tune.analysis.tables import Row, flat_row

SCOPES = ("last", "all", "avg", "last-5-avg", "last-10-avg")
WATCH_S = 2.0

_json = click.option("--json", "as_json", is_flag=True, help="Print JSON (docs/tune-cli.md).")
_watch = click.option(
    "--watch", is_flag=True, help="Refresh every 2 s until the experiment ends; Ctrl-C quits."
)
_metric = click.option("--metric", help="Metric to compare by. Default: the experiment's.")
_mode = click.option(
    "--mode",
    type=click.Choice(["min", "max"]),
    help="Optimization direction. Default: the experiment's.",
)

RAY_NAMES = {"list-trials": "ls", "lsx": "ls", "list-experiments": "ls"}


class _Tune(click.Group):
    """Knows Ray's names of the commands, and lists the commands in the order of their use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return ["run", *self.commands, "submit"]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == "run":
            from muster.cli.tune.run.options import run

            return run
        if cmd_name == "submit":
            from muster.cli.tune.submit import submit

            return submit
        return super().get_command(ctx, RAY_NAMES.get(cmd_name, cmd_name))


class _RayWords(click.Command):
    """Accepts Ray's `--desc True` for `--desc`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = list(args)
        for value, stays in (("true", True), ("false", False)):
            for position in range(len(words) - 1, 0, -1):
                if words[position - 1] == "--desc" and words[position].lower() == value:
                    words[position - 1 : position + 1] = ["--desc"] if stays else []
        return super().parse_args(ctx, words)


@click.group(
    cls=_Tune,
    context_settings={"max_content_width": 88},
    epilog="\b\nExamples:\n  muster tune ls results/search\n  muster tune resume results/search\n\n"
    "Exit codes: 0 success; 1 `run` or `resume` ended with failed trials; 2 bad input; 3 a budget or "
    "deadline stopped them; 130 interrupted.",
)
def tune() -> None:
    """Tune commands, and list, show, compare, plot, export, stop and resume experiments.

    PATH is an experiment directory, <storage_path>/<name>. The experiment may be running. `resume` runs the
    experiment's code and loads pickled objects: use it only with directories that you trust. All other
    commands are safe with any directory; `plot`, `add-note`, `stop` and `set` write a file into it.
    """


@tune.command(cls=_RayWords, short_help="List trials, or experiments.")
@click.argument("path", required=False)
@click.option("--sort", multiple=True, metavar="A,B", help="Sort by these columns.")
@click.option("--desc", is_flag=True, help="Sort in descending order.")
@click.option(
    "--filter",
    "filters",
    multiple=True,
    metavar="'COL OP VALUE'",
    help="Keep matching rows; OP is < <= == != >= or >.",
)
@click.option("--columns", multiple=True, metavar="A,B", help="Columns to show; 'config/*' is a pattern.")
@click.option("--limit", type=click.IntRange(min=1), help="Maximum number of rows.")
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path),
    help="File to write: .csv, .json, .jsonl, .parquet or .pkl.",
)
@_json
@_watch
def ls(path: str | None, as_json: bool, watch: bool, output: Path | None, desc: bool, **asked: Any) -> None:  # noqa: ANN401
    """List the trials of an experiment, or the experiments in a directory.

    Without PATH: the experiments where `fit()` writes by default.

    \b
    Examples:
      muster tune ls
      muster tune ls results/mine --sort loss --limit 10
      muster tune ls results/mine --filter 'status == ERROR' --columns trial_id,error
      muster tune ls results/mine --columns 'trial,status,config/*' -o trials.csv
      muster tune ls results
    """
    from muster.cli.tune.ls import ListOptions, as_record, as_text, listing
    from muster.cli.tune.table import page_size

    if watch and (as_json or output is not None):
        raise click.UsageError("--watch shows a table; leave out --json and --output")
    if path is None:
        from muster.tune.config import RunConfig

        path = str(RunConfig().storage_path)
        if not Path(path).expanduser().exists():
            raise ConfigError(f"no PATH is given, and {path}, where fit() writes by default, does not exist")
    place, limit = path, asked["limit"] or (max(page_size()[1] - 8, 5) if watch else None)
    words = {"filters": asked["filters"], "sort": asked["sort"], "columns": asked["columns"]}
    choice = ListOptions(**words, descending=desc, limit=limit, active_first=watch)

    def read() -> tuple[Iterable[str], bool]:
        found = listing(place, choice)
        return as_text(found, colour=has_colours()), found.is_running

    if watch:
        _watched(read)
    elif output is not None:
        found = listing(place, choice)
        columns = found.columns if choice.columns else found.all_columns
        write_rows(found.rows, columns, output)
        remark(f"{output}: {len(found.rows):,} rows, {len(columns)} columns")
    elif as_json:
        _emit_json(as_record(listing(place, choice), chosen=bool(choice.columns)))
    else:
        print_lines(read()[0])


@tune.command(name="show", short_help="Show an experiment, or one of its trials.")
@click.argument("path")
@click.argument("trial", required=False)
@_json
@_watch
def show_command(path: str, trial: str | None, as_json: bool, watch: bool) -> None:
    """Show an experiment, or one of its trials.

    TRIAL is a trial id, the last part of one, or the name of a trial directory.

    \b
    Examples:
      muster tune show results/mine
      muster tune show results/mine 00003
    """
    from muster.cli.tune.experiment import read_experiment
    from muster.cli.tune.show import (
        experiment_lines,
        experiment_record,
        find_trial,
        trial_lines,
        trial_record,
    )

    def read() -> tuple[Iterable[str], bool]:
        experiment = read_experiment(path)
        colour = has_colours()
        if trial is None:
            lines = experiment_lines(experiment, colour=colour)
        else:
            lines = trial_lines(experiment, find_trial(experiment, trial), colour=colour)
        return lines, experiment.writer is not None

    if watch:
        _watched(read)
    elif as_json:
        experiment = read_experiment(path)
        one = None if trial is None else find_trial(experiment, trial)
        _emit_json(experiment_record(experiment) if one is None else trial_record(experiment, one))
    else:
        print_lines(read()[0])


@tune.command()
@click.argument("path")
@_metric
@_mode
@click.option(
    "--scope",
    type=click.Choice(SCOPES),
    default="last",
    show_default=True,
    help="Which of a trial's values to compare.",
)
@click.option(
    "-n", "count", type=click.IntRange(min=1), default=1, show_default=True, help="Number of trials."
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "json", "yaml"]),
    default="table",
    show_default=True,
    help="Output format.",
)
@click.option("--json", "as_json", is_flag=True, help="Short for --format json.")
@click.option("--command", "as_command", is_flag=True, help="Print the commands that the best trials ran.")
def best(path: str, count: int, form: str, as_json: bool, as_command: bool, **asked: str | None) -> None:
    """Print the best trials and their configs, ready to paste.

    Compares the last value of each trial. --scope all compares the best values; avg, last-5-avg and
    last-10-avg compare the mean of all, the last 5 or the last 10 values.

    \b
    Examples:
      muster tune best results/mine
      muster tune best results/mine --metric accuracy --mode max -n 5
      muster tune best results/mine --format yaml > best.yaml
      muster tune best results/mine --command
    """
    from muster.cli.tune.best import best_page
    from muster.cli.tune.experiment import read_experiment

    form = "command" if as_command else "json" if as_json else form
    page, remarks = best_page(read_experiment(path), count, form, asked)
    print_lines(page)
    for each in remarks:
        remark(each)


@tune.command()
@click.argument("path")
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path),
    required=True,
    help="File to write: .csv, .json, .jsonl, .parquet or .pkl.",
)
@click.option("--results", is_flag=True, help="Write one row per result instead of one per trial.")
def export(path: str, output: Path, results: bool) -> None:
    """Write all trials, or all their results, to a file.

    \b
    Examples:
      muster tune export results/mine -o trials.csv
      muster tune export results/mine --results -o curves.parquet
    """
    from muster.cli.tune.experiment import read_experiment

    check_name(output)
    experiment = read_experiment(path)
    unread: list[str] = []
    trials = (trial_row(trial, experiment.trial_path(trial)) for trial in experiment.trials)
    rows = list(result_rows(experiment, unread) if results else trials)
    columns = all_columns(rows, ("trial_id", "status", "training_iteration"))
    write_rows(rows, columns, output)
    remark(f"{output}: {len(rows):,} rows, {len(columns)} columns")
    if unread:
        remark(f"left out, because their results cannot be read ({len(unread)}): {'; '.join(unread[:3])}")


@tune.command(short_help="Plot an experiment.")
@click.argument("path")
@click.option("--output", "-o", help="File to write: .html or .png (needs matplotlib). Default: in PATH.")
@click.option("--kind", type=click.Choice(["all", "curves", "parallel", "importance"]), default="all")
@_metric
@_mode
def plot(path: str, output: str | None, **asked: Any) -> None:  # noqa: ANN401
    """Plot learning curves, parallel coordinates and parameter importance, and print the file's path.

    \b
    Examples:
      muster tune plot results/mine
      muster tune plot results/mine -o mine.html --kind curves
    """
    from muster.cli.tune.best import experiment_analysis, wanted_metric
    from muster.cli.tune.experiment import read_experiment
    from muster.tune.plots import save_plot

    experiment = read_experiment(path)
    if output is None and experiment.filesystem is not None:
        raise ConfigError(
            f"{experiment.address} is not on this machine", fix="name the file to write: -o FILE"
        )
    asked["metric"], asked["mode"] = wanted_metric(experiment, asked["metric"], asked["mode"])
    try:
        emit(save_plot(experiment_analysis(experiment), output, **asked).encode())
    except (ValueError, ImportError, OSError) as error:
        raise ConfigError(str(error)) from error


@tune.command(short_help="Compare experiments side by side.")
@click.argument("paths", nargs=-1, required=True, metavar="PATH PATH...")
@_metric
@_mode
@click.option("--x", type=click.Choice(["results", "time"]), default="results", help="X axis of the plot.")
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path),
    help="Plot the best value so far of each to a file: .html, .svg or .png.",
)
@_json
def compare(paths: tuple[str, ...], output: Path | None, as_json: bool, **asked: Any) -> None:  # noqa: ANN401
    """Compare experiments side by side: trials, time, best value and its config; -o plots them together.

    \b
    Examples:
      muster tune compare results/random results/optuna
      muster tune compare results/* --metric loss --mode min -o both.html
    """
    from muster.cli.tune.best import Comparison

    comparison = Comparison.of(paths, asked["metric"], asked["mode"])
    if output is not None:
        comparison.draw(output, asked["x"])
        remark(f"{output}: the best {comparison.metric} so far of {len(paths)} experiments")
    if as_json:
        _emit_json(comparison.record())
    elif output is None:
        print_lines(comparison.lines())


@tune.command()
@click.argument("path")
@click.option("--trainable", metavar="MODULE:NAME", help="Trainable to run instead of the saved one.")
@click.option("--script", type=click.Path(path_type=Path), help="File that defines the trainable.")
@click.option(
    "--errored",
    type=click.Choice(["resume", "restart"]),
    help="Rerun failed trials from their checkpoint, or from the start.",
)
@click.option("--skip-unfinished", is_flag=True, help="Keep interrupted trials as they are.")
@click.option(
    "--cost-budget", type=float, metavar="USD", help="New total budget, including what was already spent."
)
@click.option("--deadline", type=float, metavar="SECONDS", help="New deadline, in seconds from now.")
@click.pass_context
def resume(ctx: click.Context, /, path: str, **asked: Any) -> None:  # noqa: ANN401
    """Continue an interrupted experiment.

    Finished trials are kept, unfinished ones continue from their last checkpoint, and the search continues
    where it stopped.

    This runs the experiment's code: tuner.pkl and trainable.pkl in PATH are unpickled, so use it only with a
    directory that you trust. The current directory is on sys.path, as for `python`.

    \b
    Examples:
      muster tune resume results/mine
      muster tune resume results/mine --errored restart
      muster tune resume results/mine --trainable my_project.train:train
      muster tune resume results/mine --script train.py
    """
    from muster.cli.tune.resume import ResumeRequest, resumed

    lines, code = resumed(path, ResumeRequest(**asked), report=remark)
    print_lines(lines)
    ctx.exit(code)


@tune.command(short_help="Stop a running experiment, or some of its trials.")
@click.argument("path")
@click.argument("trials", nargs=-1, metavar="[TRIAL_ID]...")
def stop(path: str, trials: tuple[str, ...]) -> None:
    """Ask the driver of a running experiment to stop it, or to stop some of its trials.

    The experiment stops as after Ctrl-C: everything is saved, and `muster tune resume` continues it. A
    stopped trial does not continue.

    \b
    Examples:
      muster tune stop results/mine
      muster tune stop results/mine 1a2b3_00004 1a2b3_00007
    """
    from muster.cli.tune.resume import request_stop

    print_lines(request_stop(path, trials))


@tune.command("set", short_help="Change the budget or the deadline of a running experiment.")
@click.argument("path")
@click.option(
    "--cost-budget", type=float, metavar="USD", help="New total budget, including what was already spent."
)
@click.option("--deadline", type=float, metavar="SECONDS", help="New deadline, in seconds from now.")
def set_limits(path: str, cost_budget: float | None, deadline: float | None) -> None:
    """Ask the driver of a running experiment to enforce another budget or deadline.

    \b
    Examples:
      muster tune set results/mine --cost-budget 40
      muster tune set results/mine --deadline 7200
    """
    from muster.cli.tune.resume import request_limits

    print_lines(request_limits(path, cost_budget, deadline))


@tune.command(short_help="Tune a small neural network as a demo.")
@click.argument("directory", required=False)
def demo(directory: str | None) -> None:
    """Tune a small neural network in a few seconds and plot the result. Downloads nothing.

    The results are in DIRECTORY. Default: a new temporary directory.

    \b
    Examples:
      muster tune demo
      muster tune demo results
    """
    import tempfile

    from muster.tune.examples.first_run import main

    grid = main(directory or tempfile.mkdtemp(prefix="muster-"))
    emit(f"Plot: {grid.plot()}".encode())


@tune.command(name="add-note", short_help="Write a note about an experiment.")
@click.argument("path")
@click.option("--filename", default="note.txt", show_default=True, help="File in the experiment's directory.")
def add_note(path: str, filename: str) -> None:
    """Edit a note about an experiment in $EDITOR; `muster tune show` prints it.

    \b
    Examples:
      muster tune add-note results/mine
    """
    from muster.cli.tune.experiment import note_file

    file = note_file(path, filename)
    click.edit(filename=str(file))
    remark(f"note: {file}")


_CONTROLS = re.compile(r"(\x1b\[\d{0,2}m)|[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def print_lines(lines: Iterable[str], before: str = "") -> None:
    """What trials reported cannot move the cursor or rename the window: only muster's colours pass."""
    text = _CONTROLS.sub(lambda found: found[1] or "\N{REPLACEMENT CHARACTER}", "\n".join(lines))
    emit((before + text).encode("utf-8", "replace"))


def _emit_json(value: object) -> None:
    emit(strict_json(value).encode("utf-8", "replace"))


def _watched(read: Callable[[], tuple[Iterable[str], bool]]) -> None:
    """Show the page every two seconds until nothing runs any more or the user presses Ctrl-C."""
    from muster.base.clock import SystemClock

    clock, clear = SystemClock(), "\x1b[H\x1b[2J" if has_colours() else ""
    try:
        while True:
            lines, is_running = read()
            print_lines(lines, clear)
            if not is_running:
                return
            clock.sleep(WATCH_S)
    except KeyboardInterrupt:
        return


def result_rows(experiment: ExperimentView, unread: list[str]) -> Iterator[Row]:
    """Yield one row per logged result; trials whose log cannot be read are added to `unread`."""
    for trial in experiment.trials:
        try:
            logged = experiment.record(trial).rows()
        except (FileNotFoundError, ValueError, StoreError) as error:
            if trial.reports:
                unread.append(f"{trial.trial_id}: {error}")
            continue
        for row in logged:
            own = {key: value for key, value in row.items() if key != "config"}
            yield {"trial_id": trial.trial_id, **flat_row(own), **flat_row({"config": dict(trial.config)})}
