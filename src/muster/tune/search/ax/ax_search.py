"""Adapt Ax (Bayesian optimization) as a Searcher, through the Client of Ax 1."""

from __future__ import annotations

import contextlib
import inspect
import logging
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from muster.base.untrusted import type_text
from muster.tune.search.dimensions import Dimension, flat_point
from muster.tune.search.library_searcher import LibrarySearcher, Proposal, check_options, finite_number
from muster.tune.search.paths import flat_name, flattened, unflattened
from muster.tune.search.variant_generator import has_unresolved_values


def _parameter(one: Dimension) -> Any:  # noqa: ANN401
    from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig

    if one.kind == "choice":
        places = list(range(len(one.options)))
        return ChoiceParameterConfig(name=one.name, values=places, parameter_type="int", is_ordered=False)
    bounds = (int(one.low), int(one.high)) if one.kind == "int" else (float(one.low), float(one.high))
    return RangeParameterConfig(
        name=one.name, bounds=bounds, parameter_type=one.kind, scaling="log" if one.is_log else None
    )


def _described(one: Dimension) -> dict[str, Any]:
    """Return a dimension as a dict of Ax 0, which `parameters_of` reads."""
    if one.kind == "choice":
        return {"name": one.name, "type": "choice", "values": list(one.options)}
    kind = int if one.kind == "int" else float
    bounds = [kind(one.low), kind(one.high)]
    about = {"name": one.name, "type": "range", "bounds": bounds, "value_type": one.kind}
    return {**about, "log_scale": one.is_log}


def parameters_of(space: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return Ax's parameters, also in the dicts of Ax 0, and the fixed ones, which need no parameter."""
    made: list[Any] = []
    fixed: dict[str, Any] = {}
    for one in space:
        if not isinstance(one, dict):
            made.append(one)
        elif one.get("type") == "fixed":
            fixed[one["name"]] = one["value"]
        else:
            made.append(_from_dict(one))
    return made, fixed


def _from_dict(one: dict[str, Any]) -> Any:  # noqa: ANN401
    from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig

    try:
        name, kind = one["name"], one["type"]
        if kind == "range":
            low, high = one["bounds"]
            are_ints = isinstance(low, int) and isinstance(high, int)
            return RangeParameterConfig(
                name=name,
                bounds=(low, high),
                parameter_type=one.get("value_type") or ("int" if are_ints else "float"),
                scaling="log" if one.get("log_scale") else None,
            )
        if kind == "choice":
            values = list(one["values"])
            return ChoiceParameterConfig(
                name=name,
                values=values,
                parameter_type=one.get("value_type") or type(values[0]).__name__,
                is_ordered=one.get("is_ordered", False),
            )
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ValueError(f"AxSearch: {one!r} is not a parameter of Ax ({error!r})") from error
    raise ValueError(f"AxSearch: the type of {one!r} must be 'range', 'choice' or 'fixed'")


_METRIC = "objective"  # Ax reads metrics in expressions, where a name such as "val/loss" would be a quotient


class AxSearch(LibrarySearcher):
    """Takes suggestions from Ax (`pip install "muster-ml[ax]"`, which brings torch).

    Args:
        space: A search space, or Ax's parameters: dicts with `name`, `type`, `bounds` and so on, or the
            configs of `ax.api.configs`. Usually left to the Tuner's `param_space`.
        metric: The result key to optimize.
        mode: "min" or "max".
        points_to_evaluate: Configurations to begin with.
        parameter_constraints: Linear inequalities of parameters, e.g. ["x + y <= 1"].
        outcome_constraints: Inequalities of other result keys, e.g. ["latency_ms <= 50"].
        ax_client: An `ax.api.client.Client` that is configured already, instead of a space.
        ax_kwargs: `random_seed`, and what Client.configure_generation_strategy takes.
    """

    library: ClassVar[str] = "ax.api.client"
    extra: ClassVar[str] = "ax"
    features = ("int", "choice", "log")
    _unsaved = ("_client",)

    def __init__(  # noqa: PLR0913, PLR0917 - Ray's signature
        self,
        space: Mapping[str, Any] | Sequence[Any] | None = None,
        metric: str | None = None,
        mode: str | None = None,
        points_to_evaluate: list[dict[str, Any]] | None = None,
        parameter_constraints: Sequence[str] | None = None,
        outcome_constraints: Sequence[str] | None = None,
        ax_client: Any = None,  # noqa: ANN401 - an ax.api.client.Client
        **ax_kwargs: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(metric, mode, points_to_evaluate)
        import numpy as np
        from ax.api.client import Client

        seed = ax_kwargs.pop("random_seed", None)
        self._seed = int(np.random.randint(0, 2**31 - 1)) if seed is None else seed
        known = [*inspect.signature(Client.configure_generation_strategy).parameters][1:]
        check_options("AxSearch", ax_kwargs, known, "it takes random_seed,")
        self._options = ax_kwargs
        self._parameter_constraints = list(parameter_constraints or ())
        self._outcome_constraints = list(outcome_constraints or ())
        self._fixed: dict[str, Any] = {}
        self._snapshot: dict[str, Any] | None = None
        self._objective = _METRIC
        self._client: Any = None
        if ax_client is not None:
            space = self._take_client(ax_client, space)
        self._begin(space)

    @staticmethod
    def convert_search_space(spec: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return Ax's parameters as dicts by flat name, the domains first; what has no domain is fixed."""
        dimensions = AxSearch._converted(spec)
        return [_described(one) for one in dimensions.all.values()] + [
            {"name": flat_name(path), "type": "fixed", "value": value}
            for path, value in flattened(spec).items()
            if not has_unresolved_values(value)
        ]

    def _take_client(self, client: Any, space: Any) -> Any:  # noqa: ANN401
        from ax.api.client import Client

        if not isinstance(client, Client):
            raise ValueError(
                f"AxSearch: ax_client must be an ax.api.client.Client, not {type_text(client)}: "
                "the AxClient of Ax 0 is being removed from Ax"
            )
        if space is not None:
            raise ValueError("AxSearch: `ax_client` has its space; leave `space` out")
        self._client = client
        objective = client._experiment.optimization_config.objective
        self._objective = objective.metric_names[0]
        return list(client._experiment.search_space.parameters)

    def _start(self) -> None:
        from ax.api.client import Client

        if self._client is not None:
            return
        if self._dimensions is not None:
            parameters = [_parameter(one) for one in self._dimensions.variable.values()]
        else:
            parameters, self._fixed = parameters_of(self._space)
        with _quiet(), _refusals():
            self._client = Client(random_seed=self._seed)
            self._client.configure_experiment(
                parameters=parameters, parameter_constraints=self._parameter_constraints
            )
            self._client.configure_optimization(
                objective=f"-{_METRIC}", outcome_constraints=self._outcome_constraints
            )
            self._client.configure_generation_strategy(
                **{"initialization_random_seed": self._seed, **self._options}
            )

    def _propose(self, point: dict[str, Any] | None) -> Proposal | str | None:
        if point is None:
            experiment = self._client._experiment
            size = math.prod(one.cardinality() for one in experiment.search_space.parameters.values())
            if len(experiment.arms_by_signature) >= size:
                return self.FINISHED  # a finite space is used up, which Ax does not check
        with _quiet():
            if point is not None:
                values = self._values(point)
                return self._client.attach_trial(values), self._suggestion(values)
            found = self._asked()
        for index, values in found.items():
            return index, self._suggestion(values)
        return None  # as many are unfinished as Ax allows

    def _asked(self) -> dict[int, dict[str, Any]]:
        from ax.exceptions.core import DataRequiredError
        from ax.exceptions.generation_strategy import MaxParallelismReachedException

        if self._objective == _METRIC:
            # A fitted model starts the next fit from its last state, which a restored one cannot:
            # both start over. A client of the user's is left as it is.
            self._snapshot = self._client._to_json_snapshot()
            self._reopen()
        try:
            return dict(self._client.get_next_trials(max_trials=1))
        except (DataRequiredError, MaxParallelismReachedException):
            return {}

    def _values(self, point: Mapping[str, Any]) -> dict[str, Any]:
        if self._dimensions is not None:
            return dict(self._dimensions.values(point))
        flat = flat_point(point)
        names = self._client._experiment.search_space.parameters
        return {name: flat[name] for name in names if name in flat}

    def _suggestion(self, values: Mapping[str, Any]) -> dict[str, Any]:
        if self._dimensions is not None:
            return self._dimensions.suggestion(values)
        return unflattened({**self._fixed, **values})

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Pass the whole result: constraints on outcomes need more than its metric."""
        proposal = self._live.pop(trial_id, None)
        if proposal is None:
            return
        outcomes = self._outcomes(result or {})
        if outcomes is None or error:
            self._abandon(proposal[0])
            return
        with _quiet():
            self._client.complete_trial(proposal[0], raw_data=outcomes)

    def _outcomes(self, result: Mapping[str, Any]) -> dict[str, float] | None:
        """Return what Ax optimizes and constrains; None when one of them is missing or not finite."""
        outcomes: dict[str, float] = {}
        for name in self._client._experiment.optimization_config.metric_names:
            key = str(self._metric) if name == self._objective else name
            number = finite_number(result.get(key))
            if number is None:
                return None
            outcomes[name] = number
        if self._objective == _METRIC and self._mode == "max":
            outcomes[_METRIC] = -outcomes[_METRIC]
        return outcomes

    def _abandon(self, handle: int) -> None:
        with _quiet():
            self._client.mark_trial_abandoned(handle)

    def _learn(self, point: dict[str, Any], loss: float) -> None:
        # A client of the user's has its own direction, and gets values as they are.
        value = loss if self._objective == _METRIC or self._mode == "min" else -loss
        with _quiet():
            index = self._client.attach_trial(self._values(point))
            self._client.complete_trial(index, raw_data={self._objective: value})

    def get_state(self) -> dict[str, Any]:
        if self._client is not None:
            self._snapshot = self._client._to_json_snapshot()
        return super().get_state()

    def _reopen(self) -> None:
        from ax.api.client import Client

        assert self._snapshot is not None
        with _quiet():
            self._client = Client._from_json_snapshot(self._snapshot)
        self._client._random_seed = self._seed


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    from ax.exceptions.core import UserInputError

    try:
        yield
    except UserInputError as error:  # a range that is too narrow, for one
        raise ValueError(f"AxSearch: Ax refuses the space: {error}") from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence Ax, which logs each trial and whose parts warn about each other."""
    handlers = [(handler, handler.level) for handler in logging.getLogger("ax").handlers]
    for handler, _ in handlers:
        handler.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for handler, level in handlers:
            handler.setLevel(level)
