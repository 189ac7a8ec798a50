"""The fifteen instance states, the allowed transitions between them, and the states of a machine's size."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from muster.base.resources import EMPTY, Resources
from muster.base.state_machine import StateMachine


class InstanceState(Enum):
    """Where a machine is in its life; values are Ray's protocol numbers."""

    UNKNOWN = 0  # placeholder, never stored
    QUEUED = 1  # wanted; nothing requested from the provider yet
    REQUESTED = 2  # a launch was handed to the provider; cloud id unknown
    ALLOCATED = 3  # a cloud instance is bound; its node has not been seen
    RAY_INSTALLING = 4  # the installer is setting the machine up
    RAY_RUNNING = 5  # its node is registered and alive
    RAY_STOP_REQUESTED = 6  # a drain was handed over; outcome not seen
    RAY_STOPPING = 7  # the runtime shows the node draining
    RAY_STOPPED = 8  # the runtime shows the node dead, or it vanished
    TERMINATING = 9  # a terminate was handed to the provider
    TERMINATED = 10  # the machine is gone, or was never launched
    ALLOCATION_FAILED = 11  # the provider refused, or every retry ran out of time
    RAY_INSTALL_FAILED = 12  # the installer failed or ran out of time
    TERMINATION_FAILED = 13  # the provider refused to terminate or was too slow; retried
    ALLOCATION_TIMEOUT = 14  # bound, but its node never came

    __hash__ = object.__hash__  # members are singletons; Enum's own hash is a slow Python call


_S = InstanceState

INSTANCE_MACHINE: StateMachine[InstanceState] = StateMachine(
    "instance",
    {
        _S.UNKNOWN: (),
        _S.QUEUED: (
            _S.REQUESTED,  # the launch rule handed it over
            _S.TERMINATED,  # no longer wanted; nothing was launched
        ),
        _S.REQUESTED: (
            _S.ALLOCATED,  # the cloud lists a machine for it
            _S.QUEUED,  # no answer in time; ask again
            _S.ALLOCATION_FAILED,  # refused, or out of retries
        ),
        _S.ALLOCATED: (
            _S.RAY_INSTALLING,  # the machine is up and muster installs the runtime
            _S.RAY_RUNNING,  # its node registered
            _S.ALLOCATION_TIMEOUT,  # its node never registered
            _S.RAY_STOPPING,  # first seen when already draining
            _S.RAY_STOPPED,  # first seen when already dead
            _S.TERMINATING,  # not wanted any more, or cancelled while it was requested
            _S.TERMINATED,  # the cloud no longer lists it
        ),
        _S.RAY_INSTALLING: (
            _S.RAY_RUNNING,  # installed, node registered
            _S.RAY_INSTALL_FAILED,  # installer error or timeout
            _S.RAY_STOPPING,  # the node registered and drained between two ticks
            _S.RAY_STOPPED,  # the node registered and died between two ticks
            _S.TERMINATING,  # not wanted any more
            _S.TERMINATED,  # the cloud no longer lists it
        ),
        _S.RAY_RUNNING: (
            _S.RAY_STOP_REQUESTED,  # the runtime was asked to drain it
            _S.RAY_STOPPING,  # drained by others, not by muster
            _S.RAY_STOPPED,  # its node died or vanished
            _S.TERMINATING,  # removed without a drain: its node is known to be gone
            _S.TERMINATED,  # the cloud no longer lists it
        ),
        _S.RAY_STOP_REQUESTED: (
            _S.RAY_STOPPING,  # the drain started
            _S.RAY_STOPPED,  # the drain finished, or the node died
            _S.RAY_RUNNING,  # the drain was refused or got lost
            _S.TERMINATED,  # the cloud no longer lists it
        ),
        _S.ALLOCATION_TIMEOUT: (
            _S.TERMINATING,  # stop paying for it
            _S.TERMINATED,  # the cloud no longer lists it
        ),
        _S.RAY_STOPPING: (
            _S.RAY_STOPPED,  # the drain finished
            _S.TERMINATING,  # the drain deadline passed
            _S.TERMINATED,  # the cloud no longer lists it
        ),
        _S.RAY_STOPPED: (
            _S.TERMINATING,  # stop paying for it
            _S.TERMINATED,  # gone, or another record owns the machine now
        ),
        _S.TERMINATING: (
            _S.TERMINATED,  # the cloud no longer lists it
            _S.TERMINATION_FAILED,  # refused, or too slow
        ),
        _S.TERMINATION_FAILED: (
            _S.TERMINATING,  # try again
            _S.TERMINATED,  # the cloud no longer lists it
        ),
        _S.RAY_INSTALL_FAILED: (
            _S.TERMINATING,  # stop paying for it
            _S.TERMINATED,  # the cloud no longer lists it
        ),
        _S.TERMINATED: (),
        _S.ALLOCATION_FAILED: (),
    },
)

TERMINAL = frozenset({_S.TERMINATED, _S.ALLOCATION_FAILED})
CREATABLE = frozenset({_S.QUEUED, _S.ALLOCATED, _S.TERMINATING})  # the states a new record may start in
RUNNING_REACHABLE = INSTANCE_MACHINE.can_reach(_S.RAY_RUNNING)  # may still serve work: schedulable
PENDING = frozenset({_S.QUEUED, _S.REQUESTED, _S.ALLOCATED, _S.RAY_INSTALLING})
RUNNING = frozenset({_S.RAY_RUNNING, _S.RAY_STOP_REQUESTED, _S.RAY_STOPPING})
ON_CLOUD = frozenset(  # a machine is bound to the record: it costs money
    {
        _S.ALLOCATED,
        _S.RAY_INSTALLING,
        _S.RAY_RUNNING,
        _S.RAY_STOP_REQUESTED,
        _S.RAY_STOPPING,
        _S.RAY_STOPPED,
        _S.TERMINATING,
        _S.RAY_INSTALL_FAILED,
        _S.TERMINATION_FAILED,
        _S.ALLOCATION_TIMEOUT,
    }
)


class ResizeLimits(Struct, frozen=True, kw_only=True):
    """ResizeLimits bound how far a machine of this type may grow in place."""

    maximum: Resources
    timeout_s: float = 300.0
    of_new: Resources | None = None  # what a new machine is planned with; None: the maximum

    @property
    def planned(self) -> Resources:
        """Return what a machine that does not run yet is expected to grow to."""
        return self.maximum if self.of_new is None else self.of_new


class ResizeStatus(Struct, frozen=True, kw_only=True):
    """The size of one machine and what its provider reports of a change of it."""

    current: Resources  # what the machine has
    desired: Resources  # what it was last asked to have
    in_progress: bool = False  # the change is not all there, or the host has put it off
    failed: bool = False  # the host reports that it cannot be done
    suggested_maximum: Resources | None = None  # what the host could give, if known
    message: str = ""  # the host's own words


class ResizeRecord(Struct, frozen=True, kw_only=True):
    """What the ledger keeps of the changes of one machine's size."""

    desired: Resources = EMPTY
    since: float | None = None  # when the change under way was asked for; None: none is
    asked_at: float | None = None  # when the machine was last asked; None: the node is asked first
    node_asked_at: float | None = None  # when the runtime was last asked to count another size
    suggested_maximum: Resources | None = None
    failed_at: float | None = None  # the machine is not asked again
    reason: str = ""
