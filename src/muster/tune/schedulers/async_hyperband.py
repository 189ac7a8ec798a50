"""Ray's module path of ASHA."""

from muster.tune.schedulers.asha import ASHAScheduler, AsyncHyperBandScheduler

__all__ = ["ASHAScheduler", "AsyncHyperBandScheduler"]
