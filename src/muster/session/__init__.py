"""Provide what user code calls inside a running trial. Imports nothing heavy."""

from __future__ import annotations

from muster.session.checkpoint import Checkpoint
from muster.session.report import get_checkpoint, get_context, get_preemption_info, report, should_checkpoint
from muster.session.session import PreemptionInfo, TuneContext

__all__ = [
    "Checkpoint",
    "PreemptionInfo",
    "TuneContext",
    "get_checkpoint",
    "get_context",
    "get_preemption_info",
    "report",
    "should_checkpoint",
]
