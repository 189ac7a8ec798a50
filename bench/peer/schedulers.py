"""Run Ray Tune's schedulers as black boxes on our simulated engine.

Their hooks are called as their own controller calls them, with our trials and our view, which have the names
that Ray documents for them. Only what a scheduler answers is Ray's; trials, configs and time are those of the
other candidates.
"""

from __future__ import annotations

import logging
from typing import Any

from muster.sim.tune.candidates import CandidateSettings

NAMES = ("asha", "hyperband", "median", "pbt")


def scheduler(name: str, settings: CandidateSettings) -> Any:
    """Create the scheduler with the parameters that ours gets."""
    from ray.tune import schedulers

    logging.getLogger("ray.tune").setLevel(logging.ERROR)
    if name == "asha":
        return schedulers.ASHAScheduler(max_t=settings.max_t, reduction_factor=settings.eta)
    if name == "hyperband":
        return schedulers.HyperBandScheduler(max_t=settings.max_t, reduction_factor=settings.eta)
    if name == "median":
        return schedulers.MedianStoppingRule(
            time_attr="training_iteration", grace_period=max(1, settings.max_t // 9)
        )
    if name == "pbt":
        from bench.peer.population import population

        return population(settings)
    raise ValueError(f"no black box {name!r}")
