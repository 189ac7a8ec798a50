"""Export what a trial calls at the older import path of Ray, `ray.air.session`: `report` and the getters."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from muster.session.report import get_checkpoint, get_context, report
from muster.session.session import TuneContext

if TYPE_CHECKING:

    def __getattr__(name: str) -> Callable[[], Any]: ...


def _ask(name: str) -> Any:  # noqa: ANN401 - as in TuneContext
    return getattr(get_context(), name)()


_getters = {name: partial(_ask, name) for name in vars(TuneContext) if name.startswith("get_")}
globals().update(_getters)
__all__ = ["get_checkpoint", "report", *_getters]  # noqa: PLE0604
