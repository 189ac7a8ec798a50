"""Export the Trainable class and the functions that add parameters and resources to a trainable."""

from __future__ import annotations

from typing import TYPE_CHECKING

from muster.base.lazy import lazy_names

if TYPE_CHECKING:
    from muster.tune.trainable.trainable import Trainable as Trainable
    from muster.tune.trainable.util import with_parameters as with_parameters
    from muster.tune.trainable.util import with_resources as with_resources
    from muster.tune.trainable.wrapped_function import FunctionTrainable as FunctionTrainable
    from muster.tune.trainable.wrapped_function import wrap_function as wrap_function
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            ".trainable": ["Trainable"],
            ".util": ["with_parameters", "with_resources"],
            ".wrapped_function": ["FunctionTrainable", "wrap_function"],
        },
    )
