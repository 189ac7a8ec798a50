"""RecordedConfigs: the search that a trace answers exactly: its own configs, in the order of the trace."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from muster.trials.model import Trial
from muster.trials.results import flatten
from muster.trials.template import TrialTemplate
from muster.tune.search.search_algorithm import Experiments, SearchAlgorithm, as_templates


class RecordedConfigs(SearchAlgorithm):
    """Hands out these configs once each."""

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
