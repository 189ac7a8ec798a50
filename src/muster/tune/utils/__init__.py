"""Exports Ray's `tune.utils`; each name is loaded when it is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from muster.base.lazy import lazy_names

if TYPE_CHECKING:
    from muster.tune.utils.util import (
        date_str,
        deep_update,
        diagnose_serialization,
        flatten_dict,
        merge_dicts,
        unflattened_lookup,
        validate_save_restore,
        wait_for_gpu,
        warn_if_slow,
    )

__all__ = [
    "date_str",
    "deep_update",
    "diagnose_serialization",
    "flatten_dict",
    "merge_dicts",
    "unflattened_lookup",
    "validate_save_restore",
    "wait_for_gpu",
    "warn_if_slow",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "date_str": ".util",
        "deep_update": ".util",
        "diagnose_serialization": ".util",
        "flatten_dict": ".util",
        "merge_dicts": ".util",
        "unflattened_lookup": ".util",
        "validate_save_restore": ".util",
        "wait_for_gpu": ".util",
        "warn_if_slow": ".util",
    },
)
