"""Whether a trial has reached its end by the criteria on its own results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muster.trials.model import Trial


def reached_criterion(trial: Trial, flat: Mapping[str, Any]) -> bool:
    """`done`, or any criterion whose key was reported and whose threshold is reached.

    Raises TypeError for a threshold or a value that cannot be compared: the message names the key.
    """
    if flat.get("done"):
        return True
    for key, threshold in trial.stopping_criterion.items():
        if key not in flat:
            continue
        value = flat[key]
        if isinstance(threshold, dict) or value is None or isinstance(value, (str, dict)):
            raise TypeError(
                f"stop criterion {key!r}: {value!r} cannot be compared with {threshold!r}. "
                f"Nested metrics are written flat, e.g. {{'a/b': 1}}."
            )
        if value >= threshold:
            return True
    return False


def missing_criteria(trial: Trial, flat: Mapping[str, Any]) -> list[str]:
    """Criteria that this result says nothing about: worth one warning."""
    return [key for key in trial.stopping_criterion if key not in flat]
