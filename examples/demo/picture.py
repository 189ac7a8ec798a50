"""Plots the demand, machines, trials and spend of the demo over time, from the cluster's history."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from muster.cluster.cost import price_per_hour
from muster.cluster.states import InstanceState
from muster.stores.history.files import read_history
from muster.stores.history.past import PastReader

MUTED, GRID = "#6b7280", "#e5e7eb"
WAITING = {"being launched": "#f59e0b", "machine starting": "#fcd34d", "fits, about to start": "#a7f3d0"}
VERDICTS = {
    "waiting-for-launch": "being launched",
    "waiting-for-node": "machine starting",
    "waiting-for-resize": "machine starting",
    "placed": "fits, about to start",
}
BLOCKED, BLOCKED_COLOUR = "at a limit", "#ef4444"
TYPES = ("#94a3b8", "#2563eb", "#0d9488", "#9333ea", "#ca8a04")
STARTING = {
    InstanceState.QUEUED,
    InstanceState.REQUESTED,
    InstanceState.ALLOCATED,
    InstanceState.RAY_INSTALLING,
}
TRIAL, SPEND, RATE = "#2563eb", "#16a34a", "#86efac"


@dataclass(frozen=True)
class Point:
    """A Point is the cluster after one entry of its history."""

    at: float
    demand: dict[str, int]  # verdict -> requests
    types: dict[str, int]  # node type -> machines that run
    starting: int
    spent: float
    price_per_hour: float


def read_points(history: Path) -> list[Point]:
    """Returns a point for every entry; raises StoreError when the monitor recorded nothing."""
    past, points = PastReader(), []
    for entry in read_history(history):
        past.add(entry)
        machines = past.machines.values()
        point = Point(
            at=entry.at,
            demand=past.demand[-1][1] if past.demand else {},
            types=Counter(one.node_type for one in machines if one.state is InstanceState.RAY_RUNNING),
            starting=sum(one.state in STARTING for one in machines),
            spent=past.spent[-1][1] if past.spent else 0.0,
            price_per_hour=price_per_hour(machines),
        )
        points.append(point)
    return points


def draw(history: Path, trials: Path, target: Path, *, title: str) -> None:
    """Writes a PNG file; raises StoreError when the history is empty."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    points = read_points(history)
    spans = trial_spans(trials)
    start = points[0].at
    end = max([points[-1].at, *(span[1] for span in spans)]) - start
    figure, axes = pyplot.subplots(
        4, 1, figsize=(10, 10.5), sharex=True, height_ratios=(2, 2, 3, 1.6), layout="constrained"
    )
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold")
    times = [point.at - start for point in points]
    _waiting(axes[0], times, end, points)
    colours = _type_colours(points)
    _machines(axes[1], times, end, points, colours)
    _trials(axes[2], spans, start, colours)
    _spend(axes[3], times, end, points)
    for axis in axes:
        _style(axis)
    axes[-1].set_xlabel("seconds since the monitor's first tick")
    axes[-1].set_xlim(0, end * 1.01)
    figure.savefig(target, dpi=130)
    pyplot.close(figure)


def trial_spans(trials: Path) -> list[tuple[float, float, str, str]]:
    """Returns start, end, outcome and machine of every trial that ended, in the order of their starts."""
    begun: dict[str, float] = {}
    spans = []
    for line in trials.read_text(encoding="utf-8").splitlines() if trials.exists() else ():
        event = json.loads(line)
        if event["event"] == "start":
            begun[event["trial"]] = event["at"]
        elif event["trial"] in begun:
            spans.append((begun.pop(event["trial"]), event["at"], event["event"], event.get("machine", "")))
    return sorted(spans)


def _waiting(axis, times, end, points: list[Point]) -> None:
    rows = [_by_verdict(point) for point in points]
    labels = [*WAITING, BLOCKED]
    colours = [*WAITING.values(), BLOCKED_COLOUR]
    kept = [
        (label, colour)
        for label, colour in zip(labels, colours, strict=True)
        if any(row.get(label) for row in rows)
    ]
    if kept:
        _steps(axis, times, end, [[row.get(label, 0) for row in rows] for label, _ in kept], kept)
    _label(axis, "Waiting requests", "requests")


def _by_verdict(point: Point) -> dict[str, int]:
    counts: dict[str, int] = {}
    for verdict, count in point.demand.items():
        label = VERDICTS.get(verdict, BLOCKED)
        counts[label] = counts.get(label, 0) + count
    return counts


def _type_colours(points: list[Point]) -> dict[str, str]:
    names = {name for point in points for name in point.types}
    ordered = sorted(names, key=lambda name: (name != "head", name))
    return {name: TYPES[number % len(TYPES)] for number, name in enumerate(ordered)}


def _machines(axis, times, end, points: list[Point], colours: dict[str, str]) -> None:
    layers = [[point.types.get(name, 0) for point in points] for name in colours]
    layers.append([point.starting for point in points])
    _steps(axis, times, end, layers, [*colours.items(), ("starting", "#fde68a")])
    _label(axis, "Machines", "nodes")


def _trials(axis, spans, start, colours) -> None:
    for row, (begin, end, outcome, machine) in enumerate(spans):
        colour = colours.get(machine, TRIAL) if outcome == "complete" else BLOCKED_COLOUR
        axis.barh(row, end - begin, left=begin - start, height=0.7, color=colour)
    axis.set_ylim(len(spans) - 0.4, -0.6)  # the first trial on top
    axis.set_yticks([])
    _label(axis, f"Trials: {len(spans)}, each in the colour of its machine", "trials")


def _spend(axis, times, end, points: list[Point]) -> None:
    last = points[-1]
    spent = [point.spent for point in points] + [last.spent + last.price_per_hour * (end - times[-1]) / 3600]
    axis.plot([*times, end], [1000 * amount for amount in spent], color=SPEND, linewidth=2, label="spent")
    axis.set_ylim(bottom=0)
    _label(axis, "Spend", "thousandths of a $")
    rate = axis.twinx()
    rate.step(
        [*times, end],
        [point.price_per_hour for point in points] + [last.price_per_hour],
        where="post",
        color=RATE,
        linewidth=1.2,
        label="$ per hour",
    )
    rate.set_ylim(bottom=0)
    rate.set_ylabel("$ per hour", color=MUTED)
    rate.tick_params(colors=MUTED)
    for side in ("top", "left", "bottom"):
        rate.spines[side].set_visible(False)
    rate.spines["right"].set_color(GRID)
    handles = [*axis.get_legend_handles_labels()[0], *rate.get_legend_handles_labels()[0]]
    _legend(axis, handles)


def _steps(axis, times, end, layers, named) -> None:
    """Draws stacked steps, because a value holds until the next tick."""
    axis.stackplot(
        [*times, end],
        [[*layer, layer[-1]] for layer in layers],
        step="post",
        labels=[name for name, _ in named],
        colors=[colour for _, colour in named],
        linewidth=0,
    )
    _legend(axis, axis.get_legend_handles_labels()[0])
    axis.yaxis.get_major_locator().set_params(integer=True)
    axis.set_ylim(bottom=0)


def _legend(axis, handles) -> None:
    """Draws the legend above the panel, beside its title, so that it never covers the data."""
    axis.legend(
        handles=handles,
        loc="lower right",
        bbox_to_anchor=(1.0, 1.0),
        ncol=len(handles),
        frameon=False,
        fontsize=9,
        borderaxespad=0.2,
        handlelength=1.2,
        columnspacing=1.4,
    )


def _label(axis, title: str, unit: str) -> None:
    axis.set_title(title, loc="left", fontsize=11)
    axis.set_ylabel(unit, color=MUTED)


def _style(axis) -> None:
    axis.grid(axis="both", color=GRID, linewidth=0.8)
    axis.set_axisbelow(True)
    axis.tick_params(colors=MUTED)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axis.spines[side].set_color(GRID)
