"""Defines how machines change their size: how far, where a change stands, what the ledger keeps of it."""

from __future__ import annotations

from msgspec import Struct

from muster.base.resources import EMPTY, Resources


class ResizeLimits(Struct, frozen=True, kw_only=True):
    """ResizeLimits bound how far a machine of this type may grow in place."""

    maximum: Resources
    timeout_s: float = 300.0
    of_new: Resources | None = None  # what a new machine is planned with; None: the maximum

    @property
    def planned(self) -> Resources:
        """Returns what a machine that does not run yet is expected to grow to."""
        return self.maximum if self.of_new is None else self.of_new


class ResizeStatus(Struct, frozen=True, kw_only=True):
    """A ResizeStatus is the size of one machine and what its provider reports of a change of it."""

    current: Resources  # what the machine has
    desired: Resources  # what it was last asked to have
    in_progress: bool = False  # the change is not all there, or the host has put it off
    failed: bool = False  # the host reports that it cannot be done
    suggested_maximum: Resources | None = None  # what the host could give, if known
    message: str = ""  # the host's own words


class ResizeRecord(Struct, frozen=True, kw_only=True):
    """A ResizeRecord is what the ledger keeps of the changes of one machine's size."""

    desired: Resources = EMPTY
    since: float | None = None  # when the change under way was asked for; None: none is
    asked_at: float | None = None  # when the machine was last asked; None: the node is asked first
    node_asked_at: float | None = None  # when the runtime was last asked to count another size
    suggested_maximum: Resources | None = None
    failed_at: float | None = None  # the machine is not asked again
    reason: str = ""
