"""Run seeds: `python -m tests.simulation run|replay|sweep`."""

from __future__ import annotations

import os

import click
from tests.simulation.ec2.run import Ec2Run
from tests.simulation.kuberay.run import KubeRayRun
from tests.simulation.rack.run import RackRun
from tests.simulation.run import Report, SeedRun, sweep
from tests.simulation.slurm.run import SlurmRun
from tests.simulation.trace import HEADER
from tests.simulation.v1_cloud import V1Run

from muster.cli.console import complain, emit, show
from muster.sim.cluster.world import quiet

_SEED = click.option("--seed", type=click.IntRange(min=0), required=True, help="Seed of the simulated world.")

_CLOUDS: dict[str, type[SeedRun]] = {
    "any": SeedRun,
    "ec2": Ec2Run,
    "kuberay": KubeRayRun,
    "rack": RackRun,
    "slurm": SlurmRun,
    "v1": V1Run,
}
_CLOUD = click.option(
    "--cloud",
    type=click.Choice(tuple(_CLOUDS)),
    default="any",
    show_default=True,
    help="Where machines come from: a plain cloud, or a simulated EC2, RayCluster, rack or Slurm.",
)
_JOINT = click.option("--joint", is_flag=True, help="With tuners and their trials in the same world.")
_VERBOSE = click.option("--verbose", "-v", is_flag=True, help="Print every tick, also those without changes.")


@click.group()
def simulation() -> None:
    """Run the autoscaler against a simulated cloud with faults.

    Time is virtual, the controller is the real one. A seed decides the config, the work and the faults; the
    same seed always gives the same run.
    """
    quiet()


@simulation.command()
@_SEED
@_CLOUD
@_JOINT
@_VERBOSE
def run(seed: int, cloud: str, joint: bool, verbose: bool) -> None:
    """Run one seed and print what happened, tick by tick.

    Exit codes: 0 all properties held; 1 one did not.
    """
    _run(_kind(cloud, joint), seed, verbose, None)


@simulation.command()
@_SEED
@click.option("--until-tick", type=click.IntRange(min=1), required=True, help="Stop after this tick.")
@_CLOUD
@_JOINT
@_VERBOSE
def replay(seed: int, until_tick: int, cloud: str, joint: bool, verbose: bool) -> None:
    """Run one seed up to a tick, then show instances, machines and waiting requests with reasons."""
    from tests.simulation.view import standstill

    show(*standstill(_run(_kind(cloud, joint), seed, verbose, until_tick, fail=False).cluster))


@simulation.command(name="sweep")
@click.option("--seeds", type=click.IntRange(min=1), default=200, show_default=True, help="Number of seeds.")
@click.option("--start", type=click.IntRange(min=0), default=0, show_default=True, help="First seed.")
@click.option("--jobs", type=click.IntRange(min=1), help="Number of processes. Default: one per CPU.")
@_CLOUD
@_JOINT
def sweep_command(seeds: int, start: int, jobs: int | None, cloud: str, joint: bool) -> None:
    """Run many seeds and print every failing one with the command that replays it.

    Exit codes: 0 all properties held in all runs; 1 some did not.
    """
    from tests.simulation.view import SweepProgress

    chosen = range(start, start + seeds)
    failed: list[Report] = []
    with SweepProgress(seeds) as progress:
        for report in sweep(chosen, jobs or os.cpu_count() or 1, _kind(cloud, joint)):
            progress.step(report)
            if not report.ok:
                failed.append(report)
                complain(_complaint(report))
    emit(progress.summary().encode())
    if failed:
        raise SystemExit(1)


def _kind(cloud: str, joint: bool) -> type[SeedRun]:
    if not joint:
        return _CLOUDS[cloud]
    if cloud != "any":
        raise click.UsageError(
            f"--joint runs on the cloud of the seed, not with --cloud {cloud}: leave out one of the two"
        )
    from tests.simulation.joint.seed_run import JointSeedRun  # it imports the tuner

    return JointSeedRun


def _run(kind: type[SeedRun], seed: int, verbose: bool, until_tick: int | None, fail: bool = True) -> SeedRun:
    from tests.simulation.view import header, summary

    def report_tick(line: str, happened: bool) -> None:
        if happened or verbose:
            emit(line.encode())

    one = kind(seed, report_tick)
    emit(header(one).encode())
    emit(HEADER.encode())
    report = one.to_end(until_tick)
    emit(summary(report).encode())
    if not report.ok:
        complain(_complaint(report))
        if fail:
            raise SystemExit(1)
    return one


def _complaint(report: Report) -> str:
    shown = "\n  ".join(report.violations[:5])
    return f"seed {report.seed}, tick {report.ticks}: {shown}\n  replay: {report.replay}"


if __name__ == "__main__":
    simulation(prog_name="python -m tests.simulation")
