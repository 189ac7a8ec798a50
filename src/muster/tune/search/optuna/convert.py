"""A search space as Optuna's distributions, and Optuna's parameters as a suggestion. Pure."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from muster.tune.search.domains import Categorical, Domain, Float, Integer
from muster.tune.search.paths import Path, children, filled, flat_name, flattened, is_container, rebuilt
from muster.tune.search.placeholders import is_placeholder
from muster.tune.search.samplers import LogUniform, Quantized, Sampler, Uniform, grid_bounds
from muster.tune.search.unresolved import find_unresolved, has_unresolved_values

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

logger = logging.getLogger(__name__)

_STORABLE = (bool, int, float, str, type(None))


class ConvertedSpace:
    """Distributions by flat name, and the way back."""

    def __init__(self, space: Mapping[str, Any]) -> None:
        from optuna.distributions import BaseDistribution

        self.distributions: dict[str, BaseDistribution] = {}
        self._paths: dict[str, Path] = {}
        self._options: dict[str, dict[str, Any]] = {}  # options that Optuna cannot store, by their label
        native = {name: value for name, value in space.items() if isinstance(value, BaseDistribution)}
        if native:
            self._take_native(native)
        else:
            self._skeleton = _open_branches(dict(space))
            self._convert(space)

    def _take_native(self, native: Mapping[str, BaseDistribution]) -> None:
        self.distributions = dict(native)
        self._paths = {name: tuple(name.split("/")) for name in native}
        self._skeleton = _nested(self._paths.values())

    def _convert(self, space: Mapping[str, Any]) -> None:
        unresolved = find_unresolved(iter([((), dict(space))]))
        if unresolved.grids:
            raise ValueError(
                f"OptunaSearch cannot take the grid_search at '{flat_name(unresolved.grids[0][0])}': "
                "use choice(), or run without a searcher to go through the grid"
            )
        for path, function in unresolved.functions.items():
            raise ValueError(f"OptunaSearch cannot suggest {function!r} at '{flat_name(path)}': use a domain")
        for path, domain in unresolved.domains.items():
            name = _checked_name(path)
            self._paths[name] = path
            self.distributions[name] = self._distribution(name, domain)

    def _distribution(self, name: str, domain: Domain) -> BaseDistribution:
        if isinstance(domain, Categorical):
            return self._categorical(name, domain)
        sampler = domain.get_sampler()
        q = sampler.q if isinstance(sampler, Quantized) else None
        if isinstance(sampler, Quantized):
            sampler = sampler.get_sampler()
        if not isinstance(sampler, (Uniform, LogUniform)):
            raise ValueError(
                f"OptunaSearch cannot draw '{name}' from {domain!r}: it knows uniform and log-uniform numbers"
            )
        if isinstance(domain, Float):
            return _float(name, domain, sampler, q)
        if isinstance(domain, Integer):
            return _integer(name, domain, sampler, q)
        raise ValueError(
            f"OptunaSearch cannot convert '{name}', a {type(domain).__name__}: use define-by-run"
        )

    def _categorical(self, name: str, domain: Categorical) -> BaseDistribution:
        from optuna.distributions import CategoricalDistribution

        labels: list[Any] = []
        for index, option in enumerate(domain.categories):
            if has_unresolved_values(option):
                raise ValueError(
                    f"OptunaSearch: option {index} of the choice '{name}' holds further domains; "
                    "write the space as a function of the trial (define-by-run) instead"
                )
            labels.append(option if isinstance(option, _STORABLE) else self._label(name, index, option))
        return CategoricalDistribution(labels)

    def _label(self, name: str, index: int, option: Any) -> str:  # noqa: ANN401
        # Storages keep JSON, in which a tuple would come back as a list, and an object not at all.
        label = f"ref_ph_{option[1]}" if is_placeholder(option) else f"option_{index}"
        self._options.setdefault(name, {})[label] = option
        return label

    def suggestion(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Optuna's parameters in the shape of the space; constants are left to the experiment's config."""
        values = {
            path: self._option(name, params[name]) for name, path in self._paths.items() if name in params
        }
        return dict(filled(self._skeleton, values))

    def _option(self, name: str, value: Any) -> Any:  # noqa: ANN401
        options = self._options.get(name)
        return options.get(value, value) if options and isinstance(value, str) else value

    def params(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """A user's point, nested or flat, by Optuna's names; what is not a variable is left out."""
        flat = {flat_name(path): value for path, value in _leaves(config, ())}
        flat.update({flat_name(path): value for path, value in flattened(config).items()})
        return {name: self._labelled(name, flat[name]) for name in self.distributions if name in flat}

    def _labelled(self, name: str, value: Any) -> Any:  # noqa: ANN401
        for label, option in self._options.get(name, {}).items():
            if option is value or (not isinstance(value, _STORABLE) and option == value):
                return label
        return value


def _float(name: str, domain: Float, sampler: Sampler, q: float | None) -> BaseDistribution:
    from optuna.distributions import FloatDistribution

    if isinstance(sampler, LogUniform):
        _warn_dropped(name, q)
        return FloatDistribution(domain.lower, domain.upper, log=True)
    return FloatDistribution(domain.lower, domain.upper, step=q)


def _integer(name: str, domain: Integer, sampler: Sampler, q: float | None) -> BaseDistribution:
    from optuna.distributions import IntDistribution

    is_quantized = q is not None and q != 1
    # Optuna's upper bound is included; ours only where there is a step.
    upper = domain.upper if is_quantized else domain.upper - 1
    if isinstance(sampler, LogUniform):
        _warn_dropped(name, q if is_quantized else None)
        return IntDistribution(domain.lower, upper, log=True)
    if not is_quantized or q is None:
        return IntDistribution(domain.lower, upper)
    low, high = grid_bounds(domain.lower, domain.upper, q)
    return IntDistribution(int(low * q), int(high * q), step=int(q))


def _warn_dropped(name: str, q: float | None) -> None:
    if q is not None:
        logger.warning(
            "OptunaSearch: '%s' is log-uniform, for which Optuna has no step; %s is dropped", name, q
        )


def _checked_name(path: Path) -> str:
    for part in path:
        if isinstance(part, str) and "/" in part:
            raise ValueError(
                f"OptunaSearch joins nested keys with '/', so the key {part!r} must not hold one"
            )
    return flat_name(path)


def _open_branches(node: Any) -> Any:  # noqa: ANN401
    """Dicts without the keys that nothing is suggested for; lists and tuples whole."""
    if isinstance(node, dict):
        return {key: _open_branches(child) for key, child in node.items() if has_unresolved_values(child)}
    if is_container(node):
        return rebuilt(node, {key: _open_branches(child) for key, child in children(node)})
    return node


def _nested(paths: Any) -> dict[str, Any]:  # noqa: ANN401
    nested: dict[str, Any] = {}
    for path in paths:
        node = nested
        for part in path[:-1]:
            node = node.setdefault(part, {})
        node[path[-1]] = None
    return nested


def _leaves(node: Any, path: Path) -> list[tuple[Path, Any]]:  # noqa: ANN401
    if not is_container(node) or is_placeholder(node):
        return [(path, node)]
    return [leaf for key, child in children(node) for leaf in _leaves(child, (*path, key))]
