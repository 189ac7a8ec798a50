"""Replay the results of an earlier experiment as a curve that simulated trials follow.

Read from the directory of an experiment (ours or Ray Tune's: `<trial>/result.json`) or from one file with the
same rows. A trial with a recorded config does what was recorded; one with a new config does what the nearest
recorded one did. Where the record of a trial ends, the simulated trial ends.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from muster.errors import ConfigError
from muster.host.regular_file import read_regular
from muster.sim.tune.trial import Config, Curve, Metrics
from muster.trials.metrics import DEBUG_METRICS, flatten, is_number
from muster.trials.model import Trial
from muster.trials.template import TrialTemplate
from muster.tune.analysis.result_files import parse_json_lines
from muster.tune.search.search_algorithm import Experiments, SearchAlgorithm, as_templates

RESULTS = "result.json"
_AUTOMATIC = frozenset(
    {*DEBUG_METRICS, "config", "done", "trial_id", "training_iteration", "hostname", "date"}
)
_LOG_FROM = 100.0  # a parameter whose values span so many times its least is compared by its logarithm


class RecordedTrial(Struct, frozen=True):
    """One trial of the earlier experiment; `rows` and `seconds` by iteration."""

    trial_id: str
    config: Mapping[str, Any]
    rows: tuple[Mapping[str, Any], ...]
    seconds: tuple[float, ...]
    has_failed: bool = False  # after its last row


class RecordedCurve(Curve):
    """Repeats the recorded trial with the same, or the nearest, config."""

    def __init__(self, trials: Sequence[RecordedTrial]) -> None:
        self.trials = tuple(trials)
        self._flat = [flatten(dict(trial.config)) for trial in trials]
        self._scales = _scales(self._flat)
        self._known: dict[str, RecordedTrial] = {}
        for trial, flat in zip(trials, self._flat, strict=True):
            self._known.setdefault(self._key(flat), trial)
        self.nearest = 0  # how many configs were not recorded

    @property
    def longest(self) -> int:
        return max(len(trial.rows) for trial in self.trials)

    def iterations(self, config: Config) -> int:
        return len(self.followed(config).rows)

    def seconds(self, config: Config, iteration: int) -> float:
        return self.followed(config).seconds[iteration - 1]

    def metrics(self, config: Config, iteration: int) -> Metrics:
        return self.followed(config).rows[iteration - 1]

    def followed(self, config: Config) -> RecordedTrial:
        """Return the recorded trial with equal values of all parameters that vary; else the nearest.

        Distance: the sum over those parameters of |a - b| / range for numbers (of logarithms, when the range
        is wide), 0 or 1 for everything else, 1 for a parameter that is missing. Of several, the first.
        """
        flat = flatten(dict(config))
        key = self._key(flat)
        found = self._known.get(key)
        if found is None:
            self.nearest += 1
            scales = self._scales.items()
            far = [
                sum(_apart(flat.get(name), other.get(name), scale) for name, scale in scales)
                for other in self._flat
            ]
            found = self._known[key] = self.trials[far.index(min(far))]
        return found

    def _key(self, flat: Mapping[str, Any]) -> str:
        return repr([flat.get(name) for name in self._scales])


Scale = tuple[float, bool] | None  # range and whether of logarithms; None: not a number


def _scales(flat: Sequence[Mapping[str, Any]]) -> dict[str, Scale]:
    """Return the parameters that vary, by name, and how their values are compared."""
    names = dict.fromkeys(name for config in flat for name in config)
    scales: dict[str, Scale] = {}
    for name in names:
        values = [config.get(name) for config in flat]
        if len({repr(value) for value in values}) > 1 or len(flat) == 1:
            scales[name] = _scale([value for value in values if is_number(value)], len(values))
    return scales


def _scale(numbers: Sequence[Any], count: int) -> Scale:
    if len(numbers) < count or max(numbers) == min(numbers):
        return None
    low, high = min(numbers), max(numbers)
    if low > 0 and high / low >= _LOG_FROM:
        return math.log(high / low), True
    return float(high - low), False


def _apart(one: Any, other: Any, scale: Scale) -> float:  # noqa: ANN401 - users' values
    if scale is None or not is_number(one) or not is_number(other):
        return 0.0 if one == other else 1.0
    span, is_log = scale
    if is_log:
        return abs(math.log(max(one, 1e-300) / max(other, 1e-300))) / span
    return float(abs(one - other) / span)


def read_trace(path: str) -> RecordedCurve:
    """Read a trace; a ConfigError has what is missing and what to give instead."""
    place = Path(path)
    files = sorted(place.rglob(RESULTS)) if place.is_dir() else [place]
    if not place.exists():
        raise ConfigError(f"--trace {path}: no such file, directory or synthetic problem")
    trials = [trial for file in files for trial in _trials(file)]
    if not trials:
        raise ConfigError(
            f"--trace {path}: holds no results. Give the directory of an experiment whose trials have a "
            f"{RESULTS} (the JSON logger is on by default), or a file with rows of that kind"
        )
    return RecordedCurve(trials)


def _trials(file: Path) -> Iterable[RecordedTrial]:
    try:
        rows = parse_json_lines(read_regular(file).decode())
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"--trace {file}: not one JSON object per line ({error})",
            fix=f"give a {RESULTS} or its directory",
        ) from error
    by_trial: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if not isinstance(row, dict) or not isinstance(row.get("config"), dict):
            raise ConfigError(
                f"--trace {file}: a row has no 'config', so this is not a {RESULTS}: {json.dumps(row)[:80]}"
            )
        by_trial.setdefault(str(row.get("trial_id", file.parent.name)), []).append(row)
    return [_trial(trial_id, found) for trial_id, found in by_trial.items()]


def _trial(trial_id: str, rows: Sequence[Mapping[str, Any]]) -> RecordedTrial:
    """Keep the last row of each iteration: a trial that was restarted repeated some."""
    kept = {int(row.get("training_iteration", number + 1)): row for number, row in enumerate(rows)}
    ordered = [kept[iteration] for iteration in sorted(kept)]
    metrics = tuple({key: value for key, value in row.items() if key not in _AUTOMATIC} for row in ordered)
    return RecordedTrial(trial_id, ordered[0]["config"], metrics, tuple(_seconds(ordered)))


def _seconds(rows: Sequence[Mapping[str, Any]]) -> Iterable[float]:
    before = 0.0
    for row in rows:
        total = row.get("time_total_s")
        seconds = row.get("time_this_iter_s", total - before if is_number(total) else 1.0)
        before = total if is_number(total) else before
        yield max(0.0, float(seconds)) if is_number(seconds) else 1.0


class RecordedConfigs(SearchAlgorithm):
    """A RecordedConfigs search suggests these configs once each."""

    def __init__(self, configs: Sequence[Mapping[str, Any]]) -> None:
        self._configs = [dict(config) for config in configs]
        self._next = 0
        self._template: TrialTemplate | None = None

    @property
    def total_samples(self) -> int:
        return len(self._configs)

    def add_configurations(self, experiments: Experiments) -> None:
        self._template = as_templates(experiments)[0]

    def next_trial(self) -> Trial | None:
        if self._template is None or self.is_finished():
            return None
        number, self._next = self._next, self._next + 1
        config = self._configs[number]
        return self._template.make(f"sim_{number:05d}", dict(config), flatten(config), str(number))

    def is_finished(self) -> bool:
        return self._next >= len(self._configs)

    def set_finished(self) -> None:
        self._next = len(self._configs)

    def save_state(self) -> bytes:
        return json.dumps({"next": self._next}).encode()

    def restore_state(self, state: bytes) -> None:
        self._next = json.loads(state)["next"]
