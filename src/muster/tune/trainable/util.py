"""Ray's import path of with_parameters and with_resources."""

from __future__ import annotations

from muster.tune.trainable.parameters import with_parameters
from muster.tune.trainable.resources import with_resources

__all__ = ["with_parameters", "with_resources"]
