"""Keep every trial of an experiment, with ordered indexes of those that wait, so that nothing scans all."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping

from muster.base.resources import EMPTY, Resources
from muster.trials.model import ExperimentPlace, Trial
from muster.trials.placement_group import PlacementGroupFactory
from muster.trials.states import FINISHED, HAS_PROCESS, TrialState

KEPT_LATEST = 64  # finished trials that are not packed: reporters show them, and hooks may be about to
KEPT_WHOLE = 1024  # at most, when no archive takes them: a record of a whole trial is sooner made


class TrialIndex:
    """Keeps the indexes consistent: all state changes go through `move`."""

    def __init__(
        self, capacity: Mapping[str, float], experiment_dir: str = "", place: ExperimentPlace | None = None
    ) -> None:
        self.trials: dict[str, Trial] = {}
        self.order: list[Trial] = []  # the same, as the list that callbacks are given
        self.live: dict[str, Trial] = {}  # not finished
        # In the order in which they began to wait. A plain dict gets slow where the first is taken again and
        # again: it looks past the places of all that were there before.
        self.pending: OrderedDict[str, Trial] = OrderedDict()
        self.paused: OrderedDict[str, Trial] = OrderedDict()
        self.unarchived: dict[str, Trial] = {}  # finished, and no archive holds them as they are
        self.borrowers: dict[str, Trial] = {}  # adopted a checkpoint of another trial, finished ones included
        self._latest: deque[Trial] = deque()  # finished ones that are not packed yet
        self.experiment_dir, self._place = experiment_dir, place
        self.starting: set[str] = set()  # handed to the engine, no process yet
        self.stopping: dict[str, Trial] = {}
        self.capacity = Resources.of(capacity)
        self.is_bounded = True  # False: the engine may find more than that
        self.used = EMPTY
        self._sizes: dict[PlacementGroupFactory, Resources] = {}
        self._held: dict[str, Resources] = {}  # what each trial with a process holds

    @property
    def borrowed(self) -> set[str]:
        """The directories of checkpoints that trials continue from and that belong to other trials."""
        return {trial.adopted.path for trial in self.borrowers.values() if trial.adopted is not None}

    def add(self, trial: Trial) -> None:
        self._enter(trial)
        self._index(trial)

    def enlist(self, trial: Trial, *, is_waiting: bool) -> None:
        """Add a trial in any state during a restore; `enqueue` queues those that wait, in the old order."""
        self._enter(trial)
        if not is_waiting:
            self._index(trial)

    def _enter(self, trial: Trial) -> None:
        trial.experiment_dir, trial.place = self.experiment_dir, self._place
        trial.number = len(self.order)
        self.trials[trial.trial_id] = trial
        if trial.adopted is not None:
            self.borrowers[trial.trial_id] = trial
        self.order.append(trial)

    def enqueue(self, trial: Trial) -> None:
        self._index(trial)

    def move(self, trial: Trial, target: TrialState) -> None:
        """Take one transition of the table and updates every index."""
        trial.move(target)
        self._index(trial)

    def _index(self, trial: Trial) -> None:
        key, state = trial.trial_id, trial.state
        if state is not TrialState.PENDING:
            self.pending.pop(key, None)
        else:
            self.pending.setdefault(key, trial)
        if state is not TrialState.PAUSED:
            self.paused.pop(key, None)
        else:
            self.paused.setdefault(key, trial)
        if state not in FINISHED:
            self.live.setdefault(key, trial)
            self.unarchived.pop(key, None)
        else:
            self.live.pop(key, None)
            self.unarchived[key] = trial
            self._latest.append(trial)
            if len(self._latest) > KEPT_WHOLE:
                self._latest.popleft().pack()
        self.starting.discard(key)
        self.stopping.pop(key, None)
        if state is TrialState.STARTING:
            self.starting.add(key)
        elif state is TrialState.STOPPING:
            self.stopping[key] = trial
        if state in HAS_PROCESS:
            if key not in self._held:
                self._held[key] = size = self.size(trial)
                self.used = self.used.plus(size)
        elif key in self._held:
            self.used = self.used.minus(self._held.pop(key))

    def note_archived(self) -> None:
        """An archive holds every finished trial now: all but the latest are packed."""
        self.unarchived.clear()
        while len(self._latest) > KEPT_LATEST:
            self._latest.popleft().pack()

    def size(self, trial: Trial) -> Resources:
        """Return what the trial needs in total; equal requests are added up once."""
        factory = trial.placement_group_factory
        if factory not in self._sizes:
            self._sizes[factory] = Resources.of(factory.required_resources)
        return self._sizes[factory]

    def resize(self, capacity: Mapping[str, float], *, is_bounded: bool) -> None:
        """Machines came or went."""
        self.capacity, self.is_bounded = Resources.of(capacity), is_bounded

    def fits(self, trial: Trial) -> bool:
        return self.capacity.holds(self.used.plus(self.size(trial)))

    def can_ever_fit(self, trial: Trial) -> bool:
        return not self.is_bounded or self.capacity.holds(self.size(trial))

    @property
    def with_process(self) -> int:
        return len(self._held)

    def holders(self) -> list[Trial]:
        """Return the trials that hold resources; the order differs after a restore."""
        return [self.trials[trial_id] for trial_id in self._held]
