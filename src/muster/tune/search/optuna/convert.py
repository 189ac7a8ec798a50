"""Convert a search space to Optuna's distributions, and Optuna's parameters to a suggestion."""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from muster.errors import ConfigError
from muster.tune.search.dimensions import Dimension, Dimensions, flat_point
from muster.tune.search.paths import Path, filled, flat_name, flattened, unflattened
from muster.tune.search.placeholders import is_placeholder
from muster.tune.search.space_tree import SpaceTree
from muster.tune.search.variant_generator import find_unresolved, has_unresolved_values

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial


_STORABLE = (bool, int, float, str, type(None))
_PARTS = (  # of a saved trial, after its state
    *("values", "params", "distributions", "user_attrs", "system_attrs", "intermediate_values"),
    *("datetime_start", "datetime_complete"),
)


class ConvertedSpace:
    """Holds distributions by flat name, and makes suggestions of their values."""

    def __init__(self, space: Mapping[str, Any]) -> None:
        from optuna.distributions import BaseDistribution

        self.distributions: dict[str, BaseDistribution] = {}
        self._paths: dict[str, Path] = {}
        self._options: dict[str, dict[str, Any]] = {}  # options that Optuna cannot store, by their label
        native = {
            path: one for path, one in flattened(dict(space)).items() if isinstance(one, BaseDistribution)
        }
        if native:
            self._take_native(native, space)
        else:
            self._convert(space)

    def _take_native(self, native: Mapping[Path, BaseDistribution], space: Mapping[str, Any]) -> None:
        ours = find_unresolved(iter([((), dict(space))])).domains
        for path, domain in ours.items():
            other = flat_name(next(iter(native)))
            raise ValueError(
                f"OptunaSearch: '{flat_name(path)}' is {domain!r}, and '{other}' is one of Optuna's "
                "distributions (FloatDistribution ...): use one kind for the whole space"
            )
        self.distributions = {flat_name(path): one for path, one in native.items()}
        self._paths = {name: tuple(name.split("/")) for name in self.distributions}
        self._skeleton = unflattened(dict.fromkeys(self.distributions))

    def _convert(self, space: Mapping[str, Any]) -> None:
        found = Dimensions("OptunaSearch", space, ("int", "choice", "log", "step"))
        self._skeleton = found.skeleton
        for name, one in found.all.items():
            self._paths[name] = one.path
            self.distributions[name] = self._choice(one) if one.kind == "choice" else _number(one)

    def _choice(self, one: Dimension) -> BaseDistribution:
        from optuna.distributions import CategoricalDistribution

        choices: list[Any] = []
        for index, option in enumerate(one.options):
            if isinstance(option, _STORABLE):
                choices.append(option)
            else:  # storages keep JSON, in which a tuple would come back as a list, and an object not at all
                choices.append(f"ref_ph_{option[1]}" if is_placeholder(option) else f"option_{index}")
                self._options.setdefault(one.name, {})[choices[-1]] = option
        return CategoricalDistribution(choices)

    def ask(self, study: Study) -> Trial:
        return study.ask(self.distributions)

    def suggestion(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return Optuna's parameters in the shape of the space, without the constants."""
        values = {path: params[name] for name, path in self._paths.items() if name in params}
        for name, options in self._options.items():
            if isinstance(value := params.get(name), str):
                values[self._paths[name]] = options.get(value, value)
        return dict(filled(self._skeleton, values))

    def params(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return a user's point, nested or flat, by Optuna's names; what is not a variable is left out."""
        flat = flat_point(config)
        return {name: self._labelled(name, flat[name]) for name in self.distributions if name in flat}

    def _labelled(self, name: str, value: Any) -> Any:  # noqa: ANN401
        for label, option in self._options.get(name, {}).items():
            if option is value or (not isinstance(value, _STORABLE) and option == value):
                return label
        return value


class ConditionalSpace(ConvertedSpace):
    """Has domains inside options, and asks only for those of the chosen options."""

    def _convert(self, space: Mapping[str, Any]) -> None:
        self._tree = SpaceTree("OptunaSearch", space, keeps_constants=False)
        for label, one in self._tree.variable.items():
            self.distributions[label] = self._choice(one) if one.kind == "choice" else _number(_plain(one))

    def ask(self, study: Study) -> Trial:
        """Ask level by level; a choice comes before the domains of its options."""
        outer = [label for label, branch in self._tree.branches.items() if branch is None]
        trial = study.ask({label: self.distributions[label] for label in outer})
        for label, branch in self._tree.branches.items():
            if branch is not None and self._values(trial.params).get(branch[0]) == branch[1]:
                trial._suggest(label, self.distributions[label])
        return trial

    def suggestion(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return self._tree.suggestion(self._values(params))

    def _values(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return numbers as they are, and the places of options."""
        return {
            label: int(self.distributions[label].to_internal_repr(value))
            if self._tree.variable[label].kind == "choice"
            else value
            for label, value in params.items()
        }

    def params(self, config: Mapping[str, Any]) -> dict[str, Any]:
        values = self._tree.values(config, is_partial=True)
        return {label: self.distributions[label].to_external_repr(value) for label, value in values.items()}


def converted_space(space: Mapping[str, Any]) -> ConvertedSpace:
    domains = find_unresolved(iter([((), dict(space))])).domains.values()
    options = (option for domain in domains for option in getattr(domain, "categories", ()))
    return (ConditionalSpace if any(map(has_unresolved_values, options)) else ConvertedSpace)(space)


def _plain(one: Dimension) -> Dimension:
    """Return a number that Optuna has; a step on a log scale is dropped."""
    if one.mean is not None:
        raise ValueError(f"OptunaSearch cannot draw '{one.name}' from a normal distribution: use uniform()")
    if not one.is_log or one.step is None:
        return one
    logger.warning("OptunaSearch: '%s' is log-uniform and has a step; %s is dropped", one.name, one.step)
    return replace(one, step=None)


def _number(one: Dimension) -> BaseDistribution:
    from optuna.distributions import FloatDistribution, IntDistribution

    if one.kind == "float":
        return FloatDistribution(one.low, one.high, log=one.is_log, step=one.step)
    return IntDistribution(int(one.low), int(one.high), log=one.is_log, step=int(one.step or 1))


logger = logging.getLogger(__name__)


def require_optuna(with_constraints: bool) -> None:
    try:
        import optuna
    except ImportError as error:
        raise ConfigError('OptunaSearch needs optuna: pip install "muster-ml[optuna]"') from error
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


class StudyRecord:
    """Encodes the trials of one study; one lives as long as its study."""

    def __init__(self) -> None:
        self._finished: dict[int, bytes] = {}  # by trial number
        self._distributions: dict[bytes, int] = {}  # encoded -> its place in the table

    def encoded(self, study: Study) -> dict[str, Any]:
        """Return plain data and bytes: everything a sampler may read."""
        storage, study_id = study._storage, study._study_id
        trials = storage.get_all_trials(study_id, deepcopy=False)
        encoded = [self._trial(trial) for trial in trials]
        return {
            "trials": encoded,
            "distributions": list(self._distributions),
            "user_attrs": pickle.dumps(storage.get_study_user_attrs(study_id)),
            "system_attrs": pickle.dumps(storage.get_study_system_attrs(study_id)),
        }

    def _trial(self, trial: FrozenTrial) -> bytes:
        encoded = self._finished.get(trial.number)
        if encoded is None:
            encoded = self._encode(trial)
            if trial.state.is_finished():
                self._finished[trial.number] = encoded
        return encoded

    def _encode(self, trial: FrozenTrial) -> bytes:
        places: dict[str, int] = {}
        for name, distribution in trial.distributions.items():
            encoded = pickle.dumps(distribution, protocol=5)
            places[name] = self._distributions.setdefault(encoded, len(self._distributions))
        parts = [places if name == "distributions" else getattr(trial, name) for name in _PARTS]
        return pickle.dumps((int(trial.state), *parts), protocol=5)

    def fill(self, study: Study, saved: dict[str, Any]) -> None:
        """Put saved trials into an empty study, with their numbers."""
        storage, study_id = study._storage, study._study_id
        table = [pickle.loads(one) for one in saved["distributions"]]
        self._distributions = {one: place for place, one in enumerate(saved["distributions"])}
        for number, encoded in enumerate(saved["trials"]):
            trial = _decoded(encoded, table)
            if trial.state.is_finished():
                self._finished[number] = encoded
            storage.create_new_trial(study_id, template_trial=trial)
        for key, value in pickle.loads(saved["user_attrs"]).items():
            storage.set_study_user_attr(study_id, key, value)
        for key, value in pickle.loads(saved["system_attrs"]).items():
            storage.set_study_system_attr(study_id, key, value)


def _decoded(encoded: bytes, table: list[Any]) -> FrozenTrial:
    from optuna.trial import FrozenTrial, TrialState

    state, *parts = pickle.loads(encoded)
    fields = dict(zip(_PARTS, parts, strict=True))
    fields["distributions"] = {name: table[place] for name, place in fields["distributions"].items()}
    # The storage gives the numbers.
    return FrozenTrial(number=-1, trial_id=-1, state=TrialState(state), value=None, **fields)
