"""Adapt Optuna's samplers as a Searcher, by ask and tell."""

from __future__ import annotations

import logging
import math
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from msgspec import msgpack

from muster.base.clock import SystemClock
from muster.trials.metrics import TRAINING_ITERATION, number_of
from muster.tune.search.library_searcher import EvaluatedPoint, SpaceSearcher
from muster.tune.search.optuna.convert import (
    ConvertedSpace,
    StudyRecord,
    checked_sampler,
    require_optuna,
)
from muster.tune.search.paths import unflattened
from muster.tune.search.search_algorithm import Names
from muster.tune.search.searcher import pickled
from muster.tune.tune_config import checked_constraints

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler
    from optuna.storages import BaseStorage
    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial, TrialState

logger = logging.getLogger(__name__)

DEFINE_BY_RUN_WARN_THRESHOLD_S = 1.0
_UNKNOWN_EXCESS = 1e300  # a constraint that was not measured is violated; infinity is not JSON
Space = Mapping[str, Any] | Callable[..., Any]


class OptunaSearch(SpaceSearcher):
    """Takes suggestions from Optuna (`pip install "muster-ml[optuna]"`).

    Several metrics make a multi-objective study. A metric with mode "obs" is not optimized, but kept as
    a user attribute of the trial; with a sampler that has a `constraints_func`, every number of a trial's
    last result is, so that the function can read it from `trial.user_attrs`. Results of running trials become
    intermediate values (one objective only).

    Args:
        space: A search space, Optuna's distributions by name, or a function that asks a trial for its values
            (define-by-run) and may return a dict of constants. Usually left to the Tuner's `param_space`.
        metric: The result key to optimize, or several.
        mode: "min" or "max", or as many of them as there are metrics.
        points_to_evaluate: Configurations to begin with.
        sampler: An Optuna sampler; by default TPE.
        study_name: The name of the study, by default "optuna"; in a storage that has it, it is continued.
        storage: An Optuna storage or its URL; by default in memory, saved with the experiment. With a
            separate storage, the study is not part of the saved state: after a crash it may be ahead of it.
        seed: Of the default sampler.
        evaluated_rewards: The results of `points_to_evaluate`, when they are known.
        constraints: Upper bounds by result key, e.g. {"latency_ms": 50}; a trial above one of them, or
            without the key, is infeasible. Not in Ray; needs Optuna 5.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - Ray's signature
        self,
        space: Space | None = None,
        metric: Names = None,
        mode: Names = None,
        points_to_evaluate: list[dict[str, Any]] | None = None,
        sampler: BaseSampler | None = None,
        study_name: str | None = None,
        storage: BaseStorage | str | None = None,
        seed: int | None = None,
        evaluated_rewards: list[Any] | None = None,
        *,
        constraints: Mapping[str, float] | None = None,
    ) -> None:
        require_optuna(with_constraints=bool(constraints))
        super().__init__(metric=metric, mode=mode)
        self._constraints = checked_constraints(constraints, type(self).__name__)
        self._take_points(points_to_evaluate, evaluated_rewards)
        self._sampler = checked_sampler(sampler, seed)
        self._study_name = study_name or "optuna"
        self._storage = storage
        self._converted: ConvertedSpace | None = None
        self._ot_study: Study | None = None
        self._record = StudyRecord()
        self._settings: bytes | None = None  # pickled metric, mode and space
        self._live: dict[str, int] = {}  # trial id -> number in the study
        self._completed: dict[str, None] = {}
        self._is_exhausted = False
        self._begin(space)

    # Set-up.

    @staticmethod
    def convert_search_space(spec: Mapping[str, Any]) -> dict[str, Any]:
        """Return Optuna's distributions by flat name."""
        return dict(ConvertedSpace(spec).distributions)

    def _set_space(self, space: Space) -> None:
        if isinstance(space, Mapping):
            self._converted = ConvertedSpace(space)
        self._space = space  # last: a space that is refused is not kept

    def _start_if_ready(self) -> None:
        self._settings = None  # metric, mode or space may be new
        super()._start_if_ready()

    def _start(self) -> None:
        self._ot_study = self._new_study()
        for point in () if self._rewards else self._points:
            params = self._converted.params(point) if self._converted is not None else dict(point)
            self._ot_study.enqueue_trial(params)

    def _new_study(self) -> Study:
        import optuna

        directions: list[Literal["minimize", "maximize"]] = [
            "minimize" if mode == "min" else "maximize" for _, mode in self._objectives()
        ]
        verbosity = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.WARNING)  # "A new study created" does not help users
        try:
            return optuna.create_study(
                storage=self._storage,
                sampler=self._sampler,
                study_name=self._study_name,
                directions=directions,
                load_if_exists=True,
            )
        finally:
            optuna.logging.set_verbosity(verbosity)

    def _ready_study(self) -> Study:
        self._require_ready(bool(self._metric and self._mode and self._ot_study))
        assert self._ot_study is not None
        return self._ot_study

    @property
    def study(self) -> Study:
        """Return the Optuna study, for inspection."""
        return self._ready_study()

    # Ask.

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        study = self._ready_study()
        if trial_id in self._live:  # asked again: the same answer
            storage_id = self._storage_id(study, self._live[trial_id])
            return self._suggestion(study._storage.get_trial(storage_id))
        if self._is_exhausted:
            return self.FINISHED
        trial = self._converted.ask(study) if self._converted is not None else study.ask()
        try:
            suggestion = self._suggestion(trial)
        except BaseException:
            study.tell(trial, state=_state("FAIL"))
            raise
        self._live[trial_id] = trial.number
        return suggestion

    def _suggestion(self, trial: Trial | FrozenTrial) -> dict[str, Any]:
        if self._converted is not None:
            return self._converted.suggestion(trial.params)
        constants = self._run_space_function(trial)
        return unflattened({**trial.params, **constants})

    def _run_space_function(self, trial: Trial | FrozenTrial) -> dict[str, Any]:
        clock = SystemClock()
        started = clock.monotonic()
        constants = self._space(trial) if callable(self._space) else None
        took_s = clock.monotonic() - started
        if took_s > DEFINE_BY_RUN_WARN_THRESHOLD_S:
            logger.warning(
                "OptunaSearch: the space function took %.1f s; it should only ask the trial for values, "
                "and leave the training to the trainable",
                took_s,
            )
        if constants is None:
            return {}
        if not isinstance(constants, dict) or not all(isinstance(key, str) for key in constants):
            raise TypeError(
                f"OptunaSearch: the space function must return None or a dict by names, not {constants!r}"
            )
        return constants

    # Tell.

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        if trial_id in self._completed:
            logger.warning("OptunaSearch: trial %s reported after it had completed; ignored", trial_id)
            return
        objectives = self._objectives()
        number = self._live.get(trial_id)
        if number is None or len(objectives) != 1:  # Optuna has no intermediate values of several objectives
            return
        value, step = number_of(result.get(objectives[0][0])), result.get(TRAINING_ITERATION)
        if value is not None and isinstance(step, int) and step >= 0:
            study = self._ready_study()
            study._storage.set_trial_intermediate_value(self._storage_id(study, number), step, value)

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False, stopped: bool = False
    ) -> None:
        """Report to the study how a trial ended; PRUNED when its scheduler stopped it before the last rung.

        Args:
            trial_id: The trial's id.
            result: The last result.
            error: Whether the trial failed.
            stopped: Whether a scheduler stopped the trial.
        """
        if trial_id in self._completed:
            logger.warning("OptunaSearch: trial %s completed twice; the second time is ignored", trial_id)
            return
        time = number_of((result or {}).get(self._time_attr))
        is_complete = (
            self._levels and time is not None and time >= self._levels[-1]
        )  # it reached the last rung
        is_pruned = stopped and not is_complete
        if is_pruned and result:
            self.on_trial_result(trial_id, result)  # its last intermediate value
        number = self._live.pop(trial_id, None)
        if number is None:
            return
        self._completed[trial_id] = None
        study = self._ready_study()
        self._keep_attributes(study, number, result or {})
        values = [number_of((result or {}).get(metric)) for metric, _ in self._objectives()]
        known = [value for value in values if value is not None]
        if is_pruned and not error:
            self._inform(study, number, None, "PRUNED")
        elif len(known) == len(values):
            # Optuna refuses NaN as a value; to its samplers such a trial has failed.
            is_usable = not any(math.isnan(value) for value in known)
            self._inform(study, number, known if is_usable else None, "COMPLETE" if is_usable else "FAIL")
        else:
            self._inform(study, number, None, "FAIL" if error or len(values) > 1 else "PRUNED")

    def _keep_attributes(self, study: Study, number: int, result: Mapping[str, Any]) -> None:
        names = [metric for metric, mode in self._goals() if mode == "obs"]
        if getattr(study.sampler, "_constraints_func", None) is not None:
            names = list(result)
        storage, storage_id = study._storage, self._storage_id(study, number)
        for name in names:
            value = number_of(result.get(name))
            if value is not None:
                storage.set_trial_user_attr(storage_id, name, value)
        for name, bound in self._constraints.items():
            value = number_of(result.get(name))
            is_known = value is not None and not math.isnan(value)
            excess = value - bound if is_known and value is not None else _UNKNOWN_EXCESS
            # As Trial.set_constraint does.
            storage.set_trial_system_attr(storage_id, f"constraints:{name}", excess)

    def _inform(self, study: Study, number: int, values: Sequence[float] | None, state: str) -> None:
        # Some samplers (grid, brute force) call study.stop() when they have nothing left, which Optuna allows
        # only inside its own loop; we are that loop here.
        study._thread_local.in_optimize_loop = True
        try:
            study.tell(number, values, state=_state(state))
        except Exception as error:  # noqa: BLE001 - a sampler's fault must not end the experiment
            logger.warning(
                "OptunaSearch: the study did not take the result of its trial %s: %s", number, error
            )
        finally:
            study._thread_local.in_optimize_loop = False
        self._is_exhausted = self._is_exhausted or study._stop_flag

    def _learn_evaluated(self, evaluated: EvaluatedPoint) -> None:
        """Add a trial made elsewhere: COMPLETE, or FAIL, or PRUNED."""
        import optuna

        study = self._ready_study()
        if self._converted is None:
            raise TypeError(
                "OptunaSearch: evaluated points need a space of distributions, not a define-by-run function"
            )
        point, value, error, pruned, intermediate_values = evaluated
        params = self._converted.params(point)
        numbers = None
        if value is not None:
            numbers = [float(one) for one in (value if isinstance(value, (list, tuple)) else [value])]
        is_number = numbers is not None and not any(math.isnan(number) for number in numbers)
        state = "PRUNED" if pruned and not error else "COMPLETE" if is_number and not error else "FAIL"
        values = numbers if is_number and state != "FAIL" else None
        trial = optuna.trial.create_trial(
            state=_state(state),
            values=values,
            params=params,
            distributions={name: self._converted.distributions[name] for name in params},
            intermediate_values=dict(enumerate(intermediate_values or ())),
        )
        study.add_trial(trial)

    # State.

    def save_state(self) -> bytes:
        """Return sampler, unfinished suggestions and, without a storage of the user's, all trials.

        Each trial is encoded once, when it is first saved as finished (about 20 us); besides that, a save
        copies all bytes (20,000 trials: 3 to 6 MB, 15 ms).
        """
        study = self._ot_study
        return msgpack.encode(
            {
                "version": 1,
                "settings": self._saved_settings(),
                "sampler": pickled(self._sampler),
                "study": None if study is None or self._storage is not None else self._record.encoded(study),
                "live": self._live,
                "completed": list(self._completed),
                "is_exhausted": self._is_exhausted,
            }
        )

    def _saved_settings(self) -> bytes:
        """Return the settings, made once; a space that cannot be pickled must be given to a restore."""
        if self._settings is None:
            try:
                self._settings = pickled((self._metric, self._mode, self._constraints, self._space))
            except Exception:  # noqa: BLE001 - whatever a user's object raises
                self._settings = pickled((self._metric, self._mode, self._constraints, None))
        return self._settings

    def restore_state(self, state: bytes) -> None:
        """Restore a saved state. A space that this searcher was made with is kept."""
        saved = msgpack.decode(state)
        metric, mode, constraints, space = pickle.loads(saved["settings"])
        self._metric, self._mode = metric or self._metric, mode or self._mode
        self._constraints = constraints
        self._sampler = pickle.loads(saved["sampler"])
        if not self._space and space:
            self._set_space(space)
        self._live, self._completed = saved["live"], dict.fromkeys(saved["completed"])
        self._is_exhausted, self._evaluated = saved["is_exhausted"], []
        self._ot_study, self._record, self._settings = None, StudyRecord(), saved["settings"]
        if saved["study"] is not None:
            self._ot_study = self._new_study()
            self._record.fill(self._ot_study, saved["study"])
        elif self._storage is not None and self._space and self._mode:
            self._ot_study = self._new_study()
        self._is_started = self._ot_study is not None

    @staticmethod
    def _storage_id(study: Study, number: int) -> int:
        return study._storage.get_trial_id_from_study_id_trial_number(study._study_id, number)


def _state(name: str) -> TrialState:
    from optuna.trial import TrialState

    return TrialState[name]
