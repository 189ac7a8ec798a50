"""Define what the trials of one experiment share; search algorithms make trials from it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct, field

from muster.base.text import encodable
from muster.trials.model import FailurePolicy, Trial, TrialPolicies
from muster.trials.placement_group import PlacementGroupFactory

TrialNamer = Callable[[Trial], str]
ResourceChooser = Callable[[Mapping[str, Any]], PlacementGroupFactory]

LONGEST_DIRNAME = 250  # bytes, of the 255 that file systems take: equal names get a suffix
SUSPEND_GRACE_S = 2.0  # a trial that must leave has so long to stop, and so long again after SIGTERM


class TrialTemplate(Struct, frozen=True, kw_only=True):
    """One experiment, resolved: what to run, the search space, the policies of trials."""

    trainable_name: str
    param_space: Mapping[str, Any] = field(default_factory=dict)
    num_samples: int = 1  # -1: no end
    resources: PlacementGroupFactory | ResourceChooser | None = None  # a function is given the trial's config
    stopping_criterion: Mapping[str, Any] = field(default_factory=dict)
    policies: TrialPolicies = TrialPolicies()
    export_formats: tuple[str, ...] = ()
    trial_name_creator: TrialNamer | None = None
    trial_dirname_creator: TrialNamer | None = None

    @property
    def samples(self) -> int:
        """`num_samples` as a count: -1 stands for a number that is never reached."""
        return sys.maxsize if self.num_samples == -1 else self.num_samples

    def make(
        self, trial_id: str, config: dict[str, Any], evaluated_params: Mapping[str, Any], tag: str
    ) -> Trial:
        """Make a PENDING trial that owns `config`; user functions name it and choose its resources."""
        resources = self.resources(config) if callable(self.resources) else self.resources
        trial = Trial(
            self.trainable_name,
            trial_id=trial_id,
            config=config,
            evaluated_params=evaluated_params,
            experiment_tag=tag,
            placement_group_factory=resources,
            stopping_criterion=dict(self.stopping_criterion),
            export_formats=list(self.export_formats),
            policies=self.policies,
        )
        if self.trial_name_creator is not None:
            trial.custom_trial_name = _checked_text(self.trial_name_creator(trial), "trial_name_creator")
        if self.trial_dirname_creator is not None:
            trial.custom_dirname = _checked_dirname(self.trial_dirname_creator(trial))
        return trial


def _checked_text(name: str, creator: str) -> str:
    if not isinstance(name, str):
        raise ValueError(f"{creator} returned {name!r}: it must return a text; use str(...)")
    return name


def _checked_dirname(name: str) -> str:
    _checked_text(name, "trial_dirname_creator")
    if os.sep in name:
        raise ValueError(
            f"trial_dirname_creator returned {name!r}: a trial's directory name must not contain {os.sep!r}; "
            "replace it in the function"
        )
    if (size := len(encodable(name).encode())) > LONGEST_DIRNAME:
        raise ValueError(f"trial_dirname_creator returned {size} bytes: shorten them to {LONGEST_DIRNAME}")
    return name


class Limits(Struct, frozen=True, kw_only=True):
    """What an experiment may cost, in $ over all its runs, and when it must be over."""

    cost_budget: float | None = None
    deadline: float | None = None  # seconds since the epoch

    def __bool__(self) -> bool:
        return self.cost_budget is not None or self.deadline is not None


class Settings(Struct, frozen=True, kw_only=True):
    """Resolved from TuneConfig and RunConfig; a restart does not change them."""

    name: str
    experiment_dir: str = ""
    metric: str | None = None
    mode: str | None = None
    failure: FailurePolicy = FailurePolicy()
    reuse_actors: bool = False
    max_pending: int = 200  # trials asked from the searcher ahead of the resources to run them
    strict_metrics: bool = True
    result_buffer: tuple[int, float, float] = (1, 0.0, 100.0)  # sent together: how many, least and most s
    idle_warning_s: tuple[float, float] = (60.0, 60.0)  # nothing runs: on a fixed size, on one that may grow
    max_len_identifier: int = 130  # of the name of a trial's directory, before its date
    trial_time_limit_s: float | None = None
    stop_grace_s: float = 10.0  # of a trial that stops when nothing else runs any more
    force_cleanup_s: float = 10.0  # while others run
    limits: Limits = Limits()  # of all its runs together; a restore may be given others
