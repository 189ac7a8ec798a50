from __future__ import annotations

import pytest
from tests.tune.logger.harness import LoggerHarness


@pytest.fixture
def harness(tmp_path):
    made = LoggerHarness(tmp_path)
    yield made
    made.writer.close(5)
