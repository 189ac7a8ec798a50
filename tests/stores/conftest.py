"""Failures inside the shared contract show their values."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(
    "muster.testing.store_writes", "muster.testing.store_past", "muster.testing.trial_store_contract"
)
