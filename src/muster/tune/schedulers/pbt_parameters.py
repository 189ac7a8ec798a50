"""What PopulationBasedTraining was asked for, checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from muster.errors import TuneError
from muster.tune.schedulers.pbt_explore import Chances, Config, check_mutations

Explore = Callable[[Config], Config]


class PbtParameters(NamedTuple):
    """Ray's parameters without metric and mode, and our seed."""

    perturbation_interval: float
    burn_in_period: float
    hyperparam_mutations: Mapping[str, Any]
    quantile_fraction: float
    resample_probability: float
    perturbation_factors: Sequence[float]
    custom_explore_fn: Explore | None
    log_config: bool
    require_attrs: bool
    synch: bool
    seed: int | None

    @property
    def chances(self) -> Chances:
        return Chances(self.resample_probability, self.perturbation_factors)

    def check(self, name: str) -> PbtParameters:
        check_mutations(self.hyperparam_mutations, f"{name}: hyperparam_mutations")
        if not self.hyperparam_mutations and self.custom_explore_fn is None:
            raise TuneError(
                f"{name} has nothing to change: pass hyperparam_mutations={{'lr': tune.loguniform(1e-4, 1)}} "
                "or a custom_explore_fn that takes a configuration and returns a new one"
            )
        if not 0 <= self.quantile_fraction <= 0.5:
            raise ValueError(
                f"{name}: quantile_fraction is {self.quantile_fraction}; it must be between 0 and 0.5, "
                "because nobody can be among the best and the worst"
            )
        if not self.perturbation_interval > 0:
            raise ValueError(
                f"{name}: perturbation_interval is {self.perturbation_interval}; it must be above 0"
            )
        if not 0 <= self.resample_probability <= 1:
            raise ValueError(
                f"{name}: resample_probability is {self.resample_probability}; it must be between 0 and 1"
            )
        if not self.perturbation_factors:
            raise ValueError(f"{name}: perturbation_factors is empty; it must be like (1.2, 0.8)")
        return self
