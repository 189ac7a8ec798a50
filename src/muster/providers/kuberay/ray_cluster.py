"""Derive the cluster's configuration from a RayCluster: node types, sizes and limits of its groups. Pure.

What is wrong is a ConfigError that names the field of the RayCluster and what to write there.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

import yaml

from muster.config.document import Document
from muster.config.schema import MANY, ClusterConfig
from muster.errors import ConfigError
from muster.providers.kind import parse_config

HEAD_GROUP = "headgroup"
SETTINGS = "muster/config"  # annotation: YAML with `muster`, and prices of groups as `available_node_types`
HEAD_PORT = 6379
CONSERVATIVE_SPEED = 1
FAST = 1000

Plain = Mapping[str, Any]
Warn = Callable[[str], None]

_UNITS = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "": Decimal(1),
    **{key: Decimal(1000) ** (n + 1) for n, key in enumerate(("k", "M", "G", "T", "P", "E"))},
    "K": Decimal(1000),
    **{key: Decimal(1024) ** (n + 1) for n, key in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"))},
}
_QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)([A-Za-z]*)")


def quantity(value: object) -> Decimal:
    """Return a Kubernetes quantity as a number; ValueError for anything else.

    Example:
        >>> quantity("500m"), quantity("2Gi"), quantity(3)
        (Decimal('0.500'), Decimal('2147483648'), Decimal('3'))
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Decimal(str(value))
    found = _QUANTITY.fullmatch(value.strip()) if isinstance(value, str) else None
    unit = _UNITS.get(found[2]) if found else None
    if found is None or unit is None:
        raise ValueError(f"{value!r} is not a quantity: write a number, with a unit such as m, k, M, Gi")
    try:
        return Decimal(found[1]) * unit
    except InvalidOperation:
        raise ValueError(f"{value!r} is not a quantity: the number is too large") from None


def whole(value: object) -> int:
    """Return a quantity rounded up to a whole number."""
    return math.ceil(quantity(value))


# -- resources of a group ---------------------------------------------------------------------------

_TPU = "google.com/tpu"
_TPU_TOPOLOGY = "cloud.google.com/gke-tpu-topology"
_TPU_ACCELERATOR = "cloud.google.com/gke-tpu-accelerator"
_TPU_GENERATIONS = {
    "tpu-v4-podslice": "v4",
    "tpu-v5-lite-device": "v5litepod",
    "tpu-v5-lite-podslice": "v5litepod",
    "tpu-v5p-slice": "v5p",
    "tpu-v6e-slice": "v6e",
    "tpu7x": "v7x",
}
_ONE_CORE_PER_CHIP = ("v5litepod", "v6e")
_NAMED = ("CPU", "GPU", "TPU", "memory")
_NEVER = "object_store_memory"
_OVERRIDDEN = ("num-cpus", "num-gpus", "memory", "resources")


class GroupReader:
    """Reads the sizes of one group; `where` is its place in the RayCluster, for errors."""

    def __init__(self, group: Plain, where: str, warn: Warn) -> None:
        self._where, self._warn, self._group = where, warn, group
        self._params = self._mapping(group, "rayStartParams")
        template = self._mapping(self._mapping(group, "template"), "spec")
        containers = template.get("containers")
        first = containers[0] if isinstance(containers, list) and containers else {}
        sizes = self._mapping(first if isinstance(first, Mapping) else {}, "resources")
        self._limits, self._requests = self._mapping(sizes, "limits"), self._mapping(sizes, "requests")
        self._own = self._mapping(group, "resources")
        self._selector = self._mapping(template, "nodeSelector")

    def _mapping(self, section: Plain, key: str) -> Plain:
        found = section.get(key)
        if found is None:
            return {}
        if not isinstance(found, Mapping):
            raise ConfigError(f"is {found!r}, not a mapping", path=f"{self._where}.{key}", fix="fix it")
        return found

    def resources(self) -> dict[str, int]:
        """Return what a pod of the group offers to Ray; its CPUs must be known."""
        cpu = self._first(("CPU", "num-cpus", "cpu"))
        if cpu is None:
            raise ConfigError(
                "has no CPUs: set resources.limits.cpu of its first container, or num-cpus in rayStartParams",
                path=self._where,
            )
        found, custom = {"CPU": cpu}, self._custom()
        tpus = self._first(("TPU", "", _TPU))
        for name, value in (
            ("memory", self._first(("memory", "memory", "memory"))),
            ("GPU", self._gpus()),
            ("TPU", tpus if "TPU" in self._own else custom.pop("TPU", tpus)),
        ):
            if value:
                found[name] = value
        if found.get("TPU"):
            found.update(self._tpu_head())
        overridden = [key for key in _OVERRIDDEN if self._own and key in self._params]
        if overridden:
            text = f"{self._where}.resources takes precedence over rayStartParams ({', '.join(overridden)})"
            self._warn(f"{text}: remove one of them")
        return {**found, **custom}

    def _first(self, keys: tuple[str, str, str]) -> int | None:
        """Return the first that is given: by the group, for `ray start`, the container's limit, request."""
        own, param, container = keys
        for section, key, place in (
            (self._own, own, "resources"),
            (self._params, param, "rayStartParams"),
            (self._limits, container, "limits"),
            (self._requests, container, "requests"),
        ):
            if key and key in section:
                return self._whole(section[key], f"{place}.{key}")
        return None

    def _whole(self, value: object, place: str) -> int:
        try:
            found = whole(value)
        except ValueError as error:
            raise ConfigError(str(error), path=f"{self._where}.{place}") from None
        if found < 0:
            raise ConfigError(f"{value!r} is negative", path=f"{self._where}.{place}", fix="write at least 0")
        return found

    def _gpus(self) -> int | None:
        """Accelerators of several makers are GPUs: `nvidia.com/gpu`, `amd.com/gpu`, `gpu.intel.com/gpu`."""
        named = self._first(("GPU", "num-gpus", ""))
        if named is not None:
            return named
        for section, place in ((self._limits, "limits"), (self._requests, "requests")):
            for key in section:
                if key.endswith("gpu"):
                    count = self._whole(section[key], f"{place}.{key}")
                    if count > 0:
                        return count
        return None

    def _tpu_head(self) -> dict[str, int]:
        """One host of a slice stands for the slice: `TPU-v4-16-head`."""
        topology = self._selector.get(_TPU_TOPOLOGY)
        generation = _TPU_GENERATIONS.get(str(self._selector.get(_TPU_ACCELERATOR)))
        if not isinstance(topology, str) or generation is None:
            return {}
        sides = topology.lower().split("x")
        if not all(side.isdecimal() for side in sides):
            raise ConfigError(
                f"{topology!r} is not a topology",
                path=f"{self._where}.nodeSelector.{_TPU_TOPOLOGY}",
                fix="write it like 2x2x1",
            )
        cores = math.prod(map(int, sides)) * (1 if generation in _ONE_CORE_PER_CHIP else 2)
        return {f"TPU-{generation}-{cores}-head": 1}

    def _custom(self) -> dict[str, int]:
        if self._own:
            items = {key: value for key, value in self._own.items() if key not in (*_NAMED, _NEVER)}
            return {key: self._whole(value, f"resources.{key}") for key, value in items.items()}
        given = self._params.get("resources")
        if given is None:
            return {}
        place = f"{self._where}.rayStartParams.resources"
        text = str(given).strip().strip("'\"").replace("\\", "")
        try:
            found = json.loads(text)
            dropped = (*(name for name in _NAMED if name != "TPU"), _NEVER)
            items = {str(key): int(value) for key, value in found.items() if key not in dropped}
        except (ValueError, TypeError, AttributeError):
            raise ConfigError(
                f"{given!r} is not JSON of whole numbers",
                path=place,
                fix='write it like "{\\"accelerator\\": 1}"',
            ) from None
        return items

    def labels(self) -> dict[str, str]:
        """Return the labels of the group's nodes; those among the start parameters are not used."""
        if "labels" in self._params:
            self._warn(f"{self._where}.rayStartParams.labels is not used: write the group's own `labels`")
        found = self._mapping(self._group, "labels")
        for key, value in found.items():
            if not (_is_label_key(str(key)) and isinstance(value, str) and _LABEL.fullmatch(value)):
                raise ConfigError(
                    f"{value!r} is not a label of Kubernetes: use up to 63 letters, digits, '-', '_' and '.'",
                    path=f"{self._where}.labels.{key}",
                )
        return {str(key): str(value) for key, value in found.items()}


_LABEL = re.compile(r"|[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_PREFIX = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")


def _is_label_key(key: str) -> bool:
    prefix, slash, name = key.rpartition("/")
    return (
        bool(name) and _LABEL.fullmatch(name) is not None and (not slash or bool(_PREFIX.fullmatch(prefix)))
    )


# -- the whole --------------------------------------------------------------------------------------


def cluster_config(
    cluster: Plain, environment: Mapping[str, str] | None = None, warn: Warn = lambda text: None
) -> ClusterConfig:
    """Return the configuration of a RayCluster. Raises ConfigError for what cannot be used."""
    found, spec = cluster.get("metadata"), cluster.get("spec")
    metadata: Plain = found if isinstance(found, Mapping) else {}
    name, namespace = str(metadata.get("name", "")), str(metadata.get("namespace") or "default")
    file = f"RayCluster {namespace}/{name}"
    try:
        if not isinstance(spec, Mapping):
            raise ConfigError("has no spec", fix="is it a RayCluster?")
        data = {**_settings(metadata), "cluster_name": name}
        prices = data.pop("available_node_types", {})
        types = dict(_types(spec, warn))
        data |= _limits(spec, types)
        data["provider"] = {"type": "kuberay", "namespace": namespace}
        data["head_node_type"] = HEAD_GROUP
        data["available_node_types"] = {key: {**prices.get(key, {}), **one} for key, one in types.items()}
        unknown = [key for key in prices if key not in types]
        if unknown:
            known = ", ".join(types)
            raise ConfigError(
                f"has {unknown[0]!r}, which is not a group", path=SETTINGS, fix=f"there are {known}"
            )
        return parse_config(Document(json.dumps(data), file), environment or {})
    except ConfigError as error:
        raise ConfigError(error.message, path=error.path, file=file, fix=error.fix) from None


def head_port(cluster: Plain) -> int:
    """Return the port of the head's GCS."""
    spec = cluster.get("spec")
    head = spec.get("headGroupSpec") if isinstance(spec, Mapping) else None
    params = head.get("rayStartParams") if isinstance(head, Mapping) else None
    port = str(params.get("port", "")) if isinstance(params, Mapping) else ""
    return int(port) if port.isdecimal() and 0 < int(port) < 65536 else HEAD_PORT


def _settings(metadata: Plain) -> dict[str, Any]:
    """Return muster's own settings, from an annotation: KubeRay's objects have no place for them."""
    notes = metadata.get("annotations")
    text = notes.get(SETTINGS) if isinstance(notes, Mapping) else None
    if text is None:
        return {"muster": {"limits": {"max_concurrent": MANY}}}
    try:
        found = yaml.safe_load(text) or {}
    except (yaml.YAMLError, AttributeError):
        raise ConfigError("is not YAML", path=f"annotation {SETTINGS}", fix="fix it or remove it") from None
    allowed = ("muster", "available_node_types")
    wrong = next((key for key in found if key not in allowed), None) if isinstance(found, dict) else found
    types = found.get("available_node_types") or {} if isinstance(found, dict) else None
    if (
        wrong is not None
        or not isinstance(types, dict)
        or not all(isinstance(v, dict) for v in types.values())
    ):
        raise ConfigError(
            f"has {wrong!r}",
            path=f"annotation {SETTINGS}",
            fix="it may have `muster`, and prices of groups under `available_node_types`",
        )
    muster = dict(found.get("muster") or {})
    muster["limits"] = {"max_concurrent": MANY, **(muster.get("limits") or {})}
    return {"muster": muster, "available_node_types": dict(types)}


def _types(spec: Plain, warn: Warn) -> Iterator[tuple[str, dict[str, Any]]]:
    head = spec.get("headGroupSpec")
    reader = GroupReader(head if isinstance(head, Mapping) else {}, "headGroupSpec", warn)
    yield HEAD_GROUP, {"resources": reader.resources(), "labels": reader.labels(), "max_workers": 0}
    listed = spec.get("workerGroupSpecs")
    if listed is not None and not isinstance(listed, list):
        raise ConfigError("is not a list", path="workerGroupSpecs", fix="fix it")
    seen: set[str] = set()
    for index, group in enumerate(listed or ()):
        name = group.get("groupName") if isinstance(group, Mapping) else None
        where = f"workerGroupSpecs[{index}]"
        if not isinstance(name, str) or not name or name in seen or name == HEAD_GROUP:
            raise ConfigError(
                f"{name!r} cannot be the name of a group", path=where, fix="give it another name"
            )
        seen.add(name)
        yield name, _type(group, f"{where} ({name})", warn)


def _type(group: Plain, where: str, warn: Warn) -> dict[str, Any]:
    reader = GroupReader(group, where, warn)
    hosts = max(1, _number(group, "numOfHosts", where, 1))
    least, most = _number(group, "minReplicas", where, 0), _number(group, "maxReplicas", where, MANY)
    if group.get("suspend") is True:  # of a RayJob: the operator removes its pods
        least = most = 0
    if least > most:  # as the operator does
        warn(f"{where}: minReplicas {least} is above maxReplicas {most}: {most} is used; fix one of them")
        least = most
    found: dict[str, Any] = {
        "resources": reader.resources(),
        "labels": reader.labels(),
        "min_workers": min(MANY, least * hosts),
        "max_workers": min(MANY, most * hosts),
    }
    if group.get("idleTimeoutSeconds") is not None:
        found["idle_timeout_s"] = _number(group, "idleTimeoutSeconds", where, 0)
    if group.get("priority") is not None:
        found["priority"] = _number(group, "priority", where, 0, least=-(10**9))
    return found


def _number(group: Plain, key: str, where: str, default: int, least: int = 0) -> int:
    value = group.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{value!r} is not a whole number of at least {least}", path=f"{where}.{key}")
    return value


def _limits(spec: Plain, types: Mapping[str, Plain]) -> dict[str, Any]:
    found = spec.get("autoscalerOptions")
    options = found if isinstance(found, Mapping) else {}
    idle_s = _number(options, "idleTimeoutSeconds", "autoscalerOptions", 60)
    mode = options.get("upscalingMode")
    return {
        "max_workers": min(MANY, sum(one["max_workers"] for one in types.values())),
        "idle_timeout_minutes": idle_s / 60,
        "upscaling_speed": CONSERVATIVE_SPEED if mode == "Conservative" else FAST,
    }
