"""A search space as Ax's parameters. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from muster.tune.search.dimensions import Dimension


def as_parameters(dimensions: Iterable[Dimension]) -> list[Any]:
    return [_parameter(one) for one in dimensions]


def _parameter(one: Dimension) -> Any:  # noqa: ANN401
    from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig

    if one.kind == "choice":
        places = list(range(len(one.options)))
        return ChoiceParameterConfig(name=one.name, values=places, parameter_type="int", is_ordered=False)
    bounds = (int(one.low), int(one.high)) if one.kind == "int" else (float(one.low), float(one.high))
    return RangeParameterConfig(
        name=one.name, bounds=bounds, parameter_type=one.kind, scaling="log" if one.is_log else None
    )


def parameters_of(space: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
    """Ax's parameters, also in the dicts of Ax 0; and the fixed ones, which need no parameter."""
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
        raise ValueError(f"AxSearch: {one!r} is no parameter of Ax ({error!r})") from error
    raise ValueError(f"AxSearch: the type of {one!r} must be 'range', 'choice' or 'fixed'")
