"""Define `ray.internal.free`, with which libraries release what they have put."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from muster.ray_api.objects import ObjectRef


def free(object_refs: ObjectRef[Any] | Sequence[ObjectRef[Any]], local_only: bool = False) -> None:
    """Forget the values of these refs in this process."""
    del local_only
    for ref in [object_refs] if isinstance(object_refs, ObjectRef) else object_refs:
        ref.free()
