"""Define the functions that training code calls: report(), get_checkpoint(), should_checkpoint() and others.

An engine implements them; outside of a trial they do nothing.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from muster.host.machine import environment
from muster.session.older import older_metrics, pending, pending_directory
from muster.session.session import TuneContext, current

if TYPE_CHECKING:
    from muster.session.checkpoint import Checkpoint
    from muster.session.session import PreemptionInfo, Session

REPORT_TO = "MUSTER_REPORT_TO"  # in the environment of what a trial starts: the socket for its results
OUTER_RANKS = "MUSTER_OUTER_RANKS"  # ranks of the driver itself, which are not ranks inside of a trial
RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
_warned: set[str] = set()
_trial_process = [0]


def note_trial_process() -> None:
    """Note that this process runs trials itself: it does not report to itself when it runs none."""
    _trial_process[0] = os.getpid()


def _session() -> Session | None:
    """Return the session of the trial that runs in this process, or has started it."""
    session = current()
    if session is not None or REPORT_TO not in environment():
        return session
    from muster.session.child import child_session  # only in a process that a trial has started

    return None if _trial_process[0] == os.getpid() else child_session()


def report(
    metrics: Mapping[str, Any] | None = None,
    *,
    checkpoint: Checkpoint | None = None,
    **older: Any,  # noqa: ANN401 - metrics by name
) -> None:
    """Report one result, with a checkpoint if there is one; waits until the trial may continue.

    Outside of a trial nothing happens, except one warning. Metrics by name, `report(loss=1)`, are accepted
    with a warning, as older versions of Ray had them.

    Args:
        metrics: The metrics by name; nested dicts are allowed.
        checkpoint: The state to resume from.
        older: Metrics by name.

    Example:
        >>> def train(config):
        ...     for step in range(10):
        ...         report({"loss": config["lr"] * step})
    """
    if older or metrics is None:
        metrics = older_metrics(metrics, older)
    session = _session()
    if session is None:
        _warn_once("report")
        return
    if pending and checkpoint is None:
        from muster.session.checkpoint import Checkpoint

        with pending_directory() as folder:
            report(metrics, checkpoint=Checkpoint.from_directory(folder))
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
    """Return the newest checkpoint of this trial, to continue from; None when there is none."""
    session = _session()
    if session is None:
        _warn_once("get_checkpoint")
        return None
    return session.get_checkpoint()


def get_preemption_info() -> PreemptionInfo | None:
    """Return what is announced about the machine of this trial: its deadline, kind and source.

    None as long as nothing is announced, after a notice is withdrawn, and outside of a trial. Asking is
    cheap: training code may do so in every step.
    """
    session = _session()
    return None if session is None else session.get_preemption_info()


def should_checkpoint() -> bool:
    """Return whether to report a checkpoint now: the cloud announced a reclaim, and none was reported since.

    The trial is then ended on that machine and continues elsewhere, from this checkpoint.

    Example:
        >>> def train(config):
        ...     for step in range(10):
        ...         checkpoint = save(step) if step % 5 == 0 or should_checkpoint() else None
        ...         report({"loss": config["lr"] * step}, checkpoint=checkpoint)
    """
    session = _session()
    return session is not None and session.should_checkpoint()


def get_context() -> TuneContext:
    """Return names, directory and resources of this trial; outside of one every getter returns None."""
    session = _session()
    return session.context if session is not None else TuneContext()


def _warn_once(function: str) -> None:
    if function not in _warned:
        _warned.add(function)
        warnings.warn(f"{function}() was called outside of a trial, where it does nothing", stacklevel=3)


def rank_of(variables: Mapping[str, str]) -> int | None:
    """Return the rank of this process among several that train together; None: it has no rank.

    Example:
        >>> rank_of({"RANK": "3"}), rank_of({"SLURM_PROCID": "1", "MUSTER_OUTER_RANKS": "SLURM_PROCID=1"})
        (3, None)
    """
    for name in RANKS:
        text = variables.get(name, "")
        if text.isdigit() and f"{name}={text}" not in variables.get(OUTER_RANKS, "").split():
            return int(text)
    return None


def outer_ranks(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variable by which children ignore the ranks of the process that starts them."""
    ranks = " ".join(f"{name}={variables[name]}" for name in RANKS if name in variables)
    return {OUTER_RANKS: ranks} if ranks else {}
