"""The domains of a search space and their samplers; Ray's import path for them."""

from __future__ import annotations

from muster.base.lazy import lazy_names

# The functions that make domains are in `space`, which imports this module.
__getattr__, __dir__ = lazy_names(
    __name__,
    dict.fromkeys(
        (
            "choice",
            "lograndint",
            "loguniform",
            "qlograndint",
            "qloguniform",
            "qrandint",
            "qrandn",
            "quniform",
            "randint",
            "randn",
            "sample_from",
            "uniform",
        ),
        "muster.tune.search.space",
    ),
)
