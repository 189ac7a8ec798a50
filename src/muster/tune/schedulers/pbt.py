"""Implement population based training: bad trials continue from a changed copy of a good one.

Jaderberg et al., "Population Based Training of Neural Networks". Nothing here waits: a trial that is to
exploit another is paused until the other's checkpoint is there, and is changed when it may run again.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from muster.base.rng import Seed, Stream, global_generators_at
from muster.trials.metrics import TRAINING_ITERATION, in_words
from muster.trials.model import CheckpointRef, Trial
from muster.trials.plugins import COPIED, PAUSED, ControllerView, Milestone, RungToOpen
from muster.trials.states import TrialState
from muster.tune.plugin_state import Plain
from muster.tune.schedulers import pbt_explore
from muster.tune.schedulers.pbt_explore import Config, Member, PbtParameters, Population
from muster.tune.schedulers.pbt_policy import LogRow, PopulationBasedTrainingReplay, log_row
from muster.tune.schedulers.trial_scheduler import MetricScheduler, explain, first_waiting
from muster.tune.search.paths import copied

__all__ = ["PopulationBasedTraining", "PopulationBasedTrainingReplay"]  # Ray defines both here

logger = logging.getLogger(__name__)


class Exploit(NamedTuple):
    """A replacement that was decided and not done yet."""

    donor_id: str
    perturbed_at: float  # the donor
    trained: float
    newest: int  # of the donor's checkpoints then, or the one that was being made


class PopulationBasedTraining(MetricScheduler):
    """Replaces the worst members of a population by changed copies of the best.

    Args:
        time_attr: The result key that `perturbation_interval` and `burn_in_period` count; must grow.
        metric: The result key to compare; None: the experiment's.
        mode: "min" or "max"; None: the experiment's.
        perturbation_interval: How long a trial trains between two comparisons.
        burn_in_period: Nothing is changed before this time.
        hyperparam_mutations: What may change, and to what: a list of values in order (the new value is a
            neighbor), a domain or a function without arguments (a number is multiplied by one of
            `perturbation_factors`; one of `tune.choice` becomes a neighbor), or a dict of these.
        quantile_fraction: The share of the best, which are copied, and of the worst, which are replaced.
        resample_probability: How often a new value is drawn instead of changing the old one.
        perturbation_factors: What numbers are multiplied by.
        custom_explore_fn: Takes the changed configuration and returns the one to use.
        log_config: Write `pbt_global.txt`, and `pbt_policy_<trial id>.txt` for the replay.
        require_attrs: A result without metric or time is an error; if False it is ignored.
        synch: All trials wait for each other before any is changed.
        seed: Makes all draws repeatable, also those of a user's function from `random` or `numpy.random`.

    Example:
        >>> PopulationBasedTraining(
        ...     metric="score", mode="max", hyperparam_mutations={"lr": [0.1, 0.01]}
        ... ).debug_string()
        'PopulationBasedTraining: 0 checkpoints, 0 perturbs'
    """

    _state_kind = "pbt"
    _plain_attributes: ClassVar[tuple[str, ...]] = (
        *("_metric", "_mode", "_draws", "_num_checkpoints", "_num_perturbations"),
        *("_next_sync", "_sync_time", "_longest", "_has_new_results"),
    )
    _supports_buffered_results = False

    def __init__(  # noqa: PLR0913, PLR0917 - Ray's parameters, and a seed
        self,
        time_attr: str = "time_total_s",
        metric: str | None = None,
        mode: str | None = None,
        perturbation_interval: float = 60.0,
        burn_in_period: float = 0.0,
        hyperparam_mutations: Mapping[str, Any] | None = None,
        quantile_fraction: float = 0.25,
        resample_probability: float = 0.25,
        perturbation_factors: Sequence[float] = (1.2, 0.8),
        custom_explore_fn: Callable[[Config], Config] | None = None,
        log_config: bool = True,
        require_attrs: bool = True,
        synch: bool = False,
        seed: int | None = None,
    ) -> None:
        super().__init__(time_attr=time_attr, metric=metric, mode=mode)
        asked = PbtParameters(
            perturbation_interval,
            burn_in_period,
            dict(hyperparam_mutations or {}),
            quantile_fraction,
            resample_probability,
            perturbation_factors,
            custom_explore_fn,
            log_config,
            require_attrs,
            synch,
            seed,
        )
        self._set_up(asked.check(type(self).__name__))

    def _set_up(self, asked: PbtParameters) -> None:
        self._asked = asked
        self._population = Population()
        self._exploits: dict[str, Exploit] = {}  # by the trial that will change
        self._next_sync = max(asked.perturbation_interval, asked.burn_in_period)
        self._sync_time = 0.0  # of the last result that counted
        self._longest = 0.0  # training of any trial, finished ones included
        self._has_new_results = False  # a member has trained since all were last checked
        self._draws = 0
        self._num_checkpoints = 0
        self._num_perturbations = 0
        self._shown_from = (0, 0)
        self._rows: list[LogRow] = []
        self._has_warned = False

    def on_trial_add(self, tune_controller: ControllerView, trial: Trial) -> None:
        super().on_trial_add(tune_controller, trial)
        self._refuse_searchers(tune_controller)
        mutations = self._asked.hyperparam_mutations
        config, added = pbt_explore.filled(trial.config, mutations, self._stream())
        if added:  # other objects, because what was suggested is on record
            trial.config = config
            missing = {"/".join(map(str, path)): value for path, value in added.items()}
            trial.evaluated_params = {**trial.evaluated_params, **missing}
        self._exploits.pop(trial.trial_id, None)
        self._population.join(trial.trial_id, pbt_explore.original_tag(trial.experiment_tag))

    def on_trial_complete(
        self, tune_controller: ControllerView, trial: Trial, result: dict[str, Any] | None = None
    ) -> None:
        self._forget(trial)

    on_trial_error = on_trial_remove = on_trial_complete

    def _forget(self, trial: Trial) -> None:
        """Forget a trial; if all others wait for it, the next choice sees that they need not."""
        self._population.leave(trial.trial_id)
        self._exploits.pop(trial.trial_id, None)

    def on_trial_result(self, tune_controller: ControllerView, trial: Trial, result: dict[str, Any]) -> str:
        report = self._time_and_score(trial, result)
        if report is None:
            self._complain(trial, result)
            return self.CONTINUE
        time, score = report
        self._exploits.pop(trial.trial_id, None)  # it has continued meanwhile
        member = self._population.members.get(trial.trial_id)
        if member is None:
            member = self._population.join(trial.trial_id, pbt_explore.original_tag(trial.experiment_tag))
        if not self._is_time(member, time):
            return self.CONTINUE
        self._population.note(trial.trial_id, time, score)
        self._longest = max(self._longest, time)
        self._learn(trial, time, score)
        if self._asked.synch:
            self._sync_time, self._has_new_results = time, True
            reason = f"all trials wait for each other at {self._time_attr} {in_words(self._next_sync)}"
            explain(tune_controller, trial.trial_id, PAUSED, reason)
            return self.PAUSE
        return self._perturb(tune_controller, trial, member)

    def _is_time(self, member: Member, time: float) -> bool:
        asked = self._asked
        if not math.isfinite(time) or time < asked.burn_in_period:
            return False
        if time - member.last_perturbation_time < asked.perturbation_interval:
            return False
        return not asked.synch or time >= self._next_sync

    def _learn(self, trial: Trial, time: float, score: float) -> None:
        """Do nothing here; PB2 updates its model."""

    def _perturb(self, tune_controller: ControllerView, trial: Trial, member: Member) -> str:
        """Handle one trial by itself: the best save, the worst stop to be changed."""
        member.last_perturbation_time = member.last_train_time
        place = self._population.place(trial.trial_id, self._asked.quantile_fraction)
        others_wait = first_waiting(tune_controller) is not None
        member.is_top = place > 0
        if place > 0:
            self._num_checkpoints += 1
            if not others_wait:  # pausing saves by itself
                tune_controller._schedule_trial_save(trial)
        elif place < 0:
            donor = self._plan_exploit(tune_controller, trial)
            if donor is not None:
                reason = f"to continue from trial {donor.trial_id}: {self._rank(member)}"
                explain(tune_controller, trial.trial_id, PAUSED, reason)
            if donor is not None and donor.newest is not None:
                tune_controller.pause_trial(trial, should_checkpoint=False)
                return self.NOOP
            if donor is not None:
                return self.PAUSE  # the other may never save: then this one must be able to continue
        if not others_wait:
            return self.CONTINUE
        explain(tune_controller, trial.trial_id, PAUSED, "so that the trials that wait get as far")
        return self.PAUSE

    def _rank(self, member: Member) -> str:
        share = in_words(100 * self._asked.quantile_fraction)
        shown = self._shown(math.nan if member.score is None else member.score)
        return f"{shown} is among the worst {share} % of {len(self._population)} trials"

    def _plan_exploit(self, tune_controller: ControllerView, trial: Trial) -> Trial | None:
        """Plan to copy a drawn trial; return None and plan nothing, when there is nothing to copy."""
        stream = self._stream()
        name = self._population.one_of_the_best(self._asked.quantile_fraction, stream.randrange)
        donor, member = tune_controller.get_trial(name), self._population.members[name]
        if donor is None or not member.is_top or (donor.newest is None and not _is_saving(donor)):
            logger.info("%s: %s has no checkpoint yet, so %s continues as it is", self._name, donor, trial)
            return None
        newest = donor.checkpoint_index + (1 if _is_saving(donor) else 0)
        self._exploits[trial.trial_id] = Exploit(
            name, member.last_perturbation_time, member.last_train_time, newest
        )
        return donor

    def choose_trial_to_run(self, tune_controller: ControllerView) -> Trial | None:
        """Carry out planned changes of trials without a process; returns the trial that is most behind."""
        is_settled = not self._exploits and len(self._population) > 0
        if self._asked.synch and is_settled and self._population.least_time() >= self._next_sync:
            self._perturb_all(tune_controller)
        for name in list(self._exploits):
            target = tune_controller.get_trial(name)
            if target is not None and _has_no_process(target):
                self._exploit_when_saved(tune_controller, target)
        below = self._next_sync if self._asked.synch else math.inf
        busy = {*self._exploits, *(exploit.donor_id for exploit in self._exploits.values())}

        def may_run(name: str) -> bool:
            trial = None if name in busy else tune_controller.get_trial(name)
            return trial is not None and _has_no_process(trial)

        found = self._population.most_behind(may_run, below)
        return None if found is None else tune_controller.get_trial(found)

    def _perturb_all(self, tune_controller: ControllerView) -> None:
        population, interval = self._population, self._asked.perturbation_interval
        if self._has_new_results:
            self._has_new_results = False
            worst, best = population.quantiles(self._asked.quantile_fraction)
            for member in population.members.values():
                member.last_perturbation_time, member.is_top = self._sync_time, False
            for name in best:
                population.members[name].is_top = True
            self._num_checkpoints += len(best)
            for name in worst:
                self._plan_exploit(tune_controller, _known(tune_controller, name))
            self._next_sync = max(self._next_sync + interval, self._longest)
        times = {name: member.last_train_time for name, member in population.members.items()}
        times.update({name: exploit.trained for name, exploit in self._exploits.items()})
        if min(times.values()) >= self._next_sync:  # else no trial could run
            self._next_sync = max(times.values()) + interval
        tune_controller.remember_choice(_known(tune_controller, next(iter(times))))

    def _exploit_when_saved(self, tune_controller: ControllerView, target: Trial) -> None:
        """Change only trials without a process: nothing of the old one can come after the change."""
        exploit = self._exploits[target.trial_id]
        donor = tune_controller.get_trial(exploit.donor_id)
        if donor is not None and _is_saving(donor) and not donor.is_finished():
            return  # the checkpoint will be there in a moment
        del self._exploits[target.trial_id]
        checkpoint = None if donor is None else _to_resume_from(donor, exploit.newest)
        if donor is None or checkpoint is None:
            logger.warning(
                "%s: %s was to continue from a checkpoint of %s, which made none; it continues from its own. "
                "The trainable must save: report(..., checkpoint=...), or save_checkpoint()",
                *(self._name, target, donor or exploit.donor_id),
            )
            tune_controller.remember_choice(target)
            return
        member = self._population.members[target.trial_id]
        rank = self._rank(member)
        self._population.copy_times(target.trial_id, exploit.donor_id, exploit.perturbed_at, exploit.trained)
        new = self._new_config(target, donor)
        if self._asked.log_config:
            self._rows.append(log_row(self._num_perturbations, target, donor, checkpoint, new))
        target.experiment_tag = pbt_explore.perturbed_tag(member.tag, new, self._asked.hyperparam_mutations)
        changes = pbt_explore.changes_in_words(donor.config, new, self._asked.hyperparam_mutations)
        at = in_words(checkpoint.metrics.get(TRAINING_ITERATION, "?"))
        reason = f"from trial {donor.trial_id} at iteration {at}, with {changes}: {rank}"
        explain(tune_controller, target.trial_id, COPIED, reason)
        target.config = new
        self._num_perturbations += 1
        tune_controller.adopt_checkpoint(target, checkpoint)

    def _new_config(self, target: Trial, donor: Trial) -> Config:
        stream = self._stream()
        new, done = pbt_explore.explored(
            copied(donor.config), self._asked.hyperparam_mutations, self._asked.chances, stream
        )
        logger.info("%s: %s continues from %s, changed: %s", self._name, target, donor, done)
        return self._user_explored(new, stream)

    def _user_explored(self, config: Config, stream: Stream) -> Config:
        explore = self._asked.custom_explore_fn
        if explore is None:
            return config
        with global_generators_at(stream.getrandbits(32)):
            return pbt_explore.explored_freely(config, explore)

    def milestones(self, trial: Trial) -> Sequence[Milestone] | None:
        """Return () because members run to their end; synchronous ones wait for each other on the way."""
        if not self._asked.synch:
            return ()
        return (Milestone(self._next_sync, 0.0, self._time_attr, is_barrier=True),)

    def rungs_to_open(self) -> Sequence[RungToOpen]:
        """Return the next interval of a synchronous population, which opens when all have come to it."""
        if not self._asked.synch or not len(self._population):
            return ()
        members = self._population.members
        behind = tuple(name for name, one in members.items() if one.last_train_time < self._next_sync)
        return (RungToOpen(behind, len(members), self._asked.perturbation_interval, self._time_attr),)

    def debug_string(self) -> str:
        checkpoints = self._num_checkpoints - self._shown_from[0]
        perturbations = self._num_perturbations - self._shown_from[1]
        return f"{self._name}: {checkpoints} checkpoints, {perturbations} perturbs"

    def last_scores(self, trials: list[Trial]) -> list[float]:
        """Return the last scores of those of these trials that are unfinished; larger is better."""
        members = (self._population.members.get(trial.trial_id) for trial in trials)
        return [member.score for member in members if member is not None and member.score is not None]

    def reset_stats(self) -> None:
        """Reset the counts of `debug_string` to 0."""
        self._shown_from = (self._num_checkpoints, self._num_perturbations)

    def take_log_rows(self) -> list[LogRow]:
        """Return what was changed since the last call, to be written to the policy files."""
        rows, self._rows = self._rows, []
        return rows

    @property
    def _name(self) -> str:
        return "PopulationBasedTraining"

    def _stream(self) -> Stream:
        # One stream per occasion: the place in the sequence is a number, and saved as one.
        self._draws += 1
        return Seed(self._asked.seed or 0).derive(f"scheduler.pbt/{self._draws}")

    def _refuse_searchers(self, tune_controller: ControllerView) -> None:
        from muster.tune.search.search_generator import SearchGenerator

        if isinstance(tune_controller.search_alg, SearchGenerator):
            raise ValueError(
                f"{type(self).__name__} changes configurations itself and cannot be used with a search "
                "algorithm that expects the ones it suggested: leave out TuneConfig(search_alg=...)"
            )

    def _complain(self, trial: Trial, result: dict[str, Any]) -> None:
        missing = [key for key in (self._time_attr, self._metric) if key not in result]
        what = (
            f"{type(self).__name__}: trial {trial.trial_id} reported no {' and no '.join(map(repr, missing))}"
        )
        if self._asked.require_attrs:
            raise RuntimeError(
                f"{what}, it reported: {', '.join(sorted(map(str, result)))}. Report it with every result, "
                "or pass require_attrs=False to ignore results without it"
            )
        if not self._has_warned:
            logger.warning("%s; such results are ignored, and this is logged once", what)
            self._has_warned = True

    def _to_plain(self) -> Plain:
        return {
            **super()._to_plain(),
            "population": self._population.to_plain(),
            "exploits": {name: list(exploit) for name, exploit in self._exploits.items()},
            "rows": [list(row) for row in self._rows],
        }

    def _from_plain(self, state: Plain) -> None:
        super()._from_plain(state)
        self._population = Population.from_plain(state["population"])
        self._exploits = {name: Exploit(*saved) for name, saved in state["exploits"].items()}
        self._rows = [LogRow(*row) for row in state["rows"]]


def _has_no_process(trial: Trial) -> bool:
    return trial.state in (TrialState.PENDING, TrialState.PAUSED)


def _is_saving(trial: Trial) -> bool:
    return trial.state is TrialState.SAVING


def _to_resume_from(donor: Trial, newest: int) -> CheckpointRef | None:
    """Return the newest checkpoint; of a trial that has ended, the one from when it was chosen."""
    if donor.adopted is not None or not donor.is_finished():
        return donor.newest
    then = [each for each in donor.checkpoints if each.index <= newest]
    return max(then, key=lambda each: each.index, default=donor.newest)


def _known(tune_controller: ControllerView, name: str) -> Trial:
    trial = tune_controller.get_trial(name)
    assert trial is not None  # a member was added, and nothing else removes trials
    return trial
