"""`muster sim tune`: what would a scheduler on so many workers have found, and when? Runs no trial."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

_TRACE = "The directory of an experiment, a file with rows of its result.json, or a synthetic problem."


@click.command(name="tune")
@click.argument("script", required=False, type=click.Path(path_type=Path))
@click.option("--trace", required=True, metavar="FILE", help=_TRACE)
@click.option("--workers", type=click.IntRange(min=1), default=8, show_default=True, help="Trials at once.")
@click.option(
    "--scheduler",
    "schedulers",
    multiple=True,
    metavar="NAME[:PARAMETER=VALUE,...]",
    help="e.g. asha:eta=4,max_t=81; repeat it to compare. Without it: the script's, else fifo and asha.",
)
@click.option("--searcher", metavar="NAME", help="random, optuna, ...; suggests configs of its own.")
@click.option("--samples", type=click.IntRange(min=1), help="How many trials.")
@click.option("--metric", help="Where neither the script nor the problem says it.")
@click.option("--mode", type=click.Choice(["min", "max"]), help="The same.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of everything that is drawn.")
@click.option("--start-s", type=click.FloatRange(min=0), default=0.0, help="Seconds that a start takes.")
@click.option("--save-s", type=click.FloatRange(min=0), default=0.0, help="Seconds that a checkpoint takes.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of tables.")
@click.option("--plot", type=click.Path(path_type=Path), help="Also draw the best value over time to a file.")
def tune_command(**told: Any) -> None:  # noqa: ANN401 - the options above
    """Answer from a trace what an experiment would have found, and when.

    Virtual time: hours of training take seconds. The trials of SCRIPT, a Python file that calls Tuner.fit()
    or tune.run(), are not run: each follows the trace instead. Without SCRIPT, options say what to ask.

    \b
    Try:
      muster sim tune --trace crossing --workers 64 --scheduler asha:eta=4 --scheduler hyperband
      muster sim tune train.py --trace ~/ray_results/my_experiment --workers 64 --scheduler asha

    Exit codes: 0 answered; 2 bad input.
    """
    from muster.cli.console import emit, remark, show
    from muster.cli.sim.tune_command import Wish, ask
    from muster.cli.sim.tune_view import as_document, draw, pages

    as_json, plot = told.pop("as_json"), told.pop("plot")
    reply = ask(Wish(**told))
    for text in reply.remarks:
        remark(text)
    if as_json:
        emit(as_document(reply))
    else:
        show(*pages(reply))
    if plot is not None:
        draw(reply, plot)
        remark(f"plot: {plot}")
