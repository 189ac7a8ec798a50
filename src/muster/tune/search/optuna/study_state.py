"""An in-memory Optuna study as bytes. A finished trial never changes, so it is encoded once and kept.

Cost of a save: encoding the trials that finished since the last one, and copying the bytes of all of them.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from optuna.study import Study
    from optuna.trial import FrozenTrial


class StudyRecord:
    """Encodes the trials of one study; one lives as long as its study."""

    def __init__(self) -> None:
        self._finished: list[bytes | None] = []  # by trial number
        self._distributions: dict[bytes, int] = {}  # encoded -> its place in the table

    def encoded(self, study: Study) -> dict[str, Any]:
        """Plain data and bytes: everything a sampler may look at."""
        storage, study_id = study._storage, study._study_id
        trials = storage.get_all_trials(study_id, deepcopy=False)
        encoded = [self._trial(trial) for trial in trials]
        return {
            "trials": encoded,
            "distributions": list(self._distributions),
            "user_attrs": pickle.dumps(storage.get_study_user_attrs(study_id)),
            "system_attrs": pickle.dumps(storage.get_study_system_attrs(study_id)),
        }

    def _trial(self, trial: FrozenTrial) -> bytes:
        number = trial.number
        while len(self._finished) <= number:
            self._finished.append(None)
        kept = self._finished[number]
        if kept is not None:
            return kept
        encoded = self._encode(trial)
        if trial.state.is_finished():
            self._finished[number] = encoded
        return encoded

    def _encode(self, trial: FrozenTrial) -> bytes:
        places = {name: self._place(d) for name, d in trial.distributions.items()}
        parts = (
            int(trial.state),
            trial.values,
            trial.params,
            places,
            trial.user_attrs,
            trial.system_attrs,
            trial.intermediate_values,
            trial.datetime_start,
            trial.datetime_complete,
        )
        return pickle.dumps(parts, protocol=5)

    def _place(self, distribution: Any) -> int:  # noqa: ANN401 - an Optuna distribution
        encoded = pickle.dumps(distribution, protocol=5)
        return self._distributions.setdefault(encoded, len(self._distributions))

    def fill(self, study: Study, saved: dict[str, Any]) -> None:
        """Put saved trials into an empty study, with their numbers."""
        storage, study_id = study._storage, study._study_id
        table = [pickle.loads(one) for one in saved["distributions"]]
        self._distributions = {one: place for place, one in enumerate(saved["distributions"])}
        for encoded in saved["trials"]:
            trial = _decoded(encoded, table)
            self._finished.append(encoded if trial.state.is_finished() else None)
            storage.create_new_trial(study_id, template_trial=trial)
        _set_study_attrs(storage, study_id, saved)


def _set_study_attrs(storage: BaseStorage, study_id: int, saved: dict[str, Any]) -> None:
    for key, value in pickle.loads(saved["user_attrs"]).items():
        storage.set_study_user_attr(study_id, key, value)
    for key, value in pickle.loads(saved["system_attrs"]).items():
        storage.set_study_system_attr(study_id, key, value)


def _decoded(encoded: bytes, table: list[Any]) -> FrozenTrial:
    from optuna.trial import FrozenTrial, TrialState

    state, values, params, places, user, system, intermediate, start, complete = pickle.loads(encoded)
    return FrozenTrial(
        number=-1,  # the storage gives it
        trial_id=-1,
        state=TrialState(state),
        value=None,
        values=values,
        params=params,
        distributions={name: table[place] for name, place in places.items()},
        user_attrs=user,
        system_attrs=system,
        intermediate_values=intermediate,
        datetime_start=start,
        datetime_complete=complete,
    )
