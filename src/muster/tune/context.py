"""Provide what a trial can ask about itself at Ray's import path."""

from __future__ import annotations

from muster.session.report import get_context
from muster.session.session import TuneContext

__all__ = ["TuneContext", "get_context"]
