"""Adapt any optimizer of nevergrad as a Searcher."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from muster.tune.search.dimensions import Dimension
from muster.tune.search.library_searcher import LibrarySearcher, Proposal
from muster.tune.search.paths import unflattened

if TYPE_CHECKING:
    from nevergrad.optimization.base import Optimizer

logger = logging.getLogger(__name__)


class NevergradSearch(LibrarySearcher):
    """Takes suggestions from nevergrad (`pip install "muster-ml[nevergrad]"`).

    Args:
        optimizer: A class or family of nevergrad's optimizers, a name in nevergrad's registry, or a made one.
        optimizer_kwargs: What the optimizer is made with, e.g. {"budget": 100}; not for a made one.
        space: A search space, a parametrization of nevergrad's, or, for a made optimizer over numbers without
            names, the list of their names. Usually left to the Tuner's `param_space`.
        metric: The result key to optimize.
        mode: "min" or "max".
        points_to_evaluate: Configurations to begin with.

    Optimizers that run scipy's in a thread cannot be saved, so they are refused.
    """

    library: ClassVar[str] = "nevergrad"
    extra: ClassVar[str] = "nevergrad"
    features = ("int", "choice", "log")

    def __init__(
        self,
        optimizer: Any = None,  # noqa: ANN401 - a class, a family, a name or an instance
        optimizer_kwargs: Mapping[str, Any] | None = None,
        space: Any = None,  # noqa: ANN401
        metric: str | None = None,
        mode: str | None = None,
        points_to_evaluate: list[dict[str, Any]] | None = None,
    ) -> None:
        super().__init__(metric, mode, points_to_evaluate)
        from nevergrad.optimization.base import Optimizer

        if optimizer is None:
            raise ValueError(
                'NevergradSearch needs an optimizer, e.g. NevergradSearch(optimizer="NGOpt") '
                "or one of nevergrad.optimizers"
            )
        self._names: list[str] | None = None
        self._options = dict(optimizer_kwargs or {})
        self._kind = _from_registry(optimizer) if isinstance(optimizer, str) else optimizer
        self._optimizer: Optimizer | None = None
        if isinstance(optimizer, Optimizer):
            space = self._take_made(optimizer, space)
        elif isinstance(space, list):
            raise ValueError("NevergradSearch: a list of names is for a made optimizer; give it a space")
        self._begin(space)

    @staticmethod
    def convert_search_space(spec: Mapping[str, Any]) -> Any:  # noqa: ANN401 - a parametrization
        """Return a `nevergrad.p.Dict` by flat name."""
        import nevergrad

        dimensions = NevergradSearch._converted(spec)
        parts = {
            name: nevergrad.p.Choice(list(one.options)) if one.kind == "choice" else _parameter(one)
            for name, one in dimensions.all.items()
        }
        return nevergrad.p.Dict(**parts)

    def _take_made(self, optimizer: Optimizer, space: Any) -> Any:  # noqa: ANN401
        if self._options:
            raise ValueError(
                "NevergradSearch: optimizer_kwargs are for a class; this optimizer is made already"
            )
        if space is not None and not isinstance(space, (list, tuple)):
            raise ValueError(
                "NevergradSearch: a made optimizer has its space; leave `space` out, or give names"
            )
        self._names = None if space is None else list(space)
        size = optimizer.parametrization.dimension
        if self._names is not None and len(self._names) != size:
            raise ValueError(f"NevergradSearch: {len(self._names)} names for {size} numbers in `space`")
        return optimizer.parametrization

    def _start(self) -> None:
        from nevergrad.optimization.base import Optimizer

        made = self._kind
        if not isinstance(made, Optimizer):
            made = made(parametrization=self._parametrization(), **self._options)
        _refuse_threads(made)
        # Drawn now, from the stream that a script may have seeded: a copy made before would draw otherwise.
        _ = made.parametrization.random_state
        self._optimizer, self._kind = made, type(made).__name__

    def _parametrization(self) -> Any:  # noqa: ANN401
        import nevergrad

        if self._dimensions is None:
            return self._space
        parts = {name: _parameter(one) for name, one in self._dimensions.variable.items()}
        return nevergrad.p.Dict(**parts)

    def _propose(self, point: dict[str, Any] | None) -> Proposal:
        assert self._optimizer is not None
        if point is not None:
            arguments, named = self._value(point)
            self._optimizer.suggest(*arguments, **named)
        candidate = self._optimizer.ask()
        return candidate, self._suggestion(candidate)

    def _suggestion(self, candidate: Any) -> dict[str, Any]:  # noqa: ANN401
        if self._dimensions is not None:
            return self._dimensions.suggestion(candidate.value)
        if self._names is not None:
            numbers = candidate.args[0] if candidate.args else candidate.value
            return unflattened(dict(zip(self._names, [float(one) for one in numbers], strict=True)))
        found = candidate.kwargs or candidate.value
        if not isinstance(found, dict):
            raise ValueError(
                "NevergradSearch: the parametrization has no names; use nevergrad.p.Dict or "
                "nevergrad.p.Instrumentation with keywords, or give the names as `space`"
            )
        return unflattened(found)

    def _value(self, point: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return a value as `Optimizer.suggest` takes it."""
        import nevergrad

        if self._dimensions is not None:
            return (self._dimensions.values(point),), {}
        if self._names is not None:
            return ([float(point[name]) for name in self._names],), {}
        is_called = isinstance(self._space, nevergrad.p.Instrumentation)
        return ((), dict(point)) if is_called else ((dict(point),), {})

    def _inform(self, handle: Any, loss: float) -> None:  # noqa: ANN401
        assert self._optimizer is not None
        self._optimizer.tell(handle, loss)

    def _learn(self, point: dict[str, Any], loss: float) -> None:
        from nevergrad.common.errors import TellNotAskedNotSupportedError

        assert self._optimizer is not None
        arguments, named = self._value(point)
        value = (arguments, named) if named else arguments[0]
        candidate = self._optimizer.parametrization.spawn_child(new_value=value)
        try:
            self._optimizer.tell(candidate, loss)
        except TellNotAskedNotSupportedError:
            logger.warning(
                "NevergradSearch: %s does not learn from points it did not suggest; left out", self._kind
            )


def _from_registry(name: str) -> Any:  # noqa: ANN401
    import difflib

    import nevergrad

    registry = nevergrad.optimizers.registry
    if name not in registry:
        near = difflib.get_close_matches(name, list(registry), n=3)
        raise ValueError(
            f"NevergradSearch: nevergrad has no optimizer {name!r}"
            + (f"; did you mean {', '.join(near)}?" if near else "")
        )
    return registry[name]


def _refuse_threads(optimizer: Any) -> None:  # noqa: ANN401
    from nevergrad.optimization.recaster import RecastOptimizer

    if isinstance(optimizer, RecastOptimizer):
        raise ValueError(
            f"NevergradSearch: {optimizer.name} runs in a thread, so it could not be resumed after a crash: "
            "choose another, such as NGOpt or TwoPointsDE"
        )


def _parameter(one: Dimension) -> Any:  # noqa: ANN401 - a parameter of nevergrad's
    import nevergrad

    if one.kind == "choice":
        return nevergrad.p.Choice(list(range(len(one.options))))
    kind = nevergrad.p.Log if one.is_log else nevergrad.p.Scalar
    made = kind(lower=one.low, upper=one.high)
    return made.set_integer_casting() if one.kind == "int" else made
