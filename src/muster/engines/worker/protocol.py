"""Define the messages between driver and worker: StartOrder and ExitReport. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from muster.base.framing import FrameKind, frame, pack, portable, unpack, unpickle


class ExitReport(NamedTuple):
    """A worker's account of how a trial ended."""

    is_done: bool
    stays: bool  # the process can serve another trial
    kind: str | None = None  # of the failure, a TrialFailureKind; None: the trial has not failed
    message: str = ""
    traceback: str = ""
    exception: bytes | None = None  # pickled
    took_s: float = 0.0  # from the order to this report, by the worker's own clock
    leaves_none: bool = False  # it has no descendants: when the process has ended, everything of it has


Bundles = tuple[list[dict[str, float]], str]


class StartOrder(NamedTuple):
    """Everything a worker needs to know about one trial."""

    trial_id: str
    trial_name: str
    trainable_name: str
    config: Any  # plain, or a pickle until `read_order`
    bundles: Bundles
    trial_dir: str
    experiment_name: str
    checkpoint_path: str | None = None
    checkpoint_metrics: Any = None
    checkpoint_index: int = -1
    log_to_file: tuple[str | None, str | None] = (None, None)
    stays_when_done: bool = False
    env: Mapping[str, str] = {}
    buffering: tuple[int, float, float, int] = (1, 0.0, 100.0, 0)  # of StartTrial
    has_leftovers: bool = False  # an earlier attempt may have left checkpoints in the remote storage
    storage: bytes | None = None  # where results go, when that is not this machine; see TrialStorage


def write_order(order: StartOrder) -> bytes:
    """Return a START frame; raise what pickling raises."""
    config, metrics = portable(order.config), portable(order.checkpoint_metrics)
    if config is not order.config or metrics is not order.checkpoint_metrics:
        order = order._replace(config=config, checkpoint_metrics=metrics)
    return frame(FrameKind.START, pack(tuple(order)))


def read_order(payload: bytes) -> StartOrder:
    """Return the order in a START frame; its config may still be a pickle, see `open_config`."""
    order = StartOrder(*unpack(payload))
    if order.checkpoint_metrics is None:
        return order
    return order._replace(checkpoint_metrics=unpickle(order.checkpoint_metrics))


def open_config(order: StartOrder) -> dict[str, Any]:
    """Return a config of the trial's own; raises what unpickling, which runs user code, raises."""
    config = unpickle(order.config)
    return config if type(config) is dict else dict(config)
