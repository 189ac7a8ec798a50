"""A class trainable that exports its model when a trial ends well: `tune.run(export_formats=...)`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from muster.tune.trainable.function_trainable import is_trainable_class
from muster.tune.trainable.registry import trainable_name


def with_export(trainable: Any, formats: Sequence[str]) -> Any:  # noqa: ANN401 - function or class
    """A class of the same name that calls `export_model` before it is cleaned up, into the trial's directory.

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
