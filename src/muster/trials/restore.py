"""Rebuild an ExperimentState from a snapshot and the facts after it, exactly as it was.

The snapshot is plain data (trials, counters), taken together with the saved state of the plug-ins. The facts
after it are handled again without callbacks: searcher and scheduler are asked again and, being restored with
their random streams, answer as before; where one does not, the recorded fact counts and a warning is logged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from numbers import Number
from typing import Any

from msgspec import Struct
from typing_extensions import assert_never

from muster.base.resources import Resources
from muster.trials.events import (
    CheckpointSaved,
    ExperimentEnded,
    ExperimentResumed,
    Fact,
    LimitsChanged,
    SearchExhausted,
    TrialAdmitted,
    TrialCharged,
    TrialCreated,
    TrialDecided,
    TrialExited,
    TrialFailure,
    TrialFailureKind,
    TrialMoved,
    TrialNoticed,
    TrialPriced,
    TrialReported,
    TrialStarted,
    TrialStopRequested,
    TrialSuspended,
)
from muster.trials.experiment import ExperimentState
from muster.trials.metrics import Statistics
from muster.trials.model import CheckpointRef, Trial
from muster.trials.placement_group import PlacementGroupFactory
from muster.trials.plugins import Hooks
from muster.trials.spend import UNSEEN_S
from muster.trials.states import HAS_PROCESS, LiveState, TrialState

SNAPSHOT_VERSION = 5
MakeTrial = Callable[[str, dict[str, Any], Mapping[str, Any], str], Trial]  # id, config, params, tag
_DATA = (Number, str, bytes, type(None))
# Plain attributes that a trial is restored with; the rest comes from the template that makes it.
_PLAIN = (
    "relative_logdir",
    "start_time",
    "num_failures",
    "num_restore_failures",
    "num_rows",
    "error_filename",
    "pickled_error_filename",
    "last_result",
    "last_result_time",
    "checkpoint_index",
    "custom_trial_name",
    "custom_dirname",
)


def snapshot(state: ExperimentState, *, with_ended: bool = True) -> dict[str, Any]:
    """Return everything that the plug-ins do not save themselves, as plain data.

    `ended` holds the finished trials, except those that an earlier archive holds: so the cost of a snapshot
    depends on the live trials, not on all trials. The caller that archives `ended` clears
    `index.unarchived`, and adds everything it has archived to the snapshot that is restored. Without
    `with_ended` it is empty, for a caller that takes them a few at a time from `ended_records`.
    """
    return {
        "version": SNAPSHOT_VERSION,
        "iteration": state.plugins.iteration,
        "facts_noted": state.facts.count,
        "exhausted": state.is_exhausted,
        "stopping": state.is_stopping,
        "ended": list(ended_records(state)) if with_ended else [],
        "trials": list(_records(state.index.live.values())),
        "pending": list(state.index.pending),
        "paused": list(state.index.paused),
        "preemptions": state.lifecycle.preemptions.saved(),
        "capacity": state.index.capacity.to_floats(),
        "at": state.spend.seen_at if state.spend.is_used else None,
    }


def restore(
    state: ExperimentState,
    seen: Mapping[str, Any] | None,
    facts: Iterable[Fact],
    make_trial: MakeTrial,
    observer: Hooks | None = None,
    on_loaded: Callable[[], None] = lambda: None,
) -> None:
    """Bring a fresh state to where it can continue; its plug-ins are restored earlier, or by `on_loaded`.

    Every trial that had a process waits again, from its newest checkpoint. `observer` receives the hooks of
    the facts that are handled again, for which callbacks are not called. `on_loaded` is called when the
    trials of the snapshot are loaded and no fact has been handled yet.
    """
    replay(state, seen, facts, make_trial, observer, on_loaded)
    finish_restore(state)


def replay(
    state: ExperimentState,
    seen: Mapping[str, Any] | None,
    facts: Iterable[Fact],
    make_trial: MakeTrial,
    observer: Hooks | None = None,
    on_loaded: Callable[[], None] = lambda: None,
) -> None:
    """Bring a fresh state exactly to the end of the facts: trials that had a process are shown as having it.

    The capacity is that of the earlier run meanwhile: schedulers that read it must decide as they did.
    """
    hooks, state.plugins.hooks = state.plugins.hooks, observer or _NullHooks()
    guard, state.guard = state.guard, None  # what it decided is among the facts
    capacity, state.facts.repeats = state.index.capacity, True
    try:
        if seen is not None:
            _load(state, seen, make_trial)
        on_loaded()
        for fact in facts:
            _repeat(state, fact, make_trial)
            state.spend.seen_at = max(state.spend.seen_at, fact.at)
        state.facts.take()
    finally:
        state.plugins.hooks, state.guard = hooks, guard
        state.index.capacity, state.facts.repeats = capacity, False


def finish_restore(state: ExperimentState) -> None:
    """Queue the trials that ran before those that had not started: no process outlives its driver.

    A trial that was about to save makes its checkpoint first: see `Lifecycle.start_owing`.
    """
    pending = state.index.pending
    behind = tuple(pending)
    interrupted = [trial for trial in state.index.live.values() if trial.state in HAS_PROCESS]
    for trial in interrupted:
        state.charge(trial, state.spend.seen_at + UNSEEN_S, has_run=bool(trial.location))
        state.lifecycle.abandon(trial)
    state.spend.seen_at += UNSEEN_S
    if interrupted:  # a second crash may come before the next snapshot
        state.facts.note(ExperimentResumed(at=max(0.0, *(trial.last_result_time for trial in interrupted))))
    for trial_id in behind:
        pending[trial_id] = pending.pop(trial_id)


class _NullHooks:
    """A _NullHooks object calls nothing: callbacks were called when the facts were first handled."""

    def fire(self, hook: str, **info: object) -> None:
        pass


def ended_records(state: ExperimentState) -> Iterator[dict[str, Any]]:
    """Yield the finished trials that no archive holds yet, in the order of their creation."""
    yield from _records(state.index.unarchived.values())


def _records(trials: Iterable[Trial]) -> Iterator[dict[str, Any]]:
    for trial in sorted(trials, key=lambda trial: trial.number):
        yield _trial_record(trial)


def _trial_record(trial: Trial) -> dict[str, Any]:
    packed = trial.unpacked()  # a snapshot of thousands of finished trials leaves them as small as they are

    def value(name: str) -> Any:  # noqa: ANN401 - of any attribute
        return packed[name] if name in packed else getattr(trial, name)

    record = {name: value(name) for name in _PLAIN}
    root = f"{trial.experiment_dir}/"  # what lies inside is stored by its inner name: directories are moved
    if trial.adopted is not None:
        record["adopted"] = _saved_ref(trial.adopted, root)
    if not trial.is_packed and (live := trial.live.saved()):
        record["live"] = live
    if trial.save_s is not None:
        record["save_s"] = trial.save_s
    if trial.has_new_resources:
        record["resources"] = trial.placement_group_factory.described()
    if trial.cost_usd is not None or trial.usd_per_hour is not None or trial.is_unpriced:
        record["cost"] = (trial.cost_usd, trial.is_unpriced, trial.usd_per_hour, trial.priced_at)
    return {
        **record,
        "number": trial.number,
        "trial_id": trial.trial_id,
        "config": value("config"),
        "evaluated_params": value("evaluated_params"),
        "experiment_tag": value("experiment_tag"),
        "state": trial.state.value,
        "intent": trial.intent.value,
        "statistics": value("statistics").saved(),
        "checkpoints": [_saved_ref(ref, root) for ref in trial.checkpoints],
    }


def _saved_ref(ref: CheckpointRef, root: str) -> tuple[str, int, dict[str, Any], int]:
    return (ref.path.removeprefix(root), ref.index, dict(ref.metrics), ref.rows)


def _load(state: ExperimentState, seen: Mapping[str, Any], make_trial: MakeTrial) -> None:
    if seen.get("version") != SNAPSHOT_VERSION:
        raise ValueError(
            f"the snapshot of the experiment has version {seen.get('version')!r}, and this muster reads "
            f"version {SNAPSHOT_VERSION}: resume it with the muster that wrote it"
        )
    state.plugins.iteration, state.facts.count = seen["iteration"], seen["facts_noted"]
    state.is_exhausted, state.lifecycle.is_stopping = seen["exhausted"], seen["stopping"]
    state.index.capacity = Resources.of(seen["capacity"])
    state.lifecycle.preemptions.load(seen["preemptions"])
    waiting = {*seen["pending"], *seen["paused"]}
    by_id = {}
    # A trial that ran again after it had ended was saved more than once: the last record is valid.
    records = {record["number"]: record for record in (*seen["ended"], *seen["trials"])}
    for _, record in sorted(records.items()):
        trial = by_id[record["trial_id"]] = _trial_from(record, make_trial, state.settings.experiment_dir)
        state.lifecycle.is_owed |= trial.live.owed is not None
        state.index.enlist(trial, is_waiting=trial.trial_id in waiting)
    for trial_id in (*seen["pending"], *seen["paused"]):  # in the order in which they began to wait
        state.index.enqueue(by_id[trial_id])
    state.spend.load(state.index.order)
    if (at := seen.get("at")) is not None:
        state.spend.seen_at = at


def _trial_from(record: Mapping[str, Any], make_trial: MakeTrial, root: str) -> Trial:
    trial = make_trial(
        record["trial_id"], record["config"], record["evaluated_params"], record["experiment_tag"]
    )
    for name in _PLAIN:
        setattr(trial, name, record[name])
    trial.state, trial.intent = TrialState(record["state"]), TrialState(record["intent"])
    trial.statistics = Statistics(record["statistics"])
    trial.save_s, trial.live = record.get("save_s"), LiveState(**record.get("live", {}))
    if "resources" in record:
        bundles, strategy = record["resources"]
        own = trial.placement_group_factory  # the script's: label selectors are not saved
        same = own.strategy == strategy
        trial.placement_group_factory = (
            own.resized(bundles) if same else PlacementGroupFactory(bundles, strategy)
        )
        trial.has_new_resources = True
    trial.checkpoints = tuple(_ref_from(saved, root) for saved in record["checkpoints"])
    if "cost" in record:
        trial.cost_usd, trial.is_unpriced, trial.usd_per_hour, trial.priced_at = record["cost"]
    if "adopted" in record:
        trial.adopted = _ref_from(record["adopted"], root)
    return trial


def _ref_from(saved: tuple[str, int, Mapping[str, Any], int], root: str) -> CheckpointRef:
    path, index, metrics, rows = saved
    is_elsewhere = path.startswith("/") or "://" in path
    return CheckpointRef(
        path=path if is_elsewhere else f"{root}/{path}", index=index, metrics=metrics, rows=rows
    )


def _repeat(state: ExperimentState, fact: Fact, make_trial: MakeTrial) -> None:
    """Handle one fact again; its commands were carried out, or became void with the process."""
    match fact:
        case TrialCreated():
            state.add(_asked_again(state, fact, make_trial), fact.at)
        case TrialAdmitted():
            state.admit_again(fact)
        case TrialExited(failure=TrialFailure(kind=TrialFailureKind.PLUGIN)):
            state.lifecycle.fail_again(state.index.trials[fact.trial_id], fact)
        case TrialStarted() | TrialReported() | CheckpointSaved() | TrialExited() | TrialNoticed():
            state.handle(fact)
        case TrialMoved() | TrialDecided() | TrialCharged() | TrialSuspended():
            _repeat_decision(state, fact)
        case TrialStopRequested() | LimitsChanged() | TrialPriced():
            _repeat_request(state, fact)
        case SearchExhausted():
            state.exhaust_again(fact)
        case ExperimentEnded():
            state.end(fact.at)
        case ExperimentResumed():  # this driver could not save a snapshot before it began
            finish_restore(state)
        case _:
            assert_never(fact)
    state.take_commands()


def _repeat_decision(
    state: ExperimentState, fact: TrialMoved | TrialDecided | TrialCharged | TrialSuspended
) -> None:
    """Repeat what was decided on a trial by something else than a plug-in."""
    trial = state.index.trials[fact.trial_id]
    match fact:
        case TrialMoved():
            state.move_again(fact)
        case TrialDecided():
            pass  # the fact before it was handled again, and whoever decided then has explained it again
        case TrialCharged():  # follows from the exit before it, unless the driver left its trials alone
            state.charge(trial, fact.at, has_run=False)
        case TrialSuspended():
            state.suspend(trial, fact.at, saves=fact.saves)


def _repeat_request(state: ExperimentState, fact: TrialStopRequested | LimitsChanged | TrialPriced) -> None:
    """Repeat what the user asked for, or what a machine costs."""
    if isinstance(fact, TrialPriced):
        state.handle(fact)
    elif isinstance(fact, TrialStopRequested):
        state.stop_on_request(fact.trial_id, fact.at)
    else:
        state.facts.note(fact)  # this run was started with these limits, or with later ones


def _asked_again(state: ExperimentState, fact: TrialCreated, make_trial: MakeTrial) -> Trial:
    """Return the trial that the searcher suggests again when it is the recorded one, else the record."""
    search = state.plugins.search
    trial = search.next_trial()
    if trial is not None and trial.trial_id == fact.trial_id and _same(trial.config, fact.config):
        trial.relative_logdir = fact.relative_logdir or None
        return trial
    answer = "nothing" if trial is None else f"trial {trial.trial_id} with {trial.config}"
    state.facts.warn(
        f"the searcher {type(search).__name__} does not repeat itself: it now returns {answer}, "
        f"recorded is trial {fact.trial_id} with {dict(fact.config)}. The recorded trial is used; from here "
        f"on the search may differ from an uninterrupted one."
    )
    again = make_trial(fact.trial_id, dict(fact.config), fact.evaluated_params, fact.experiment_tag)
    again.relative_logdir = fact.relative_logdir or None
    return again


def _same(one: object, other: object) -> bool:
    """Return whether two values are equal as data; a user's objects are equal when their types are."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, _DATA):
        return one == other or (one != one and other != other)  # noqa: PLR0124 - NaN
    return type(one).__qualname__ == type(other).__qualname__


RESUME, RESTART, SKIP = "resume", "restart", "skip"


class ResumeRules(Struct, frozen=True, kw_only=True):
    """ResumeRules define what happens to a trial, depending on how the earlier run left it."""

    finished: str = SKIP
    unfinished: str = RESUME
    errored: str = SKIP

    def for_trial(self, trial: Trial) -> str:
        if trial.state is TrialState.ERROR:
            return self.errored
        return self.finished if trial.state is TrialState.TERMINATED else self.unfinished


def apply_resume_rules(
    state: ExperimentState,
    rules: ResumeRules,
    at: float,
    forget: Callable[[Trial], None] = lambda trial: None,
) -> tuple[Trial, ...]:
    """Apply the rules and return the trials that run again.

    `forget` is called for each trial whose earlier end no longer counts.
    """
    again = []
    for trial in tuple(state.index.order):
        rule = rules.for_trial(trial)
        was_finished = trial.is_finished()
        if rule == SKIP:
            if not was_finished:
                state.lifecycle.stop(trial, at)
            continue
        if rule == RESTART:
            reset_trial(state, trial)
        if was_finished:
            trial.error_filename = trial.pickled_error_filename = None
            forget(trial)
            state.index.move(trial, TrialState.PENDING)
            state.plugins.notify("on_trial_add", trial)
        if was_finished or rule == RESTART:
            again.append(trial)
    if again:  # an earlier end (fail_fast, a budget) does not apply to trials that are to run again
        state.lifecycle.is_stopping = False
        state.lifecycle.first_failure, state.lifecycle.is_same_for_all = None, False
    state.take_commands()
    return tuple(again)


def reset_trial(state: ExperimentState, trial: Trial) -> None:
    """Reset a trial as if it had never run: it keeps id and directory, and loses results and checkpoints."""
    state.facts.schedule_deletion(trial.checkpoints)
    trial.live.owed = None
    trial.checkpoints = ()
    trial.adopted = None
    trial.restore_path = None
    trial.last_result = {"trial_id": trial.trial_id}
    trial.last_result_time = float("-inf")
    trial.statistics = Statistics()
    trial.start_time = None
