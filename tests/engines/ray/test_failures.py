from __future__ import annotations

import pytest

from muster.engines.ray.failures import is_actor_unavailable, outcome_failure
from muster.trials.events import TrialFailureKind

HEAD = "The actor died unexpectedly before finishing this task.\n\tclass_name: A\n\tpid: 1\n"


def outcome(name, text, **attributes):
    """An exception of Ray as far as it is looked at: the name of its class, its text, its flags."""
    return type(name, (Exception,), attributes)(text)


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        (
            outcome("ActorDiedError", HEAD + "Worker unexpectedly exits", preempted=True),
            TrialFailureKind.PREEMPTED,
        ),
        (
            outcome("OutOfMemoryError", "Task was killed due to the node running low on memory."),
            TrialFailureKind.OUT_OF_MEMORY,
        ),
        (outcome("NodeDiedError", "the node died"), TrialFailureKind.NODE_LOST),
        (
            outcome("ActorDiedError", HEAD + "The actor died because its node has died."),
            TrialFailureKind.NODE_LOST,
        ),
        (
            outcome("ActorUnavailableError", "The actor is temporarily unavailable"),
            TrialFailureKind.NODE_LOST,
        ),
        (outcome("RuntimeEnvSetupError", "Failed to set up runtime environment."), TrialFailureKind.START),
        (outcome("ActorUnschedulableError", "The actor is not schedulable"), TrialFailureKind.START),
        (
            outcome("ActorDiedError", "its constructor raised", _actor_init_failed=True),
            TrialFailureKind.START,
        ),
        (outcome("ActorDiedError", HEAD + "it was killed by `ray.kill`."), TrialFailureKind.KILLED),
        (outcome("RayTaskError", "anything else"), TrialFailureKind.START),
        (None, TrialFailureKind.EXITED),
    ],
)
def test_what_ray_says_becomes_a_kind_of_failure(found, kind):
    assert outcome_failure(found).kind is kind


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        (outcome("NodeDiedError", "the node died", preempted=False), TrialFailureKind.PREEMPTED),
        (outcome("ActorDiedError", HEAD + "its node has died.", preempted=False), TrialFailureKind.PREEMPTED),
        (outcome("ActorUnavailableError", "temporarily unavailable"), TrialFailureKind.PREEMPTED),
        (outcome("ActorDiedError", HEAD + "Worker unexpectedly exits"), TrialFailureKind.KILLED),
        (outcome("OutOfMemoryError", "the node was low on memory"), TrialFailureKind.OUT_OF_MEMORY),
    ],
)
def test_a_node_that_was_draining_and_died_was_taken_back(found, kind):
    """Ray forgets why the node was drained as soon as it knows that the node is dead."""
    assert outcome_failure(found, was_draining=True).kind is kind


def test_who_dies_without_a_word_was_killed():
    said = HEAD + "Worker exit type: SYSTEM_ERROR Worker unexpectedly exits with a connection error code 2."
    failure = outcome_failure(outcome("ActorDiedError", said))
    assert (failure.kind, failure.message[-11:]) == (TrialFailureKind.KILLED, "9 (SIGKILL)")


def test_the_message_is_one_line_without_identifiers():
    failure = outcome_failure(outcome("NodeDiedError", HEAD + "The node has died.\nSee the logs."))
    assert failure.message == (
        "its node went away: The actor died unexpectedly before finishing this task. The node has died. "
        "See the logs."
    )


def test_an_actor_out_of_sight_may_still_live():
    assert is_actor_unavailable(outcome("ActorUnavailableError", ""))
    assert not is_actor_unavailable(outcome("ActorDiedError", ""))
