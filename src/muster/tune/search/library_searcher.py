"""Define what the adapters of search libraries share; a subclass asks and informs one library."""

from __future__ import annotations

import importlib
import logging
import math
import pickle
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from muster.errors import RestoreError, TuneError
from muster.trials.metrics import DEFAULT_METRIC, TRAINING_ITERATION, number_of
from muster.tune.search.check_space import checked_points
from muster.tune.search.paths import copied, unflattened
from muster.tune.search.search_algorithm import Names
from muster.tune.search.searcher import (
    UNDEFINED_METRIC_MODE,
    UNDEFINED_SEARCH_SPACE,
    UNRESOLVED_SEARCH_SPACE,
    Searcher,
    SearcherNotReady,
    check_metric_and_mode,
    pickled,
    warn_of_outside,
)
from muster.tune.search.space_tree import Dimensions, Feature
from muster.tune.search.variant_generator import has_unresolved_values

logger = logging.getLogger(__name__)

Proposal = tuple[Any, dict[str, Any]]  # what the library wants back with the result, and the suggestion


class EvaluatedPoint(NamedTuple):
    """A point and how it ended elsewhere; the fields are arguments of `add_evaluated_point`."""

    point: dict[str, Any]
    value: Any  # a number, or one per objective
    error: bool = False
    pruned: bool = False
    intermediate_values: list[float] | None = None


class SpaceSearcher(Searcher):
    """Starts when it has a space and a mode, which its user gives or the experiment does."""

    _space: Any = None
    _is_started = False
    _levels: Sequence[float] = ()  # the times at which a scheduler compares trials
    _time_attr = TRAINING_ITERATION

    def set_rungs(self, levels: Sequence[float] | None, time_attr: str) -> None:
        self._levels, self._time_attr = sorted(levels or ()), time_attr

    def _set_space(self, space: Any) -> None:  # noqa: ANN401
        """Take a space that is not empty, of muster's or the library's own kind."""
        raise NotImplementedError

    def _start(self) -> None:
        """Make the optimizer; space, metric and mode are known."""
        raise NotImplementedError

    def _learn_evaluated(self, evaluated: EvaluatedPoint) -> None:
        """Learn from a point that was evaluated elsewhere; ValueError when it is not in the space."""
        raise NotImplementedError

    def _is_constant(self) -> bool:
        """Return whether the space has nothing to search."""
        return False

    def _take_points(self, points: list[dict[str, Any]] | None, rewards: Sequence[Any] | None = None) -> None:
        """Keep the points to begin with, and their results where these are known."""
        self._points, self._rewards = checked_points(self, points), list(rewards or ())
        if self._rewards and len(self._rewards) != len(self._points):
            raise ValueError(f"{len(self._points)} points_to_evaluate need as many evaluated_rewards")
        self._evaluated: list[EvaluatedPoint] = []  # added before there was a space

    def _start_if_ready(self) -> None:
        """Start once space, metric and mode are known; then learn what came before."""
        if self._mode and not self._metric:
            self._metric = DEFAULT_METRIC
        if self._space is None or not self._mode or self._is_started:
            return
        name = type(self).__name__
        if self._is_constant():
            raise SearcherNotReady(
                f"{name}: the space {self._space!r} has nothing to search; "
                "give it at least one domain, such as uniform(0, 1)"
            )
        if not self._objectives():
            raise ValueError(f"{name}: every mode is 'obs', so there is nothing to optimize")
        self._start()
        self._is_started = True
        for point, reward in zip(self._points, self._rewards, strict=False):  # all of them, or none
            self._learn_evaluated(EvaluatedPoint(point, reward))
        outside = []
        while self._evaluated:
            try:
                self._learn_evaluated(EvaluatedPoint(*self._evaluated.pop(0)))  # lists, if restored
            except ValueError as error:
                outside.append(error)
        warn_of_outside(self, outside)

    def _goals(self) -> list[tuple[str, str]]:
        """Return the metrics with their modes."""
        if isinstance(self._metric, str):
            return [(self._metric, str(self._mode))]
        return list(zip(self._metric or (), self._mode or (), strict=True))

    def _objectives(self) -> list[tuple[str, str]]:
        """Return the metrics to optimize with their modes."""
        return [(metric, mode) for metric, mode in self._goals() if mode != "obs"]

    def add_evaluated_point(
        self,
        parameters: dict[str, Any],
        value: Any,  # noqa: ANN401 - a number, or one per objective
        error: bool = False,
        pruned: bool = False,
        intermediate_values: list[float] | None = None,
    ) -> None:
        """Learn from a point that was evaluated elsewhere; before there is a space, it waits."""
        evaluated = EvaluatedPoint(dict(parameters), value, error, pruned, intermediate_values)
        if self._is_started:
            self._learn_evaluated(evaluated)
        else:
            self._evaluated.append(evaluated)

    def _begin(self, space: Any, parameter: str = "space") -> None:  # noqa: ANN401
        """Complete a subclass's __init__."""
        if space is not None and (not isinstance(space, Mapping) or space):
            if isinstance(space, Mapping) and has_unresolved_values(dict(space)):
                logger.warning(UNRESOLVED_SEARCH_SPACE.format(cls=type(self).__name__, par=parameter))
            self._set_space(space)
        self._start_if_ready()

    def set_search_properties(
        self, metric: Names, mode: Names, config: dict[str, Any], **spec: object
    ) -> bool:
        """Take the space, metric and mode that are missing; returns False when there is a space already."""
        if "constraints" in spec and not getattr(self, "_constraints", True):  # only of one that takes them
            self._constraints = dict(spec["constraints"])  # type: ignore[call-overload]
        check_metric_and_mode(metric, mode)
        is_new = self._space is None
        if is_new and config:
            self._set_space(config)
        if is_new or not self._metric:
            self._metric = metric or self._metric
        if is_new or not self._mode:
            self._mode = mode or self._mode
        self._start_if_ready()
        return is_new

    def _require_ready(self, is_started: bool) -> None:
        name = type(self).__name__
        if self._space is None:
            raise SearcherNotReady(UNDEFINED_SEARCH_SPACE.format(cls=name, space="space"))
        if not is_started:
            raise SearcherNotReady(
                UNDEFINED_METRIC_MODE.format(cls=name, metric=self._metric, mode=self._mode)
            )


class LibrarySearcher(SpaceSearcher):
    """Keeps the space, the initial points and the unfinished suggestions of an adapter.

    A subclass sets `library` and `extra`, and defines `_start`, `_propose`, `_inform` and, where the library
    cares, `_abandon` and `_learn`. The losses it gets are finite and to be minimized, whatever the mode.
    Returning None must change nothing: it is not recorded, so a restored experiment would not know of it.

    All attributes are saved, pickled, but those in `_unsaved`, which `_reopen` makes again.
    """

    library: ClassVar[str]
    extra: ClassVar[str]
    features: ClassVar[Collection[Feature]] = ()
    _unsaved: ClassVar[Collection[str]] = ()

    def __init__(
        self, metric: str | None, mode: str | None, points_to_evaluate: list[dict[str, Any]] | None
    ) -> None:
        require_library(type(self).__name__, self.library, self.extra)
        super().__init__(metric=metric, mode=mode)
        self._take_points(points_to_evaluate)
        self._dimensions: Dimensions | None = None  # None with a space of the library's own kind
        self._live: dict[str, Proposal] = {}
        self._is_started = False

    # For subclasses.

    def _propose(self, point: dict[str, Any] | None) -> Proposal | str | None:
        """Return the next suggestion, or the user's point as one."""
        raise NotImplementedError

    def _suggestion(self, values: Any) -> dict[str, Any]:  # noqa: ANN401 - by name, or as the library has them
        """Return the library's values as a configuration."""
        return self._dimensions.suggestion(values) if self._dimensions is not None else unflattened(values)

    def _inform(self, handle: Any, loss: float) -> None:  # noqa: ANN401
        """Pass the value of an evaluated suggestion to the library."""
        raise NotImplementedError

    def _abandon(self, handle: Any) -> None:  # noqa: ANN401
        """Handle a suggestion that failed, or whose result is not a finite number."""

    def _learn(self, point: dict[str, Any], loss: float) -> None:
        """Pass a point evaluated elsewhere to the library; ValueError when it is not in the space."""
        raise NotImplementedError

    def _reopen(self) -> None:
        """Make what is not saved, after a restore."""

    def _is_native(self, space: Any) -> bool:  # noqa: ANN401
        """Return whether a space is of the library's own kind."""
        return not isinstance(space, Mapping)

    # Set-up.

    def _set_space(self, space: Any) -> None:  # noqa: ANN401
        if not self._is_native(space):
            self._dimensions = self._converted(space)
        self._space = space  # last: a space that is refused is not kept

    @classmethod
    def _converted(cls, space: Mapping[str, Any]) -> Dimensions:
        return Dimensions(cls.__name__, space, features=cls.features)

    def _is_constant(self) -> bool:
        return self._dimensions is not None and not self._dimensions.variable

    def _objectives(self) -> list[tuple[str, str]]:
        if not isinstance(self._metric, str):
            raise ValueError(
                f"{type(self).__name__} optimizes one metric, not {self._metric!r}: "
                'use search_alg="auto" or OptunaSearch for several'
            )
        return super()._objectives()

    # Ask and tell.

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        self._require_ready(self._is_started)
        if trial_id not in self._live:
            proposal = self._propose(self._points[0] if self._points else None)
            if proposal is None or isinstance(proposal, str):
                return proposal
            del self._points[:1]
            self._live[trial_id] = proposal
        return copied(self._live[trial_id][1])  # type: ignore[no-any-return]

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Pass the result on; one that is not a finite number counts as none."""
        proposal = self._live.pop(trial_id, None)
        if proposal is None:
            return
        loss = self._loss((result or {}).get(str(self._metric)))
        if loss is None or error:
            self._abandon(proposal[0])
        else:
            self._inform(proposal[0], loss)

    def _loss(self, value: Any) -> float | None:  # noqa: ANN401 - whatever a trial reported
        number = finite_number(value)
        return None if number is None else number if self._mode == "min" else -number

    def _learn_evaluated(self, evaluated: EvaluatedPoint) -> None:
        """Ignore points that failed or have no finite value, and those outside of the space."""
        loss = self._loss(evaluated.value)
        if evaluated.error or loss is None:
            return
        try:
            self._learn(evaluated.point, loss)
        except ValueError as error:
            warn_of_outside(self, [error])

    # State.

    def save_state(self) -> bytes:
        """Return all attributes, random streams and unfinished suggestions included."""
        kept = {name: value for name, value in self.get_state().items() if name not in self._unsaved}
        return pickled({"version": 1, "searcher": type(self).__name__, "attributes": kept})

    def restore_state(self, state: bytes) -> None:
        saved = pickle.loads(state)
        if saved["searcher"] != type(self).__name__:
            raise RestoreError(
                f"{type(self).__name__}: the saved state is of {saved['searcher']}",
                fix="pass what the first run had",
            )
        self.set_state(saved["attributes"])
        if self._is_started:
            self._reopen()


def require_library(owner: str, library: str, extra: str) -> None:
    """Raise MissingLibrary, with the command that helps, when the library is missing."""
    try:
        importlib.import_module(library)
    except ImportError as error:
        raise MissingLibrary(
            f'{owner} needs {library}: pip install "muster-ml[{extra}]" ({error})'
        ) from error


def check_options(owner: str, options: Mapping[str, Any], known: Collection[str], takes: str) -> None:
    """Raise a ValueError for options that the library does not know."""
    unknown = [name for name in options if name not in known]
    if unknown:
        raise ValueError(f"{owner} does not take {', '.join(unknown)}; {takes} {', '.join(known)}")


class MissingLibrary(TuneError, ImportError):
    """A searcher's library is not installed, or not in a version that works."""


def finite_number(value: Any) -> float | None:  # noqa: ANN401
    number = number_of(value)
    return number if number is not None and math.isfinite(number) else None
