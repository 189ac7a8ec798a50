"""Decide what a budget and a deadline allow: which trials start, which continue, and when all must end.

ExperimentState asks it and carries the answers out. It reads no clock; all it knows are times and prices that
facts brought. The order of stopping: no new trials, then those that cannot finish are saved and leave, the
ones nearest to their end last; what still runs when money or time is nearly gone is stopped as it is.
"""

from __future__ import annotations

from math import inf

from muster.base.text import counted, money, short_duration
from muster.trials.metrics import TRAINING_ITERATION
from muster.trials.model import Trial
from muster.trials.placement_group import PlacementGroupFactory
from muster.trials.spend import HOUR_S, SpendBook
from muster.trials.template import SUSPEND_GRACE_S, Limits

STOP_S = 2 * SUSPEND_GRACE_S + 1.0  # stopping a trial at once takes at most so long
MACHINE_WAIT_S = 300.0  # a machine that was asked for has come by then, if it comes
PRICE_WAIT_S = 60.0  # the price of a new machine is known by then
_FEW_STEPS = 3  # fewer do not tell how long the rest will take
_TICK_S = 0.001  # a moment later than reckoned, or rounding would have it be a moment too early forever
_SHARE = 0.1  # of a small budget, or of a near deadline, that is kept for stopping
BUDGET, DEADLINE = "budget", "deadline"


class Pace:
    """What was measured of one trial that has been started and has not exited."""

    __slots__ = ("began_at", "checkpoint_gap_s", "has_place", "rate", "reported_at", "saved_at", "step_s")

    def __init__(self, at: float, rate: float | None) -> None:
        self.began_at = at
        self.has_place = False  # on a cluster it may wait long for a machine
        self.rate = rate  # $ per hour; a guess until its own is known, None without any
        self.reported_at: float | None = None
        self.step_s: float | None = None  # of its last iteration
        self.saved_at: float | None = None  # when a report last brought a checkpoint
        self.checkpoint_gap_s: float | None = None  # between two of these

    def note_report(self, at: float, has_checkpoint: bool) -> None:
        self.has_place = True
        self.step_s = at - (self.began_at if self.reported_at is None else self.reported_at)
        self.reported_at = at
        if has_checkpoint:
            self.checkpoint_gap_s = at - (self.began_at if self.saved_at is None else self.saved_at)
            self.saved_at = at

    def reach_s(self, at: float) -> float:
        """Return how long it takes to where the trial can leave without losing work; 0 if not known."""
        last = self.began_at if self.reported_at is None else self.reported_at
        left = (self.step_s or 0.0) - (at - last)
        if self.checkpoint_gap_s is not None and self.saved_at is not None:
            left = max(left, self.checkpoint_gap_s - (at - self.saved_at))
        return max(0.0, left)


class Usual:
    """What is known of trials that have ended well: how long they held a place."""

    def __init__(self) -> None:
        self._trials, self._trial_s = 0, 0.0
        self.steps, self._step_s = 0, 0.0

    def note_trial(self, seconds: float) -> None:
        self._trials += 1
        self._trial_s += seconds

    def note_step(self, seconds: float) -> None:
        self.steps += 1
        self._step_s += seconds

    @property
    def step_s(self) -> float | None:
        return self._step_s / self.steps if self.steps else None

    @property
    def mean_trial_s(self) -> float | None:
        return self._trial_s / self._trials if self._trials else None

    def trial_s(self, trial: Trial) -> float | None:
        """Return how long a whole trial takes: as those that have ended, else by its own stop criterion."""
        if self._trials:
            return self.mean_trial_s
        most = trial.stopping_criterion.get(TRAINING_ITERATION)
        if self.step_s is None or not isinstance(most, int | float):
            return None
        return most * self.step_s


class BudgetGuard:
    """Holds an experiment within its Limits."""

    def __init__(self, limits: Limits, book: SpendBook) -> None:
        self.limits = limits
        self._book = book
        self.is_closing = False  # a trial had to leave: nothing starts any more in this run
        self.has_refused = False  # the last trial that asked for a place
        self.reason = ""  # what ends the experiment: BUDGET or DEADLINE
        self.usual = Usual()
        self._paces: dict[str, Pace] = {}
        self._held_s: dict[str, float] = {}  # in earlier attempts of trials that have not ended
        self._rates: dict[PlacementGroupFactory, float] = {}  # the newest price of places of each size
        self._save_s = 0.0  # the longest save so far
        self._began_at: float | None = None
        self._has_warned = False

    # What happened.

    def note_start(self, trial: Trial, at: float) -> None:
        self._began_at = at if self._began_at is None else self._began_at
        self._paces[trial.trial_id] = Pace(at, self._rates.get(trial.placement_group_factory))

    def note_running(self, trial: Trial, at: float) -> None:
        """The process of a trial is up; on a cluster it may have waited long for a machine."""
        pace = self._paces.get(trial.trial_id)
        if pace is not None and not pace.has_place:
            pace.has_place = True
            pace.began_at = at

    def note_price(self, trial: Trial, at: float, usd_per_hour: float) -> None:
        self._rates[trial.placement_group_factory] = usd_per_hour
        pace = self._paces.get(trial.trial_id)
        if pace is not None:
            pace.rate = usd_per_hour
            if pace.reported_at is None:
                pace.began_at, pace.has_place = at, True  # it waited for its place until then

    def note_report(self, trial: Trial, at: float, *, has_checkpoint: bool) -> None:
        pace = self._paces.get(trial.trial_id)
        if pace is not None:
            pace.note_report(at, has_checkpoint)
            self.usual.note_step(pace.step_s or 0.0)

    def note_saved(self, trial: Trial, at: float) -> None:
        """A checkpoint was made that a report was answered with."""
        pace = self._paces.get(trial.trial_id)
        if pace is not None and pace.reported_at is not None:
            self._save_s = max(self._save_s, at - pace.reported_at)

    def note_exit(self, trial: Trial, at: float, *, is_over: bool) -> None:
        """The place of a trial is free; `is_over`: the trial ended well."""
        pace = self._paces.pop(trial.trial_id, None)
        if pace is None:
            return
        held_s = self._held_s.pop(trial.trial_id, 0.0) + max(0.0, at - pace.began_at)
        if is_over:
            self.usual.note_trial(held_s)
        else:
            self._held_s[trial.trial_id] = held_s

    # What is allowed.

    def may_start(self, trial: Trial, at: float) -> bool:
        """Return whether a trial may be given a place: as far as is known, it can finish."""
        self.has_refused = not self._may_start(trial, at)
        return not self.has_refused

    def _may_start(self, trial: Trial, at: float) -> bool:
        if self.is_closing:
            return False
        rest_s = self._new_rest_s(trial)
        deadline, budget = self.limits.deadline, self.limits.cost_budget
        if deadline is not None and at + rest_s + self._margin_s(at) >= deadline:
            self.reason = DEADLINE
            return False
        if budget is not None:
            rate = self._rates.get(trial.placement_group_factory, 0.0)
            others = sum(_usd(pace, self._rest_s(each, pace, at)) for each, pace in self._paces.items())
            if self._book.spent(at) + others + rate * rest_s / HOUR_S + self._margin_usd(at) >= budget:
                self.reason = BUDGET
                return False
        return True

    def may_continue(self, trial: Trial, at: float) -> bool:
        """Return whether a trial that has just reported may continue until it can leave again."""
        pace = self._paces.get(trial.trial_id)
        if pace is None:
            return True
        own_s = pace.reach_s(at) + self._save_s
        deadline, budget = self.limits.deadline, self.limits.cost_budget
        if deadline is not None and at + own_s + self._margin_s(at) > deadline:
            self.reason = DEADLINE
            return False
        if budget is None:
            return True
        reserved = self._reserved_usd(trial.trial_id, at, budget)
        if self._book.spent(at) + reserved + _usd(pace, own_s) + self._margin_usd(at) > budget:
            self.reason = BUDGET
            return False
        return True

    def is_over(self, at: float) -> bool:
        """Return whether everything must stop at once."""
        if self.limits.deadline is not None and at >= self.limits.deadline - self._margin_s(at):
            self.reason = DEADLINE
            return True
        budget = self.limits.cost_budget
        if budget is not None and self._book.spent(at) + self._margin_usd(at) >= budget:
            self.reason = BUDGET
            return True
        return False

    def grace_s(self, at: float) -> float:
        """Return how long a trial may take to stop, and again after SIGTERM: what is kept suffices."""
        stop_s, rate = self._margin_s(at) or STOP_S, self._book.rate
        if self.limits.cost_budget is not None and rate > 0.0:
            stop_s = min(stop_s, self._margin_usd(at) * HOUR_S / rate)
        return max(0.25, (stop_s - min(1.0, 0.4 * stop_s)) / 2)  # however small a budget is

    def wake_at(self, at: float) -> float:
        """Return when `is_over` will be true if nothing else happens; inf when never."""
        found = inf
        if self.limits.deadline is not None:
            found = self.limits.deadline - self._margin_s(at)
        rate = self._book.rate
        if self.limits.cost_budget is not None and rate > 0.0:
            left = self.limits.cost_budget - self._book.spent(at) - self._margin_usd(at)
            found = min(found, at + max(0.0, left) * HOUR_S / rate)
        return found + _TICK_S

    def warning(self, at: float, sample: Trial | None, trials_left: int | None, at_once: int) -> str:
        """Return, once, that a limit cannot be met as things stand, with numbers; "" otherwise.

        `sample`: any trial that runs; `trials_left`: those that have not ended; `at_once`: those that were
        started. One that has waited long for a machine will not get one soon, so that it does not count.
        """
        if not self._has_warned and (text := self._unpriced_text(at)):
            self._has_warned = True
            return text
        if self._has_warned or sample is None or not trials_left or not at_once:
            return ""
        each_s, step_s = self.usual.trial_s(sample), self.usual.step_s
        if each_s is None or step_s is None or self.usual.steps < _FEW_STEPS:
            return ""
        placed = [pace for pace in self._paces.values() if pace.has_place]
        in_vain = sum(not p.has_place and at - p.began_at > MACHINE_WAIT_S for p in self._paces.values())
        at_once = max(1, at_once - in_vain)
        done_s = sum(min(each_s, at - pace.began_at) for pace in placed)
        work_s = max(0.0, trials_left * each_s - done_s)
        step_text = f"{step_s:.2g} s" if step_s < 1 else short_duration(step_s)
        pace_text = f"at {step_text} per step the {counted(trials_left, 'trial')} left need about"
        text = self._late_text(at, work_s / at_once, pace_text) or self._dear_text(at, work_s, pace_text)
        self._has_warned = bool(text)
        return text

    # How it is reckoned.

    def _late_text(self, at: float, need_s: float, pace_text: str) -> str:
        deadline = self.limits.deadline
        if deadline is None or at + need_s <= deadline:
            return ""
        return (
            f"{pace_text} {short_duration(need_s)}, the deadline is in {short_duration(deadline - at)}: "
            "raise it, use more workers or fewer samples"
        )

    def _dear_text(self, at: float, work_s: float, pace_text: str) -> str:
        budget, rates = self.limits.cost_budget, [pace.rate for pace in self._paces.values() if pace.rate]
        if budget is None or not rates:
            return ""
        need, left = work_s * sum(rates) / len(rates) / HOUR_S, budget - self._book.spent(at)
        if need <= left:
            return ""
        return (
            f"{pace_text} {money(need)}, the budget has {money(left)} left: raise it, use cheaper machines "
            "or fewer samples"
        )

    def _unpriced_text(self, at: float) -> str:
        """Return which trial runs without a price although money is limited; "" when none does."""
        if self.limits.cost_budget is None:
            return ""
        for trial_id, pace in self._paces.items():
            if pace.rate is None and pace.reported_at is not None and at - pace.began_at > PRICE_WAIT_S:
                return (
                    f"trial {trial_id} runs on a machine without a known price, so the budget does not count "
                    "it: add RunConfig(price_per_hour=...), or a price to the cluster file"
                )
        return ""

    def _margin_s(self, at: float) -> float:
        """Return how long before the deadline all must be stopped."""
        deadline = self.limits.deadline
        if deadline is None:
            return 0.0
        return min(STOP_S, _SHARE * max(0.0, deadline - (at if self._began_at is None else self._began_at)))

    def _margin_usd(self, at: float) -> float:
        """Return what stopping everything costs."""
        return min(self._book.rate * STOP_S / HOUR_S, _SHARE * (self.limits.cost_budget or 0.0))

    def _new_rest_s(self, trial: Trial) -> float:
        """Return how long a waiting trial will hold its place; where nothing is known, for one step."""
        whole_s = self.usual.trial_s(trial)
        if whole_s is None:
            return self.usual.step_s or 0.0
        return max(self.usual.step_s or 0.0, whole_s - self._held_s.get(trial.trial_id, 0.0))

    def _rest_s(self, trial_id: str, pace: Pace, at: float) -> float:
        """Return how long a running trial will hold its place; where nothing is known, for its step."""
        reach_s, mean_s = pace.reach_s(at), self.usual.mean_trial_s
        if mean_s is None:
            return reach_s
        return max(reach_s, mean_s - self._held_s.get(trial_id, 0.0) - (at - pace.began_at))

    def _reserved_usd(self, trial_id: str, at: float, budget: float) -> float:
        """Return what the other trials will cost: to their end where they can finish, else until they leave.

        Those nearest to their end come first. A trial that can finish itself waits for none of the others.
        """
        left = budget - self._book.spent(at)
        reach = {each: _usd(pace, pace.reach_s(at)) for each, pace in self._paces.items()}
        rest = {each: _usd(pace, self._rest_s(each, pace, at)) for each, pace in self._paces.items()}
        left -= sum(reach.values())
        reserved = sum(reach.values()) - reach[trial_id]
        for each in sorted(rest, key=lambda one: (rest[one] - reach[one], one)):
            extra = rest[each] - reach[each]
            if extra > left or each == trial_id:
                break
            left -= extra
            reserved += extra
        return reserved


def _usd(pace: Pace, seconds: float) -> float:
    return (pace.rate or 0.0) * seconds / HOUR_S
