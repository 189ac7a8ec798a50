"""Decide which checkpoints of a trial are kept and which directories may be deleted; deletes nothing.

The core calls `register` for every checkpoint; the controller calls `deletable` before it deletes any.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from muster.base.untrusted import type_text
from muster.trials.events import CheckpointToDelete
from muster.trials.model import CheckpointPolicy, CheckpointRef, Trial

Score = tuple[int, float]
LOWEST: Score = (0, 0.0)  # NaN
_ABSENT = object()


def register(trial: Trial, checkpoint: CheckpointRef) -> tuple[CheckpointRef, ...]:
    """Add the newest checkpoint to a trial and returns those the trial no longer keeps, worst first.

    TypeError when its score cannot be compared with the others'; the trial is then unchanged.
    """
    # A directory that is reported again was made when it was reported first.
    same = next((known for known in trial.checkpoints if known.path == checkpoint.path), None)
    checkpoint = replace(checkpoint, rows=trial.num_rows if same is None else same.rows)
    policy, known = trial.checkpoint_policy, trial.checkpoints
    if policy.only_score:  # the newest one keeps all, as the trial may continue from it
        known = tuple(_trimmed(ref, policy) for ref in known)
    kept, dropped = retained(known, checkpoint, policy)
    trial.checkpoints = kept
    trial.adopted = None
    trial.checkpoint_index = max(trial.checkpoint_index, checkpoint.index)
    return dropped


def adopt(trial: Trial, checkpoint: CheckpointRef) -> None:
    """Let a trial without a process continue from a checkpoint of another trial, until it makes its own.

    The checkpoint still belongs to the other trial: it does not count among those that this trial keeps, and
    the numbering of this trial's own checkpoints continues.
    """
    metrics = dict(checkpoint.metrics)
    if "trial_id" in metrics:  # they will be shown as this trial's last result
        metrics["trial_id"] = trial.trial_id
    trial.adopted = replace(checkpoint, metrics=metrics, rows=trial.num_rows)


def retained(
    known: Sequence[CheckpointRef], newest: CheckpointRef, policy: CheckpointPolicy
) -> tuple[tuple[CheckpointRef, ...], tuple[CheckpointRef, ...]]:
    """Return what is kept, worst first, and what is dropped. `newest` is kept whatever its score."""
    # A directory reported again (a function's last report, saved once more on pause) is still one checkpoint.
    entries = [entry for entry in known if entry.path != newest.path]
    entries.insert(_position(entries, newest, policy), newest)
    if policy.num_to_keep is None:
        return tuple(entries), ()
    surplus = max(0, len(entries) - policy.num_to_keep)
    dropped = tuple(entry for entry in entries[:surplus] if entry.path != newest.path)
    gone = {entry.path for entry in dropped}
    return tuple(entry for entry in entries if entry.path not in gone), dropped


def best_checkpoints(kept: Sequence[CheckpointRef], policy: CheckpointPolicy) -> tuple[CheckpointRef, ...]:
    """Return the last `num_to_keep` entries, worst first; the newest one may make the list longer."""
    last = tuple(kept) if policy.num_to_keep is None else tuple(kept)[-policy.num_to_keep :]
    return tuple(_trimmed(ref, policy) for ref in last) if policy.only_score else last


def best_checkpoint(kept: Sequence[CheckpointRef], attribute: str, order: str) -> CheckpointRef | None:
    """Return the best by any metric, of equal ones the latest; None when no score is usable."""
    policy = CheckpointPolicy(score_attribute=attribute, score_order=order)
    scored = [(score(entry, policy), entry.index, entry) for entry in kept if _is_scored(entry, attribute)]
    return max(scored, key=lambda item: item[:2])[2] if scored else None


def score(ref: CheckpointRef, policy: CheckpointPolicy) -> Score:
    """Return a sort key, higher is better, in either order: NaN < absent or infinitely bad < numbers."""
    value = metric(ref.metrics, policy.score_attribute or "")
    if value is _ABSENT:
        return (1, -math.inf)
    number = _number(value, policy.score_attribute)
    if math.isnan(number):
        return LOWEST
    return (1, -number if policy.score_order == "min" else number)


def metric(metrics: Mapping[str, Any], name: str) -> Any:  # noqa: ANN401 - a user's value
    """Return a metric by its flat name: as it is, or with `/` as the path into nested results."""
    if name in metrics:
        return metrics[name]
    value: Any = metrics
    for part in name.split("/"):
        if not isinstance(value, Mapping) or part not in value:
            return _ABSENT
        value = value[part]
    return value


def _trimmed(ref: CheckpointRef, policy: CheckpointPolicy) -> CheckpointRef:
    """Return a checkpoint with only the score among its metrics."""
    name = policy.score_attribute
    value = metric(ref.metrics, name) if name else _ABSENT
    return replace(ref, metrics={} if value is _ABSENT or name is None else {name: value})


def deletable(
    scheduled: Iterable[CheckpointToDelete], durable: int, in_use: Collection[str] = ()
) -> tuple[tuple[CheckpointRef, ...], tuple[CheckpointToDelete, ...]]:
    """Return the checkpoints that may be deleted now, and those that wait.

    One waits while a crash could still bring back a state that refers to it (`durable` counts the facts that
    would survive), and while its directory is in use: kept by a trial, or being loaded, as in an exploit.
    """
    now: list[CheckpointRef] = []
    later: list[CheckpointToDelete] = []
    for each in scheduled:
        if each.after <= durable and each.ref.path not in in_use:
            now.append(each.ref)
        else:
            later.append(each)
    return tuple(now), tuple(later)


def _position(entries: Sequence[CheckpointRef], newest: CheckpointRef, policy: CheckpointPolicy) -> int:
    """Return the position before the first entry that is strictly better, else the end."""
    if policy.score_attribute is None or not entries:
        return len(entries)
    own = score(newest, policy)
    for position, entry in enumerate(entries):
        if score(entry, policy) > own:
            return position
    return len(entries)


def _is_scored(ref: CheckpointRef, attribute: str) -> bool:
    value = metric(ref.metrics, attribute)
    return value is not _ABSENT and not math.isnan(_number(value, attribute))


def _number(value: Any, name: str | None) -> float:  # noqa: ANN401 - a user's value
    # numpy's scalars are numbers by `__float__`; so is nothing that holds text.
    if isinstance(value, str | bytes) or not hasattr(value, "__float__"):
        raise TypeError(f"checkpoint score {name!r} is {value!r}, {type_text(value)}: not a number")
    return float(value)
