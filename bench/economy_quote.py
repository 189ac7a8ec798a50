"""Quotes experiments, runs them on a real cluster of processes with made-up prices, and compares the costs.

A part of `python -m bench economy`, named `quote`. Every quote is made before its run, from a short profile
on this computer, the cluster's own history of boots, and how long the trials of the run before took to start.
A run begins and ends without workers.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median

from bench import table
from bench.economy_quote_work import CASE
from bench.live_cluster import LiveCluster, wait_for
from muster.cluster.model import NodeKind
from muster.sim.backtest.recording import read_recording
from muster.sim.quote.learned import TrialStarts, starts_of
from muster.stores.history.past import cost_until

RUNS, QUICK_RUNS = 10, 1
FIRST_SEED = 1
PROFILE_MINUTES = 0.5
STARTS = 12
SCRIPT = Path(__file__).with_name("economy_quote_work.py")
PRICE_OF_HEAD = 1.0
CONFIG = f"""
cluster_name: quoted
provider: {{type: process}}
head_node_type: head
max_workers: 3
idle_timeout_minutes: 0.5
upscaling_speed: 10
available_node_types:
  head: {{resources: {{CPU: 0}}, price_per_hour: {PRICE_OF_HEAD}}}
  small: {{resources: {{CPU: 1}}, max_workers: 3, price_per_hour: 10.0}}
  big: {{resources: {{CPU: 2}}, max_workers: 1, price_per_hour: 18.0}}
"""
RUN_S = 900.0  # an experiment and the end of its machines
RUNGS = ((1, 8, 4), (2, 8, 2), (2, 8, 4), (3, 9, 3), (4, 12, 3))  # grace period, most steps, reduction factor


@dataclass(frozen=True, kw_only=True)
class QuoteCase:
    """One experiment; steps are seconds in the middle and the spread of their logarithms."""

    name: str
    trials: int
    step_s: float
    sigma: float
    grace: int
    steps: int
    eta: int
    storage: str

    def environment(self) -> dict[str, str]:
        return {CASE: json.dumps(asdict(self))}


def draw_case(seed: int, storage: Path) -> QuoteCase:
    draw = random.Random(f"quote {seed}")
    grace, steps, eta = draw.choice(RUNGS)
    return QuoteCase(
        name=f"run{seed}",
        trials=draw.randint(18, 26),
        step_s=round(draw.uniform(0.8, 1.6) * 4.0 / (grace + 2.0), 2),
        sigma=round(draw.uniform(0.2, 0.5), 2),
        grace=grace,
        steps=steps,
        eta=eta,
        storage=str(storage),
    )


@dataclass(frozen=True, kw_only=True)
class QuotedRun:
    """What was quoted and what then happened, in $ and seconds."""

    case: QuoteCase
    low: float
    quoted: float
    high: float
    quoted_s: float
    cost: float
    took_s: float
    assumed: TrialStarts  # as in the run before
    seen: TrialStarts
    load: float  # of the computer while it ran

    @property
    def is_inside(self) -> bool:
        return self.low <= self.cost <= self.high

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2.0 / self.quoted


def quotes(*, quick: bool) -> dict[str, float]:
    """Run all, print the table, return the figures."""
    runs = QUICK_RUNS if quick else RUNS
    with tempfile.TemporaryDirectory(prefix="muster-quote-bench-") as folder:
        cluster = LiveCluster(Path(folder), CONFIG, name="quoted")
        try:
            cluster.up()
            found = run_all(cluster, runs)
        finally:
            cluster.down()
    show(found)
    return {
        "quote_inside": fmean(one.is_inside for one in found),
        "quote_halfwidth": median(one.half_width for one in found),
        "quote_off": median(abs(one.cost / one.quoted - 1.0) for one in found),
    }


def run_all(cluster: LiveCluster, runs: int) -> list[QuotedRun]:
    """Run an experiment that does not count, as a cluster in use has had some, then the others."""
    storage, found = cluster.folder / "results", list[QuotedRun]()
    before = draw_case(0, storage)
    fit(cluster, before)
    for seed in range(FIRST_SEED, FIRST_SEED + runs):
        case = draw_case(seed, storage)
        found.append(quote_and_run(cluster, case, before))
        table.progress(text_of(found[-1]))
        before = case
    return found


def quote_and_run(cluster: LiveCluster, case: QuoteCase, like: QuoteCase) -> QuotedRun:
    line, assumed = quote(cluster, case, like), starts_in(cluster, like)
    before = os.getloadavg()[0]
    cost, took_s = fit(cluster, case)
    return QuotedRun(
        case=case,
        low=line["cost_low"],
        quoted=line["cost"],
        high=line["cost_high"],
        quoted_s=3600.0 * line["hours"],
        cost=cost,
        took_s=took_s,
        assumed=assumed,
        seen=starts_in(cluster, case),
        load=(before + os.getloadavg()[0]) / 2.0,
    )


def quote(cluster: LiveCluster, case: QuoteCase, like: QuoteCase) -> Mapping[str, float]:
    """Return the line of the experiment as it is, of `muster estimate`."""
    words = ["--cluster-file", str(cluster.file), "--history", str(cluster.home.history)]
    words += ["--minutes", str(PROFILE_MINUTES), "--like", str(Path(like.storage) / like.name)]
    words += ["--starts", str(STARTS), "--json"]
    command = [sys.executable, "-m", "muster.cli.main", "quote", str(SCRIPT), *words]
    own = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    done = subprocess.run(
        command, env={**own, **case.environment()}, capture_output=True, text=True, timeout=RUN_S, check=False
    )
    if done.returncode:
        raise RuntimeError(f"muster estimate: {done.stderr}")
    return dict(json.loads(done.stdout)["lines"][0])


def fit(cluster: LiveCluster, case: QuoteCase) -> tuple[float, float]:
    """Run the experiment until its machines are gone; returns its cost and the seconds that it took."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT)],
        env={**cluster.environment(), **case.environment()},
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{case.name}: {done.stderr}")
    told = json.loads(done.stdout.splitlines()[-1])
    if told["errors"]:
        raise RuntimeError(f"{case.name}: {told['errors']} trials failed")
    wait_for(lambda: workers_left(cluster, told["ended"]), lambda left: left == 0, "no workers", RUN_S)
    return cost_of_run(cluster, told["began"], told["ended"]), told["ended"] - told["began"]


def workers_left(cluster: LiveCluster, since: float) -> int:
    """Return how many workers there are by a status that is newer than this; -1: it is not."""
    status = cluster.published()
    left = sum(one.kind is NodeKind.WORKER for one in status.instances)
    return left if status.at > since + 1.0 else -1


def cost_of_run(cluster: LiveCluster, began: float, ended: float) -> float:
    """Return what the history says the workers of the run cost, and the head while it lasted."""
    time.sleep(1.5)  # the last entry of the history is written after the status
    history = read_recording(cluster.home.history)
    workers = [
        one
        for one in history.machines
        if one.kind is NodeKind.WORKER and one.history and one.history[0].at >= began - 1.0
    ]
    return sum(cost_until(one, history.until) for one in workers) + PRICE_OF_HEAD * (ended - began) / 3600.0


def starts_in(cluster: LiveCluster, case: QuoteCase) -> TrialStarts:
    """Return how long trials of a run took to start, as the next quote is told."""
    return starts_of(Path(case.storage) / case.name, read_recording(cluster.home.history).node_lives())


def text_of(run: QuotedRun) -> str:
    what = "inside" if run.is_inside else "OUTSIDE"
    starts = f"starts {starts_text(run.assumed)} s assumed, {starts_text(run.seen)} s seen"
    paid = f"${run.low:.3f} to {run.high:.3f} quoted, ${run.cost:.3f} paid, {what}"
    took = f"{run.quoted_s:.0f} s quoted, {run.took_s:.0f} s taken"
    return f"{run.case.name}: {paid}; {took}; {starts}; load {run.load:.0f}"


def starts_text(starts: TrialStarts) -> str:
    return f"{starts.start_s:.1f} + {starts.first_s:.1f}"


def show(found: list[QuotedRun]) -> None:
    rows = []
    for one in found:
        case = one.case
        rows.append(
            [
                f"{case.trials} x {case.grace} to {case.steps} steps of {case.step_s:g} s, eta {case.eta}",
                f"{one.quoted:.3f}",
                f"{one.low:.3f} to {one.high:.3f}",
                f"{one.half_width:.0%}",
                f"{one.cost:.3f}",
                "yes" if one.is_inside else "NO",
                f"{one.quoted_s:.0f}",
                f"{one.took_s:.0f}",
                starts_text(one.assumed),
                starts_text(one.seen),
                f"{one.load:.0f}",
            ]
        )
    columns = ["", "quoted $", "nine of ten", "half-width", "paid $", "inside", "quoted s", "took s"]
    table.show("quotes", [*columns, "start s", "seen", "load"], rows)
