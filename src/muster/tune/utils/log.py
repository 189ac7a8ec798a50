"""Define Ray's verbosity levels; RunConfig(verbose=...) decides what muster shows."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["Verbosity", "disable_ipython", "has_verbosity", "set_verbosity"]


class Verbosity(IntEnum):
    """Ray's levels."""

    V0_MINIMAL = 0
    V1_EXPERIMENT = 1
    V2_TRIAL_NORM = 2
    V3_TRIAL_DETAILS = 3


_level = [Verbosity.V3_TRIAL_DETAILS]


def set_verbosity(level: int | Verbosity) -> None:
    """Set what `has_verbosity` answers; the verbose of a run decides what that run shows."""
    _level[0] = Verbosity(level)


def has_verbosity(level: int | Verbosity) -> bool:
    """Return whether the level that was set is at least this one."""
    return _level[0].value >= Verbosity(level).value


def disable_ipython() -> None:
    """Do nothing: muster's output knows notebooks by itself."""
