from __future__ import annotations

import pytest
from tests.tune.logger.logging_scene import Scene


@pytest.fixture
def scene(tmp_path):
    made = Scene(tmp_path)
    yield made
    made.writer.close(5)
