"""What users train: the Trainable class, functions, their parameters, resources and names."""

from __future__ import annotations

from muster.tune.trainable.parameters import with_parameters
from muster.tune.trainable.resources import with_resources
from muster.tune.trainable.trainable import Trainable

__all__ = ["Trainable", "with_parameters", "with_resources"]
