"""Implement PB2: population based training that takes new values from a model instead of chance."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any

from muster.errors import TuneError
from muster.trials.model import Trial
from muster.trials.plugins import ControllerView
from muster.tune.plugin_state import Plain
from muster.tune.schedulers.pbt import PopulationBasedTraining
from muster.tune.schedulers.pbt_explore import Config, Path, values_of
from muster.tune.search.paths import copied
from muster.tune.search.space import uniform

MOST_POINTS = 1000


class PB2(PopulationBasedTraining):
    """Like PopulationBasedTraining, but takes the values from which a Gaussian process expects most.

    PB2 needs scipy. The other parameters are those of PopulationBasedTraining.

    Args:
        hyperparam_bounds: `[lowest, highest]` of each value, in dicts as deep as the configuration's. A value
            that the configuration lacks is drawn from there; the type of one that it has is kept.
    """

    _state_kind = "pb2"
    _plain_attributes = (*PopulationBasedTraining._plain_attributes, "_points", "_positions", "_pending")

    def __init__(  # noqa: PLR0913, PLR0917 - Ray's parameters, and a seed
        self,
        time_attr: str = "time_total_s",
        metric: str | None = None,
        mode: str | None = None,
        perturbation_interval: float = 60.0,
        hyperparam_bounds: Mapping[str, Any] | None = None,
        quantile_fraction: float = 0.25,
        log_config: bool = True,
        require_attrs: bool = True,
        synch: bool = False,
        custom_explore_fn: Callable[[Config], Config] | None = None,
        seed: int | None = None,
    ) -> None:
        if importlib.util.find_spec("scipy") is None:
            raise RuntimeError("PB2 needs scipy: pip install 'muster-ml[pb2]', or scipy alone")
        if not hyperparam_bounds:
            raise TuneError("PB2 has nothing to change: pass hyperparam_bounds={'lr': [1e-4, 1.0]}")
        self._bounds = dict(_checked(hyperparam_bounds, ()))
        self._points: list[list[float]] = []  # time, reward before, values, change per unit of time
        self._positions: dict[str, tuple[float, float]] = {}  # time and reward at the last comparison
        self._pending: dict[str, list[float]] = {}  # without a result since: time, reward before, values
        super().__init__(
            time_attr=time_attr,
            metric=metric,
            mode=mode,
            perturbation_interval=perturbation_interval,
            hyperparam_mutations=_as_mutations(hyperparam_bounds),
            quantile_fraction=quantile_fraction,
            resample_probability=0.0,
            custom_explore_fn=custom_explore_fn,
            log_config=log_config,
            require_attrs=require_attrs,
            synch=synch,
            seed=seed,
        )

    def on_trial_add(self, tune_controller: ControllerView, trial: Trial) -> None:
        self._positions.pop(trial.trial_id, None)  # one that is tried again starts over
        super().on_trial_add(tune_controller, trial)

    def _forget(self, trial: Trial) -> None:
        super()._forget(trial)
        self._pending.pop(trial.trial_id, None)

    def _learn(self, trial: Trial, time: float, score: float) -> None:
        self._pending.pop(trial.trial_id, None)
        before = self._positions.get(trial.trial_id)
        if not math.isfinite(score):
            return
        self._positions[trial.trial_id] = (time, score)
        values = self._values(trial.config)
        if before is None or values is None or time <= before[0]:
            return
        change = (score - before[1]) / (time - before[0])
        self._points.append([time, before[1], *values, change])
        del self._points[:-MOST_POINTS]

    def _values(self, config: Mapping[str, Any]) -> list[float] | None:
        """Return the tuned values; None when one is not a number."""
        found = dict(values_of(config, self._asked.hyperparam_mutations))
        if any(not isinstance(found.get(path), Real) for path in self._bounds):
            return None
        return [float(found[path]) for path in self._bounds]

    def _new_config(self, target: Trial, donor: Trial) -> Config:
        position = self._positions.get(donor.trial_id)
        stream = self._stream()
        new: Config = copied(donor.config)
        if position is not None and self._points:
            from muster.tune.schedulers.pb2_model import best_point

            waiting = list(self._pending.values())
            bounds = list(self._bounds.values())
            values = best_point(self._points, waiting, position, bounds, stream.getrandbits(32))
            for path, value in zip(self._bounds, values, strict=True):
                new = _replaced(new, path, value)
        if position is not None:
            self._positions[target.trial_id] = position  # it continues from there
            chosen = self._values(new)
            if chosen is not None:
                self._pending[target.trial_id] = [*position, *chosen]
        return self._user_explored(new, stream)

    def _from_plain(self, state: Plain) -> None:
        super()._from_plain(state)
        self._positions = {name: (time, reward) for name, (time, reward) in self._positions.items()}


def _checked(bounds: Mapping[str, Any], above: Path) -> list[tuple[Path, tuple[float, float]]]:
    found: list[tuple[Path, tuple[float, float]]] = []
    for key, value in bounds.items():
        path = (*above, key)
        if isinstance(value, Mapping):
            found.extend(_checked(value, path))
            continue
        name = "/".join(map(str, path))
        if not isinstance(value, (list, tuple)) or len(value) != 2 or not all(map(_is_finite, value)):
            raise ValueError(
                f"PB2: hyperparam_bounds {name!r} is {value!r}; it must be [lowest, highest], two numbers"
            )
        if value[0] > value[1]:
            raise ValueError(
                f"PB2: hyperparam_bounds {name!r} is {value!r}; the lowest value comes first, so "
                f"[{value[1]}, {value[0]}]"
            )
        found.append((path, (float(value[0]), float(value[1]))))
    return found


def _is_finite(value: object) -> bool:
    return isinstance(value, (int, float, Real)) and type(value) is not bool and math.isfinite(value)


def _as_mutations(bounds: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _as_mutations(value) if isinstance(value, Mapping) else uniform(float(value[0]), float(value[1]))
        for key, value in bounds.items()
    }


def _replaced(config: Mapping[str, Any], path: Path, value: float) -> Config:
    """Return a copy with this value, of the type of the old one."""
    key = path[0]
    if len(path) > 1:
        return {**config, key: _replaced(config.get(key, {}), path[1:], value)}
    old = config.get(key)
    is_whole = isinstance(old, Integral) and not isinstance(old, bool)
    return {**config, key: round(value) if is_whole else value}
