"""Raise an ImportError that explains why HEBOSearch is left out: HEBO no longer installs."""

from __future__ import annotations

from typing import Any

from muster.errors import public

WHY_NOT = (
    "HEBOSearch is left out: HEBO 0.3.6, the newest, needs numpy below 1.25, which has no build for "
    "Python 3.12 and does not go with current numpy, pandas and torch. "
    "Use OptunaSearch (its GPSampler) or AxSearch"
)


@public
def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name == "HEBOSearch":
        raise ImportError(WHY_NOT)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
