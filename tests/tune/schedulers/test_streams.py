"""One objective: schedulers decide, explain and save as they did before they took several objectives."""

from __future__ import annotations

import json

import pytest
from tests.tune.schedulers.streams import KINDS, RECORDED, STREAMS, stream_hash


@pytest.mark.parametrize("kind", KINDS)
def test_decisions_reasons_and_state_bytes_equal_those_recorded_with_one_objective(kind):
    recorded = json.loads(RECORDED.read_text())[kind].split()
    assert len(recorded) == STREAMS
    assert [seed for seed in range(STREAMS) if stream_hash(kind, seed) != recorded[seed]] == []
