"""Applies a CheckpointConfig to one trainable: defaults that depend on it, and what it does not support."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from muster.host.machine import environment
from muster.trials.model import CheckpointPolicy
from muster.tune.config import CheckpointConfig
from muster.tune.trainable.function_trainable import is_function_trainable, is_trainable_class, trainable_name


def checkpoint_policy(trainable: Any, config: CheckpointConfig | None = None) -> CheckpointPolicy:  # noqa: ANN401
    """Returns what the controller is to do; ValueError for what this trainable does not support.

    Example:
        >>> checkpoint_policy(lambda config: None).at_end
        False
    """
    asked = config or CheckpointConfig()
    frequency, at_end = asked.checkpoint_frequency or 0, asked.checkpoint_at_end
    if is_function_trainable(trainable):
        _refuse_for_functions(trainable, frequency, at_end)
        at_end = False
    else:
        frequency = _own_handling(trainable, "_handles_checkpoint_freq", "checkpoint_frequency", frequency, 0)
        at_end = _own_handling(trainable, "_handles_checkpoint_at_end", "checkpoint_at_end", at_end, False)
        at_end = _can_save(trainable) if at_end is None else at_end
    return CheckpointPolicy(
        num_to_keep=asked.num_to_keep,
        score_attribute=asked.checkpoint_score_attribute,
        score_order=asked.checkpoint_score_order or "max",
        frequency=frequency,
        at_end=at_end,
        only_score=environment().get("TUNE_ONLY_STORE_CHECKPOINT_SCORE_ATTRIBUTE", "0") == "1",
    )


def _refuse_for_functions(function: object, frequency: int, at_end: bool | None) -> None:
    if not frequency and not at_end:
        return
    option = f"checkpoint_frequency={frequency}" if frequency else "checkpoint_at_end=True"
    raise ValueError(
        f"CheckpointConfig({option}) is for class trainables; {trainable_name(function)} is a function and "
        "makes its checkpoints itself: tune.report(metrics, checkpoint=...)"
    )


def _can_save(kind: object) -> bool:
    """Returns whether a class defines `save_checkpoint`; the base class has one that only raises."""
    save = getattr(kind, "save_checkpoint", None)
    return save is not None and not str(save.__module__).startswith("muster.tune.trainable.")


def _own_handling(kind: object, attribute: str, option: str, value: Any, off: Any) -> Any:  # noqa: ANN401
    """Returns `value`, or `off` for a class that handles the option itself; ValueError if it cannot."""
    handles = getattr(kind, attribute, None)
    if handles is None:
        return value
    if not handles and value:
        raise ValueError(
            f"CheckpointConfig({option}={value!r}): {trainable_name(kind)} does not support it; leave it out"
        )
    return off


def with_export(trainable: Any, formats: Sequence[str]) -> Any:  # noqa: ANN401 - function or class
    """Returns a class of the same name that calls `export_model`, into the trial's directory, before cleanup.

    A function stays as it is: it has no model to ask for.
    """
    if not is_trainable_class(trainable):
        return trainable

    class Exporting(trainable):  # type: ignore[misc]  # a base that is known only now
        def setup(self, config: dict[str, Any]) -> None:
            self._export_dir = self.logdir  # at the end, the trial is over and has no directory any more
            self._is_sound = False
            super().setup(config)

        def step(self) -> dict[str, Any]:
            self._is_sound = False
            result: dict[str, Any] = super().step()
            self._is_sound = True
            return result

        def cleanup(self) -> None:
            try:
                if self._is_sound:
                    self.export_model(list(formats), self._export_dir)
            finally:
                super().cleanup()

    Exporting.__name__ = trainable_name(trainable)
    Exporting.__qualname__ = trainable.__qualname__
    Exporting.__doc__ = trainable.__doc__
    return Exporting
