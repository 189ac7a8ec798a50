"""The Optuna sampler of an OptunaSearch: checked, and with a random state that can be saved."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from muster.errors import ConfigError

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler

logger = logging.getLogger(__name__)


def require_optuna(with_constraints: bool) -> None:
    try:
        import optuna
    except ImportError as error:
        raise ConfigError('OptunaSearch needs optuna: pip install "muster[optuna]"') from error
    if with_constraints and not hasattr(optuna.Trial, "set_constraint"):
        raise ConfigError(
            f"OptunaSearch: `constraints` needs Optuna 5, and this is {optuna.__version__}: upgrade it, "
            "or give the sampler a `constraints_func`"
        )


def checked_sampler(sampler: BaseSampler | None, seed: int | None) -> BaseSampler:
    from optuna.samplers import BaseSampler, TPESampler

    if sampler is None:
        sampler = TPESampler(seed=seed)
    elif not isinstance(sampler, BaseSampler):
        raise AssertionError(f"sampler must be an Optuna sampler, not {sampler!r}")
    elif seed is not None:
        logger.warning("OptunaSearch: `seed` is for the default sampler; give it to your sampler instead")
    _wake_random(sampler)
    return sampler


def _wake_random(sampler: BaseSampler) -> None:
    """Make lazily seeded random states now: a copy made before the first draw would draw otherwise."""
    from optuna.samplers import BaseSampler

    for part in vars(sampler).values():
        if isinstance(part, BaseSampler):
            _wake_random(part)
        elif type(part).__name__ == "LazyRandomState" and part._rng is None:
            # As Optuna does with a seed: such a state is saved in the same bytes after it was restored.
            part.rng.seed(int.from_bytes(os.urandom(4), "little"))
