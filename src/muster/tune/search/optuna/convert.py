"""A search space as Optuna's distributions, and Optuna's parameters as a suggestion. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from muster.tune.search.dimensions import Dimension, Dimensions, flat_point
from muster.tune.search.paths import Path, filled
from muster.tune.search.placeholders import is_placeholder

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

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
            self._convert(space)

    def _take_native(self, native: Mapping[str, BaseDistribution]) -> None:
        self.distributions = dict(native)
        self._paths = {name: tuple(name.split("/")) for name in native}
        self._skeleton = _nested(self._paths.values())

    def _convert(self, space: Mapping[str, Any]) -> None:
        found = Dimensions("OptunaSearch", space, ("int", "choice", "log", "step"))
        self._skeleton = found.skeleton
        for name, one in found.all.items():
            self._paths[name] = one.path
            self.distributions[name] = self._choice(one) if one.kind == "choice" else _number(one)

    def _choice(self, one: Dimension) -> BaseDistribution:
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution(
            [
                option if isinstance(option, _STORABLE) else self._label(one.name, index, option)
                for index, option in enumerate(one.options)
            ]
        )

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
        flat = flat_point(config)
        return {name: self._labelled(name, flat[name]) for name in self.distributions if name in flat}

    def _labelled(self, name: str, value: Any) -> Any:  # noqa: ANN401
        for label, option in self._options.get(name, {}).items():
            if option is value or (not isinstance(value, _STORABLE) and option == value):
                return label
        return value


def _number(one: Dimension) -> BaseDistribution:
    from optuna.distributions import FloatDistribution, IntDistribution

    if one.kind == "float":
        return FloatDistribution(one.low, one.high, log=one.is_log, step=one.step)
    return IntDistribution(int(one.low), int(one.high), log=one.is_log, step=int(one.step or 1))


def _nested(paths: Iterable[Path]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for path in paths:
        node = nested
        for part in path[:-1]:
            node = node.setdefault(part, {})
        node[path[-1]] = None
    return nested
