"""Exports the Trainable class and the functions that add parameters and resources to a trainable."""

from __future__ import annotations

from typing import TYPE_CHECKING

from muster.base.lazy import lazy_names

if TYPE_CHECKING:
    from muster.tune.trainable.trainable import Trainable
    from muster.tune.trainable.util import with_parameters, with_resources

__all__ = ["Trainable", "with_parameters", "with_resources"]

__getattr__, __dir__ = lazy_names(
    __name__, {"Trainable": ".trainable", "with_parameters": ".util", "with_resources": ".util"}
)
