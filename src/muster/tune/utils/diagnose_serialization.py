"""Try out a trainable before an experiment: can it be sent to another process, saved and restored?"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Literal

from muster.tune.registry import get_trainable, trainable_name
from muster.tune.trainable.function_trainable import is_trainable_class
from muster.tune.trainable.packing import culprits

logger = logging.getLogger(__name__)

_STEPS = 3


def diagnose_serialization(trainable: Any) -> Literal[True] | set[str]:  # noqa: ANN401 - function or class
    """True when it can be sent to another process, else the names of the captured objects that cannot.

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
    """True when a new object restored from a checkpoint stands where the saved one stood, and goes on.

    Runs three steps, a save and two more steps in this process, whose GPUs are used as they are: `num_gpus`
    is there for scripts written for Ray. AssertionError says what is lost.
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
    _agree(first.get_state(), second.get_state(), f"{name}: restored from a checkpoint, it stands elsewhere")
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
