"""Quotes an experiment: a few minutes of real trials, then the whole system in virtual time, in variants.

Called by `Tuner.quote` and `muster estimate`. The scheduler, the searcher, the reconciler and the planner are
the real ones; the trials follow what was measured, the machines are those of the cluster file.
"""

from __future__ import annotations

import logging
import math
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import copy, deepcopy
from pathlib import Path
from statistics import fmean, median, pstdev
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from muster.base.text import counted
from muster.cluster.model import ClusterSpec
from muster.errors import ConfigError
from muster.sim.backtest.recording import Timings, read_recording
from muster.sim.joint.cloud import BootTime
from muster.sim.quote.learned import GivenCurve, LearnedCurve, StepPace, StepTimings, pace_of, starts_of
from muster.sim.quote.world import Assumptions, QuoteLine, QuoteVariant, checked_spec, line_of
from muster.sim.tune.trace import RecordedCurve, RecordedTrial, read_trace
from muster.trials.template import TrialTemplate
from muster.tune.callback import Callback
from muster.tune.config import RunConfig
from muster.tune.execution.assemble import search_of, template_of
from muster.tune.tune_config import TuneConfig

if TYPE_CHECKING:
    from muster.tune.execution.launch import ExperimentSpec

OTHER_ETA = 4
AS_ASKED = "as it is"


class Quote(Struct, frozen=True, kw_only=True):
    """What an experiment will cost, and how long it will take, in several variants."""

    lines: tuple[QuoteLine, ...]
    step_s: float
    measured_on: int  # trials that were run for it; 0: the step time was given
    trials: int
    starts: int
    failed: int = 0  # of the trials that were run for it

    def __str__(self) -> str:
        """Return one sentence for each variant, the experiment as it is first."""
        first = self.lines[0]
        half = (first.cost_high - first.cost_low) / 2.0
        parts = [f"${first.cost:.2f} ± {half:.2f}, {first.hours:.1f} h"]
        parts += [f"{line.name} ${line.cost:.2f}, {line.hours:.1f} h" for line in self.lines[1:]]
        return "; ".join(parts)


def assumptions_of(
    *,
    starts: int = 10,
    boot_s: float | None = None,
    start_s: float | None = None,
    history: Path | None = None,
    like: Path | None = None,
) -> Assumptions:
    """Return what to assume, with what a user knows of the cluster in place of the defaults.

    Args:
        starts: How often each variant is simulated.
        boot_s: The seconds from a new machine to its node.
        start_s: The seconds from a trial's place on a node to its first step.
        history: Of a cluster like this one: how long its machines took to come, to boot and to go.
        like: The directory of an experiment that has run there: how long its trials took to start; with
            `history` also, how much longer the first on a new node.
    """
    assumed, nodes = Assumptions(starts=starts), list[tuple[float, float]]()
    if history is not None:
        recorded = read_recording(history)
        assumed = _as_recorded(assumed, recorded.timings, history)
        nodes = recorded.node_lives()
    if like is not None:
        seen = starts_of(like, nodes)
        costs = replace(assumed.costs, start_s=seen.start_s, first_s=seen.first_s, restore_s=seen.start_s)
        assumed = replace(assumed, costs=costs, start_sigma=_SIGMA_SEEN)
    for name, value in (("boot_s", boot_s), ("start_s", start_s)):
        if value is not None and not 0 <= value < math.inf:
            raise ConfigError(f"{name} is {value:g}: give seconds, 0 or more")
    if boot_s is not None:
        assumed = replace(assumed, boot=BootTime(median_s=boot_s, setup_s=0.0))
    if start_s is not None:
        costs = replace(assumed.costs, start_s=start_s, restore_s=start_s)
        assumed = replace(assumed, costs=costs)
    return assumed


_SIGMA_SEEN = 0.2  # how far starts of trials may be off that were seen, of their logarithm
_LEAST_BOOT_S = 0.1  # of a machine that was found with its node


def _as_recorded(assumed: Assumptions, timings: Timings, history: Path) -> Assumptions:
    boots, requests, ends = (
        sorted(each for seen in of.values() for each in seen)
        for of in (timings.boot_s, timings.request_s, timings.end_s)
    )
    if not boots:
        raise ConfigError(f"{history}: no machine has come up in this history", fix="give boot_s instead")
    logs = [math.log(max(each, _LEAST_BOOT_S)) for each in boots]
    boot = BootTime(median_s=math.exp(fmean(logs)), sigma=pstdev(logs), setup_s=0.0)
    if requests:
        assumed = replace(assumed, request_s=median(requests))
    if ends:
        assumed = replace(assumed, end_s=(ends[len(ends) // 4], ends[3 * len(ends) // 4]))
    return replace(assumed, boot=boot)


def quote(
    asked: ExperimentSpec,
    spec: ClusterSpec,
    *,
    minutes: float = 3.0,
    step_s: float | None = None,
    assumed: Assumptions | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Quote:
    """Return the quote of an experiment on a cluster.

    Args:
        asked: The experiment.
        spec: The cluster, with the prices of its node types.
        minutes: How long real trials are run on this computer.
        step_s: The seconds that one step takes; given, nothing is run.
        assumed: What neither the trials nor the cluster file say.
        progress: Called with what is done.
    """
    if asked.tune.num_samples < 1:
        raise ConfigError("an experiment without an end has no price: give TuneConfig(num_samples=...)")
    named = {**asked.overrides, "trainable_name": asked.trainable_name}
    template = template_of(asked.trainable, asked.param_space, asked.tune, asked.run, named)
    checked_spec(spec, template)
    assumed = assumed or Assumptions()
    measured = (
        _given(asked, template, step_s) if step_s is not None else _run(asked, template, minutes, progress)
    )
    assumed = replace(assumed, costs=replace(assumed.costs, checkpoint_every=measured.checkpoint_every))
    lines, (search, _) = [], search_of(deepcopy(asked.tune), template)
    with _quiet():
        for variant in variants(asked.tune, spec):

            def started(number: int, name: str = variant.name) -> None:
                progress(f"simulating {name}: run {number + 1} of {assumed.starts}")

            lines.append(line_of(variant, template, measured.make_curve, assumed, started))
    return Quote(
        lines=tuple(lines),
        step_s=measured.pace.step_s,
        measured_on=0 if measured.is_given else measured.pace.trials,
        trials=getattr(search, "total_samples", 0) or template.num_samples,  # all points of a grid
        starts=assumed.starts,
        failed=measured.failed,
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """What the simulated monitor and tuner log is about a world that does not exist."""
    logger = logging.getLogger("muster")
    before = logger.disabled, logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.disabled, logger.level = before


def _most_steps(asked: ExperimentSpec, template: TrialTemplate, recorded: int | None) -> int:
    """Return after how many steps a trial is over: by its criteria, its scheduler, or as it was seen."""
    given = template.stopping_criterion.get("training_iteration")
    parameters = getattr(asked.tune.scheduler, "_parameters", None)
    longest = getattr(parameters, "max_t", None) or getattr(asked.tune.scheduler, "_max_t", None)
    ends = [int(one) for one in (given, longest, recorded) if isinstance(one, int | float) and one > 0]
    if not ends:
        raise ConfigError(
            "it is not known how many steps a trial runs: give RunConfig(stop={'training_iteration': ...}), "
            "a scheduler with max_t, or more minutes, so that a trial ends within them"
        )
    return min(ends)


def _given(asked: ExperimentSpec, template: TrialTemplate, step_s: float) -> StepTimings:
    if not step_s > 0:
        raise ConfigError(f"step_s is {step_s:g}: give the seconds that one step takes, more than 0")
    pace, steps = StepPace(step_s=step_s, sigma=0.3, trials=10), _most_steps(asked, template, None)
    metric, mode = _objective(asked.tune)
    return StepTimings(
        make_curve=lambda seed: GivenCurve(pace, metric, mode, steps, seed), pace=pace, is_given=True
    )


def _objective(tune: TuneConfig) -> tuple[str, str]:
    scheduler = tune.scheduler
    metric = tune.metric or getattr(scheduler, "metric", None) or getattr(scheduler, "_metric", None)
    mode = tune.mode or getattr(scheduler, "_mode", None) or "min"
    return (metric if isinstance(metric, str) else ""), (mode if isinstance(mode, str) else "min")


def _run(
    asked: ExperimentSpec, template: TrialTemplate, minutes: float, progress: Callable[[str], None]
) -> StepTimings:
    """Run the experiment for a few minutes on this computer, as it would begin; keeps nothing of it."""
    progress(f"running trials for at most {minutes:g} min to see how long a step takes")
    counter = _StepCounter(progress)
    with tempfile.TemporaryDirectory(prefix="muster-quote-") as place:
        ended = _fit(asked, minutes, Path(place), counter)
        recorded = counter.mark_failed(read_trace(place).trials)
    metric, _ = _objective(asked.tune)
    longest = max((len(trial.rows) for trial in recorded.trials if trial.trial_id in ended), default=None)
    steps = _most_steps(asked, template, longest)
    # At how many steps a trial was seen to save; 0: none did.
    rows = [row for trial in recorded.trials for row in trial.rows]
    saved = sum(row.get("checkpoint_dir_name") is not None for row in rows)
    return StepTimings(
        make_curve=lambda seed: LearnedCurve(RecordedCurve(recorded.trials), metric, steps, seed),
        pace=pace_of(recorded.trials),
        checkpoint_every=round(len(rows) / saved) if saved else 0,
        failed=len(counter.failed),
    )


class _StepCounter(Callback):
    """Reports how many steps the trials of a profile have done; keeps the configs of those that failed."""

    def __init__(self, progress: Callable[[str], None]) -> None:
        self._progress, self._steps, self._trials = progress, 0, set[str]()
        self.failed: dict[str, RecordedTrial] = {}

    def on_trial_error(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:  # noqa: ANN401
        self.failed[trial.trial_id] = RecordedTrial(trial.trial_id, trial.config, (), (), has_failed=True)

    def mark_failed(self, trials: Iterable[RecordedTrial]) -> RecordedCurve:
        """Return the record, with those that failed before their first result."""
        seen = {one.trial_id: replace(one, has_failed=one.trial_id in self.failed) for one in trials}
        return RecordedCurve(list({**self.failed, **seen}.values()))

    def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Any, **info: Any) -> None:  # noqa: ANN401
        self._steps += 1
        self._trials.add(trial.trial_id)
        self._progress(
            f"running trials: {counted(self._steps, 'step')} of {counted(len(self._trials), 'trial')}"
        )


def _fit(asked: ExperimentSpec, minutes: float, place: Path, counter: _StepCounter) -> set[str]:
    """Return the trials whose own code ended them well."""
    from muster.tune.tuner import Tuner

    tune = copy(asked.tune)
    tune.scheduler, tune.search_alg = deepcopy(tune.scheduler), deepcopy(tune.search_alg)
    tune.time_budget_s = minutes * 60.0
    run = RunConfig(
        name="profile", storage_path=str(place), stop=deepcopy(asked.run.stop), callbacks=[counter], verbose=0
    )
    grid = Tuner(asked.trainable, param_space=asked.param_space, tune_config=tune, run_config=run).fit()
    if len(grid) and len(grid.errors) == len(grid):
        raise ConfigError("every trial of the profile failed", fix=f"the first: {grid.errors[0]}")
    ended = {str(one.metrics.get("trial_id")) for one in grid if one.metrics and one.metrics.get("done")}
    return ended - counter.failed.keys()


def variants(tune: TuneConfig, spec: ClusterSpec) -> list[QuoteVariant]:
    """Return the experiment as it is, and what could be changed to pay less or to wait less."""
    found = [QuoteVariant(name=AS_ASKED, change="", spec=spec, tune=tune)]
    markets = {offer.market for known in spec.node_types for offer in known.offers}
    if {"spot", "on-demand"} <= markets:
        found.append(_market(spec, tune, "on-demand"))
        found.append(_market(spec, tune, "spot"))
    other = _other_eta(tune)
    if other is not None:
        change = f"reduction_factor={OTHER_ETA} of the scheduler"
        found.append(QuoteVariant(name=f"eta={OTHER_ETA}", change=change, spec=spec, tune=other))
    workers = (spec.max_nodes or 1) - 1
    if workers >= 2:
        half = replace(spec, max_nodes=workers // 2 + 1)
        found.append(
            QuoteVariant(
                name="half the machines", change=f"max_workers: {workers // 2}", spec=half, tune=tune
            )
        )
    return found


def _market(spec: ClusterSpec, tune: TuneConfig, market: str) -> QuoteVariant:
    types = tuple(
        replace(known, offers=tuple(one for one in known.offers if one.market == market) or known.offers)
        for known in spec.node_types
    )
    change = f"only offers with market: {market}"
    return QuoteVariant(name=f"all {market}", change=change, spec=replace(spec, node_types=types), tune=tune)


def _other_eta(tune: TuneConfig) -> TuneConfig | None:
    """Return the same search with another reduction factor; None where the scheduler has none."""
    from muster.tune.schedulers import AsyncHyperBandScheduler

    scheduler: Any = tune.scheduler
    if not isinstance(scheduler, AsyncHyperBandScheduler):
        return None
    parameters = scheduler._parameters
    if parameters.reduction_factor >= OTHER_ETA:
        return None
    changed = copy(tune)
    own: dict[str, Any] = {**parameters._asdict(), "reduction_factor": OTHER_ETA}
    if tune.metric is None:
        own |= {"metric": scheduler._metric, "mode": scheduler._mode}
    changed.scheduler = type(scheduler)(**own)
    return changed
