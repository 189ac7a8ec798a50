"""Why an actor ended, from what Ray says of it: the machine, the memory, the start, or somebody's signal.

Works on the names and texts of Ray's exceptions, so that it can be tested without a cluster.
"""

from __future__ import annotations

from muster.engines.ray.last_words import killed
from muster.trials.events import FailureKind, TrialFailure

_NODE_WORDS = (
    "node has died",
    "node died",
    "node was terminated",
    "its node",
    "node is dead",
    "node failure",
    "NODE_DIED",
)
_START_NAMES = ("RuntimeEnvSetupError", "ActorUnschedulableError", "ActorPlacementGroupRemoved")
_MOST_CHARACTERS = 800


def is_unsure(outcome: BaseException) -> bool:
    """Ray has lost sight of the actor and does not know yet whether it lives."""
    return type(outcome).__name__ == "ActorUnavailableError"


def of_outcome(outcome: BaseException | None) -> TrialFailure:
    """The failure that a dead actor's call tells of; None: the call returned."""
    if outcome is None:
        return TrialFailure(kind=FailureKind.EXITED, message="the actor ended before the trial did")
    text, name = str(outcome), type(outcome).__name__
    if getattr(outcome, "preempted", False):
        message = "its node was taken back (preempted) while the trial ran"
        return TrialFailure(kind=FailureKind.PREEMPTED, message=message)
    if "OutOfMemory" in name or "OOM" in name or "memory monitor" in text or "memory pressure" in text:
        message = f"Ray ended the process because memory ran out: {_gist(text)}"
        return TrialFailure(kind=FailureKind.OUT_OF_MEMORY, message=message)
    if name in ("NodeDiedError", "ActorUnavailableError") or any(words in text for words in _NODE_WORDS):
        return node_lost(_gist(text))
    if name in _START_NAMES or getattr(outcome, "_actor_init_failed", False):
        return start(_gist(text))
    if name == "ActorDiedError" or "actor died" in text:
        return _of_death(text)
    return start(_gist(text))


def _of_death(text: str) -> TrialFailure:
    if "ray.kill" in text:
        return TrialFailure(kind=FailureKind.KILLED, message="its actor was ended by ray.kill, not by us")
    if "SIGTERM" in text:
        return TrialFailure(kind=FailureKind.KILLED, message="killed by signal 15 (SIGTERM)")
    return killed()


def node_lost(what: str) -> TrialFailure:
    return TrialFailure(kind=FailureKind.NODE_LOST, message=f"its node went away: {what}")


def start(why: str) -> TrialFailure:
    return TrialFailure(kind=FailureKind.START, message=f"its actor could not start: {why}")


def _gist(text: str) -> str:
    """Ray's texts begin with identifiers on lines of their own, and end with a page of advice."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("\t")]
    short = " ".join(lines)
    return short if len(short) <= _MOST_CHARACTERS else short[:_MOST_CHARACTERS] + "..."
