"""Implement synchronous successive halving in brackets (Li et al., "Hyperband", Algorithm 1).

A bracket is compared when all its members are at the milestone. Decisions depend on reports alone; which
trials are paused is checked only when one is to be chosen.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from typing import Any, ClassVar

from muster.errors import TuneError
from muster.trials.model import Trial
from muster.trials.plugins import PAUSED, PROMOTED, STOPPED, ControllerView, Milestone, RungToOpen
from muster.tune.plugin_state import Plain
from muster.tune.schedulers.hyperband_bands import (
    Bands,
    Find,
    any_member_runs,
    first_ready,
    first_resting,
    is_pending,
    on_their_way,
)
from muster.tune.schedulers.hyperband_bracket import Bracket, HyperBandParameters
from muster.tune.schedulers.trial_scheduler import MetricScheduler, explain, first_waiting


class HyperBandScheduler(MetricScheduler):
    """Compares many trials after a short time and few after a long one, in brackets.

    Trials are paused at milestones, so they should save checkpoints: one without starts from the beginning.

    Args:
        time_attr: The result key that `max_t` counts; must grow with every result.
        metric: The result key to compare, or several; default: the experiment's.
        mode: "min" or "max", or as many of them as there are metrics; default: the experiment's.
        max_t: The most time that a trial gets; also sets the number of brackets in a band.
        reduction_factor: Of this many trials one continues at each milestone.
        stop_last_trials: Whether a trial is stopped at the last milestone, or may continue until it ends.
    """

    _state_kind = "hyperband"
    _state_version = 2  # 1 for one objective
    takes_several_objectives = True
    _plain_attributes: ClassVar[tuple[str, ...]] = ("_metric", "_mode", "_num_stopped")
    _supports_buffered_results = False
    _largest_first = False

    def __init__(
        self,
        time_attr: str = "training_iteration",
        metric: str | list[str] | None = None,
        mode: str | list[str] | None = None,
        max_t: float = 81,
        reduction_factor: float = 3,
        stop_last_trials: bool = True,
    ) -> None:
        super().__init__(time_attr=time_attr, metric=metric, mode=mode)
        asked = HyperBandParameters(time_attr, max_t, reduction_factor, stop_last_trials)
        self._set_up(asked.check(self.__class__.__name__))

    def _set_up(self, parameters: HyperBandParameters) -> None:
        self._parameters = parameters
        self._time_attr = parameters.time_attr
        self._bands = Bands(parameters, largest_first=self._largest_first)
        self._num_stopped = 0
        self._seen: dict[str, Trial] = {}  # members, for the debug string; not part of the state

    def on_trial_add(self, tune_controller: ControllerView, trial: Trial) -> None:
        """Add a new trial to the bracket that is being filled; one that failed returns to its own."""
        super().on_trial_add(tune_controller, trial)
        self._place(trial)

    def on_trial_result(self, tune_controller: ControllerView, trial: Trial, result: dict[str, Any]) -> str:
        bracket, key = self._place(trial), trial.trial_id
        self._record(bracket, trial, result)
        if bracket.may_continue(key):
            return self.CONTINUE
        bracket.park(key)
        if bracket.has_arrived and self._is_complete(tune_controller, bracket):
            self._compare(tune_controller, bracket, trial)
        if key not in bracket.members:
            return self.STOP
        if key in bracket.parked:
            others = f"{len(bracket.members) - len(bracket.parked)} of the {len(bracket.members)} trials"
            reason = f"at milestone {bracket.milestone}: {others} of its bracket are not there yet"
            explain(tune_controller, key, PAUSED, reason)
            return self.PAUSE
        del bracket.waiting[key], bracket.unstarted[key]  # continues at once, without a restart
        return self.CONTINUE

    def on_trial_complete(
        self, tune_controller: ControllerView, trial: Trial, result: dict[str, Any]
    ) -> None:
        self._left(tune_controller, trial)

    def on_trial_remove(self, tune_controller: ControllerView, trial: Trial) -> None:
        self._left(tune_controller, trial)

    def on_trial_error(self, tune_controller: ControllerView, trial: Trial) -> None:
        """Remove a failed trial, for which the others need not wait; tried again, it has to catch up."""
        home = self._bands.bracket_of(trial.trial_id)
        self._left(tune_controller, trial)
        if home is not None:
            self._bands.expect_again(trial.trial_id, home)

    def choose_trial_to_run(self, tune_controller: ControllerView) -> Trial | None:
        trial = self._unexpected(tune_controller)
        if trial is None:
            trial = self._ready(tune_controller)
        return trial or self._when_nothing_is_ready(tune_controller)

    def state(self) -> dict[str, int]:
        """The brackets with their trials."""
        return {"num_brackets": self._bands.total, "num_stopped": self._num_stopped}

    def milestones(self, trial: Trial) -> Sequence[Milestone] | None:
        """Return the milestone of the trial's bracket, where it waits for the others, or its end."""
        bracket = self._bands.bracket_of(trial.trial_id)
        if bracket is None:
            return None
        if bracket.runs_freely:
            return ()
        return (Milestone(bracket.milestone, 0.0, self._time_attr, is_barrier=True),)

    def rung_levels(self) -> tuple[tuple[float, ...] | None, str]:
        return self._parameters.levels, self._time_attr

    def rungs_to_open(self) -> Sequence[RungToOpen]:
        """Return the next rung of every bracket that will be halved, and those after it."""
        found = []
        for bracket in self._in_turn(self._bands.open.values()):
            rungs = list(bracket.rungs_ahead())
            if rungs:
                (count, time), *follows = rungs
                behind = bracket.members_behind()
                found.append(RungToOpen(behind, count, time, self._time_attr, tuple(follows)))
        return found

    def debug_string(self) -> str:
        lines = [f"Using HyperBand: num_stopped={self._num_stopped} total_brackets={self._bands.total}"]
        for index, band in enumerate(self._bands.bands):
            lines.append(f"Round #{index}:")
            lines += [f"  {self._describe(bracket)}" for bracket in band if bracket is not None]
        return "\n".join(lines)

    def _place(self, trial: Trial) -> Bracket:
        self._seen[trial.trial_id] = trial
        return self._bands.place(trial.trial_id)

    def _record(self, bracket: Bracket, trial: Trial, result: dict[str, Any]) -> None:
        key = trial.trial_id
        report = self._time_and_score(trial, result)
        if report is not None:
            bracket.report(key, *report)
            return
        if self._time_attr not in result:
            raise self._missing_key(trial, result, f"no {self._time_attr!r}, by which its time is counted")
        score = bracket.members[key].score  # of an earlier result
        bracket.report(key, self._number(trial, self._time_attr, result[self._time_attr]), score)
        if not isinstance(score, tuple) and math.isnan(score) and not bracket.may_continue(key):
            raise self._missing_key(trial, result, f"no {self._metric!r}, by which trials are compared here")

    def _missing_key(self, trial: Trial, result: dict[str, Any], what: str) -> TuneError:
        shown = ", ".join(sorted(map(str, result)))
        return TuneError(
            f"{type(self).__name__}: trial {trial.trial_id} reported {what}. It reported: {shown}. Report it "
            f"with every result, or pass another metric or time_attr"
        )

    def _is_complete(self, tune_controller: ControllerView, bracket: Bracket) -> bool:
        """Return whether members may be compared: not while more of them are about to come."""
        is_finished = getattr(getattr(tune_controller, "search_alg", None), "is_finished", None)
        # A controller that cannot say has no more trials.
        return self._bands.is_closed(bracket) or is_finished is None or is_finished()

    def _compare(self, tune_controller: ControllerView, bracket: Bracket, current: Trial | None) -> None:
        """Compare a bracket; a stopped trial is removed, so the hooks that follow find nothing to do."""
        halved, done, released, where = bracket.halve_if_complete()
        self._num_stopped += len(halved)
        for trial_id, standing in halved.items():
            reason = f"{self._shown(standing.score)} is not among {where}"
            explain(tune_controller, trial_id, STOPPED, reason)
        for trial_id in done:
            explain(tune_controller, trial_id, STOPPED, f"it reached the last milestone, {bracket.milestone}")
        for trial_id in released:
            reason = f"{self._shown(bracket.members[trial_id].score)} is among {where}"
            explain(tune_controller, trial_id, PROMOTED, reason)
        mine = None if current is None else current.trial_id
        for trial_id in released:
            if trial_id != mine:
                self._on_release(tune_controller, trial_id)
        find = self._finder(tune_controller)
        for trial_id in (*halved, *done):
            trial = None if trial_id == mine else find(trial_id)
            if trial is None:
                self._forget(trial_id)
            else:
                tune_controller.stop_trial(trial)

    def _on_release(self, tune_controller: ControllerView, trial_id: str) -> None:
        """Called with a trial that was to pause and may continue; a hook for subclasses."""

    def _left(self, tune_controller: ControllerView, trial: Trial) -> None:
        bracket = self._bands.bracket_of(trial.trial_id)
        self._forget(trial.trial_id)
        if bracket is not None and bracket.has_arrived and self._is_complete(tune_controller, bracket):
            self._compare(tune_controller, bracket, None)

    def _forget(self, trial_id: str) -> None:
        self._bands.forget(trial_id)
        self._seen.pop(trial_id, None)

    def _unexpected(self, tune_controller: ControllerView) -> Trial | None:
        """Return the oldest waiting trial that no bracket expects, such as one that ran before a restore."""
        trial = first_waiting(tune_controller)
        if trial is None or not is_pending(trial):
            return None
        bracket = self._bands.bracket_of(trial.trial_id)
        if bracket is None or trial.trial_id not in bracket.waiting:
            return trial
        if trial.trial_id not in bracket.unstarted:
            self._bands.recheck_waiting()
        return None

    def _ready(self, tune_controller: ControllerView) -> Trial | None:
        with closing(iter(self._bands.with_unstarted)) as in_turn:
            return first_ready(self._finder(tune_controller), in_turn)

    def _in_turn(self, brackets: Iterable[Bracket]) -> list[Bracket]:
        return sorted(brackets, key=self._bands.turn)

    def _when_nothing_is_ready(self, tune_controller: ControllerView) -> Trial | None:
        """Compare brackets as full as they are: the searcher has just been asked and gave nothing."""
        find = self._finder(tune_controller)
        for bracket in self._in_turn(one for one in self._bands.open.values() if one.has_arrived):
            resting = first_resting(find, bracket.parked)
            if resting is None:
                continue
            self._compare(tune_controller, bracket, None)
            if hasattr(tune_controller, "remember_choice"):  # a restore has to do the same here
                tune_controller.remember_choice(resting)
            trial = first_ready(find, [bracket])
            if trial is not None:
                return trial
        return self._paused_by_others(tune_controller)

    def _paused_by_others(self, tune_controller: ControllerView) -> Trial | None:
        """Return, when nothing runs, a trial that something else has paused: it would wait forever."""
        find, brackets = self._finder(tune_controller), self._bands.open.values()
        if any_member_runs(find, brackets):
            return None
        for bracket in self._in_turn(brackets):
            trial = first_resting(find, on_their_way(bracket))
            if trial is not None:
                return trial
        oldest = first_waiting(tune_controller)
        is_strange = oldest is not None and self._bands.bracket_of(oldest.trial_id) is None
        return oldest if is_strange else None

    def _finder(self, tune_controller: ControllerView) -> Find:
        return tune_controller.get_trial if hasattr(tune_controller, "get_trial") else self._seen.get

    def _describe(self, bracket: Bracket) -> str:
        statuses = Counter(self._seen[one].status for one in bracket.members if one in self._seen)
        failed = self._bands.count_failed(bracket)
        statuses += Counter(ERROR=failed, TERMINATED=bracket.given - len(bracket.members) - failed)
        shown = ", ".join(f"{status}: {count}" for status, count in sorted(statuses.items()))
        return (
            f"Bracket(Max Size (n)={bracket.size}, Milestone (r)={bracket.milestone}, "
            f"completed={100 * bracket.completion:.1f}%): {{{shown}}} "
        )

    def restore_state(self, state: bytes, trials: Mapping[str, Trial] | None = None) -> None:
        super().restore_state(state, trials)
        self._seen = {one: trials[one] for one in self._bands.members() if trials and one in trials}

    def __getstate__(self) -> Plain:
        return {**vars(self), "_seen": {}}

    def _to_plain(self) -> Plain:
        parameters = self._parameters._asdict()
        return {**super()._to_plain(), "parameters": parameters, **self._bands.to_plain()}

    def _from_plain(self, state: Plain) -> None:
        self._set_up(HyperBandParameters(**state["parameters"]))
        super()._from_plain(state)
        self._bands.from_plain(state)
