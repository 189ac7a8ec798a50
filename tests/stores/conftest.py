"""Failures inside the shared contract show their values."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(
    "muster.testing.ledger_contract.writes",
    "muster.testing.ledger_contract.history",
    "muster.testing.trial_store_contract",
)
