"""How much of the past the ledger keeps, as the plain numbers its store takes."""

from __future__ import annotations

from typing import TypedDict

from muster.config.schema import ClusterConfig


class RetentionNumbers(TypedDict):
    """Keyword arguments of the store's Retention; config and stores do not know each other."""

    max_age_s: float
    max_ended: int
    max_decisions: int
    max_decision_bytes: int


def retention_of(config: ClusterConfig) -> RetentionNumbers:
    """`Retention(**retention_of(config))`."""
    kept = config.muster.retention
    return RetentionNumbers(
        max_age_s=kept.max_age_s,
        max_ended=kept.max_records,
        max_decisions=kept.max_decisions,
        max_decision_bytes=kept.max_decision_bytes,
    )
