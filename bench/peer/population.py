"""Run Ray's PopulationBasedTraining as a black box on our simulated engine, through a thin adapter.

Everything that decides is Ray's: who exploits whom, when, and with which new values. The adapter gives it
trials with the attributes it asks for (found by running it and noting what it reads and sets) and carries out
what it set. Where Ray's controller waits until a donor has saved, here only the one that exploits does.
"""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, NamedTuple

from muster.sim.tune.candidates import CandidateSettings
from muster.trials.model import CheckpointRef, Trial
from muster.trials.states import TrialState
from muster.tune.schedulers import TrialScheduler
from muster.tune.search.sample import Categorical, Domain, Float, Integer


class Saving(NamedTuple):
    """Stands for the checkpoint that Ray requested: which one it will be."""

    donor: Trial
    index: int


class PeerTrial:
    """One of our trials as Ray's scheduler wants it; Ray writes its changes here."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.run_metadata = SimpleNamespace(
            checkpoint_manager=SimpleNamespace(
                checkpoint_config=SimpleNamespace(num_to_keep=None), _latest_checkpoint_result=None
            )
        )
        self.new_config: dict[str, Any] | None = None
        self.is_pausing = False  # asked for in this very hook
        self.is_hidden = False  # its donor has not saved yet

    @property
    def status(self) -> str:
        if self.is_hidden:
            return "RUNNING"
        return "PAUSED" if self.is_pausing else self.trial.status

    def set_config(self, config: dict[str, Any]) -> None:
        self.new_config = config

    def set_experiment_tag(self, tag: str) -> None:
        self.trial.experiment_tag = tag

    @property
    def wanted(self) -> Saving | CheckpointRef | None:
        """Return the checkpoint to resume from."""
        given = self.run_metadata.checkpoint_manager._latest_checkpoint_result
        return None if given is None else given.checkpoint

    def settled(self) -> None:
        self.run_metadata.checkpoint_manager._latest_checkpoint_result = None
        self.new_config, self.is_pausing, self.is_hidden = None, False, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.trial, name)

    def __repr__(self) -> str:
        return str(self.trial)


class PeerController:
    """What Ray's scheduler gets as its controller."""

    def __init__(self, view: Any, known: dict[str, PeerTrial]) -> None:
        self._view, self._known = view, known
        self.search_alg = view.search_alg

    def get_trials(self) -> list[PeerTrial]:
        return [self._known[trial.trial_id] for trial in self._view.get_trials()]

    def get_live_trials(self) -> list[PeerTrial]:
        return [one for one in self.get_trials() if not one.is_finished()]

    def pause_trial(self, peer: PeerTrial, should_checkpoint: bool = True) -> None:
        peer.is_pausing = True
        self._view.pause_trial(peer.trial, should_checkpoint)

    def _schedule_trial_save(self, peer: PeerTrial, *_: Any, **__: Any) -> Saving:
        self._view._schedule_trial_save(peer.trial)
        return Saving(peer.trial, peer.trial.checkpoint_index + 1)

    def has_resources_for_trial(self, peer: PeerTrial) -> bool:
        return self._view.has_resources_for_trial(peer.trial)


class PeerPopulation(TrialScheduler):
    """Our scheduler interface around Ray's scheduler."""

    def __init__(self, boxed: Any) -> None:
        self._boxed = boxed
        self._known: dict[str, PeerTrial] = {}
        self.num_exploits = 0

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        return self._boxed.set_search_properties(metric, mode, **spec)

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        peer = self._known.setdefault(trial.trial_id, PeerTrial(trial))
        self._boxed.on_trial_add(self._controller(tune_controller), peer)

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        peer = self._known[trial.trial_id]
        decision = self._boxed.on_trial_result(self._controller(tune_controller), peer, result)
        return self.NOOP if peer.is_pausing else decision

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        controller = self._controller(tune_controller)
        self._boxed.on_trial_complete(controller, self._known[trial.trial_id], result)

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        self._boxed.on_trial_error(self._controller(tune_controller), self._known[trial.trial_id])

    def on_trial_remove(self, tune_controller: Any, trial: Trial) -> None:
        self._boxed.on_trial_remove(self._controller(tune_controller), self._known[trial.trial_id])

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        for peer in self._known.values():
            if peer.wanted is not None:
                self._carry_out(tune_controller, peer)
        chosen = self._boxed.choose_trial_to_run(self._controller(tune_controller))
        return None if chosen is None else chosen.trial

    def debug_string(self) -> str:
        return f"{self._boxed.debug_string()}; {self.num_exploits} carried out"

    def _controller(self, view: Any) -> PeerController:
        return PeerController(view, self._known)

    def _carry_out(self, view: Any, peer: PeerTrial) -> None:
        """Apply changes once the trial waits and the checkpoint exists; until then Ray does not see it."""
        checkpoint = _made(peer.wanted)
        peer.is_hidden = checkpoint is None or peer.trial.state is not TrialState.PAUSED
        if peer.is_hidden or checkpoint is None:
            return
        if peer.new_config is not None:
            peer.trial.config = peer.new_config
        view.adopt_checkpoint(peer.trial, checkpoint)
        peer.settled()
        self.num_exploits += 1


def _made(wanted: Saving | CheckpointRef | None) -> CheckpointRef | None:
    """Return the checkpoint once it exists; the oldest of the later ones when it was deleted meanwhile."""
    if not isinstance(wanted, Saving):
        return wanted
    made = [one for one in wanted.donor.checkpoints if one.index >= wanted.index]
    return min(made, key=lambda one: one.index, default=None)


def population(settings: CandidateSettings) -> PeerPopulation:
    """Create it with the parameters that ours gets; seeds the global generators that Ray draws from."""
    import numpy as np
    from ray.tune.schedulers import PopulationBasedTraining

    random.seed(settings.seed)
    np.random.seed(settings.seed)
    return PeerPopulation(
        PopulationBasedTraining(
            time_attr="training_iteration",
            perturbation_interval=max(1, settings.max_t // 10),
            hyperparam_mutations={
                name: _domain(domain) for name, domain in settings.space.items() if isinstance(domain, Domain)
            },
            log_config=False,
        )
    )


def _domain(ours: Domain) -> Any:
    """The same domain by Ray's name; the problems have no others.

    Choices are given as lists, whose neighbours Ray takes, as ours does; `tune.choice` of text raises there.
    """
    from ray import tune

    if isinstance(ours, Categorical):
        return list(ours.categories)
    if isinstance(ours, Integer):
        return tune.randint(ours.lower, ours.upper)
    assert isinstance(ours, Float)
    is_log = "log" in type(ours.get_sampler()).__name__.lower()
    return (tune.loguniform if is_log else tune.uniform)(ours.lower, ours.upper)
