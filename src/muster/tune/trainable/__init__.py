"""What users train: the Trainable class, functions, their parameters, resources and names."""

from __future__ import annotations

from muster.tune.trainable.trainable import Trainable
from muster.tune.trainable.util import with_parameters, with_resources

__all__ = ["Trainable", "with_parameters", "with_resources"]
