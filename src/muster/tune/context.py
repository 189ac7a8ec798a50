"""Ray's import path of what a trial can ask about itself."""

from __future__ import annotations

from muster.session.context import TuneContext
from muster.session.report import get_context

__all__ = ["TuneContext", "get_context"]
