"""Implement `muster sim`: runs the real controllers in a simulated world."""

from __future__ import annotations

import click

from muster.cli.console import show
from muster.cli.sim.tune_command import tune_command
from muster.sim.cluster.world import quiet


@click.group(epilog="\b\nExamples:\n  muster sim day --seed 1\n  muster sim tune --trace results/search")
def sim() -> None:
    """Simulate the autoscaler or a tuner.

    Time is virtual, the controllers are the real ones. The same seed always gives the same run.
    """
    quiet()


sim.add_command(tune_command)


@sim.command(short_help="Simulate a day of a cluster.")
@click.option(
    "--seed", type=click.IntRange(min=0), default=2, show_default=True, help="Seed of the boot times."
)
def day(seed: int) -> None:
    """Simulate a day of an autoscaled cluster, with prices, bursts and a preemption.

    \b
    Examples:
      muster sim day
      muster sim day --seed 7
    """
    from muster.cli.sim.view import story_pages
    from muster.sim.cluster.story import simulate_day

    show(*story_pages(simulate_day(seed)))
