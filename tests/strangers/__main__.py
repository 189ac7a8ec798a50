"""`python -m tests.strangers --seeds N --start K` runs worlds, and prints what failed and how to replay."""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import median

from tests.strangers.draw import FAULTS, draw_faults
from tests.strangers.run import Outcome, Story

from muster.cluster.ports import TickResult


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.strangers", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many worlds")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--without", default="", help="faults to switch off, with commas; or all")
    parser.add_argument("--only", default="", help="faults to switch on in every world, with commas")
    parser.add_argument("--shrink", action="store_true", help="find the faults that a violation needs")
    parser.add_argument(
        "--trace", type=float, nargs=2, metavar=("FROM", "TO"), help="print ticks, in seconds"
    )
    given = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)
    without = tuple(FAULTS) if given.without == "all" else tuple(filter(None, given.without.split(",")))
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(given.start, given.start + given.seeds):
            only = tuple(filter(None, given.only.split(",")))
            story = Story(seed, without, Path(folder), only=only)
            if given.trace:
                story.log = lambda at, result: trace(at, result, *given.trace)
            outcomes.append(story.run())
            show(outcomes[-1], without, is_shrunk=given.shrink)
    return summary(outcomes)


def show(outcome: Outcome, without: tuple[str, ...], *, is_shrunk: bool) -> None:
    for one in outcome.violations:
        off = f" --without {','.join(without)}" if without else ""
        replay = f"python -m tests.strangers --seeds 1 --start {outcome.seed}{off}"
        sys.stdout.write(f"{outcome.seed} {one.kind} at {one.at:.0f} s: {one.text}\n    {replay}\n")
        if is_shrunk:
            sys.stdout.write(f"    needs {', '.join(shrink(outcome.seed, one.kind, without))}\n")
    sys.stdout.flush()


def shrink(seed: int, kind: str, without: tuple[str, ...]) -> list[str]:
    """Return faults that the violation needs: without any of them it does not happen."""
    off = list(without)
    for name in draw_faults(seed):
        if name not in off and _fails(seed, kind, [*off, name]):
            off.append(name)
    return [name for name in draw_faults(seed) if name not in off]


def _fails(seed: int, kind: str, without: list[str]) -> bool:
    return any(one.kind == kind for one in Story(seed, without).run().violations)


def summary(outcomes: list[Outcome]) -> int:
    seeds = defaultdict[str, list[int]](list)
    for outcome in outcomes:
        for one in outcome.violations:
            seeds[one.kind].append(outcome.seed)
    waits = [wait for outcome in outcomes for wait in outcome.waits_s]
    ticks = sum(outcome.ticks for outcome in outcomes)
    failing = sum(bool(outcome.violations) for outcome in outcomes)
    sys.stdout.write(
        f"{len(outcomes)} worlds, {ticks} ticks, {failing} worlds with violations; "
        f"work that waited when faults ended started after {median(waits) if waits else 0:.0f} s (median), "
        f"{max(waits, default=0):.0f} s at most\n"
    )
    for kind, found in sorted(seeds.items()):
        sys.stdout.write(f"  {kind}: {len(found)} ({' '.join(map(str, found[:12]))})\n")
    return 1 if failing else 0


def trace(story: Story, result: TickResult | None, begin: float, end: float) -> None:
    world = story.world
    if not begin <= world.t <= end:
        return
    sys.stdout.write(f"--- {world.t:.0f} s, tick {story.ticks}\n")
    for machine in world.alive():
        nodes = [(n.node_id, len(n.work)) for n in world.nodes if n.machine is machine and n.lives]
        shown = (machine.shown_type, machine.shown_request, machine.borrowed_id, *sorted(machine.quirks))
        sys.stdout.write(
            f"  machine {machine.cloud_id} {machine.node_type} {shown} {machine.asked_at} nodes {nodes}\n"
        )
    if result is None:
        sys.stdout.write("  killed\n")
        return
    for one in result.records:
        marks = f"{'cancelled ' * one.cancelled}{'provisional ' * one.provisional}"
        name = f"{one.instance_id} {one.node_type} {one.state.name} {one.cloud_id} {one.node_id}"
        sys.stdout.write(f"  record {name} {marks}{one.details}\n")
    for action in result.plan.actions:
        sys.stdout.write(f"  action {action}\n")
    for note in result.plan.quarantined:
        sys.stdout.write(f"  note {note.source}: {note.message}\n")
    waiting = [(w.name, w.bundles[0]) for w in world.works if w.waits]
    shown = [(n.node_id, n.status.name) for n in result.runtime.nodes] if result.runtime else None
    sys.stdout.write(f"  report {shown}\n")
    sys.stdout.write(f"  waiting {waiting} constraint {world.constraint}\n")


if __name__ == "__main__":
    sys.exit(main())
