"""Imported lazily: reads Ray's environment variables as settings of `muster`; the file wins over them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta, Struct

from muster.config.check import checked, shortened
from muster.config.document import Document
from muster.config.schema import (
    MANY,
    TEN_YEARS_S,
    Count,
    Interval,
    Port,
    PositiveCount,
    PositiveSeconds,
    Seconds,
)

_MaybeSeconds = Annotated[float, Meta(ge=-TEN_YEARS_S, le=TEN_YEARS_S)]


class Variable(Struct, frozen=True):
    """Has the place of its value within `muster`, its type, and the meaning of `inf`."""

    name: str
    path: tuple[str, ...]
    kind: Any
    endless: float | None = None  # None: `inf` makes no sense


def _timeout(word: str, key: str, kind: Any = PositiveSeconds) -> Variable:  # noqa: ANN401 - a typing form
    return Variable(f"RAY_AUTOSCALER_RECONCILE_{word}", ("timeouts", key), kind, TEN_YEARS_S)


VARIABLES = (
    _timeout("REQUEST_STATUS_TIMEOUT_S", "request_s"),
    _timeout("ALLOCATE_STATUS_TIMEOUT_S", "allocate_s"),
    _timeout("RAY_INSTALL_STATUS_TIMEOUT_S", "install_s"),
    _timeout("TERMINATING_STATUS_TIMEOUT_S", "terminating_s"),
    _timeout("RAY_STOP_REQUESTED_STATUS_TIMEOUT_S", "stop_requested_s"),
    _timeout("TRANSIENT_STATUS_WARN_INTERVAL_S", "warn_s", Seconds),
    Variable(
        "RAY_AUTOSCALER_RECONCILE_MAX_NUM_RETRY_REQUEST_TO_ALLOCATE",
        ("limits", "max_request_retries"),
        Count,
        MANY,
    ),
    Variable("AUTOSCALER_MAX_CONCURRENT_LAUNCHES", ("limits", "max_concurrent"), Count, MANY),
    Variable("AUTOSCALER_MAX_LAUNCH_BATCH", ("limits", "max_launch_batch"), PositiveCount, MANY),
    Variable("AUTOSCALER_NODE_START_WAIT_S", ("setup", "ready_s"), PositiveSeconds, TEN_YEARS_S),
    Variable("AUTOSCALER_NODE_SSH_INTERVAL_S", ("setup", "interval_s"), Interval),
    Variable("AUTOSCALER_UPDATE_INTERVAL_S", ("monitor", "interval_s"), Interval),
    Variable("AUTOSCALER_METRIC_PORT", ("monitor", "metrics_port"), Port),
    Variable("AUTOSCALER_CONSERVE_GPU_NODES", ("conserve_gpus",), bool),
    Variable(
        "RAY_AUTOSCALER_PENDING_NODE_IDLE_TIMEOUT_S",
        ("timeouts", "pending_idle_s"),
        _MaybeSeconds,
        TEN_YEARS_S,
    ),
    Variable(
        "RAY_AUTOSCALER_AVAILABILITY_RECOVERY_S", ("backoff", "recovery_s"), PositiveSeconds, TEN_YEARS_S
    ),
)


def with_environment(data: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Return `data` with the variables that are set in its section `muster`, where the file has no value."""
    section: dict[str, Any] = dict(data.get("muster", {}))
    for variable in VARIABLES:
        text = environment.get(variable.name, "").strip()
        if text:
            section = _filled(section, variable.path, _value(variable, text))
    return {**data, "muster": section} if section else dict(data)


def _filled(section: Mapping[str, Any], path: tuple[str, ...], value: object) -> dict[str, Any]:
    first, *rest = path
    if rest:
        return {**section, first: _filled(section.get(first, {}), tuple(rest), value)}
    return {first: value, **section}


def _value(variable: Variable, text: str) -> object:
    where = Document("", "environment")
    if variable.kind is bool:
        switches = {"1": True, "true": True, "0": False, "false": False}
        if text.lower() not in switches:
            raise where.error((variable.name,), f"must be 1 or 0, not {shortened(text)}")
        return switches[text.lower()]
    number = checked(where, (variable.name,), _number(variable, text), variable.kind)
    return None if variable.kind is _MaybeSeconds and number < 0 else number


def _number(variable: Variable, text: str) -> object:
    """Return the number; a text that is not a number stays as it is, to be refused by its type."""
    if text.lower() in ("inf", "+inf", "infinity") and variable.endless is not None:
        return variable.endless
    try:
        value = float(text)
    except ValueError:
        return text
    return int(value) if value.is_integer() else value
