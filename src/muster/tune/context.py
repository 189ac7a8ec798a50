"""Provides what a trial can ask about itself at Ray's import path."""

from __future__ import annotations

from muster.session.context import TuneContext
from muster.session.report import get_context

__all__ = ["TuneContext", "get_context"]
