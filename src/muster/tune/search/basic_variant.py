"""Generate trials of grid and random search, one at a time, resumable at any of them."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from muster.base.ids import IdSource, RandomIds
from muster.errors import RestoreError
from muster.trials.model import Trial
from muster.trials.template import TrialTemplate
from muster.tune.search.check_space import checked_points
from muster.tune.search.paths import (
    Path,
    children,
    flat_name,
    format_vars,
    is_container,
    is_equal,
    is_group,
    joined,
    joined_variables,
    rebuilt,
)
from muster.tune.search.placeholders import Placeholders, inject_placeholders, is_sole_key
from muster.tune.search.random_stream import RandomStream
from muster.tune.search.sample import Domain, is_among
from muster.tune.search.search_algorithm import (
    Experiments,
    SearchAlgorithm,
    as_templates,
    decoded_state,
    hex_digits,
)
from muster.tune.search.variant_generator import Unresolved, VariantCursor, find_unresolved

if TYPE_CHECKING:
    from muster.tune.search.sample import RandomState

logger = logging.getLogger(__name__)


class BasicVariantGenerator(SearchAlgorithm):
    """Makes every grid point for each sample, and draws random values for each trial.

    Grids are never listed, whatever their size. A saved state holds indices and the random stream; a
    generator that was given the same space continues from it with the trials that the saved one would make.

    Args:
        points_to_evaluate: Configurations to begin with, as nested dicts; each replaces one sample, and what
            it leaves open is drawn or gone through as usual.
        max_concurrent: How many trials may be unfinished at once; 0: no limit.
        constant_grid_search: Draw random values once per sample, and share them between its grid points.
        random_state: A seed, or a numpy Generator or RandomState; None is seeded from numpy's global state.
        id_prefix: The first part of trial ids; by default five hex digits.
        ids: Where that default comes from.
    """

    state_file_prefix = "basic-variant-state"

    def __init__(
        self,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        max_concurrent: int = 0,
        constant_grid_search: bool = False,
        random_state: RandomState = None,
        *,
        id_prefix: str | None = None,
        ids: IdSource | None = None,
    ) -> None:
        self._points = checked_points(self, points_to_evaluate) if points_to_evaluate else []
        self.max_concurrent = max_concurrent
        self._is_constant = constant_grid_search
        self._stream = RandomStream(random_state)
        self._prefix = id_prefix
        self._ids: IdSource = ids or RandomIds()
        self._experiments: list[_Experiment] = []
        self._position = 0  # of the experiment in turn
        self._sample = 0  # of that experiment, points first
        self._cursor: VariantCursor | None = None
        self._counter = 0  # trials made so far
        self._made = [0]  # the same, per experiment
        self._live: dict[str, None] = {}
        self._is_finished = False
        self._waiting_state: bytes | None = None  # restored before the experiments were known

    @property
    def total_samples(self) -> int:
        """Return the planned trials; grids nested in choices are counted when they have been made."""
        total = 0
        for position, experiment in enumerate(self._experiments):
            made = self._made[position] if position < len(self._made) else 0
            is_over = position < self._position or self._is_finished
            total += made if is_over else max(made, experiment.planned)
        return total

    def add_configurations(self, experiments: Experiments) -> None:
        """Add experiments to search."""
        for template in as_templates(experiments):
            self._experiments.append(_Experiment(template, self._points))
        self._is_finished = False
        if self._waiting_state is not None and self._experiments:
            waiting, self._waiting_state = self._waiting_state, None
            self.restore_state(waiting)

    def next_trial(self) -> Trial | None:
        """Return the next trial; None when there is none now."""
        if self._is_finished or 0 < self.max_concurrent <= len(self._live):
            return None
        while self._position < len(self._experiments):
            experiment = self._experiments[self._position]
            if self._sample >= experiment.samples:
                self._position, self._sample = self._position + 1, 0
                self._made.append(0)
                continue
            trial = self._next_of_sample(experiment)
            if trial is not None:
                return trial
            self._cursor, self._sample = None, self._sample + 1
        self._is_finished = True
        return None

    def _next_of_sample(self, experiment: _Experiment) -> Trial | None:
        space = experiment.space_of(self._sample)
        if self._cursor is None:
            self._cursor = space.cursor(self._stream, self._is_constant)
        variant = next(self._cursor, None)
        if variant is None:
            return None
        variables = joined_variables({path[1:]: value for path, value in variant[0].items()})
        number, self._counter = self._counter, self._counter + 1
        self._made[self._position] += 1
        tag = f"{number}_{format_vars(variables)}" if variables else str(number)
        evaluated = {flat_name(path): value for path, value in variables.items()}
        trial_id = f"{self._own_prefix()}_{number:05d}"
        trial = experiment.template.make(
            trial_id, space.placeholders.resolve(joined(variant[1]["config"])), evaluated, tag
        )
        self._live[trial.trial_id] = None
        return trial

    def _own_prefix(self) -> str:
        if self._prefix is None:
            self._prefix = hex_digits(self._ids, 5)
        return self._prefix

    def on_trial_complete(
        self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False
    ) -> None:
        self._live.pop(trial_id, None)

    def is_finished(self) -> bool:
        """Return True once a call of `next_trial` found nothing left."""
        return self._is_finished

    def set_finished(self) -> None:
        """Suggest no further trial."""
        self._is_finished = True

    def save_state(self) -> bytes:
        """Return indices and the random stream: about 500 bytes, whatever the size of the space.

        JSON because it must outlive versions; the standard library's, because the stream has 128-bit numbers.
        """
        if self._waiting_state is not None:
            return self._waiting_state
        state = {
            "version": 1,
            "shapes": [experiment.shape for experiment in self._experiments],
            "num_samples": [experiment.num_samples for experiment in self._experiments],
            "prefix": self._own_prefix(),
            "counter": self._counter,
            "made": self._made,
            "position": self._position,
            "sample": self._sample,
            "frames": None if self._cursor is None else self._cursor.frames(),
            "stream": self._stream.saved(),
            "live": list(self._live),
            "finished": self._is_finished,
        }
        return json.dumps(state).encode()

    def restore_state(self, state: bytes) -> None:
        """Continue from a saved state; the experiments may be added before or after."""
        if not self._experiments:
            self._waiting_state = state
            return
        saved = decoded_state(self, json.loads, state)
        if saved["shapes"] != [experiment.shape for experiment in self._experiments]:
            raise RestoreError(
                "BasicVariantGenerator: the search space differs from the one that was saved (other keys, "
                "grids, points or number of experiments): restore with the same param_space"
            )
        for experiment, num_samples in zip(self._experiments, saved["num_samples"], strict=True):
            experiment.num_samples = num_samples  # the restored experiment need not repeat it
        self._prefix, self._counter, self._made = saved["prefix"], saved["counter"], saved["made"]
        self._position, self._sample = saved["position"], saved["sample"]
        self._live = dict.fromkeys(saved["live"])
        self._is_finished = saved["finished"]
        self._cursor = None
        self._stream.restore(saved["stream"])
        if saved["frames"] is not None:
            space = self._experiments[self._position].space_of(self._sample)
            self._cursor = space.cursor(self._stream, self._is_constant)
            self._cursor.restore(saved["frames"], saved["stream"])


class _Space:
    """One space to enumerate: the user's, or that with a point in it."""

    def __init__(self, space: Any) -> None:  # noqa: ANN401
        self.placeholders = Placeholders()
        # Expressions read `spec.config.x`.
        self._spec = {"config": inject_placeholders(space, self.placeholders)}
        self.open: Unresolved = find_unresolved(iter([((), self._spec)]))

    def cursor(self, stream: RandomStream, is_constant: bool) -> VariantCursor:
        return VariantCursor(self._spec, stream, is_constant=is_constant, open_places=self.open)


class _Experiment:
    """Holds one template, its space, and its space with each point preset."""

    def __init__(self, template: TrialTemplate, points: Sequence[Mapping[str, Any]]) -> None:
        self.template = template
        self._plain = _Space(template.param_space)
        self._with_point = [_Space(preset(dict(template.param_space), point)) for point in points]
        self.num_samples = template.samples

    @property
    def _drawn_samples(self) -> int:
        return max(0, self.num_samples - len(self._with_point))

    @property
    def samples(self) -> int:
        """Return how many times a space is enumerated; 0 for an empty grid, which yields no trials."""
        return len(self._with_point) + (self._drawn_samples if self._plain.open.size else 0)

    @property
    def planned(self) -> int:
        """Return the number of trials, without the grids that choices may hold."""
        with_point = sum(space.open.size for space in self._with_point)
        return with_point + self._drawn_samples * self._plain.open.size

    def space_of(self, sample: int) -> _Space:
        return self._with_point[sample] if sample < len(self._with_point) else self._plain

    @property
    def shape(self) -> str:
        """Return a digest that changes when other trials would be made; objects may be exchanged."""
        spaces = [self._plain, *self._with_point]
        parts = [(space.open.paths, [len(options) for _, options in space.open.grids]) for space in spaces]
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def preset(space: Any, point: Any, path: Path = ()) -> Any:  # noqa: ANN401
    """Return `space` with the values of `point` in it. A domain or grid inside a point changes nothing.

    Raises KeyError for a key, or a list index, that the space does not have. (Ray raises TypeError for the
    index, and for a value inside a list that is out of range; here that is the same warning as elsewhere.)
    """
    if _is_open(point):
        return space
    if _is_open(space):
        _check_domain(space, point, path)
        return point
    if isinstance(space, dict) and isinstance(point, dict):
        return _preset_children(space, dict(point), path)
    if isinstance(space, (list, tuple)) and isinstance(point, (list, tuple)) and is_container(space):
        return _preset_children(space, dict(enumerate(point)), path)
    if not is_equal(space, point):
        logger.warning(
            "points_to_evaluate: the preset value %r of parameter '%s' is not its constant %r; "
            "the preset value is used",
            point,
            flat_name(path),
            space,
        )
    return point


def _preset_children(space: Any, point: dict[Any, Any], path: Path) -> Any:  # noqa: ANN401
    items = dict(children(space))
    for key in point:
        if key not in items:
            raise KeyError(
                f"points_to_evaluate: '{flat_name((*path, key))}' is not in the search space; "
                f"known here: {', '.join(str(known) for known in items) or 'nothing'}"
            )
    changed = {k: preset(v, point[k], (*path, k)) if k in point else v for k, v in items.items()}
    return rebuilt(space, changed)


def _is_open(node: Any) -> bool:  # noqa: ANN401
    if isinstance(node, dict):
        return is_sole_key(node, "grid_search") or is_sole_key(node, "eval")
    return isinstance(node, Domain)


def _check_domain(space: Any, value: Any, path: Path) -> None:  # noqa: ANN401
    if isinstance(space, Domain):
        is_part = bool(path) and is_group(path[-1])  # `grouped` has chosen it
        is_valid, domain = is_part or space.is_valid(value), space.domain_str
    elif "grid_search" in space:
        is_valid, domain = is_among(value, space["grid_search"]), "the grid"
    else:
        return
    if not is_valid:
        logger.warning(
            "points_to_evaluate: the preset value %r of parameter '%s' is outside of %s; it is used anyway",
            value,
            flat_name(path),
            domain,
        )
