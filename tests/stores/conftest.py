"""Failures inside the shared contract show their values."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(
    "tests.contracts.ledger_contract.writes",
    "tests.contracts.ledger_contract.history",
    "tests.contracts.trial_store_contract",
)
