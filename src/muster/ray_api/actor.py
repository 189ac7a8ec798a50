"""Define the names of `ray.actor` for `isinstance` and annotations; muster runs no actors."""

from __future__ import annotations

from muster.ray_api.remote_function import ActorClass

__all__ = ["ActorClass", "ActorHandle", "ActorProxy"]


class NoActor:
    """Handle on an actor; nothing makes one here."""


ActorHandle = ActorProxy = NoActor
