"""Define Ray's `tune.utils.util`: checks of trainables, and functions of nested dicts."""

from __future__ import annotations

import copy
import logging
import subprocess
from collections import deque
from collections.abc import Collection, Mapping
from typing import Any, Literal

from muster.base.clock import Clock, SystemClock
from muster.host.machine import environment
from muster.tune.execution.paths import dated
from muster.tune.registry import get_trainable
from muster.tune.search.paths import unflattened
from muster.tune.trainable.function_trainable import culprits, is_trainable_class, trainable_name

logger = logging.getLogger(__name__)

_QUERY = ("nvidia-smi", "--query-gpu=index,uuid,memory.used,memory.total", "--format=csv,noheader,nounits")


def wait_for_gpu(
    gpu_id: int | str | None = None,
    target_util: float = 0.01,
    retry: int = 20,
    delay_s: float = 5,
    gpu_memory_limit: float | None = None,
) -> bool:
    """Wait until less than `target_util` of a GPU's memory is in use; RuntimeError when it never is.

    Args:
        gpu_id: Its number or its UUID; None: the first one this process may use.
        retry: How often to check.
        delay_s: Seconds between two checks.
    """
    if gpu_memory_limit is not None:
        raise ValueError("wait_for_gpu(gpu_memory_limit=...) does not exist any more: use target_util")
    return wait_until_free(_wanted(gpu_id), target_util, retry, delay_s, SystemClock())


def wait_until_free(gpu: str, target_util: float, retry: int, delay_s: float, clock: Clock) -> bool:
    used = 1.0
    for attempt in range(retry):
        used = memory_use(gpu)
        if used < target_util:
            return True
        logger.info("GPU %s: %.1f %% of its memory is in use, waiting (%d)", gpu, used * 100, attempt + 1)
        clock.sleep(delay_s)
    raise RuntimeError(
        f"GPU {gpu}: {used:.1%} of its memory is in use after {retry} checks, {delay_s} s apart; less than "
        f"{target_util:.1%} is wanted. Another process holds it: see nvidia-smi, or raise target_util"
    )


def memory_use(gpu: str) -> float:
    """Return the used share of a GPU's memory; RuntimeError without nvidia-smi, ValueError without a GPU."""
    try:
        answer = subprocess.run(_QUERY, capture_output=True, text=True, check=True, timeout=30)
    except FileNotFoundError:
        raise RuntimeError(
            "wait_for_gpu needs the command nvidia-smi, which is not on the PATH: install the NVIDIA driver, "
            "or do not call it on machines without a GPU"
        ) from None
    except subprocess.SubprocessError as error:
        raise RuntimeError(f"wait_for_gpu: nvidia-smi failed: {error}") from error
    found = {}
    for line in answer.stdout.splitlines():
        index, uuid, used, total = (part.strip() for part in line.split(","))
        found[index] = found[uuid] = float(used) / float(total)
    if gpu not in found:
        known = ", ".join(found) or "none"
        raise ValueError(f"wait_for_gpu: there is no GPU {gpu!r}; nvidia-smi shows: {known}")
    return found[gpu]


def _wanted(gpu_id: int | str | None) -> str:
    if isinstance(gpu_id, bool) or not isinstance(gpu_id, int | str | None):
        raise ValueError(f"wait_for_gpu(gpu_id={gpu_id!r}): must be a number or a UUID")
    if gpu_id is not None:
        return str(gpu_id)
    visible = environment().get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    if not visible:
        raise RuntimeError("wait_for_gpu: this process may use no GPU (CUDA_VISIBLE_DEVICES is empty)")
    return visible


_STEPS = 3


def diagnose_serialization(trainable: Any) -> Literal[True] | set[str]:  # noqa: ANN401 - function or class
    """Return True when a trainable can be pickled, else the names of captured objects that cannot.

    Example:
        >>> diagnose_serialization(lambda config: {"loss": 0})
        True
    """
    found = culprits(trainable)
    for where, what in found:
        logger.warning("%s cannot be pickled: it is %s", where, what)
    return {where.rpartition(" > ")[2] for where, _ in found} or True


def validate_save_restore(
    trainable_cls: Any,  # noqa: ANN401 - a Trainable class, or its registered name
    config: Mapping[str, Any] | None = None,
    num_gpus: int = 0,
) -> bool:
    """Return True when an object restored from a checkpoint continues where the saved one stopped.

    Runs three steps, a save and two more steps in this process, whose GPUs are used as they are: `num_gpus`
    is there for scripts written for Ray. The AssertionError names what is lost.
    """
    kind = get_trainable(trainable_cls) if isinstance(trainable_cls, str) else trainable_cls
    name = trainable_name(kind)
    if not is_trainable_class(kind):
        raise ValueError(f"validate_save_restore: {name} must be a subclass of tune.Trainable")
    first, second = kind(dict(config or {})), kind(dict(config or {}))
    try:
        _compare(first, second, name)
    finally:
        first.stop()
        second.stop()
    return True


def _compare(first: Any, second: Any, name: str) -> None:  # noqa: ANN401
    for _ in range(_STEPS):
        first.train()
    saved = first.save()
    second.restore(saved)
    _agree(first.get_state(), second.get_state(), f"{name}: restored from a checkpoint, it has another state")
    again = second.save()
    if again.checkpoint.path == saved.checkpoint.path:
        raise AssertionError(f"{name}: a second save overwrote the checkpoint {saved.checkpoint.path}")
    _agree(
        first.train()["training_iteration"],
        second.train()["training_iteration"],
        f"{name}: after a restore it counts its steps differently",
    )


def _agree(one: object, other: object, complaint: str) -> None:
    if one != other:
        raise AssertionError(f"{complaint}: {other!r} instead of {one!r}")


Nested = dict[str, Any]
_RAISE: Any = object()


def flatten_dict(
    dt: Mapping[str, Any], delimiter: str = "/", prevent_delimiter: bool = False, flatten_list: bool = False
) -> Nested:
    """Return inner dicts joined into one, `a/b`; what lies deeper comes later.

    ValueError when a key holds the delimiter and `prevent_delimiter` is set.

    Example:
        >>> flatten_dict({"a": {"b": 1}, "c": 2})
        {'c': 2, 'a/b': 1}
    """
    kinds: tuple[type, ...] = (Mapping, list) if flatten_list else (Mapping,)
    flat: Nested = {}
    ahead: deque[tuple[str, Any]] = deque([("", dt)])
    while ahead:
        prefix, container = ahead.popleft()
        for name, value in container.items() if isinstance(container, Mapping) else enumerate(container):
            key = str(name)
            if prevent_delimiter and delimiter in key:
                raise ValueError(
                    f"the key {key!r} contains {delimiter!r}, which separates the levels: rename it"
                )
            if isinstance(value, kinds):
                ahead.append((f"{prefix}{key}{delimiter}", value))
            else:
                flat[prefix + key] = value
    return flat


def unflatten_dict(dt: Mapping[str, Any], delimiter: str = "/") -> Nested:
    """Return the opposite of `flatten_dict`.

    Example:
        >>> unflatten_dict({"a/b": 1, "c": 2})
        {'a': {'b': 1}, 'c': 2}
    """
    return unflattened({str(key): value for key, value in dt.items()}, delimiter)


def unflattened_lookup(flat_key: str, lookup: Any, delimiter: str = "/", **kwargs: Any) -> Any:  # noqa: ANN401
    """Return the value at a flat key of nested dicts and lists; `default=...` instead of an error."""
    default = kwargs.pop("default", _RAISE)
    if kwargs:
        raise TypeError(f"unflattened_lookup takes no {', '.join(kwargs)}")
    if isinstance(lookup, Mapping) and flat_key in lookup:
        return lookup[flat_key]
    key, _, rest = flat_key.partition(delimiter)
    try:
        inner = lookup[key] if isinstance(lookup, Mapping) else lookup[int(key)]
    except (KeyError, IndexError, ValueError, TypeError):
        if default is _RAISE:
            raise
        return default
    more = {} if default is _RAISE else {"default": default}
    return unflattened_lookup(rest, inner, delimiter, **more) if rest else inner


def merge_dicts(d1: Nested, d2: Nested) -> Nested:
    """Return a deep copy of the first dict, updated with the second, level by level.

    Example:
        >>> merge_dicts({"a": {"b": 1}}, {"a": {"c": 2}})
        {'a': {'b': 1, 'c': 2}}
    """
    return deep_update(copy.deepcopy(d1), d2, new_keys_allowed=True)


def deep_update(
    original: Nested,
    new_dict: Nested,
    new_keys_allowed: bool = False,
    allow_new_subkey_list: Collection[str] | None = None,
    override_all_if_type_changes: Collection[str] | None = None,
    override_all_key_list: Collection[str] | None = None,
) -> Nested:
    """Update `original` with `new_dict`, in place, level by level.

    Args:
        new_keys_allowed: Otherwise a key that `original` lacks is a KeyError.
        allow_new_subkey_list: Below these top-level keys, new keys are allowed.
        override_all_if_type_changes: These are replaced as a whole when their "type" is another one.
        override_all_key_list: These are replaced as a whole.
    """
    for key, value in new_dict.items():
        if key not in original and not new_keys_allowed:
            known = ", ".join(map(str, original)) or "none"
            raise KeyError(f"unknown key {key!r}; known: {known}")
        old: Any = original.get(key)
        if not isinstance(old, dict) or not isinstance(value, dict):
            is_whole = True
        else:
            has_other_type = old.get("type") != value.get("type", old.get("type"))
            is_whole = key in (override_all_key_list or ()) or (
                key in (override_all_if_type_changes or ()) and has_other_type
            )
        if is_whole:
            original[key] = value
        else:
            deep_update(old, value, new_keys_allowed or key in (allow_new_subkey_list or ()))
    return original


def date_str() -> str:
    """Return the current time as in the names of experiments: `2026-11-16_02-10-00`."""
    return dated(SystemClock().now())


class warn_if_slow:
    """Logs a warning when the block takes longer than `threshold` seconds (0.5).

    Example:
        >>> with warn_if_slow("loading"):
        ...     pass
    """

    DEFAULT_THRESHOLD = 0.5
    DEFAULT_MESSAGE = "{name} took {duration:.3f} s; that may slow down the experiment"

    def __init__(
        self, name: str, threshold: float | None = None, message: str | None = None, disable: bool = False
    ) -> None:
        """Take a `message` that may use {name} and {duration}."""
        self.name, self.disable = name, disable
        self.threshold = self.DEFAULT_THRESHOLD if threshold is None else threshold
        self.message = message or self.DEFAULT_MESSAGE
        self._clock = SystemClock()
        self._began_at = 0.0

    def __enter__(self) -> warn_if_slow:
        self._began_at = self._clock.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        took_s = self._clock.monotonic() - self._began_at
        if took_s > self.threshold and not self.disable:
            logger.warning("%s", self.message.format(name=self.name, duration=took_s))


__all__ = ["date_str", "diagnose_serialization", "validate_save_restore", "wait_for_gpu", "warn_if_slow"]
