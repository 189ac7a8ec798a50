"""Create schedulers and searchers by short names, with equal settings for a problem.

Used by benchmarks, crash tests and `muster sim tune --scheduler`. One that is not installed raises
`NotInstalled` with the reason, so that a comparison can leave it out and report that.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from muster.errors import TuneError


class NotInstalled(TuneError):
    """NotInstalled means that a scheduler or searcher cannot be used here; the message has the reason."""


@dataclass(frozen=True, kw_only=True)
class CandidateSettings:
    """What every candidate is set up with."""

    max_t: int = 81
    eta: float | None = 3  # None: each scheduler's own default
    seed: int = 0
    space: Mapping[str, Any] = field(default_factory=dict)  # schedulers that change configs need it


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One scheduler; `parameters` returns its defaults, and a user's own override them."""

    kind: str  # the class
    parameters: Callable[[CandidateSettings], dict[str, Any]]
    needs_no_searcher: bool = False  # it changes configs itself and refuses trials of a searcher

    def make(self, settings: CandidateSettings, more: Mapping[str, Any] | None = None) -> Any:  # noqa: ANN401 - a scheduler
        """Create the scheduler."""
        kind = getattr(importlib.import_module("muster.tune.schedulers"), self.kind)
        taken = inspect.signature(kind).parameters
        own = {name: value for name, value in self.parameters(settings).items() if name in taken}
        return kind(**{**own, **(more or {})})


def _halving(**more: Any) -> Callable[[CandidateSettings], dict[str, Any]]:  # noqa: ANN401 - further parameters
    def parameters(settings: CandidateSettings) -> dict[str, Any]:
        factor = {} if settings.eta is None else {"reduction_factor": settings.eta}
        return {"max_t": settings.max_t, "seed": settings.seed, **factor, **more}

    return parameters


def _median(settings: CandidateSettings) -> dict[str, Any]:
    return {
        "time_attr": "training_iteration",
        "grace_period": max(1, settings.max_t // 9),
        "seed": settings.seed,
    }


def _population(**more: Any) -> Callable[[CandidateSettings], dict[str, Any]]:  # noqa: ANN401
    def parameters(settings: CandidateSettings) -> dict[str, Any]:
        from muster.tune.search.sample import Domain, Float

        ranges = {name: domain for name, domain in settings.space.items() if isinstance(domain, Float)}
        return {
            "time_attr": "training_iteration",
            "perturbation_interval": max(1, settings.max_t // 10),
            "hyperparam_mutations": {
                name: domain for name, domain in settings.space.items() if isinstance(domain, Domain)
            },
            "hyperparam_bounds": {name: [domain.lower, domain.upper] for name, domain in ranges.items()},
            "log_config": False,
            "seed": settings.seed,
            **more,
        }

    return parameters


def _elastic(settings: CandidateSettings) -> dict[str, Any]:
    return {"base_scheduler": SCHEDULERS["asha"].make(settings), "seed": settings.seed}


SCHEDULERS: dict[str, Candidate] = {
    "fifo": Candidate(kind="FIFOScheduler", parameters=lambda settings: {}),
    "asha": Candidate(kind="ASHAScheduler", parameters=_halving()),
    "asha_promotion": Candidate(kind="ASHAScheduler", parameters=_halving(type="promotion")),
    "asha_brackets": Candidate(kind="ASHAScheduler", parameters=_halving(brackets=3)),
    "hyperband": Candidate(kind="HyperBandScheduler", parameters=_halving()),
    "bohb": Candidate(kind="HyperBandForBOHB", parameters=_halving()),
    "median": Candidate(kind="MedianStoppingRule", parameters=_median),
    "pbt": Candidate(kind="PopulationBasedTraining", parameters=_population(), needs_no_searcher=True),
    "pbt_synch": Candidate(
        kind="PopulationBasedTraining", parameters=_population(synch=True), needs_no_searcher=True
    ),
    "pb2": Candidate(kind="PB2", parameters=_population(), needs_no_searcher=True),
    "resource_changing": Candidate(kind="ResourceChangingScheduler", parameters=_elastic),
}


def make_searcher(name: str, seed: int) -> Any:  # noqa: ANN401 - a Searcher, a SearchAlgorithm, or None: random
    """Create a searcher; None for "random": the experiment then has its own variant generator."""
    if name == "random":
        return None
    from muster.tune.search import create_searcher

    try:
        return create_searcher(name, seed=seed)
    except ImportError as error:
        raise NotInstalled(f"the searcher {name!r} cannot be used here: {error}") from error
    except ValueError as error:
        raise NotInstalled(str(error)) from error
