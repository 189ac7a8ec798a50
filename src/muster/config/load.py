"""Read a cluster file: types, preparation, then what no single key can say. Called by the CLI and by
`FileSpecSource`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct

from muster.config.check import checked
from muster.config.document import Document
from muster.config.normalize import prepare
from muster.config.schema import (
    MANY,
    TEN_YEARS_S,
    ClusterConfig,
    Count,
    Interval,
    Port,
    PositiveCount,
    PositiveSeconds,
    Seconds,
)
from muster.config.validate import check_prepared, check_written
from muster.errors import ConfigError

_MaybeSeconds = Annotated[float, Meta(ge=-TEN_YEARS_S, le=TEN_YEARS_S)]


class Variable(Struct, frozen=True):
    """One variable: where its value goes within `muster`, what it may be, and what `inf` stands for."""

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
    """`data` with the variables that are set in its section `muster`, where the file says nothing."""
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
    if variable.kind is bool:
        return _switch(variable, text)
    where = Document("", "environment")
    number = checked(where, (variable.name,), _number(variable, text), variable.kind)
    return None if variable.kind is _MaybeSeconds and number < 0 else number


def _number(variable: Variable, text: str) -> object:
    """What the text says; a text that is no number goes on as it is, to be refused by its kind."""
    if text.lower() in ("inf", "+inf", "infinity") and variable.endless is not None:
        return variable.endless
    try:
        value = float(text)
    except ValueError:
        return text
    return int(value) if value.is_integer() else value


def _switch(variable: Variable, text: str) -> bool:
    known = {"1": True, "true": True, "0": False, "false": False}
    if text.lower() not in known:
        raise ConfigError(f"must be 1 or 0, not {text!r}", path=variable.name, file="environment")
    return known[text.lower()]


_NO_VARIABLES: Mapping[str, str] = {}


def load_config(path: Path, environment: Mapping[str, str] = _NO_VARIABLES) -> ClusterConfig:
    """The file as typed data; ConfigError names file, line, key and fix."""
    return parse_config(Document.load(path), environment)


def parse_config(document: Document, environment: Mapping[str, str] = _NO_VARIABLES) -> ClusterConfig:
    """Typed data of a document already read; `environment` gives settings that the file does not."""
    if document.data is None:
        raise document.error((), "is empty; it needs cluster_name, provider and available_node_types")
    check_written(document, checked(document, (), document.data, ClusterConfig))
    config = checked(document, (), with_environment(prepare(document), environment), ClusterConfig)
    check_prepared(document, config)
    return config
