"""Export Ray's `tune.utils`; each name is loaded when it is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from muster.base.lazy import lazy_names

if TYPE_CHECKING:
    from muster.tune.utils.util import date_str as date_str
    from muster.tune.utils.util import deep_update as deep_update
    from muster.tune.utils.util import diagnose_serialization as diagnose_serialization
    from muster.tune.utils.util import flatten_dict as flatten_dict
    from muster.tune.utils.util import merge_dicts as merge_dicts
    from muster.tune.utils.util import unflattened_lookup as unflattened_lookup
    from muster.tune.utils.util import validate_save_restore as validate_save_restore
    from muster.tune.utils.util import wait_for_gpu as wait_for_gpu
    from muster.tune.utils.util import warn_if_slow as warn_if_slow
else:
    from muster.tune.older_modules import with_older_names

    _load, __dir__, __all__ = lazy_names(
        __name__,
        {
            ".util": [
                *("date_str", "deep_update", "diagnose_serialization", "flatten_dict", "merge_dicts"),
                *("unflattened_lookup", "validate_save_restore", "wait_for_gpu", "warn_if_slow"),
            ]
        },
    )
    __getattr__ = with_older_names(_load, "utils.")
