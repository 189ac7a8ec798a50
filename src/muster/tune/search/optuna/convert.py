"""Convert a search space to Optuna's distributions, and Optuna's parameters to a suggestion."""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from muster.errors import ConfigError
from muster.tune.search.dimensions import Dimension, flat_point
from muster.tune.search.paths import Path, flat_name, flattened, unflattened
from muster.tune.search.placeholders import is_placeholder
from muster.tune.search.space_tree import SpaceTree
from muster.tune.search.variant_generator import find_unresolved

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


class _OptunaTree(SpaceTree):
    def _decoded(self, label: str, value: float) -> Any:  # noqa: ANN401
        """Return a number as Optuna made it, also one that a user's point has outside of the bounds."""
        del label
        return value


class ConvertedSpace:
    """Holds distributions by label, and makes suggestions of their values.

    With domains inside options, it asks only for those of the chosen options.
    """

    def __init__(self, space: Mapping[str, Any]) -> None:
        from optuna.distributions import BaseDistribution

        self.distributions: dict[str, BaseDistribution] = {}
        self._options: dict[str, dict[str, Any]] = {}  # options that Optuna cannot store, by their label
        self._tree: _OptunaTree | None = None  # of muster's own domains
        native = {
            path: one for path, one in flattened(dict(space)).items() if isinstance(one, BaseDistribution)
        }
        if native:
            self._take_native(native, space)
            return
        self._tree = _OptunaTree("OptunaSearch", space, features=("int", "choice", "log", "step", "branch"))
        for label, one in self._tree.all.items():
            self.distributions[label] = self._choice(one) if one.kind == "choice" else _number(one)

    def _take_native(self, native: Mapping[Path, BaseDistribution], space: Mapping[str, Any]) -> None:
        ours = find_unresolved(iter([((), dict(space))])).domains
        for path, domain in ours.items():
            other = flat_name(next(iter(native)))
            raise ValueError(
                f"OptunaSearch: '{flat_name(path)}' is {domain!r}, and '{other}' is one of Optuna's "
                "distributions (FloatDistribution ...): use one kind for the whole space"
            )
        self.distributions = {flat_name(path): one for path, one in native.items()}

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
        """Ask level by level; a choice comes before the domains of its options."""
        branches = self._tree.branches if self._tree is not None else {}
        inner = {label: branch for label, branch in branches.items() if branch is not None}
        trial = study.ask({label: one for label, one in self.distributions.items() if label not in inner})
        for label, branch in inner.items():
            if self._values(trial.params).get(branch[0]) == branch[1]:
                trial._suggest(label, self.distributions[label])
        return trial

    def suggestion(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return Optuna's parameters in the shape of the space, without the constants."""
        if self._tree is None:
            return unflattened({name: params[name] for name in self.distributions if name in params})
        return self._tree.suggestion(self._values(params))

    def _values(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return {label: _place(self.distributions[label], value) for label, value in params.items()}

    def params(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return a user's point, nested or flat, by Optuna's names; what is not a variable is left out."""
        if self._tree is not None and any(self._tree.branches.values()):
            values = self._tree.values(config, is_partial=True)
            return {name: self.distributions[name].to_external_repr(value) for name, value in values.items()}
        flat = flat_point(config)
        return {name: self._labelled(name, flat[name]) for name in self.distributions if name in flat}

    def _labelled(self, name: str, value: Any) -> Any:  # noqa: ANN401
        for label, option in self._options.get(name, {}).items():
            if option is value or (not isinstance(value, _STORABLE) and option == value):
                return label
        return value


def _place(distribution: BaseDistribution, value: Any) -> Any:  # noqa: ANN401
    """Return the place of an option; a number as it is."""
    choices = getattr(distribution, "choices", None)
    if choices is None:
        return value
    same = [index for index, choice in enumerate(choices) if choice is value]  # 1 and True are equal
    return same[0] if same else int(distribution.to_internal_repr(value))


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
