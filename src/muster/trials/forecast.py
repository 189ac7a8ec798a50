"""Works out what an experiment expects of the cluster: how long its trials still run, and what will come.

Pure: reads an ExperimentState between two steps and returns a Forecast. Called every few seconds by whoever
publishes forecasts; visits the trials that are not over, never the others. A scheduler that has `milestones`
and `rungs_to_open` says when trials may end; without them the rest of a trial is not known.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from muster.base.forecast import ComingWork, Forecast, RunningTrial
from muster.base.ids import NodeId
from muster.base.resources import Resources
from muster.trials.experiment import ExperimentState
from muster.trials.metrics import is_number
from muster.trials.model import Trial
from muster.trials.plugins import ITERATION, SECONDS, Milestone, RungToOpen
from muster.trials.states import TrialState

_AT_WORK = (TrialState.RUNNING, TrialState.SAVING)
_WAITING = (TrialState.PENDING, TrialState.STARTING)
_MOST_MOVES = 2  # of a trial; those that a cloud forced on it count too
_MOST_COUNT = 1_000_000  # trials of an experiment without an end


@dataclass(frozen=True, kw_only=True)
class ForecastInput:
    """What the state of an experiment does not say."""

    experiment: str
    at: float
    driver: str = ""
    restart_s: float = 0.0  # from the end of a trial on one node to its first work on another
    valid_s: float = 60.0
    begun_at: float | None = None
    spent_s: float | None = None  # seconds that trials have run so far, in all; None: not known
    deadline: float | None = None
    budget_left: float | None = None
    node_of: Callable[[str], NodeId | None] = lambda trial_id: None
    unsaved_s: Callable[[str], float | None] = lambda trial_id: None  # None: by the trial's own results
    moved_at: Callable[[str], float | None] = lambda trial_id: None
    moves: Callable[[str], int] = lambda trial_id: 0  # how often it has lost or left its node


def forecast_of(state: ExperimentState, given: ForecastInput, *, is_over: bool = False) -> Forecast:
    """Return the forecast of now; of an experiment that is over, the one that expects nothing."""
    header = Forecast(
        experiment=given.experiment,
        driver=given.driver,
        at=given.at,
        valid_s=given.valid_s,
        is_complete=True,
        begun_at=given.begun_at,
        deadline=given.deadline,
        budget_left=given.budget_left,
    )
    if is_over or state.is_finished:
        return replace(header, done=1.0)
    return _Forecaster(state, given).complete(header)


@dataclass
class _Pace:
    """How long training took so far, per trial and on the average of those that live."""

    per_step: dict[str, float] = field(default_factory=dict)
    usual: float | None = None
    slowest: float | None = None

    @classmethod
    def of(cls, trials: Iterable[Trial]) -> _Pace:
        made = cls()
        for trial in trials:
            steps, spent = trial.last_result.get(ITERATION), trial.last_result.get(SECONDS)
            if is_number(steps) and is_number(spent) and steps > 0 and spent >= 0:
                made.per_step[trial.trial_id] = spent / steps
        if made.per_step:
            made.usual = sum(made.per_step.values()) / len(made.per_step)
            made.slowest = max(made.per_step.values())
        return made

    def seconds(self, trial_id: str, time: float, time_attr: str, *, at_most: bool = False) -> float | None:
        """Return how long so much training takes, or may take; None when that is not known."""
        if time_attr == SECONDS:
            return time
        pace = self.per_step.get(trial_id, self.slowest if at_most else self.usual)
        return None if time_attr != ITERATION or pace is None else time * pace


class _Forecaster:
    """Holds what several parts of one forecast need."""

    def __init__(self, state: ExperimentState, given: ForecastInput) -> None:
        self._state, self._given = state, given
        live = state.index.live.values()
        self._running = [trial for trial in live if trial.state in _AT_WORK]
        self._waiting = [trial for trial in live if trial.state in _WAITING]
        due = {trial.trial_id: self._is_due(trial) for trial in state.index.paused.values()}
        self._waiting += [state.index.paused[trial_id] for trial_id, is_due in due.items() if is_due]
        self._is_unsure = None in due.values()
        self._pace = _Pace.of(live)
        self._rest = {trial.trial_id: self._rest_s(trial) for trial in self._running}
        self._by_id = state.index.trials

    def complete(self, header: Forecast) -> Forecast:
        """Return the header with trials and coming work."""
        to_suggest = self._to_suggest()
        coming = [*self._waiting_work(), *self._suggested_work(to_suggest or 0), *self._rungs()]
        if any(map(_chooses_nodes, self._state.index.live.values())):
            coming = [work for work in coming if work.start_s <= 0.0]  # a shape does not say which nodes
        return replace(
            header,
            trials=tuple(self._shown()),
            coming=tuple(coming),
            done=self._done_share(coming),
            is_complete=to_suggest is not None and not self._is_unsure,
        )

    def _done_share(self, coming: Sequence[ComingWork]) -> float | None:
        """Return how much of the expected work is done; None as long as the rest is not known."""
        spent_s, rests = self._given.spent_s, list(self._rest.values())
        if spent_s is None or None in rests or any(work.each_s is None for work in coming):
            return None
        rest_s = sum(rest or 0.0 for rest in rests)
        rest_s += sum((work.each_s or 0.0) * work.count * work.probability for work in coming)
        return round(spent_s / (spent_s + rest_s), 4) if spent_s + rest_s > 0 else None

    # -- trials that run --------------------------------------------------------------------------

    def _shown(self) -> Iterable[RunningTrial]:
        given, leaders = self._given, self._leaders()
        for trial in self._running:
            node_id = given.node_of(trial.trial_id)
            if node_id is None:
                continue
            unsaved_s = self._unsaved_s(trial)
            # To save money, a trial may be moved that continues from there and was not moved twice.
            has_all = trial.newest is not None or not trial.has_reported_at_least_once
            yield RunningTrial(
                trial_id=trial.trial_id,
                node_id=node_id,
                shape=self._state.index.size(trial),
                is_movable=has_all and self._given.moves(trial.trial_id) < _MOST_MOVES,
                unsaved_s=round(unsaved_s, 1),
                restart_s=given.restart_s,
                rest_s=_rounded(self._rest[trial.trial_id]),
                moved_at=given.moved_at(trial.trial_id),
                is_leader=trial.trial_id in leaders,
            )

    def _unsaved_s(self, trial: Trial) -> float:
        known = self._given.unsaved_s(trial.trial_id)
        if known is not None:
            return max(0.0, known)
        since_result = self._given.at - trial.last_result_time if trial.has_reported_at_least_once else 0.0
        saved = 0.0 if trial.newest is None else trial.newest.metrics.get(SECONDS, 0.0)
        trained = trial.last_result.get(SECONDS, 0.0)
        both = is_number(saved) and is_number(trained)
        return max(0.0, since_result) + (max(0.0, trained - saved) if both else 0.0)

    def _rest_s(self, trial: Trial) -> float | None:
        """Return the expected seconds until the trial gives its node back; the step under way counts."""
        whole_s = self._expected_s(trial)
        if whole_s is None or not trial.has_reported_at_least_once:
            return whole_s
        return max(0.0, whole_s - max(0.0, self._given.at - trial.last_result_time))

    def _expected_s(self, trial: Trial, *, at_most: bool = False) -> float | None:
        """Return the expected training of a trial from its last result on, in seconds.

        `at_most`: if it continues from every rung, and is as slow as the slowest of those that run.
        """
        ahead = self._milestones(trial)
        if ahead is None:
            return None
        total, probability = 0.0, 1.0
        reached: dict[str, float] = {}
        for milestone in ahead:
            time_attr = milestone.time_attr
            span = max(0.0, milestone.time - reached.get(time_attr, _done(trial, time_attr)))
            span_s = self._pace.seconds(trial.trial_id, span, time_attr, at_most=at_most)
            if span_s is None:
                return None
            total += probability * span_s
            if milestone.is_barrier:
                return total
            reached[time_attr] = milestone.time
            if milestone.continues <= 0.0:
                return total
            probability *= 1.0 if at_most else milestone.continues
        # The rest of a trial that ends by itself, judged by others; known where limits are held.
        guard = self._state.guard
        mean_s = None if guard is None else guard.usual.mean_trial_s
        return None if mean_s is None else max(0.0, mean_s - _done(trial, SECONDS))

    def _milestones(self, trial: Trial) -> list[Milestone] | None:
        """Return the scheduler's milestones that are ahead, and the trial's own end."""
        found = self._asked(trial)
        if found is None:
            return None
        ends = [
            Milestone(float(trial.stopping_criterion[name]), 0.0, name)
            for name in (ITERATION, SECONDS)
            if is_number(trial.stopping_criterion.get(name))
        ]
        ahead = [one for one in (*found, *ends) if one.time > _done(trial, one.time_attr)]
        return sorted(ahead, key=lambda one: (one.time, one.continues))

    def _leaders(self) -> set[str]:
        """Return the best third of the trials that run, among those that have come equally far."""
        metric, mode = self._state.settings.metric, self._state.settings.mode
        rungs: dict[int, list[tuple[float, str]]] = {}
        for trial in self._running:
            value = trial.last_result.get(metric) if metric else None
            if is_number(value):
                passed = len(self._milestones(trial) or ())
                score = value if mode == "max" else -value
                rungs.setdefault(passed, []).append((score, trial.trial_id))
        best: set[str] = set()
        for members in rungs.values():
            members.sort(reverse=True)
            best.update(trial_id for _, trial_id in members[: math.ceil(len(members) / 3)])
        return best

    # -- work that will come ----------------------------------------------------------------------

    def _waiting_work(self) -> Iterable[ComingWork]:
        """Yield the trials that wait for a node, by shape and by how long they will run."""
        grouped: Counter[tuple[Resources, float | None]] = Counter()
        longest: dict[Resources, list[float | None]] = defaultdict(list)
        for trial in self._waiting:
            # Rounds to about a tenth, so that trials of nearly the same length are counted together.
            seconds = self._expected_s(trial)
            if seconds is None or seconds <= 0:
                coarse = seconds
            else:
                step = 10.0 ** math.floor(math.log10(seconds) - 0.5)
                coarse = round(round(seconds / step) * step, 1)
            grouped[self._state.index.size(trial), coarse] += 1
            longest[self._state.index.size(trial)].append(self._most_s(trial))
        for (shape, each_s), count in grouped.items():
            end_s = self._end_s(count, each_s)
            most_s = max((most for most in longest[shape] if most is not None), default=None)
            yield ComingWork(shape=shape, count=count, each_s=each_s, most_s=most_s, end_s=end_s)

    def _most_s(self, trial: Trial) -> float | None:
        """Return how long a trial may run; only a deadline asks for it."""
        if self._given.deadline is None:
            return None
        return _rounded(self._expected_s(trial, at_most=True))

    def _suggested_work(self, count: int) -> Iterable[ComingWork]:
        """Yield the trials that the searcher will still suggest; they are like the newest one."""
        newest = self._state.index.order[-1] if self._state.index.order else None
        if count <= 0 or newest is None:
            return
        fresh = Trial(newest.trainable_name, trial_id="", stopping_criterion=newest.stopping_criterion)
        each_s = _rounded(self._expected_s(fresh))
        rests = [rest for rest in self._rest.values() if rest is not None]
        is_full = bool(self._waiting) or len(self._running) < self._state.settings.max_pending
        yield ComingWork(
            shape=self._state.index.size(newest),
            count=min(count, _MOST_COUNT),
            start_s=0.0 if is_full else _rounded(min(rests, default=0.0)) or 0.0,
            each_s=each_s,
            most_s=self._most_s(fresh),
            end_s=self._end_s(count, each_s),
        )

    def _to_suggest(self) -> int | None:
        """Return how many trials the searcher will still suggest; None when it has no end or cannot say."""
        state = self._state
        if state.is_exhausted or state.is_stopping or state.plugins.search.is_finished():
            return 0
        total = getattr(state.plugins.search, "total_samples", None)
        if not isinstance(total, int) or total > _MOST_COUNT:
            return None
        return max(0, total - len(state.index.trials))

    def _rungs(self) -> Iterable[ComingWork]:
        """Yield what barriers will let through, rung after rung."""
        ask = getattr(self._state.plugins.scheduler, "rungs_to_open", None)
        if ask is None or not self._state.index.order:
            return
        for rung in ask():
            start_s = self._opens_in_s(rung)
            shape = self._state.index.size(self._state.index.order[-1])
            for count, time in ((rung.number, rung.time), *rung.follows):
                each_s = self._pace.seconds("", time, rung.time_attr)
                if start_s is None or each_s is None or count <= 0:
                    break
                yield ComingWork(
                    shape=shape,
                    count=count,
                    start_s=round(start_s, 1),
                    each_s=round(each_s, 1),
                    end_s=round(start_s + each_s, 1),
                )
                start_s += each_s

    def _opens_in_s(self, rung: RungToOpen) -> float | None:
        """Return when the last trial that it waits for is there; those without a node start later still."""
        latest = 0.0
        for trial_id in rung.waits_for:
            trial = self._by_id.get(trial_id)
            rest = self._rest.get(trial_id)
            if trial is not None and rest is None:
                rest = self._expected_s(trial)
            if rest is None:
                return None
            latest = max(latest, rest)
        return latest

    def _end_s(self, count: int, each_s: float | None) -> float | None:
        """Return when so many trials would be done on the nodes that trials have now."""
        if each_s is None or not self._running:
            return None
        return round(math.ceil(count / len(self._running)) * each_s, 1)

    def _is_due(self, trial: Trial) -> bool | None:
        """Return whether a paused trial waits for a node only, not for others; None: that is not known."""
        found = self._asked(trial)
        if found is None:
            return None
        barriers = [one for one in found if one.is_barrier]
        return not barriers or any(one.time > _done(trial, one.time_attr) for one in barriers)

    def _asked(self, trial: Trial) -> Sequence[Milestone] | None:
        ask = getattr(self._state.plugins.scheduler, "milestones", None)
        found: Sequence[Milestone] | None = None if ask is None else ask(trial)
        return found


def _chooses_nodes(trial: Trial) -> bool:
    """Return whether labels decide which nodes a trial may be on."""
    return "bundle_label_selector" in trial.placement_group_factory.options[1]


def _done(trial: Trial, time_attr: str) -> float:
    done = trial.last_result.get(time_attr, 0.0)
    return float(done) if is_number(done) else 0.0


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)
