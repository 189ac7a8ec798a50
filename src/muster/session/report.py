"""Defines the functions that training code calls: report(), get_checkpoint(), should_checkpoint() and others.

An engine implements them; outside of a trial they do nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from muster.session.session import TuneContext, current

if TYPE_CHECKING:
    from muster.session.checkpoint import Checkpoint
    from muster.session.session import PreemptionInfo

_warned: set[str] = set()


def report(metrics: Mapping[str, Any], *, checkpoint: Checkpoint | None = None) -> None:
    """Reports one result, with a checkpoint if there is one; waits until the trial may continue.

    Outside of a trial nothing happens, except one warning.

    Example:
        >>> def train(config):
        ...     for step in range(10):
        ...         report({"loss": config["lr"] * step})
    """
    session = current()
    if session is None:
        _warn_once("report")
        return
    try:  # costs nothing while all is well
        try:
            session.report(metrics, checkpoint)
        except (AttributeError, TypeError):
            given: object = metrics
            if isinstance(given, Mapping):
                raise
            example = f"report({{'loss': {metrics!r}}})"
            raise TypeError(
                f"report({metrics!r}): needs a dict with a name per value, e.g. {example}"
            ) from None
    except Exception as error:
        from muster.errors import before_raise

        before_raise(error)
        raise


def get_checkpoint() -> Checkpoint | None:
    """Returns the newest checkpoint of this trial, to continue from; None when there is none."""
    session = current()
    if session is None:
        _warn_once("get_checkpoint")
        return None
    return session.get_checkpoint()


def get_preemption_info() -> PreemptionInfo | None:
    """Returns what is announced about the machine of this trial: its deadline, kind and source.

    None as long as nothing is announced, when a notice was taken back, and outside of a trial. Asking is
    cheap: training code may do so in every step.
    """
    session = current()
    return None if session is None else session.get_preemption_info()


def should_checkpoint() -> bool:
    """Returns whether to report a checkpoint now: the machine will be taken, and none was reported since.

    The trial is then ended on that machine and goes on elsewhere, from this checkpoint.

    Example:
        >>> def train(config):
        ...     for step in range(10):
        ...         checkpoint = save(step) if step % 5 == 0 or should_checkpoint() else None
        ...         report({"loss": config["lr"] * step}, checkpoint=checkpoint)
    """
    session = current()
    return session is not None and session.should_checkpoint()


def get_context() -> TuneContext:
    """Returns names, directory and resources of this trial; outside of one every getter returns None."""
    session = current()
    return session.context if session is not None else TuneContext()


def _warn_once(function: str) -> None:
    if function not in _warned:
        _warned.add(function)
        warnings.warn(f"{function}() was called outside of a trial, where it does nothing", stacklevel=3)
